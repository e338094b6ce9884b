/*
 * nearest.c - the word that was meant: the fewest letters to change.
 */
#include <roped/nearest.h>

#include <stdio.h>
#include <string.h>

static int least(int a, int b, int c)
{
    int smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

/* Letters to change, add, leave out or swap with the next one; words over 63
 * letters are 64 apart. */
static int distance_of(const char *a, const char *b)
{
    enum { LONGEST = ROPED_NEAREST_BYTES - 1 };
    int rows[3][LONGEST + 1];
    size_t n = strlen(b), i;
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST + 1;
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = (int)j;
    for (i = 0; a[i]; i++) {
        const int *before = rows[(i + 2) % 3], *above = rows[i % 3];
        int *row = rows[(i + 1) % 3];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            row[j + 1] =
                least(above[j] + (a[i] != b[j]), row[j] + 1, above[j + 1] + 1);
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                row[j + 1] = least(row[j + 1], before[j - 1] + 1, LONGEST);
        }
    }
    return rows[i % 3][n];
}

void roped_nearest_offer(struct roped_nearest *nearest, const char *known)
{
    int length = (int)strlen(nearest->word);
    int distance = distance_of(nearest->word, known);
    int most = length < 6 ? 1 : length / 3;
    if (distance > most || distance >= length ||
        (nearest->found[0] && distance >= nearest->distance))
        return;
    snprintf(nearest->found, sizeof nearest->found, "%s", known);
    nearest->distance = distance;
}

const char *roped_nearest_text(const struct roped_nearest *nearest, char *text,
                               size_t text_bytes)
{
    text[0] = '\0';
    if (nearest->found[0])
        snprintf(text, text_bytes, "; did you mean '%s'?", nearest->found);
    return text;
}
