/*
 * test_act_and_mul_sweep.c - act_and_mul on one backend (argument: cpu or cuda)
 * against float64: every activation, type and layout, odd and wide rows,
 * misaligned and strided memory, values far below 0, NaN and Inf.
 */
#include "check.h"
#include "kernel/random.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"
#include "kernel/runner.h"

#include "ops/act_and_mul.h"

#include <math.h>
#include <stdio.h>

static struct runner runner;
static struct random_source source = {37};
static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
static const char *const names[] = {"silu",    "gelu",      "gelu_tanh",
                                    "relu",    "relu2",     "quick_gelu",
                                    "sigmoid", "swiglu_oai"};
enum { ACTIVATIONS = 8 };
enum layout { HALVES, PAIRS, SECOND, TWO_TENSORS, ALONE, LAYOUTS };

/* A call of random values; of rows x h where there is no pair, else twice h. */
static void build(struct roped_call *call, enum roped_dtype dtype,
                  int activation, int layout, int64_t rows, int64_t h,
                  double scale)
{
    bool is_double = layout != TWO_TENSORS && layout != ALONE;
    int64_t dims[2] = {rows, is_double ? 2 * h : h};
    struct roped_tensor x = case_tensor(&source, dtype, 2, dims, scale);
    roped_call_init(call, roped_op_find("act_and_mul"));
    case_bind(call, layout == TWO_TENSORS ? "gate" : "x", &x);
    if (layout == TWO_TENSORS) {
        struct roped_tensor up = case_tensor(&source, dtype, 2, dims, 2);
        case_bind(call, "up", &up);
    }
    case_param(call, "activation", names[activation]);
    if (layout == PAIRS)
        case_param(call, "interleaved", "true");
    if (layout == SECOND)
        case_param(call, "gate_second", "true");
    if (layout == ALONE)
        case_param(call, "gated", "false");
}

static void judge_call(struct roped_call *call, struct runner_options *options,
                       const char *what)
{
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    CHECK_OK(roped_call_resolve(call, &err), &err);
    case_strides(&source, options);
    enum roped_status status = runner_run(&runner, call, options, &err);
    if (!status)
        reference_judge(call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL("%s: %s%lld of %lld wrong: %s", what, err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    runner_free_outputs(call);
    case_free(call);
}

static void run_case(int activation, int layout, enum roped_dtype dtype,
                     int64_t rows, int64_t h, double scale)
{
    static struct roped_call call;
    struct runner_options options = {.misalign_elements =
                                         random_once_in(&source, 2) ? 1 : 0};
    char what[160];
    if (layout == ALONE && activation == ACT_SWIGLU_OAI)
        return;
    build(&call, dtype, activation, layout, rows, h, scale);
    if (random_once_in(&source, 3))
        case_param(&call, "rounding", "type");
    if (random_once_in(&source, 3))
        case_param(&call, "limit", "1.5");
    snprintf(what, sizeof what, "%s %s layout %d [%lld, %lld] scale %g",
             names[activation], roped_dtype_name(dtype), layout,
             (long long)rows, (long long)h, scale);
    judge_call(&call, &options, what);
}

TEST(every_activation_layout_type_and_width_is_within_tolerance)
{
    static const int64_t widths[] = {1, 3, 8, 100, 2048, 2056, 5125};
    static const double scales[] = {1, 8, 60};
    for (int activation = 0; activation < ACTIVATIONS; activation++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int i = 0; i < 3 * 7; i++)
                run_case(activation, layout, types[i % 3],
                         random_int(&source, 0, 5), widths[i / 3],
                         scales[random_int(&source, 0, 2)]);
}

/* Every step of a float's range from the smallest to beyond all tails. */
TEST(tails_keep_their_digits)
{
    static struct roped_call call;
    enum { N = 4096 };
    for (int activation = 0; activation < ACT_SWIGLU_OAI; activation++) {
        struct runner_options options = {0};
        build(&call, ROPED_F32, activation, ALONE, 1, N, 1);
        float *x = call.in[ACT_AND_MUL_X].data;
        for (int i = 0; i < N; i++)
            x[i] = i < N / 2 ? -(float)i * (110.0f / (N / 2))
                             : ldexpf(i % 2 ? 1.3f : -1.3f, i % 250 - 125);
        judge_call(&call, &options, names[activation]);
    }
}

TEST(nan_stays_and_infinities_have_their_limits)
{
    static struct roped_call call;
    struct roped_error err;
    for (int activation = 0; activation < ACT_SWIGLU_OAI; activation++) {
        struct runner_options options = {0};
        build(&call, ROPED_F32, activation, ALONE, 1, 4, 1);
        float *x = call.in[ACT_AND_MUL_X].data;
        x[0] = NAN;
        x[1] = -INFINITY;
        x[2] = INFINITY;
        x[3] = -3e38f;
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
        const float *y = call.out[ACT_AND_MUL_Y].data;
        float most = activation == ACT_SIGMOID ? 1 : INFINITY;
        CHECK(isnan(y[0]) && y[1] == 0 && y[2] == most && y[3] == 0);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
