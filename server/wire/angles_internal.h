/*
 * angles_internal.h - what the two forms of a table's JSON share. Both set
 * parameters of a call of rope, whose descriptor checks kinds and ranges.
 */
#ifndef ROPED_WIRE_ANGLES_INTERNAL_H
#define ROPED_WIRE_ANGLES_INTERNAL_H

#include "wire/angles_json.h"

struct cJSON;

/* Is tree a model's config.json? */
bool angles_config_is(const struct cJSON *tree);

/* Reads one into out[0, *n_out), whose names are the table's. */
ROPED_MUST_CHECK enum roped_status
angles_config_read(const struct cJSON *tree,
                   struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                   struct roped_error *err);

/* Members short_factor and long_factor of object, if it has them. */
ROPED_MUST_CHECK enum roped_status
angles_read_factors(const struct cJSON *object, struct angles_json_set *out,
                    struct roped_error *err);

#endif
