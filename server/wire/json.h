/*
 * json.h - strict JSON for text that comes from the network.
 *
 * Parsers accept more than RFC 8259 (leading zeros, raw control characters,
 * invalid UTF-8, duplicate keys, text after the end), and two parsers that
 * disagree are a security hole. Every text is checked first, by one pass over
 * it; the tree is then built of cJSON's nodes (json_build.h), so that its
 * accessors work. The only users of cJSON are the files of this room.
 */
#ifndef ROPED_WIRE_JSON_H
#define ROPED_WIRE_JSON_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

#define JSON_NOWHERE SIZE_MAX

/*
 * Parses text[0, bytes) into a tree to read, which the same thread frees
 * (json_free): it is in memory of the thread, and of the same text it may be
 * the same tree (json_arena.h). ROPED_INVALID for
 * what is not strict JSON: arrays and objects nested over 16, duplicate names
 * in an object, control characters in a name, NUL in any string, NaN and
 * Infinity, anything but spaces after the value. The message starts "failed to
 * parse the request JSON buffer: ", as v2 clients expect, and says at which
 * byte.
 */
ROPED_MUST_CHECK enum roped_status json_parse(const char *text, size_t bytes,
                                              const struct cJSON **out,
                                              struct roped_error *err);

/* The same for v2 inference: NaN, Infinity and -Infinity are numbers, as
 * clients write them into JSON tensors, and nesting goes to 100. */
ROPED_MUST_CHECK enum roped_status json_parse_v2(const char *text, size_t bytes,
                                                 const struct cJSON **out,
                                                 struct roped_error *err);

/*
 * Strict again, for text whose numbers are sizes and offsets, where 2.0, 1e3
 * and -0 are mistakes that the tree no longer shows: *odd_number becomes the
 * offset of the first number that is not digits alone, or JSON_NOWHERE.
 */
ROPED_MUST_CHECK enum roped_status
json_parse_sizes(const char *text, size_t bytes, const struct cJSON **out,
                 size_t *odd_number, struct roped_error *err);
void json_free(const struct cJSON *tree);

/* Member by exact name, or NULL; object may be NULL or no object. */
const struct cJSON *json_member(const struct cJSON *object, const char *name);

/* A number of 0 to 2^53 - 1 without a fraction. */
bool json_is_size(const struct cJSON *node, uint64_t *out);

/* A number that a double holds: not 1e999, but Infinity where it was taken. */
bool json_is_number(const struct cJSON *node, double *out);

/* What a node is, for messages: "-3", "'abc'", "an array". Returns text. */
const char *json_text(const struct cJSON *node, char *text, size_t text_bytes);

#endif
