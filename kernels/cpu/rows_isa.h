/*
 * rows_isa.h - what the files share that are built once per instruction set,
 * with CPU_ISA = avx2, neon and so on: the names of their
 * functions, and how a loop over a row is made once per pair of types.
 */
#ifndef ROPED_CPU_ROWS_ISA_H
#define ROPED_CPU_ROWS_ISA_H

#include "cpu/rows.h"
#include "cpu/vector.h"

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

/* What cpu_rows points at, each under the name of its instruction set. */
#define ISA(name) PASTE(name, CPU_ISA)

void ISA(cpu_convert)(const struct cpu_conversion *how, void *to,
                      const void *from, int64_t n);
void ISA(cpu_widen)(enum roped_dtype dtype, float *to, const void *from,
                    int64_t n);
void ISA(cpu_rotate)(const struct cpu_heads *heads, void *to, const void *from,
                     const struct cpu_pairs *pairs);
void ISA(cpu_angles)(float *c, float *s, double position,
                     const struct roped_angles *of, float sin_sign,
                     int64_t n_pairs);
void ISA(cpu_inverse_rms)(enum roped_dtype dtype, int64_t width,
                          const struct cpu_norm_rows *rows, float eps,
                          float *s);
void ISA(cpu_inverse_deviation)(enum roped_dtype dtype, int64_t width,
                                const struct cpu_norm_rows *rows, float eps,
                                float *s, struct cpu_mean *mean);
void ISA(cpu_round)(enum roped_dtype dtype, float *x, int64_t n);
void ISA(cpu_normal)(const struct cpu_normal *how, float *to, const void *x,
                     const float *weight, int64_t n);
void ISA(cpu_normal_words)(const struct cpu_normal *how, uint16_t *to,
                           const void *x, const float *weight, int64_t n);
void ISA(cpu_add)(enum roped_dtype dtype, int64_t width,
                  const struct cpu_norm_rows *rows, bool is_streamed);
void ISA(cpu_sum)(const struct cpu_sum *how, const struct cpu_terms *row,
                  int64_t n);
void ISA(cpu_fill_weight)(enum roped_dtype of, enum roped_dtype dtype, float *w,
                          const void *weight, float bias, int64_t n);
void ISA(cpu_normalize)(const struct cpu_norm *norm,
                        const struct cpu_norm_rows *rows);
void ISA(cpu_normalize_fp8)(const struct cpu_norm *norm,
                            const struct cpu_norm_rows *rows);
void ISA(cpu_largest)(const struct cpu_norm *norm,
                      const struct cpu_norm_rows *rows, float *largest);
void ISA(cpu_normalize_scaled)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               const float *weight,
                               const struct cpu_fp8_scale *scale,
                               float *scales);
void ISA(cpu_normalize_groups)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               int64_t group_size,
                               const struct cpu_fp8_scale *scale,
                               const struct cpu_scales *scales);

/* quantize_typed_rows.c, where there are tables of bytes. */
struct cpu_codes;
struct cpu_fp8_steps;
void ISA(cpu_largest_results)(const float *x, int64_t n, int32_t *most);
void ISA(cpu_largest_of)(enum roped_dtype dtype, const void *x, int64_t stride,
                         int64_t n_rows, int64_t n, int64_t tile,
                         int32_t *most);
void ISA(cpu_encode_type)(const struct cpu_codes *how, enum roped_dtype dtype,
                          void *to, const void *x, int64_t n, int64_t tile,
                          const float *divisor, struct cpu_fp8_steps *steps);

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

/* Element i of a row that is there. */
INLINE const void *at(enum roped_dtype dtype, const void *base, int64_t i)
{
    return (const unsigned char *)base + (size_t)i * size_of(dtype);
}

INLINE void *place(enum roped_dtype dtype, void *base, int64_t i)
{
    return (unsigned char *)base + (size_t)i * size_of(dtype);
}

/* Of an element, or of a stride of i elements: base is NULL then, which has no
 * elements. */
INLINE bool is_aligned(enum roped_dtype dtype, const void *base, int64_t i)
{
    return ((uintptr_t)base + (size_t)i * size_of(dtype)) % STREAM_ALIGNMENT ==
           0;
}

/* How many elements there are up to the next address that can be streamed to,
 * at most n. */
INLINE int64_t to_aligned(enum roped_dtype dtype, const void *to, int64_t n)
{
    const uintptr_t bytes = -(uintptr_t)to % STREAM_ALIGNMENT;
    const int64_t elements = (int64_t)(bytes / size_of(dtype));
    return elements < n ? elements : n;
}

INLINE block plus(block a, block b)
{
    return (block){a.lo + b.lo, a.hi + b.hi};
}

/* Half a block of float32, at any address. */
INLINE vfloat load_lanes(const float *from)
{
    vfloat x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store_lanes(float *to, vfloat x)
{
    memcpy(to, &x, sizeof x);
}

INLINE block minus(block a, vfloat b)
{
    return (block){a.lo - b, a.hi - b};
}

INLINE block product(block a, block b)
{
    return (block){a.lo * b.lo, a.hi * b.hi};
}

/* A result rounded to F16 or BF16 and back; any other type: as it is. */
INLINE block round_to(enum roped_dtype dtype, block x)
{
    if (dtype == ROPED_F16)
        return widen_f16(narrow_f16(x));
    if (dtype == ROPED_BF16)
        return widen_bf16(result_bf16(x));
    return x;
}

/* A whole number in the low byte of each lane. */
INLINE vint i8_of(vfloat x, float least)
{
    return (vint)(at_most(splat(127),
                          at_least(splat(least),
                                   pick_lanes(is_nan(x), splat(0), x))) +
                  splat(0x1.8p23f));
}

/* Into the second-level cache; any address will do. */
INLINE void prefetch(const void *address)
{
    if (STREAMS)
        __builtin_prefetch(address, 0, 2);
}

/* Every line of n elements: a block of float32 has two. */
INLINE void prefetch_elements(enum roped_dtype dtype, const void *x, int64_t n)
{
    const int64_t bytes = n * (int64_t)size_of(dtype);
    for (int64_t i = 0; i < bytes; i += 64)
        prefetch(at(ROPED_U8, x, i));
}

/*
 * Elements of streamed rows are asked for so many bytes ahead. A processor's
 * own prefetching ends with every page and keeps fewer lines under way: on a
 * Xeon rope_quantize had 0.74 of the copy without, 0.85 to 1.0 with it.
 */
enum { AHEAD = CPU_AHEAD };

INLINE void prefetch_ahead(enum roped_dtype dtype, const void *x, int64_t n)
{
    prefetch_elements(dtype, at(ROPED_U8, x, AHEAD), n);
}

/*
 * Rows of 16 bits that begin anywhere are streamed too: each line is the end of
 * one block and the beginning of the next. What is before a row's first line
 * and behind its last is stored as usual.
 */
struct lines {
    raw16 last;
    int64_t first; /* element of a block that begins a line */
};

INLINE struct lines lines_of(enum roped_dtype dtype, const void *to)
{
    struct lines lines = {.first = to_aligned(dtype, to, BLOCK)};
    return lines;
}

/* A block of a row, at 'to'. */
INLINE void store_block(enum roped_dtype dtype, enum order order,
                        struct lines *lines, void *to, block x, bool is_first)
{
    const raw16 code = narrow16(dtype, order, x);
    if (lines->first == 0) {
        stream16(to, code);
        return;
    }
    if (!is_first)
        stream16(place(dtype, to, lines->first - BLOCK),
                 joined(lines->last, code, lines->first));
    else
        store16_part(to, code, lines->first);
    lines->last = code;
}

/* Behind the last block, at 'to'. */
INLINE void store_last(enum roped_dtype dtype, const struct lines *lines,
                       void *to)
{
    if (lines->first > 0)
        store16_part(place(dtype, to, lines->first - BLOCK),
                     joined(lines->last, lines->last, lines->first),
                     BLOCK - lines->first);
}

/* The ends of n elements that are stored later: a store that waits for its line
 * keeps others. */
INLINE void prefetch_ends(enum roped_dtype dtype, const struct lines *lines,
                          const void *to, int64_t n)
{
    if (lines->first == 0)
        return;
    __builtin_prefetch(to, 1, 3);
    __builtin_prefetch(at(dtype, to, n), 1, 3);
}

INLINE block times(block x, vfloat factor)
{
    return (block){x.lo * factor, x.hi * factor};
}

#endif
