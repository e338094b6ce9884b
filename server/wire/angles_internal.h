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

/* ------------------------------------------------------------ config.json */

/* What transformers takes for a model whose file says nothing; 0: unknown. */
struct config_defaults {
    double head_dim, theta, local_theta;
};

/* What one table is made of. */
struct config_part {
    const struct cJSON *config;
    const struct cJSON *rope;  /* its dictionary, or NULL */
    const struct cJSON *theta; /* its base, or NULL: the model's */
    const char *layer_type;    /* NULL: of all layers */
    struct config_defaults defaults;
};

/* A member that is there and not null. */
const struct cJSON *config_given(const struct cJSON *object, const char *name);

/* The text of member 'model_type', or "". */
const char *config_model_type(const struct cJSON *config);

/* Is word one of "a list of words"? */
bool config_lists(const char *list, const char *word);

/* Of config, which is tree or the text model in it. */
struct config_defaults config_defaults(const struct cJSON *tree,
                                       const struct cJSON *config);

/* Members that change angles are known, or refused by name. */
ROPED_MUST_CHECK enum roped_status config_check(const struct cJSON *config,
                                                bool has_types,
                                                struct roped_error *err);

/* Is a rope dictionary that of an image's angles? */
bool config_is_axial(const struct cJSON *rope);

/* Sets what the model's images ask for; sections wait for widths. */
ROPED_MUST_CHECK enum roped_status config_set_axial(const struct cJSON *config,
                                                    struct roped_call *call,
                                                    struct roped_error *err);

/* Members of a rope dictionary: those that are parameters are set. */
ROPED_MUST_CHECK enum roped_status
config_set_rope(const struct config_part *part, struct roped_call *call,
                struct roped_error *err);

/* Head and rotary width of a part, which all its layers have. */
ROPED_MUST_CHECK enum roped_status
config_read_widths(const struct config_part *part, struct roped_angle_set *set,
                   struct roped_error *err);

#endif
