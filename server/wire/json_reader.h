/*
 * json_reader.h - strict JSON, read where it lies: no tree, no allocation for
 * what a call sends.
 *
 * Parsers accept more than RFC 8259 (leading zeros, raw control characters,
 * invalid UTF-8, duplicate names, text after the end), and two parsers that
 * disagree are a security hole. Everything that is read or skipped here is
 * checked to the letter; what was read is of use once json_end has said that
 * the rest is right too. A reader stands before a value, and each function
 * below moves it behind what it has read. Readers do not own the text, and hold
 * nothing to free.
 *
 * Duplicate names are looked for at the end of each object, unknown ones
 * included, by comparing names without their escapes: in pairs, or sorted where
 * there are over 16. The caller brings the memory where the names of open
 * objects are noted; a text with more of them is refused.
 */
#ifndef ROPED_WIRE_JSON_READER_H
#define ROPED_WIRE_JSON_READER_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JSON_NOWHERE SIZE_MAX

/* How deep arrays and objects may be nested: anywhere, in a v2 request. */
enum { JSON_DEPTH = 16, JSON_V2_DEPTH = 100 };

/* A string as it is spelled, without its quotes. */
struct json_string {
    const unsigned char *at;
    size_t bytes;
    bool has_escapes;
};

struct json_reader {
    const unsigned char *at; /* the next value; NULL: there is none */
    const unsigned char *start, *end;
    int depth, max_depth;
    bool is_first;       /* nothing was read of what was opened last */
    const char *why;     /* what is wrong at at; NULL: nothing */
    size_t odd_number;   /* offset of the first that is not digits alone */
    size_t nan;          /* offset of the first NaN, Infinity or -Infinity */
    const char *subject; /* what it is, for messages */
    struct json_string *names; /* of open objects; NULL: checked already */
    size_t n_names, max_names;
    size_t object; /* index of the innermost one's mark among the names */
};

enum json_kind {
    JSON_NOTHING, /* no value: a member that is absent, the end, an error */
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* names: room for those of the objects that are open at once, and one more for
 * each of these; NULL to read again what was found right. */
void json_reader_init(struct json_reader *reader, const char *text,
                      size_t bytes, int max_depth, struct json_string *names,
                      size_t max_names);

/*
 * Is all of the text one value with spaces around it, and nothing else?
 * ROPED_INVALID for arrays and objects nested too deep, duplicate names in an
 * object, control characters in a name, NUL in any string, and all else that is
 * not JSON, but for NaN and Infinity: their first offset is noted in
 * reader->nan, that of a number with more than digits in reader->odd_number,
 * JSON_NOWHERE standing for none. The message starts "failed to parse " and
 * the reader's subject, which is "the request JSON buffer", as v2 clients
 * expect, until somebody says what else the text is; and says at which byte.
 * The reader stands before the value again.
 */
ROPED_MUST_CHECK enum roped_status json_check(struct json_reader *reader,
                                              struct roped_error *err);

/*
 * Ends a reading that came to status: that is returned where all of the text is
 * right. A text that is not is refused for that, whatever else was found wrong
 * with what it says.
 */
ROPED_MUST_CHECK enum roped_status json_end(struct json_reader *reader,
                                            enum roped_status status,
                                            struct roped_error *err);

/* The refusal of NaN and Infinity, for those who have no better words. */
ROPED_MUST_CHECK enum roped_status
json_refuse_nan(const struct json_reader *reader, struct roped_error *err);

/* What comes next, by its first character, and where in the text it does. */
enum json_kind json_kind(const struct json_reader *reader);
size_t json_offset(const struct json_reader *reader);

/*
 * Enters the array or object that comes next, and goes through it: false at its
 * end, which is then behind the reader, and where something is wrong, such as
 * nothing to enter: all of them are false from there on. Each item or member
 * that they stop at must be read or skipped.
 */
bool json_open(struct json_reader *reader);
bool json_next(struct json_reader *reader);
bool json_next_name(struct json_reader *reader, struct json_string *name);

bool json_skip(struct json_reader *reader);

/*
 * Skips the object that comes next: member[i] becomes a reader that stands
 * before the value of name[i], or JSON_NOTHING where there is no such member.
 * What is no object has no members and is not skipped.
 */
void json_find(struct json_reader *reader, const char *const *name, int n,
               struct json_reader *member);

/*
 * False, and out is not set, where what comes next is something else or is not
 * right; a size that is none is not read. A number is the nearest double:
 * infinite where it is too large, and where it is spelled so. A size is a
 * number of 0 to 2^53 - 1 without a fraction.
 */
bool json_read_string(struct json_reader *reader, struct json_string *out);
bool json_read_number(struct json_reader *reader, double *out);
bool json_read_size(struct json_reader *reader, uint64_t *out);

/* "NaN", "Infinity" or "-Infinity" where one comes next, else NULL. */
const char *json_nan(const struct json_reader *reader);

/* Without its escapes: as much as fits, NUL-terminated; returns the bytes of
 * all of it, as snprintf does. */
size_t json_copy(const struct json_string *string, char *to, size_t room);
bool json_equals_spelled(const struct json_string *string, const char *text);

static inline bool json_equals(const struct json_string *string,
                               const char *text)
{
    size_t bytes = strlen(text); /* of a constant, mostly */
    return string->has_escapes
               ? json_equals_spelled(string, text)
               : string->bytes == bytes && memcmp(string->at, text, bytes) == 0;
}

/* What comes next, for messages: "-3", "'abc'", "an array". Returns text. */
const char *json_describe(const struct json_reader *reader, char *text,
                          size_t text_bytes);

#endif
