/*
 * config_keys.c - members of a config.json and of its rope dictionaries, by
 * the rows of config_keys.def.
 *
 * A dictionary of rope is ours: a member without a row is refused. The rest of
 * the file is somebody else's, and a member is refused only where it has a row
 * that says so, or where its name speaks of rope and has no row.
 */
#include "wire/angles_internal.h"
#include "wire/json.h"
#include "wire/param_json.h"

#include <roped/nearest.h>

#include <cjson/cJSON.h>
#include <string.h>

enum use {
    PARAM,
    NOT_ZERO,
    READ,
    OTHER,
    TYPED,
    THETAS,
    SCALED,
    IMAGES,
    ON,
    REFUSED
};

struct key {
    const char *name;
    enum use use;
};

static const struct key rope_keys[] = {
#define ROPE_KEY(name, use) {#name, use},
#include "wire/config_keys.def"
};

static const struct key config_keys[] = {
#define CONFIG_KEY(name, use) {#name, use},
#include "wire/config_keys.def"
};

enum {
    N_ROPE_KEYS = sizeof rope_keys / sizeof *rope_keys,
    N_CONFIG_KEYS = sizeof config_keys / sizeof *config_keys
};

const struct cJSON *config_given(const struct cJSON *object, const char *name)
{
    const struct cJSON *node = json_member(object, name);
    return cJSON_IsNull(node) ? NULL : node;
}

const char *config_model_type(const struct cJSON *config)
{
    const struct cJSON *type = config_given(config, "model_type");
    return cJSON_IsString(type) ? type->valuestring : "";
}

/* -------------------------------------------------------------------- keys */

static const struct key *find_key(const struct key *keys, int n,
                                  const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static enum roped_status unknown_key(const struct key *keys, int n,
                                     const char *name, const char *of,
                                     struct roped_error *err)
{
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (int i = 0; i < n; i++)
        roped_nearest_offer(&nearest, keys[i].name);
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: unknown key '%.64s' of %s%s", name, of,
                      roped_nearest_text(&nearest, near, sizeof near));
}

static enum roped_status refuse_key(const struct cJSON *node,
                                    const char *expected,
                                    struct roped_error *err)
{
    char found[64];
    return roped_fail(err, ROPED_BAD_CONFIG,
                      "config: '%.64s' is %s, expected %s", node->string,
                      json_text(node, found, sizeof found), expected);
}

static bool is_number(const struct cJSON *node, double value)
{
    return cJSON_IsNumber(node) && node->valuedouble == value;
}

static enum roped_status refuse_unless_one(const struct cJSON *node,
                                           struct roped_error *err)
{
    if (is_number(node, 1) || cJSON_IsFalse(node))
        return ROPED_OK;
    return refuse_key(node, "none: it is not supported", err);
}

/* ------------------------------------------------------------ dictionaries */

static bool says(const struct cJSON *rope, const char *name)
{
    return config_given(rope, name) != NULL;
}

/* Sections that the file does not state, or does not say how they lie, are the
 * model's, and lie as that has them. */
static enum roped_status set_sections(const struct config_part *part,
                                      struct roped_call *call,
                                      struct roped_error *err)
{
    const struct config_model *model = part->model;
    enum roped_status status = ROPED_OK;
    if (!says(part->rope, "mrope_section")) {
        if (!model->mrope_section)
            return ROPED_OK;
        status = roped_call_set_text(call, "mrope_section",
                                     model->mrope_section, err);
    }
    if (!status && model->mrope_axes)
        status =
            roped_call_set_text(call, "mrope_axes", model->mrope_axes, err);
    if (status || model->layout == CONFIG_TWO_TURNS)
        return status ? status
                      : roped_call_set_text(call, "mrope_turns", "2", err);
    if (says(part->rope, "mrope_interleaved"))
        return ROPED_OK;
    if (model->layout == CONFIG_NO_LAYOUT)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: 'mrope_section' without "
                          "'mrope_interleaved', expected both: the layout of "
                          "model_type '%.64s' is not known",
                          config_model_type(part->config));
    return roped_call_set_text(call, "mrope_interleaved",
                               model->layout == CONFIG_TURNS ? "true" : "false",
                               err);
}

bool config_is_axial(const struct cJSON *rope)
{
    const struct cJSON *type = config_given(rope, "rope_type");
    return cJSON_IsString(type) && strcmp(type->valuestring, "axial") == 0;
}

enum roped_status config_set_axial(const struct config_part *part,
                                   struct roped_call *call,
                                   struct roped_error *err)
{
    const struct config_model *model = part->model;
    if (!model->axial)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: 'rope_type' is \"axial\", expected another: "
                          "how model_type '%.64s' lays out its axes is not "
                          "known, or not offered",
                          config_model_type(part->config));
    enum roped_status status =
        roped_call_set_text(call, "scaling", model->axial, err);
    if (!status)
        status =
            roped_call_set_text(call, "mrope_axes", model->axial_axes, err);
    return status ? status
                  : roped_call_set_text(call, "mrope_interleaved",
                                        model->axial_turns ? "true" : "false",
                                        err);
}

static enum roped_status set_rope_key(struct roped_call *call,
                                      const struct cJSON *node,
                                      struct roped_error *err)
{
    const struct key *key = find_key(rope_keys, N_ROPE_KEYS, node->string);
    if (!key)
        return unknown_key(rope_keys, N_ROPE_KEYS, node->string,
                           "the rope parameters", err);
    if (cJSON_IsNull(node) || (key->use == NOT_ZERO && is_number(node, 0)))
        return ROPED_OK;
    if (key->use == ON && !cJSON_IsTrue(node))
        return refuse_key(node, "true: the other is not supported", err);
    if (key->use == PARAM || key->use == NOT_ZERO)
        return param_json_set(call, key->name, node, err);
    return key->use == REFUSED ? refuse_unless_one(node, err) : ROPED_OK;
}

enum roped_status config_set_rope(const struct config_part *part,
                                  struct roped_call *call,
                                  struct roped_error *err)
{
    const struct cJSON *node;
    enum roped_status status = ROPED_OK;
    cJSON_ArrayForEach(node, part->rope)
    {
        if (!status)
            status = set_rope_key(call, node, err);
    }
    return status ? status : set_sections(part, call, err);
}

/* --------------------------------------------------------------- the rest */

/* Is one of the words of a_name_like_this about rope? */
static bool speaks_of_rope(const char *name)
{
    static const char *const words[] = {"rope", "rotary", "mrope", "xdrope",
                                        "fope"};
    while (*name) {
        size_t length = strcspn(name, "_");
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strlen(words[i]) == length &&
                strncmp(name, words[i], length) == 0)
                return true;
        name += length + (name[length] == '_');
    }
    return false;
}

/* A base per layer, 0 where it has no angles. */
static enum roped_status check_thetas(const struct cJSON *config,
                                      const struct cJSON *node,
                                      struct roped_error *err)
{
    const struct cJSON *rope = config_given(config, "rope_parameters");
    const struct cJSON *theta = config_given(rope, "rope_theta");
    const struct cJSON *item;
    if (!theta)
        theta = config_given(config, "rope_theta");
    if (!cJSON_IsArray(node))
        return refuse_key(node, "an array", err);
    cJSON_ArrayForEach(item, node)
    {
        if (!is_number(item, 0) &&
            !(theta && is_number(item, theta->valuedouble)))
            return refuse_key(node, "0 or rope_theta for each layer", err);
    }
    return ROPED_OK;
}

static const struct cJSON *rope_of(const struct cJSON *config)
{
    const struct cJSON *rope = config_given(config, "rope_parameters");
    return rope ? rope : config_given(config, "rope_scaling");
}

static bool is_scaled(const struct cJSON *config)
{
    const struct cJSON *type = config_given(rope_of(config), "rope_type");
    return !cJSON_IsString(type) || strcmp(type->valuestring, "default") != 0;
}

static enum roped_status check_key(const struct cJSON *config,
                                   const struct cJSON *node, bool has_types,
                                   struct roped_error *err)
{
    const struct key *key = find_key(config_keys, N_CONFIG_KEYS, node->string);
    if (cJSON_IsNull(node))
        return ROPED_OK;
    if (!key)
        return speaks_of_rope(node->string)
                   ? unknown_key(config_keys, N_CONFIG_KEYS, node->string,
                                 "the configuration", err)
                   : ROPED_OK;
    if (key->use == REFUSED ||
        (key->use == IMAGES && !config_is_axial(rope_of(config))))
        return refuse_unless_one(node, err);
    if (key->use == TYPED && !has_types)
        return refuse_key(node, "rope_parameters of each layer type beside it",
                          err);
    if (key->use == THETAS && !has_types)
        return check_thetas(config, node, err);
    if (key->use == SCALED && is_scaled(config))
        return refuse_key(node, "none: layers are scaled alike", err);
    return ROPED_OK;
}

enum roped_status config_check(const struct cJSON *config, bool has_types,
                               struct roped_error *err)
{
    const struct cJSON *node;
    enum roped_status status = ROPED_OK;
    cJSON_ArrayForEach(node, config)
    {
        if (!status)
            status = check_key(config, node, has_types, err);
    }
    return status;
}
