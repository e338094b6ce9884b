/*
 * test_exact.c - results that no tolerance may blur, on one backend (argument:
 * cpu or cuda): codes of values half-way between two of them, scales at the
 * ends of their range, division by zero.
 */
#include "check.h"
#include "kernel/case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"
#include "kernel/values.h"

#include "ops/binary_backward.h"
#include "ops/quantize.h"
#include "ops/rmsnorm_quantize.h"

#include <roped/numeric.h>

#include <math.h>

static struct runner runner;
static const struct runner_options plain;

/* ------------------------------------------------------------ codes of norms
 */

enum { H = 64 };

/* The codes of a row of 1 and -1, or 1 alone, whose norm is the weight with
 * that sign: they are its quotients with the scale. */
static void codes_of(const float *weight, bool has_signs, const char *params,
                     uint8_t *codes)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    float x[H];
    struct roped_tensor of_x = {ROPED_F32, 2, {1, H}, x};
    struct roped_tensor of_weight = {
        ROPED_F32, 1, {H}, (void *)(uintptr_t)weight};
    for (int i = 0; i < H; i++)
        x[i] = has_signs && i % 2 == 0 ? -1 : 1;
    roped_call_init(&call, roped_op_find("rmsnorm_quantize"));
    case_bind(&call, "x", &of_x);
    case_bind(&call, "weight", &of_weight);
    case_params(&call, params);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
    if (call.out[RMSNORM_QUANTIZE_Y].data)
        memcpy(codes, call.out[RMSNORM_QUANTIZE_Y].data, H);
    runner_free_outputs(&call);
}

/* Subnormal codes, -0, ties to even. */
TEST(small_codes_ties_and_signs_are_kept)
{
    static const float weight[H] = {-0.0f,    0,        0x1p-9f,    -0x1p-9f,
                                    0x3p-10f, 0x1p-10f, 0x1.1p-10f, 17,
                                    19,       1e30f};
    static const uint8_t expected[] = {0x80, 0x00, 0x81, 0x81, 0x82,
                                       0x00, 0x81, 0x58, 0xDA, 0x7E};
    uint8_t codes[H] = {0};
    codes_of(weight, true, "eps=0", codes);
    for (int i = 0; i < 10; i++)
        CHECK_INT(codes[i], expected[i]);
}

/*
 * Values whose quotient is half-way between two codes, exactly: a product with
 * the divisor's reciprocal misses some of them.
 */
TEST(values_are_divided_and_not_multiplied)
{
    for (int divisor = 3; divisor < 200; divisor += 2) {
        float weight[H];
        uint8_t codes[H] = {0};
        char params[64];
        for (int i = 0; i < H; i++) /* 17, 19 .. 31 times powers of two */
            weight[i] =
                ldexpf((float)(17 + 2 * (i % 8)), i / 8 - 4) * (float)divisor;
        snprintf(params, sizeof params, "eps=0&dequant_scale=%d", divisor);
        codes_of(weight, false, params, codes);
        for (int i = 0; i < H; i++)
            CHECK_INT(codes[i],
                      roped_float_to_e4m3(weight[i] / (float)divisor));
    }
}

/* The ends of the range of float32: no quotient may turn into NaN. */
TEST(extreme_scales_saturate_or_vanish)
{
    static const char *const params[] = {
        "eps=0&dequant_scale=1.4012985e-45", "eps=0&dequant_scale=1e-38",
        "eps=0&dequant_scale=3.4e38", "eps=0&dequant_scale=1e35"};
    static const float weight[H] = {0, -1, 3e38f, -1e-42f};
    static const uint8_t expected[4][4] = {{0x00, 0xFE, 0x7E, 0xFE},
                                           {0x00, 0xFE, 0x7E, 0x80},
                                           {0x00, 0x80, 0x36, 0x80},
                                           {0x00, 0x80, 0x7E, 0x80}};
    for (int p = 0; p < 4; p++) {
        uint8_t codes[H] = {0};
        codes_of(weight, false, params[p], codes);
        for (int i = 0; i < 4; i++)
            CHECK_INT(codes[i], expected[p][i]);
    }
}

/* ----------------------------------------------------------------- division */

enum { N = 4 };

static void divide(const float *g, const float *a, const float *b,
                   float *grad_a, float *grad_b)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct roped_tensor of_g = {ROPED_F32, 1, {N}, (void *)(uintptr_t)g};
    struct roped_tensor of_a = {ROPED_F32, 1, {N}, (void *)(uintptr_t)a};
    struct roped_tensor of_b = {ROPED_F32, 1, {N}, (void *)(uintptr_t)b};
    roped_call_init(&call, roped_op_find("binary_backward"));
    case_param(&call, "function", "div");
    case_bind(&call, "grad_output", &of_g);
    case_bind(&call, "a", &of_a);
    case_bind(&call, "b", &of_b);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
    if (call.out[BINARY_GRAD_A].data && call.out[BINARY_GRAD_B].data) {
        memcpy(grad_a, call.out[BINARY_GRAD_A].data, N * sizeof *g);
        memcpy(grad_b, call.out[BINARY_GRAD_B].data, N * sizeof *g);
    }
    runner_free_outputs(&call);
}

TEST(division_by_zero_is_that_of_ieee)
{
    static const float g[] = {1, -1, 0, 2}, a[] = {3, 3, 3, 0};
    static const float b[] = {0, -0.0f, 0, 0};
    float grad_a[N] = {0}, grad_b[N] = {0};
    divide(g, a, b, grad_a, grad_b);
    CHECK(grad_a[0] == INFINITY && grad_a[1] == INFINITY);
    CHECK(isnan(grad_a[2]) && grad_a[3] == INFINITY);
    CHECK(grad_b[0] == -INFINITY && grad_b[1] == INFINITY);
    CHECK(isnan(grad_b[2]) && isnan(grad_b[3]));
}

/* b * b is infinite or zero here, a / b / b is neither. */
TEST(division_keeps_its_range)
{
    static const float g[] = {1, 2, 1, 0x1p-40f},
                       a[] = {0x1p100f, -0x1p90f, 0x1p-100f, 0x1p-120f};
    static const float b[] = {0x1p80f, 0x1p70f, -0x1p-80f, 0x1p-90f};
    float grad_a[N] = {0}, grad_b[N] = {0};
    divide(g, a, b, grad_a, grad_b);
    for (int i = 0; i < N; i++) {
        double exact =
            -(double)g[i] * ((double)a[i] / (double)b[i] / (double)b[i]);
        CHECK_DOUBLE((double)grad_b[i] / exact, 1, 1e-6);
        CHECK_DOUBLE((double)grad_a[i] * (double)b[i] / (double)g[i], 1, 1e-6);
    }
}

/* A 16-bit value of the type with these bits, or the bits of a float. */
static float float_of(enum roped_dtype type, uint16_t bits)
{
    return type == ROPED_F16 ? roped_f16_to_float(bits)
                             : roped_bf16_to_float(bits);
}

static uint16_t bits_of(enum roped_dtype type, float x)
{
    return type == ROPED_F16 ? roped_float_to_f16(x) : roped_float_to_bf16(x);
}

/* Where are the first bits that are not those of the float, nor both NaN? */
static int64_t wrong_quotient(const struct roped_tensor *found,
                              const float *expected)
{
    const uint16_t *bits = found->data;
    for (int64_t i = 0; i < roped_tensor_elements(found); i++)
        if (bits[i] != bits_of(found->dtype, expected[i]) &&
            !(isnan(float_of(found->dtype, bits[i])) && isnan(expected[i])))
            return i;
    return -1;
}

/* Every divisor of 16 bits, or every dividend, beside values with any bits: a
 * backend that multiplies by inverses gives the bits of divisions. One term of
 * each sum is not zero. */
static void divide_all(enum roped_dtype type, int n_terms, bool sums_divisor,
                       bool in_rows, struct random_source *source)
{
    enum { ALL = 1 << 16, MOST_TERMS = 25, N_FULL = ALL * MOST_TERMS };
    static uint16_t g[N_FULL], full[N_FULL], each[ALL];
    static float of_full[N_FULL], of_each[ALL];
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct roped_tensor of_g = {type, 2, {n_terms, ALL}, g};
    struct roped_tensor a = {type, 2, {n_terms, ALL}, full};
    struct roped_tensor b = {type, 2, {1, ALL}, each};
    if (in_rows) {
        of_g.dims[0] = a.dims[0] = b.dims[0] = ALL;
        of_g.dims[1] = a.dims[1] = n_terms;
        b.dims[1] = 1;
    }
    for (int i = 0; i < ALL; i++) {
        const int step = in_rows ? 1 : ALL, first = in_rows ? i * n_terms : i;
        const int term = (int)random_int(source, 0, n_terms - 1);
        each[i] = (uint16_t)i;
        of_each[i] = 0;
        for (int j = 0; j < n_terms; j++) {
            const int at = first + j * step;
            g[at] = (uint16_t)(j == term ? random_int(source, 0, ALL - 1) : 0);
            full[at] = (uint16_t)random_int(source, 0, ALL - 1);
            const float x = float_of(type, full[at]);
            const float y = float_of(type, each[i]);
            const float divided = sums_divisor ? x : y;
            const float divisor = sums_divisor ? y : x;
            const float of_g_at = float_of(type, g[at]);
            const float of_divided = of_g_at / divisor;
            const float of_divisor = -(of_g_at * (divided / divisor / divisor));
            of_full[at] = sums_divisor ? of_divided : of_divisor;
            of_each[i] += sums_divisor ? of_divisor : of_divided;
        }
    }
    roped_call_init(&call, roped_op_find("binary_backward"));
    case_param(&call, "function", "div");
    case_bind(&call, "grad_output", &of_g);
    case_bind(&call, "a", sums_divisor ? &a : &b);
    case_bind(&call, "b", sums_divisor ? &b : &a);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
    if (!check_failures) {
        const struct roped_tensor *out = call.out;
        CHECK_INT(
            wrong_quotient(&out[sums_divisor ? BINARY_GRAD_A : BINARY_GRAD_B],
                           of_full),
            -1);
        CHECK_INT(
            wrong_quotient(&out[sums_divisor ? BINARY_GRAD_B : BINARY_GRAD_A],
                           of_each),
            -1);
    }
    runner_free_outputs(&call);
}

TEST(quotients_of_16_bits_are_those_of_ieee)
{
    struct random_source source = {47};
    for (int i = 0; i < 16; i++)
        divide_all(i & 1 ? ROPED_F16 : ROPED_BF16, i & 8 ? 24 : 25, i & 2,
                   i & 4, &source);
}

/* Two gradients whose blocks a GPU has side by side: each sum has its terms. */
TEST(sums_of_ones_count_their_terms)
{
    struct random_source source = {53};
    for (int i = 0; i < check_calls(200) && !check_failures; i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        const int m = 2 + i % 5, k = 2 + i % 11, h = 8 * (32 + i * 7 % 97);
        const int64_t dims[3][4] = {{m, 2, k, h}, {m, 1, k, 1}, {1, 2, 1, h}};
        roped_call_init(&call, roped_op_find("binary_backward"));
        case_param(&call, "function", "mul");
        for (int in = 0; in < 3; in++) {
            struct roped_tensor of =
                case_tensor(&source, ROPED_F16, 4, dims[in], 1);
            for (int64_t at = 0; at < roped_tensor_elements(&of); at++)
                ((uint16_t *)of.data)[at] = 0x3C00;
            case_bind(&call, call.op->in[in].name, &of);
        }
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
        for (int at = 0; at < 2 * h && !check_failures; at++)
            CHECK_INT((int)reference_value(&call.out[1], at), m * k);
        for (int at = 0; at < m * k && !check_failures; at++)
            CHECK_INT((int)reference_value(&call.out[0], at), 2 * h);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

/* -------------------------------------------------------------------- rows */

/* Gradients of what is not broadcast, of so many rows that there are kernels of
 * their own for them: the bits that they have among few. */
TEST(rows_of_gradients_have_the_bits_that_they_have_among_few)
{
    static const int64_t dims[] = {61, 1016};
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    struct random_source source = {41};
    for (int i = 0; i < 6; i++) {
        static struct roped_call few, many;
        struct roped_error err = {.text = ""};
        roped_call_init(&few, roped_op_find("binary_backward"));
        case_param(&few, "function", i % 2 ? "div" : "mul");
        for (int in = 0; in < 3; in++) {
            struct roped_tensor tensor =
                case_tensor(&source, types[i / 2], 2, dims, 1);
            case_bind(&few, few.op->in[in].name, &tensor);
        }
        CHECK_OK(roped_call_resolve(&few, &err), &err);
        many = few;
        int64_t n =
            runner_many_bytes(&runner) * dims[0] / roped_call_bytes(&few);
        for (int in = 0; in < 3; in++)
            many.in[in] = case_repeat(&few.in[in], n);
        CHECK_OK(roped_call_resolve(&many, &err), &err);
        CHECK_OK(runner_run(&runner, &few, &plain, &err), &err);
        CHECK_OK(runner_run(&runner, &many, &plain, &err), &err);
        for (int out = 0; out < 2 && !check_failures; out++)
            CHECK_INT(case_wrong_row(&many.out[out], &few.out[out]), -1);
        runner_free_outputs(&few);
        runner_free_outputs(&many);
        case_free(&few);
        case_free(&many);
    }
}

/* ------------------------------------------------------------------- norms */

/* With these inputs, whose rows are of one value, or of zeros where the mean is
 * not subtracted. */
static const struct {
    const char *op, *in[2];
    bool is_centred;
} norms[] = {
    {"layer_norm", {"x"}, true},
    {"add_layer_norm", {"x", "residual"}, true},
    {"rmsnorm", {"x"}, false},
    {"add_rmsnorm", {"x", "residual"}, false},
    {"rmsnorm_add", {"x", "residual"}, false},
    {"gated_rmsnorm", {"x", "gate"}, false},
};
enum { NORMS = sizeof norms / sizeof *norms };

static void expect_all(const struct roped_call *call, bool is_nan)
{
    const struct roped_tensor *y = &call->out[0];
    const int64_t n = y->data ? roped_tensor_elements(y) : 0;
    char shape[64];
    for (int64_t i = 0; i < n; i++) {
        const double found = reference_value(y, i);
        if (is_nan ? isnan(found) : found == 0)
            continue;
        CHECK_FAIL("%s %s %s: element %lld is %g", call->op->name,
                   roped_dtype_name(y->dtype),
                   roped_shape_text(y->dims, 2, shape, sizeof shape),
                   (long long)i, found);
        return;
    }
}

/* Of any width: 0, or 0 / 0. Many rows have kernels of their own. */
TEST(nothing_is_left_of_rows_without_deviation)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    struct random_source source = {43};
    for (int i = 0; i < check_cases(600); i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        const int norm = i % NORMS;
        const bool is_nan = random_once_in(&source, 2);
        const enum roped_dtype type = types[random_int(&source, 0, 2)];
        const struct runner_options options = {.misalign_elements =
                                                   random_once_in(&source, 2)};
        int64_t dims[] = {random_int(&source, 1, 6),
                          random_magnitude(&source, 15)};
        if (random_once_in(&source, 12))
            dims[0] += 1000000 / dims[1];
        if (!check_takes_case())
            continue;
        roped_call_init(&call, roped_op_find(norms[norm].op));
        case_param(&call, "eps", is_nan ? "0" : "1e-6");
        for (int in = 0; in < 2 && norms[norm].in[in]; in++) {
            struct roped_tensor tensor = {type, 2, {dims[0], dims[1]}, NULL};
            const size_t bytes = (size_t)roped_tensor_bytes(&tensor);
            tensor.data = memset(runner_alloc(bytes), 0, bytes);
            if (norms[norm].is_centred)
                values_fill(&source, &tensor, VALUES_EQUAL);
            case_bind(&call, norms[norm].in[in], &tensor);
        }
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
        expect_all(&call, is_nan);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

/* Values so close to each other, or to 0, that what they are multiplied by is
 * Inf in float32: so are the results. */
TEST(rows_of_almost_no_deviation_are_infinite)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_BF16};
    struct random_source source = {47};
    for (int i = 0; i < check_cases(300); i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        const int norm = i % (NORMS - 1); /* a gate of 0 leaves 0 */
        const enum roped_dtype type = types[random_int(&source, 0, 1)];
        int64_t dims[] = {random_int(&source, 1, 6),
                          1 + random_magnitude(&source, 15)};
        if (random_once_in(&source, 12))
            dims[0] += 1000000 / dims[1];
        if (!check_takes_case())
            continue;
        roped_call_init(&call, roped_op_find(norms[norm].op));
        case_param(&call, "eps", "0");
        for (int in = 0; in < 2 && norms[norm].in[in]; in++) {
            struct roped_tensor tensor = {type, 2, {dims[0], dims[1]}, NULL};
            const size_t bytes = (size_t)roped_tensor_bytes(&tensor);
            tensor.data = memset(runner_alloc(bytes), 0, bytes);
            for (int64_t j = 0; in == 0 && j < dims[0] * dims[1]; j++)
                values_set(&tensor, j, j % dims[1] % 2 ? -0x1p-133 : 0x1p-133);
            case_bind(&call, norms[norm].in[in], &tensor);
        }
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
        for (int64_t j = 0; j < dims[0] * dims[1] && !check_failures; j++) {
            const double found = reference_value(&call.out[0], j);
            if (found != copysign(INFINITY, j % dims[1] % 2 ? -1 : 1))
                CHECK_FAIL("%s %s [%lld, %lld]: element %lld is %g",
                           call.op->name, roped_dtype_name(type),
                           (long long)dims[0], (long long)dims[1], (long long)j,
                           found);
        }
        runner_free_outputs(&call);
        case_free(&call);
    }
}

/* A row of such values and its gradient: of the first kind some values are 0,
 * of the second the gradient has the sign of x, of the third one sign. */
static void fill_tiny_row(const struct roped_tensor *x,
                          const struct roped_tensor *grad_y, int64_t row,
                          int kind)
{
    const int64_t n = x->dims[1];
    for (int64_t i = 0; i < n; i++) {
        const double sign = i % 2 ? -1 : 1;
        const bool is_zero = kind == 0 && i >= n - 2 + n % 2;
        values_set(x, row * n + i, is_zero ? 0 : sign * 0x1p-133);
        values_set(grad_y, row * n + i, kind == 1 ? sign : 1);
    }
}

/* What is subtracted from grad_y is Inf where all terms of its sum are, and
 * where one of them is NaN, or they have both signs, it is NaN. */
static void expect_tiny_row(const struct roped_call *call, int64_t row,
                            int kind)
{
    const struct roped_tensor *to = &call->out[0];
    const int64_t n = to->data ? to->dims[1] : 0;
    for (int64_t i = 0; i < n; i++) {
        const double found = reference_value(to, row * n + i);
        const double expected = i % 2 ? INFINITY : -INFINITY;
        if (kind == 1 ? found == expected : isnan(found))
            continue;
        CHECK_FAIL("%s %s [%lld, %lld]: row %lld, kind %d, element %lld is %g",
                   call->op->name, roped_dtype_name(to->dtype),
                   (long long)to->dims[0], (long long)n, (long long)row, kind,
                   (long long)i, found);
        return;
    }
}

/* grad_weight: a sum of what is Inf in every row, and NaN in some. */
static void expect_tiny_sums(const struct roped_call *call,
                             const struct roped_tensor *x,
                             const struct roped_tensor *grad_y)
{
    const struct roped_tensor *to = &call->out[1];
    const int64_t n = to->data ? to->dims[0] : 0;
    for (int64_t i = 0; i < n; i++) {
        const double found = reference_value(to, i);
        double expected = 0;
        for (int64_t row = 0; row < x->dims[0]; row++)
            expected += reference_value(grad_y, row * n + i) *
                        (reference_value(x, row * n + i) * INFINITY);
        if (isnan(expected) ? isnan(found) : found == expected)
            continue;
        CHECK_FAIL("%s %s [%lld, %lld]: grad_weight %lld is %g, expected %g",
                   call->op->name, roped_dtype_name(x->dtype),
                   (long long)x->dims[0], (long long)n, (long long)i, found,
                   expected);
        return;
    }
}

TEST(gradients_of_rows_of_almost_no_deviation)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_BF16};
    struct random_source source = {53};
    for (int i = 0; i < check_cases(400); i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        const enum roped_dtype type = types[random_int(&source, 0, 1)];
        const struct runner_options options = {.misalign_elements =
                                                   random_once_in(&source, 2)};
        const int one_kind = (int)random_int(&source, 0, 3);
        int64_t dims[] = {random_int(&source, 1, 6),
                          2 + random_magnitude(&source, 15)};
        if (random_once_in(&source, 8))
            dims[0] += 1000000 / dims[1];
        if (!check_takes_case())
            continue;
        struct roped_tensor x = {type, 2, {dims[0], dims[1]}, NULL}, grad_y = x;
        struct roped_tensor weight = {type, 1, {dims[1]}, NULL};
        x.data = runner_alloc((size_t)roped_tensor_bytes(&x));
        grad_y.data = runner_alloc((size_t)roped_tensor_bytes(&x));
        weight.data = runner_alloc((size_t)roped_tensor_bytes(&weight));
        for (int64_t row = 0; row < dims[0]; row++)
            fill_tiny_row(&x, &grad_y, row,
                          one_kind < 3 ? one_kind : (int)(row % 3));
        for (int64_t j = 0; j < dims[1]; j++)
            values_set(&weight, j, 1);
        roped_call_init(&call, roped_op_find(i % 2 ? "rmsnorm_backward"
                                                   : "layer_norm_backward"));
        case_param(&call, "eps", "0");
        case_bind(&call, "x", &x);
        case_bind(&call, "grad_y", &grad_y);
        case_bind(&call, "weight", &weight);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
        for (int64_t row = 0; row < dims[0] && !check_failures; row++)
            expect_tiny_row(&call, row,
                            one_kind < 3 ? one_kind : (int)(row % 3));
        if (!check_failures)
            expect_tiny_sums(&call, &x, &grad_y);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

/* ---------------------------------------------------------------- quantize */

/* The table of kernels/README.md, "Codes and scales". */
TEST(codes_of_nan_inf_and_zeros)
{
    static struct roped_call call;
    static const char *const types[] = {"e4m3", "e5m2", "int8"};
    static const uint8_t codes[3][12] = {
        {0x7F, 0x76, 0xFE, 0, 0, 0x80, 0, 0, 0x7E, 0, 0xFE, 0x7F},
        {0x7F, 0x77, 0xFB, 0, 0, 0x80, 0, 0, 0x7B, 0, 0xFB, 0x7F},
        {0, 64, (uint8_t)-127, 0, 0, 0, 0, 0, 127, 0, (uint8_t)-127, 0}};
    static const float of_zeros[] = {1 / (512 * 448.0f), 1 / (512 * 57344.0f),
                                     1};
    float x[] = {NAN, 1, -2, 0, 0, -0.0f, 0, 0, INFINITY, 1, -INFINITY, NAN};
    struct roped_tensor of_x = {ROPED_F32, 2, {3, 4}, x};
    for (int type = 0; type < 3; type++) {
        struct roped_error err = {.text = ""};
        char params[64];
        snprintf(params, sizeof params, "output_dtype=%s", types[type]);
        roped_call_init(&call, roped_op_find("quantize"));
        case_bind(&call, "x", &of_x);
        case_params(&call, params);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
        const uint8_t *y = call.out[QUANTIZE_Y].data;
        const float *scales = call.out[QUANTIZE_SCALES].data;
        for (int i = 0; y && i < 12; i++)
            CHECK_INT(y[i], codes[type][i]);
        CHECK(scales && scales[1] == of_zeros[type]);
        CHECK(scales && isfinite(scales[0]) && isfinite(scales[2]));
        runner_free_outputs(&call);
    }
}

/* The same of formats of groups: codes of the first four elements of groups
 * with NaN, Inf, zeros, and numbers of which floor saturates one. */
TEST(codes_of_groups_with_nan_inf_and_zeros)
{
    static struct roped_call call;
    static float x[4][32] = {{NAN, 1, -2, 0},
                             {INFINITY, 1, -INFINITY, -0.0f},
                             {0, -0.0f},
                             {7.75f, 0.25f, -0.75f, 3}};
    static const struct {
        const char *params;
        uint8_t scale[4], codes[4][4];
    } cases[] = {{"output_dtype=mxfp8",
                  {0xFF, 0xFE, 0, 122},
                  {{0x7F, 0x7F, 0x7F, 0x7F},
                   {0x7E, 0, 0xFE, 0x80},
                   {0, 0x80, 0, 0},
                   {0x78, 0x50, 0xDC, 0x6C}}},
                 {"output_dtype=mxfp8&scale_rounding=floor&infinity=nan",
                  {0xFF, 0xFF, 0, 121},
                  {{0x7F, 0x7F, 0x7F, 0x7F},
                   {0x7F, 0x7F, 0x7F, 0x7F},
                   {0, 0x80, 0, 0},
                   {0x7E, 0x58, 0xE4, 0x74}}},
                 {"output_dtype=mxfp4",
                  {0xFF, 0xFE, 0, 128},
                  {{7, 7, 7, 7}, {7, 0, 15, 8}, {0, 8, 0, 0}, {6, 0, 9, 3}}},
                 {"output_dtype=mxfp4&scale_rounding=floor",
                  {0xFF, 0xFE, 0, 127},
                  {{7, 7, 7, 7}, {7, 0, 15, 8}, {0, 8, 0, 0}, {7, 0, 10, 5}}},
                 {"output_dtype=nvfp4",
                  {0x2B, 0x7E, 0, 0x3A},
                  {{7, 5, 15, 0}, {7, 0, 15, 8}, {0, 8, 0, 0}, {7, 0, 9, 4}}}};
    struct roped_tensor of_x = {ROPED_F32, 2, {4, 32}, x};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct roped_error err = {.text = ""};
        roped_call_init(&call, roped_op_find("quantize"));
        case_bind(&call, "x", &of_x);
        case_params(&call, cases[c].params);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
        const uint8_t *y = call.out[QUANTIZE_Y].data;
        const uint8_t *scales = call.out[QUANTIZE_SCALES].data;
        const int64_t per_row = roped_tensor_elements(&call.out[1]) / 4;
        const bool is_packed = call.out[QUANTIZE_Y].dims[1] == 16;
        for (int row = 0; y && row < 4; row++) {
            CHECK_INT(scales[row * per_row], cases[c].scale[row]);
            for (int i = 0; i < 4; i++)
                CHECK_INT(is_packed ? y[row * 16 + i / 2] >> i % 2 * 4 & 15
                                    : y[row * 32 + i],
                          cases[c].codes[row][i]);
        }
        runner_free_outputs(&call);
    }
}

/* Groups of 32 whose largest value is from 2^-149 to 2^-89: their scales are
 * the least there are, and many of their values are subnormal. */
TEST(codes_of_mx_groups_of_the_smallest_floats)
{
    enum { GROUP = 32, N_GROUPS = 60 };
    static struct roped_call call;
    static float x[N_GROUPS][GROUP];
    struct roped_tensor of_x = {ROPED_F32, 2, {N_GROUPS, GROUP}, x};
    for (int i = 0; i < N_GROUPS * GROUP; i++)
        (&x[0][0])[i] =
            ldexpf((float)(i % 2 ? -i : i) / 1021, i / GROUP - 149 - i % 7);
    for (int nibbles = 0; nibbles < 2; nibbles++) {
        struct roped_error err = {.text = ""};
        roped_call_init(&call, roped_op_find("quantize"));
        case_bind(&call, "x", &of_x);
        case_params(&call, nibbles ? "output_dtype=mxfp4&scale_rounding=floor"
                                   : "output_dtype=mxfp8");
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
        const uint8_t *y = call.out[QUANTIZE_Y].data;
        const uint8_t *scales = call.out[QUANTIZE_SCALES].data;
        for (int n = 0; y && n < N_GROUPS * GROUP && !check_failures; n++) {
            const float q =
                (&x[0][0])[n] / roped_e8m0_to_float(scales[n / GROUP]);
            CHECK_INT(nibbles ? y[n / 2] >> n % 2 * 4 & 15 : y[n],
                      nibbles ? roped_float_to_e2m1(q)
                              : roped_float_to_e4m3(q));
        }
        runner_free_outputs(&call);
    }
}

/* Every scale of nvfp4 beside what lies half-way between two codes, and the
 * numbers next to that, of either sign. The largest of a group is first, 6
 * times its scale; a quarter of all midpoints has room beside it. */
TEST(codes_of_nvfp4_at_midpoints)
{
    enum { GROUP = 16, SCALES = 0x7E, PARTS = 4, WIDTH = SCALES * GROUP };
    static const float midpoints[] = {0.25f, 0.75f, 1.25f, 1.75f,
                                      2.5f,  3.5f,  5,     0};
    static struct roped_call call;
    static float x[PARTS][SCALES][GROUP];
    struct roped_tensor of_x = {ROPED_F32, 2, {PARTS, WIDTH}, x};
    struct roped_error err = {.text = ""};
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < SCALES; i++) {
            const float scale = roped_e4m3_to_float((uint8_t)(i + 1));
            x[part][i][0] = 6 * scale;
            for (int j = 0; j < 12; j++) {
                const float tie = midpoints[2 * part + j / 6] * scale;
                const float near = j % 3 == 0   ? nextafterf(tie, 0)
                                   : j % 3 == 1 ? tie
                                                : nextafterf(tie, INFINITY);
                x[part][i][1 + j] = j % 6 < 3 ? near : -near;
            }
        }
    roped_call_init(&call, roped_op_find("quantize"));
    case_bind(&call, "x", &of_x);
    case_params(&call, "output_dtype=nvfp4");
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &plain, &err), &err);
    const uint8_t *y = call.out[QUANTIZE_Y].data;
    const uint8_t *scales = call.out[QUANTIZE_SCALES].data;
    for (int n = 0; y && n < PARTS * WIDTH && !check_failures; n++) {
        const int group = n / GROUP, i = group % SCALES;
        const float scale = roped_e4m3_to_float((uint8_t)(i + 1));
        CHECK_INT(scales[group], i + 1);
        CHECK_INT(y[n / 2] >> n % 2 * 4 & 15,
                  roped_float_to_e2m1((&x[0][0][0])[n] / scale));
    }
    runner_free_outputs(&call);
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
