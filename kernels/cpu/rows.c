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
        store(to, HALVES, place(to, row.to, i),
              load(from, HALVES, at(from, row.from, i), BLOCK), row.scale,
              BLOCK, is_streamed);
    if (i < row.n)
        store(to, HALVES, place(to, row.to, i),
              load(from, HALVES, at(from, row.from, i), row.n - i), row.scale,
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
        store32(to + i, load(dtype, HALVES, at(dtype, from, i), BLOCK));
    if (i < n)
        store32_part(to + i, load(dtype, HALVES, at(dtype, from, i), n - i),
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

/* Pairs of a token's heads, and their angles. */
struct rotation {
    struct cpu_heads heads;
    void *to; /* the first pair of the first head */
    const void *from;
    const float *c, *s;
    int64_t n; /* pairs */
    bool is_streamed;
};

/* (a, b) by an angle each: a * c - b * s and b * c + a * s. */
INLINE void rotate_vectors(vfloat *a, vfloat *b, vfloat c, vfloat s)
{
    const vfloat x = *a, y = *b;
    *a = multiply_subtract(x, c, y * s);
    *b = multiply_add(y, c, x * s);
}

/* Pairs (x[i], x[i + second]). */
INLINE void rotate_neox(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, void *y, const void *x,
                        block c, block s, int64_t n, bool is_streamed)
{
    const int64_t second = r->heads.n_pairs;
    block a = load(from, HALVES, x, n);
    block b = load(from, HALVES, at(from, x, second), n);
    rotate_vectors(&a.lo, &b.lo, c.lo, s.lo);
    rotate_vectors(&a.hi, &b.hi, c.hi, s.hi);
    store(to, HALVES, y, a, r->heads.scale, n, is_streamed);
    store(to, HALVES, place(to, y, second), b, r->heads.scale, n, is_streamed);
}

/* Pairs (x[2i], x[2i + 1]), in two blocks of elements. */
INLINE void rotate_gptj(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, void *y, const void *x,
                        block c, block s, int64_t n, bool is_streamed)
{
    const int64_t n_low = 2 * n < BLOCK ? 2 * n : BLOCK;
    block a = load(from, PAIRS, x, n_low);
    rotate_vectors(&a.lo, &a.hi, c.lo, s.lo);
    store(to, PAIRS, y, a, r->heads.scale, n_low, is_streamed);
    if (n_low == 2 * n)
        return;
    a = load(from, PAIRS, at(from, x, BLOCK), 2 * n - BLOCK);
    rotate_vectors(&a.lo, &a.hi, c.hi, s.hi);
    store(to, PAIRS, place(to, y, BLOCK), a, r->heads.scale, 2 * n - BLOCK,
          is_streamed);
}

/* Pairs [i, i + n) of the head at x. */
INLINE void rotate_block(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, void *y, const void *x,
                         int64_t i, block c, block s, int64_t n, bool is_gptj,
                         bool is_streamed)
{
    if (is_gptj)
        rotate_gptj(from, to, r, place(to, y, 2 * i), at(from, x, 2 * i), c, s,
                    n, is_streamed);
    else
        rotate_neox(from, to, r, place(to, y, i), at(from, x, i), c, s, n,
                    is_streamed);
}

/* Heads of one block or two: their angles stay in registers. */
INLINE void rotate_short(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, int n_blocks, bool is_gptj,
                         bool is_streamed)
{
    const int64_t last = (n_blocks - 1) * BLOCK;
    const block c[2] = {load32(r->c), load32(r->c + last)};
    const block s[2] = {load32(r->s), load32(r->s + last)};
    for (int64_t head = 0; head < r->heads.n_heads; head++) {
        const void *x = at(from, r->from, head * r->heads.from_pitch);
        void *y = place(to, r->to, head * r->heads.to_pitch);
        rotate_block(from, to, r, y, x, 0, c[0], s[0], BLOCK, is_gptj,
                     is_streamed);
        if (n_blocks == 2)
            rotate_block(from, to, r, y, x, BLOCK, c[1], s[1], BLOCK, is_gptj,
                         is_streamed);
    }
}

INLINE void rotate_long(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, bool is_gptj,
                        bool is_streamed)
{
    for (int64_t head = 0; head < r->heads.n_heads; head++) {
        const void *x = at(from, r->from, head * r->heads.from_pitch);
        void *y = place(to, r->to, head * r->heads.to_pitch);
        int64_t i = 0;
        for (; i + BLOCK <= r->n; i += BLOCK)
            rotate_block(from, to, r, y, x, i, load32(r->c + i),
                         load32(r->s + i), BLOCK, is_gptj, is_streamed);
        if (i < r->n)
            rotate_block(from, to, r, y, x, i, load32_part(r->c + i, r->n - i),
                         load32_part(r->s + i, r->n - i), r->n - i, is_gptj,
                         false);
    }
}

INLINE void rotate_style(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, bool is_gptj,
                         bool is_streamed)
{
    const struct rotation local = *r; /* which no store can change */
    if (r->n == BLOCK)
        rotate_short(from, to, &local, 1, is_gptj, is_streamed);
    else if (r->n == 2 * BLOCK)
        rotate_short(from, to, &local, 2, is_gptj, is_streamed);
    else
        rotate_long(from, to, &local, is_gptj, is_streamed);
}

INLINE void rotate_heads(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r)
{
    if (r->heads.is_gptj && r->is_streamed)
        rotate_style(from, to, r, true, true);
    else if (r->heads.is_gptj)
        rotate_style(from, to, r, true, false);
    else if (r->is_streamed)
        rotate_style(from, to, r, false, true);
    else
        rotate_style(from, to, r, false, false);
}

INSTANCES(rotate_heads, rotation)

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
    int64_t first = heads->first + (heads->is_gptj ? 2 : 1) * first_pair;
    const struct rotation r = {.heads = *heads,
                               .to = place(heads->to, to, first),
                               .from = at(heads->from, from, first),
                               .c = c,
                               .s = s,
                               .n = n,
                               .is_streamed = heads->is_streamed &&
                                              can_stream(heads, to, first, n)};
    CALL_INSTANCE(heads->from, heads->to, rotate_heads, &r)
    if (first_pair == 0) {
        convert_part(heads, to, from, 0, heads->first);
        convert_part(heads, to, from, heads->first + 2 * heads->n_pairs,
                     heads->width);
    }
}

/* ------------------------------------------------------------------ angles */

/*
 * An angle is reduced by the nearest multiple k of pi/2; sine and cosine of
 * the rest r, at most 0.81, are polynomials, and the quadrant k mod 4 says
 * which is which. Errors are below 7e-8, for an angle that is a float32 below
 * 2^18 and a double below 2^24 alike.
 */
struct reduced {
    vfloat r;
    vint k;
};

/* Exact products of a fused multiply-add take pi/2 off in three parts. */
INLINE struct reduced reduce_near(vfloat angle)
{
    struct reduced near;
    near.k = nearest_integers(angle * splat(0x1.45f306p-1f));
    const vfloat k = floats_of(near.k);
    near.r = negative_multiply_add(k, splat(0x1.921fb6p+0f), angle);
    near.r = negative_multiply_add(k, splat(-0x1.777a5cp-25f), near.r);
    near.r = negative_multiply_add(k, splat(-0x1.ee59dap-50f), near.r);
    return near;
}

/*
 * In double. Adding 1.5 * 2^52 leaves k in the sum's last bits. k has at most
 * 24 bits and part1 28, so that their product is exact.
 */
static NOINLINE void reduce_far(const double *angle, float *r, int32_t *k)
{
    const double two_over_pi = 0x1.45f306dc9c883p-1, shift = 0x1.8p52;
    const double part1 = 0x1.921fb54p+0, part2 = 0x1.10b4611a62633p-30;
    for (int i = 0; i < LANES; i++) {
        double shifted = angle[i] * two_over_pi + shift;
        double nearest = shifted - shift;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        r[i] = (float)((angle[i] - nearest * part1) - nearest * part2);
        k[i] = (int32_t)(bits & 3);
    }
}

INLINE struct reduced reduce_doubles(const double *angle)
{
    struct reduced far;
    float r[LANES];
    int32_t k[LANES];
    reduce_far(angle, r, k);
    memcpy(&far.r, r, sizeof r);
    memcpy(&far.k, k, sizeof k);
    return far;
}

INLINE struct reduced reduce_floats(vfloat angle)
{
    float from[LANES];
    double wide[LANES];
    if (HAS_FUSED && all_below(angle, 0x1p18f))
        return reduce_near(angle);
    memcpy(from, &angle, sizeof from);
    for (int i = 0; i < LANES; i++)
        wide[i] = (double)from[i];
    return reduce_doubles(wide);
}

/* Negative where bit 1 of k is set. */
INLINE vfloat with_sign(vfloat x, vint k)
{
    const vint sign_bit = (vint)splat(-0.0f);
    return (vfloat)((vint)x ^ ((k << 30) & sign_bit));
}

INLINE void sine_cosine(struct reduced angle, vfloat *sine, vfloat *cosine)
{
    const vfloat r = angle.r, z = r * r;
    vfloat s = multiply_add(splat(-0x1.9943f2p-13f), z, splat(0x1.11073cp-7f));
    s = multiply_add(s, z, splat(-0x1.555546p-3f));
    s = multiply_add(s, z * r, r);
    vfloat c = multiply_add(splat(0x1.99eb9cp-16f), z, splat(-0x1.6c0c34p-10f));
    c = multiply_add(c, z, splat(0x1.55554ap-5f));
    c = multiply_add(c, z, splat(-0.5f));
    c = multiply_add(c, z, splat(1));
    *sine = with_sign(where_odd(angle.k, c, s), angle.k);
    *cosine = with_sign(where_odd(angle.k, s, c), angle.k + 1);
}

static void angles_f32(float *c, float *s, float position,
                       const struct roped_angles *of, float sin_factor,
                       int64_t n_pairs)
{
    const float attention = of->attention_factor;
    for (int64_t i = 0; i < n_pairs; i += BLOCK) {
        int64_t n = n_pairs - i < BLOCK ? n_pairs - i : BLOCK;
        block angle = times(load(ROPED_F32, HALVES, of->frequency.f32 + i, n),
                            splat(position));
        block sine, cosine;
        sine_cosine(reduce_floats(angle.lo), &sine.lo, &cosine.lo);
        sine_cosine(reduce_floats(angle.hi), &sine.hi, &cosine.hi);
        store(ROPED_F32, HALVES, c + i, times(cosine, splat(attention)), 1, n,
              false);
        store(ROPED_F32, HALVES, s + i, times(sine, splat(sin_factor)), 1, n,
              false);
    }
}

static void angles_f64(float *c, float *s, double position,
                       const struct roped_angles *of, float sin_factor,
                       int64_t n_pairs)
{
    const float attention = of->attention_factor;
    for (int64_t i = 0; i < n_pairs; i += BLOCK) {
        int64_t n = n_pairs - i < BLOCK ? n_pairs - i : BLOCK;
        double angle[BLOCK] = {0};
        block sine, cosine;
        for (int64_t j = 0; j < n; j++)
            angle[j] = position * of->frequency.f64[i + j];
        sine_cosine(reduce_doubles(angle), &sine.lo, &cosine.lo);
        sine_cosine(reduce_doubles(angle + LANES), &sine.hi, &cosine.hi);
        store(ROPED_F32, HALVES, c + i, times(cosine, splat(attention)), 1, n,
              false);
        store(ROPED_F32, HALVES, s + i, times(sine, splat(sin_factor)), 1, n,
              false);
    }
}

static void angles(float *c, float *s, double position,
                   const struct roped_angles *of, float sin_sign,
                   int64_t n_pairs)
{
    float sin_factor = of->attention_factor * sin_sign;
    if (of->precision == ROPED_ANGLE_F64)
        angles_f64(c, s, position, of, sin_factor, n_pairs);
    else
        angles_f32(c, s, (float)position, of, sin_factor, n_pairs);
}

/* -------------------------------------------------------------------- norm */

/*
 * Squares are added in float32 lane by lane, this many elements at a time, and
 * these sums in double: 16 additions in a row keep the error below 1e-6.
 */
enum { CHUNK = 16 * BLOCK };

INLINE block add_squares(block sum, block x)
{
    return (block){multiply_add(x.lo, x.lo, sum.lo),
                   multiply_add(x.hi, x.hi, sum.hi)};
}

INLINE double sum_of_block(block x)
{
    return sum_of_lanes(x.lo + x.hi);
}

/* At most CHUNK elements. */
INLINE double chunk_sum(enum roped_dtype dtype, const void *x, int64_t n)
{
    block sum = {splat(0), splat(0)};
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        sum = add_squares(sum, load(dtype, HALVES, at(dtype, x, i), BLOCK));
    if (i < n)
        sum = add_squares(sum, load(dtype, HALVES, at(dtype, x, i), n - i));
    return sum_of_block(sum);
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

static NOINLINE double exact_sum(enum roped_dtype dtype, const void *x,
                                 int64_t n)
{
    if (dtype == ROPED_F16)
        return double_sum(ROPED_F16, x, n);
    if (dtype == ROPED_BF16)
        return double_sum(ROPED_BF16, x, n);
    return double_sum(ROPED_F32, x, n);
}

/* From sums, or the rows again where a sum has left float32's range. */
static void invert_rms(enum roped_dtype dtype, const void *x, int64_t n_rows,
                       int64_t n, float eps, double *sum, float *s)
{
    for (int64_t row = 0; row < n_rows; row++)
        if (UNLIKELY(!(sum[row] >= 0x1p-100 && sum[row] <= 0x1p127)))
            sum[row] = exact_sum(dtype, at(dtype, x, row * n), n);
    for (int64_t row = 0; row < n_rows; row++)
        s[row] = (float)(1 / sqrt(sum[row] / (double)n + (double)eps));
}

INLINE void sum_rows(enum roped_dtype dtype, const void *x, int64_t n_rows,
                     int64_t n, double *sum)
{
    for (int64_t row = 0; row < n_rows; row++) {
        sum[row] = 0;
        for (int64_t i = 0; i < n; i += CHUNK)
            sum[row] += chunk_sum(dtype, at(dtype, x, row * n + i),
                                  n - i < CHUNK ? n - i : CHUNK);
    }
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
    invert_rms(dtype, x, n_rows, n, eps, sum, s);
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
    const block w = load(ROPED_F32, HALVES, weight, n);
    block v = times(load(from, HALVES, x, n), splat(s));
    if (is_rounded)
        v = round_to(norm->round_first, v);
    v = (block){v.lo * w.lo, v.hi * w.hi};
    store(to, HALVES, y, v, norm->scale, n, is_streamed);
}

INLINE void normalize_rows(enum roped_dtype from, enum roped_dtype to,
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
        const char *next = at(from, x, a.n_rows * norm.width);
        for (; i + BLOCK <= a.n; i += BLOCK) {
            for (int z = 0; z < (int)(BLOCK * size_of(from)); z += 128)
                __builtin_prefetch(next + i * (int64_t)size_of(from) + z, 0, 2);
            normalize_block(from, to, &norm, place(to, y, i), at(from, x, i),
                            a.weight + i, s, BLOCK, is_rounded, is_streamed);
        }
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
        normalize_rows(from, to, a, true, true);
    else if (a->norm->round_first)
        normalize_rows(from, to, a, true, false);
    else if (is_streamed)
        normalize_rows(from, to, a, false, true);
    else
        normalize_rows(from, to, a, false, false);
}

INSTANCES(normalize_part, norm_part)

/* w[i] = bias + weight[i] */
INLINE void add_bias(enum roped_dtype dtype, float *w, const void *weight,
                     float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        block x = load(dtype, HALVES, at(dtype, weight, i), part);
        x = (block){splat(bias) + x.lo, splat(bias) + x.hi};
        store(ROPED_F32, HALVES, w + i, x, 1, part, false);
    }
}

static void fill_weight(const struct cpu_norm *norm, int64_t first, int64_t n,
                        float *w)
{
    const void *from = at(norm->weight_dtype, norm->weight, first);
    if (norm->weight_dtype == ROPED_F32)
        add_bias(ROPED_F32, w, from, norm->bias, n);
    else if (norm->weight_dtype == ROPED_F16)
        add_bias(ROPED_F16, w, from, norm->bias, n);
    else if (norm->weight_dtype == ROPED_BF16)
        add_bias(ROPED_BF16, w, from, norm->bias, n);
    else
        for (int64_t i = 0; i < n; i++)
            w[i] = norm->bias + 1;
}

/*
 * Columns in parts whose weights stay in the first-level cache beside the rows
 * that pass through it.
 */
static void normalize(const struct cpu_norm *norm, void *y, const void *x,
                      const float *s, int64_t n_rows)
{
    enum { COLUMNS = 1024 };
    float w[COLUMNS];
    for (int64_t i = 0; i < norm->width; i += COLUMNS) {
        int64_t n = norm->width - i < COLUMNS ? norm->width - i : COLUMNS;
        const struct norm_part a = {norm, y, x, w, s, n_rows, i, n};
        fill_weight(norm, i, n, w);
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
