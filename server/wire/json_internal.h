/*
 * json_internal.h - what json_reader.c and json_string.c share.
 */
#ifndef ROPED_WIRE_JSON_INTERNAL_H
#define ROPED_WIRE_JSON_INTERNAL_H

#include "wire/json_reader.h"

/* Reads an escape, from its '\\' on; code is the character that is meant.
 * False: it is wrong, and reader->why says how. */
bool json_scan_escape(struct json_reader *reader, unsigned *code);

/* Do two of n names say the same? Then the later one. Their order changes. */
const struct json_string *json_find_duplicate(struct json_string *name,
                                              size_t n);

#endif
