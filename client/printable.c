/*
 * printable.c - which characters are shown, and how the others are spelled.
 */
#include "printable.h"

#include "wire/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* First and last of each range that is not shown as it is. */
static const unsigned hidden[][2] = {
    {0x0000, 0x001F},   /* C0 */
    {0x007F, 0x009F},   /* DEL and C1 */
    {0x061C, 0x061C},   /* marks of direction */
    {0x200B, 0x200B},   /* a space of no width */
    {0x200E, 0x200F},   /* marks of direction */
    {0x2028, 0x202E},   /* ends of lines; embeddings and overrides */
    {0x2060, 0x206F},   /* what is not seen; isolates */
    {0xFEFF, 0xFEFF},   /* byte order mark */
    {0xFFF0, 0xFFFB},   /* annotations */
    {0xFFFE, 0xFFFF},   /* no characters */
    {0xE0000, 0xE0FFF}, /* tags */
};

static bool is_hidden(unsigned code)
{
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i][0] && code <= hidden[i][1])
            return true;
    return false;
}

/* The code point of a sequence of UTF-8. */
static unsigned code_of(const unsigned char *s, size_t bytes)
{
    unsigned code = bytes == 1 ? s[0] : s[0] & (0xFFU >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++)
        code = code << 6 | (s[i] & 0x3F);
    return code;
}

/* "\u001b", or two of them for a code point over 0xFFFF; their bytes. */
static size_t spell(unsigned code, char spelled[16])
{
    unsigned over = code - 0x10000;
    return (size_t)(code < 0x10000 ? snprintf(spelled, 16, "\\u%04x", code)
                                   : snprintf(spelled, 16, "\\u%04x\\u%04x",
                                              0xD800 | (over >> 10 & 0x3FF),
                                              0xDC00 | (over & 0x3FF)));
}

size_t printable_copy(const char *text, char *to, size_t room)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t left = strlen(text), all = 0, end = 0;
    while (left > 0) {
        char spelled[16];
        size_t bytes = utf8_sequence(at, left), n = bytes;
        unsigned code = bytes ? code_of(at, bytes) : 0xFFFD;
        const void *from = at;
        if (!bytes || is_hidden(code)) {
            n = spell(code, spelled);
            from = spelled;
        }
        if (end == all && end + n < room) {
            memcpy(to + end, from, n);
            end += n;
        }
        all += n;
        at += bytes ? bytes : 1;
        left -= bytes ? bytes : 1;
    }
    if (room)
        to[end] = '\0';
    return all;
}

enum roped_status printable_error(enum roped_status status,
                                  struct roped_error *err)
{
    static const char cut[] = "...";
    char text[ROPED_ERROR_BYTES];
    if (!status || !err)
        return status;
    if (printable_copy(err->text, text, sizeof text) >= sizeof text) {
        printable_copy(err->text, text, sizeof text - (sizeof cut - 1));
        memcpy(text + strlen(text), cut, sizeof cut);
    }
    memcpy(err->text, text, strlen(text) + 1);
    return status;
}
