/*
 * op.c - the operator table: look-ups, shape patterns, and the self-check
 * that runs before any request is served.
 */
#include "core/call_internal.h"
#include "core/name.h"

#include <stdio.h>
#include <string.h>

#define ROPED_OP(id) extern const struct roped_op roped_op_##id;
#include <roped/ops.def>
#undef ROPED_OP

static const struct roped_op *const table[ROPED_OP_COUNT] = {
#define ROPED_OP(id) [ROPED_OP_ID_##id] = &roped_op_##id,
#include <roped/ops.def>
#undef ROPED_OP
};

int roped_op_count(void)
{
    return ROPED_OP_COUNT;
}

const struct roped_op *roped_op_at(int index)
{
    return table[index];
}

const struct roped_op *roped_op_find(const char *name)
{
    for (int i = 0; i < ROPED_OP_COUNT; i++)
        if (name_is(table[i]->name, name))
            return table[i];
    return NULL;
}

int roped_op_index(const struct roped_op *op)
{
    for (int i = 0; i < ROPED_OP_COUNT; i++)
        if (table[i] == op)
            return i;
    return -1;
}

int roped_op_inputs(const struct roped_op *op)
{
    int n = 0;
    while (n < ROPED_MAX_INPUTS && op->in[n].name)
        n++;
    return n;
}

int roped_op_outputs(const struct roped_op *op)
{
    int n = 0;
    while (n < ROPED_MAX_OUTPUTS && op->out[n].name)
        n++;
    return n;
}

int roped_op_params(const struct roped_op *op)
{
    int n = 0;
    while (n < ROPED_MAX_PARAMS && op->param[n].name)
        n++;
    return n;
}

int roped_op_forms(const struct roped_op *op)
{
    int n = 0;
    while (n < ROPED_MAX_FORMS && op->form[n].name)
        n++;
    return n ? n : 1;
}

int roped_op_input(const struct roped_op *op, const char *name)
{
    for (int i = 0; i < ROPED_MAX_INPUTS && op->in[i].name; i++)
        if (name_is(op->in[i].name, name))
            return i;
    return -1;
}

int roped_op_output(const struct roped_op *op, const char *name)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS && op->out[i].name; i++)
        if (name_is(op->out[i].name, name))
            return i;
    return -1;
}

int roped_op_param(const struct roped_op *op, const char *name)
{
    for (int i = 0; i < ROPED_MAX_PARAMS && op->param[i].name; i++)
        if (name_is(op->param[i].name, name))
            return i;
    return -1;
}

bool op_numbers_tokens(const struct roped_op *op, const char *symbol)
{
    const char *at = op->tokens;
    size_t length = strlen(symbol);
    while (at && length &&
           (strncmp(at, symbol, length) != 0 ||
            (at[length] != ' ' && at[length] != '\0'))) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at && length;
}

int roped_op_shared(const struct roped_op *op, int output)
{
    const char *input = op->out[output].in_place;
    return input ? roped_op_input(op, input) : -1;
}

int roped_op_updates(const struct roped_op *op, int input)
{
    if (!(op->in[input].flags & ROPED_UPDATED))
        return -1;
    return roped_op_output(op, op->in[input].name);
}

static int type_index(const struct roped_op *op, const char *name)
{
    for (int i = 0; i < ROPED_MAX_TYPES && op->type[i].name; i++)
        if (name_is(op->type[i].name, name))
            return i;
    return -1;
}

uint32_t roped_op_types(const struct roped_op *op,
                        const struct roped_port *port)
{
    int i = type_index(op, port->type);
    return i < 0 ? 0 : op->type[i].set;
}

/* -------------------------------------------------------- shape patterns */

static enum roped_status bad_pattern(const struct roped_port *port,
                                     const char *why, struct roped_error *err)
{
    return roped_fail(err, ROPED_INTERNAL, "port '%s': shape '%s' %s",
                      port->name, port->shape, why);
}

static const char *alternative(const char *shape, int form)
{
    if (!strchr(shape, '|'))
        return shape;
    for (; form > 0 && shape; form--) {
        shape = strchr(shape, '|');
        shape = shape ? shape + 1 : NULL;
    }
    return shape;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Copies the word at *text and moves *text behind it; false: none, too long. */
static bool read_word(const char **text, char *word, size_t bytes)
{
    size_t length = 0;
    for (; is_word(**text); (*text)++) {
        if (length + 1 >= bytes)
            return false;
        word[length++] = **text;
    }
    return length > 0;
}

/* Reads digits at *text and moves *text behind them. */
static int64_t read_size(const char **text)
{
    int64_t size = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        size = size * 10 + (**text - '0');
    return size;
}

/* Reads what follows the name of a dim: '/param', '//param' or '^4'. */
static bool read_suffix(const char **text, struct roped_dim_pattern *dim)
{
    if (**text == '^') {
        (*text)++;
        dim->unit = read_size(text);
        return dim->unit > 0;
    }
    if (**text != '/')
        return true;
    (*text)++;
    dim->is_kept = **text == '/';
    *text += dim->is_kept;
    return read_word(text, dim->by, sizeof dim->by);
}

/* Reads one dim at *text into *dim and moves *text behind it. */
static bool read_dim(const char **text, struct roped_dim_pattern *dim)
{
    const char *at = *text;
    memset(dim, 0, sizeof *dim);
    if (strncmp(at, "...", 3) == 0) {
        dim->is_pack = true;
        at += 3;
    }
    if (!dim->is_pack)
        dim->size = read_size(&at);
    bool is_fixed = at != *text && !dim->is_pack;
    bool is_named = read_word(&at, dim->name, sizeof dim->name);
    if (is_named && !dim->is_pack)
        is_named = read_suffix(&at, dim);
    *text = at;
    return is_named || (is_fixed && !is_word(*at));
}

enum roped_status roped_port_pattern(const struct roped_port *port, int form,
                                     struct roped_shape_pattern *out,
                                     struct roped_error *err)
{
    const char *text = alternative(port->shape, form);
    out->count = 0;
    if (!text)
        return bad_pattern(port, "has no alternative for a form", err);
    for (;;) {
        while (*text == ' ')
            text++;
        if (*text == '\0' || *text == '|')
            return ROPED_OK;
        if (out->count == ROPED_MAX_RANK)
            return bad_pattern(port, "has too many dims", err);
        if (!read_dim(&text, &out->dim[out->count++]))
            return bad_pattern(port, "has a bad dim", err);
    }
}

int roped_param_ints(const struct roped_param *param)
{
    return param->shape ? ROPED_MAX_RANK : 4;
}

int roped_param_choices(const struct roped_param *param)
{
    int n = 1;
    if (!param->choices)
        return 0;
    for (const char *at = param->choices; *at; at++)
        n += *at == '|';
    return n;
}

const char *roped_param_choice(const struct roped_param *param, int index,
                               char *text, size_t text_bytes)
{
    const char *at = param->choices;
    for (; index > 0 && at; index--) {
        at = strchr(at, '|');
        at = at ? at + 1 : NULL;
    }
    int length = at ? (int)strcspn(at, "|") : 0;
    snprintf(text, text_bytes, "%.*s", length, at ? at : "");
    return text;
}

/* ------------------------------------------------------------ self-check */

struct checked {
    const struct roped_op *op;
    char bound[ROPED_MAX_DIMS][16];
    int n_bound;
    bool type_is_bound[ROPED_MAX_TYPES];
};

static enum roped_status defect(const struct roped_op *op, const char *what,
                                const char *name, struct roped_error *err)
{
    return roped_fail(err, ROPED_INTERNAL, "operator '%s': %s '%s'", op->name,
                      what, name);
}

static bool is_bound(const struct checked *checked, const char *name)
{
    for (int i = 0; i < checked->n_bound; i++)
        if (strcmp(checked->bound[i], name) == 0)
            return true;
    return false;
}

static enum roped_status check_input(struct checked *checked,
                                     const struct roped_port *port, int form,
                                     struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    enum roped_status status = roped_port_pattern(port, form, &pattern, err);
    if (status)
        return status;
    for (int i = 0; i < pattern.count; i++) {
        const char *name = pattern.dim[i].name;
        if (pattern.dim[i].by[0] || pattern.dim[i].unit)
            return defect(checked->op, "a quotient in the shape of input",
                          port->name, err);
        if (!name[0] || is_bound(checked, name))
            continue;
        if (checked->n_bound == ROPED_MAX_DIMS)
            return defect(checked->op, "too many dims at", port->name, err);
        memcpy(checked->bound[checked->n_bound++], name,
               sizeof pattern.dim[i].name);
    }
    return ROPED_OK;
}

/* Tokens are numbered by the first dims of their tensor, and are not alone
 * in it. */
static enum roped_status check_strided(const struct roped_op *op,
                                       const struct roped_port *port, int form,
                                       struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    enum roped_status status = roped_port_pattern(port, form, &pattern, err);
    if (status || !(port->flags & ROPED_STRIDED))
        return status;
    if (pattern.count < 2 || !op_numbers_tokens(op, pattern.dim[0].name) ||
        op_numbers_tokens(op, pattern.dim[pattern.count - 1].name))
        return defect(op, "a step without tokens in", port->name, err);
    return ROPED_OK;
}

static bool is_divisor(const struct roped_op *op, const char *name)
{
    int i = roped_op_param(op, name);
    return i >= 0 && op->param[i].kind == ROPED_PARAM_INT &&
           !(op->param[i].flags & ROPED_NO_DEFAULT) && op->param[i].min >= 0 &&
           op->param[i].max > 0;
}

static bool can_require(const struct roped_op *op, const char *name)
{
    int i = roped_op_param(op, name);
    return roped_op_input(op, name) >= 0 ||
           (i >= 0 && op->param[i].kind == ROPED_PARAM_BOOL);
}

/* A parameter states the shape of an input that may be absent. */
static enum roped_status check_shape_param(const struct checked *checked,
                                           const struct roped_param *param,
                                           struct roped_error *err)
{
    if (!param->shape)
        return ROPED_OK;
    if (param->kind != ROPED_PARAM_INTS)
        return defect(checked->op, "a shape but no integers in parameter",
                      param->name, err);
    if (!is_bound(checked, param->shape))
        return defect(checked->op, "no input has the shape of parameter",
                      param->name, err);
    return ROPED_OK;
}

static enum roped_status check_output(const struct checked *checked,
                                      const struct roped_port *port, int form,
                                      struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    enum roped_status status = roped_port_pattern(port, form, &pattern, err);
    if (status)
        return status;
    for (int i = 0; i < pattern.count; i++) {
        const struct roped_dim_pattern *dim = &pattern.dim[i];
        if (dim->name[0] && !is_bound(checked, dim->name))
            return defect(checked->op, "no input binds a dim of output",
                          port->name, err);
        if (dim->by[0] && !is_divisor(checked->op, dim->by))
            return defect(checked->op, "no divisor for a dim of output",
                          port->name, err);
    }
    if (port->requires_ && !can_require(checked->op, port->requires_))
        return defect(checked->op, "nothing of the name required by output",
                      port->name, err);
    if (port->in_place && roped_op_input(checked->op, port->in_place) < 0)
        return defect(checked->op, "unknown in-place input of output",
                      port->name, err);
    return ROPED_OK;
}

static enum roped_status check_form(const struct roped_op *op, int form,
                                    struct roped_error *err)
{
    struct checked checked = {.op = op};
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_op_inputs(op) && !status; i++) {
        status = check_input(&checked, &op->in[i], form, err);
        if (!status)
            status = check_strided(op, &op->in[i], form, err);
    }
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        status = check_shape_param(&checked, &op->param[i], err);
    for (int i = 0; i < roped_op_outputs(op) && !status; i++) {
        status = check_output(&checked, &op->out[i], form, err);
        if (!status)
            status = check_strided(op, &op->out[i], form, err);
    }
    return status;
}

static size_t param_bytes(const struct roped_param *param)
{
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
    case ROPED_PARAM_INT:
        return 8;
    case ROPED_PARAM_BOOL:
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        return 4;
    case ROPED_PARAM_INTS:
        return sizeof(struct roped_ints);
    }
    return 0;
}

static enum roped_status check_param(const struct roped_op *op, int index,
                                     struct roped_error *err)
{
    const struct roped_param *param = &op->param[index];
    bool has_range = param->min != 0 || param->max != 0;
    bool has_choices =
        param->kind == ROPED_PARAM_CHOICE || param->kind == ROPED_PARAM_DTYPE;
    if (roped_op_param(op, param->name) != index)
        return defect(op, "two parameters", param->name, err);
    if (param->offset + param_bytes(param) > op->params_bytes)
        return defect(op, "outside its struct: parameter", param->name, err);
    if (!param->doc || !param->doc[0])
        return defect(op, "no doc for parameter", param->name, err);
    if (has_choices != (param->choices != NULL))
        return defect(op, "choices missing or unwanted for parameter",
                      param->name, err);
    if (has_choices &&
        (param->init < 0 || param->init >= roped_param_choices(param)))
        return defect(op, "default is no choice of parameter", param->name,
                      err);
    if (has_range && !(param->flags & ROPED_NO_DEFAULT) &&
        (param->init < param->min || param->init > param->max))
        return defect(op, "default outside the range of parameter", param->name,
                      err);
    if (param->kind == ROPED_PARAM_DTYPE &&
        (!param->type || type_index(op, param->type) < 0))
        return defect(op, "no type variable for parameter", param->name, err);
    return ROPED_OK;
}

static enum roped_status check_port(const struct roped_op *op,
                                    const struct roped_port *port,
                                    struct roped_error *err)
{
    if (strlen(port->name) >= ROPED_NAME_BYTES)
        return defect(op, "name too long: port", port->name, err);
    if (type_index(op, port->type) < 0)
        return defect(op, "unknown type of port", port->name, err);
    if (!port->doc || !port->doc[0])
        return defect(op, "no doc for port", port->name, err);
    return ROPED_OK;
}

static enum roped_status check_types(const struct roped_op *op,
                                     struct roped_error *err)
{
    for (int o = 0; o < roped_op_outputs(op); o++) {
        uint32_t set = roped_op_types(op, &op->out[o]);
        bool has_source = roped_dtype_only(set) != ROPED_NO_DTYPE;
        for (int i = 0; i < roped_op_inputs(op); i++)
            has_source |= strcmp(op->in[i].type, op->out[o].type) == 0;
        for (int i = 0; i < roped_op_params(op); i++)
            has_source |= op->param[i].type &&
                          strcmp(op->param[i].type, op->out[o].type) == 0;
        if (!has_source)
            return defect(op, "nothing binds the type of output",
                          op->out[o].name, err);
    }
    return ROPED_OK;
}

/* An updated input comes back as the output that shares its memory. */
static enum roped_status check_updated(const struct roped_op *op, int input,
                                       struct roped_error *err)
{
    const struct roped_port *port = &op->in[input];
    if (!(port->flags & ROPED_UPDATED))
        return ROPED_OK;
    if (port->flags & ROPED_INDEX)
        return defect(op, "both index and updated: input", port->name, err);
    int output = roped_op_updates(op, input);
    if (output < 0)
        return defect(op, "no output for updated input", port->name, err);
    const struct roped_port *out = &op->out[output];
    bool is_optional = (port->flags & ROPED_OPTIONAL) != 0;
    bool is_tied = out->requires_ && strcmp(out->requires_, port->name) == 0;
    if (strcmp(out->shape, port->shape) != 0 ||
        strcmp(out->type, port->type) != 0 || !out->in_place ||
        strcmp(out->in_place, port->name) != 0 ||
        (is_optional ? !is_tied : out->requires_ != NULL))
        return defect(op, "not the same tensor: output and updated input",
                      port->name, err);
    return ROPED_OK;
}

enum roped_status roped_op_check(const struct roped_op *op,
                                 struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (!op->summary || !op->summary[0] || !op->since || !op->plan)
        return defect(op, "no summary, since or plan in", op->name, err);
    if (op->rule && (!op->rule_doc || !op->rule_doc[0]))
        return defect(op, "a rule without its sentence in", op->name, err);
    if (op->params_bytes > ROPED_PARAMS_BYTES ||
        op->plan_bytes > ROPED_PLAN_BYTES)
        return defect(op, "parameters or plan too large in", op->name, err);
    for (int i = 0; i < ROPED_MAX_TYPES && op->type[i].name && !status; i++)
        if (type_index(op, op->type[i].name) != i)
            status = defect(op, "two types", op->type[i].name, err);
    for (int i = 0; i < roped_op_inputs(op) && !status; i++) {
        status = check_port(op, &op->in[i], err);
        if (!status && roped_op_input(op, op->in[i].name) != i)
            status = defect(op, "two inputs", op->in[i].name, err);
        if (!status)
            status = check_updated(op, i, err);
    }
    for (int i = 0; i < roped_op_outputs(op) && !status; i++) {
        status = check_port(op, &op->out[i], err);
        if (!status && roped_op_output(op, op->out[i].name) != i)
            status = defect(op, "two outputs", op->out[i].name, err);
    }
    for (int i = 0; i < roped_op_forms(op) && !status; i++)
        status = check_form(op, i, err);
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        status = check_param(op, i, err);
    return status ? status : check_types(op, err);
}

enum roped_status roped_op_check_table(struct roped_error *err)
{
    for (int i = 0; i < ROPED_OP_COUNT; i++) {
        if (roped_op_find(table[i]->name) != table[i])
            return defect(table[i], "two operators", table[i]->name, err);
        enum roped_status status = roped_op_check(table[i], err);
        if (status)
            return status;
    }
    return ROPED_OK;
}
