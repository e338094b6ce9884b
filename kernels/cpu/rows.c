/*
 * rows.c - the inner loops, built once per instruction set with CPU_ISA =
 * portable, avx2 or avx512. What differs between them is in cpu/vector.h.
 */
#include "cpu/rows.h"
#include "cpu/vector.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

/*
 * Every pair of types that a row may go from and to. A loop over a row is an
 * INLINE function whose types are constants, and CALL_FOR_TYPES(from, to, loop,
 * arguments...) is the switch between its instances.
 */
#define TYPE_PAIRS(X, ...)                                                     \
    X(ROPED_F32, ROPED_F32, __VA_ARGS__)                                       \
    X(ROPED_F32, ROPED_F16, __VA_ARGS__)                                       \
    X(ROPED_F32, ROPED_BF16, __VA_ARGS__)                                      \
    X(ROPED_F32, ROPED_F8_E4M3, __VA_ARGS__)                                   \
    X(ROPED_F32, ROPED_F8_E5M2, __VA_ARGS__)                                   \
    X(ROPED_F16, ROPED_F16, __VA_ARGS__)                                       \
    X(ROPED_F16, ROPED_F8_E4M3, __VA_ARGS__)                                   \
    X(ROPED_F16, ROPED_F8_E5M2, __VA_ARGS__)                                   \
    X(ROPED_BF16, ROPED_BF16, __VA_ARGS__)                                     \
    X(ROPED_BF16, ROPED_F8_E4M3, __VA_ARGS__)                                  \
    X(ROPED_BF16, ROPED_F8_E5M2, __VA_ARGS__)
#define TYPE_PAIR(from, to) ((int)(from) << 8 | (int)(to))
#define TYPE_CASE(from, to, loop, ...)                                         \
    case TYPE_PAIR(from, to):                                                  \
        loop(from, to, __VA_ARGS__);                                           \
        break;
#define CALL_FOR_TYPES(from, to, loop, ...)                                    \
    switch (TYPE_PAIR(from, to)) {                                             \
        TYPE_PAIRS(TYPE_CASE, loop, __VA_ARGS__)                               \
    }

/* Streams need whole blocks that start at multiples of this. */
enum { STREAM_ALIGNMENT = 64 };

INLINE const void *at(enum roped_dtype dtype, const void *base, int64_t i)
{
    return (const unsigned char *)base + (size_t)i * size_of(dtype);
}

INLINE void *place(enum roped_dtype dtype, void *base, int64_t i)
{
    return (unsigned char *)base + (size_t)i * size_of(dtype);
}

INLINE bool is_aligned(enum roped_dtype dtype, const void *base, int64_t i)
{
    return (uintptr_t)at(dtype, base, i) % STREAM_ALIGNMENT == 0;
}

INLINE block times(block x, vfloat factor)
{
    return (block){x.lo * factor, x.hi * factor};
}

/* -------------------------------------------------------------- conversion */

/* Bits, where the types are the same. */
INLINE void copy_row(enum roped_dtype dtype, void *to, const void *from,
                     int64_t n, bool is_streamed)
{
    const int64_t step = 64;
    int64_t bytes = n * (int64_t)size_of(dtype), i = 0;
    if (to == from)
        return;
    if (is_streamed && is_aligned(dtype, to, 0))
        for (; i + step <= bytes; i += step)
            stream64(place(ROPED_U8, to, i), at(ROPED_U8, from, i));
    memcpy(place(ROPED_U8, to, i), at(ROPED_U8, from, i), (size_t)(bytes - i));
}

INLINE void convert_row(enum roped_dtype from_dtype, enum roped_dtype to_dtype,
                        void *to, const void *from, float scale, int64_t n,
                        bool is_streamed)
{
    const vfloat factor = splat(size_of(to_dtype) == 1 ? scale : 1);
    int64_t i = 0;
    if (from_dtype == to_dtype) {
        copy_row(to_dtype, to, from, n, is_streamed);
        return;
    }
    is_streamed = is_streamed && is_aligned(to_dtype, to, 0);
    for (; i + BLOCK <= n; i += BLOCK)
        store(to_dtype, place(to_dtype, to, i),
              times(load(from_dtype, at(from_dtype, from, i)), factor),
              is_streamed);
    if (i < n)
        store_part(to_dtype, place(to_dtype, to, i),
                   times(load_part(from_dtype, at(from_dtype, from, i), n - i),
                         factor),
                   n - i);
}

static void convert(enum roped_dtype to_dtype, void *to,
                    enum roped_dtype from_dtype, const void *from, float scale,
                    int64_t n, bool is_streamed){
    CALL_FOR_TYPES(from_dtype, to_dtype, convert_row, to, from, scale, n,
                   is_streamed)}

INLINE void widen_row(enum roped_dtype dtype, float *to, const void *from,
                      int64_t n)
{
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        store32(to + i, load(dtype, at(dtype, from, i)));
    if (i < n)
        store32_part(to + i, load_part(dtype, at(dtype, from, i), n - i),
                     n - i);
}

static void widen(enum roped_dtype dtype, float *to, const void *from,
                  int64_t n)
{
    if (dtype == ROPED_F16)
        widen_row(ROPED_F16, to, from, n);
    else if (dtype == ROPED_BF16)
        widen_row(ROPED_BF16, to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static void scale(float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* ---------------------------------------------------------------- rotation */

/* a * c - b * s and b * c + a * s */
INLINE void rotate_pairs(block *a, block *b, block c, block s)
{
    block x = *a, y = *b;
    a->lo = multiply_subtract(x.lo, c.lo, y.lo * s.lo);
    a->hi = multiply_subtract(x.hi, c.hi, y.hi * s.hi);
    b->lo = multiply_add(y.lo, c.lo, x.lo * s.lo);
    b->hi = multiply_add(y.hi, c.hi, x.hi * s.hi);
}

/* Pairs of one head: a and b are where their first and second elements are. */
INLINE void rotate_neox(enum roped_dtype from, enum roped_dtype to, void *to_a,
                        void *to_b, const void *from_a, const void *from_b,
                        float scale, int64_t n, const float *c, const float *s,
                        bool is_streamed)
{
    const vfloat factor = splat(scale);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        block a = load(from, at(from, from_a, i));
        block b = load(from, at(from, from_b, i));
        rotate_pairs(&a, &b, load32(c + i), load32(s + i));
        if (size_of(to) == 1)
            a = times(a, factor), b = times(b, factor);
        store(to, place(to, to_a, i), a, is_streamed);
        store(to, place(to, to_b, i), b, is_streamed);
    }
    if (i < n) {
        block a = load_part(from, at(from, from_a, i), n - i);
        block b = load_part(from, at(from, from_b, i), n - i);
        rotate_pairs(&a, &b, load32_part(c + i, n - i),
                     load32_part(s + i, n - i));
        if (size_of(to) == 1)
            a = times(a, factor), b = times(b, factor);
        store_part(to, place(to, to_a, i), a, n - i);
        store_part(to, place(to, to_b, i), b, n - i);
    }
}

/* x * c + (its neighbour) * s, with sines that have their sign */
INLINE block rotate_neighbours(block x, block c, block s)
{
    return (block){multiply_add(x.lo, c.lo, swap_neighbours(x.lo) * s.lo),
                   multiply_add(x.hi, c.hi, swap_neighbours(x.hi) * s.hi)};
}

/* 2n elements of one head, with angles per element. */
INLINE void rotate_gptj(enum roped_dtype from_dtype, enum roped_dtype to_dtype,
                        void *to, const void *from, float scale, int64_t n,
                        const float *c, const float *s, bool is_streamed)
{
    const vfloat factor = splat(scale);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        block x = rotate_neighbours(load(from_dtype, at(from_dtype, from, i)),
                                    load32(c + i), load32(s + i));
        if (size_of(to_dtype) == 1)
            x = times(x, factor);
        store(to_dtype, place(to_dtype, to, i), x, is_streamed);
    }
    if (i < n) {
        block x = rotate_neighbours(
            load_part(from_dtype, at(from_dtype, from, i), n - i),
            load32_part(c + i, n - i), load32_part(s + i, n - i));
        if (size_of(to_dtype) == 1)
            x = times(x, factor);
        store_part(to_dtype, place(to_dtype, to, i), x, n - i);
    }
}

/* c c, -s s: the angles of both elements of a pair */
static void angles_per_element(float *restrict c2, float *restrict s2,
                               const float *restrict c, const float *restrict s,
                               int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        c2[2 * i] = c2[2 * i + 1] = c[i];
        s2[2 * i] = -s[i];
        s2[2 * i + 1] = s[i];
    }
}

/* What of a head does not rotate. */
INLINE void convert_rest(enum roped_dtype from_dtype, enum roped_dtype to_dtype,
                         const struct cpu_heads *heads, void *to,
                         const void *from)
{
    int64_t end = heads->first + 2 * heads->n_pairs;
    if (heads->first > 0)
        convert_row(from_dtype, to_dtype, to, from, heads->scale, heads->first,
                    heads->is_streamed);
    if (end < heads->width)
        convert_row(from_dtype, to_dtype, place(to_dtype, to, end),
                    at(from_dtype, from, end), heads->scale, heads->width - end,
                    heads->is_streamed);
}

INLINE void rotate_heads(enum roped_dtype from_dtype, enum roped_dtype to_dtype,
                         const struct cpu_heads *heads, void *to,
                         const void *from, int64_t first_pair, int64_t n,
                         const float *c, const float *s)
{
    float c2[CPU_BLOCK], s2[CPU_BLOCK];
    int64_t a = heads->first + (heads->is_gptj ? 2 : 1) * first_pair;
    int64_t b = a + heads->n_pairs;
    bool is_streamed = heads->is_streamed && n % BLOCK == 0 &&
                       is_aligned(to_dtype, to, a) &&
                       is_aligned(to_dtype, to, b) &&
                       is_aligned(to_dtype, to, heads->to_pitch);
    if (heads->is_gptj)
        angles_per_element(c2, s2, c, s, n);
    for (int64_t head = 0; head < heads->n_heads; head++) {
        const void *x = at(from_dtype, from, head * heads->from_pitch);
        void *y = place(to_dtype, to, head * heads->to_pitch);
        if (first_pair == 0)
            convert_rest(from_dtype, to_dtype, heads, y, x);
        if (heads->is_gptj)
            rotate_gptj(from_dtype, to_dtype, place(to_dtype, y, a),
                        at(from_dtype, x, a), heads->scale, 2 * n, c2, s2,
                        is_streamed);
        else
            rotate_neox(from_dtype, to_dtype, place(to_dtype, y, a),
                        place(to_dtype, y, b), at(from_dtype, x, a),
                        at(from_dtype, x, b), heads->scale, n, c, s,
                        is_streamed);
    }
}

static void rotate(const struct cpu_heads *heads, void *to, const void *from,
                   int64_t first_pair, int64_t n, const float *c,
                   const float *s)
{
    CALL_FOR_TYPES(heads->from, heads->to, rotate_heads, heads, to, from,
                   first_pair, n, c, s)
}

/* ------------------------------------------------------------------ angles */

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

/* -------------------------------------------------------------------- norm */

/* Squares of at most this many elements are added in float32. */
enum { SQUARES = 16 * 2 * BLOCK };

INLINE block add_squares(block sum, block x)
{
    return (block){multiply_add(x.lo, x.lo, sum.lo),
                   multiply_add(x.hi, x.hi, sum.hi)};
}

INLINE double sum_of_lanes(block x)
{
    float lane[BLOCK];
    double sum[BLOCK];
    store32(lane, x);
    for (int i = 0; i < BLOCK; i++)
        sum[i] = (double)lane[i];
    for (int half = BLOCK / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

/* At most SQUARES elements, in two chains of additions. */
INLINE double float_sum(enum roped_dtype dtype, const void *x, int64_t n)
{
    block even = {splat(0), splat(0)}, odd = even;
    int64_t i = 0;
    for (; i + 2 * BLOCK <= n; i += 2 * BLOCK) {
        even = add_squares(even, load(dtype, at(dtype, x, i)));
        odd = add_squares(odd, load(dtype, at(dtype, x, i + BLOCK)));
    }
    if (i + BLOCK <= n) {
        even = add_squares(even, load(dtype, at(dtype, x, i)));
        i += BLOCK;
    }
    if (i < n)
        odd = add_squares(odd, load_part(dtype, at(dtype, x, i), n - i));
    return sum_of_lanes((block){even.lo + odd.lo, even.hi + odd.hi});
}

/* Where squares leave float32's range: every step in double. */
INLINE double double_sum(enum roped_dtype dtype, const void *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        float value[BLOCK] = {0};
        widen_row(dtype, value, at(dtype, x, i), part);
        for (int j = 0; j < BLOCK; j++)
            sum += (double)value[j] * (double)value[j];
    }
    return sum;
}

INLINE double sum_row(enum roped_dtype dtype, const void *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += SQUARES)
        sum += float_sum(dtype, at(dtype, x, i),
                         n - i < SQUARES ? n - i : SQUARES);
    if (UNLIKELY(!(sum >= 0x1p-100 && sum <= 0x1p127)))
        return double_sum(dtype, x, n);
    return sum;
}

static double sum_of_squares(enum roped_dtype dtype, const void *x, int64_t n)
{
    if (dtype == ROPED_F16)
        return sum_row(ROPED_F16, x, n);
    if (dtype == ROPED_BF16)
        return sum_row(ROPED_BF16, x, n);
    return sum_row(ROPED_F32, x, n);
}

/* Rounded to F16 or BF16 and back. */
INLINE block round_to(enum roped_dtype dtype, block x)
{
    if (dtype == ROPED_F16)
        return widen_f16(narrow_f16(x));
    if (dtype == ROPED_BF16)
        return widen_bf16(narrow_bf16(x));
    return x;
}

INLINE block normalize_block(enum roped_dtype to, const struct cpu_norm *norm,
                             block x, block weight, vfloat s)
{
    const vfloat bias = splat(norm->bias);
    block y = round_to(norm->round_first, times(x, s));
    y = (block){y.lo * (bias + weight.lo), y.hi * (bias + weight.hi)};
    return size_of(to) == 1 ? times(y, splat(norm->scale)) : y;
}

INLINE void normalize_row(enum roped_dtype from, enum roped_dtype to,
                          const struct cpu_norm *norm, void *y, const void *x,
                          const void *weight, float s, int64_t n)
{
    const vfloat factor = splat(s);
    const block one = {splat(1), splat(1)};
    const enum roped_dtype weight_dtype = norm->weight;
    bool is_streamed = norm->is_streamed && is_aligned(to, y, 0);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        block w = weight_dtype ? load(weight_dtype, at(weight_dtype, weight, i))
                               : one;
        store(to, place(to, y, i),
              normalize_block(to, norm, load(from, at(from, x, i)), w, factor),
              is_streamed);
    }
    if (i < n) {
        block w = weight_dtype ? load_part(weight_dtype,
                                           at(weight_dtype, weight, i), n - i)
                               : one;
        store_part(to, place(to, y, i),
                   normalize_block(to, norm,
                                   load_part(from, at(from, x, i), n - i), w,
                                   factor),
                   n - i);
    }
}

static void normalize(const struct cpu_norm *norm, void *y, const void *x,
                      const void *weight, float s, int64_t n)
{
    CALL_FOR_TYPES(norm->from, norm->to, normalize_row, norm, y, x, weight, s,
                   n)
}

extern const struct cpu_rows PASTE(cpu_rows_, CPU_ISA);
const struct cpu_rows PASTE(cpu_rows_, CPU_ISA) = {
    .name = TEXT(CPU_ISA),
    .convert = convert,
    .widen = widen,
    .scale = scale,
    .rotate = rotate,
    .angles = angles,
    .sum_of_squares = sum_of_squares,
    .normalize = normalize,
    .fence = fence,
};
