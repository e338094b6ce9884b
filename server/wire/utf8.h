/*
 * utf8.h - is this UTF-8? Asked of what comes in and of what goes out. And a
 * code point as UTF-8.
 */
#ifndef ROPED_WIRE_UTF8_H
#define ROPED_WIRE_UTF8_H

#include <stddef.h>

/*
 * Bytes of the sequence at s, 1 to 4, or 0 where it is none: RFC 3629's table,
 * so no overlong forms, no surrogates, nothing above U+10FFFF.
 */
static inline size_t utf8_sequence(const unsigned char *s, size_t left)
{
    if (left == 0 || s[0] < 0x80)
        return left ? 1 : 0;
    size_t bytes = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || left < bytes)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return bytes;
}

/* Writes a code point, 1 to 4 bytes; returns the end. */
static inline char *utf8_write(unsigned code, char *to)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *to++ = (char)(0xE0 | code >> 12);
        } else {
            *to++ = (char)(0xF0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        }
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
    }
    *to++ = (char)(0x80 | (code & 0x3F));
    return to;
}

#endif
