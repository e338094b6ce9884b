/*
 * vector.h - blocks of consecutive elements as vectors of float32, whatever
 * their type in memory: what the row kernels are written in. A block is two
 * vectors. Private to rows.c; one of the three files below has the machine's
 * instructions:
 *
 *     vfloat, block                 LANES floats; two of them, lo and hi
 *     raw16, raw8                   BLOCK elements of 2 or 1 bytes
 *     load32 load16                 any address
 *     store32 store16 store8        any address
 *     ..._part                      the first n of a block, 0 < n < BLOCK; a
 *                                   load sets the others to 0
 *     stream32 stream16 stream8     past the caches; address aligned to the
 *                                   stored bytes
 *     widen_*, narrow_*             to and from float32, as roped/numeric.h;
 *                                   narrow_fp8 multiplies by scale first
 */
#ifndef ROPED_CPU_VECTOR_H
#define ROPED_CPU_VECTOR_H

#include <roped/dtype.h>
#include <roped/numeric.h>

#include <stdbool.h>

/* Types and counts are constants where these functions are called. */
#define INLINE              static inline __attribute__((always_inline))
#define NOINLINE            __attribute__((noinline))
#define UNLIKELY(condition) __builtin_expect((condition), 0)

#if defined(__AVX512VBMI__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "cpu/vector_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/vector_avx2.h"
#else
#include "cpu/vector_portable.h"
#endif

INLINE size_t size_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F32                          ? 4
           : dtype == ROPED_F16 || dtype == ROPED_BF16 ? 2
                                                       : 1;
}

/* The first n elements, at most BLOCK, of any address. */
INLINE block load(enum roped_dtype dtype, const void *from, int64_t n)
{
    if (size_of(dtype) == 4)
        return n == BLOCK ? load32(from) : load32_part(from, n);
    raw16 x = n == BLOCK ? load16(from) : load16_part(from, n);
    return dtype == ROPED_F16 ? widen_f16(x) : widen_bf16(x);
}

INLINE raw16 narrow16(enum roped_dtype dtype, block x)
{
    return dtype == ROPED_F16 ? narrow_f16(x) : narrow_bf16(x);
}

INLINE raw8 narrow8(enum roped_dtype dtype, block x, float scale)
{
    return dtype == ROPED_F8_E4M3 ? narrow_fp8(x, scale, 3, 7, ROPED_E4M3_MAX)
                                  : narrow_fp8(x, scale, 2, 15, ROPED_E5M2_MAX);
}

/*
 * The first n elements of x; into FP8 times scale; a whole block may be
 * streamed.
 */
INLINE void store(enum roped_dtype dtype, void *to, block x, float scale,
                  int64_t n, bool is_streamed)
{
    if (size_of(dtype) == 4) {
        if (n < BLOCK)
            store32_part(to, x, n);
        else if (is_streamed)
            stream32(to, x);
        else
            store32(to, x);
    } else if (size_of(dtype) == 2) {
        raw16 code = narrow16(dtype, x);
        if (n < BLOCK)
            store16_part(to, code, n);
        else if (is_streamed)
            stream16(to, code);
        else
            store16(to, code);
    } else {
        raw8 code = narrow8(dtype, x, scale);
        if (n < BLOCK)
            store8_part(to, code, n);
        else if (is_streamed)
            stream8(to, code);
        else
            store8(to, code);
    }
}

#endif
