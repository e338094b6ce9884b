/*
 * command_model.c - model: what of roped a model's layers need, by its
 * config.json. Angles and pairs are read as the server reads them for a table,
 * norms, residual sums and MLPs are those of model_layers.def. What is not
 * known is said to be so.
 */
#include "ropectl.h"

#include "wire/angles_json.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum kind { HF, BIAS, ONCE, LAYER, PLUS_ONE, N_KINDS };
enum heads { NEVER, ALWAYS, APART, AFTER, OTHER_HEADS, NO_ROTATION, UNROTATED };
enum sum { SUM, SCALED_SUM, ADDENDS_FIRST, RESIDUAL_FIRST, OTHER_SUM };
enum mlp { GATED, SINGLE, PAIRS, OTHER_MLP };

/* Norms beside a gate; parameters: NULL, there are none. */
struct gate {
    const char *parameters;
    const char *eps;    /* NULL: as the others */
    const char *width;  /* members whose product is the width of a row */
    const char *groups; /* a member: into how many its columns are cut */
    const char *flag;   /* a member: not true means that there are none */
    const char *after;  /* a member: not true means that the gate is first */
};

static const struct layers {
    const char *type;
    enum kind kind;
    const char *eps;
    enum heads heads;
    enum sum sum;
    enum mlp mlp;
    const char *activation;
    const char *inner_eps;  /* of norms of another width; NULL: the same */
    const char *index_eps;  /* of an indexer's layer norms; NULL: none */
    const char *heads_flag; /* a member: not true means NEVER */
    bool is_behind;         /* norms of what a block gives are added */
    struct gate gate;
    const char *x_scale;   /* of SCALED_SUM; NULL: not known */
    const char *sum_flags; /* members: none is true means SUM */
} known[] = {
#define LAYERS(...) {__VA_ARGS__},
#include "model_layers.def"
};

struct model {
    cJSON *tree;
    const cJSON *config; /* of the text model */
    const char *path, *type;
    const struct layers *layers; /* NULL: not known */
    struct roped_error no_table; /* its text: why there is none; or "" */
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

/* Finds the text model, and what is known of it. */
static void find_model(struct model *model)
{
    const cJSON *text =
        cJSON_GetObjectItemCaseSensitive(model->tree, "text_config");
    model->config = cJSON_IsObject(text) ? text : model->tree;
    model->type = type_of(model->config);
    if (!model->type[0])
        model->type = type_of(model->tree);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, model->type) == 0)
            model->layers = &known[i];
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
        status = angles_json_read(base, NULL, text, bytes, model->sets,
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

/* Where a layer is not known, or is not one call. */
static void add_other(cJSON *array, const char *what, const char *why)
{
    add_layer(array, what, why, "client/MODELS.md");
}

/* A row of layers says a member of the file, or a number behind "=". To be
 * freed. */
static char *eps_text(const struct model *model, const char *eps)
{
    const cJSON *node = member(model, eps);
    char *number = cJSON_IsNumber(node) ? cJSON_PrintUnformatted(node) : NULL;
    char *text = strdup(eps[0] == '=' ? eps + 1 : number ? number : "EPS");
    cJSON_free(number);
    return must_have(text);
}

/* Parameters of a norm; more: those of a sum, too. To be freed. */
static char *norm_parameters(const struct model *model, enum kind kind,
                             const char *eps, const char *more)
{
    static const char *const kinds[N_KINDS] = {[HF] = " --rounding hf",
                                               [BIAS] = " --weight_bias 1",
                                               [ONCE] = "",
                                               [LAYER] = "",
                                               [PLUS_ONE] = ""};
    char *value = eps_text(model, eps), *text;
    if (asprintf(&text, "--eps %s%s%s", value, kinds[kind], more) < 0)
        text = NULL;
    free(value);
    return must_have(text);
}

static enum heads heads_of(const struct model *model)
{
    const struct layers *layers = model->layers;
    if (!layers || (layers->heads_flag &&
                    !cJSON_IsTrue(member(model, layers->heads_flag))))
        return NEVER;
    return layers->heads;
}

/* Parameters of the heads behind those of a table: of their norm, or none. To
 * be freed. */
static char *heads_parameters(const struct model *model)
{
    char *norm = NULL, *text;
    if (heads_of(model) == ALWAYS)
        norm =
            norm_parameters(model, model->layers->kind, model->layers->eps, "");
    if (asprintf(&text, "%s%s", norm ? " " : "", norm ? norm : "") < 0)
        text = NULL;
    free(norm);
    return must_have(text);
}

static bool has_layer_norms(const struct model *model)
{
    return model->layers->kind >= LAYER;
}

static const char *norm_operator(const struct model *model)
{
    return has_layer_norms(model) ? "layer_norm" : "rmsnorm";
}

/* A norm of heads that is a call of its own. */
static void add_apart(cJSON *array, const struct model *model)
{
    static const char *const when[] = {
        [ALWAYS] = "q and k, before they are rotated",
        [APART] = "q and k, before they are rotated",
        [AFTER] = "q and k, after they are rotated",
        [UNROTATED] = "q and k, which are not rotated"};
    enum heads heads = heads_of(model);
    bool is_fused = heads == ALWAYS && !model->no_table.text[0];
    if (heads == NEVER || heads == NO_ROTATION || is_fused)
        return;
    char *text =
        norm_parameters(model, model->layers->kind, model->layers->eps, "");
    add_layer(array, when[heads], norm_operator(model), text);
    free(text);
}

/* Rows of heads, for each table. */
static void add_heads(cJSON *array, const struct model *model)
{
    bool is_normal = heads_of(model) == ALWAYS;
    if (heads_of(model) == OTHER_HEADS) {
        add_other(array, "q and k", "not known: they are normalised");
        return;
    }
    add_apart(array, model);
    if (model->no_table.text[0])
        add_layer(array, "q and k", "not known", model->no_table.text);
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

/* Columns of a group of gated norms: "" where a row is one. To be freed. */
static char *group_text(const struct model *model, const struct gate *gate)
{
    int n_groups = gate->groups ? count_of(model, gate->groups) : 1;
    long long width = 1;
    char names[128], *text, *rest = NULL;
    snprintf(names, sizeof names, "%s", gate->width ? gate->width : "");
    for (char *name = strtok_r(names, " ", &rest); name;
         name = strtok_r(NULL, " ", &rest))
        width *= count_of(model, name);
    if (n_groups == 1)
        return must_have(strdup(""));
    if (!n_groups || !width || width % n_groups)
        return must_have(strdup(" --group_size GROUP_SIZE"));
    if (asprintf(&text, " --group_size %lld", width / n_groups) < 0)
        text = NULL;
    return must_have(text);
}

static void add_gated(cJSON *array, const struct model *model)
{
    const struct gate *gate = &model->layers->gate;
    if (!gate->parameters ||
        (gate->flag && !cJSON_IsTrue(member(model, gate->flag))))
        return;
    bool is_first = gate->after && !cJSON_IsTrue(member(model, gate->after));
    char *eps = eps_text(model, gate->eps ? gate->eps : model->layers->eps),
         *group = group_text(model, gate), *text;
    if (asprintf(&text, "--eps %s%s%s%s%s", eps, gate->parameters[0] ? " " : "",
                 gate->parameters, is_first ? " --gate_first true" : "",
                 group) < 0)
        text = NULL;
    add_layer(array, "gated norms", "gated_rmsnorm", must_have(text));
    free(eps);
    free(group);
    free(text);
}

/* Is one of these members true? Behind '+' one counts where it is missing. */
static bool is_any_true(const struct model *model, const char *flags)
{
    while (*flags) {
        char name[64];
        bool is_default = *flags == '+';
        flags += is_default;
        int n = (int)strcspn(flags, "|");
        snprintf(name, sizeof name, "%.*s", n, flags);
        const cJSON *node = member(model, name);
        if (cJSON_IsTrue(node) || (!node && is_default))
            return true;
        flags += n + (flags[n] == '|');
    }
    return false;
}

static enum sum sum_of(const struct model *model)
{
    const struct layers *layers = model->layers;
    if (layers->sum_flags && !is_any_true(model, layers->sum_flags))
        return SUM;
    if (layers->sum == SCALED_SUM && !layers->x_scale)
        return OTHER_SUM;
    return layers->sum;
}

/* A number of the file, or one over the root of another: "a/sqrt(b)". NULL
 * where the file has not said it. To be freed. */
static char *scale_text(const struct model *model)
{
    char name[64] = "", root[64] = "";
    int n = sscanf(model->layers->x_scale, "%63[^/]/sqrt(%63[^)])", name, root);
    const cJSON *a = member(model, name), *b = member(model, root);
    if (!cJSON_IsNumber(a) ||
        (n > 1 && !(cJSON_IsNumber(b) && b->valueint > 0)))
        return NULL;
    cJSON *number = cJSON_CreateNumber(
        n > 1 ? a->valuedouble / sqrt(b->valuedouble) : a->valuedouble);
    char *text = cJSON_PrintUnformatted(number),
         *copy = must_have(strdup(must_have(text)));
    cJSON_free(text);
    cJSON_Delete(number);
    return copy;
}

/* Parameters of a sum; to be freed. */
static char *sum_parameters(const struct model *model)
{
    static const char *const orders[] = {
        [ADDENDS_FIRST] = " --sum_order addends_first",
        [RESIDUAL_FIRST] = " --sum_order residual_first"};
    enum sum sum = sum_of(model);
    char *scale = sum == SCALED_SUM ? scale_text(model) : NULL, *text;
    if (asprintf(&text, " --sum_rounding type%s%s%s",
                 sum == SCALED_SUM ? " --x_scale " : "",
                 sum == SCALED_SUM ? scale ? scale : "X_SCALE" : "",
                 sum > SCALED_SUM ? orders[sum] : "") < 0)
        text = NULL;
    free(scale);
    return must_have(text);
}

static void add_sum(cJSON *array, const struct model *model)
{
    enum sum sum = sum_of(model);
    const char *what = sum == ADDENDS_FIRST || sum == RESIDUAL_FIRST
                           ? "residual and addend, and a norm of the sum"
                           : "residual, and a norm of the sum";
    if (sum == OTHER_SUM) {
        add_other(array, what, "not known");
        return;
    }
    char *more = sum_parameters(model);
    char *text =
        norm_parameters(model, model->layers->kind, model->layers->eps, more);
    add_layer(array, what,
              has_layer_norms(model) ? "add_layer_norm" : "add_rmsnorm", text);
    free(text);
    free(more);
}

static void add_norms(cJSON *array, const struct model *model)
{
    const struct layers *layers = model->layers;
    const char *op = norm_operator(model);
    char *one = norm_parameters(model, layers->kind, layers->eps, "");
    add_layer(array,
              layers->kind == PLUS_ONE ? "norms, by T(1 + weight)" : "norms",
              op, one);
    if (layers->inner_eps) {
        char *inner =
            norm_parameters(model, layers->kind, layers->inner_eps, "");
        add_layer(array, "norms inside attention", op, inner);
        free(inner);
    }
    if (layers->index_eps) {
        char *text = norm_parameters(model, LAYER, layers->index_eps, "");
        add_layer(array, "norms of the indexer", "layer_norm", text);
        free(text);
    }
    add_gated(array, model);
    if (layers->is_behind)
        add_layer(array, "norms behind a block, and the residual",
                  "rmsnorm_add", one);
    add_sum(array, model);
    free(one);
}

/* What transformers calls them, and roped; which round each of their steps to
 * the type of x. */
static const struct activation {
    const char *theirs, *ours;
    bool has_steps;
} activations[] = {
    {"silu", "silu", false},         {"swish", "silu", false},
    {"gelu", "gelu", false},         {"gelu_pytorch_tanh", "gelu_tanh", false},
    {"gelu_new", "gelu_tanh", true}, {"quick_gelu", "quick_gelu", true},
    {"relu", "relu", false},         {"relu2", "relu2", false},
    {"sigmoid", "sigmoid", false},   {"swiglu_oai", "swiglu_oai", true},
};

/* NULL: none of roped's. */
static const struct activation *activation_of(const struct model *model)
{
    const char *name = model->layers->activation;
    name =
        name[0] == '=' ? name + 1 : cJSON_GetStringValue(member(model, name));
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (name && strcmp(activations[i].theirs, name) == 0)
            return &activations[i];
    return NULL;
}

static void add_mlp(cJSON *array, const struct model *model)
{
    static const char *const what[] = {[GATED] = "middle of a gated MLP",
                                       [SINGLE] = "middle of an MLP",
                                       [PAIRS] = "middle of a gated MLP",
                                       [OTHER_MLP] = "middle of an MLP"};
    static const char *const layout[] = {[GATED] = "",
                                         [SINGLE] = " --gated false",
                                         [PAIRS] = " --interleaved true"};
    enum mlp mlp = model->layers->mlp;
    const struct activation *activation =
        mlp == OTHER_MLP ? NULL : activation_of(model);
    char *text;
    if (!activation) {
        add_other(array, what[mlp], "not known");
        return;
    }
    if (asprintf(&text, "--activation %s%s%s", activation->ours, layout[mlp],
                 activation->has_steps ? " --rounding steps"
                 : mlp == GATED        ? " --rounding type"
                                       : "") < 0)
        text = NULL;
    add_layer(array, what[mlp], "act_and_mul", must_have(text));
    free(text);
}

static void add_layers(cJSON *document, const struct model *model)
{
    cJSON *array = cJSON_AddArrayToObject(document, "layers");
    if (model->layers)
        add_norms(array, model);
    else
        add_other(array, "norms", "not known");
    add_heads(array, model);
    if (model->layers)
        add_mlp(array, model);
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
    bool is_mla = count_of(model, "kv_lora_rank") > 0;
    int hq = count_of(model, "num_attention_heads"),
        hk = is_mla ? 1 : count_of(model, "num_key_value_heads"),
        rows = set->params.mrope_section.count;
    const char *op = heads_of(model) == ALWAYS ? "qk_rmsnorm_rope" : "rope";
    char axes[32] = "";
    cJSON *array = cJSON_AddArrayToObject(document, "to_try_it");
    if (rows > 0)
        snprintf(axes, sizeof axes, " axes=%d", rows);
    add_line(array, "ropectl tables put %s %s", model->type, model->path);
    if (!hq || set->head_dim <= 0 || heads_of(model) == OTHER_HEADS)
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
        add_layers(document, &model);
        add_calls(document, &model);
        code = print_document(ctl, document);
    }
    cJSON_Delete(model.tree);
    while (model.n_sets > 0)
        angles_json_fini(&model.sets[--model.n_sets]);
    return code;
}
