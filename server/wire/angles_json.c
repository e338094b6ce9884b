/*
 * angles_json.c - rotary tables in roped's own names, and as an answer.
 */
#include "wire/angles_internal.h"
#include "wire/json.h"
#include "wire/param_json.h"

#include <roped/nearest.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Does the index-th parameter of rope describe angles? */
static bool is_angle_param(const struct roped_op *op, int index)
{
    size_t at = op->param[index].offset - op->angles_offset;
    return op->param[index].offset >= op->angles_offset &&
           at < sizeof(struct roped_angle_params) &&
           at != offsetof(struct roped_angle_params, mode);
}

/* ------------------------------------------------------------- plain form */

static enum roped_status read_rows(const struct cJSON *node,
                                   struct angles_json_set *out,
                                   struct roped_error *err)
{
    char found[64];
    uint64_t rows;
    if (!json_is_size(node, &rows) || rows == 0 || rows > ROPED_TABLE_ROWS)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rows': %s, expected an integer of 1 to "
                          "%d",
                          json_text(node, found, sizeof found),
                          ROPED_TABLE_ROWS);
    out->set.rows = (int64_t)rows;
    return ROPED_OK;
}

static bool is_table_param(const struct roped_op *op, int index)
{
    const char *name = op->param[index].name;
    return strcmp(name, "rotary_dim") == 0 || strcmp(name, "head_dim") == 0 ||
           strcmp(name, "style") == 0 || is_angle_param(op, index);
}

static enum roped_status unknown_member(const struct roped_op *op,
                                        const char *name,
                                        struct roped_error *err)
{
    static const char *const others[] = {"rows", "short_factor", "long_factor"};
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (int i = 0; i < roped_op_params(op); i++)
        if (is_table_param(op, i))
            roped_nearest_offer(&nearest, op->param[i].name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        roped_nearest_offer(&nearest, others[i]);
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unknown parameter '%.64s' of a table%s", name,
                      roped_nearest_text(&nearest, near, sizeof near));
}

static enum roped_status read_member(struct roped_call *call,
                                     const struct cJSON *node,
                                     struct angles_json_set *out,
                                     struct roped_error *err)
{
    const char *name = node->string;
    if (strcmp(name, "short_factor") == 0 || strcmp(name, "long_factor") == 0)
        return ROPED_OK;
    if (strcmp(name, "rows") == 0)
        return read_rows(node, out, err);
    int index = roped_op_param(call->op, name);
    if (index < 0 || !is_table_param(call->op, index))
        return unknown_member(call->op, name, err);
    return param_json_set(call, name, node, err);
}

static const void *param_at(const struct roped_call *call, const char *name)
{
    int index = roped_op_param(call->op, name);
    return call->params + call->op->param[index].offset;
}

int64_t angles_int_param(const struct roped_call *call, const char *name)
{
    int64_t value;
    memcpy(&value, param_at(call, name), sizeof value);
    return value;
}

int32_t angles_choice_param(const struct roped_call *call, const char *name)
{
    int32_t value;
    memcpy(&value, param_at(call, name), sizeof value);
    return value;
}

static enum roped_status read_plain(const struct cJSON *tree, const char *style,
                                    struct angles_json_set *out,
                                    struct roped_error *err)
{
    struct roped_call call;
    const struct cJSON *node;
    roped_call_init(&call, roped_op_find("rope"));
    enum roped_status status = angles_read_factors(tree, out, err);
    cJSON_ArrayForEach(node, tree)
    {
        if (!status)
            status = read_member(&call, node, out, err);
    }
    if (!status && style)
        status = roped_call_set_text(&call, "style", style, err);
    out->set.params = *roped_call_angles(&call);
    out->set.style = angles_choice_param(&call, "style");
    out->set.rotary_dim = angles_int_param(&call, "rotary_dim");
    out->set.head_dim = angles_int_param(&call, "head_dim");
    return status;
}

/* ----------------------------------------------------------------- checks */

/* The longest sequence that these parameters are meant for, or 0. */
static int64_t reachable_rows(const struct roped_angle_params *params)
{
    static const bool is_stretched[ROPED_SCALING_COUNT] = {
#define SCALING(id, name, config_name, older_name, is_stretched, ...)          \
    is_stretched,
#include <roped/scaling.def>
    };
    int64_t original = params->original_max_position;
    int64_t longest = params->max_position;
    double stretched = 0;
    if (longest == ROPED_UNSET_INT)
        longest = 0;
    if (original == ROPED_UNSET_INT)
        original = longest;
    if (is_stretched[params->scaling])
        stretched = ceil((double)original * params->factor);
    if (stretched >= ROPED_TABLE_ROWS || longest >= ROPED_TABLE_ROWS)
        return ROPED_TABLE_ROWS;
    return stretched > (double)longest ? (int64_t)stretched : longest;
}

static enum roped_status check_widths(const struct roped_angle_set *set,
                                      struct roped_error *err)
{
    int64_t r = set->rotary_dim;
    if (r % 2)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': %lld, expected an even "
                          "number",
                          (long long)r);
    if (set->head_dim && r > set->head_dim)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': %lld, expected at most "
                          "head_dim = %lld",
                          (long long)r, (long long)set->head_dim);
    if (r && set->factors.count && r != 2 * set->factors.count)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'short_factor': %lld numbers, expected "
                          "rotary_dim/2 = %lld",
                          (long long)set->factors.count, (long long)(r / 2));
    return ROPED_OK;
}

/* Would a call with this set resolve? Finds what its variant misses. */
static enum roped_status try_set(const struct roped_angle_set *set,
                                 struct roped_error *err)
{
    struct roped_angles angles;
    int64_t r = set->rotary_dim;
    if (r == 0) /* any width that every variant takes */
        r = set->factors.count ? 2 * set->factors.count : 4;
    int64_t d = set->head_dim > r ? set->head_dim : r;
    void *storage = calloc((size_t)d, sizeof(double));
    if (!storage)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a table");
    enum roped_status status = roped_angles_resolve(
        &set->params, &set->factors, r, d, 0, storage, &angles, err);
    free(storage);
    return status;
}

static enum roped_status finish(struct angles_json_set *out,
                                struct roped_error *err)
{
    struct roped_angle_set *set = &out->set;
    set->name = out->name;
    if (!set->rows)
        set->rows = reachable_rows(&set->params);
    if (!set->rotary_dim)
        set->rotary_dim = set->head_dim;
    enum roped_status status = check_widths(set, err);
    if (!status)
        status =
            roped_angles_check_sections(&set->params, set->rotary_dim / 2, err);
    return status ? status : try_set(set, err);
}

enum roped_status
angles_json_read(const char *name, const char *style, const char *json,
                 size_t json_bytes,
                 struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                 struct roped_error *err)
{
    const struct cJSON *tree;
    size_t name_bytes = strlen(name);
    *n_out = 0;
    if (name_bytes == 0 || name_bytes >= ROPED_NAME_BYTES)
        return roped_fail(err, ROPED_INVALID,
                          "a table's name has 1 to %d bytes, found %zu",
                          ROPED_NAME_BYTES - 1, name_bytes);
    enum roped_status status = json_parse(json, json_bytes, &tree, err);
    if (status)
        return status;
    memset(out, 0, ANGLES_JSON_MAX_SETS * sizeof *out);
    for (int i = 0; i < ANGLES_JSON_MAX_SETS; i++)
        memcpy(out[i].name, name, name_bytes + 1);
    *n_out = 1;
    if (!cJSON_IsObject(tree))
        status = roped_fail(err, ROPED_INVALID,
                            "a table is a JSON object of parameters");
    else if (!tree->child)
        status = roped_fail(err, ROPED_INVALID,
                            "a table of nothing, expected parameters such as "
                            "'theta', or a model's config.json");
    else if (angles_config_is(tree))
        status = angles_config_read(tree, style, out, n_out, err);
    else
        status = read_plain(tree, style, out, err);
    json_free(tree);
    for (int i = 0; i < *n_out && !status; i++)
        status = finish(&out[i], err);
    for (int i = 0; i < ANGLES_JSON_MAX_SETS && status; i++)
        angles_json_fini(&out[i]);
    return status;
}

void angles_json_fini(struct angles_json_set *set)
{
    free(set->factors);
    memset(set, 0, sizeof *set);
}

/* ---------------------------------------------------------------- writing */

static void write_param(struct buffer *buffer, const struct roped_param *param,
                        const unsigned char *at)
{
    char choice[32];
    double number;
    int64_t integer;
    int32_t index;
    struct roped_ints ints;
    buffer_printf(buffer, ",\"%s\":", param->name);
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
        memcpy(&number, at, sizeof number);
        buffer_double(buffer, number);
        break;
    case ROPED_PARAM_INT:
        memcpy(&integer, at, sizeof integer);
        buffer_printf(buffer, "%lld", (long long)integer);
        break;
    case ROPED_PARAM_BOOL:
        memcpy(&index, at, sizeof index);
        buffer_text(buffer, index ? "true" : "false");
        break;
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        memcpy(&index, at, sizeof index);
        buffer_json_string(
            buffer, roped_param_choice(param, index, choice, sizeof choice));
        break;
    case ROPED_PARAM_INTS:
        memcpy(&ints, at, sizeof ints);
        for (int i = 0; i < ints.count; i++)
            buffer_printf(buffer, "%s%lld", i ? "," : "[",
                          (long long)ints.value[i]);
        buffer_append(buffer, "]", 1);
        break;
    }
}

/* Bytes of a parameter of this kind in its struct. */
static size_t param_bytes(enum roped_param_kind kind)
{
    switch (kind) {
    case ROPED_PARAM_FLOAT:
    case ROPED_PARAM_INT:
        return sizeof(int64_t);
    case ROPED_PARAM_INTS:
        return sizeof(struct roped_ints);
    case ROPED_PARAM_BOOL:
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        break;
    }
    return sizeof(int32_t);
}

static void write_params(struct buffer *buffer,
                         const struct roped_angle_params *params)
{
    struct roped_call defaults;
    const struct roped_op *op = roped_op_find("rope");
    roped_call_init(&defaults, op);
    for (int i = 0; i < roped_op_params(op); i++) {
        const struct roped_param *param = &op->param[i];
        if (!is_angle_param(op, i))
            continue;
        const unsigned char *at =
            (const unsigned char *)params + (param->offset - op->angles_offset);
        bool is_default = memcmp(at, defaults.params + param->offset,
                                 param_bytes(param->kind)) == 0;
        if (!is_default || strcmp(param->name, "theta") == 0 ||
            strcmp(param->name, "scaling") == 0)
            write_param(buffer, param, at);
    }
}

static void write_style(struct buffer *buffer, int32_t style)
{
    char choice[32];
    const struct roped_op *op = roped_op_find("rope");
    const struct roped_param *param = &op->param[roped_op_param(op, "style")];
    buffer_text(buffer, ",\"style\":");
    buffer_json_string(buffer,
                       roped_param_choice(param, style, choice, sizeof choice));
}

static void write_list(struct buffer *buffer, const char *name,
                       const float *values, int64_t n)
{
    buffer_printf(buffer, ",\"%s\":[", name);
    for (int64_t i = 0; i < n; i++) {
        buffer_text(buffer, i ? "," : "");
        buffer_float(buffer, values[i]);
    }
    buffer_append(buffer, "]", 1);
}

void angles_json_write(struct buffer *buffer, const struct roped_angle_set *set,
                       const char *tenant, uint64_t resident_bytes)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, set->name);
    if (tenant[0]) {
        buffer_text(buffer, ",\"tenant\":");
        buffer_json_string(buffer, tenant);
    }
    write_params(buffer, &set->params);
    write_style(buffer, set->style);
    if (set->factors.count) {
        write_list(buffer, "short_factor", set->factors.short_factor,
                   set->factors.count);
        write_list(buffer, "long_factor", set->factors.long_factor,
                   set->factors.count);
    }
    buffer_printf(buffer,
                  ",\"head_dim\":%lld,\"rotary_dim\":%lld,\"rows\":%lld,"
                  "\"resident_bytes\":%llu}",
                  (long long)set->head_dim, (long long)set->rotary_dim,
                  (long long)set->rows, (unsigned long long)resident_bytes);
}
