/*
 * json_build.h - the tree of a text that json.c has found to be right.
 */
#ifndef ROPED_WIRE_JSON_BUILD_H
#define ROPED_WIRE_JSON_BUILD_H

#include <stddef.h>

struct cJSON;

/* valueint of a number that was written Infinity: of one that was too large for
 * a double it is the largest or least int. */
enum { JSON_SPELLED_OUT = 0 };

/*
 * A tree as cJSON would build it, in the open arena of the thread
 * (json_arena.h). text[0, bytes) is one value with the spaces around it,
 * checked in every respect but for duplicate names; NaN and Infinity are
 * numbers. NULL: no memory, and nothing is left of it.
 */
struct cJSON *json_build(const char *text, size_t bytes);

#endif
