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

/* Reads one into out[0, *n_out), whose names are the table's. style NULL: the
 * file's, else its model's. */
ROPED_MUST_CHECK enum roped_status
angles_config_read(const struct cJSON *tree, const char *style,
                   struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                   struct roped_error *err);

/* Value of an INT or a CHOICE parameter of a call. */
int64_t angles_int_param(const struct roped_call *call, const char *name);
int32_t angles_choice_param(const struct roped_call *call, const char *name);

/* Members short_factor and long_factor of object, if it has them. */
ROPED_MUST_CHECK enum roped_status
angles_read_factors(const struct cJSON *object, struct angles_json_set *out,
                    struct roped_error *err);

/* ------------------------------------------------------------ config.json */

/* Which elements of a model's heads pair: as parameter 'style' has it, or as
 * the file's rope_interleave says: gptj, unless it is there and not true. */
enum config_pairs { CONFIG_NEOX, CONFIG_GPTJ, CONFIG_BY_INTERLEAVE };

/* How M-RoPE's sections lie: in blocks, in turns, or the first two in turns and
 * the third behind them. */
enum config_layout {
    CONFIG_NO_LAYOUT,
    CONFIG_BLOCKS,
    CONFIG_TURNS,
    CONFIG_TWO_TURNS
};

/* What is known of a model_type: a row of config_models.def. Members that are
 * 0 or NULL say nothing. */
struct config_model {
    const char *type;
    enum config_pairs pairs;
    /* what transformers takes where the file says nothing */
    double head_dim, theta, local_theta, share;
    double rope_head_dim;      /* of qk_rope_head_dim */
    const char *mrope_section; /* "22,22,20" */
    enum config_layout layout; /* of sections, where the file says nothing */
    const char *mrope_axes;    /* rows that sections follow, "1,2,0" */
    /* rope_type axial: parameters of its equal sections */
    const char *axial, *axial_axes;
    bool axial_turns;
    bool uses_rotary_dim; /* rotary_dim is in force */
    const char *refused;  /* why it has no table */
};

/* What one table is made of. */
struct config_part {
    const struct cJSON *config;
    const struct cJSON *rope;         /* its dictionary, or NULL */
    const struct cJSON *theta;        /* its base, or NULL: the model's */
    const char *layer_type;           /* NULL: of all layers */
    const char *style;                /* given, or NULL: the model's */
    const struct config_model *model; /* of config; of nothing: all 0 */
    double head_dim; /* defaults, of the model around this one too; 0: none */
    double default_theta, local_theta;
};

/* A member that is there and not null. */
const struct cJSON *config_given(const struct cJSON *object, const char *name);

/* The text of member 'model_type', or "". */
const char *config_model_type(const struct cJSON *config);

/* The row of a model_type; NULL: it is not known. */
const struct config_model *config_find_model(const char *type);

/* Sets part's model and defaults. part->config is tree, or the text model in
 * it. A model_type without a row needs part->style: it is never guessed. */
ROPED_MUST_CHECK enum roped_status config_set_model(const struct cJSON *tree,
                                                    struct config_part *part,
                                                    struct roped_error *err);

/* Sets style: which elements of the model's heads pair. */
ROPED_MUST_CHECK enum roped_status
config_set_style(const struct config_part *part, struct roped_call *call,
                 struct roped_error *err);

/* Members that change angles are known, or refused by name. */
ROPED_MUST_CHECK enum roped_status config_check(const struct cJSON *config,
                                                bool has_types,
                                                struct roped_error *err);

/* Is a rope dictionary that of an image's angles? */
bool config_is_axial(const struct cJSON *rope);

/* Sets what the model's images ask for; sections wait for widths. */
ROPED_MUST_CHECK enum roped_status
config_set_axial(const struct config_part *part, struct roped_call *call,
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
