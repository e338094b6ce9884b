/*
 * test_rmsnorm_sweep.c - rmsnorm on one backend (argument: cpu or cuda)
 * against float64: every type pair, odd and wide rows, no rows, misaligned
 * memory, special values; and the same bits however many rows came along.
 */
#include "check.h"
#include "kernel/random.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

#include "ops/rmsnorm.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {7};

static void make(struct roped_tensor *tensor, enum roped_dtype dtype, int rank,
                 const int64_t *dims, double scale, bool specials)
{
    *tensor = (struct roped_tensor){.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        tensor->dims[i] = dims[i];
    tensor->data = runner_alloc((size_t)roped_tensor_bytes(tensor));
    random_fill(&source, tensor, scale, specials);
}

struct norm_case {
    enum roped_dtype x, weight; /* weight ROPED_NO_DTYPE: absent */
    int64_t rows, hidden;
    double scale;
    bool is_hf, is_gemma;
    struct runner_options options;
};

static void bind_case(struct roped_call *call, const struct norm_case *c,
                      const struct roped_tensor *x,
                      const struct roped_tensor *weight)
{
    struct roped_error err;
    roped_call_init(call, roped_op_find("rmsnorm"));
    CHECK_OK(roped_call_bind(call, "x", x, &err), &err);
    if (c->weight)
        CHECK_OK(roped_call_bind(call, "weight", weight, &err), &err);
    if (c->is_hf)
        CHECK_OK(roped_call_set_text(call, "rounding", "hf", &err), &err);
    if (c->is_gemma)
        CHECK_OK(roped_call_set_text(call, "weight_bias", "1", &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
}

static void run_case(const struct norm_case *c)
{
    static struct roped_call call;
    struct roped_error err;
    struct reference_judge judge = {0};
    struct roped_tensor x, weight = {.data = NULL};
    make(&x, c->x, 2, (int64_t[]){c->rows, c->hidden}, c->scale, true);
    if (c->weight)
        make(&weight, c->weight, 1, &c->hidden, 1, false);
    bind_case(&call, c, &x, &weight);
    CHECK_OK(runner_run(&runner, &call, &c->options, &err), &err);
    if (!check_failures)
        reference_judge(&call, &judge);
    if (judge.n_wrong || check_failures)
        CHECK_FAIL("x %s weight %s [%lld, %lld] scale %g hf %d gemma %d "
                   "misaligned %d in place %d: %lld of %lld wrong: %s",
                   roped_dtype_name(c->x), roped_dtype_name(c->weight),
                   (long long)c->rows, (long long)c->hidden, c->scale, c->is_hf,
                   c->is_gemma, c->options.misalign_elements,
                   c->options.in_place, (long long)judge.n_wrong,
                   (long long)judge.n_checked, judge.first);
    runner_free_outputs(&call);
    free(x.data);
    free(weight.data);
}

static const enum roped_dtype type_pairs[][2] = {
    {ROPED_F32, ROPED_F32},      {ROPED_F16, ROPED_F16},
    {ROPED_BF16, ROPED_BF16},    {ROPED_F32, ROPED_F16},
    {ROPED_F32, ROPED_BF16},     {ROPED_F16, ROPED_F32},
    {ROPED_BF16, ROPED_F32},     {ROPED_F32, ROPED_NO_DTYPE},
    {ROPED_F16, ROPED_NO_DTYPE}, {ROPED_BF16, ROPED_NO_DTYPE},
};

TEST(every_type_and_width_is_within_tolerance)
{
    static const int64_t widths[] = {
        1,    2,    3,    7,    8,    31,   64,    100,   111,  127,
        128,  256,  320,  500,  512,  769,  1024,  1536,  2048, 2056,
        3072, 3584, 4096, 5120, 5125, 8192, 11008, 16384, 16392};
    static const int64_t rows[] = {1, 2, 3, 5, 17, 130};
    for (unsigned t = 0; t < sizeof type_pairs / sizeof *type_pairs; t++)
        for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int misalign = 0; misalign < 2; misalign++) {
                struct norm_case c = {
                    .x = type_pairs[t][0],
                    .weight = type_pairs[t][1],
                    .rows = random_pick(&source, rows, 6),
                    .hidden = widths[i],
                    .scale = random_once_in(&source, 2) ? 1 : 30,
                    .is_hf = random_once_in(&source, 4),
                    .is_gemma = random_once_in(&source, 4),
                    .options = {.misalign_elements = misalign,
                                .in_place = random_once_in(&source, 4)}};
                if (c.hidden > 4096 && c.rows > 17)
                    c.rows = 17;
                run_case(&c);
            }
}

TEST(very_wide_rows_are_within_tolerance)
{
    static const int64_t widths[] = {32768, 65536, 65544, 131072, 262147};
    for (unsigned i = 0; i < 5; i++)
        for (unsigned t = 0; t < 3; t++) {
            struct norm_case c = {.x = type_pairs[t][0],
                                  .weight = type_pairs[t][1],
                                  .rows = 3,
                                  .hidden = widths[i],
                                  .scale = 1};
            run_case(&c);
        }
}

TEST(many_narrow_rows_are_within_tolerance)
{
    static const int64_t widths[] = {1, 2, 8, 64, 128, 192, 256};
    for (unsigned i = 0; i < 7; i++)
        for (unsigned t = 0; t < 3; t++) {
            struct norm_case c = {.x = type_pairs[t][0],
                                  .weight = type_pairs[t][1],
                                  .rows = 3001,
                                  .hidden = widths[i],
                                  .scale = 1};
            run_case(&c);
        }
}

TEST(no_rows_are_an_empty_answer)
{
    for (unsigned t = 0; t < 3; t++) {
        struct norm_case c = {.x = type_pairs[t][0],
                              .weight = type_pairs[t][1],
                              .rows = 0,
                              .hidden = 64,
                              .scale = 1};
        run_case(&c);
    }
}

/* Runs rows [first, first + n) of x and returns the result. */
static unsigned char *norm_rows(const struct norm_case *c,
                                const struct roped_tensor *x,
                                const struct roped_tensor *weight,
                                int64_t first, int64_t n)
{
    static struct roped_call call;
    struct roped_error err;
    struct roped_tensor part = *x;
    part.dims[0] = n;
    part.data = (unsigned char *)x->data +
                (size_t)(first * x->dims[1]) * roped_dtype_bytes(x->dtype);
    bind_case(&call, c, &part, weight);
    CHECK_OK(runner_run(&runner, &call, &c->options, &err), &err);
    unsigned char *result = call.out[RMSNORM_Y].data;
    call.out[RMSNORM_Y].data = NULL;
    runner_free_outputs(&call);
    return result;
}

TEST(bits_of_a_row_do_not_depend_on_the_other_rows)
{
    static const int64_t widths[] = {64, 128, 1000, 4096, 16384, 40000};
    for (unsigned i = 0; i < 6; i++)
        for (unsigned t = 0; t < 3; t++) {
            struct norm_case c = {.x = type_pairs[t][0],
                                  .weight = type_pairs[t][1],
                                  .rows = 259,
                                  .hidden = widths[i]};
            struct roped_tensor x, weight;
            make(&x, c.x, 2, (int64_t[]){c.rows, c.hidden}, 3, false);
            make(&weight, c.weight, 1, &c.hidden, 1, false);
            size_t row_bytes = (size_t)c.hidden * roped_dtype_bytes(c.x);
            unsigned char *all = norm_rows(&c, &x, &weight, 0, c.rows);
            unsigned char *again = norm_rows(&c, &x, &weight, 0, c.rows);
            unsigned char *one = norm_rows(&c, &x, &weight, 200, 1);
            if (all && again && one) {
                CHECK(memcmp(all, again, row_bytes * (size_t)c.rows) == 0);
                CHECK(memcmp(all + 200 * row_bytes, one, row_bytes) == 0);
            }
            free(all);
            free(again);
            free(one);
            free(x.data);
            free(weight.data);
        }
}

/* Whoever shares out one row must not read what another has replaced. */
TEST(one_row_in_its_own_place_has_the_same_bits)
{
    static const int64_t widths[] = {1024, 2048, 4096, 8192, 16384, 32768};
    for (unsigned i = 0; i < 6; i++)
        for (unsigned t = 0; t < 3; t++) {
            struct norm_case c = {.x = type_pairs[t][0],
                                  .weight = type_pairs[t][1],
                                  .rows = 1,
                                  .hidden = widths[i]};
            struct norm_case in_place = c;
            struct roped_tensor x, weight;
            size_t row_bytes = (size_t)c.hidden * roped_dtype_bytes(c.x);
            in_place.options.in_place = true;
            make(&x, c.x, 2, (int64_t[]){1, c.hidden}, 3, false);
            make(&weight, c.weight, 1, &c.hidden, 1, false);
            unsigned char *apart = norm_rows(&c, &x, &weight, 0, 1);
            for (int again = 0; again < 8; again++) {
                unsigned char *same = norm_rows(&in_place, &x, &weight, 0, 1);
                CHECK(apart && same && memcmp(apart, same, row_bytes) == 0);
                free(same);
            }
            free(apart);
            free(x.data);
            free(weight.data);
        }
}

TEST(non_finite_values_make_their_row_nan_and_no_other)
{
    struct norm_case c = {
        .x = ROPED_F32, .weight = ROPED_F32, .rows = 3, .hidden = 200};
    struct roped_tensor x, weight;
    make(&x, c.x, 2, (int64_t[]){3, 200}, 1, false);
    make(&weight, c.weight, 1, &c.hidden, 1, false);
    ((float *)x.data)[200 + 17] = NAN;
    float *y = (float *)norm_rows(&c, &x, &weight, 0, 3);
    if (y) {
        CHECK(isfinite(y[0]) && isfinite(y[199]));
        CHECK(isnan(y[200]) && isnan(y[399]));
        CHECK(isfinite(y[400]) && isfinite(y[599]));
    }
    free(y);
    free(x.data);
    free(weight.data);
}

/* Squares beyond float32's range, both ways, still normalise. */
TEST(values_whose_squares_leave_float32_normalise)
{
    static const float values[] = {3e38f, 1e-30f};
    static const int64_t widths[] = {64, 1000, 4096, 40000};
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < 4; i++) {
            static struct roped_call call;
            struct roped_error err;
            struct runner_options options = {0};
            struct roped_tensor x = {
                .dtype = ROPED_F32, .rank = 2, .dims = {2, widths[i]}};
            float *memory = runner_alloc((size_t)roped_tensor_bytes(&x));
            for (int64_t j = 0; j < 2 * widths[i]; j++)
                memory[j] = j % 3 ? values[v] : -values[v];
            x.data = memory;
            roped_call_init(&call, roped_op_find("rmsnorm"));
            CHECK_OK(roped_call_bind(&call, "x", &x, &err), &err);
            CHECK_OK(roped_call_set_text(&call, "eps", "0", &err), &err);
            CHECK_OK(roped_call_resolve(&call, &err), &err);
            CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
            const float *y = call.out[RMSNORM_Y].data;
            for (int64_t j = 0; y && j < 2 * widths[i]; j++)
                if (!(fabsf(y[j] - (j % 3 ? 1.0f : -1.0f)) < 1e-5f)) {
                    CHECK_FAIL("%g, width %lld: y[%lld] is %g",
                               (double)values[v], (long long)widths[i],
                               (long long)j, (double)y[j]);
                    break;
                }
            runner_free_outputs(&call);
            free(memory);
        }
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    RUN(every_type_and_width_is_within_tolerance);
    RUN(very_wide_rows_are_within_tolerance);
    RUN(many_narrow_rows_are_within_tolerance);
    RUN(no_rows_are_an_empty_answer);
    RUN(bits_of_a_row_do_not_depend_on_the_other_rows);
    RUN(one_row_in_its_own_place_has_the_same_bits);
    RUN(non_finite_values_make_their_row_nan_and_no_other);
    RUN(values_whose_squares_leave_float32_normalise);
    runner_close(&runner);
    return check_done();
}
