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

static void print_ports(const char *title, const struct roped_op *op,
                        const struct roped_port *ports, int n)
{
    printf(",\"%s\":[", title);
    for (int i = 0; i < n; i++) {
        const struct roped_port *port = &ports[i];
        printf("%s{\"name\":\"%s\"", i ? ",\n  " : "\n  ", port->name);
        print_member("type", port->type);
        print_member("shape", port->shape);
        print_dtypes(roped_op_types(op, port));
        print_flag("optional", port->flags & ROPED_OPTIONAL);
        print_flag("index", port->flags & ROPED_INDEX);
        print_flag("updated", port->flags & ROPED_UPDATED);
        print_flag("strided", port->flags & ROPED_STRIDED);
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

static void print_op(const struct roped_op *op)
{
    printf("{\"name\":\"%s\"", op->name);
    print_member("since", op->since);
    print_member("summary", op->summary);
    print_member("rule", op->rule_doc);
    print_member("tokens", op->tokens);
    print_flag("angles", op->angles_offset != ROPED_NO_ANGLES);
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
