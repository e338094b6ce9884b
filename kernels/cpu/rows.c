/*
 * rows.c - the inner loops, built once per instruction set with CPU_ISA =
 * portable, avx2 or avx512. What differs between them is in cpu/vector.h.
 */
#include "cpu/rows.h"
#include "cpu/vector.h"

#include <math.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

/*
 * Every pair of types that a row may go from and to. The loop over a row is an
 * INLINE function whose types are constants; INSTANCES makes one function of
 * it per pair, CALL_INSTANCE the switch between them.
 */
#define TYPE_PAIRS(X, ...)                                                     \
    X(F32, F32, __VA_ARGS__)                                                   \
    X(F32, F16, __VA_ARGS__)                                                   \
    X(F32, BF16, __VA_ARGS__)                                                  \
    X(F32, F8_E4M3, __VA_ARGS__)                                               \
    X(F32, F8_E5M2, __VA_ARGS__)                                               \
    X(F16, F16, __VA_ARGS__)                                                   \
    X(F16, F8_E4M3, __VA_ARGS__)                                               \
    X(F16, F8_E5M2, __VA_ARGS__)                                               \
    X(BF16, BF16, __VA_ARGS__)                                                 \
    X(BF16, F8_E4M3, __VA_ARGS__)                                              \
    X(BF16, F8_E5M2, __VA_ARGS__)
#define INSTANCE(from, to, loop, arguments)                                    \
    static NOINLINE void loop##_##from##_##to(const struct arguments *a)       \
    {                                                                          \
        loop(ROPED_##from, ROPED_##to, a);                                     \
    }
#define INSTANCES(loop, arguments) TYPE_PAIRS(INSTANCE, loop, arguments)
#define TYPE_PAIR(from, to)        ((int)(from) << 8 | (int)(to))
#define CASE(from, to, loop, a)                                                \
    case TYPE_PAIR(ROPED_##from, ROPED_##to):                                  \
        loop##_##from##_##to(a);                                               \
        break;
#define CALL_INSTANCE(from, to, loop, a)                                       \
    switch (TYPE_PAIR(from, to)) {                                             \
        TYPE_PAIRS(CASE, loop, a)                                              \
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

struct conversion {
    void *to;
    const void *from;
    int64_t n;
    float scale;
    bool is_streamed;
};

INLINE void convert_blocks(enum roped_dtype from, enum roped_dtype to,
                           const struct conversion *a, bool is_streamed)
{
    const struct conversion row = *a; /* which no store can change */
    int64_t i = 0;
    for (; i + BLOCK <= row.n; i += BLOCK)
        store(to, place(to, row.to, i),
              load(from, at(from, row.from, i), BLOCK), row.scale, BLOCK,
              is_streamed);
    if (i < row.n)
        store(to, place(to, row.to, i),
              load(from, at(from, row.from, i), row.n - i), row.scale,
              row.n - i, false);
}

INLINE void convert_row(enum roped_dtype from, enum roped_dtype to,
                        const struct conversion *a)
{
    if (from == to)
        copy_row(to, a->to, a->from, a->n, a->is_streamed);
    else if (a->is_streamed && is_aligned(to, a->to, 0))
        convert_blocks(from, to, a, true);
    else
        convert_blocks(from, to, a, false);
}

INSTANCES(convert_row, conversion)

static void convert(enum roped_dtype to_dtype, void *to,
                    enum roped_dtype from_dtype, const void *from, float scale,
                    int64_t n, bool is_streamed)
{
    const struct conversion a = {to, from, n, scale, is_streamed};
    CALL_INSTANCE(from_dtype, to_dtype, convert_row, &a)
}

INLINE void widen_row(enum roped_dtype dtype, float *to, const void *from,
                      int64_t n)
{
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        store32(to + i, load(dtype, at(dtype, from, i), BLOCK));
    if (i < n)
        store32_part(to + i, load(dtype, at(dtype, from, i), n - i), n - i);
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

/* Pairs of a token's heads, and their angles. */
struct rotation {
    const struct cpu_heads *heads;
    void *to; /* of the first head */
    const void *from;
    int64_t n;          /* pairs */
    const float *c, *s; /* per pair; gptj: per element, s with its sign */
    int64_t first;      /* element of a head where the first pair is */
    bool is_streamed;
};

/* a * c - b * s and b * c + a * s */
INLINE void rotate_pairs(block *a, block *b, block c, block s)
{
    block x = *a, y = *b;
    a->lo = multiply_subtract(x.lo, c.lo, y.lo * s.lo);
    a->hi = multiply_subtract(x.hi, c.hi, y.hi * s.hi);
    b->lo = multiply_add(y.lo, c.lo, x.lo * s.lo);
    b->hi = multiply_add(y.hi, c.hi, x.hi * s.hi);
}

/*
 * Pairs [i, i + n) of every head: head by head inside block by block, so that
 * the angles stay in registers.
 */
INLINE void rotate_neox(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, int64_t i, int64_t n,
                        bool is_streamed)
{
    const struct cpu_heads *heads = r->heads;
    const int64_t n_heads = heads->n_heads, second = heads->n_pairs;
    const float scale = heads->scale;
    const int64_t from_pitch = heads->from_pitch, to_pitch = heads->to_pitch;
    const block c = load(ROPED_F32, r->c + i, n);
    const block s = load(ROPED_F32, r->s + i, n);
    const void *x = at(from, r->from, r->first + i);
    void *y = place(to, r->to, r->first + i);
    for (int64_t head = 0; head < n_heads; head++) {
        block a = load(from, x, n);
        block b = load(from, at(from, x, second), n);
        rotate_pairs(&a, &b, c, s);
        store(to, y, a, scale, n, is_streamed);
        store(to, place(to, y, second), b, scale, n, is_streamed);
        x = at(from, x, from_pitch);
        y = place(to, y, to_pitch);
    }
}

/* x * c + (its neighbour) * s */
INLINE block rotate_neighbours(block x, block c, block s)
{
    return (block){multiply_add(x.lo, c.lo, swap_neighbours(x.lo) * s.lo),
                   multiply_add(x.hi, c.hi, swap_neighbours(x.hi) * s.hi)};
}

/* Elements [i, i + n) of the rotated part of every head. */
INLINE void rotate_gptj(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, int64_t i, int64_t n,
                        bool is_streamed)
{
    const struct cpu_heads *heads = r->heads;
    const int64_t n_heads = heads->n_heads;
    const float scale = heads->scale;
    const int64_t from_pitch = heads->from_pitch, to_pitch = heads->to_pitch;
    const block c = load(ROPED_F32, r->c + i, n);
    const block s = load(ROPED_F32, r->s + i, n);
    const void *x = at(from, r->from, r->first + i);
    void *y = place(to, r->to, r->first + i);
    for (int64_t head = 0; head < n_heads; head++) {
        store(to, y, rotate_neighbours(load(from, x, n), c, s), scale, n,
              is_streamed);
        x = at(from, x, from_pitch);
        y = place(to, y, to_pitch);
    }
}

INLINE void rotate_blocks(enum roped_dtype from, enum roped_dtype to,
                          const struct rotation *r, bool is_streamed)
{
    int64_t i = 0, n = r->heads->is_gptj ? 2 * r->n : r->n;
    if (r->heads->is_gptj) {
        for (; i + BLOCK <= n; i += BLOCK)
            rotate_gptj(from, to, r, i, BLOCK, is_streamed);
        if (i < n)
            rotate_gptj(from, to, r, i, n - i, false);
    } else {
        for (; i + BLOCK <= n; i += BLOCK)
            rotate_neox(from, to, r, i, BLOCK, is_streamed);
        if (i < n)
            rotate_neox(from, to, r, i, n - i, false);
    }
}

INLINE void rotate_heads(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r)
{
    if (r->is_streamed)
        rotate_blocks(from, to, r, true);
    else
        rotate_blocks(from, to, r, false);
}

INSTANCES(rotate_heads, rotation)

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

/* Elements [first, end) of every head, as they are. */
static void convert_part(const struct cpu_heads *heads, void *to,
                         const void *from, int64_t first, int64_t end)
{
    for (int64_t i = 0; i < heads->n_heads && first < end; i++)
        convert(heads->to, place(heads->to, to, i * heads->to_pitch + first),
                heads->from,
                at(heads->from, from, i * heads->from_pitch + first),
                heads->scale, end - first, heads->is_streamed);
}

/* Do whole blocks at aligned addresses cover the pairs? */
static bool can_stream(const struct cpu_heads *heads, const void *to,
                       int64_t first, int64_t n)
{
    enum roped_dtype dtype = heads->to;
    return n % BLOCK == 0 && is_aligned(dtype, to, first) &&
           is_aligned(dtype, to, first + heads->n_pairs) &&
           is_aligned(dtype, to, first + heads->to_pitch);
}

static void rotate(const struct cpu_heads *heads, void *to, const void *from,
                   int64_t first_pair, int64_t n, const float *c,
                   const float *s)
{
    float c2[CPU_BLOCK], s2[CPU_BLOCK];
    int64_t first = heads->first + (heads->is_gptj ? 2 : 1) * first_pair;
    struct rotation r = {
        heads, to,
        from,  n,
        c,     s,
        first, heads->is_streamed && can_stream(heads, to, first, n)};
    if (heads->is_gptj) {
        angles_per_element(c2, s2, c, s, n);
        r.c = c2, r.s = s2;
    }
    CALL_INSTANCE(heads->from, heads->to, rotate_heads, &r)
    if (first_pair == 0) {
        convert_part(heads, to, from, 0, heads->first);
        convert_part(heads, to, from, heads->first + 2 * heads->n_pairs,
                     heads->width);
    }
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

/* At most SQUARES elements, in two chains of additions. */
INLINE double float_sum(enum roped_dtype dtype, const void *x, int64_t n)
{
    block even = {splat(0), splat(0)}, odd = even;
    int64_t i = 0;
    for (; i + 2 * BLOCK <= n; i += 2 * BLOCK) {
        even = add_squares(even, load(dtype, at(dtype, x, i), BLOCK));
        odd = add_squares(odd, load(dtype, at(dtype, x, i + BLOCK), BLOCK));
    }
    if (i + BLOCK <= n) {
        even = add_squares(even, load(dtype, at(dtype, x, i), BLOCK));
        i += BLOCK;
    }
    if (i < n)
        odd = add_squares(odd, load(dtype, at(dtype, x, i), n - i));
    return sum_of_lanes((even.lo + odd.lo) + (even.hi + odd.hi));
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

INLINE void sum_rows(enum roped_dtype dtype, const void *x, int64_t n_rows,
                     int64_t n, double *sum)
{
    for (int64_t row = 0; row < n_rows; row++)
        sum[row] = sum_row(dtype, at(dtype, x, row * n), n);
}

static void inverse_rms(enum roped_dtype dtype, const void *x, int64_t n_rows,
                        int64_t n, float eps, float *s)
{
    double sum[CPU_ROWS];
    if (dtype == ROPED_F16)
        sum_rows(ROPED_F16, x, n_rows, n, sum);
    else if (dtype == ROPED_BF16)
        sum_rows(ROPED_BF16, x, n_rows, n, sum);
    else
        sum_rows(ROPED_F32, x, n_rows, n, sum);
    for (int64_t row = 0; row < n_rows; row++)
        s[row] = (float)(1 / sqrt(sum[row] / (double)n + (double)eps));
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

/* Columns [first, first + n) of some rows. */
struct norm_part {
    const struct cpu_norm *norm;
    void *y; /* of the first row */
    const void *x;
    const float *weight; /* bias + weight, from column first on */
    const float *s;      /* per row */
    int64_t n_rows, first, n;
};

INLINE void normalize_block(enum roped_dtype from, enum roped_dtype to,
                            const struct cpu_norm *norm, void *y, const void *x,
                            const float *weight, float s, int64_t n,
                            bool is_rounded, bool is_streamed)
{
    const block w = load(ROPED_F32, weight, n);
    block v = times(load(from, x, n), splat(s));
    if (is_rounded)
        v = round_to(norm->round_first, v);
    v = (block){v.lo * w.lo, v.hi * w.hi};
    store(to, y, v, norm->scale, n, is_streamed);
}

INLINE void normalize_blocks(enum roped_dtype from, enum roped_dtype to,
                             const struct norm_part *part, bool is_rounded,
                             bool is_streamed)
{
    const struct norm_part a = *part; /* which no store can change */
    const struct cpu_norm norm = *a.norm;
    for (int64_t row = 0; row < a.n_rows; row++) {
        const void *x = at(from, a.x, row * norm.width + a.first);
        void *y = place(to, a.y, row * norm.width + a.first);
        const float s = a.s[row];
        int64_t i = 0;
        for (; i + BLOCK <= a.n; i += BLOCK)
            normalize_block(from, to, &norm, place(to, y, i), at(from, x, i),
                            a.weight + i, s, BLOCK, is_rounded, is_streamed);
        if (i < a.n)
            normalize_block(from, to, &norm, place(to, y, i), at(from, x, i),
                            a.weight + i, s, a.n - i, is_rounded, false);
    }
}

INLINE void normalize_part(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a)
{
    bool is_streamed = a->norm->is_streamed && is_aligned(to, a->y, 0) &&
                       is_aligned(to, NULL, a->norm->width);
    if (a->norm->round_first && is_streamed)
        normalize_blocks(from, to, a, true, true);
    else if (a->norm->round_first)
        normalize_blocks(from, to, a, true, false);
    else if (is_streamed)
        normalize_blocks(from, to, a, false, true);
    else
        normalize_blocks(from, to, a, false, false);
}

INSTANCES(normalize_part, norm_part)

/* w[i] = bias + weight[first + i] */
INLINE void add_bias(enum roped_dtype dtype, float *w, const void *weight,
                     float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        block x = load(dtype, at(dtype, weight, i), part);
        x = (block){splat(bias) + x.lo, splat(bias) + x.hi};
        store(ROPED_F32, w + i, x, 1, part, false);
    }
}

static void fill_weight(const struct cpu_norm *norm, const void *weight,
                        int64_t first, int64_t n, float *w)
{
    const void *from = at(norm->weight, weight, first);
    if (norm->weight == ROPED_F32)
        add_bias(ROPED_F32, w, from, norm->bias, n);
    else if (norm->weight == ROPED_F16)
        add_bias(ROPED_F16, w, from, norm->bias, n);
    else if (norm->weight == ROPED_BF16)
        add_bias(ROPED_BF16, w, from, norm->bias, n);
    else
        for (int64_t i = 0; i < n; i++)
            w[i] = norm->bias + 1;
}

static void normalize(const struct cpu_norm *norm, void *y, const void *x,
                      const void *weight, const float *s, int64_t n_rows)
{
    float w[CPU_BLOCK];
    for (int64_t i = 0; i < norm->width; i += CPU_BLOCK) {
        int64_t n = norm->width - i < CPU_BLOCK ? norm->width - i : CPU_BLOCK;
        const struct norm_part a = {norm, y, x, w, s, n_rows, i, n};
        fill_weight(norm, weight, i, n, w);
        CALL_INSTANCE(norm->from, norm->to, normalize_part, &a)
    }
}

extern const struct cpu_rows PASTE(cpu_rows_, CPU_ISA);
const struct cpu_rows PASTE(cpu_rows_, CPU_ISA) = {
    .name = TEXT(CPU_ISA),
    .convert = convert,
    .widen = widen,
    .scale = scale,
    .rotate = rotate,
    .angles = angles,
    .inverse_rms = inverse_rms,
    .normalize = normalize,
    .fence = fence,
};
