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
#include <stdlib.h>
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
    int last = ROPED_SCALING_COUNT - 1;
    while (!types[last].name)
        last--;
    for (int i = 0; i <= last; i++) {
        if (!types[i].name)
            continue;
        buffer_text(&buffer, i == 0 ? "" : i == last ? " or " : ", ");
        buffer_text(&buffer, types[i].name);
    }
    return out;
}

static bool is_text(const struct cJSON *node, const char *text)
{
    return text && cJSON_IsString(node) && strcmp(node->valuestring, text) == 0;
}

/* What to ask for instead of a rope_type. */
static const char *find_instead(const struct cJSON *type, char *list,
                                size_t list_bytes)
{
#define OTHER_TYPE(name, instead)                                              \
    if (is_text(type, #name))                                                  \
        return instead;
#include "wire/config_keys.def"
    return list_types(list, list_bytes);
}

static enum roped_status set_scaling(struct roped_call *call,
                                     const struct config_part *part,
                                     struct roped_error *err)
{
    char found[64], expected[256];
    const struct cJSON *type = config_given(part->rope, "rope_type");
    if (!type)
        type = config_given(part->rope, "type");
    if (!type)
        return ROPED_OK;
    if (config_is_axial(part->rope))
        return config_set_axial(part, call, err);
    for (int i = 0; i < ROPED_SCALING_COUNT; i++)
        if (is_text(type, types[i].name) || is_text(type, types[i].older_name))
            return roped_call_set_text(call, "scaling", types[i].scaling, err);
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: 'rope_type' is %s, expected %s",
                      json_text(type, found, sizeof found),
                      find_instead(type, expected, sizeof expected));
}

/* The base of the file, or of its model; files without are refused: 10000 is
 * no more likely than another. */
static enum roped_status set_theta(struct roped_call *call,
                                   const struct config_part *part,
                                   struct roped_error *err)
{
    struct cJSON number = {.type = cJSON_Number,
                           .valuedouble = part->default_theta};
    if (part->theta)
        return param_json_set(call, "theta", part->theta, err);
    if (number.valuedouble > 0)
        return param_json_set(call, "theta", &number, err);
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: missing 'rope_theta': model_type '%.64s' has no "
                      "default that is known",
                      config_model_type(part->config));
}

/* Some files have it beside the dictionary. */
static enum roped_status set_original(struct roped_call *call,
                                      const struct config_part *part,
                                      struct roped_error *err)
{
    static const char name[] = "original_max_position_embeddings";
    const struct cJSON *inside = config_given(part->rope, name);
    const struct cJSON *beside = config_given(part->config, name);
    char found[64], expected[64];
    if (inside && beside && inside->valuedouble != beside->valuedouble)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: '%s' is %s in the rope parameters, expected "
                          "%s as beside them",
                          name, json_text(inside, found, sizeof found),
                          json_text(beside, expected, sizeof expected));
    if (!inside && !beside)
        return ROPED_OK;
    return param_json_set(call, "original_max_position",
                          inside ? inside : beside, err);
}

static enum roped_status set_params(struct roped_call *call,
                                    const struct config_part *part,
                                    struct roped_error *err)
{
    const struct cJSON *longest =
        config_given(part->config, "max_position_embeddings");
    enum roped_status status = set_scaling(call, part, err);
    if (!status)
        status = config_set_rope(part, call, err);
    if (!status)
        status = set_theta(call, part, err);
    if (!status)
        status = set_original(call, part, err);
    if (!status && longest)
        status = param_json_set(call, "max_position", longest, err);
    return status;
}

/* ---------------------------------------------------------------- factors */

static enum roped_status read_list(const struct cJSON *node, float *to,
                                   struct roped_error *err)
{
    char found[64];
    const struct cJSON *item;
    int i = 0;
    cJSON_ArrayForEach(item, node)
    {
        float value = cJSON_IsNumber(item) ? (float)item->valuedouble : 0;
        if (!(value > 0) || isinf(value))
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%s': %s at index %d, expected a "
                              "finite number above 0",
                              node->string,
                              json_text(item, found, sizeof found), i);
        to[i++] = value;
    }
    return ROPED_OK;
}

enum roped_status angles_read_factors(const struct cJSON *object,
                                      struct angles_json_set *out,
                                      struct roped_error *err)
{
    const struct cJSON *shorts = json_member(object, "short_factor");
    const struct cJSON *longs = json_member(object, "long_factor");
    if (!shorts && !longs)
        return ROPED_OK;
    int n = cJSON_GetArraySize(shorts);
    if (!cJSON_IsArray(shorts) || !cJSON_IsArray(longs) || n == 0 ||
        cJSON_GetArraySize(longs) != n)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameters 'short_factor' and 'long_factor': %d and "
                          "%d numbers, expected two lists of r/2",
                          n, cJSON_GetArraySize(longs));
    out->factors = calloc(2 * (size_t)n, sizeof *out->factors);
    if (!out->factors)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the factors");
    out->set.factors.short_factor = out->factors;
    out->set.factors.long_factor = out->factors + n;
    out->set.factors.count = n;
    enum roped_status status = read_list(shorts, out->factors, err);
    return status ? status : read_list(longs, out->factors + n, err);
}

/* ------------------------------------------------------------------- sets */

/* Of images: equal sections; what they leave of the head does not rotate. */
static void set_sections(struct roped_angle_set *set)
{
    struct roped_ints *section = &set->params.mrope_section;
    if (!roped_angles_are_axial(&set->params))
        return;
    section->count = set->params.mrope_axes.count;
    for (int i = 0; i < section->count; i++)
        section->value[i] = set->rotary_dim / (2 * section->count);
    set->rotary_dim = 2 * section->count * section->value[0];
}

static enum roped_status read_set(const struct config_part *part,
                                  struct angles_json_set *out,
                                  struct roped_error *err)
{
    struct roped_call call;
    roped_call_init(&call, roped_op_find("rope"));
    enum roped_status status = set_params(&call, part, err);
    if (!status)
        status = config_set_style(part, &call, err);
    if (!status)
        status = angles_read_factors(part->rope, out, err);
    if (!status)
        status = config_read_widths(part, &out->set, err);
    out->set.params = *roped_call_angles(&call);
    out->set.style = angles_choice_param(&call, "style");
    set_sections(&out->set);
    return status;
}

static const struct cJSON *theta_of(const struct config_part *part)
{
    static const char *const names[] = {"rope_theta", "rotary_emb_base",
                                        "rotary_embedding_base"};
    const struct cJSON *theta = config_given(part->rope, names[0]);
    for (size_t i = 0; i < sizeof names / sizeof *names && !theta; i++)
        theta = config_given(part->config, names[i]);
    return theta;
}

/* name becomes name.type; what cannot stand in a path is refused. */
static enum roped_status name_type(struct angles_json_set *out,
                                   const char *type, struct roped_error *err)
{
    size_t length = strlen(out->name), type_bytes = strlen(type);
    if (type_bytes == 0 || length + 1 + type_bytes >= sizeof out->name)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: the name '%.64s.%.64s' has %zu bytes, "
                          "expected at most %zu",
                          out->name, type, length + 1 + type_bytes,
                          sizeof out->name - 1);
    if (type[strspn(type, "abcdefghijklmnopqrstuvwxyz"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")])
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: layer type '%.64s', expected letters, "
                          "digits, '_' and '-'",
                          type);
    out->name[length] = '.';
    memcpy(out->name + length + 1, type, type_bytes + 1);
    return ROPED_OK;
}

static const char sliding[] = "sliding_attention";

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

static enum roped_status read_layer_types(const struct config_part *whole,
                                          struct angles_json_set *out,
                                          int *n_out, struct roped_error *err)
{
    const struct cJSON *node;
    *n_out = 0;
    cJSON_ArrayForEach(node, whole->rope)
    {
        if (cJSON_IsNull(node)) /* layers of this type have no angles */
            continue;
        if (*n_out == ANGLES_JSON_MAX_SETS)
            return roped_fail(err, ROPED_BAD_CONFIG,
                              "config: over %d layer types, expected at most "
                              "that many",
                              ANGLES_JSON_MAX_SETS);
        struct angles_json_set *set = &out[(*n_out)++];
        struct config_part part = *whole;
        part.rope = node;
        part.theta = theta_of(&part);
        part.layer_type = node->string;
        if (part.local_theta > 0 && strcmp(node->string, sliding) == 0)
            part.default_theta = part.local_theta;
        enum roped_status status = name_type(set, node->string, err);
        if (!status)
            status = read_set(&part, set, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

/* Gemma 3 as first published: sliding layers have a base of their own and no
 * scaling. */
static enum roped_status read_two_bases(const struct config_part *whole,
                                        const struct cJSON *local_theta,
                                        struct angles_json_set *out,
                                        struct roped_error *err)
{
    struct config_part full = *whole, local = *whole;
    full.layer_type = "full_attention";
    full.theta = theta_of(&full);
    local.layer_type = sliding;
    local.theta = local_theta;
    local.rope = NULL;
    enum roped_status status = name_type(&out[0], full.layer_type, err);
    if (!status)
        status = name_type(&out[1], local.layer_type, err);
    if (!status)
        status = read_set(&full, &out[0], err);
    if (!status)
        status = read_set(&local, &out[1], err);
    return status;
}

/* transformers merges what stands around a text model into it, each model in
 * its own way. */
static enum roped_status check_around(const struct cJSON *tree,
                                      const struct cJSON *config,
                                      struct roped_error *err)
{
    static const char *const names[] = {"rope_parameters", "rope_scaling",
                                        "rope_theta", "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof names / sizeof *names && tree != config; i++)
        if (config_given(tree, names[i]) &&
            !cJSON_Compare(json_member(tree, names[i]),
                           json_member(config, names[i]), true))
            return roped_fail(err, ROPED_BAD_CONFIG,
                              "config: '%s' stands beside 'text_config', "
                              "expected in it",
                              names[i]);
    return ROPED_OK;
}

/* A style beside the model's own members, where the request gives none. */
static enum roped_status find_style(const struct cJSON *tree,
                                    const char **style, struct roped_error *err)
{
    const struct cJSON *node = config_given(tree, "style");
    char found[64];
    if (!node)
        return ROPED_OK;
    if (*style)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'style' is given twice");
    if (!cJSON_IsString(node))
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'style': %s, expected neox or gptj",
                          json_text(node, found, sizeof found));
    *style = node->valuestring;
    return ROPED_OK;
}

static enum roped_status find_rope(const struct cJSON *config,
                                   const struct cJSON **rope,
                                   struct roped_error *err)
{
    char found[64];
    const struct cJSON *older = config_given(config, "rope_scaling");
    *rope = config_given(config, "rope_parameters");
    if (*rope && older && !cJSON_Compare(*rope, older, true))
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: 'rope_parameters' and 'rope_scaling' are "
                          "both given and differ, expected one");
    if (!*rope)
        *rope = older;
    if (!*rope || cJSON_IsObject(*rope))
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: '%s' is %s, expected an object", (*rope)->string,
                      json_text(*rope, found, sizeof found));
}

enum roped_status
angles_config_read(const struct cJSON *tree, const char *style,
                   struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                   struct roped_error *err)
{
    const struct cJSON *text = config_given(tree, "text_config");
    const struct cJSON *config = cJSON_IsObject(text) ? text : tree;
    const struct cJSON *local_theta =
        config_given(config, "rope_local_base_freq");
    struct config_part part = {.config = config, .style = style};
    enum roped_status status = find_style(tree, &part.style, err);
    if (!status)
        status = config_set_model(tree, &part, err);
    struct cJSON local = {.type = cJSON_Number,
                          .valuedouble = part.local_theta};
    if (!local_theta && local.valuedouble > 0)
        local_theta = &local;
    if (!status)
        status = check_around(tree, config, err);
    if (!status)
        status = find_rope(config, &part.rope, err);
    if (!status)
        status = config_check(config, is_per_layer(part.rope), err);
    if (status)
        return status;
    if (is_per_layer(part.rope))
        return read_layer_types(&part, out, n_out, err);
    if (local_theta) {
        *n_out = 2;
        return read_two_bases(&part, local_theta, out, err);
    }
    part.theta = theta_of(&part);
    *n_out = 1;
    return read_set(&part, out, err);
}
