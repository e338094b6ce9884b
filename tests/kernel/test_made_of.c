/*
 * test_made_of.c - an operator that does what others do gives their bits, on
 * one backend (argument: cpu or cuda): add_<op> those of <op>, <op>_quantize
 * codes of what <op> gives, rmsnorm_add and gated_rmsnorm those of rmsnorm and
 * what comes before or after it. Calls are random ones, made from the
 * descriptors. That the bits are right is for test_sweep.c to say.
 */
#include "calls/random_call.h"
#include "check.h"
#include "kernel/case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"
#include "kernel/values.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {71};
static const struct runner_options plain;

static void fail(const struct random_call *made, const char *what)
{
    char text[1024];
    CHECK_FAIL("%s: %s", random_call_text(made, text, sizeof text), what);
}

static void set_param(struct random_call *made, const char *name,
                      const char *value)
{
    int param = roped_op_param(made->op, name);
    if (param < 0)
        return;
    made->has_param[param] = value != NULL;
    snprintf(made->param[param], RANDOM_CALL_TEXT, "%s", value ? value : "");
}

static void make(struct random_call *made, const struct roped_op *op, int i)
{
    random_call_make_sound(made, op, i % 3 > 0 ? RANDOM_OF_MODELS : RANDOM_FEW,
                           &source);
    if (random_once_in(&source, 2))
        return;
    enum values kind = (enum values)random_int(&source, 0, VALUES_KINDS - 1);
    for (int in = 0; in < made->call.n_in; in++)
        if (ROPED_SET(made->in[in].dtype) & ROPED_FLOATS && !op->in[in].holds)
            values_fill(&source, &made->in[in], kind);
}

static bool run(struct random_call *made, struct roped_call *call,
                const struct runner_options *options)
{
    struct roped_error err = {.text = ""};
    if (!runner_run(&runner, call, options, &err))
        return true;
    fail(made, err.text);
    return false;
}

/* The call of another operator with what it has of made's inputs and
 * parameters, but with this x. */
static void init_part(struct roped_call *part, const struct roped_op *op,
                      const struct random_call *made,
                      const struct roped_tensor *x)
{
    struct roped_error err = {.text = ""};
    roped_call_init(part, op);
    for (int i = 0; i < roped_op_params(made->op); i++)
        if (made->has_param[i] &&
            roped_op_param(op, made->op->param[i].name) >= 0)
            case_param(part, made->op->param[i].name, made->param[i]);
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        const char *name = made->op->in[i].name;
        bool is_x = strcmp(name, "x") == 0;
        if (roped_tensor_given(&made->in[i]) && roped_op_input(op, name) >= 0)
            case_bind(part, name, is_x && x ? x : &made->in[i]);
    }
    if (roped_call_resolve(part, &err))
        fail(made, err.text);
}

static const struct roped_tensor *output(const struct roped_call *call,
                                         const char *name)
{
    int i = roped_op_output(call->op, name);
    return i < 0 || !call->out[i].data ? NULL : &call->out[i];
}

/* Bit for bit, but for what a NaN holds. */
static void expect_equal(const struct random_call *made,
                         const struct roped_tensor *a,
                         const struct roped_tensor *b, const char *what)
{
    int64_t n_wrong = 0, n = a && b ? roped_tensor_elements(a) : 0;
    size_t bytes = a ? roped_dtype_bytes(a->dtype) : 0;
    bool may_be_nan = a && ROPED_SET(a->dtype) & (ROPED_FLOATS | ROPED_FP8S);
    if (!n || !memcmp(a->data, b->data, (size_t)n * bytes))
        return;
    for (int64_t i = 0; i < n; i++)
        n_wrong += memcmp((char *)a->data + (size_t)i * bytes,
                          (char *)b->data + (size_t)i * bytes, bytes) != 0 &&
                   !(may_be_nan && isnan(reference_value(a, i)) &&
                     isnan(reference_value(b, i)));
    if (n_wrong)
        fail(made, what);
}

static void expect_same(const struct random_call *made,
                        const struct roped_call *found,
                        const struct roped_call *expected, const char *name)
{
    expect_equal(made, output(found, name), output(expected, name), name);
}

/* ---------------------------------------------------------------------- sums
 */

/* The operator whose x this one's sum is, or NULL. */
static const struct roped_op *summed(const struct roped_op *op)
{
    return strncmp(op->name, "add_", 4) ? NULL : roped_op_find(op->name + 4);
}

/* Does the call round a step of its sum before the last one? */
static bool rounds_steps(const struct random_call *made)
{
    static const char *const scales[] = {"x_scale", "residual_scale",
                                         "addend_scale", "sum_scale"};
    const struct roped_op *op = made->op;
    for (int i = 0; i < 4; i++)
        if (made->has_param[roped_op_param(op, scales[i])])
            return true;
    return roped_tensor_given(&made->in[roped_op_input(op, "addend")]);
}

/* The sum that a call has returned, in the type of x. */
static struct roped_tensor rounded_sum(const struct random_call *made)
{
    const struct roped_tensor *sum = output(&made->call, "residual");
    struct roped_tensor x =
        case_tensor(&source, made->in[0].dtype, sum->rank, sum->dims, 0);
    for (int64_t i = 0; i < roped_tensor_elements(sum); i++)
        values_set(&x, i, reference_value(sum, i));
    return x;
}

/* By either kernel and of any number of rows; so sum_rounding=type needs no
 * other proof. The residual is the one of sum_rounding=once, where one step is
 * all. */
static void expect_norm_of_residual(struct random_call *made)
{
    static struct roped_call part, once;
    struct runner_options options = {.misalign_elements =
                                         random_once_in(&source, 4),
                                     .in_place = random_once_in(&source, 2)};
    case_strides(&source, &made->call, &options);
    set_param(made, "sum_rounding", "type");
    random_call_judge(made);
    if (!run(made, &made->call, &options))
        return;
    struct roped_tensor x = rounded_sum(made);
    init_part(&part, summed(made->op), made, &x);
    run(made, &part, &plain);
    expect_same(made, &made->call, &part, "y");
    expect_same(made, &made->call, &part, "scales");
    set_param(made, "sum_rounding", NULL);
    init_part(&once, made->op, made, NULL);
    run(made, &once, &plain);
    if (!rounds_steps(made))
        expect_same(made, &made->call, &once, "residual");
    free(x.data);
    runner_free_outputs(&part);
    runner_free_outputs(&once);
    runner_free_outputs(&made->call);
}

TEST(a_rounded_sum_gives_the_bits_of_the_norm_of_the_residual)
{
    for (int o = 0; o < roped_op_count(); o++)
        for (int i = 0; i < check_cases(300) && summed(roped_op_at(o)); i++) {
            static struct random_call made;
            if (!check_takes_case())
                continue;
            make(&made, roped_op_at(o), i);
            expect_norm_of_residual(&made);
            random_call_free(&made);
        }
}

static float scale_of(const struct random_call *made, const char *name)
{
    const int i = roped_op_param(made->op, name);
    return made->has_param[i] ? strtof(made->param[i], NULL) : 1;
}

static float term_at(const struct random_call *made, const char *name,
                     const char *scale, int64_t i)
{
    return (float)reference_value(&made->in[roped_op_input(made->op, name)],
                                  i) *
           scale_of(made, scale);
}

/* x, addend and residual, each times its scale, in float32, in the call's
 * order. */
static struct roped_tensor sum_of(const struct random_call *made)
{
    const struct roped_op *op = made->op;
    const struct roped_tensor *x = &made->in[roped_op_input(op, "x")];
    const struct roped_tensor *and = &made->in[roped_op_input(op, "addend")];
    const int order = roped_op_param(op, "sum_order");
    bool is_last = made->has_param[order] &&
                   strcmp(made->param[order], "residual_first") == 0;
    struct roped_tensor sum =
        case_tensor(&source, ROPED_F32, x->rank, x->dims, 0);
    for (int64_t i = 0; i < roped_tensor_elements(x); i++) {
        float z = term_at(made, "x", "x_scale", i);
        float residual = term_at(made, "residual", "residual_scale", i);
        if (!roped_tensor_given(and))
            z += residual;
        else if (is_last)
            z = (residual + z) + term_at(made, "addend", "addend_scale", i);
        else
            z = (z + term_at(made, "addend", "addend_scale", i)) + residual;
        ((float *)sum.data)[i] = z * scale_of(made, "sum_scale");
    }
    return sum;
}

/* Results that are not those of the exact sum, rounded: of float32's own errors
 * one in thousands is, and of codes one in a million. Of a norm of the rounded
 * sum every fifth is, and every fiftieth code. A row by itself may have more:
 * if its largest value is 3.5, say, what it divides has many ties, which a unit
 * in the last place of its scale moves all at once. */
static void expect_few_off(const struct random_call *made,
                           const struct roped_tensor *found,
                           const struct roped_tensor *expected)
{
    const int64_t n = roped_tensor_elements(found);
    const int64_t width = n ? found->dims[found->rank - 1] : 1;
    const bool is_code = roped_dtype_bytes(found->dtype) == 1;
    const int64_t few = 1 + width / (is_code ? 1000 : 100);
    int64_t n_rows_off = 0;
    struct roped_tensor one = {.dtype = found->dtype};
    uint32_t bits;
    one.data = &bits;
    for (int64_t row = 0; row < n; row += width) {
        int64_t n_off = 0;
        for (int64_t i = row; i < row + width && is_code; i++)
            n_off += ((const uint8_t *)found->data)[i] !=
                     ((const uint8_t *)expected->data)[i];
        for (int64_t i = row; i < row + width && !is_code; i++) {
            values_set(&one, 0, reference_value(expected, i));
            const double a = reference_value(found, i),
                         b = reference_value(&one, 0);
            n_off += a != b && !(isnan(a) && isnan(b)); /* 0 / 0 */
        }
        n_rows_off += n_off > few;
    }
    if (n_rows_off > 1 + n / width / 20)
        fail(made, "not the norm of the sum before it is rounded");
}

TEST(a_sum_is_normalised_before_it_is_rounded)
{
    for (int o = 0; o < roped_op_count(); o++)
        for (int i = 0; i < check_cases(200) && summed(roped_op_at(o)); i++) {
            static struct random_call made;
            static struct roped_call part;
            if (!check_takes_case())
                continue;
            random_call_make_sound(&made, roped_op_at(o), RANDOM_OF_MODELS,
                                   &source);
            set_param(&made, "sum_rounding", NULL);
            set_param(&made, "rounding", NULL);
            set_param(&made, "weight_bias", NULL);
            set_param(&made, "x_scale", i % 2 ? "0.22" : NULL);
            random_call_judge(&made);
            struct roped_tensor x = sum_of(&made);
            init_part(&part, summed(made.op), &made, &x);
            if (run(&made, &made.call, &plain) && run(&made, &part, &plain) &&
                made.in[0].dtype != ROPED_F32)
                expect_few_off(&made, output(&made.call, "y"),
                               output(&part, "y"));
            runner_free_outputs(&part);
            runner_free_outputs(&made.call);
            free(x.data);
            random_call_free(&made);
        }
}

/* --------------------------------------------------------------------- codes
 */

/* The operator whose results this one divides and rounds to codes, or NULL. */
static const struct roped_op *quantized(const struct roped_op *op)
{
    char name[ROPED_NAME_BYTES];
    const char *end = strstr(op->name, "_quantize");
    if (!end || strcmp(end, "_quantize") != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)(end - op->name), op->name);
    const struct roped_op *of = roped_op_find(name);
    return of && roped_op_input(op, of->in[0].name) >= 0 ? of : NULL;
}

/* quantize, as a call into codes says it: norms name their granularity by
 * group_size, and are static unless they say otherwise. */
static void init_codes(struct roped_call *codes, const struct random_call *made,
                       const struct roped_tensor *values)
{
    static const char *const same[] = {
        "output_dtype",   "dequant_scale", "granularity",  "scale_ub",
        "scale_rounding", "infinity",      "global_scale", "scale_layout"};
    const struct roped_op *op = made->op;
    const int group = roped_op_param(op, "group_size");
    const int global = roped_op_input(op, "global_scale");
    const bool names_tiles = roped_op_param(op, "granularity") >= 0;
    const bool is_dynamic = output(&made->call, "scales") != NULL;
    struct roped_error err = {.text = ""};
    roped_call_init(codes, roped_op_find("quantize"));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const int param = roped_op_param(op, same[i]);
        if (param >= 0 && made->has_param[param] &&
            (is_dynamic || strcmp(same[i], "scale_layout") != 0))
            case_param(codes, same[i], made->param[param]);
    }
    case_param(codes, "dynamic", is_dynamic ? "true" : "false");
    if (made->has_param[group] && strcmp(made->param[group], "0") != 0) {
        if (!names_tiles)
            case_param(codes, "granularity", "group");
        case_param(codes, "group_size", made->param[group]);
    }
    if (global >= 0 && roped_tensor_given(&made->in[global]))
        case_bind(codes, "global_scale", &made->in[global]);
    struct roped_tensor x = *values;
    x.stride = 0;
    case_bind(codes, "x", &x);
    if (roped_call_resolve(codes, &err))
        fail(made, err.text);
}

/* made gives the codes of what part gives. */
static void expect_codes(struct random_call *made, struct roped_call *part)
{
    static struct roped_call codes;
    if (!run(made, part, &plain))
        return;
    init_codes(&codes, made, output(part, "y"));
    if (run(made, &codes, &plain)) {
        expect_same(made, &made->call, &codes, "y");
        expect_same(made, &made->call, &codes, "scales");
    }
    if (summed(made->op))
        expect_same(made, &made->call, part, "residual");
    runner_free_outputs(&codes);
}

/* To the bit: what a separate quantization gives. With rounding=type, or steps,
 * values are rounded on their way as theirs are; of norms as hf's are. */
TEST(codes_are_those_of_the_quotient)
{
    for (int o = 0; o < roped_op_count(); o++)
        for (int i = 0; i < check_cases(600) && quantized(roped_op_at(o));
             i++) {
            static struct random_call made;
            static struct roped_call part;
            if (!check_takes_case())
                continue;
            const struct roped_op *of = quantized(roped_op_at(o));
            const bool is_norm = roped_op_input(of, "weight") >= 0;
            make(&made, roped_op_at(o), i);
            set_param(&made, "rounding", !is_norm && i % 2 ? "steps" : "type");
            random_call_judge(&made);
            if (run(&made, &made.call, &plain)) {
                if (is_norm)
                    set_param(&made, "rounding", "hf");
                init_part(&part, of, &made, NULL);
                expect_codes(&made, &part);
                runner_free_outputs(&part);
            }
            runner_free_outputs(&made.call);
            random_call_free(&made);
        }
}

static void widen_inputs(struct random_call *wide)
{
    for (int i = 0; i < wide->call.n_in; i++) {
        struct roped_tensor narrow = wide->in[i];
        if (!roped_tensor_given(&narrow) || narrow.dtype == ROPED_F32)
            continue;
        wide->in[i] =
            case_tensor(&source, ROPED_F32, narrow.rank, narrow.dims, 0);
        for (int64_t j = 0; j < roped_tensor_elements(&narrow); j++)
            ((float *)wide->in[i].data)[j] = (float)reference_value(&narrow, j);
    }
}

/* With rounding=once the codes are those of float32, as if inputs had been
 * float32. Norms add up the squares of each type in an order of its own. */
TEST(codes_of_float32_need_no_type_between)
{
    for (int o = 0; o < roped_op_count(); o++) {
        const struct roped_op *of = quantized(roped_op_at(o));
        for (int i = 0;
             i < check_cases(300) && of && roped_op_input(of, "weight") < 0;
             i++) {
            static struct random_call made, wide;
            static struct roped_call part;
            if (!check_takes_case())
                continue;
            make(&made, roped_op_at(o), i);
            set_param(&made, "rounding", NULL);
            random_call_judge(&made);
            wide = made;
            widen_inputs(&wide);
            if (run(&made, &made.call, &plain)) {
                init_part(&part, of, &wide, NULL);
                expect_codes(&made, &part);
                runner_free_outputs(&part);
            }
            for (int in = 0; in < made.call.n_in; in++)
                if (wide.in[in].data != made.in[in].data)
                    free(wide.in[in].data);
            runner_free_outputs(&made.call);
            random_call_free(&made);
        }
    }
}

/* ----------------------------------------------------------- pairs of tensors
 */

/* x + y in float32, rounded to their type, in the place of x. */
static void add_to(const struct roped_tensor *x, const struct roped_tensor *y)
{
    for (int64_t i = 0; i < roped_tensor_elements(x); i++)
        values_set(
            x, i,
            (double)(float)(reference_value(x, i) + reference_value(y, i)));
}

TEST(rmsnorm_add_adds_what_rmsnorm_gives)
{
    for (int i = 0; i < check_cases(300); i++) {
        static struct random_call made;
        static struct roped_call norm;
        if (!check_takes_case())
            continue;
        make(&made, roped_op_find("rmsnorm_add"), i);
        set_param(&made, "sum_rounding", NULL);
        random_call_judge(&made);
        init_part(&norm, roped_op_find("rmsnorm"), &made, NULL);
        if (run(&made, &made.call, &plain) && run(&made, &norm, &plain)) {
            add_to(output(&norm, "y"),
                   &made.in[roped_op_input(made.op, "residual")]);
            expect_equal(&made, output(&made.call, "residual"),
                         output(&norm, "y"), "residual");
        }
        runner_free_outputs(&norm);
        runner_free_outputs(&made.call);
        random_call_free(&made);
    }
}

/* act(gate) * up */
static void init_product(struct roped_call *call,
                         const struct random_call *made,
                         const struct roped_tensor *up)
{
    const int param = roped_op_param(made->op, "gate_activation");
    struct roped_error err = {.text = ""};
    roped_call_init(call, roped_op_find("act_and_mul"));
    if (made->has_param[param])
        case_param(call, "activation", made->param[param]);
    case_bind(call, "gate", &made->in[roped_op_input(made->op, "gate")]);
    case_bind(call, "up", up);
    if (roped_call_resolve(call, &err))
        fail(made, err.text);
}

/* Where nothing is rounded in between that the other two would not round. */
static bool is_made_of_two(const struct random_call *made, bool is_first)
{
    const struct roped_tensor *weight =
        &made->in[roped_op_input(made->op, "weight")];
    if (made->in[0].dtype == ROPED_F32)
        return true;
    return !is_first && weight->dtype != ROPED_F32;
}

static void expect_gate_and_norm(struct random_call *made, bool is_first)
{
    static struct roped_call norm, product;
    const struct roped_op *rmsnorm = roped_op_find("rmsnorm");
    const struct roped_tensor *x = &made->in[roped_op_input(made->op, "x")];
    struct roped_call *first = is_first ? &product : &norm;
    struct roped_call *second = is_first ? &norm : &product;
    if (is_first)
        init_product(first, made, x);
    else
        init_part(first, rmsnorm, made, NULL);
    if (!run(made, &made->call, &plain) || !run(made, first, &plain))
        return;
    if (is_first)
        init_part(second, rmsnorm, made, output(first, "y"));
    else
        init_product(second, made, output(first, "y"));
    if (run(made, second, &plain))
        expect_same(made, &made->call, second, "y");
    runner_free_outputs(first);
    runner_free_outputs(second);
    runner_free_outputs(&made->call);
}

TEST(gated_rmsnorm_is_rmsnorm_and_act_and_mul)
{
    for (int i = 0; i < check_cases(600); i++) {
        static struct random_call made;
        const bool is_first = i % 2;
        if (!check_takes_case())
            continue;
        make(&made, roped_op_find("gated_rmsnorm"), i);
        set_param(&made, "group_size", NULL);
        set_param(&made, "rounding", "hf");
        set_param(&made, "gate_first", is_first ? "true" : NULL);
        random_call_judge(&made);
        if (is_made_of_two(&made, is_first))
            expect_gate_and_norm(&made, is_first);
        random_call_free(&made);
    }
}

/* --------------------------------------------------------- norms that are
 * known
 */

static void call_of(struct roped_call *call, const struct roped_op *op,
                    const struct roped_tensor *x,
                    const struct roped_tensor *residual,
                    const struct roped_tensor *weight, const char *params)
{
    struct roped_error err = {.text = ""};
    roped_call_init(call, op);
    case_params(call, params);
    case_bind(call, "x", x);
    if (roped_op_input(op, "residual") >= 0)
        case_bind(call, "residual", residual);
    if (weight) {
        case_param(call, "eps", "0");
        case_bind(call, "weight", weight);
    }
    CHECK_OK(roped_call_resolve(call, &err), &err);
    CHECK_OK(runner_run(&runner, call, &plain, &err), &err);
}

/* Whose groups of 16 have magnitudes up to 2^most. */
static struct roped_tensor random_weight(int64_t width, int least, int most)
{
    struct roped_tensor weight = case_tensor(&source, ROPED_F32, 1, &width, 1);
    int exponent = 0;
    for (int64_t i = 0; i < width; i++) {
        if (i % 16 == 0)
            exponent = (int)random_int(&source, least, most);
        /* with a bias of 0, which is added, no weight is -0 */
        const float w = (float)ldexp(reference_value(&weight, i), exponent);
        values_set(&weight, i, w == 0 ? 0 : w);
    }
    return weight;
}

/* The norm of ones, and zeros to be added, is the weight, whose codes and
 * scales quantize makes. */
static void expect_codes_of_weight(const struct roped_op *op,
                                   enum roped_dtype dtype, const char *params,
                                   int least, int most)
{
    static const char *const outputs[] = {"y", "scales"};
    static struct roped_call norm, codes;
    static struct random_call made; /* for the report */
    const int64_t rows = random_int(&source, 1, 9);
    const int64_t width = 32 * random_int(&source, 1, 90);
    const int64_t of_x[] = {rows, width}, of_one[] = {1, width};
    struct roped_tensor x = case_tensor(&source, dtype, 2, of_x, 0);
    struct roped_tensor zeros = case_tensor(&source, dtype, 2, of_x, 0);
    struct roped_tensor weight = random_weight(width, least, most),
                        row = weight;
    for (int64_t i = 0; i < rows * width; i++) {
        values_set(&x, i, 1);
        values_set(&zeros, i, 0);
    }
    row.rank = 2;
    memcpy(row.dims, of_one, sizeof of_one);
    call_of(&norm, op, &x, &zeros, &weight, params);
    call_of(&codes, roped_op_find("quantize"), &row, NULL, NULL, params);
    made.op = norm.op;
    memcpy(made.in, norm.in, sizeof made.in);
    for (int64_t i = 0; i < 2 * rows; i++) {
        const struct roped_tensor *found = output(&norm, outputs[i / rows]);
        const struct roped_tensor *last = output(&codes, outputs[i / rows]);
        struct roped_tensor one = *last;
        one.data = (char *)found->data + i % rows * roped_tensor_bytes(last);
        expect_equal(&made, &one, last, params);
    }
    runner_free_outputs(&norm);
    runner_free_outputs(&codes);
    free(x.data);
    free(zeros.data);
    free(weight.data);
}

TEST(codes_of_the_norm_of_ones_are_those_of_the_weight)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    static const char *const params[] = {
        "output_dtype=mxfp8&dynamic=true", "output_dtype=mxfp4&dynamic=true",
        "output_dtype=nvfp4&dynamic=true", "output_dtype=int8&dynamic=true",
        "output_dtype=e4m3&dynamic=true"};
    /* the last ones are rows whose scales leave float32's normal range */
    static const int least[] = {-60, -149, -149}, most[] = {20, 20, -108};
    const struct roped_op *const ops[] = {
        roped_op_find("rmsnorm_quantize"),
        roped_op_find("add_rmsnorm_quantize")};
    for (int i = 0; i < check_cases(300); i++)
        if (check_takes_case())
            expect_codes_of_weight(ops[i / 45 % 2], types[i % 3],
                                   params[i / 3 % 5], least[i / 15 % 3],
                                   most[i / 15 % 3]);
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
