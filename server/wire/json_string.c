/*
 * json_string.c - what strings mean, without their escapes.
 */
#include "wire/json_internal.h"
#include "wire/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_NAMES = 16 }; /* up to here comparing all pairs beats sorting */

/* Goes through what a string means, byte by byte. */
struct spelling {
    struct json_reader rest;
    char escaped[4];
    long next, n; /* of escaped */
};

static struct spelling spell(const struct json_string *string)
{
    return (struct spelling){
        .rest = {.at = string->at, .end = string->at + string->bytes}};
}

/* -1 at the end. */
static int next_byte(struct spelling *spelling)
{
    unsigned code;
    const struct json_reader *rest = &spelling->rest;
    int c = rest->at < rest->end ? *rest->at : -1;
    if (spelling->next < spelling->n)
        return (unsigned char)spelling->escaped[spelling->next++];
    if (c != '\\' || !json_scan_escape(&spelling->rest, &code)) {
        spelling->rest.at += c >= 0;
        return c;
    }
    spelling->n = utf8_write(code, spelling->escaped) - spelling->escaped;
    spelling->next = 1;
    return (unsigned char)spelling->escaped[0];
}

size_t json_copy(const struct json_string *string, char *to, size_t room)
{
    size_t bytes = 0;
    if (!string->has_escapes) {
        bytes = string->bytes < room ? string->bytes : room - 1;
        memcpy(to, string->at, bytes);
        to[bytes] = '\0';
        return string->bytes;
    }
    struct spelling spelling = spell(string);
    for (int c; (c = next_byte(&spelling)) >= 0; bytes++)
        if (bytes + 1 < room)
            to[bytes] = (char)c;
    to[bytes < room ? bytes : room - 1] = '\0';
    return bytes;
}

bool json_equals_spelled(const struct json_string *string, const char *text)
{
    int c;
    struct spelling spelling = spell(string);
    while ((c = next_byte(&spelling)) == (unsigned char)*text && c >= 0)
        text++;
    return c < 0 && *text == '\0';
}

static int compare_names(const void *left, const void *right)
{
    const struct json_string *a = left, *b = right;
    int c, d;
    if (!a->has_escapes && !b->has_escapes) {
        c = memcmp(a->at, b->at, a->bytes < b->bytes ? a->bytes : b->bytes);
        return c ? c : (a->bytes > b->bytes) - (a->bytes < b->bytes);
    }
    struct spelling x = spell(a), y = spell(b);
    do {
        c = next_byte(&x);
        d = next_byte(&y);
    } while (c == d && c >= 0);
    return c - d;
}

static bool is_same_name(const struct json_string *a,
                         const struct json_string *b)
{
    bool is_plain_pair = !a->has_escapes && !b->has_escapes;
    if (is_plain_pair && (a->bytes != b->bytes || *a->at != *b->at))
        return false; /* as nearly all pairs */
    return compare_names(a, b) == 0;
}

const struct json_string *json_find_duplicate(struct json_string *name,
                                              size_t n)
{
    if (n > FEW_NAMES)
        qsort(name, n, sizeof *name, compare_names);
    for (size_t i = 1; i < n; i++)
        for (size_t j = n > FEW_NAMES ? i - 1 : 0; j < i; j++)
            if (is_same_name(&name[j], &name[i]))
                return name[i].at > name[j].at ? &name[i] : &name[j];
    return NULL;
}
