/*
 * describe.c - prints the codes of errors and the operator table as JSON, for
 * generate.py: what GET /v1/{op} says, and what a program needs that sizes
 * outputs by itself. Links the table alone, so that a wheel builds without the
 * server's libraries.
 */
#include <roped/op.h>

#include <stdio.h>
#include <stdlib.h>

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

/* ,"name":"text", or nothing where there is no text */
static void print_member(const char *name, const char *text)
{
    if (!text)
        return;
    printf(",\"%s\":", name);
    print_string(text);
}

static void print_flag(const char *name, bool is_set)
{
    if (is_set)
        printf(",\"%s\":true", name);
}

static void print_dtypes(uint32_t set)
{
    const char *separator = "";
    printf(",\"dtypes\":[");
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++) {
        if (!(set & ROPED_SET(i)))
            continue;
        printf("%s\"%s\"", separator, roped_dtype_name((enum roped_dtype)i));
        separator = ",";
    }
    printf("]");
}

/* "2h" as {"name":"h","steps":[["*",2]]}; a step's last member is true where it
 * leaves a dim of 1 instead of none. */
static void print_dim(const struct roped_dim_pattern *dim)
{
    if (dim->name[0])
        printf("{\"%s\":\"%s\"", dim->is_pack ? "pack" : "name", dim->name);
    else
        printf("{\"size\":%lld", (long long)dim->size);
    for (int i = 0; i < dim->n_steps; i++) {
        const struct roped_dim_step *step = &dim->step[i];
        printf("%s[\"%c\",", i ? "," : ",\"steps\":[", step->sign);
        if (step->number)
            printf("%lld", (long long)step->number);
        else
            printf("\"%s\"", step->name);
        printf(",%s]", step->is_kept ? "true" : "false");
    }
    printf("%s}", dim->n_steps ? "]" : "");
}

/* {"output_dtype":["mxfp4","nvfp4"],"slots":[]} */
static void print_condition(const char *text)
{
    struct roped_condition item;
    char value[ROPED_NAME_BYTES];
    printf("\"when\":{");
    for (int i = 0; roped_condition_next(&text, &item); i++) {
        printf("%s\"%s\":[", i ? "," : "", item.name);
        for (int j = 0; item.values && roped_condition_value(
                                           &item.values, value, sizeof value);
             j++)
            printf("%s\"%s\"", j ? "," : "", value);
        printf("]");
    }
    printf("},");
}

/* The alternatives of a shape, parsed. */
static void print_shape(const struct roped_port *port)
{
    struct roped_shape_pattern pattern;
    printf(",\"alternatives\":[");
    for (int i = 0; i < roped_port_alternatives(port); i++) {
        printf("%s{", i ? "," : "");
        if (roped_port_is_guarded(port))
            print_condition(roped_port_condition(port, i));
        if (roped_port_pattern(port, i, &pattern, NULL))
            pattern.count = 0; /* the table has passed its check */
        printf("\"dims\":[");
        for (int j = 0; j < pattern.count; j++) {
            printf("%s", j ? "," : "");
            print_dim(&pattern.dim[j]);
        }
        printf("]}");
    }
    printf("]");
}

static void print_ports(const char *title, const struct roped_op *op,
                        const struct roped_port *ports, int n)
{
    printf(",\"%s\":[", title);
    for (int i = 0; i < n; i++) {
        const struct roped_port *port = &ports[i];
        printf("%s{\"name\":\"%s\"", i ? ",\n  " : "\n  ", port->name);
        print_member("type", port->type);
        print_member("shape", port->shape);
        print_shape(port);
        print_dtypes(roped_op_types(op, port));
        print_flag("optional", port->flags & ROPED_OPTIONAL);
        print_flag("index", port->flags & ROPED_INDEX);
        print_flag("updated", port->flags & ROPED_UPDATED);
        print_flag("strided", port->flags & ROPED_STRIDED);
        print_member("holds", port->holds);
        print_member("requires", port->requires_);
        print_member("in_place", port->in_place);
        print_member("doc", port->doc);
        printf("}");
    }
    printf("]");
}

static void print_choices(const struct roped_param *param)
{
    char text[32];
    printf(",\"choices\":[");
    for (int i = 0; i < roped_param_choices(param); i++)
        printf("%s\"%s\"", i ? "," : "",
               roped_param_choice(param, i, text, sizeof text));
    printf("],\"default\":\"%s\"",
           roped_param_choice(param, (int)param->init, text, sizeof text));
}

static void print_number(const struct roped_param *param)
{
    if (!(param->flags & ROPED_NO_DEFAULT))
        printf(",\"default\":%.17g", param->init);
    if (param->flags & ROPED_ABOVE_MIN)
        printf(",\"above\":%.17g", param->min);
    else if (param->min != 0 || param->max != 0)
        printf(",\"min\":%.17g", param->min);
    if (param->max != 0)
        printf(",\"max\":%.17g", param->max);
}

static void print_param(const struct roped_param *param)
{
    static const char *const kinds[] = {
        [ROPED_PARAM_FLOAT] = "float", [ROPED_PARAM_INT] = "int",
        [ROPED_PARAM_BOOL] = "bool",   [ROPED_PARAM_CHOICE] = "choice",
        [ROPED_PARAM_DTYPE] = "dtype", [ROPED_PARAM_INTS] = "ints"};
    printf("{\"name\":\"%s\",\"kind\":\"%s\"", param->name, kinds[param->kind]);
    if (param->choices)
        print_choices(param);
    else if (param->kind == ROPED_PARAM_BOOL)
        printf(",\"default\":%s", param->init != 0 ? "true" : "false");
    else if (param->kind != ROPED_PARAM_INTS)
        print_number(param);
    print_member("type", param->type);
    print_member("shape", param->shape);
    print_member("otherwise", param->otherwise);
    print_member("doc", param->doc);
    printf("}");
}

/* A form with a parameter holds where that has the value. */
static void print_forms(const struct roped_op *op)
{
    char text[32];
    printf(",\"forms\":[");
    for (int i = 0; i < ROPED_MAX_FORMS && op->form[i].name; i++) {
        const struct roped_form *form = &op->form[i];
        printf("%s{\"name\":\"%s\"", i ? "," : "", form->name);
        if (form->param) {
            int param = roped_op_param(op, form->param);
            print_member("param", form->param);
            print_member("value",
                         roped_param_choice(&op->param[param], form->value,
                                            text, sizeof text));
        }
        print_member("doc", form->doc);
        printf("}");
    }
    printf("]");
}

/* Type variables that a parameter chooses, and the type of each choice. */
static void print_types(const struct roped_op *op)
{
    const char *separator = "";
    printf(",\"chosen_types\":{");
    for (int i = 0; i < ROPED_MAX_TYPES && op->type[i].name; i++) {
        if (!op->type[i].by)
            continue;
        printf("%s\"%s\":{\"by\":\"%s\",\"of\":\"%s\"}", separator,
               op->type[i].name, op->type[i].by, op->type[i].of);
        separator = ",";
    }
    printf("}");
}

static void print_op(const struct roped_op *op)
{
    char rule[ROPED_RULE_BYTES];
    printf("{\"name\":\"%s\"", op->name);
    print_member("since", op->since);
    print_member("summary", op->summary);
    if (roped_op_rule_text(op, rule, sizeof rule)[0])
        print_member("rule", rule);
    print_member("tokens", op->tokens);
    print_flag("angles", op->angles_offset != ROPED_NO_ANGLES);
    print_types(op);
    print_forms(op);
    print_ports("inputs", op, op->in, roped_op_inputs(op));
    print_ports("outputs", op, op->out, roped_op_outputs(op));
    printf(",\"parameters\":[");
    for (int i = 0; i < roped_op_params(op); i++) {
        printf("%s", i ? ",\n  " : "\n  ");
        print_param(&op->param[i]);
    }
    printf("]}");
}

/* Of ROPED_STATUS_MAP, in its order. */
static void print_codes(void)
{
    printf("\"codes\":{");
    for (int i = 0; i < ROPED_STATUS_COUNT; i++) {
        printf("%s\"%s\":", i ? ",\n  " : "\n  ",
               roped_status_token((enum roped_status)i));
        print_string(roped_status_meaning((enum roped_status)i));
    }
    printf("}");
}

int main(void)
{
    printf("{");
    print_codes();
    printf(",\n\"operators\":[");
    for (int i = 0; i < roped_op_count(); i++) {
        printf("%s", i ? ",\n" : "");
        print_op(roped_op_at(i));
    }
    printf("]}\n");
    return ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
