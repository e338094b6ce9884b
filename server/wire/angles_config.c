/*
 * angles_config.c - rotary tables from a model's Hugging Face config.json.
 *
 * Read is what transformers reads: rope_parameters, flat or one dictionary per
 * layer type, else rope_scaling with rope_theta beside it. What would change
 * the angles and is not offered is refused by name, never ignored.
 */
#include "wire/angles_internal.h"
#include "wire/json.h"
#include "wire/param_json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool angles_config_is(const struct cJSON *tree)
{
    static const char *const marks[] = {"rope_parameters", "rope_scaling",
                                        "rope_theta",      "hidden_size",
                                        "model_type",      "text_config"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (json_member(tree, marks[i]))
            return true;
    return false;
}

/* A member that is there and not null. */
static const struct cJSON *given(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = json_member(object, name);
    return cJSON_IsNull(node) ? NULL : node;
}

/* One of the three places where models keep things, or NULL. */
static const struct cJSON *find(const struct cJSON *rope,
                                const struct cJSON *config, const char *name,
                                const char *older_name)
{
    const struct cJSON *node = given(rope, name);
    if (!node)
        node = given(config, name);
    if (!node && older_name)
        node = given(config, older_name);
    return node;
}

/* ------------------------------------------------------------- parameters */

static const struct {
    const char *scaling, *name, *older_name;
} types[ROPED_SCALING_COUNT] = {
#define SCALING(id, name, config_name, older_name, ...)                        \
    {#name, config_name, older_name},
#include <roped/scaling.def>
};

/* "default, linear or dynamic" */
static const char *list_types(char *out, size_t out_bytes)
{
    struct buffer buffer;
    buffer_init_fixed(&buffer, out, out_bytes);
    for (int i = 0; i < ROPED_SCALING_COUNT; i++) {
        buffer_text(&buffer, i == 0                         ? ""
                             : i + 1 == ROPED_SCALING_COUNT ? " or "
                                                            : ", ");
        buffer_text(&buffer, types[i].name);
    }
    return out;
}

static bool is_text(const struct cJSON *node, const char *text)
{
    return text && cJSON_IsString(node) && strcmp(node->valuestring, text) == 0;
}

static enum roped_status set_scaling(struct roped_call *call,
                                     const struct cJSON *rope,
                                     struct roped_error *err)
{
    char found[64], expected[256];
    const struct cJSON *type = given(rope, "rope_type");
    if (!type)
        type = given(rope, "type");
    if (!type)
        return ROPED_OK;
    for (int i = 0; i < ROPED_SCALING_COUNT; i++)
        if (is_text(type, types[i].name) || is_text(type, types[i].older_name))
            return roped_call_set_text(call, "scaling", types[i].scaling, err);
    return roped_fail(err, ROPED_INVALID,
                      "rope_type %s is unknown, expected %s",
                      json_text(type, found, sizeof found),
                      list_types(expected, sizeof expected));
}

/* Changes what the angles are in some model's own code. */
static enum roped_status refuse_others(const struct cJSON *rope,
                                       struct roped_error *err)
{
    static const char *const names[] = {"attn_factor", "extrapolation_factor",
                                        "short_mscale", "long_mscale"};
    char found[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct cJSON *node = given(rope, names[i]);
        bool is_one = cJSON_IsNumber(node) && node->valuedouble == 1;
        if (node && !is_one)
            return roped_fail(err, ROPED_INVALID,
                              "'%s' is %s, expected none: it is not supported",
                              names[i], json_text(node, found, sizeof found));
    }
    return ROPED_OK;
}

static bool is_zero(const struct cJSON *node)
{
    return cJSON_IsNumber(node) && node->valuedouble == 0;
}

/* Members of the dictionary that have the name of their parameter. */
static enum roped_status set_same_names(struct roped_call *call,
                                        const struct cJSON *rope,
                                        struct roped_error *err)
{
    static const char *const names[] = {
        "factor",         "low_freq_factor",  "high_freq_factor", "mscale",
        "mscale_all_dim", "attention_factor", "truncate",         "alpha",
        "mixed_b",        "mrope_section",    "mrope_interleaved"};
    static const char *const betas[] = {"beta_fast", "beta_slow"};
    enum roped_status status = ROPED_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        const struct cJSON *node = given(rope, names[i]);
        if (node)
            status = param_json_set(call, names[i], node, err);
    }
    for (size_t i = 0; i < sizeof betas / sizeof *betas && !status; i++) {
        const struct cJSON *node = given(rope, betas[i]);
        if (node && !is_zero(node)) /* 0 stands for the default */
            status = param_json_set(call, betas[i], node, err);
    }
    return status;
}

static enum roped_status set_params(struct roped_call *call,
                                    const struct cJSON *config,
                                    const struct cJSON *rope,
                                    const struct cJSON *theta,
                                    struct roped_error *err)
{
    const struct cJSON *original =
        find(rope, config, "original_max_position_embeddings", NULL);
    const struct cJSON *longest = given(config, "max_position_embeddings");
    enum roped_status status = set_scaling(call, rope, err);
    if (!status)
        status = refuse_others(rope, err);
    if (!status)
        status = set_same_names(call, rope, err);
    if (!status && theta)
        status = param_json_set(call, "theta", theta, err);
    if (!status && original)
        status = param_json_set(call, "original_max_position", original, err);
    if (!status && longest)
        status = param_json_set(call, "max_position", longest, err);
    return status;
}

/* ----------------------------------------------------------------- widths */

static double number_of(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = given(object, name);
    return cJSON_IsNumber(node) ? node->valuedouble : (double)NAN;
}

static enum roped_status read_head(const struct cJSON *config,
                                   struct roped_angle_set *set,
                                   struct roped_error *err)
{
    /* DeepSeek's rotary part is a head of its own */
    double head = number_of(config, "qk_rope_head_dim");
    if (isnan(head))
        head = number_of(config, "head_dim");
    if (isnan(head))
        head = floor(number_of(config, "hidden_size") /
                     number_of(config, "num_attention_heads"));
    if (!(head >= 2 && head <= 65536) || head != floor(head))
        return roped_fail(err, ROPED_INVALID,
                          "config: head width %g from head_dim or hidden_size "
                          "/ num_attention_heads, expected 2 to 65536",
                          head);
    set->head_dim = (int64_t)head;
    return ROPED_OK;
}

static enum roped_status read_widths(const struct cJSON *config,
                                     const struct cJSON *rope,
                                     struct roped_angle_set *set,
                                     struct roped_error *err)
{
    char found[64];
    const struct cJSON *partial =
        find(rope, config, "partial_rotary_factor", "rotary_pct");
    const struct cJSON *width = given(config, "rotary_dim");
    enum roped_status status = read_head(config, set, err);
    if (status)
        return status;
    double share = cJSON_IsNumber(partial) ? partial->valuedouble : -1;
    if (!partial)
        share = 1;
    else if (!(share > 0 && share <= 1))
        return roped_fail(err, ROPED_INVALID,
                          "config: '%s' is %s, expected above 0 and at most 1",
                          partial->string,
                          json_text(partial, found, sizeof found));
    double r = floor((double)set->head_dim * share);
    if (width && !partial)
        r = cJSON_IsNumber(width) ? width->valuedouble : -1;
    if (!(r >= 2 && r <= (double)set->head_dim) || fmod(r, 2) != 0)
        return roped_fail(err, ROPED_INVALID,
                          "config: rotary width %g of head_dim %lld, expected "
                          "an even number of 2 to head_dim",
                          r, (long long)set->head_dim);
    set->rotary_dim = (int64_t)r;
    return ROPED_OK;
}

/* ------------------------------------------------------------------- sets */

/* rope is one dictionary or NULL, theta the base in force or NULL. */
static enum roped_status read_set(const struct cJSON *config,
                                  const struct cJSON *rope,
                                  const struct cJSON *theta,
                                  struct angles_json_set *out,
                                  struct roped_error *err)
{
    struct roped_call call;
    roped_call_init(&call, roped_op_find("rope"));
    enum roped_status status = set_params(&call, config, rope, theta, err);
    if (!status)
        status = angles_read_factors(rope, out, err);
    if (!status)
        status = read_widths(config, rope, &out->set, err);
    out->set.params = *roped_call_angles(&call);
    return status;
}

static const struct cJSON *theta_of(const struct cJSON *config,
                                    const struct cJSON *rope)
{
    return find(rope, config, "rope_theta", "rotary_emb_base");
}

/* name becomes name.type; what cannot stand in a path is refused. */
static enum roped_status name_type(struct angles_json_set *out,
                                   const char *type, struct roped_error *err)
{
    size_t length = strlen(out->name), type_bytes = strlen(type);
    if (type_bytes == 0 || length + 1 + type_bytes >= sizeof out->name)
        return roped_fail(err, ROPED_INVALID,
                          "config: the name '%.64s.%.64s' has %zu bytes, "
                          "expected at most %zu",
                          out->name, type, length + 1 + type_bytes,
                          sizeof out->name - 1);
    if (type[strspn(type, "abcdefghijklmnopqrstuvwxyz"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")])
        return roped_fail(err, ROPED_INVALID,
                          "config: layer type '%.64s', expected letters, "
                          "digits, '_' and '-'",
                          type);
    out->name[length] = '.';
    memcpy(out->name + length + 1, type, type_bytes + 1);
    return ROPED_OK;
}

/* A dictionary whose members are dictionaries is one per layer type. */
static bool is_per_layer(const struct cJSON *rope)
{
    const struct cJSON *node;
    bool has_any = false;
    cJSON_ArrayForEach(node, rope)
    {
        if (!cJSON_IsObject(node) && !cJSON_IsNull(node))
            return false;
        has_any |= cJSON_IsObject(node);
    }
    return has_any;
}

static enum roped_status read_layer_types(const struct cJSON *config,
                                          const struct cJSON *rope,
                                          struct angles_json_set *out,
                                          int *n_out, struct roped_error *err)
{
    const struct cJSON *node;
    *n_out = 0;
    cJSON_ArrayForEach(node, rope)
    {
        if (cJSON_IsNull(node)) /* layers of this type have no angles */
            continue;
        if (*n_out == ANGLES_JSON_MAX_SETS)
            return roped_fail(err, ROPED_INVALID,
                              "config: over %d layer types, expected at most "
                              "that many",
                              ANGLES_JSON_MAX_SETS);
        struct angles_json_set *set = &out[(*n_out)++];
        enum roped_status status = name_type(set, node->string, err);
        if (!status)
            status = read_set(config, node, theta_of(config, node), set, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

/* Gemma 3 as first published: sliding layers have a base of their own and no
 * scaling. */
static enum roped_status read_two_bases(const struct cJSON *config,
                                        const struct cJSON *rope,
                                        const struct cJSON *local_theta,
                                        struct angles_json_set *out,
                                        struct roped_error *err)
{
    enum roped_status status = name_type(&out[0], "full_attention", err);
    if (!status)
        status = name_type(&out[1], "sliding_attention", err);
    if (!status)
        status = read_set(config, rope, theta_of(config, rope), &out[0], err);
    if (!status)
        status = read_set(config, NULL, local_theta, &out[1], err);
    return status;
}

enum roped_status
angles_config_read(const struct cJSON *tree,
                   struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                   struct roped_error *err)
{
    char found[64];
    const struct cJSON *text = given(tree, "text_config");
    const struct cJSON *config = cJSON_IsObject(text) ? text : tree;
    const struct cJSON *rope =
        find(NULL, config, "rope_parameters", "rope_scaling");
    const struct cJSON *local_theta = given(config, "rope_local_base_freq");
    if (rope && !cJSON_IsObject(rope))
        return roped_fail(err, ROPED_INVALID,
                          "config: '%s' is %s, expected an object",
                          rope->string, json_text(rope, found, sizeof found));
    if (is_per_layer(rope))
        return read_layer_types(config, rope, out, n_out, err);
    if (local_theta) {
        *n_out = 2;
        return read_two_bases(config, rope, local_theta, out, err);
    }
    *n_out = 1;
    return read_set(config, rope, theta_of(config, rope), out, err);
}
