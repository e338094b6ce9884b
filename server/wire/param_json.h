/*
 * param_json.h - a JSON value as a parameter of an operator: the same for the
 * "parameters" of a v2 request and for rotary tables.
 */
#ifndef ROPED_WIRE_PARAM_JSON_H
#define ROPED_WIRE_PARAM_JSON_H

#include "wire/json_reader.h"

#include <roped/op.h>

struct cJSON;

/*
 * Sets parameter name of call from a string, number, boolean or short array of
 * integers (what the query string spells "16,24,24"). Kind and range are the
 * descriptor's to check. From a node of a tree, or from what reader is at.
 */
ROPED_MUST_CHECK enum roped_status param_json_set(struct roped_call *call,
                                                  const char *name,
                                                  const struct cJSON *node,
                                                  struct roped_error *err);
ROPED_MUST_CHECK enum roped_status param_json_read(struct roped_call *call,
                                                   const char *name,
                                                   struct json_reader *reader,
                                                   struct roped_error *err);

#endif
