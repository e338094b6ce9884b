/*
 * test_rmsnorm_quantize_sweep.c - rmsnorm_quantize and add_rmsnorm_quantize on
 * one backend (argument: cpu or cuda) against float64: every type pair, both
 * FP8 types, given and dynamic scales, per row and per group in every layout,
 * every rounding, odd and wide rows, no rows, misaligned memory; NaN, Inf, -0,
 * values that saturate; and the same bits however many rows came along.
 */
#include "check.h"
#include "kernel/norm_case.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"

#include "ops/rmsnorm_quantize.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>

static struct runner runner;
static struct random_source source = {31};

/* x alone, and x + residual. */
static const char *const ops[] = {"rmsnorm_quantize", "add_rmsnorm_quantize"};
enum { N_OPS = 2 };

static void run_case(const struct norm_case *c)
{
    norm_case_run(&runner, &source, c);
}

/* Where scales come from, and the width that they need to divide. */
static const struct scaling {
    const char *params;
    int group;
} scalings[] = {{"dequant_scale=1", 1},
                {"dequant_scale=0.0371", 1},
                {"dequant_scale=0.00004", 1},
                {"dequant_scale=300&scale_layout=columns", 1},
                {"dynamic=true", 1},
                {"dynamic=true&scale_ub=1.5", 1},
                {"dynamic=true&scale_ub=-0.003&scale_layout=rows_2d", 1},
                {"dynamic=true&scale_ub=0&scale_layout=columns_4", 1},
                {"dynamic=true&group_size=16", 16},
                {"dynamic=true&group_size=16&scale_layout=columns", 16},
                {"dynamic=true&group_size=32", 32},
                {"dynamic=true&group_size=32&scale_layout=columns_4", 32},
                {"dynamic=true&group_size=64", 64},
                {"dynamic=true&group_size=64&scale_ub=1", 64},
                {"dynamic=true&group_size=128", 128},
                {"dynamic=true&group_size=128&scale_layout=columns_4", 128}};
enum { N_SCALINGS = sizeof scalings / sizeof *scalings, FIRST_DYNAMIC = 4 };

static const char *random_scaling(int64_t hidden)
{
    const struct scaling *scaling;
    do
        scaling = &scalings[random_int(&source, 0, N_SCALINGS - 1)];
    while (hidden % scaling->group);
    return scaling->params;
}

/* A case's parameters: scaling, FP8 type and what rmsnorm has, one at a time;
 * and of which sum an op that adds takes the norm. */
static const char *params_of(const char *op, const char *scaling)
{
    static const char *const norm[] = {
        "",
        "",
        "&weight_bias=1",
        "&rounding=hf",
        "&rounding=hf&weight_bias=1",
        "&rounding=type",
        "&rounding=type",
        "&rounding=type&weight_bias=1",
    };
    static char text[160];
    bool adds = roped_op_input(roped_op_find(op), "residual") >= 0;
    snprintf(text, sizeof text, "%s%s%s%s", scaling,
             random_once_in(&source, 2) ? "&output_dtype=e5m2" : "",
             norm[random_int(&source, 0, 7)],
             adds && random_once_in(&source, 2) ? "&sum_rounding=type" : "");
    return text;
}

TEST(every_type_and_width_is_correctly_rounded)
{
    static const int64_t widths[] = {
        1,    2,    3,    7,    8,     16,    31,    48,   64,   100,
        111,  127,  128,  192,  256,   320,   336,   500,  512,  640,
        769,  1024, 1025, 1536, 2048,  2112,  3072,  3584, 4096, 5120,
        5137, 8192, 8256, 8200, 11008, 16384, 16448, 32768};
    static const int64_t rows[] = {1, 2, 3, 5, 17, 130};
    for (int t = 0; t < N_OPS * NORM_TYPE_PAIRS; t++)
        for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int misalign = 0; misalign < 2; misalign++) {
                struct norm_case c = {
                    .op = ops[t % N_OPS],
                    .x = norm_type_pairs[t / N_OPS][0],
                    .weight = norm_type_pairs[t / N_OPS][1],
                    .rows = random_pick(&source, rows, 6),
                    .hidden = widths[i],
                    .scale = random_once_in(&source, 2) ? 1 : 30,
                    .params =
                        params_of(ops[t % N_OPS], random_scaling(widths[i])),
                    .options = {.misalign_elements = misalign,
                                .in_place = random_once_in(&source, 2)}};
                if (c.hidden > 2048 && c.rows > 5)
                    c.rows = 5;
                run_case(&c);
            }
}

/* Every tier of widths with every kind of scale, aligned and not. */
TEST(every_scale_works_at_every_width_of_groups)
{
    static const int64_t widths[] = {
        16,   48,   64,   128,  160,  192,  256,  384,   512,   1040,  1024,
        1152, 2048, 2176, 4096, 4224, 8192, 8320, 16384, 16512, 32768, 33024};
    for (int t = 0; t < 3 * N_OPS; t++)
        for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int s = FIRST_DYNAMIC; s < N_SCALINGS; s++)
                for (int misalign = 0; misalign < 2; misalign++) {
                    struct norm_case c = {
                        .op = ops[t % N_OPS],
                        .x = norm_type_pairs[t / N_OPS][0],
                        .weight = norm_type_pairs[t / N_OPS][1],
                        .rows = widths[i] > 4096 ? 2 : 67,
                        .hidden = widths[i],
                        .scale = 1,
                        .params = params_of(ops[t % N_OPS], scalings[s].params),
                        .options = {.misalign_elements = misalign,
                                    .in_place = random_once_in(&source, 2)}};
                    if (widths[i] % scalings[s].group)
                        continue;
                    run_case(&c);
                }
}

/* Enough rows that a group of threads takes several, in turn. */
TEST(many_rows_are_correctly_rounded)
{
    static const int64_t shapes[][2] = {{40000, 1},  {70001, 8},   {30011, 64},
                                        {9001, 128}, {5003, 320},  {1100, 1536},
                                        {9001, 256}, {4301, 1032}, {0, 64}};
    for (int i = 0; i < 9; i++)
        for (int t = 0; t < 3 * N_OPS; t++) {
            struct norm_case c = {
                .op = ops[t % N_OPS],
                .x = norm_type_pairs[t / N_OPS][0],
                .weight = norm_type_pairs[t / N_OPS][1],
                .rows = shapes[i][0],
                .hidden = shapes[i][1],
                .scale = 1,
                .params =
                    params_of(ops[t % N_OPS], random_scaling(shapes[i][1]))};
            run_case(&c);
        }
}

TEST(very_wide_rows_are_correctly_rounded)
{
    static const int64_t widths[] = {65536, 65544, 131072, 262147};
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 3 * N_OPS; t++)
            for (int s = FIRST_DYNAMIC - 1; s < N_SCALINGS; s += 2) {
                struct norm_case c = {
                    .op = ops[t % N_OPS],
                    .x = norm_type_pairs[t / N_OPS][0],
                    .weight = norm_type_pairs[t / N_OPS][1],
                    .rows = 2,
                    .hidden = widths[i],
                    .scale = 1,
                    .params = params_of(ops[t % N_OPS], scalings[s].params)};
                if (widths[i] % scalings[s].group)
                    continue;
                run_case(&c);
            }
}

/* ---------------------------------------------------------- exact results */

/* A call with its one row of x, and no weight, as they are. */
static void run_row(struct roped_call *call, const float *x, int64_t hidden,
                    const float *weight, const char *params)
{
    struct roped_error err;
    struct norm_case c = {.op = "rmsnorm_quantize",
                          .x = ROPED_F32,
                          .weight = weight ? ROPED_F32 : ROPED_NO_DTYPE,
                          .rows = 1,
                          .hidden = hidden,
                          .params = params};
    norm_case_build(call, &source, &c);
    memcpy(call->in[RMSNORM_QUANTIZE_X].data, x, (size_t)hidden * sizeof *x);
    if (weight)
        memcpy(call->in[RMSNORM_QUANTIZE_WEIGHT].data, weight,
               (size_t)hidden * sizeof *weight);
    CHECK_OK(runner_run(&runner, call, &c.options, &err), &err);
}

static void free_call(struct roped_call *call)
{
    runner_free_outputs(call);
    case_free(call);
}

static uint8_t code_at(const struct roped_call *call, int64_t i)
{
    return ((const uint8_t *)call->out[RMSNORM_QUANTIZE_Y].data)[i];
}

static float scale_at(const struct roped_call *call, int64_t i)
{
    return ((const float *)call->out[RMSNORM_QUANTIZE_SCALES].data)[i];
}

/*
 * What rmsnorm computes in float32, divided in float32 and rounded: the same
 * codes and scales, bit for bit.
 */
TEST(codes_are_those_of_the_quotient)
{
    static const char *const params[] = {"dequant_scale=0.0371",
                                         "dequant_scale=3", "dynamic=true",
                                         "dynamic=true&scale_ub=1.7"};
    static const int64_t widths[] = {64, 100, 1024, 4096, 16384, 40000};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 6; i++) {
            static struct roped_call call, norm;
            struct roped_error err;
            int64_t h = widths[i], rows = 9;
            struct norm_case c = {.op = "rmsnorm_quantize",
                                  .x = ROPED_F32,
                                  .weight = ROPED_F32,
                                  .rows = rows,
                                  .hidden = h,
                                  .scale = 2,
                                  .params = params[p]};
            norm_case_build(&call, &source, &c);
            roped_call_init(&norm, roped_op_find("rmsnorm"));
            case_bind(&norm, "x", &call.in[RMSNORM_QUANTIZE_X]);
            case_bind(&norm, "weight", &call.in[RMSNORM_QUANTIZE_WEIGHT]);
            CHECK_OK(roped_call_resolve(&norm, &err), &err);
            CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
            CHECK_OK(runner_run(&runner, &norm, &c.options, &err), &err);
            const float *y = norm.out[RMSNORM_Y].data;
            int64_t n_wrong = 0;
            for (int64_t row = 0; row < rows && !check_failures; row++) {
                float largest = 0, scale = p == 0 ? 0.0371f : 3;
                for (int64_t j = 0; j < h; j++)
                    largest = fmaxf(largest, fabsf(y[row * h + j]));
                if (p >= 2) {
                    float bound = p == 3 ? 1.7f : FLT_MAX;
                    scale = fmaxf(fminf(largest, bound) / 448, 1 / 229376.0f);
                    CHECK(scale_at(&call, row) == scale);
                }
                for (int64_t j = 0; j < h; j++)
                    n_wrong += code_at(&call, row * h + j) !=
                               roped_float_to_e4m3(y[row * h + j] / scale);
            }
            if (n_wrong)
                CHECK_FAIL("%s, width %lld: %lld codes differ", params[p],
                           (long long)h, (long long)n_wrong);
            runner_free_outputs(&norm);
            free_call(&call);
        }
}

/*
 * rounding=type: rmsnorm with hf's rounding into the type of x, whose values
 * are then divided and rounded on their own. The same codes, bit for bit: what
 * a separate quantization gives, and vLLM's fused one.
 */
static void expect_codes_of_type(enum roped_dtype dtype, int64_t h,
                                 const char *params, int64_t group)
{
    static struct roped_call call, norm;
    struct roped_error err;
    char text[160];
    int64_t n_wrong = 0;
    snprintf(text, sizeof text, "%s&rounding=type", params);
    struct norm_case c = {.op = "rmsnorm_quantize",
                          .x = dtype,
                          .weight = dtype,
                          .rows = 9,
                          .hidden = h,
                          .scale = 2,
                          .params = text};
    norm_case_build(&call, &source, &c);
    roped_call_init(&norm, roped_op_find("rmsnorm"));
    case_bind(&norm, "x", &call.in[RMSNORM_QUANTIZE_X]);
    case_bind(&norm, "weight", &call.in[RMSNORM_QUANTIZE_WEIGHT]);
    case_param(&norm, "rounding", "hf");
    CHECK_OK(roped_call_resolve(&norm, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
    CHECK_OK(runner_run(&runner, &norm, &c.options, &err), &err);
    for (int64_t i = 0; i < 9 * h && !check_failures; i += group) {
        float largest = 0;
        for (int64_t j = i; j < i + group; j++)
            largest =
                fmaxf(largest,
                      fabsf((float)reference_value(&norm.out[RMSNORM_Y], j)));
        float scale = fmaxf(largest / 448, 1 / 229376.0f);
        CHECK(scale_at(&call, i / group) == scale);
        for (int64_t j = i; j < i + group; j++)
            n_wrong +=
                code_at(&call, j) !=
                roped_float_to_e4m3(
                    (float)reference_value(&norm.out[RMSNORM_Y], j) / scale);
    }
    if (n_wrong)
        CHECK_FAIL("%s, %s, width %lld: %lld codes differ",
                   roped_dtype_name(dtype), text, (long long)h,
                   (long long)n_wrong);
    runner_free_outputs(&norm);
    free_call(&call);
}

TEST(rounding_to_the_type_gives_codes_of_the_rounded_norm)
{
    static const int64_t widths[] = {128, 1024, 4096, 5120, 16384, 40960};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 6; i++) {
            enum roped_dtype dtype = norm_type_pairs[t][0];
            expect_codes_of_type(dtype, widths[i], "dynamic=true", widths[i]);
            expect_codes_of_type(dtype, widths[i],
                                 "dynamic=true&group_size=128", 128);
            expect_codes_of_type(dtype, widths[i], "dynamic=true&group_size=32",
                                 32);
            expect_codes_of_type(dtype, widths[i], "dynamic=true&group_size=16",
                                 16);
        }
}

/* A product beyond float16 is Inf there, and the largest code: never NaN. */
TEST(a_norm_beyond_its_type_saturates)
{
    static const char *const params[] = {
        "eps=0&rounding=type&dequant_scale=3",
        "eps=0&rounding=type&dynamic=true&scale_ub=3",
        "eps=0&rounding=type&dynamic=true&group_size=16"};
    for (int p = 0; p < 3; p++) {
        static struct roped_call call;
        struct roped_error err;
        struct norm_case c = {.op = "rmsnorm_quantize",
                              .x = ROPED_F16,
                              .weight = ROPED_F16,
                              .rows = 1,
                              .hidden = 64,
                              .params = params[p]};
        norm_case_build(&call, &source, &c);
        uint16_t *x = call.in[RMSNORM_QUANTIZE_X].data;
        uint16_t *weight = call.in[RMSNORM_QUANTIZE_WEIGHT].data;
        for (int i = 0; i < 64; i++) {
            x[i] = roped_float_to_f16(i ? 0 : -8); /* normalised: 8 */
            weight[i] = roped_float_to_f16(i ? 1 : 60000);
        }
        CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
        for (int i = 0; i < 64 && !check_failures; i++)
            CHECK_INT(code_at(&call, i), i ? 0 : 0xFE);
        free_call(&call);
    }
}

/* Any bound will do: from 0 down, the scale is the smallest there is. */
TEST(a_bound_that_is_not_positive_gives_the_smallest_scale)
{
    static const char *const bounds[] = {"0", "-0.0", "-1e-30", "-3e38"};
    float x[32];
    for (int i = 0; i < 32; i++)
        x[i] = i % 2 ? 1 : -1;
    for (int b = 0; b < 4; b++) {
        static struct roped_call call;
        char params[64];
        snprintf(params, sizeof params,
                 "dynamic=true&group_size=16&scale_ub=%s", bounds[b]);
        run_row(&call, x, 32, NULL, params);
        for (int i = 0; i < 2 && !check_failures; i++)
            CHECK(scale_at(&call, i) == 1 / 229376.0f);
        for (int i = 0; i < 32 && !check_failures; i++)
            CHECK_INT(code_at(&call, i), i % 2 ? 0x7E : 0xFE);
        free_call(&call);
    }
}

TEST(a_nan_is_kept_and_its_row_has_the_smallest_scale)
{
    static struct roped_call call;
    float x[200];
    for (int i = 0; i < 200; i++)
        x[i] = i == 17 ? NAN : 1;
    for (int p = 0; p < 2; p++) {
        run_row(&call, x, 200, NULL, p ? "dynamic=true" : "dequant_scale=2");
        for (int i = 0; i < 200 && !check_failures; i++)
            CHECK_INT(code_at(&call, i), 0x7F);
        if (p && !check_failures)
            CHECK(scale_at(&call, 0) == 1 / 229376.0f);
        free_call(&call);
    }
}

/* Also NaN whose lower bits look like those of a number far from any code. */
TEST(a_row_of_nan_with_bits_of_their_own_is_nan)
{
    static struct roped_call call;
    static const uint32_t bits = 0x7FD55555;
    static const char *const params[] = {"dequant_scale=2", "dynamic=true",
                                         "dynamic=true&group_size=128"};
    float x[256];
    for (int i = 0; i < 256; i++)
        memcpy(&x[i], &bits, sizeof bits);
    for (int p = 0; p < 3; p++) {
        run_row(&call, x, 256, NULL, params[p]);
        for (int i = 0; i < 256 && !check_failures; i++)
            CHECK_INT(code_at(&call, i), 0x7F);
        free_call(&call);
    }
}

/* One column of the weight is NaN or Inf: the others keep their values. */
TEST(a_weight_that_is_not_finite_spoils_its_column_alone)
{
    static struct roped_call call;
    float x[256], weight[256];
    for (int i = 0; i < 256; i++) {
        x[i] = i % 2 ? 1 : -1;
        weight[i] = 1;
    }
    weight[7] = NAN;
    run_row(&call, x, 256, weight, "eps=0&dynamic=true");
    for (int i = 0; i < 256 && !check_failures; i++)
        CHECK_INT(code_at(&call, i), i == 7 ? 0x7F : i % 2 ? 0x7E : 0xFE);
    free_call(&call);
    run_row(&call, x, 256, weight, "eps=0&dynamic=true&group_size=128");
    for (int i = 0; i < 256 && !check_failures; i++)
        CHECK_INT(code_at(&call, i), i == 7 ? 0x7F : i % 2 ? 0x7E : 0xFE);
    free_call(&call);
    weight[7] = -INFINITY;
    run_row(&call, x, 256, weight, "eps=0&dynamic=true&scale_ub=1");
    for (int i = 0; i < 256 && !check_failures; i++)
        CHECK_INT(code_at(&call, i), i == 7 ? 0xFE : i % 2 ? 0x7E : 0xFE);
    free_call(&call);
    run_row(&call, x, 256, weight, "eps=0&dynamic=true&group_size=128");
    if (!check_failures) {
        CHECK(isfinite(scale_at(&call, 0)));
        CHECK(scale_at(&call, 1) == 1 / 448.0f);
        CHECK_INT(code_at(&call, 7), 0xFE); /* -Inf saturates */
        CHECK_INT(code_at(&call, 128), 0xFE);
    }
    free_call(&call);
}

/* Rows of powers of two come out exact: subnormal codes, -0, ties to even. */
TEST(small_codes_ties_and_signs_are_kept)
{
    static struct roped_call call;
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = i % 2 ? 1 : -1; /* mean square 1 */
    float weight[64] = {-0.0f,    0,          0x1p-9f, -0x1p-9f, 0x3p-10f,
                        0x1p-10f, 0x1.1p-10f, 17,      19,       1e30f};
    static const uint8_t expected[] = {0x80, 0x00, 0x81, 0x81, 0x82,
                                       0x00, 0x81, 0x58, 0xDA, 0x7E};
    run_row(&call, x, 64, weight, "eps=0");
    for (int i = 0; i < 10 && !check_failures; i++)
        CHECK_INT(code_at(&call, i), expected[i]);
    free_call(&call);
}

/*
 * Values whose quotient is half-way between two codes, exactly: a product with
 * the divisor's reciprocal misses some of them.
 */
TEST(values_are_divided_and_not_multiplied)
{
    float x[64], weight[64];
    for (int i = 0; i < 64; i++)
        x[i] = 1;
    for (int divisor = 3; divisor < 200; divisor += 2) {
        static struct roped_call call;
        char params[64];
        for (int i = 0; i < 64; i++) /* 17, 19 .. 31 times powers of two */
            weight[i] =
                ldexpf((float)(17 + 2 * (i % 8)), i / 8 - 4) * (float)divisor;
        snprintf(params, sizeof params, "eps=0&dequant_scale=%d", divisor);
        run_row(&call, x, 64, weight, params);
        for (int i = 0; i < 64 && !check_failures; i++) {
            uint8_t even = roped_float_to_e4m3(weight[i] / (float)divisor);
            if (code_at(&call, i) != even)
                CHECK_FAIL("%g / %d is %#x, expected %#x", (double)weight[i],
                           divisor, code_at(&call, i), even);
        }
        free_call(&call);
    }
}

TEST(rows_of_zeros_have_the_smallest_scale)
{
    static struct roped_call call;
    float x[128] = {0};
    run_row(&call, x, 128, NULL, "dynamic=true&output_dtype=e5m2");
    if (!check_failures) {
        CHECK(scale_at(&call, 0) == 1 / (512 * 57344.0f));
        CHECK_INT(code_at(&call, 0), 0);
    }
    free_call(&call);
}

/* The ends of the range of float32: no quotient may turn into NaN. */
TEST(extreme_scales_saturate_or_vanish)
{
    static const char *const params[] = {
        "eps=0&dequant_scale=1.4012985e-45", "eps=0&dequant_scale=1e-38",
        "eps=0&dequant_scale=3.4e38", "eps=0&dequant_scale=1e35"};
    static struct roped_call call;
    float x[64], weight[64] = {0};
    for (int i = 0; i < 64; i++)
        x[i] = i % 2 ? -1 : 1;
    weight[1] = 1;
    weight[2] = 3e38f;
    weight[3] = 1e-42f;
    static const uint8_t expected[4][4] = {{0x00, 0xFE, 0x7E, 0xFE},
                                           {0x00, 0xFE, 0x7E, 0x80},
                                           {0x00, 0x80, 0x36, 0x80},
                                           {0x00, 0x80, 0x7E, 0x80}};
    for (int p = 0; p < 4; p++) {
        run_row(&call, x, 64, weight, params[p]);
        for (int i = 0; i < 4 && !check_failures; i++)
            if (code_at(&call, i) != expected[p][i])
                CHECK_FAIL("%s: code %d is %#x, expected %#x", params[p], i,
                           code_at(&call, i), expected[p][i]);
        free_call(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
