/*
 * query.h - arguments of a command line as parts of a URL.
 */
#ifndef ROPED_CLIENT_QUERY_H
#define ROPED_CLIENT_QUERY_H

#include "wire/buffer.h"

#include <stdio.h>
#include <string.h>

/* Appends text, percent-encoded but for plain characters and the one at
 * except, which may be NULL. */
static inline void query_encode(struct buffer *query, const char *text,
                                const char *except)
{
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || strchr("-._,", c);
        if (is_plain || at == except)
            buffer_append(query, at, 1);
        else
            buffer_printf(query, "%%%02X", c);
    }
}

/* Appends "name=value" of an argument "--name=value", percent-encoded. False
 * where it has not that form. */
static inline bool query_add(struct buffer *query, const char *argument)
{
    const char *equals = strchr(argument, '=');
    if (strncmp(argument, "--", 2) != 0 || !equals)
        return false;
    if (query->bytes)
        buffer_text(query, "&");
    query_encode(query, argument + 2, equals);
    return true;
}

#endif
