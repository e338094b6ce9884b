/*
 * rows.c - the inner loops, in plain C that the compiler vectorises; built
 * once per instruction set with CPU_ISA = portable, avx2 or avx512. Only the
 * float16 conversion is written with intrinsics, where F16C has it.
 */
#include "cpu/rows.h"

#include <roped/numeric.h>

#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

/* ----------------------------------------------------------- conversions */

static void widen_f16(float *restrict to, const uint16_t *restrict from,
                      int64_t n)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
#endif
    for (; i < n; i++)
        to[i] = roped_f16_to_float(from[i]);
}

static void widen_bf16(float *restrict to, const uint16_t *restrict from,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = roped_bf16_to_float(from[i]);
}

static void widen(enum roped_dtype dtype, float *to, const void *from,
                  int64_t n)
{
    if (dtype == ROPED_F16)
        widen_f16(to, from, n);
    else if (dtype == ROPED_BF16)
        widen_bf16(to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static void narrow_f16(uint16_t *restrict to, const float *restrict from,
                       int64_t n)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(
            (void *)(to + i),
            _mm256_cvtps_ph(_mm256_loadu_ps(from + i),
                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; i++)
        to[i] = roped_float_to_f16(from[i]);
}

/* roped_float_to_bf16 with a select in place of the branch */
static void narrow_bf16(uint16_t *restrict to, const float *restrict from,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = roped_float_bits(from[i]);
        uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
        uint32_t nan = (bits >> 16) | 0x40u;
        to[i] = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
    }
}

/* roped_float_to_fp8 with selects in place of branches */
static inline void narrow_fp8(uint8_t *restrict to, const float *restrict from,
                              int64_t n, int m, int b, float max)
{
    const uint32_t smallest_normal = (uint32_t)(127 - b + 1) << 23;
    const float step = roped_bits_float((uint32_t)(127 + 1 - b - m + 23) << 23);
    const uint32_t step_bits = roped_float_bits(step);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = roped_float_bits(from[i]);
        uint32_t magnitude = bits & 0x7FFFFFFFu;
        uint32_t is_nan = magnitude > 0x7F800000u;
        uint32_t largest = roped_float_bits(max);
        uint32_t clamped = magnitude > largest ? largest : magnitude;
        uint32_t subnormal =
            roped_float_bits(roped_bits_float(clamped) + step) - step_bits;
        uint32_t rounded =
            clamped + (1u << (22 - m)) - 1u + ((clamped >> (23 - m)) & 1u);
        uint32_t normal = (rounded >> (23 - m)) - ((uint32_t)(127 - b) << m);
        uint32_t code = clamped < smallest_normal ? subnormal : normal;
        code |= (bits >> 24) & 0x80u;
        to[i] = (uint8_t)(is_nan ? 0x7Fu : code);
    }
}

static void narrow_e4m3(uint8_t *to, const float *from, int64_t n)
{
    narrow_fp8(to, from, n, 3, 7, ROPED_E4M3_MAX);
}

static void narrow_e5m2(uint8_t *to, const float *from, int64_t n)
{
    narrow_fp8(to, from, n, 2, 15, ROPED_E5M2_MAX);
}

static void narrow(enum roped_dtype dtype, void *to, const float *from,
                   int64_t n)
{
    if (dtype == ROPED_F16)
        narrow_f16(to, from, n);
    else if (dtype == ROPED_BF16)
        narrow_bf16(to, from, n);
    else if (dtype == ROPED_F8_E4M3)
        narrow_e4m3(to, from, n);
    else if (dtype == ROPED_F8_E5M2)
        narrow_e5m2(to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *from);
}

/* --------------------------------------------------------------- rotation */

static void scale(float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* to may be from: every pair is read before it is written. */
static void rotate_neox(float *to, const float *from, const float *c,
                        const float *s, int64_t n_pairs)
{
    const float *first = from, *second = from + n_pairs;
    float *to_first = to, *to_second = to + n_pairs;
#pragma GCC ivdep
    for (int64_t i = 0; i < n_pairs; i++) {
        float a = first[i], b = second[i];
        to_first[i] = a * c[i] - b * s[i];
        to_second[i] = b * c[i] + a * s[i];
    }
}

static void rotate_gptj(float *to, const float *from, const float *c,
                        const float *s, int64_t n_pairs)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n_pairs; i++) {
        float a = from[2 * i], b = from[2 * i + 1];
        to[2 * i] = a * c[i] - b * s[i];
        to[2 * i + 1] = b * c[i] + a * s[i];
    }
}

/* ----------------------------------------------------------------- angles */

/*
 * cos and sin of a double angle below 2^24. The angle is reduced by multiples
 * k of pi/2 in three parts of at most 28 bits, so that k * part is exact
 * without a fused product (k has at most 24 bits); the rest, at most pi/4,
 * goes through Taylor polynomials whose error is below 1e-11.
 */
static inline void sincos_of(double angle, double *sine, double *cosine)
{
    static const double two_over_pi = 0.63661977236758134308;
    static const double part1 = 0x1.921FB54p+0;
    static const double part2 = 0x1.10B461p-30;
    static const double part3 = 0x1.A62633145C06Ep-58;
    static const double to_integer = 0x1.8p52;
    double shifted = angle * two_over_pi + to_integer;
    double k = shifted - to_integer;
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    double r = ((angle - k * part1) - k * part2) - k * part3;
    double z = r * r;
    double sin_r =
        r +
        r * z *
            (-1.0 / 6 +
             z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 +
                                                      z * (-1.0 / 39916800)))));
    double cos_r =
        1 + z * (-0.5 + z * (1.0 / 24 +
                             z * (-1.0 / 720 +
                                  z * (1.0 / 40320 + z * (-1.0 / 3628800 +
                                                          z / 479001600.0)))));
    double swap_sin = quadrant & 1 ? cos_r : sin_r;
    double swap_cos = quadrant & 1 ? sin_r : cos_r;
    *sine = quadrant & 2 ? -swap_sin : swap_sin;
    *cosine = (quadrant + 1) & 2 ? -swap_cos : swap_cos;
}

static void angles_f32(float *restrict c, float *restrict s, float position,
                       const float *restrict frequency, float attention,
                       float sin_factor, int64_t n_pairs)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        double sine, cosine;
        float angle = position * frequency[i];
        sincos_of((double)angle, &sine, &cosine);
        c[i] = (float)cosine * attention;
        s[i] = (float)sine * sin_factor;
    }
}

static void angles_f64(float *restrict c, float *restrict s, double position,
                       const double *restrict frequency, float attention,
                       float sin_factor, int64_t n_pairs)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        double sine, cosine;
        sincos_of(position * frequency[i], &sine, &cosine);
        c[i] = (float)cosine * attention;
        s[i] = (float)sine * sin_factor;
    }
}

static void angles(float *c, float *s, double position,
                   const struct roped_angles *of, float sin_sign,
                   int64_t n_pairs)
{
    float attention = of->attention_factor;
    if (of->precision == ROPED_ANGLE_F64)
        angles_f64(c, s, position, of->frequency.f64, attention,
                   attention * sin_sign, n_pairs);
    else
        angles_f32(c, s, (float)position, of->frequency.f32, attention,
                   attention * sin_sign, n_pairs);
}

/* ------------------------------------------------------------------- norm */

static void add(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void divide(float *x, float divisor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= divisor;
}

/* Magnitudes of floats are ordered as their bits are. */
static float largest(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = roped_float_bits(x[i]) & 0x7FFFFFFFu;
        uint32_t candidate = magnitude > 0x7F800000u ? 0 : magnitude;
        most = candidate > most ? candidate : most;
    }
    return roped_bits_float(most);
}

static double sum_of_squares(const float *x, int64_t n)
{
    enum { LANES = 16 };
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sum[lane] += (double)x[i + lane] * (double)x[i + lane];
    for (int lane = 0; i < n; i++, lane++)
        sum[lane] += (double)x[i] * (double)x[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0];
}

static void normalize(float *restrict y, const float *restrict x, float s,
                      const float *restrict w, float bias, int64_t n)
{
    if (w)
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * s * (bias + w[i]);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * s * (bias + 1);
}

extern const struct cpu_rows PASTE(cpu_rows_, CPU_ISA);
const struct cpu_rows PASTE(cpu_rows_, CPU_ISA) = {
    .name = TEXT(CPU_ISA),
    .widen = widen,
    .narrow = narrow,
    .scale = scale,
    .rotate_neox = rotate_neox,
    .rotate_gptj = rotate_gptj,
    .angles = angles,
    .add = add,
    .divide = divide,
    .largest = largest,
    .sum_of_squares = sum_of_squares,
    .normalize = normalize,
};
