/*
 * op.c - the operator table, and look-ups in descriptors.
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

uint32_t roped_op_needed(const struct roped_op *op)
{
    uint32_t needed = 0;
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (!(op->in[i].flags & ROPED_OPTIONAL))
            needed |= ROPED_INPUT(i);
    return needed ? needed : ROPED_INPUT(0);
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

int roped_op_givens(const struct roped_op *op)
{
    int n = 0;
    while (n < ROPED_MAX_GIVEN &&
           (op->given[n].all | op->given[n].none | op->given[n].together |
                op->given[n].one_of ||
            op->given[n].needs))
        n++;
    return n;
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

bool op_lists(const char *list, const char *symbol)
{
    while (list && *list && *symbol) {
        size_t i = 0;
        while (symbol[i] && list[i] == symbol[i])
            i++;
        if (!symbol[i] && (list[i] == ' ' || !list[i]))
            return true;
        while (list[i] && list[i] != ' ')
            i++;
        list += i + (list[i] == ' ');
    }
    return false;
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

int op_type(const struct roped_op *op, const char *name)
{
    for (int i = 0; i < ROPED_MAX_TYPES && op->type[i].name; i++)
        if (name_is(op->type[i].name, name))
            return i;
    return -1;
}

uint32_t roped_op_types(const struct roped_op *op,
                        const struct roped_port *port)
{
    int i = op_type(op, port->type);
    return i < 0 ? 0 : op->type[i].set;
}

/* ---------------------------------------------------------------- choices */

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
    size_t length = at ? strcspn(at, "|") : 0;
    length = length < text_bytes ? length : text_bytes - 1;
    if (length)
        memcpy(text, at, length);
    text[length] = '\0';
    return text;
}

enum roped_status roped_op_check_table(struct roped_error *err)
{
    for (int i = 0; i < ROPED_OP_COUNT; i++) {
        if (roped_op_find(table[i]->name) != table[i])
            return roped_fail(err, ROPED_INTERNAL, "two operators '%s'",
                              table[i]->name);
        enum roped_status status = roped_op_check(table[i], err);
        if (status)
            return status;
    }
    return ROPED_OK;
}
