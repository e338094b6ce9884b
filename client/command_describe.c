/*
 * command_describe.c - ops and describe, from the operator table built in.
 */
#include "ropectl.h"

#include <stdlib.h>

static void add_port(cJSON *array, const struct roped_op *op,
                     const struct roped_port *port)
{
    cJSON *object = add_row(array);
    uint32_t set = roped_op_types(op, port);
    cJSON_AddStringToObject(object, "name", port->name);
    cJSON_AddStringToObject(object, "shape", port->shape);
    cJSON *types = cJSON_AddArrayToObject(object, "dtypes");
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++)
        if (set & ROPED_SET(i))
            cJSON_AddItemToArray(types, cJSON_CreateString(roped_dtype_name(
                                            (enum roped_dtype)i)));
    cJSON_AddBoolToObject(object, "optional", port->flags & ROPED_OPTIONAL);
    cJSON_AddBoolToObject(object, "updated", port->flags & ROPED_UPDATED);
    cJSON_AddBoolToObject(object, "strided", port->flags & ROPED_STRIDED);
    if (port->in_place) /* an output: whose very place it may have */
        cJSON_AddStringToObject(object, "in_place", port->in_place);
    if (port->holds)
        cJSON_AddStringToObject(object, "holds", port->holds);
    cJSON_AddStringToObject(object, "doc", port->doc);
}

static void add_choices(cJSON *object, const struct roped_param *param)
{
    char text[32];
    cJSON *choices = cJSON_AddArrayToObject(object, "choices");
    for (int i = 0; i < roped_param_choices(param); i++)
        cJSON_AddItemToArray(choices, cJSON_CreateString(roped_param_choice(
                                          param, i, text, sizeof text)));
    cJSON_AddStringToObject(
        object, "default",
        roped_param_choice(param, (int)param->init, text, sizeof text));
}

static void add_param(cJSON *array, const struct roped_param *param)
{
    static const char *const kinds[] = {
        [ROPED_PARAM_FLOAT] = "float", [ROPED_PARAM_INT] = "int",
        [ROPED_PARAM_BOOL] = "bool",   [ROPED_PARAM_CHOICE] = "choice",
        [ROPED_PARAM_DTYPE] = "dtype", [ROPED_PARAM_INTS] = "ints"};
    cJSON *object = add_row(array);
    cJSON_AddStringToObject(object, "name", param->name);
    cJSON_AddStringToObject(object, "kind", kinds[param->kind]);
    if (param->choices)
        add_choices(object, param);
    else if (param->flags & ROPED_NO_DEFAULT || param->kind == ROPED_PARAM_INTS)
        cJSON_AddNullToObject(object, "default");
    else if (param->kind == ROPED_PARAM_BOOL)
        cJSON_AddBoolToObject(object, "default", param->init != 0);
    else
        cJSON_AddNumberToObject(object, "default", param->init);
    if (param->min != 0 || param->max != 0) {
        cJSON_AddNumberToObject(
            object,
            param->flags & ROPED_ABOVE_MIN ? "exclusive_minimum" : "minimum",
            param->min);
        cJSON_AddNumberToObject(object, "maximum", param->max);
    }
    cJSON_AddStringToObject(object, "doc", param->doc);
}

static cJSON *describe(const struct roped_op *op)
{
    char rule[ROPED_RULE_BYTES];
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "name", op->name);
    cJSON_AddStringToObject(document, "since", op->since);
    cJSON_AddStringToObject(document, "summary", op->summary);
    cJSON *forms = cJSON_AddArrayToObject(document, "forms");
    for (int i = 0; i < ROPED_MAX_FORMS && op->form[i].name; i++) {
        cJSON *form = add_row(forms);
        cJSON_AddStringToObject(form, "name", op->form[i].name);
        cJSON_AddStringToObject(form, "doc", op->form[i].doc);
    }
    cJSON *inputs = cJSON_AddArrayToObject(document, "inputs");
    for (int i = 0; i < roped_op_inputs(op); i++)
        add_port(inputs, op, &op->in[i]);
    cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
    for (int i = 0; i < roped_op_outputs(op); i++)
        add_port(outputs, op, &op->out[i]);
    cJSON *params = cJSON_AddArrayToObject(document, "parameters");
    for (int i = 0; i < roped_op_params(op); i++)
        add_param(params, &op->param[i]);
    if (roped_op_rule_text(op, rule, sizeof rule)[0])
        cJSON_AddStringToObject(document, "rule", rule);
    return document;
}

int command_ops(const struct ropectl *ctl, int argc, char **argv)
{
    if (argc != 1)
        return usage("ops", "no arguments, found '%s'", argv[1]);
    cJSON *document = cJSON_CreateObject();
    cJSON *operators = cJSON_AddArrayToObject(document, "operators");
    for (int i = 0; i < roped_op_count(); i++) {
        cJSON *op = add_row(operators);
        cJSON_AddStringToObject(op, "name", roped_op_at(i)->name);
        cJSON_AddStringToObject(op, "summary", roped_op_at(i)->summary);
    }
    return print_document(ctl, document);
}

int command_describe(const struct ropectl *ctl, int argc, char **argv)
{
    if (argc != 2)
        return usage("describe", "%d operators, expected one", argc - 1);
    const struct roped_op *op = find_op(argv[1]);
    return op ? print_document(ctl, describe(op)) : EXIT_USAGE;
}
