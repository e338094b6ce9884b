/*
 * json_internal.h - what json_reader.c, json_token.c and json_string.c share.
 */
#ifndef ROPED_WIRE_JSON_INTERNAL_H
#define ROPED_WIRE_JSON_INTERNAL_H

#include "wire/json_reader.h"

static inline bool json_refuse(struct json_reader *reader, const char *why)
{
    if (!reader->why)
        reader->why = why;
    return false;
}

static inline int json_peek(const struct json_reader *reader)
{
    return reader->at < reader->end ? *reader->at : -1;
}

static inline bool json_is_space(unsigned char c)
{
    return c <= ' ' && (c == ' ' || c == '\n' || c == '\t' || c == '\r');
}

static inline const unsigned char *json_behind_space(const unsigned char *at,
                                                     const unsigned char *end)
{
    while (at < end && json_is_space(*at))
        at++;
    return at;
}

static inline void json_skip_space(struct json_reader *reader)
{
    reader->at = json_behind_space(reader->at, reader->end);
}

/* Each reads what it is called, where the reader stands before it, and moves
 * the reader behind it. False: it is wrong, and reader->why says how. */
bool json_scan_string(struct json_reader *reader, bool is_name,
                      struct json_string *out);
bool json_scan_number(struct json_reader *reader);
bool json_scan_word(struct json_reader *reader, const char *word);

/* Reads an escape, from its '\\' on; code is the character that is meant.
 * False: it is wrong, and reader->why says how. */
bool json_scan_escape(struct json_reader *reader, unsigned *code);

/* Do two of n names say the same? Then the later one. Their order changes. */
const struct json_string *json_find_duplicate(struct json_string *name,
                                              size_t n);

#endif
