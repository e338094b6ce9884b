/*
 * angles_json.c - angle sets from JSON: roped's own names, or a Hugging Face
 * config.json.
 */
#include "wire/angles_json.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members that only a model's config.json has. */
static bool is_config(const struct cJSON *tree)
{
    static const char *const marks[] = {"rope_parameters", "rope_scaling",
                                        "rope_theta",      "hidden_size",
                                        "model_type",      "text_config"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (json_member(tree, marks[i]))
            return true;
    return false;
}

static double number_of(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = json_member(object, name);
    return cJSON_IsNumber(node) ? node->valuedouble : (double)NAN;
}

static int64_t integer_of(const struct cJSON *object, const char *name)
{
    double value = number_of(object, name);
    return value >= 1 && value < 0x1p40 ? (int64_t)value : ROPED_UNSET_INT;
}

/* ---------------------------------------------------------------- factors */

static enum roped_status read_list(const struct cJSON *node, float *to,
                                   struct roped_error *err)
{
    const struct cJSON *item;
    int i = 0;
    cJSON_ArrayForEach(item, node)
    {
        if (!cJSON_IsNumber(item) || !((float)item->valuedouble > 0) ||
            isinf((float)item->valuedouble))
            return roped_fail(err, ROPED_INVALID,
                              "'%s': item %d is no finite number above 0",
                              node->string, i);
        to[i++] = (float)item->valuedouble;
    }
    return ROPED_OK;
}

static enum roped_status read_factors(const struct cJSON *object,
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
        return roped_fail(err, ROPED_INVALID,
                          "'short_factor' and 'long_factor': expected two "
                          "lists of r/2 numbers, found %d and %d",
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

/* ------------------------------------------------------------- plain form */

/* The angle parameters are rope's: its descriptor checks names and ranges. */
static enum roped_status read_plain_member(struct roped_call *call,
                                           const struct cJSON *node,
                                           struct angles_json_set *out,
                                           struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_FLOAT};
    const char *name = node->string;
    uint64_t size;
    if (strcmp(name, "short_factor") == 0 || strcmp(name, "long_factor") == 0)
        return ROPED_OK;
    if (strcmp(name, "rows") == 0) {
        if (!json_is_size(node, &size) || size > 1u << 24)
            return roped_fail(err, ROPED_INVALID,
                              "parameter 'rows': expected an integer of at "
                              "most 16777216");
        out->set.rows = (int64_t)size;
        return ROPED_OK;
    }
    int index = roped_op_param(call->op, name);
    size_t offset = index < 0 ? 0 : call->op->param[index].offset;
    bool is_width =
        strcmp(name, "rotary_dim") == 0 || strcmp(name, "head_dim") == 0;
    if (index < 0 || (!is_width && offset >= call->op->angles_offset +
                                                 sizeof out->set.params))
        return roped_fail(err, ROPED_INVALID,
                          "unknown parameter '%.64s' of a table", name);
    if (cJSON_IsString(node)) {
        value.kind = ROPED_VALUE_TEXT;
        value.text = node->valuestring;
    } else if (cJSON_IsBool(node)) {
        value.kind = ROPED_VALUE_BOOL;
        value.integer = cJSON_IsTrue(node);
    } else if (json_is_size(node, &size)) {
        value.kind = ROPED_VALUE_INT;
        value.integer = (int64_t)size;
    } else if (cJSON_IsNumber(node)) {
        value.number = node->valuedouble;
    } else {
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s': expected a string, number or "
                          "boolean",
                          name);
    }
    return roped_call_set_param(call, name, &value, err);
}

static int64_t int_param(const struct roped_call *call, const char *name)
{
    int64_t value;
    const struct roped_param *param =
        &call->op->param[roped_op_param(call->op, name)];
    memcpy(&value, call->params + param->offset, sizeof value);
    return value;
}

static enum roped_status read_plain(const struct cJSON *tree,
                                    struct angles_json_set *out,
                                    struct roped_error *err)
{
    struct roped_call *call = malloc(sizeof *call);
    const struct cJSON *node;
    if (!call)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a table");
    roped_call_init(call, roped_op_find("rope"));
    enum roped_status status = read_factors(tree, out, err);
    cJSON_ArrayForEach(node, tree)
    {
        if (!status)
            status = read_plain_member(call, node, out, err);
    }
    out->set.params = *roped_call_angles(call);
    out->set.rotary_dim = int_param(call, "rotary_dim");
    out->set.head_dim = int_param(call, "head_dim");
    if (!out->set.rows && out->set.params.max_position != ROPED_UNSET_INT)
        out->set.rows = out->set.params.max_position;
    if (!out->set.rotary_dim)
        out->set.rotary_dim = out->set.head_dim;
    free(call);
    return status;
}

/* ------------------------------------------------------------ config.json */

static enum roped_status read_rope_type(const struct cJSON *rope,
                                        struct roped_angle_params *params,
                                        struct roped_error *err)
{
    static const struct {
        const char *name;
        enum roped_scaling scaling;
    } types[] = {{"default", ROPED_SCALING_NONE},
                 {"mrope", ROPED_SCALING_NONE},
                 {"linear", ROPED_SCALING_LINEAR},
                 {"dynamic", ROPED_SCALING_DYNAMIC},
                 {"ntk", ROPED_SCALING_NTK},
                 {"yarn", ROPED_SCALING_YARN},
                 {"llama3", ROPED_SCALING_LLAMA3},
                 {"longrope", ROPED_SCALING_LONGROPE},
                 {"su", ROPED_SCALING_LONGROPE},
                 {"proportional", ROPED_SCALING_PROPORTIONAL}};
    const struct cJSON *type = json_member(rope, "rope_type");
    if (!type)
        type = json_member(rope, "type");
    if (!type || cJSON_IsNull(type))
        return ROPED_OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (cJSON_IsString(type) &&
            strcmp(type->valuestring, types[i].name) == 0) {
            params->scaling = types[i].scaling;
            return ROPED_OK;
        }
    return roped_fail(err, ROPED_INVALID,
                      "rope_type '%.64s' is unknown, expected default, "
                      "linear, dynamic, yarn, llama3, longrope or "
                      "proportional",
                      cJSON_IsString(type) ? type->valuestring : "");
}

static void read_numbers(const struct cJSON *rope,
                         struct roped_angle_params *params)
{
    const struct cJSON *truncate = json_member(rope, "truncate");
    params->factor = number_of(rope, "factor");
    params->low_freq_factor = number_of(rope, "low_freq_factor");
    params->high_freq_factor = number_of(rope, "high_freq_factor");
    params->beta_fast = number_of(rope, "beta_fast");
    params->beta_slow = number_of(rope, "beta_slow");
    params->mscale = number_of(rope, "mscale");
    params->mscale_all_dim = number_of(rope, "mscale_all_dim");
    params->attention_factor = number_of(rope, "attention_factor");
    params->alpha = number_of(rope, "alpha");
    if (cJSON_IsBool(truncate))
        params->truncate = cJSON_IsTrue(truncate);
    params->mrope_interleaved =
        cJSON_IsTrue(json_member(rope, "mrope_interleaved"));
}

static enum roped_status read_section(const struct cJSON *rope,
                                      struct roped_ints *out,
                                      struct roped_error *err)
{
    const struct cJSON *item, *section = json_member(rope, "mrope_section");
    cJSON_ArrayForEach(item, section)
    {
        uint64_t size;
        if (!json_is_size(item, &size) || out->count == 4)
            return roped_fail(err, ROPED_INVALID,
                              "'mrope_section': expected three integers");
        out->value[out->count++] = (int64_t)size;
    }
    return ROPED_OK;
}

static enum roped_status read_widths(const struct cJSON *config,
                                     const struct cJSON *rope,
                                     struct roped_angle_set *set,
                                     struct roped_error *err)
{
    double head = number_of(config, "head_dim");
    double partial = number_of(rope, "partial_rotary_factor");
    double mla = number_of(config, "qk_rope_head_dim");
    if (isnan(head))
        head = number_of(config, "hidden_size") /
               number_of(config, "num_attention_heads");
    if (isnan(partial))
        partial = number_of(config, "partial_rotary_factor");
    if (!isnan(mla)) /* DeepSeek: the rotary part is a head of its own */
        head = mla;
    if (!(head >= 2 && head <= 65536))
        return roped_fail(err, ROPED_INVALID,
                          "config: no head_dim, and hidden_size / "
                          "num_attention_heads is no head width");
    set->head_dim = (int64_t)head;
    set->rotary_dim = set->head_dim;
    if (!isnan(partial) && partial > 0 && partial <= 1)
        set->rotary_dim = (int64_t)((double)set->head_dim * partial);
    if (set->rotary_dim % 2)
        return roped_fail(err, ROPED_INVALID,
                          "config: rotary width %lld (head_dim %lld), expected "
                          "an even number",
                          (long long)set->rotary_dim, (long long)set->head_dim);
    return ROPED_OK;
}

/* rope is the dictionary of one layer type, or NULL. */
static enum roped_status read_config(const struct cJSON *config,
                                     const struct cJSON *rope,
                                     struct angles_json_set *out,
                                     struct roped_error *err)
{
    struct roped_angle_params *params = &out->set.params;
    double theta = number_of(rope, "rope_theta");
    roped_angle_params_init(params);
    enum roped_status status = read_rope_type(rope, params, err);
    if (!status)
        status = read_section(rope, &params->mrope_section, err);
    if (!status)
        status = read_factors(rope, out, err);
    if (!status)
        status = read_widths(config, rope, &out->set, err);
    if (status)
        return status;
    read_numbers(rope, params);
    if (isnan(theta))
        theta = number_of(config, "rope_theta");
    if (!isnan(theta))
        params->theta = theta;
    if (!(params->theta > 0))
        return roped_fail(err, ROPED_INVALID,
                          "rope_theta is %g, expected above 0", params->theta);
    params->max_position = integer_of(config, "max_position_embeddings");
    params->original_max_position =
        integer_of(rope, "original_max_position_embeddings");
    if (params->original_max_position == ROPED_UNSET_INT)
        params->original_max_position =
            integer_of(config, "original_max_position_embeddings");
    if (params->max_position != ROPED_UNSET_INT)
        out->set.rows = params->max_position;
    return ROPED_OK;
}

/* A dictionary whose members are dictionaries is one per layer type. */
static bool is_per_layer(const struct cJSON *rope)
{
    const struct cJSON *node = rope ? rope->child : NULL;
    if (!node)
        return false;
    for (; node; node = node->next)
        if (!cJSON_IsObject(node))
            return false;
    return true;
}

static enum roped_status read_configs(const struct cJSON *tree,
                                      struct angles_json_set *out, int *n_out,
                                      struct roped_error *err)
{
    const struct cJSON *node, *config = tree;
    const struct cJSON *text = json_member(tree, "text_config");
    if (cJSON_IsObject(text))
        config = text;
    const struct cJSON *rope = json_member(config, "rope_parameters");
    if (!cJSON_IsObject(rope))
        rope = json_member(config, "rope_scaling");
    if (!is_per_layer(rope)) {
        *n_out = 1;
        return read_config(config, cJSON_IsObject(rope) ? rope : NULL, out,
                           err);
    }
    *n_out = 0;
    cJSON_ArrayForEach(node, rope)
    {
        if (*n_out == ANGLES_JSON_MAX_SETS)
            return roped_fail(err, ROPED_INVALID, "config: over %d layer types",
                              ANGLES_JSON_MAX_SETS);
        struct angles_json_set *set = &out[(*n_out)++];
        size_t length = strlen(set->name);
        if (length + 1 + strlen(node->string) >= sizeof set->name)
            return roped_fail(err, ROPED_INVALID,
                              "config: the name '%.40s.%.40s' is too long",
                              set->name, node->string);
        snprintf(set->name + length, sizeof set->name - length, ".%s",
                 node->string);
        enum roped_status status = read_config(config, node, set, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

/* Would a call with this set resolve? Finds what its variant misses. */
static enum roped_status try_set(const struct angles_json_set *set,
                                 struct roped_error *err)
{
    struct roped_angles angles;
    int64_t r = set->set.rotary_dim ? set->set.rotary_dim : 2;
    int64_t d = set->set.head_dim ? set->set.head_dim : r;
    if (set->set.factors.count)
        r = 2 * set->set.factors.count;
    if (set->set.rotary_dim && r != set->set.rotary_dim)
        return roped_fail(err, ROPED_INVALID,
                          "'short_factor': %lld numbers, expected rotary_dim/2 "
                          "= %lld",
                          (long long)(r / 2),
                          (long long)(set->set.rotary_dim / 2));
    if (!set->set.rotary_dim &&
        set->set.params.scaling == ROPED_SCALING_DYNAMIC)
        r = 4; /* any width but 2 */
    void *storage = calloc((size_t)(r > d ? r : d), sizeof(double));
    if (!storage)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a table");
    enum roped_status status =
        roped_angles_resolve(&set->set.params, &set->set.factors, r,
                             r > d ? r : d, 0, storage, &angles, err);
    free(storage);
    return status;
}

enum roped_status
angles_json_read(const char *name, const char *json, size_t json_bytes,
                 struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                 struct roped_error *err)
{
    struct cJSON *tree;
    enum roped_status status = json_parse(json, json_bytes, &tree, err);
    if (status)
        return status;
    for (int i = 0; i < ANGLES_JSON_MAX_SETS; i++) {
        memset(&out[i], 0, sizeof out[i]);
        snprintf(out[i].name, sizeof out[i].name, "%s", name);
    }
    *n_out = 1;
    if (!cJSON_IsObject(tree))
        status = roped_fail(err, ROPED_INVALID,
                            "a table is a JSON object of parameters");
    else if (is_config(tree))
        status = read_configs(tree, out, n_out, err);
    else
        status = read_plain(tree, out, err);
    json_free(tree);
    for (int i = 0; i < *n_out; i++) {
        out[i].set.name = out[i].name;
        if (!status)
            status = try_set(&out[i], err);
    }
    for (int i = 0; i < *n_out && status; i++)
        angles_json_fini(&out[i]);
    return status;
}

void angles_json_fini(struct angles_json_set *set)
{
    free(set->factors);
    set->factors = NULL;
}

static void write_number(struct buffer *buffer, const char *name, double value)
{
    if (isnan(value))
        return;
    buffer_printf(buffer, ",\"%s\":", name);
    buffer_double(buffer, value);
}

void angles_json_write(struct buffer *buffer, const struct roped_angle_set *set,
                       uint64_t resident_bytes)
{
    static const char *const scalings[] = {"none",     "linear",      "dynamic",
                                           "ntk",      "yarn",        "llama3",
                                           "longrope", "proportional"};
    const struct roped_angle_params *params = &set->params;
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, set->name);
    buffer_printf(buffer, ",\"scaling\":\"%s\"", scalings[params->scaling]);
    write_number(buffer, "theta", params->theta);
    write_number(buffer, "factor", params->factor);
    write_number(buffer, "low_freq_factor", params->low_freq_factor);
    write_number(buffer, "high_freq_factor", params->high_freq_factor);
    write_number(buffer, "beta_fast", params->beta_fast);
    write_number(buffer, "beta_slow", params->beta_slow);
    write_number(buffer, "mscale", params->mscale);
    write_number(buffer, "mscale_all_dim", params->mscale_all_dim);
    write_number(buffer, "attention_factor", params->attention_factor);
    if (params->max_position != ROPED_UNSET_INT)
        buffer_printf(buffer, ",\"max_position\":%lld",
                      (long long)params->max_position);
    if (params->original_max_position != ROPED_UNSET_INT)
        buffer_printf(buffer, ",\"original_max_position\":%lld",
                      (long long)params->original_max_position);
    buffer_printf(buffer,
                  ",\"head_dim\":%lld,\"rotary_dim\":%lld,\"rows\":%lld,"
                  "\"resident_bytes\":%llu}",
                  (long long)set->head_dim, (long long)set->rotary_dim,
                  (long long)set->rows, (unsigned long long)resident_bytes);
}
