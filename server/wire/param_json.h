/*
 * param_json.h - a JSON value as a parameter of an operator: the same for the
 * "parameters" of a v2 request and for rotary tables.
 */
#ifndef ROPED_WIRE_PARAM_JSON_H
#define ROPED_WIRE_PARAM_JSON_H

#include "wire/json_reader.h"
#include "wire/signature.h"

struct cJSON;

/*
 * Sets a parameter of call from a string, number, boolean or short array of
 * integers (what the query string spells "16,24,24"). Kind and range are the
 * descriptor's to check.
 */
ROPED_MUST_CHECK enum roped_status param_json_set(struct roped_call *call,
                                                  const char *name,
                                                  const struct cJSON *node,
                                                  struct roped_error *err);

/* The parameters of a program are texts, which outlive its run: here. */
enum { PARAM_TEXTS_BYTES = 2048 };
struct param_texts {
    size_t bytes;
    char text[PARAM_TEXTS_BYTES];
};

/* The same from what reader is at, for a call or a run of a program. */
ROPED_MUST_CHECK enum roped_status
param_json_read(const struct signature *signature, const char *name,
                struct json_reader *reader, struct param_texts *texts,
                struct roped_error *err);

#endif
