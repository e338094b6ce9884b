/*
 * test_sweep.c - every operator on one backend (arguments: cpu or cuda, and an
 * operator; without it all of them) against its float64 reference.
 *
 * On the CPU a tenth of the calls is made again with each of the other
 * instruction sets that this processor has.
 *
 * Calls are made from the descriptors: any shapes, types, forms, parameters and
 * index values that an operator takes, widths of models, no rows, misaligned
 * and strided memory, results in place, index tensors that only the device can
 * read. What values tensors have beyond that is in values.h. An operator of
 * which more has to be known has a row in rules[].
 */
#include "calls/random_call.h"
#include "check.h"
#include "cpu/rows.h"
#include "kernel/broadcast.h"
#include "kernel/case.h"
#include "kernel/many_rows.h"
#include "kernel/reference.h"
#include "kernel/runner.h"
#include "kernel/sections.h"
#include "kernel/values.h"

#include <roped/numeric.h>

static struct runner runner;
static struct random_source source = {67};
static const char *only; /* the operator that is tested, or NULL */

static const struct rule {
    const char *op;
    random_shapes_fn *shapes; /* (optional) of one call */
    int one_in;               /* in so many */
    const char *when;         /* (optional) a condition, as in descriptors, */
    uint32_t values;          /* and then these VALUES() alone */
} rules[] = {
    /* quotients of subnormals have few bits */
    {"binary_backward", broadcast_shapes, 2, "function=div",
     VALUES(AWAY) | VALUES(POSITIVE)},
    {.op = "rmsnorm_backward", .shapes = many_rows_shapes, .one_in = 21},
    {.op = "layer_norm_backward", .shapes = many_rows_shapes, .one_in = 21},
    {.op = "layer_norm", .shapes = many_heads_shapes, .one_in = 21},
    {.op = "add_rmsnorm_quantize", .shapes = many_terms_shapes, .one_in = 21},
};

static struct rule rule_of(const struct roped_op *op)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].op, op->name) == 0)
            return rules[i];
    return (struct rule){.op = op->name};
}

/* ------------------------------------------------------------------- calls */

struct swept {
    struct random_call made;
    enum values values;
    struct runner_options options;
};

/* Tables up to 64 MiB. */
static bool has_small_table(const struct roped_call *call)
{
    const struct roped_table_use *use = &call->table;
    return use->rows * use->angles.n_pairs * 8 <= 64 << 20;
}

static enum values random_values(const struct rule *rule,
                                 const struct roped_call *call)
{
    bool is_any = !rule->when || !roped_condition_holds(call, rule->when);
    enum values kind;
    do
        kind = random_once_in(&source, 3)
                   ? VALUES_NORMAL
                   : (enum values)random_int(&source, 0, VALUES_KINDS - 1);
    while (!is_any && !(rule->values & 1u << kind));
    return kind;
}

/* Is this an input of floats that are computed with? The angles that a call
 * brings along come after the positions, and stay. */
static bool has_values(const struct roped_op *op, int input,
                       const struct roped_tensor *tensor)
{
    const int angles = op->angles_offset == ROPED_NO_ANGLES
                           ? -1
                           : roped_op_input(op, "positions");
    return ROPED_SET(tensor->dtype) & ROPED_FLOATS &&
           !(op->in[input].flags & (ROPED_INDEX | ROPED_UPDATED)) &&
           (angles < 0 || input < angles);
}

/* Index tensors that only the device can read: nothing is checked, and the
 * launch finds the places itself. No position may be -1 then. */
static void hide_values(struct swept *swept)
{
    struct roped_call *call = &swept->made.call;
    struct roped_error err = {.text = ""};
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]) &&
            call->op->in[i].flags & ROPED_PLANNED)
            return; /* what a plan holds is always read */
    if (call->op->angles_offset == ROPED_NO_ANGLES ||
        call->held[roped_op_input(call->op, "positions")].has_none)
        return;
    call->largest_position = call->table.rows - 1;
    call->host_values = false;
    CHECK_OK(roped_call_resolve(call, &err), &err);
}

static void make(struct swept *swept, const struct roped_op *op, int i)
{
    const struct rule rule = rule_of(op);
    struct random_call *made = &swept->made;
    for (;;) {
        if (rule.shapes && i % rule.one_in == 1)
            random_call_make_shaped(made, op, rule.shapes, &source);
        else
            random_call_make_sound(
                made, op, i % 4 == 0 ? RANDOM_OF_MODELS : RANDOM_FEW, &source);
        if (!made->call.table.required || has_small_table(&made->call))
            break;
        random_call_free(made);
    }
    if (op->angles_offset != ROPED_NO_ANGLES && random_once_in(&source, 6))
        sections_add(made, &source);
    swept->values = random_values(&rule, &made->call);
    for (int in = 0; in < made->call.n_in; in++)
        if (has_values(op, in, &made->in[in]))
            values_fill(&source, &made->in[in], swept->values);
    const struct roped_table_use *use = &made->call.table;
    swept->options = (struct runner_options){
        .misalign_elements = random_once_in(&source, 4),
        .in_place = random_once_in(&source, 3),
        .updates_apart = random_once_in(&source, 4),
        .use_table = use->required || (random_once_in(&source, 2) &&
                                       has_small_table(&made->call))};
    case_strides(&source, &made->call, &swept->options);
    if (random_once_in(&source, 6))
        hide_values(swept);
}

/* Codes are judged as what they are: the choice between FP8 types says it. */
static void name_codes(struct roped_call *call)
{
    enum roped_dtype dtype = ROPED_F8_E4M3;
    for (int i = 0; i < call->n_params; i++) {
        const struct roped_param *param = &call->op->param[i];
        int32_t value;
        if (!param->choices || strcmp(param->choices, "e4m3|e5m2") != 0)
            continue;
        memcpy(&value, call->params + param->offset, sizeof value);
        if (param->kind == ROPED_PARAM_DTYPE)
            dtype = (enum roped_dtype)value;
        else if (value == 1)
            dtype = ROPED_F8_E5M2;
    }
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i].dtype == ROPED_U8)
            call->out[i].dtype = dtype;
}

static void run(struct swept *swept)
{
    struct roped_call *call = &swept->made.call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[1024], how[160];
    enum roped_status status = runner_run(&runner, call, &swept->options, &err);
    name_codes(call);
    if (!status)
        reference_judge(call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL("%s, %s values, %s%s: %s%lld of %lld wrong: %s",
                   random_call_text(&swept->made, text, sizeof text),
                   values_name(swept->values),
                   runner_options_text(&swept->options, how, sizeof how),
                   call->host_values ? "" : ", values on the device", err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    runner_free_outputs(call);
}

/* ---------------------------------------------------------------- coverage */

/* How many calls had this: any input, form, type and choice of an operator. */
struct count {
    char what[96];
    int n;
};
struct coverage {
    struct count count[1024];
    int n;
};

static void count_as(struct coverage *coverage, bool has, const char *what,
                     const char *name, const char *value)
{
    char text[96];
    int i = 0;
    snprintf(text, sizeof text, "%s %s %s", what, name, value);
    while (i < coverage->n && strcmp(coverage->count[i].what, text) != 0)
        i++;
    if (i == coverage->n) {
        if (coverage->n == sizeof coverage->count / sizeof *coverage->count)
            abort();
        coverage->count[coverage->n++] = (struct count){.n = 0};
        snprintf(coverage->count[i].what, sizeof text, "%s", text);
    }
    coverage->count[i].n += has;
}

static void count_params(struct coverage *coverage,
                         const struct random_call *made)
{
    for (int i = 0; i < made->call.n_params; i++) {
        const struct roped_param *param = &made->op->param[i];
        char choice[RANDOM_CALL_TEXT];
        count_as(coverage, made->has_param[i], "parameter", param->name, "");
        for (int c = 0; param->choices && c < roped_param_choices(param); c++) {
            roped_param_choice(param, c, choice, sizeof choice);
            count_as(coverage,
                     made->has_param[i] && strcmp(made->param[i], choice) == 0,
                     "parameter", param->name, choice);
        }
    }
}

static void count_call(struct coverage *coverage, const struct swept *swept)
{
    const struct roped_call *call = &swept->made.call;
    const struct roped_op *op = call->op;
    for (int i = 0; i < roped_op_forms(op); i++)
        count_as(coverage, call->form == i, "form",
                 op->form[i].name ? op->form[i].name : "", "");
    for (int i = 0; i < call->n_in; i++) {
        count_as(coverage, roped_tensor_given(&call->in[i]), "input",
                 op->in[i].name, "");
        uint32_t set = roped_op_types(op, &op->in[i]);
        for (int t = 1; t < ROPED_DTYPE_COUNT; t++)
            if (set & ROPED_SET(t))
                count_as(coverage, (int)call->in[i].dtype == t, "input",
                         op->in[i].name, roped_dtype_name((enum roped_dtype)t));
    }
    count_params(coverage, &swept->made);
    for (int i = 0; i < VALUES_KINDS; i++)
        count_as(coverage, (int)swept->values == i, "values",
                 values_name((enum values)i), "");
    if (op->angles_offset == ROPED_NO_ANGLES)
        return;
    count_as(coverage, swept->options.use_table, "table", "", "");
    count_as(coverage, !call->host_values, "values on the device", "", "");
    count_as(coverage, call->held[roped_op_input(op, "positions")].has_none,
             "position -1", "", "");
    count_as(coverage, call->table.rows > 1 << 20, "far position", "", "");
}

static int n_missing(const struct coverage *coverage)
{
    int n = 0;
    for (int i = 0; i < coverage->n; i++)
        n += coverage->count[i].n == 0;
    return n;
}

/* A call that chance has not made yet is not tested: it is waited for. */
static void sweep_rest(const struct roped_op *op, struct coverage *coverage)
{
    int missing = n_missing(coverage);
    for (int i = 0; i < 20000 && missing; i++) {
        static struct swept swept;
        make(&swept, op, 4 * i + 2); /* small ones */
        count_call(coverage, &swept);
        if (n_missing(coverage) < missing)
            run(&swept);
        missing = n_missing(coverage);
        random_call_free(&swept.made);
    }
    for (int i = 0; i < coverage->n; i++)
        if (coverage->count[i].n == 0)
            CHECK_FAIL("%s: no call with %s", op->name,
                       coverage->count[i].what);
}

static void sweep(const struct roped_op *op)
{
    static struct coverage coverage;
    coverage.n = 0;
    const int n = check_cases(cpu_rows_rank > 0 ? 150 : 1500);
    for (int i = 0; i < n; i++) {
        static struct swept swept;
        if (!check_takes_case())
            continue;
        make(&swept, op, i);
        run(&swept);
        count_call(&coverage, &swept);
        random_call_free(&swept.made);
    }
    if (check_cases(10) == 10 && cpu_rows_rank == 0)
        sweep_rest(op, &coverage);
}

TEST(random_calls_are_within_tolerance)
{
    for (int o = 0; o < roped_op_count(); o++)
        if (!only || strcmp(only, roped_op_at(o)->name) == 0)
            sweep(roped_op_at(o));
}

int main(int argc, char **argv)
{
    only = runner_operator(argc, argv);
    if (argc > 1 && strcmp(argv[1], "cuda") == 0)
        return runner_main(&runner, argc, argv);
    const struct cpu_rows *rows;
    for (; (rows = cpu_rows_at(cpu_rows_rank)); cpu_rows_rank++) {
        printf("%s:\n", rows->name);
        CHECK(runner_open(&runner, "cpu"));
        check_run();
        runner_close(&runner);
    }
    return check_done();
}
