/*
 * kserve_params.h - members of 'parameters', which a v2 request, an input and
 * an output may have.
 */
#ifndef ROPED_WIRE_KSERVE_PARAMS_H
#define ROPED_WIRE_KSERVE_PARAMS_H

#include "wire/json_reader.h"

#include <roped/status.h>

/* What clients of other servers send along, and what means nothing here. */
bool kserve_is_of_another_server(const char *name);

/* An object, or absent. */
ROPED_MUST_CHECK enum roped_status
kserve_check_params(const struct json_reader *params, struct roped_error *err);

/* The known members, as json_find has them found, of an input's or output's
 * parameters; others are refused by name. */
ROPED_MUST_CHECK enum roped_status
kserve_find_params(struct json_reader *params, const char *const *known, int n,
                   struct json_reader *param, struct roped_error *err);

#endif
