/*
 * config_widths.c - head and rotary width of a config.json's layers.
 *
 * A table has one of each, so layers of one table that differ are refused.
 * Layers are told apart by layer_types and per_layer_config, as transformers
 * writes them for models whose heads are not all alike.
 */
#include "wire/angles_internal.h"
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct cJSON *number(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = config_given(object, name);
    return cJSON_IsNumber(node) ? node : NULL;
}

static double value_of(const struct cJSON *node)
{
    return node ? node->valuedouble : (double)NAN;
}

/* What an object says of a head's width for layers of a type, or NULL. */
static const struct cJSON *find_head(const struct cJSON *object,
                                     const char *layer_type)
{
    static const struct {
        const char *name, *layer_type;
    } rows[] = {
        {"qk_rope_head_dim", NULL}, /* DeepSeek's rotary part is a head */
#define HEAD_DIM(name, layer_type) {#name, layer_type},
#include "wire/config_keys.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct cJSON *node = number(object, rows[i].name);
        bool is_ours = !rows[i].layer_type ||
                       (layer_type && !strcmp(rows[i].layer_type, layer_type));
        if (node && is_ours)
            return node;
    }
    return NULL;
}

static double find_number(const struct cJSON *layer, const struct cJSON *config,
                          const char *name)
{
    const struct cJSON *node = number(layer, name);
    return value_of(node ? node : number(config, name));
}

static double hidden_of(const struct config_part *part,
                        const struct cJSON *layer)
{
    double own = find_number(layer, part->config, "embed_dim");
    return config_is_axial(part->rope) && own > 0
               ? own /* hidden_size is the text model's */
               : find_number(layer, part->config, "hidden_size");
}

static double heads_of(const struct config_part *part,
                       const struct cJSON *layer)
{
    double n = find_number(layer, part->config, "num_attention_heads");
    return config_is_axial(part->rope) && isnan(n)
               ? find_number(layer, part->config, "num_heads")
               : n;
}

/* Is the width of the rotary part its class's, because the file has none? */
static bool lacks_rope_head(const struct config_part *part)
{
    return part->model->rope_head_dim > 0 &&
           !number(part->config, "qk_rope_head_dim");
}

/* Of one layer; layer is what per_layer_config says of it, or NULL. */
static double head_of(const struct config_part *part, const struct cJSON *layer)
{
    const struct cJSON *node = find_head(layer, part->layer_type);
    if (!node && lacks_rope_head(part))
        return part->model->rope_head_dim;
    if (!node)
        node = find_head(part->config, part->layer_type);
    if (node)
        return node->valuedouble;
    /* null is no default: it asks for the quotient */
    if (part->head_dim > 0 && !json_member(part->config, "head_dim"))
        return part->head_dim;
    return floor(hidden_of(part, layer) / heads_of(part, layer));
}

/* Is layer i one of the part's? A type that no layer has is all layers'. */
static bool is_of_part(const struct config_part *part, int i)
{
    const struct cJSON *types = config_given(part->config, "layer_types");
    const struct cJSON *node;
    bool is_used = false;
    cJSON_ArrayForEach(node, types)
    {
        is_used |= part->layer_type && cJSON_IsString(node) &&
                   strcmp(node->valuestring, part->layer_type) == 0;
    }
    const struct cJSON *ours = cJSON_GetArrayItem(types, i);
    return !is_used || (cJSON_IsString(ours) &&
                        strcmp(ours->valuestring, part->layer_type) == 0);
}

static int count_layers(const struct cJSON *config)
{
    double n = value_of(number(config, "num_hidden_layers"));
    return n > 0 && n <= 65536 ? (int)n : 0;
}

/* What per_layer_config says of layer i: its names are "05" and such. */
static const struct cJSON *find_layer(const struct cJSON *layers, int i)
{
    const struct cJSON *node;
    char *end;
    cJSON_ArrayForEach(node, layers)
    {
        if (node->string && strtol(node->string, &end, 10) == i && !*end)
            return node;
    }
    return NULL;
}

/* One width for all layers of the part. */
static enum roped_status read_layers(const struct config_part *part,
                                     double *head, struct roped_error *err)
{
    const struct cJSON *layers = config_given(part->config, "per_layer_config");
    bool has_any = false;
    *head = head_of(part, NULL);
    for (int i = 0; layers && i < count_layers(part->config); i++) {
        if (!is_of_part(part, i))
            continue;
        double found = head_of(part, find_layer(layers, i));
        if (has_any && found != *head)
            return roped_fail(err, ROPED_BAD_CONFIG,
                              "config: 'per_layer_config' has head width %g "
                              "for layer %d, expected %g, that of the layers "
                              "before it of one type",
                              found, i, *head);
        *head = found;
        has_any = true;
    }
    return ROPED_OK;
}

static enum roped_status read_head(const struct config_part *part,
                                   struct roped_angle_set *set,
                                   struct roped_error *err)
{
    double head;
    enum roped_status status = read_layers(part, &head, err);
    if (status)
        return status;
    if (isnan(head))
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: missing 'head_dim', or 'hidden_size' and "
                          "'num_attention_heads'");
    if (!(head >= 2 && head <= 65536) || head != floor(head))
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: head width %g from 'head_dim' or "
                          "'hidden_size' / 'num_attention_heads', expected an "
                          "integer of 2 to 65536",
                          head);
    set->head_dim = (int64_t)head;
    return ROPED_OK;
}

/* The share of a head that is rotated: where it is said, and how much. */
static enum roped_status read_share(const struct config_part *part,
                                    const struct cJSON **node, double *share,
                                    struct roped_error *err)
{
    char found[64];
    const char *name = "partial_rotary_factor";
    *node = config_given(part->rope, name);
    if (!*node)
        *node = config_given(part->config, name);
    if (!*node)
        *node = config_given(part->config, "rotary_pct");
    *share = part->model->share > 0 ? part->model->share : 1;
    if (*node)
        *share = value_of(cJSON_IsNumber(*node) ? *node : NULL);
    if (*share > 0 && *share <= 1)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: '%s' is %s, expected above 0 and at most 1",
                      (*node)->string, json_text(*node, found, sizeof found));
}

/* The rotary part has a width of its own, which must agree with the share. */
static enum roped_status check_stated(const struct cJSON *stated, double r,
                                      struct roped_error *err)
{
    if (!stated || stated->valuedouble == r)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: '%s' is %g, expected %g, the share of the head "
                      "that 'partial_rotary_factor' states",
                      stated->string, stated->valuedouble, r);
}

/* The rotary width r, and the member that it follows from. */
static enum roped_status read_rotary(const struct config_part *part,
                                     int64_t head_dim, double *r,
                                     const char **from, struct roped_error *err)
{
    const struct cJSON *partial = NULL;
    const struct cJSON *head = number(part->config, "head_dim");
    const struct cJSON *rope_head = number(part->config, "qk_rope_head_dim");
    const struct cJSON *width = number(part->config, "rotary_dim");
    double share = 1;
    enum roped_status status = read_share(part, &partial, &share, err);
    if (status)
        return status;
    *r = floor((double)head_dim * share);
    *from = partial ? partial->string : "head_dim";
    if (lacks_rope_head(part)) {
        *r = (double)head_dim;
        return ROPED_OK;
    }
    if (rope_head) { /* the share is one of the whole head, which it is not */
        *r = (double)head_dim;
        *from = rope_head->string;
        if (partial && head)
            return check_stated(rope_head, floor(head->valuedouble * share),
                                err);
        return ROPED_OK;
    }
    if (!width || partial || !part->model->uses_rotary_dim)
        return check_stated(width, *r, err);
    *r = width->valuedouble;
    *from = width->string;
    return ROPED_OK;
}

enum roped_status config_read_widths(const struct config_part *part,
                                     struct roped_angle_set *set,
                                     struct roped_error *err)
{
    const char *from = NULL;
    double r = 0;
    enum roped_status status = read_head(part, set, err);
    if (!status)
        status = read_rotary(part, set->head_dim, &r, &from, err);
    if (status)
        return status;
    if (!(r >= 2 && r <= (double)set->head_dim) || fmod(r, 2) != 0)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: '%s' gives rotary width %g of head width "
                          "%lld, expected an even number of 2 to %lld",
                          from, r, (long long)set->head_dim,
                          (long long)set->head_dim);
    set->rotary_dim = (int64_t)r;
    return ROPED_OK;
}
