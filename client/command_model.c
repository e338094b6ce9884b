/*
 * command_model.c - model: what of roped a model's layers need, by its
 * config.json. Angles and pairs are read as the server reads them for a table,
 * norms are those of model_norms.def. What is not known is said to be so.
 */
#include "ropectl.h"

#include "wire/angles_json.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum kind { HF, BIAS, ONCE };
enum heads { NEVER, ALWAYS, BY_USE_QK_NORM };

static const struct norm {
    const char *type;
    enum kind kind;
    enum heads heads;
} norms[] = {
#define NORM(type, kind, heads) {#type, kind, heads},
#include "model_norms.def"
};

struct model {
    cJSON *tree;
    const cJSON *config; /* of the text model */
    const char *path, *type;
    const struct norm *norm; /* NULL: not known */
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n_sets;
};

/* What tables are called while they are read, before the model is known. */
static const char base[] = "model";

/* "" of the only table, ".full_attention" of one for a kind of layer. */
static const char *kind_of(const struct model *model, int i)
{
    return model->sets[i].name + sizeof base - 1;
}

/* ------------------------------------------------------------- the config */

static const cJSON *member(const struct model *model, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(model->config, name);
}

/* A count, or 0 where the file has none. */
static int count_of(const struct model *model, const char *name)
{
    const cJSON *node = member(model, name);
    return cJSON_IsNumber(node) && node->valueint > 0 ? node->valueint : 0;
}

static const char *type_of(const cJSON *config)
{
    const char *type = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(config, "model_type"));
    return type ? type : "";
}

/* Finds the text model, and what is known of it. False: it names no model. */
static bool find_model(struct model *model)
{
    const cJSON *text =
        cJSON_GetObjectItemCaseSensitive(model->tree, "text_config");
    model->config = cJSON_IsObject(text) ? text : model->tree;
    model->type = type_of(model->config);
    if (!model->type[0])
        model->type = type_of(model->tree);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (strcmp(norms[i].type, model->type) == 0)
            model->norm = &norms[i];
    return model->type[0] != '\0';
}

/* Exit code, after saying what is wrong: what a table cannot be made of is no
 * model that is known. */
static int read_model(struct model *model)
{
    struct roped_error err;
    size_t bytes;
    char *text = (char *)read_input(model->path, &bytes);
    if (!text)
        return EXIT_FAILURE;
    enum roped_status status = angles_json_read(
        base, NULL, text, bytes, model->sets, &model->n_sets, &err);
    model->tree = status ? NULL : cJSON_ParseWithLength(text, bytes);
    free(text);
    if (status)
        return fail_text("'%s': %s", model->path, err.text);
    if (!find_model(model))
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
    if (asprintf(&name, "%s%s", model->type, kind_of(model, i)) < 0)
        name = NULL;
    cJSON_ReplaceItemInObjectCaseSensitive(must_have(row), "name",
                                           cJSON_CreateString(must_have(name)));
    free(name);
    cJSON_DeleteItemFromObjectCaseSensitive(row, "resident_bytes");
    cJSON_AddItemToArray(array, row);
}

static void add_layer(cJSON *array, const char *what, const char *op,
                      const char *parameters)
{
    cJSON *row = add_row(array);
    cJSON_AddStringToObject(row, "for", what);
    cJSON_AddStringToObject(row, "operator", op);
    cJSON_AddStringToObject(row, "parameters", parameters);
}

/* Parameters of a norm; has_sum: of a sum, too. To be freed. */
static char *norm_parameters(const struct model *model, bool has_sum)
{
    static const char *const kinds[] = {
        [HF] = " --rounding hf", [BIAS] = " --weight_bias 1", [ONCE] = ""};
    const cJSON *eps = member(model, "rms_norm_eps");
    char *value = cJSON_IsNumber(eps) ? cJSON_PrintUnformatted(eps) : NULL;
    char *text;
    if (asprintf(&text, "--eps %s%s%s", value ? value : "EPS",
                 kinds[model->norm->kind],
                 has_sum ? " --sum_rounding type" : "") < 0)
        text = NULL;
    cJSON_free(value);
    return must_have(text);
}

static bool normalises_heads(const struct model *model)
{
    if (!model->norm || model->norm->heads != BY_USE_QK_NORM)
        return model->norm && model->norm->heads == ALWAYS;
    return cJSON_IsTrue(member(model, "use_qk_norm"));
}

/* Parameters of the heads behind those of a table: of their norm, or none. To
 * be freed. */
static char *heads_parameters(const struct model *model)
{
    char *norm = normalises_heads(model) ? norm_parameters(model, false) : NULL;
    char *text;
    if (asprintf(&text, "%s%s", norm ? " " : "", norm ? norm : "") < 0)
        text = NULL;
    free(norm);
    return must_have(text);
}

/* Rows of heads, for each table. */
static void add_heads(cJSON *array, const struct model *model)
{
    bool is_normal = normalises_heads(model);
    char *more = heads_parameters(model), *text;
    for (int i = 0; i < model->n_sets; i++) {
        const char *kind = kind_of(model, i);
        if (asprintf(&text, "--table %s%s%s", model->type, kind, more) < 0)
            text = NULL;
        add_layer(array, kind[0] ? kind + 1 : "q and k",
                  is_normal ? "qk_rmsnorm_rope" : "rope", must_have(text));
        add_layer(array, kind[0] ? kind + 1 : "q, k, and v into a cache",
                  is_normal ? "qk_rmsnorm_rope_append" : "rope_append", text);
        free(text);
    }
    free(more);
}

static void add_layers(cJSON *document, const struct model *model)
{
    cJSON *array = cJSON_AddArrayToObject(document, "layers");
    if (model->norm) {
        char *one = norm_parameters(model, false),
             *sum = norm_parameters(model, true);
        add_layer(array, "norms", "rmsnorm", one);
        add_layer(array, "residual, and a norm of the sum", "add_rmsnorm", sum);
        free(one);
        free(sum);
    } else {
        add_layer(array, "norms", "not known", "client/README.md, Rounding");
    }
    add_heads(array, model);
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
    const struct roped_angle_set *set = &model->sets[0].set;
    bool is_mla = count_of(model, "kv_lora_rank") > 0;
    int hq = count_of(model, "num_attention_heads"),
        hk = is_mla ? 1 : count_of(model, "num_key_value_heads"),
        rows = set->params.mrope_section.count;
    const char *op = normalises_heads(model) ? "qk_rmsnorm_rope" : "rope";
    char axes[32] = "";
    cJSON *array = cJSON_AddArrayToObject(document, "to_try_it");
    if (rows > 0)
        snprintf(axes, sizeof axes, " axes=%d", rows);
    add_line(array, "ropectl tables put %s %s", model->type, model->path);
    if (!hq || set->head_dim <= 0)
        return;
    add_line(array,
             "ropectl sample %s n=16 hq=%d hk=%d d=%lld%s -o qk.safetensors",
             op, hq, hk ? hk : hq, (long long)set->head_dim, axes);
    char *more = heads_parameters(model);
    add_line(array,
             "ropectl run %s qk.safetensors --table %s%s%s -o "
             "rotated.safetensors",
             op, model->type, kind_of(model, 0), more);
    free(more);
}

int command_model(const struct ropectl *ctl, int argc, char **argv)
{
    struct model model = {.n_sets = 0};
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
        add_layers(document, &model);
        add_calls(document, &model);
        code = print_document(ctl, document);
    }
    cJSON_Delete(model.tree);
    while (model.n_sets > 0)
        angles_json_fini(&model.sets[--model.n_sets]);
    return code;
}
