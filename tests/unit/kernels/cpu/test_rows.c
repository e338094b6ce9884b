/*
 * test_rows.c - the row functions of every instruction set that this processor
 * has: conversions code by code, rotation and norm against float64, and that
 * neither streaming nor company of other rows changes a bit.
 */
#include "check.h"

#include "cpu/rows.h"

#include <roped/numeric.h>

#include <math.h>

static const struct cpu_rows *rows; /* under test */

enum { MAX_BYTES = 1 << 17 };

static _Alignas(64) unsigned char from[MAX_BYTES], to[MAX_BYTES],
    again[MAX_BYTES];

static uint64_t state = 5;

static uint32_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Uniform in [-2, 2). */
static float random_value(void)
{
    return (float)((double)random_word() * 0x1p-30 - 2);
}

static const enum roped_dtype floats[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

static double value_at(enum roped_dtype dtype, const void *data, int64_t i)
{
    if (dtype == ROPED_F32)
        return (double)((const float *)data)[i];
    if (dtype == ROPED_F16)
        return (double)roped_f16_to_float(((const uint16_t *)data)[i]);
    if (dtype == ROPED_BF16)
        return (double)roped_bf16_to_float(((const uint16_t *)data)[i]);
    if (dtype == ROPED_F8_E4M3)
        return (double)roped_e4m3_to_float(((const uint8_t *)data)[i]);
    return (double)roped_e5m2_to_float(((const uint8_t *)data)[i]);
}

static uint32_t code_of(enum roped_dtype dtype, float x)
{
    if (dtype == ROPED_F16)
        return roped_float_to_f16(x);
    if (dtype == ROPED_BF16)
        return roped_float_to_bf16(x);
    if (dtype == ROPED_F8_E4M3)
        return roped_float_to_e4m3(x);
    return roped_float_to_e5m2(x);
}

static uint32_t code_at(enum roped_dtype dtype, const void *data, int64_t i)
{
    return roped_dtype_bytes(dtype) == 1 ? ((const uint8_t *)data)[i]
                                         : ((const uint16_t *)data)[i];
}

static void fill(enum roped_dtype dtype, void *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x = random_value();
        if (dtype == ROPED_F32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = (uint16_t)code_of(dtype, x);
    }
}

/* ------------------------------------------------------------ conversions */

/*
 * Every exponent and sign with mantissas at and around what rounding depends
 * on: the last kept bit, the first lost one, and everything below.
 */
static int64_t hard_floats(float *x)
{
    static const uint32_t ends[] = {0,      1,      0x3F,   0xFFF,  0x1000,
                                    0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    int64_t n = 0;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t exponent = 0; exponent < 256; exponent++)
            for (uint32_t i = 0; i < 48; i++) {
                uint32_t top = i < 32 ? i << 18 : random_word() & 0x7F0000u;
                uint32_t mantissa =
                    (top + ends[random_word() % 10]) & 0x7FFFFFu;
                x[n++] =
                    roped_bits_float(sign << 31 | exponent << 23 | mantissa);
            }
    return n;
}

static void check_narrow(enum roped_dtype dtype, const float *x, int64_t n)
{
    const struct cpu_conversion how = {ROPED_F32, dtype, 1, false};
    rows->convert(&how, to, x, n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t found = code_at(dtype, to, i), expected = code_of(dtype, x[i]);
        if (found != expected) {
            CHECK_FAIL("%s: %a to %s is %#x, expected %#x", rows->name,
                       (double)x[i], roped_dtype_name(dtype), found, expected);
            return;
        }
    }
}

TEST(narrow_codes_are_those_of_the_definition)
{
    static const enum roped_dtype types[] = {ROPED_F16, ROPED_BF16,
                                             ROPED_F8_E4M3, ROPED_F8_E5M2};
    for (int round = 0; round < 50; round++) {
        int64_t n = hard_floats((float *)from);
        for (int t = 0; t < 4; t++)
            check_narrow(types[t], (const float *)from, n);
    }
}

/* A product may be rounded once or twice: codes of its two neighbours. */
TEST(scales_multiply_before_rounding)
{
    static const float scales[] = {1,     2.5f,   0.37f,  0x1p-40f,
                                   3e38f, 1e-38f, 40000.f};
    int64_t n = hard_floats((float *)from);
    const float *x = (const float *)from;
    for (int k = 0; k < 7; k++) {
        const struct cpu_conversion how = {ROPED_F32, ROPED_F8_E4M3, scales[k],
                                           false};
        rows->convert(&how, to, x, n);
        for (int64_t i = 0; i < n; i++) {
            float product = x[i] * scales[k];
            uint32_t low =
                code_of(ROPED_F8_E4M3, nextafterf(product, -INFINITY));
            uint32_t high =
                code_of(ROPED_F8_E4M3, nextafterf(product, INFINITY));
            if (to[i] != code_of(ROPED_F8_E4M3, product) && to[i] != low &&
                to[i] != high) {
                CHECK_FAIL("%s: %a * %g is %#x, expected %#x", rows->name,
                           (double)x[i], (double)scales[k], to[i],
                           code_of(ROPED_F8_E4M3, product));
                return;
            }
        }
    }
}

TEST(widened_codes_have_their_values)
{
    uint16_t *code = (uint16_t *)from;
    float *x = (float *)to;
    for (int t = 1; t < 3; t++)
        for (uint32_t base = 0; base < 0x10000; base += 0x1000) {
            for (uint32_t i = 0; i < 0x1000; i++)
                code[i] = (uint16_t)(base + i);
            rows->widen(floats[t], x, code, 0x1000);
            for (int i = 0; i < 0x1000; i++) {
                float expected = (float)value_at(floats[t], code, i);
                if (isnan(expected) ? !isnan(x[i])
                                    : roped_float_bits(x[i]) !=
                                          roped_float_bits(expected)) {
                    CHECK_FAIL("%s: %s %#x is %g, expected %g", rows->name,
                               roped_dtype_name(floats[t]), code[i],
                               (double)x[i], (double)expected);
                    return;
                }
            }
        }
}

/* Whole blocks, parts of blocks, streamed or not, and nothing behind them. */
TEST(rows_of_any_length_are_converted_and_no_more)
{
    static const enum roped_dtype types[] = {ROPED_F16, ROPED_BF16,
                                             ROPED_F8_E4M3};
    fill(ROPED_F32, from, 512);
    for (int t = 0; t < 3; t++)
        for (int64_t n = 0; n < 300; n++)
            for (int is_streamed = 0; is_streamed < 2; is_streamed++) {
                int64_t bytes = n * (int64_t)roped_dtype_bytes(types[t]);
                memset(to, 0xA5, 1024);
                const struct cpu_conversion how = {ROPED_F32, types[t], 1,
                                                   is_streamed};
                rows->convert(&how, to, from, n);
                rows->fence();
                for (int64_t i = 0; i < n; i++)
                    CHECK_INT(code_at(types[t], to, i),
                              code_of(types[t], ((float *)from)[i]));
                for (int64_t i = bytes; i < 1024; i++)
                    CHECK_INT(to[i], 0xA5);
            }
}

/* --------------------------------------------------------------- rotation */

static float c[CPU_PAIRS], s[CPU_PAIRS];

static void check_rotation(const struct cpu_heads *heads)
{
    double unit = heads->to == ROPED_F32    ? 0
                  : heads->to == ROPED_F16  ? 0x1p-10
                  : heads->to == ROPED_BF16 ? 0x1p-7
                                            : 0x1p-3;
    for (int64_t head = 0; head < heads->n_heads; head++)
        for (int64_t i = 0; i < heads->width; i++) {
            int64_t base = head * heads->from_pitch;
            int64_t pair = i - heads->first;
            double x = value_at(heads->from, from, base + i), expected = x;
            if (pair >= 0 && pair < 2 * heads->n_pairs) {
                bool is_second =
                    heads->style ? pair % 2 : pair >= heads->n_pairs;
                int64_t p = heads->style ? pair / 2 : pair % heads->n_pairs;
                int64_t other = heads->style ? i - (pair % 2 ? 1 : -1)
                                : is_second  ? i - heads->n_pairs
                                             : i + heads->n_pairs;
                double y = value_at(heads->from, from, base + other);
                expected =
                    x * (double)c[p] + (is_second ? y : -y) * (double)s[p];
            }
            double found = value_at(heads->to, to, head * heads->to_pitch + i);
            if (!(fabs(found - expected) <=
                  unit * (fabs(expected) + 0x1p-6) + 1e-6)) {
                CHECK_FAIL("%s: %s to %s gptj %d width %lld pairs %lld first "
                           "%lld: head %lld element %lld is %g, expected %g",
                           rows->name, roped_dtype_name(heads->from),
                           roped_dtype_name(heads->to), heads->style,
                           (long long)heads->width, (long long)heads->n_pairs,
                           (long long)heads->first, (long long)head,
                           (long long)i, found, expected);
                return;
            }
        }
}

static void rotate_once(struct cpu_heads heads, unsigned char *result)
{
    memset(result, 0xA5, MAX_BYTES);
    const struct cpu_pairs pairs = {0, heads.n_pairs, c, s};
    rows->rotate(&heads, result, from, &pairs);
    rows->fence();
}

static void check_heads(struct cpu_heads heads)
{
    size_t bytes = roped_dtype_bytes(heads.to);
    fill(heads.from, from, heads.n_heads * heads.from_pitch);
    rotate_once(heads, to);
    check_rotation(&heads);
    for (int64_t head = 0; head < heads.n_heads; head++)
        for (int64_t i = heads.width; i < heads.to_pitch; i++)
            CHECK_INT(to[(size_t)(head * heads.to_pitch + i) * bytes], 0xA5);
    heads.is_streamed = true;
    rotate_once(heads, again);
    CHECK(memcmp(to, again, MAX_BYTES) == 0);
    if (heads.from != heads.to || heads.from_pitch != heads.to_pitch)
        return;
    size_t size = (size_t)(heads.n_heads * heads.to_pitch) * bytes;
    memcpy(again, from, size);
    heads.is_streamed = false;
    const struct cpu_pairs pairs = {0, heads.n_pairs, c, s};
    rows->rotate(&heads, again, again, &pairs);
    for (int64_t head = 0; head < heads.n_heads; head++)
        CHECK(memcmp(to + (size_t)(head * heads.to_pitch) * bytes,
                     again + (size_t)(head * heads.to_pitch) * bytes,
                     (size_t)heads.width * bytes) == 0);
}

TEST(heads_of_every_type_and_width_rotate)
{
    static const enum roped_dtype pairs[][2] = {
        {ROPED_F32, ROPED_F32},      {ROPED_F32, ROPED_F16},
        {ROPED_F32, ROPED_BF16},     {ROPED_F32, ROPED_F8_E4M3},
        {ROPED_F32, ROPED_F8_E5M2},  {ROPED_F16, ROPED_F16},
        {ROPED_F16, ROPED_F8_E4M3},  {ROPED_F16, ROPED_F8_E5M2},
        {ROPED_BF16, ROPED_BF16},    {ROPED_BF16, ROPED_F8_E4M3},
        {ROPED_BF16, ROPED_F8_E5M2},
    };
    static const int64_t n_pairs[] = {1, 3, 16, 20, 32, 40, 64, 128, 256};
    for (int i = 0; i < CPU_PAIRS; i++) {
        c[i] = cosf((float)i);
        s[i] = sinf((float)i);
    }
    for (int t = 0; t < 11; t++)
        for (int n = 0; n < 9; n++)
            for (int form = 0; form < 8; form++) {
                int64_t first = form & 2 ? 32 : 0;
                int64_t width = first + 2 * n_pairs[n] + (form & 2 ? 7 : 0);
                check_heads(
                    (struct cpu_heads){.from = pairs[t][0],
                                       .to = pairs[t][1],
                                       .style = form & 1,
                                       .scale = 1,
                                       .n_heads = 3,
                                       .width = width,
                                       .from_pitch = width,
                                       .to_pitch = form & 4 ? 1024 : width,
                                       .first = first,
                                       .n_pairs = n_pairs[n]});
            }
}

/* By an angle of 0: a * 1 - b * 0 and b * 1 + a * 0, which are exact. */
static void check_unturned(enum roped_dtype to_type, bool is_gptj, int64_t n)
{
    enum { HEAD = 128, N_PAIRS = HEAD / 2 };
    const float *x = (const float *)from;
    const struct cpu_heads heads = {.from = ROPED_F32,
                                    .to = to_type,
                                    .style = is_gptj,
                                    .n_heads = n / HEAD,
                                    .width = HEAD,
                                    .from_pitch = HEAD,
                                    .to_pitch = HEAD,
                                    .n_pairs = N_PAIRS,
                                    .scale = 1};
    rotate_once(heads, to);
    for (int64_t i = 0; i < n && !check_failures; i++) {
        const bool is_second = is_gptj ? i % 2 : i % HEAD >= N_PAIRS;
        const int64_t step = is_gptj ? 1 : N_PAIRS;
        const float none = 0 * x[is_second ? i - step : i + step];
        const float value = is_second ? x[i] + none : x[i] - none;
        const uint32_t found = code_at(to_type, to, i);
        if (isnan(value) ? !isnan(value_at(to_type, to, i))
                         : found != code_of(to_type, value))
            CHECK_FAIL("%s: %a rotated by 0 to %s gptj %d is %#x, expected %#x",
                       rows->name, (double)value, roped_dtype_name(to_type),
                       is_gptj, found, code_of(to_type, value));
    }
}

TEST(results_round_to_nearest_even_and_a_nan_stays_one)
{
    static const enum roped_dtype types[] = {ROPED_F16, ROPED_BF16};
    for (int i = 0; i < CPU_PAIRS; i++) {
        c[i] = 1;
        s[i] = 0;
    }
    for (int round = 0; round < 20; round++) {
        const int64_t n = hard_floats((float *)from);
        for (int form = 0; form < 4; form++)
            check_unturned(types[form / 2], form % 2, n);
    }
}

/* ----------------------------------------------------------------- angles */

static void check_angles(double position, struct roped_angles *angles,
                         int64_t n)
{
    const bool is_f64 = angles->precision == ROPED_ANGLE_F64;
    c[n] = s[n] = 77;
    rows->angles(c, s, position, angles, -1, n);
    CHECK(c[n] == 77 && s[n] == 77);
    for (int64_t i = 0; i < n; i++) {
        double angle =
            is_f64 ? position * angles->frequency.f64[i]
                   : (double)((float)position * angles->frequency.f32[i]);
        CHECK_DOUBLE((double)c[i], 0.5 * cos(angle), 5e-8);
        CHECK_DOUBLE((double)s[i], -0.5 * sin(angle), 5e-8);
    }
}

/* Also where a factor below 1 has made frequencies large. */
TEST(angles_are_those_of_the_rounded_product)
{
    static float frequency[300];
    static double frequency64[300];
    static const double positions[] = {0,      1,       7,       4095,
                                       131071, 1048575, 16777215};
    struct roped_angles f32 = {.n_pairs = 300,
                               .attention_factor = 0.5f,
                               .precision = ROPED_ANGLE_F32,
                               .frequency.f32 = frequency};
    struct roped_angles f64 = f32;
    f64.precision = ROPED_ANGLE_F64;
    f64.frequency.f64 = frequency64;
    for (double largest = 1; largest < 0x1p24; largest *= 0x1p10)
        for (int p = 0; p < 7; p++)
            for (int64_t n = 283; n <= 300; n++) {
                for (int i = 0; i < 300; i++) {
                    frequency64[i] = largest * pow(10000, -i / 300.0);
                    frequency[i] = (float)frequency64[i];
                }
                check_angles(positions[p], &f32, n);
                check_angles(positions[p], &f64, n);
            }
}

/* ------------------------------------------------------------------- norm */

static float inverse_rms_of(enum roped_dtype dtype, const void *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += value_at(dtype, x, i) * value_at(dtype, x, i);
    return (float)(1 / sqrt(sum / (double)n + 1e-6));
}

TEST(inverse_rms_is_accurate_whatever_rows_come_along)
{
    static const int64_t widths[] = {1,   2,    31,   64,   100,  128,
                                     500, 1024, 1025, 3000, 4096, 8191};
    for (int t = 0; t < 3; t++)
        for (int w = 0; w < 12; w++) {
            float together[3], alone;
            size_t bytes = (size_t)widths[w] * roped_dtype_bytes(floats[t]);
            fill(floats[t], from, 3 * widths[w]);
            struct cpu_norm_rows part = {.n = 3, .x = from};
            rows->inverse_rms(floats[t], widths[w], &part, 1e-6f, together);
            for (int row = 0; row < 3; row++) {
                const void *x = from + (size_t)row * bytes;
                double expected =
                    (double)inverse_rms_of(floats[t], x, widths[w]);
                part = (struct cpu_norm_rows){.n = 1, .x = x};
                rows->inverse_rms(floats[t], widths[w], &part, 1e-6f, &alone);
                CHECK_DOUBLE((double)alone / expected, 1, 6e-7);
                CHECK(alone == together[row]);
            }
        }
}

struct moments {
    double mean, s;
};

static struct moments moments_of(enum roped_dtype dtype, const void *x,
                                 int64_t n)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += value_at(dtype, x, i);
    for (int64_t i = 0; i < n; i++)
        squares += pow(value_at(dtype, x, i) - sum / (double)n, 2);
    return (struct moments){sum / (double)n,
                            1 / sqrt(squares / (double)n + 1e-6)};
}

/* Of one row, whose largest norm is 1 or more, and that it has the bits of rows
 * together. */
static void check_centred(enum roped_dtype dtype, const void *x, int64_t n,
                          float inverse, struct cpu_mean mean)
{
    const struct moments is = moments_of(dtype, x, n);
    const double unit = dtype == ROPED_F32   ? 1e-6
                        : dtype == ROPED_F16 ? 0x1p-10
                                             : 0x1p-7;
    float s_alone;
    struct cpu_mean mean_alone;
    struct cpu_norm_rows row = {.n = 1, .x = x, .y = to};
    struct cpu_norm norm = {.width = n, .from = dtype, .to = dtype};
    rows->inverse_deviation(dtype, n, &row, 1e-6f, &s_alone, &mean_alone);
    CHECK(inverse == s_alone && mean.high == mean_alone.high &&
          mean.low == mean_alone.low);
    CHECK_DOUBLE((double)inverse / is.s, 1, 6e-7);
    CHECK_DOUBLE((double)mean.high + (double)mean.low, is.mean, 1e-6 / is.s);
    row.mean = &mean;
    row.s = &inverse;
    norm.shift = x; /* any values will do */
    norm.shift_dtype = dtype;
    rows->normalize(&norm, &row);
    for (int64_t i = 0; i < n && !check_failures; i++) {
        const double v = value_at(dtype, x, i), y = (v - is.mean) * is.s;
        CHECK_DOUBLE(value_at(dtype, to, i), y + v,
                     1.01 * unit * fabs(y + v) + 1e-6 * (1 + fabs(v)));
    }
}

TEST(centred_rows_are_accurate_whatever_rows_come_along)
{
    static const int64_t widths[] = {1,   2,    31,   64,   100,  128,
                                     500, 1024, 1025, 3000, 4096, 8191};
    for (int t = 0; t < 3; t++)
        for (int w = 0; w < 12; w++) {
            float inverse[3];
            struct cpu_mean mean[3];
            size_t bytes = (size_t)widths[w] * roped_dtype_bytes(floats[t]);
            fill(floats[t], from, 3 * widths[w]);
            struct cpu_norm_rows three = {.n = 3, .x = from};
            rows->inverse_deviation(floats[t], widths[w], &three, 1e-6f,
                                    inverse, mean);
            for (int row = 0; row < 3; row++)
                check_centred(floats[t], from + (size_t)row * bytes, widths[w],
                              inverse[row], mean[row]);
        }
}

static void check_norm(struct cpu_norm norm)
{
    float scale[3] = {0.5f, 1.25f, 3};
    double unit = norm.to == ROPED_F32   ? 1e-6
                  : norm.to == ROPED_F16 ? 0x1p-10
                                         : 0x1p-7;
    size_t bytes = (size_t)(3 * norm.width) * roped_dtype_bytes(norm.to);
    memset(to, 0xA5, bytes + 64);
    struct cpu_norm_rows three = {.n = 3, .x = from, .y = to, .s = scale};
    rows->normalize(&norm, &three);
    for (int64_t i = 0; i < 3 * norm.width; i++) {
        double w = norm.weight_dtype ? value_at(norm.weight_dtype, norm.weight,
                                                i % norm.width)
                                     : 1;
        double expected = value_at(norm.from, from, i) *
                          (double)scale[i / norm.width] *
                          ((double)norm.bias + w);
        CHECK_DOUBLE(value_at(norm.to, to, i), expected,
                     1.01 * unit * fabs(expected) + 1e-6);
    }
    for (int i = 0; i < 64; i++)
        CHECK_INT(to[bytes + (size_t)i], 0xA5);
    norm.is_streamed = true;
    three.y = again;
    rows->normalize(&norm, &three);
    rows->fence();
    CHECK(memcmp(to, again, bytes) == 0);
}

TEST(rows_are_normalized_with_every_weight)
{
    static _Alignas(64) unsigned char weight[4 * 3000];
    static const int64_t widths[] = {1, 30, 128, 1000, 2048, 3000};
    static const enum roped_dtype weights[] = {ROPED_NO_DTYPE, ROPED_F32,
                                               ROPED_F16, ROPED_BF16};
    static const enum roped_dtype pairs[][2] = {{ROPED_F32, ROPED_F32},
                                                {ROPED_F32, ROPED_F16},
                                                {ROPED_F32, ROPED_BF16},
                                                {ROPED_F16, ROPED_F16},
                                                {ROPED_BF16, ROPED_BF16}};
    for (int t = 0; t < 5; t++)
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < 6; i++) {
                if (weights[w])
                    fill(weights[w], weight, widths[i]);
                fill(pairs[t][0], from, 3 * widths[i]);
                check_norm((struct cpu_norm){.width = widths[i],
                                             .from = pairs[t][0],
                                             .to = pairs[t][1],
                                             .weight_dtype = weights[w],
                                             .weight = weight,
                                             .bias = 0.25f});
            }
}

static double fp8_value(enum roped_dtype dtype, int code)
{
    return (double)(dtype == ROPED_F8_E4M3
                        ? roped_e4m3_to_float((uint8_t)code)
                        : roped_e5m2_to_float((uint8_t)code));
}

/* Float32 values at and up to four units around the product of the divisor with
 * every value where codes change, so that quotients are. */
static int64_t values_at_edges(enum roped_dtype dtype, float divisor, float *x)
{
    int64_t n = 0;
    for (int code = 0; code < 0x7B; code++) {
        double edge = (fp8_value(dtype, code) + fp8_value(dtype, code + 1)) / 2;
        float value = (float)(edge * (double)divisor);
        for (int i = 0; i < 4; i++)
            value = nextafterf(value, 0);
        for (int i = -4; i <= 4; i++, value = nextafterf(value, INFINITY))
            x[n++] = i % 2 ? -value : value;
    }
    return n;
}

TEST(norms_have_the_codes_of_the_quotient)
{
    static const float divisors[] = {1,    3,     7,      0.0371f,      1.99f,
                                     1e9f, 1e-9f, 1e-35f, 0x1.FFFFFEp0f};
    static const enum roped_dtype types[] = {ROPED_F8_E4M3, ROPED_F8_E5M2};
    static const float one = 1;
    for (int t = 0; t < 2; t++)
        for (int d = 0; d < 9; d++) {
            float *x = (float *)from;
            const int64_t n = values_at_edges(types[t], divisors[d], x);
            const struct cpu_norm norm = {
                .width = n, .from = ROPED_F32, .to = types[t]};
            const struct cpu_norm_rows row = {
                .n = 1, .x = x, .y = to, .s = &one, .divisor = &divisors[d]};
            rows->normalize(&norm, &row);
            for (int64_t i = 0; i < n && !check_failures; i++) {
                uint32_t expected = code_of(types[t], x[i] / divisors[d]);
                if (to[i] != expected)
                    CHECK_FAIL("%s: %a / %a is %#x, expected %#x", rows->name,
                               (double)x[i], (double)divisors[d], to[i],
                               expected);
            }
        }
}

static float rounded_like(enum roped_dtype dtype, float x)
{
    if (dtype == ROPED_F16)
        return roped_f16_to_float(roped_float_to_f16(x));
    return dtype == ROPED_BF16 ? roped_bf16_to_float(roped_float_to_bf16(x))
                               : x;
}

enum { MOST_COLUMNS = 1536 + 128, N_ROWS = 3 };

/* Groups of y, or rows, and scales in columns against values found one by one.
 */
static void expect_groups(const struct cpu_norm *norm,
                          const struct cpu_norm_rows *all, int64_t size,
                          const struct cpu_fp8_scale *limit,
                          const float *scales)
{
    const int64_t width = norm->width;
    for (int64_t first = 0; first < N_ROWS * width; first += size) {
        float value[MOST_COLUMNS], largest = 0;
        for (int64_t i = 0; i < size; i++) {
            float v = (float)value_at(norm->type, from, first + i);
            v *= all->s[first / width];
            if (norm->rounds_product)
                v = rounded_like(norm->type, v);
            v *= ((const float *)norm->weight)[(first + i) % width];
            value[i] = v;
            largest = fmaxf(largest, fabsf(v));
        }
        const float scale = cpu_fp8_scale_of(limit, largest);
        CHECK(scales[first % width / size * N_ROWS + first / width] == scale);
        for (int64_t i = 0; i < size; i++)
            CHECK_INT(to[first + i], code_of(norm->to, value[i] / scale));
    }
}

static void check_groups(enum roped_dtype dtype, int64_t size, bool is_rounded)
{
    static const float factor[N_ROWS] = {0.5f, 1.2345f, 777};
    const struct cpu_fp8_scale limit = {1e6f, ROPED_E4M3_MAX, 1e-6f};
    static _Alignas(64) float weight[MOST_COLUMNS], ordered[MOST_COLUMNS],
        scales[N_ROWS * MOST_COLUMNS / 16];
    const int64_t width = 1536 + size; /* an odd number of groups */
    const struct cpu_scales columns = {scales, 1, N_ROWS};
    fill(ROPED_F32, weight, width);
    fill(dtype, from, N_ROWS * width);
    const struct cpu_norm norm = {.width = width,
                                  .from = dtype,
                                  .type = dtype,
                                  .to = ROPED_F8_E4M3,
                                  .weight_dtype = ROPED_F32,
                                  .weight = weight,
                                  .rounds_product = is_rounded};
    const struct cpu_norm_rows all = {
        .n = N_ROWS, .x = from, .y = to, .s = factor};
    rows->normalize_groups(&norm, &all, size, &limit, &columns);
    expect_groups(&norm, &all, size, &limit, scales);
    rows->fill_weight(dtype, ROPED_F32, ordered, weight, 0, width);
    rows->normalize_scaled(&norm, &all, ordered, &limit, scales);
    expect_groups(&norm, &all, width, &limit, scales);
}

TEST(groups_and_rows_are_divided_by_their_scales)
{
    for (int t = 0; t < 3; t++)
        for (int64_t size = 16; size <= 128; size *= 2)
            for (int rounding = 0; rounding < 2; rounding++)
                check_groups(floats[t], size, rounding > 0);
}

int main(void)
{
    for (int rank = 0; (rows = cpu_rows_at(rank)) != NULL; rank++) {
        printf("%s:\n", rows->name);
        check_run();
    }
    return check_done();
}
