/*
 * norm_case.c - random calls of the norm operators.
 */
#include "kernel/norm_case.h"

#include "check.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const enum roped_dtype norm_type_pairs[NORM_TYPE_PAIRS][2] = {
    {ROPED_F32, ROPED_F32},      {ROPED_F16, ROPED_F16},
    {ROPED_BF16, ROPED_BF16},    {ROPED_F32, ROPED_F16},
    {ROPED_F32, ROPED_BF16},     {ROPED_F16, ROPED_F32},
    {ROPED_BF16, ROPED_F32},     {ROPED_F32, ROPED_NO_DTYPE},
    {ROPED_F16, ROPED_NO_DTYPE}, {ROPED_BF16, ROPED_NO_DTYPE},
};

static void resolve(struct roped_call *call, const struct norm_case *c)
{
    struct roped_error err;
    case_params(call, c->params);
    if (!roped_call_resolve(call, &err))
        return;
    fprintf(stderr, "%s %s was refused: %s\n", c->op, c->params, err.text);
    exit(EXIT_FAILURE);
}

/* One vector for every row. */
static bool is_weight(const struct roped_op *op, int input)
{
    struct roped_shape_pattern pattern;
    struct roped_error err;
    CHECK_OK(roped_port_pattern(&op->in[input], 0, &pattern, &err), &err);
    return pattern.count == 1 && !pattern.dim[0].is_pack;
}

void norm_case_build(struct roped_call *call, struct random_source *source,
                     const struct norm_case *c)
{
    const struct roped_op *op = roped_op_find(c->op);
    int64_t dims[2] = {c->rows, c->hidden};
    roped_call_init(call, op);
    for (int i = 0; i < roped_op_inputs(op); i++) {
        if ((is_weight(op, i) && !c->weight) ||
            (c->without && strcmp(op->in[i].name, c->without) == 0))
            continue;
        struct roped_tensor tensor =
            is_weight(op, i) ? case_tensor(source, c->weight, 1, dims + 1, 1)
                             : case_tensor(source, c->x, 2, dims, c->scale);
        case_bind(call, op->in[i].name, &tensor);
    }
    resolve(call, c);
}

void norm_case_again(struct roped_call *call, const struct roped_call *made,
                     const struct norm_case *c)
{
    roped_call_init(call, made->op);
    memcpy(call->in, made->in, sizeof call->in);
    resolve(call, c);
}

void norm_case_run(struct runner *runner, struct random_source *source,
                   const struct norm_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[160];
    if (!check_takes_case())
        return;
    if (check_cases(10) < 10 && !random_once_in(source, 5))
        return;
    norm_case_build(&call, source, c);
    struct runner_options options = c->options;
    case_strides(source, &options);
    enum roped_status status = runner_run(runner, &call, &options, &err);
    if (!status)
        reference_judge(&call, &judge);
    runner_free_outputs(&call);
    case_free(&call);
    if (status || judge.n_wrong)
        CHECK_FAIL(
            "%s x %s weight %s but %s [%lld, %lld] scale %g %s %s: %s%lld of "
            "%lld wrong: %s",
            c->op, roped_dtype_name(c->x), roped_dtype_name(c->weight),
            c->without ? c->without : "none", (long long)c->rows,
            (long long)c->hidden, c->scale, c->params ? c->params : "",
            runner_options_text(&options, text, sizeof text), err.text,
            (long long)judge.n_wrong, (long long)judge.n_checked, judge.first);
}
