/*
 * config_models.c - what is known of a model that its config.json does not
 * say, by the rows of config_models.def: which elements of its heads pair,
 * what its class takes for members that are not there, how its sections lie.
 */
#include "wire/angles_internal.h"
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <string.h>

#define NEOX       CONFIG_NEOX
#define GPTJ       CONFIG_GPTJ
#define INTERLEAVE CONFIG_BY_INTERLEAVE
#define BLOCKS     CONFIG_BLOCKS
#define TURNS      CONFIG_TURNS
#define TWO_TURNS  CONFIG_TWO_TURNS

static const struct config_model models[] = {
#define MODEL(name, its_pairs, ...)                                            \
    {.type = #name, .pairs = its_pairs, __VA_ARGS__},
#include "wire/config_models.def"
};

const struct config_model *config_find_model(const char *type)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].type, type) == 0)
            return &models[i];
    return NULL;
}

enum roped_status config_set_model(const struct cJSON *tree,
                                   struct config_part *part,
                                   struct roped_error *err)
{
    static const struct config_model nothing;
    const char *type = config_model_type(part->config);
    const struct config_model *around =
        config_find_model(config_model_type(tree));
    if (!type[0]) /* the model around it says which this one is */
        type = config_model_type(tree);
    const struct config_model *model = config_find_model(type);
    if (!model && type[0] && !part->style)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: model_type '%.64s' is not known, nor which "
                          "elements of its heads pair, expected parameter "
                          "'style' to say it: neox or gptj",
                          type);
    part->model = model ? model : &nothing;
    if (part->model->refused)
        return roped_fail(err, ROPED_BAD_CONFIG,
                          "config: 'model_type' is '%.64s', which %s", type,
                          part->model->refused);
    if (!around)
        around = &nothing;
    part->head_dim =
        around->head_dim > 0 ? around->head_dim : part->model->head_dim;
    part->default_theta = around->theta;
    part->local_theta = around->local_theta;
    return ROPED_OK;
}

enum roped_status config_set_style(const struct config_part *part,
                                   struct roped_call *call,
                                   struct roped_error *err)
{
    const char name[] = "rope_interleave";
    const struct cJSON *node = json_member(part->config, name);
    bool is_said = part->model->pairs == CONFIG_BY_INTERLEAVE ||
                   !part->model->type; /* a file that names no model */
    bool is_gptj = part->model->pairs != CONFIG_NEOX;
    char found[64];
    if (part->style)
        return roped_call_set_text(call, "style", part->style, err);
    if (is_said && node) {
        if (!cJSON_IsBool(node) && !cJSON_IsNull(node))
            return roped_fail(err, ROPED_BAD_CONFIG,
                              "config: '%s' is %s, expected true or false",
                              name, json_text(node, found, sizeof found));
        is_gptj = cJSON_IsTrue(node);
    }
    return roped_call_set_text(call, "style", is_gptj ? "gptj" : "neox", err);
}
