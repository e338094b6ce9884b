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

/* Letters to change, add or leave out; words over 63 letters are 64 apart. */
static int distance_of(const char *a, const char *b)
{
    enum { LONGEST = ROPED_NEAREST_BYTES - 1 };
    int row[LONGEST + 1];
    size_t n = strlen(b);
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST + 1;
    for (int j = 0; j <= (int)n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            int changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = least(changed, row[j] + 1, row[j + 1] + 1);
        }
    }
    return row[n];
}

void roped_nearest_offer(struct roped_nearest *nearest, const char *known)
{
    int length = (int)strlen(nearest->word);
    int distance = distance_of(nearest->word, known);
    if (distance > (length + 3) / 3 || distance >= length ||
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
