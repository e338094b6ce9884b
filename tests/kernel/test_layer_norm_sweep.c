/*
 * test_layer_norm_sweep.c - what layer norms have and root mean squares have
 * not, on one backend (argument: cpu or cuda): rows far from 0, rows of one
 * value. test_rmsnorm_sweep.c has the rest.
 */
#include "check.h"
#include "kernel/norm_case.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"

#include "ops/layer_norm.h"

#include <roped/numeric.h>

#include <math.h>
#include <string.h>

static struct runner runner;
static struct random_source source = {37};
static const int64_t widths[] = {1,    2,    7,     64,    100,
                                 127,  128,  768,   1024,  1025,
                                 4096, 8192, 16384, 32768, 40000};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

/* Element i of any float type. */
static void set(struct roped_tensor *tensor, int64_t i, double value)
{
    if (tensor->dtype == ROPED_F32)
        ((float *)tensor->data)[i] = (float)value;
    else
        ((uint16_t *)tensor->data)[i] = tensor->dtype == ROPED_F16
                                            ? roped_float_to_f16((float)value)
                                            : roped_float_to_bf16((float)value);
}

static void judge_call(struct roped_call *call, const struct norm_case *c,
                       double middle)
{
    struct reference_judge judge = {0};
    struct runner_options options = c->options;
    struct roped_error err = {.text = ""};
    case_strides(&source, &options);
    CHECK_OK(runner_run(&runner, call, &options, &err), &err);
    reference_judge(call, &judge);
    if (judge.n_wrong)
        CHECK_FAIL("%s [%lld, %lld] about %g: %lld of %lld wrong: %s",
                   roped_dtype_name(c->x), (long long)c->rows,
                   (long long)c->hidden, middle, (long long)judge.n_wrong,
                   (long long)judge.n_checked, judge.first);
    runner_free_outputs(call);
}

/* Where the mean is up to a million times the deviation, what float32 loses of
 * the one is much of the other; and a value by itself moves both. */
TEST(rows_far_from_zero_are_within_tolerance)
{
    static const double middles[] = {-3, 1000, -60000, 1e6, 3e7, 1e-20, 1e37};
    static const char *const params[] = {NULL, "eps=0", "eps=0.000001"};
    for (int i = 0; i < 7 * N_WIDTHS * 3; i++) {
        static struct roped_call call;
        const double middle = middles[i % 7];
        struct norm_case c = {
            .op = "layer_norm",
            .x = norm_type_pairs[i / 7 % 3][0],
            .weight = norm_type_pairs[i / 7 % 3][1],
            .rows = random_int(&source, 1, 5),
            .hidden = widths[i / 7 % N_WIDTHS],
            .params = params[random_int(&source, 0, 2)],
            .options = {.misalign_elements = random_once_in(&source, 3),
                        .in_place = random_once_in(&source, 2)}};
        if (!check_takes_case() || (c.x == ROPED_F16 && fabs(middle) > 70000))
            continue;
        if (c.hidden == 1)
            c.params = NULL; /* no variance */
        norm_case_build(&call, &source, &c);
        const double width = c.x == ROPED_F32 ? 1e-5 : 0.05;
        for (int64_t j = 0; j < c.rows * c.hidden; j++)
            set(&call.in[LAYER_NORM_X], j,
                middle *
                    (1 + width * (double)random_int(&source, -100, 100) / 100));
        if (c.hidden > 1)
            for (int64_t row = 0; row < c.rows; row++)
                set(&call.in[LAYER_NORM_X], row * c.hidden,
                    middle * (row % 2 ? 1 + width : -0.9));
        judge_call(&call, &c, middle);
        case_free(&call);
    }
}

/* To the bit: nothing is left of a row of one value. */
TEST(a_row_of_one_value_becomes_the_bias)
{
    static const double values[] = {0, 1, -1000.1, 1e6 + 0.7, 3e-30, 5e37};
    for (int i = 0; i < 6 * N_WIDTHS * 3; i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        struct norm_case c = {.op = "layer_norm",
                              .x = norm_type_pairs[i / 6 % 3][0],
                              .weight = norm_type_pairs[i / 6 % 3][1],
                              .rows = 3,
                              .hidden = widths[i / 6 % N_WIDTHS],
                              .scale = 1,
                              .params = i % 2 ? "rounding=type" : NULL};
        if (!check_takes_case() || (c.x == ROPED_F16 && values[i % 6] > 60000))
            continue;
        norm_case_build(&call, &source, &c);
        for (int64_t j = 0; j < 3 * c.hidden; j++)
            set(&call.in[LAYER_NORM_X], j, values[i % 6]);
        CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
        for (int64_t j = 0; j < 3 * c.hidden && !check_failures; j++)
            CHECK_DOUBLE(
                reference_value(&call.out[LAYER_NORM_Y], j),
                reference_value(&call.in[LAYER_NORM_BIAS], j % c.hidden), 0);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
