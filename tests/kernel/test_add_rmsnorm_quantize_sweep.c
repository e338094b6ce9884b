/*
 * test_add_rmsnorm_quantize_sweep.c - add_rmsnorm_quantize on one backend
 * (argument: cpu or cuda) beside the operators that it is made of. Against
 * float64 it is tested with rmsnorm_quantize, in test_rmsnorm_quantize_sweep.c.
 */
#include "check.h"
#include "kernel/norm_case.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct runner runner;
static struct random_source source = {37};

static const struct roped_tensor *output(const struct roped_call *call,
                                         const char *name)
{
    return &call->out[roped_op_output(call->op, name)];
}

static void free_call(struct roped_call *call)
{
    runner_free_outputs(call);
    case_free(call);
}

/* The operators that the fused one, of c, is made of: sum of its tensors, and
 * norm of their sum in float32, with the same weights. */
static void build_parts(struct roped_call *fused, struct roped_call *sum,
                        struct roped_call *norm, const struct norm_case *c)
{
    struct roped_error err;
    struct norm_case other = *c;
    other.op = "rmsnorm_quantize";
    other.x = other.weight = ROPED_F32;
    norm_case_build(fused, &source, c);
    norm_case_build(norm, &source, &other);
    roped_call_init(sum, roped_op_find("add_rmsnorm"));
    case_bind(sum, "x", &fused->in[0]);
    case_bind(sum, "residual", &fused->in[1]);
    CHECK_OK(roped_call_resolve(sum, &err), &err);
    for (int64_t i = 0; i < c->hidden; i++)
        ((float *)norm->in[1].data)[i] =
            (float)reference_value(&fused->in[2], i);
    for (int64_t i = 0; i < c->rows * c->hidden; i++)
        ((float *)norm->in[0].data)[i] =
            (float)(reference_value(&fused->in[0], i) +
                    reference_value(&fused->in[1], i));
}

/* At most so many elements in a million are further apart than slack. */
static void expect_same(const struct norm_case *c, const char *name,
                        const struct roped_call *found,
                        const struct roped_call *expected, double slack,
                        int64_t per_million)
{
    const struct roped_tensor *a = output(found, name);
    const struct roped_tensor *b = output(expected, name);
    int64_t n_wrong = 0,
            n = roped_tensor_given(a) ? roped_tensor_elements(a) : 0;
    for (int64_t i = 0; i < n; i++) {
        double x = reference_value(a, i), y = reference_value(b, i);
        n_wrong += fabs(x - y) > slack * fabs(y);
    }
    if (n_wrong > 1 + n * per_million / 1000000 || (n_wrong && !per_million))
        CHECK_FAIL("%s [%lld, %lld] %s, in place %d: %lld of %s differ",
                   roped_dtype_name(c->x), (long long)c->rows,
                   (long long)c->hidden, c->params, c->options.in_place,
                   (long long)n_wrong, name);
}

/*
 * The norm is that of the float32 sum, not of the residual that is stored,
 * which is add_rmsnorm's to the bit; also in the residual's place, and of one
 * row, which several blocks share. Squares may be added in another order, which
 * moves a scale by its last bit and hardly ever a code.
 */
static void expect_parts(const struct norm_case *c)
{
    static struct roped_call fused, sum, norm;
    static const struct runner_options apart;
    struct roped_error err;
    build_parts(&fused, &sum, &norm, c);
    CHECK_OK(runner_run(&runner, &sum, &apart, &err), &err);
    CHECK_OK(runner_run(&runner, &norm, &apart, &err), &err);
    CHECK_OK(runner_run(&runner, &fused, &c->options, &err), &err);
    if (!check_failures) {
        expect_same(c, "residual", &fused, &sum, 0, 0);
        expect_same(c, "y", &fused, &norm, 0, 30);
        expect_same(c, "scales", &fused, &norm, 1e-6, 0);
    }
    runner_free_outputs(&sum);
    free_call(&norm);
    free_call(&fused);
}

static void expect_bytes(const struct norm_case *c, const char *name,
                         const struct roped_call *found,
                         const struct roped_call *expected)
{
    const struct roped_tensor *a = output(found, name);
    const struct roped_tensor *b = output(expected, name);
    if (roped_tensor_given(a) &&
        memcmp(a->data, b->data, (size_t)roped_tensor_bytes(a)) != 0)
        CHECK_FAIL("%s [%lld, %lld] %s, in place %d: %s differs",
                   roped_dtype_name(c->x), (long long)c->rows,
                   (long long)c->hidden, c->params, c->options.in_place, name);
}

/* With sum_rounding=type y is rmsnorm_quantize of the residual, to the bit, and
 * the residual is the one of sum_rounding=once. */
static void expect_norm_of_residual(const struct norm_case *c)
{
    static struct roped_call fused, once, norm;
    static const struct runner_options apart;
    struct roped_error err;
    struct norm_case plain = *c, rounded = *c;
    char params[160];
    snprintf(params, sizeof params, "%s&sum_rounding=type", c->params);
    rounded.params = params;
    plain.op = "rmsnorm_quantize";
    norm_case_build(&fused, &source, &rounded);
    norm_case_build(&norm, &source, &plain);
    norm_case_again(&once, &fused, c);
    CHECK_OK(runner_run(&runner, &fused, &c->options, &err), &err);
    CHECK_OK(runner_run(&runner, &once, &apart, &err), &err);
    const struct roped_tensor *sum = output(&fused, "residual");
    memcpy(norm.in[0].data, sum->data, (size_t)roped_tensor_bytes(sum));
    memcpy(norm.in[1].data, fused.in[2].data,
           (size_t)roped_tensor_bytes(&fused.in[2]));
    CHECK_OK(runner_run(&runner, &norm, &apart, &err), &err);
    expect_bytes(&rounded, "residual", &fused, &once);
    expect_bytes(&rounded, "y", &fused, &norm);
    expect_bytes(&rounded, "scales", &fused, &norm);
    runner_free_outputs(&once);
    free_call(&norm);
    free_call(&fused);
}

typedef void expect_fn(const struct norm_case *c);

static void expect_in_every_shape(const char *const *params, int n_params,
                                  expect_fn *expect)
{
    static const int64_t shapes[][2] = {{1, 1024},  {1, 4096},  {1, 8192},
                                        {1, 16384}, {1, 32768}, {7, 128},
                                        {300, 512}, {40, 5120}, {3, 40960}};
    for (int i = 0; i < 9; i++)
        for (int t = 0; t < 3; t++)
            for (int p = 0; p < n_params; p++)
                expect(&(struct norm_case){
                    .op = "add_rmsnorm_quantize",
                    .x = norm_type_pairs[t][0],
                    .weight = norm_type_pairs[t][1],
                    .rows = shapes[i][0],
                    .hidden = shapes[i][1],
                    .scale = 2,
                    .params = params[p],
                    .options = {.in_place = (i + t + p) % 2}});
}

TEST(a_sum_is_normalised_before_it_is_rounded)
{
    static const char *const params[] = {"dequant_scale=0.0371", "dynamic=true",
                                         "dynamic=true&group_size=16",
                                         "dynamic=true&group_size=128"};
    expect_in_every_shape(params, 4, expect_parts);
}

TEST(a_rounded_sum_gives_the_codes_of_the_norm_of_the_residual)
{
    static const char *const params[] = {
        "dequant_scale=0.0371",
        "dequant_scale=0.25&rounding=type",
        "dynamic=true&rounding=hf",
        "dynamic=true&rounding=type",
        "dynamic=true&group_size=16",
        "dynamic=true&group_size=128&rounding=type"};
    expect_in_every_shape(params, 6, expect_norm_of_residual);
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
