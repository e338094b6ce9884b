/*
 * log_json.h - a line of logfmt as a JSON object.
 */
#ifndef ROPED_LOG_JSON_H
#define ROPED_LOG_JSON_H

#include <stddef.h>

/*
 * Writes the pairs of a line, which log.c has made, as members of an object
 * without a NUL, and returns its length. Numbers, true and false stay what they
 * are, other values become strings, \xNN in them \u00NN. Members that do not
 * fit into out_bytes (at least 2) are left out, so what is written is always
 * JSON.
 */
size_t log_json(const char *line, char *out, size_t out_bytes);

#endif
