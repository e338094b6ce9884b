/*
 * command_describe.c - ops and describe, from the operator table built in.
 */
#include "ropectl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int command_ops(const struct ropectl *ctl, int argc, char **argv)
{
    (void)ctl;
    if (argc != 1)
        return usage("ops", "no arguments, found '%s'", argv[1]);
    for (int i = 0; i < roped_op_count(); i++)
        printf("%-20s %s\n", roped_op_at(i)->name, roped_op_at(i)->summary);
    return EXIT_SUCCESS;
}

static void print_port(const struct roped_op *op, const struct roped_port *port,
                       bool is_input)
{
    char types[96];
    printf("  %-14s [%s]  %s%s%s\n      %s\n", port->name, port->shape,
           roped_dtype_set_text(roped_op_types(op, port), types, sizeof types),
           is_input && (port->flags & ROPED_OPTIONAL) ? ", optional" : "",
           port->flags & ROPED_UPDATED ? ", updated in place" : "", port->doc);
}

static void print_param(const struct roped_param *param)
{
    char choice[32];
    printf("  --%-22s", param->name);
    if (param->choices)
        printf(
            " %s; %s", param->choices,
            roped_param_choice(param, (int)param->init, choice, sizeof choice));
    else if (param->flags & ROPED_NO_DEFAULT || param->kind == ROPED_PARAM_INTS)
        printf(" no default");
    else if (param->kind == ROPED_PARAM_BOOL)
        printf(" %s", param->init != 0 ? "true" : "false");
    else
        printf(" %.10g", param->init);
    if (param->max != 0 && fabs(param->max) < 1e30)
        printf(" (%.10g to %.10g)", param->min, param->max);
    else if (param->flags & ROPED_ABOVE_MIN)
        printf(" (above %.10g)", param->min);
    printf("\n      %s\n", param->doc);
}

int command_describe(const struct ropectl *ctl, int argc, char **argv)
{
    (void)ctl;
    if (argc != 2)
        return usage("describe", "%d operators, expected one", argc - 1);
    const struct roped_op *op = find_op(argv[1]);
    if (!op)
        return EXIT_FAILURE;
    printf("%s (since %s): %s\n", op->name, op->since, op->summary);
    for (int i = 0; i < ROPED_MAX_FORMS && op->form[i].name; i++)
        printf("%s  %-8s %s\n", i ? "" : "\nforms (shapes by '|'):\n",
               op->form[i].name, op->form[i].doc);
    puts("\ninputs:");
    for (int i = 0; i < roped_op_inputs(op); i++)
        print_port(op, &op->in[i], true);
    puts("\noutputs:");
    for (int i = 0; i < roped_op_outputs(op); i++)
        print_port(op, &op->out[i], false);
    puts("\nparameters:");
    for (int i = 0; i < roped_op_params(op); i++)
        print_param(&op->param[i]);
    if (op->rule_doc)
        printf("\nrule: %s\n", op->rule_doc);
    return EXIT_SUCCESS;
}
