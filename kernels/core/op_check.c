/*
 * op_check.c - the self-check of descriptors, which runs before any request is
 * served: what a descriptor says can be understood, and says enough.
 */
#include "core/call_internal.h"

#include <stdio.h>
#include <string.h>

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

static enum roped_status bind_symbol(struct checked *checked, const char *name,
                                     const char *at, struct roped_error *err)
{
    if (!name[0] || is_bound(checked, name))
        return ROPED_OK;
    if (checked->n_bound == ROPED_MAX_DIMS)
        return defect(checked->op, "too many dims at", at, err);
    snprintf(checked->bound[checked->n_bound++], sizeof checked->bound[0], "%s",
             name);
    return ROPED_OK;
}

/* May one divide by this parameter, 0 meaning that one does not? */
static bool is_divisor(const struct roped_op *op, const char *name)
{
    int i = roped_op_param(op, name);
    return i >= 0 && op->param[i].kind == ROPED_PARAM_INT &&
           !(op->param[i].flags & ROPED_NO_DEFAULT) && op->param[i].min >= 0 &&
           op->param[i].max > 0;
}

/* Steps are taken with numbers, symbols and parameters that there are. */
static enum roped_status check_steps(const struct checked *checked,
                                     const struct roped_dim_pattern *dim,
                                     const char *port, struct roped_error *err)
{
    for (int i = 0; i < dim->n_steps; i++) {
        const struct roped_dim_step *step = &dim->step[i];
        if (step->number > 0)
            continue;
        if (strchr("/^", step->sign) ? !is_divisor(checked->op, step->name)
                                     : !is_bound(checked, step->name))
            return defect(checked->op,
                          strchr("/^", step->sign)
                              ? "no divisor for a dim of"
                              : "nothing binds a step of a dim of",
                          port, err);
    }
    return ROPED_OK;
}

/* A dim of an input says what its symbol is, where nothing before it does. A
 * sum may count what a later input has. */
static enum roped_status check_input(struct checked *checked,
                                     const struct roped_port *port,
                                     const struct roped_shape_pattern *pattern,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < pattern->count && !status; i++) {
        const struct roped_dim_pattern *dim = &pattern->dim[i];
        bool was_bound = is_bound(checked, dim->name);
        for (int j = 0; j < dim->n_steps && !status; j++) {
            if (dim->step[j].sign == '^' && !was_bound)
                return defect(checked->op, "no way back from a dim of input",
                              port->name, err);
            if (dim->step[j].sign == '+')
                status =
                    bind_symbol(checked, dim->step[j].name, port->name, err);
        }
        if (!status)
            status = bind_symbol(checked, dim->name, port->name, err);
        if (!status)
            status = check_steps(checked, dim, port->name, err);
    }
    return status;
}

/* Tokens are numbered by the first dims of their tensor, and are not alone
 * in it. */
static enum roped_status
check_strided(const struct roped_op *op, const struct roped_port *port,
              const struct roped_shape_pattern *pattern,
              struct roped_error *err)
{
    if (!(port->flags & ROPED_STRIDED))
        return ROPED_OK;
    if (pattern->count < 2 || !op_lists(op->tokens, pattern->dim[0].name) ||
        op_lists(op->tokens, pattern->dim[pattern->count - 1].name))
        return defect(op, "a stride without tokens in", port->name, err);
    return ROPED_OK;
}

static bool can_require(const struct roped_op *op, const char *name)
{
    int i = roped_op_param(op, name);
    return roped_op_input(op, name) >= 0 ||
           (i >= 0 && op->param[i].kind == ROPED_PARAM_BOOL);
}

/* A parameter states the shape of an input that may be absent, or a dim. */
static enum roped_status check_shape_param(const struct checked *checked,
                                           const struct roped_param *param,
                                           struct roped_error *err)
{
    if (!param->shape)
        return ROPED_OK;
    if (param->kind != ROPED_PARAM_INTS && param->kind != ROPED_PARAM_INT)
        return defect(checked->op, "a shape but no integers in parameter",
                      param->name, err);
    if (!is_bound(checked, param->shape))
        return defect(checked->op, "no input has the shape of parameter",
                      param->name, err);
    if (param->otherwise && !is_bound(checked, param->otherwise))
        return defect(checked->op, "no input has the other dim of parameter",
                      param->name, err);
    return ROPED_OK;
}

static enum roped_status check_output(struct checked *checked,
                                      const struct roped_port *port,
                                      const struct roped_shape_pattern *pattern,
                                      struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < pattern->count && !status; i++) {
        const struct roped_dim_pattern *dim = &pattern->dim[i];
        if (dim->name[0] && !is_bound(checked, dim->name))
            return defect(checked->op, "no input binds a dim of output",
                          port->name, err);
        status = check_steps(checked, dim, port->name, err);
    }
    return status;
}

/* Is there a form of this name; which? -1: there is none. */
static int form_index(const struct roped_op *op, const char *name)
{
    int i = roped_op_forms(op) - 1;
    while (i >= 0 && (!op->form[i].name || strcmp(op->form[i].name, name)))
        i--;
    return i;
}

static bool is_known_item(const struct roped_op *op,
                          const struct roped_condition *item)
{
    char value[ROPED_NAME_BYTES];
    const char *values = item->values;
    bool is_form = strcmp(item->name, "form") == 0;
    int param = roped_op_param(op, item->name), n = 0;
    if (!values)
        return roped_op_input(op, item->name) >= 0;
    for (; roped_condition_value(&values, value, sizeof value); n++)
        if (is_form ? form_index(op, value) < 0
                    : param < 0 || !param_takes(&op->param[param], value))
            return false;
    return n > 0;
}

static bool is_known_condition(const struct roped_op *op, const char *text)
{
    struct roped_condition item;
    int n = 0;
    for (; roped_condition_next(&text, &item); n++)
        if (!is_known_item(op, &item))
            return false;
    return n > 0;
}

/* The forms for which a condition asks for nothing else. */
static uint32_t covered_forms(const struct roped_op *op, const char *text)
{
    struct roped_condition item, second;
    char value[ROPED_NAME_BYTES];
    uint32_t forms = 0;
    if (!roped_condition_next(&text, &item) || strcmp(item.name, "form") ||
        !item.values || roped_condition_next(&text, &second))
        return 0;
    while (roped_condition_value(&item.values, value, sizeof value))
        forms |= 1u << form_index(op, value);
    return forms;
}

/* Conditions can be understood, and there is an alternative for every call: a
 * last one without any, or for each form one that asks for that form alone. */
static enum roped_status check_conditions(const struct roped_op *op,
                                          const struct roped_port *port,
                                          struct roped_error *err)
{
    int n = roped_port_alternatives(port), n_free = 0;
    uint32_t forms = 0;
    for (int i = 0; i < n && strchr(port->shape, '['); i++) {
        const char *text = roped_port_condition(port, i);
        n_free += text[0] == '\0';
        if (text[0] ? n_free > 0 : i < n - 1)
            return defect(op, "a condition too late in the shape of",
                          port->name, err);
        if (text[0] && !is_known_condition(op, text))
            return defect(op, "an unknown condition in the shape of",
                          port->name, err);
        forms |= covered_forms(op, text);
    }
    if (roped_port_is_guarded(port) && n_free == 0 &&
        forms != (1u << roped_op_forms(op)) - 1)
        return defect(op, "no last alternative without conditions in",
                      port->name, err);
    return ROPED_OK;
}

/* What an index tensor holds can be understood. */
static enum roped_status check_holds(const struct roped_op *op,
                                     const struct roped_port *port,
                                     struct roped_error *err)
{
    struct roped_holds holds;
    enum roped_status status = roped_port_holds(port, &holds, err);
    if (!status && port->flags & ROPED_PLANNED && !(port->flags & ROPED_INDEX))
        return defect(op, "planned values that nobody reads in", port->name,
                      err);
    if (status || !port->holds)
        return status;
    bool is_number = holds.kind == ROPED_HOLDS_NUMBERS;
    uint32_t wanted = is_number ? ROPED_SET(ROPED_F32) : ROPED_INDEXES;
    if (!(port->flags & ROPED_INDEX) || roped_op_types(op, port) & ~wanted)
        return defect(op, "values that nobody reads in", port->name, err);
    if ((holds.up_to[0] && roped_op_input(op, holds.up_to) < 0) ||
        (holds.reader[0] && roped_op_input(op, holds.reader) < 0))
        return defect(op, "unknown input in what there is in", port->name, err);
    return ROPED_OK;
}

/* At most one input waits for another one's values. */
static enum roped_status check_late(const struct roped_op *op,
                                    struct roped_error *err)
{
    struct roped_holds holds;
    int n = 0;
    for (int i = 0; i < roped_op_inputs(op); i++) {
        enum roped_status status = roped_port_holds(&op->in[i], &holds, err);
        if (status)
            return status;
        n += holds.up_to[0] != '\0';
    }
    return n <= 1 ? ROPED_OK
                  : defect(op, "two inputs wait for others in", op->name, err);
}

/* Statements are about inputs, parameters and values that there are. */
static enum roped_status check_given(const struct roped_op *op,
                                     const struct roped_given *given,
                                     struct roped_error *err)
{
    int n = roped_op_inputs(op);
    uint32_t inputs = given->with | given->without | given->all | given->none |
                      given->together | given->one_of;
    if (n < 32 && inputs >> n)
        return defect(op, "a statement about no input of", op->name, err);
    if (given->with_param && roped_op_param(op, given->with_param) < 0)
        return defect(op, "a statement about no parameter", given->with_param,
                      err);
    if ((given->when && !is_known_condition(op, given->when)) ||
        (given->needs &&
         (!given->with_param || !is_known_condition(op, given->needs))))
        return defect(op, "an unknown condition in a statement of", op->name,
                      err);
    return ROPED_OK;
}

typedef enum roped_status pattern_fn(struct checked *checked,
                                     const struct roped_port *port,
                                     const struct roped_shape_pattern *pattern,
                                     struct roped_error *err);

/* Calls check with each alternative of a port that a form may have. */
static enum roped_status check_alternatives(struct checked *checked,
                                            const struct roped_port *port,
                                            int form, pattern_fn *check,
                                            struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    bool is_guarded = roped_port_is_guarded(port);
    int n = is_guarded ? roped_port_alternatives(port) : 1;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < n && !status; i++) {
        status = roped_port_pattern(port, is_guarded ? i : form, &pattern, err);
        if (!status)
            status = check(checked, port, &pattern, err);
        if (!status)
            status = check_strided(checked->op, port, &pattern, err);
    }
    return status;
}

static enum roped_status check_form(const struct roped_op *op, int form,
                                    struct roped_error *err)
{
    struct checked checked = {.op = op};
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        if (op->param[i].shape && op->param[i].kind == ROPED_PARAM_INT)
            status = bind_symbol(&checked, op->param[i].shape,
                                 op->param[i].name, err);
    for (int i = 0; i < roped_op_inputs(op) && !status; i++)
        status =
            check_alternatives(&checked, &op->in[i], form, check_input, err);
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        status = check_shape_param(&checked, &op->param[i], err);
    for (int i = 0; i < roped_op_outputs(op) && !status; i++)
        status =
            check_alternatives(&checked, &op->out[i], form, check_output, err);
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
        (!param->type || op_type(op, param->type) < 0))
        return defect(op, "no type variable for parameter", param->name, err);
    return ROPED_OK;
}

static enum roped_status check_port(const struct roped_op *op,
                                    const struct roped_port *port,
                                    struct roped_error *err)
{
    if (strlen(port->name) >= ROPED_NAME_BYTES)
        return defect(op, "name too long: port", port->name, err);
    if (op_type(op, port->type) < 0)
        return defect(op, "unknown type of port", port->name, err);
    if (!port->doc || !port->doc[0])
        return defect(op, "no doc for port", port->name, err);
    if (port->requires_ && !can_require(op, port->requires_))
        return defect(op, "nothing of the name required by output", port->name,
                      err);
    if (port->in_place && roped_op_input(op, port->in_place) < 0)
        return defect(op, "unknown in-place input of output", port->name, err);
    enum roped_status status = check_conditions(op, port, err);
    return status ? status : check_holds(op, port, err);
}

/* A type that a parameter chooses, or that depends on another. */
static enum roped_status check_type(const struct roped_op *op, int index,
                                    struct roped_error *err)
{
    const struct roped_type *type = &op->type[index];
    int param = type->by ? roped_op_param(op, type->by) : -1;
    if (op_type(op, type->name) != index)
        return defect(op, "two types", type->name, err);
    if (type->beside &&
        (op_type(op, type->beside) < 0 || op_type(op, type->beside) == index))
        return defect(op, "no other type beside type", type->name, err);
    if (!type->by)
        return ROPED_OK;
    if (param < 0 || op->param[param].kind != ROPED_PARAM_CHOICE)
        return defect(op, "no parameter chooses type", type->name, err);
    int n = roped_param_choices(&op->param[param]);
    for (int i = 0; i < n; i++)
        if (!(ROPED_SET(type_of_choice(type, i)) & type->set))
            return defect(op, "not of its set: a choice of type", type->name,
                          err);
    return type_of_choice(type, n) == ROPED_NO_DTYPE
               ? ROPED_OK
               : defect(op, "more types than choices in type", type->name, err);
}

static enum roped_status check_output_types(const struct roped_op *op,
                                            struct roped_error *err)
{
    for (int o = 0; o < roped_op_outputs(op); o++) {
        const char *name = op->out[o].type;
        uint32_t set = roped_op_types(op, &op->out[o]);
        bool has_source = roped_dtype_only(set) != ROPED_NO_DTYPE ||
                          op->type[op_type(op, name)].by;
        for (int i = 0; i < roped_op_inputs(op); i++)
            has_source |= strcmp(op->in[i].type, name) == 0;
        for (int i = 0; i < roped_op_params(op); i++)
            has_source |=
                op->param[i].type && strcmp(op->param[i].type, name) == 0;
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
        status = check_type(op, i, err);
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
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        status = check_param(op, i, err);
    if (!status)
        status = check_late(op, err);
    for (int i = 0; i < roped_op_givens(op) && !status; i++)
        status = check_given(op, &op->given[i], err);
    if (!status)
        status = check_output_types(op, err);
    for (int i = 0; i < roped_op_forms(op) && !status; i++) {
        if (op->form[i].name && op->form[i].param &&
            roped_op_param(op, op->form[i].param) < 0)
            return defect(op, "no parameter of form", op->form[i].name, err);
        status = check_form(op, i, err);
    }
    return status;
}
