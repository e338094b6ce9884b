/*
 * command_model.c - model: what of roped a model's layers need, by its
 * config.json. Angles and pairs are read as the server reads them for a table,
 * norms, residual sums and MLPs are those of model_layers.c.
 */
#include "model.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- the config */

static const char *type_of(const cJSON *config)
{
    const char *type = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(config, "model_type"));
    return type ? type : "";
}

/* Finds the text model, which may be a decoder, and what is known of it. */
static void find_model(struct model *model)
{
    const cJSON *text =
        cJSON_GetObjectItemCaseSensitive(model->tree, "text_config");
    if (!text && !model_layers(type_of(model->tree)))
        text = cJSON_GetObjectItemCaseSensitive(model->tree, "decoder");
    model->config = cJSON_IsObject(text) ? text : model->tree;
    model->type = type_of(model->config);
    if (!model->type[0])
        model->type = type_of(model->tree);
    model->layers = model_layers(model->type);
}

/* Exit code, after saying what is wrong: of a file that no table can be made
 * of, the model must be known. */
static int read_model(struct model *model)
{
    enum roped_status status = ROPED_OK;
    size_t bytes;
    char *text = (char *)read_input(model->path, &bytes);
    if (!text)
        return EXIT_FAILURE;
    model->tree = cJSON_ParseWithLength(text, bytes);
    if (model->tree)
        find_model(model);
    if (!model->layers || model->layers->heads < NO_ROTATION)
        status = angles_json_read(MODEL_BASE, NULL, text, bytes, model->sets,
                                  &model->n_sets, &model->no_table);
    free(text);
    if (!status)
        model->no_table.text[0] = 0;
    else if (model->layers)
        model->n_sets = 0;
    else
        return fail_text("'%s': %s", model->path, model->no_table.text);
    if (!model->type || !model->type[0])
        return fail_text("'%s': no 'model_type', expected a model's "
                         "config.json",
                         model->path);
    return EXIT_SUCCESS;
}

/* --------------------------------------------------------------- in tables */

/* Members of a table, as the server would say them. */
static void add_table(cJSON *array, const struct model *model, int i)
{
    struct buffer buffer;
    char *name;
    buffer_init(&buffer);
    angles_json_write(&buffer, &model->sets[i].set, "", 0);
    cJSON *row = cJSON_ParseWithLength(buffer.text, buffer.bytes);
    buffer_fini(&buffer);
    if (asprintf(&name, "%s%s", model->type, model_kind(model, i)) < 0)
        name = NULL;
    cJSON_ReplaceItemInObjectCaseSensitive(must_have(row), "name",
                                           cJSON_CreateString(must_have(name)));
    free(name);
    cJSON_DeleteItemFromObjectCaseSensitive(row, "resident_bytes");
    cJSON_AddItemToArray(array, row);
}

/* ------------------------------------------------------------- to be copied */

static void add_line(cJSON *array, const char *format, ...) ROPED_PRINTF(2, 3);
static void add_line(cJSON *array, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    cJSON_AddStringToObject(add_row(array), "call", must_have(text));
    free(text);
}

/* Heads as the file has them; those of MLA have one key for all. */
static void add_calls(cJSON *document, const struct model *model)
{
    if (model->n_sets == 0)
        return;
    const struct roped_angle_set *set = &model->sets[0].set;
    bool is_mla = model_count(model, "kv_lora_rank") > 0;
    int hq = model_count(model, "num_attention_heads"),
        hk = is_mla ? 1 : model_count(model, "num_key_value_heads"),
        rows = set->params.mrope_section.count;
    const char *op = model_heads(model) == ALWAYS ? "qk_rmsnorm_rope" : "rope";
    char axes[32] = "";
    cJSON *array = cJSON_AddArrayToObject(document, "to_try_it");
    if (rows > 0)
        snprintf(axes, sizeof axes, " axes=%d", rows);
    add_line(array, "ropectl tables put %s %s", model->type, model->path);
    if (!hq || set->head_dim <= 0 || model_heads(model) == OWN_WEIGHTS)
        return;
    add_line(array,
             "ropectl sample %s n=16 hq=%d hk=%d d=%lld%s -o qk.safetensors",
             op, hq, hk ? hk : hq, (long long)set->head_dim, axes);
    char *more = model_heads_parameters(model);
    add_line(array,
             "ropectl run %s qk.safetensors --table %s%s%s -o "
             "rotated.safetensors",
             op, model->type, model_kind(model, 0), more);
    free(more);
}

int command_model(const struct ropectl *ctl, int argc, char **argv)
{
    struct model model = {.no_table = {.text = ""}};
    if (argc != 2)
        return usage("model", "%d arguments, expected a config.json", argc - 1);
    model.path = argv[1];
    int code = read_model(&model);
    if (!code) {
        cJSON *document = cJSON_CreateObject();
        cJSON_AddStringToObject(document, "model", model.type);
        cJSON *tables = cJSON_AddArrayToObject(document, "tables");
        for (int i = 0; i < model.n_sets; i++)
            add_table(tables, &model, i);
        model_add_layers(document, &model);
        add_calls(document, &model);
        code = print_document(ctl, document);
    }
    cJSON_Delete(model.tree);
    while (model.n_sets > 0)
        angles_json_fini(&model.sets[--model.n_sets]);
    return code;
}
