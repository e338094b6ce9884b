/*
 * json.h - strict JSON for text that comes from the network.
 *
 * cJSON accepts more than RFC 8259 (leading zeros, raw control characters,
 * invalid UTF-8, duplicate keys, text after the end), and two parsers that
 * disagree are a security hole. Every text passes json_check first; cJSON
 * then builds the tree. The only users of cJSON are the files of this room.
 */
#ifndef ROPED_WIRE_JSON_H
#define ROPED_WIRE_JSON_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

/*
 * Parses text[0, bytes) into a new tree (json_free). ROPED_INVALID for what
 * is not strict JSON: nesting over 16, duplicate keys in an object, NUL or
 * control characters in a name, anything but spaces after the value.
 * The message starts "failed to parse the request JSON buffer: " and ends in
 * the byte offset, as v2 clients expect.
 */
ROPED_MUST_CHECK enum roped_status json_parse(const char *text, size_t bytes,
                                              struct cJSON **out,
                                              struct roped_error *err);

/* The same, and every number must be an integer of 0 or more written in digits
 * alone: sizes and offsets, where 2.0 and -0 are mistakes. */
ROPED_MUST_CHECK enum roped_status json_parse_unsigned(const char *text,
                                                       size_t bytes,
                                                       struct cJSON **out,
                                                       struct roped_error *err);
void json_free(struct cJSON *tree);

/* Member by exact name, or NULL. */
const struct cJSON *json_member(const struct cJSON *object, const char *name);

/* An integer in [0, 2^53 - 1], written without fraction or exponent. */
bool json_is_size(const struct cJSON *node, uint64_t *out);

#endif
