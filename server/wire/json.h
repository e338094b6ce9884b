/*
 * json.h - trees of documents that come from the network: configurations,
 * settings, registrations. What a call sends is read without one
 * (json_reader.h). A text is checked to the letter first; what passed is
 * parsed by cJSON, which alone would take more than JSON.
 */
#ifndef ROPED_WIRE_JSON_H
#define ROPED_WIRE_JSON_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

/* Parses text[0, bytes), to be freed with json_free. ROPED_INVALID as
 * json_check has it, nesting of over 16 and NaN and Infinity included. */
ROPED_MUST_CHECK enum roped_status json_parse(const char *text, size_t bytes,
                                              const struct cJSON **out,
                                              struct roped_error *err);

/* The same of a request of v2, whose messages say so, as its clients expect. */
ROPED_MUST_CHECK enum roped_status json_parse_request(const char *text,
                                                      size_t bytes,
                                                      const struct cJSON **out,
                                                      struct roped_error *err);
void json_free(const struct cJSON *tree);

/* Member by exact name, or NULL; object may be NULL or no object. */
const struct cJSON *json_member(const struct cJSON *object, const char *name);

/* A number of 0 to 2^53 - 1 without a fraction. */
bool json_is_size(const struct cJSON *node, uint64_t *out);

/* What a node is, for messages: "-3", "'abc'", "an array". Returns text. */
const char *json_text(const struct cJSON *node, char *text, size_t text_bytes);

#endif
