/*
 * model_layers.c - rows of norms, residual sums, heads and MLPs, as
 * model_layers.def has them, for what ropectl says of a model. What is not
 * known is said to be so.
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct layers known[] = {
#define LAYERS(...) {__VA_ARGS__},
#include "model_layers.def"
};

const struct layers *model_layers(const char *type)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, type) == 0)
            return &known[i];
    return NULL;
}

/* ------------------------------------------------------------- the config */

const char *model_kind(const struct model *model, int table)
{
    return model->sets[table].name + sizeof MODEL_BASE - 1;
}

const cJSON *model_member(const struct model *model, const char *name)
{
    const cJSON *node = model->config;
    char part[64];
    while (node && *name) {
        int n = (int)strcspn(name, ".");
        snprintf(part, sizeof part, "%.*s", n, name);
        node = cJSON_IsArray(node)
                   ? cJSON_GetArrayItem(node, (int)strtol(part, NULL, 10))
                   : cJSON_GetObjectItemCaseSensitive(node, part);
        name += n + (name[n] == '.');
    }
    return node;
}

int model_count(const struct model *model, const char *name)
{
    const cJSON *node = model_member(model, name);
    return cJSON_IsNumber(node) && node->valueint > 0 ? node->valueint : 0;
}

/* ----------------------------------------------------------------- in rows */

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
    const cJSON *node = model_member(model, eps);
    char *number = cJSON_IsNumber(node) ? cJSON_PrintUnformatted(node) : NULL;
    char *text = strdup(eps[0] == '=' ? eps + 1 : number ? number : "EPS");
    cJSON_free(number);
    return must_have(text);
}

/* " --name value" of a number of the file, "" where the row names none. To be
 * freed. */
static char *number_text(const struct model *model, const char *option,
                         const char *from)
{
    const cJSON *node = from ? model_member(model, from) : NULL;
    char *number = cJSON_IsNumber(node) ? cJSON_PrintUnformatted(node) : NULL,
         *text;
    if (!number)
        text = strdup("");
    else if (asprintf(&text, " --%s %s", option, number) < 0)
        text = NULL;
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

static void add_norm(cJSON *array, const struct model *model, const char *what,
                     const char *op, enum kind kind, const char *eps,
                     const char *more)
{
    char *text = norm_parameters(model, kind, eps, more);
    add_layer(array, what, op, text);
    free(text);
}

enum heads model_heads(const struct model *model)
{
    const struct layers *layers = model->layers;
    if (!layers || (layers->heads_flag &&
                    !cJSON_IsTrue(model_member(model, layers->heads_flag))))
        return NEVER;
    return layers->heads;
}

char *model_heads_parameters(const struct model *model)
{
    char *norm = NULL, *text;
    if (model_heads(model) == ALWAYS)
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

/* Norms of heads that have weights of their own: of a token's heads as one row.
 */
static void add_own_weights(cJSON *array, const struct model *model)
{
    static const char *const members[] = {"num_attention_heads",
                                          "num_key_value_heads"};
    static const char *const what[] = {"q, before it is rotated",
                                       "k, before it is rotated"};
    for (int i = 0; i < 2; i++) {
        const bool has_own = model_count(model, members[i]) > 0;
        char *heads = number_text(model, "heads", members[has_own ? i : 0]);
        add_norm(array, model, what[i], norm_operator(model),
                 model->layers->kind, model->layers->eps, heads);
        free(heads);
    }
}

/* A norm of heads that is a call of its own. */
static void add_apart(cJSON *array, const struct model *model)
{
    static const char *const when[] = {
        [ALWAYS] = "q and k, before they are rotated",
        [APART] = "q and k, before they are rotated",
        [AFTER] = "q and k, after they are rotated",
        [UNROTATED] = "q and k, which are not rotated"};
    enum heads heads = model_heads(model);
    if (heads == OWN_WEIGHTS) {
        add_own_weights(array, model);
        return;
    }
    bool is_fused = heads == ALWAYS && !model->no_table.text[0];
    if (heads == NEVER || heads == NO_ROTATION || is_fused)
        return;
    add_norm(array, model, when[heads], norm_operator(model),
             model->layers->kind, model->layers->eps, "");
}

/* Rows of heads, for each table. */
static void add_heads(cJSON *array, const struct model *model)
{
    bool is_normal = model_heads(model) == ALWAYS;
    add_apart(array, model);
    if (model->no_table.text[0])
        add_layer(array, "q and k", "not known", model->no_table.text);
    char *more = model_heads_parameters(model), *text;
    for (int i = 0; i < model->n_sets; i++) {
        const char *kind = model_kind(model, i);
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
    int n_groups = gate->groups ? model_count(model, gate->groups) : 1;
    long long width = 1;
    char names[128], *text, *rest = NULL;
    snprintf(names, sizeof names, "%s", gate->width ? gate->width : "");
    for (char *name = strtok_r(names, " ", &rest); name;
         name = strtok_r(NULL, " ", &rest))
        width *= model_count(model, name);
    if (n_groups == 1)
        return must_have(strdup(""));
    if (!n_groups || !width || width % n_groups)
        return must_have(strdup(" --group_size GROUP_SIZE"));
    if (asprintf(&text, " --group_size %lld", width / n_groups) < 0)
        text = NULL;
    return must_have(text);
}

/* NULL where the row says it, or nothing does. */
static const char *gate_activation(const struct model *model)
{
    const struct layers *layers = model->layers;
    const char *from = layers->gate.activation;
    const char *own =
        from ? cJSON_GetStringValue(model_member(model, from)) : NULL;
    if (!from || own)
        return own;
    return cJSON_GetStringValue(model_member(model, layers->activation));
}

static void add_gated(cJSON *array, const struct model *model)
{
    const struct gate *gate = &model->layers->gate;
    if (!gate->parameters ||
        (gate->flag && !cJSON_IsTrue(model_member(model, gate->flag))))
        return;
    bool is_first =
        gate->after && !cJSON_IsTrue(model_member(model, gate->after));
    char *eps = eps_text(model, gate->eps ? gate->eps : model->layers->eps),
         *group = group_text(model, gate), *text;
    const char *activation = gate_activation(model);
    if (asprintf(&text, "--eps %s%s%s%s%s%s%s", eps,
                 gate->parameters[0] ? " " : "", gate->parameters,
                 is_first ? " --gate_first true" : "", group,
                 activation ? " --gate_activation " : "",
                 activation ? activation : "") < 0)
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
        const cJSON *node = model_member(model, name);
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
    return layers->sum;
}

/* NULL where the file has not said it. To be freed. */
static char *scale_number(const struct model *model, const char *from)
{
    char name[64] = "", root[64] = "";
    int n = sscanf(from, "%63[^/]/sqrt(%63[^)])", name, root);
    const cJSON *a = model_member(model, name), *b = model_member(model, root);
    if (n < 1 || !cJSON_IsNumber(a) ||
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

/* " --x_scale 0.22", " --x_scale X_SCALE", or "". To be freed. */
static char *scale_text(const struct model *model, const char *from,
                        const char *name, const char *unknown)
{
    char *number = from ? scale_number(model, from) : NULL, *text;
    if (!from)
        text = strdup("");
    else if (asprintf(&text, " --%s %s", name, number ? number : unknown) < 0)
        text = NULL;
    free(number);
    return must_have(text);
}

/* Parameters of a sum; to be freed. */
static char *sum_parameters(const struct model *model, enum sum sum,
                            const struct scales *scales)
{
    static const char *const orders[] = {
        [SUM] = "",
        [ADDENDS_FIRST] = " --sum_order addends_first",
        [RESIDUAL_FIRST] = " --sum_order residual_first"};
    char *x = scale_text(model, scales->x, "x_scale", "X_SCALE"),
         *residual = scale_text(model, scales->residual, "residual_scale",
                                "RESIDUAL_SCALE"),
         *addend =
             scale_text(model, scales->addend, "addend_scale", "ADDEND_SCALE"),
         *all = scale_text(model, scales->sum, "sum_scale", "SUM_SCALE"), *text;
    if (asprintf(&text, " --sum_rounding type%s%s%s%s%s", x, residual, addend,
                 all, orders[sum]) < 0)
        text = NULL;
    free(x);
    free(residual);
    free(addend);
    free(all);
    return must_have(text);
}

static const char *outer_eps(const struct layers *layers)
{
    return layers->outer_eps ? layers->outer_eps : layers->eps;
}

static void add_one_sum(cJSON *array, const struct model *model,
                        const char *what, enum kind kind, const char *eps,
                        enum sum sum, const struct scales *scales)
{
    char *of_sum = sum_parameters(model, sum, scales),
         *heads = number_text(model, "heads", model->layers->streams), *more;
    if (asprintf(&more, "%s%s", of_sum, heads) < 0)
        more = NULL;
    must_have(more);
    free(of_sum);
    free(heads);
    add_norm(array, model, what,
             has_layer_norms(model) ? "add_layer_norm" : "add_rmsnorm", kind,
             eps, more);
    free(more);
}

static void add_sum(cJSON *array, const struct model *model)
{
    const struct layers *layers = model->layers;
    enum sum sum = sum_of(model);
    const char *what = sum == ADDENDS_FIRST || sum == RESIDUAL_FIRST
                           ? "residual and addend, and a norm of the sum"
                           : "residual, and a norm of the sum";
    if (sum == STREAMS) {
        add_other(array, "residual streams", "no operator");
        return;
    }
    if (layers->streams)
        add_other(array, "mix of the streams of a row", "no operator");
    if (sum == OTHER_SUM) {
        add_other(array, what, "not known");
        return;
    }
    add_one_sum(array, model, what, layers->kind, layers->eps, sum,
                &layers->scales);
    if (layers->has_end)
        add_one_sum(array, model,
                    "residual at the end of a layer, and a norm of the sum",
                    layers->kind, layers->eps, SUM, &layers->end);
    if (layers->outer)
        add_one_sum(array, model, "residual, and a norm outside layers",
                    layers->outer, outer_eps(layers), sum, &layers->scales);
}

static void add_norms(cJSON *array, const struct model *model)
{
    const struct layers *layers = model->layers;
    const char *op = norm_operator(model);
    const enum kind kind = layers->kind;
    char *streams = number_text(model, "heads", layers->streams);
    add_norm(array, model,
             kind == PLUS_ONE ? "norms, by T(1 + weight)" : "norms", op, kind,
             layers->eps, streams);
    free(streams);
    if (layers->outer)
        add_norm(array, model, "norms outside layers", op, layers->outer,
                 outer_eps(layers), "");
    if (layers->inner_eps)
        add_norm(array, model, "norms inside attention", op, kind,
                 layers->inner_eps, "");
    if (layers->index_eps)
        add_norm(array, model, "norms of the indexer", "layer_norm", LAYER,
                 layers->index_eps, "");
    if (layers->has_bare)
        add_norm(array, model, "norms without a weight", op, ONCE, layers->eps,
                 " --rounding scale");
    if (layers->merged) {
        char *heads = number_text(model, "heads", layers->merged), *more;
        if (asprintf(&more, " --rounding type%s", heads) < 0)
            more = NULL;
        add_norm(array, model, "norms of heads that become a row", "layer_norm",
                 LAYER, layers->eps, must_have(more));
        free(heads);
        free(more);
    }
    add_gated(array, model);
    if (layers->is_behind)
        add_norm(array, model, "norms behind a block, and the residual",
                 "rmsnorm_add", kind,
                 layers->behind_eps ? layers->behind_eps : layers->eps, "");
    add_sum(array, model);
}

/* What transformers calls them, and roped; which round each of their steps to
 * the type of x; and parameters that each layer has of its own. */
static const struct activation {
    const char *theirs, *ours;
    bool has_steps;
    const char *own;
} activations[] = {
    {"silu", "silu", false},
    {"swish", "silu", false},
    {"gelu", "gelu", false},
    {"gelu_pytorch_tanh", "gelu_tanh", false},
    {"gelu_new", "gelu_tanh", true},
    {"quick_gelu", "quick_gelu", true},
    {"relu", "relu", false},
    {"relu2", "relu2", false},
    {"sigmoid", "sigmoid", false},
    {"swiglu_oai", "swiglu_oai", true},
    {"gelu_fast", "gelu_fast", true},
    {"xielu", "xielu", true, " --alpha_p ALPHA_P --alpha_n ALPHA_N"},
};

/* Of a member of the file, "=value" or "member=value"; NULL: none of roped's,
 * or another value. */
static const struct activation *activation_of(const struct model *model,
                                              const char *from)
{
    char path[64];
    int n = (int)strcspn(from, "=");
    const char *wanted = from[n] ? from + n + 1 : NULL, *name = wanted;
    snprintf(path, sizeof path, "%.*s", n, from);
    if (n > 0)
        name = cJSON_GetStringValue(model_member(model, path));
    if (!name || (wanted && strcmp(name, wanted) != 0))
        return NULL;
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (strcmp(activations[i].theirs, name) == 0)
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
    const struct layers *layers = model->layers;
    enum mlp mlp = layers->mlp;
    const struct activation *activation =
        mlp == OTHER_MLP ? NULL : activation_of(model, layers->activation);
    const cJSON *one =
        layers->is_one ? model_member(model, layers->is_one) : NULL;
    char *text;
    if (!activation ||
        (layers->is_one && !(cJSON_IsNumber(one) && one->valuedouble == 1))) {
        add_other(array, what[mlp], "not known");
        return;
    }
    char *limit = number_text(model, "limit", layers->limit),
         *alpha = number_text(model, "alpha", layers->alpha);
    if (asprintf(&text, "--activation %s%s%s%s%s%s", activation->ours,
                 layout[mlp], limit, alpha,
                 activation->own ? activation->own : "",
                 activation->has_steps               ? " --rounding steps"
                 : mlp == GATED && !layers->is_exact ? " --rounding type"
                                                     : "") < 0)
        text = NULL;
    add_layer(array, what[mlp], "act_and_mul", must_have(text));
    if (layers->experts_limit) {
        char *more = number_text(model, "limit", layers->experts_limit), *all;
        if (asprintf(&all, "%s%s", text, more) < 0)
            all = NULL;
        add_layer(array, "middle of an expert's MLP", "act_and_mul",
                  must_have(all));
        free(more);
        free(all);
    }
    if (layers->has_gammas)
        add_other(array, "middle of a shared expert's MLP", "no operator");
    free(limit);
    free(alpha);
    free(text);
}

/* Where a norm's result is multiplied by what an MLP makes. */
static void add_norm_mlp(cJSON *array, const struct model *model)
{
    const char *from = model->layers->norm_activation;
    const struct activation *activation =
        from ? activation_of(model, from) : NULL;
    char *text;
    if (!activation)
        return;
    if (asprintf(&text, "--activation %s --gated false", activation->ours) < 0)
        text = NULL;
    add_layer(array, "middle of an MLP in a norm", "act_and_mul",
              must_have(text));
    free(text);
}

void model_add_layers(cJSON *document, const struct model *model)
{
    cJSON *array = cJSON_AddArrayToObject(document, "layers");
    if (model->layers)
        add_norms(array, model);
    else
        add_other(array, "norms", "not known");
    add_heads(array, model);
    if (model->layers) {
        add_mlp(array, model);
        add_norm_mlp(array, model);
    }
}
