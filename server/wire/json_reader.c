/*
 * json_reader.c - the structure of a text: arrays, objects and their names, one
 * pass, recursive only in nesting, which is bounded.
 */
#include "wire/json_internal.h"

#include <roped/number.h>

#include <stdio.h>
#include <string.h>

size_t json_offset(const struct json_reader *reader)
{
    return (size_t)(reader->at - reader->start);
}

void json_reader_init(struct json_reader *reader, const char *text,
                      size_t bytes, int max_depth, struct json_string *names,
                      size_t max_names)
{
    const unsigned char *start = (const unsigned char *)text;
    *reader = (struct json_reader){.at = start,
                                   .start = start,
                                   .end = start + bytes,
                                   .max_depth = max_depth,
                                   .odd_number = JSON_NOWHERE,
                                   .nan = JSON_NOWHERE,
                                   .subject = "the request JSON buffer",
                                   .names = names,
                                   .max_names = max_names};
    json_skip_space(reader);
}

/* ------------------------------------------------------------------- names */

static const char duplicate[] = "duplicate name";

static bool note_name(struct json_reader *reader,
                      const struct json_string *name)
{
    if (reader->n_names == reader->max_names)
        return json_refuse(reader,
                           "too many names in the objects that are open");
    reader->names[reader->n_names++] = *name;
    return true;
}

/* Before the names of an object stands where those of the outer one begin. */
static bool mark_object(struct json_reader *reader)
{
    const struct json_string mark = {.bytes = reader->object};
    reader->object = reader->n_names;
    return note_name(reader, &mark);
}

/* At the end of the innermost object. */
__attribute__((noinline)) static bool check_names(struct json_reader *reader)
{
    struct json_string *mark = &reader->names[reader->object];
    size_t n = reader->n_names - reader->object - 1;
    const struct json_string *found = json_find_duplicate(mark + 1, n);
    reader->n_names = reader->object;
    reader->object = mark->bytes;
    if (!found)
        return true;
    reader->at = found->at - 1;
    return json_refuse(reader, duplicate);
}

/* ----------------------------------------------------------------- values */

bool json_open(struct json_reader *reader)
{
    if (json_kind(reader) < JSON_ARRAY)
        return json_refuse(reader, "invalid value");
    if (reader->depth == reader->max_depth)
        return json_refuse(reader, reader->max_depth == JSON_V2_DEPTH
                                       ? "JSON nesting depth exceeds maximum "
                                         "allowed limit (100)"
                                       : "nested over 16 deep");
    if (reader->names && *reader->at == '{' && !mark_object(reader))
        return false;
    reader->depth++;
    reader->at++;
    reader->is_first = true;
    return true;
}

/* Goes on to the next item, or behind the closing bracket. */
static bool next(struct json_reader *reader, int close)
{
    const unsigned char *end = reader->end;
    const unsigned char *at = json_behind_space(reader->at, end);
    int c = at < end ? *at : -1;
    bool is_first = reader->is_first;
    reader->is_first = false;
    reader->at = at;
    if (reader->why)
        return false;
    if (c == close) {
        reader->at++;
        reader->depth--;
        if (close == '}' && reader->names)
            check_names(reader);
        return false;
    }
    if (is_first)
        return true;
    if (c != ',')
        return json_refuse(reader, "expected ',' or a closing bracket");
    reader->at = json_behind_space(at + 1, end);
    return true;
}

bool json_next(struct json_reader *reader)
{
    return next(reader, ']');
}

bool json_next_name(struct json_reader *reader, struct json_string *name)
{
    if (!next(reader, '}'))
        return false;
    if (json_peek(reader) != '"')
        return json_refuse(reader, "expected a name");
    if (!json_scan_string(reader, true, name))
        return false;
    json_skip_space(reader);
    if (json_peek(reader) != ':')
        return json_refuse(reader, "expected ':'");
    reader->at = json_behind_space(reader->at + 1, reader->end);
    return !reader->names || note_name(reader, name);
}

bool json_skip(struct json_reader *reader)
{
    struct json_string string;
    switch (json_kind(reader)) {
    case JSON_OBJECT:
        for (json_open(reader); json_next_name(reader, &string);)
            if (!json_skip(reader))
                return false;
        return !reader->why;
    case JSON_ARRAY:
        for (json_open(reader); json_next(reader);)
            if (!json_skip(reader))
                return false;
        return !reader->why;
    case JSON_STRING:
        return json_scan_string(reader, false, &string);
    case JSON_NUMBER:
        return json_scan_number(reader);
    case JSON_TRUE:
        return json_scan_word(reader, "true");
    case JSON_FALSE:
        return json_scan_word(reader, "false");
    case JSON_NULL:
        return json_scan_word(reader, "null");
    case JSON_NOTHING:
        break;
    }
    return json_refuse(reader, json_peek(reader) < 0 ? "unexpected end"
                                                     : "invalid value");
}

bool json_read_string(struct json_reader *reader, struct json_string *out)
{
    return json_kind(reader) == JSON_STRING &&
           json_scan_string(reader, false, out);
}

void json_find(struct json_reader *reader, const char *const *name, int n,
               struct json_reader *member)
{
    struct json_string found;
    for (int i = 0; i < n; i++)
        member[i].at = NULL; /* which says all: copies take time */
    if (json_kind(reader) != JSON_OBJECT || !json_open(reader))
        return;
    while (json_next_name(reader, &found)) {
        int i = 0;
        while (i < n && !json_equals(&found, name[i]))
            i++;
        if (i < n) {
            member[i] = *reader;
            member[i].names = NULL;
        }
        json_skip(reader);
    }
}

const char *json_describe(const struct json_reader *reader, char *text,
                          size_t text_bytes)
{
    static const char *const words[] = {
        [JSON_NOTHING] = "nothing", [JSON_NULL] = "null",
        [JSON_FALSE] = "false",     [JSON_TRUE] = "true",
        [JSON_NUMBER] = "a number", [JSON_STRING] = "a string",
        [JSON_ARRAY] = "an array",  [JSON_OBJECT] = "an object"};
    struct json_reader copy = *reader;
    struct json_string string;
    char start[33];
    double number;
    if (json_read_number(&copy, &number)) {
        roped_print(text, text_bytes, "%.15g", number);
    } else if (json_read_string(&copy, &string)) {
        json_copy(&string, start, sizeof start);
        snprintf(text, text_bytes, "'%s'", start);
    } else {
        snprintf(text, text_bytes, "%s", words[json_kind(reader)]);
    }
    return text;
}

/* --------------------------------------------------------------- all of it */

/* reader->why and where, as a message. */
static enum roped_status fail(const struct json_reader *reader,
                              struct roped_error *err)
{
    struct json_reader copy = *reader;
    struct json_string string;
    char name[65] = "";
    size_t at = json_offset(reader);
    if (reader->why != duplicate)
        return roped_fail(err, ROPED_INVALID, "failed to parse %s: %s at %zu",
                          reader->subject, reader->why, at);
    if (json_scan_string(&copy, true, &string))
        json_copy(&string, name, sizeof name);
    return roped_fail(err, ROPED_INVALID,
                      "failed to parse %s: duplicate name '%s' at %zu",
                      reader->subject, name, at);
}

enum roped_status json_check(struct json_reader *reader,
                             struct roped_error *err)
{
    const char *subject = reader->subject;
    json_reader_init(reader, (const char *)reader->start,
                     (size_t)(reader->end - reader->start), reader->max_depth,
                     reader->names, reader->max_names);
    reader->subject = subject;
    const struct json_reader start = *reader;
    if (reader->start == reader->end)
        json_refuse(reader, "it is empty");
    else if (json_skip(reader))
        json_skip_space(reader);
    if (!reader->why && reader->at != reader->end)
        json_refuse(reader, "something follows the value");
    if (reader->why)
        return fail(reader, err);
    reader->at = start.at;
    return ROPED_OK;
}

enum roped_status json_end(struct json_reader *reader, enum roped_status status,
                           struct roped_error *err)
{
    json_skip_space(reader);
    if (!status && !reader->why && reader->at == reader->end)
        return ROPED_OK;
    enum roped_status check = json_check(reader, err);
    return check ? check : status;
}

enum roped_status json_refuse_nan(const struct json_reader *reader,
                                  struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "failed to parse %s: NaN and Infinity are not valid JSON "
                      "at %zu",
                      reader->subject, reader->nan);
}
