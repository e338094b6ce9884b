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
 *     widen_*, narrow_*             to and from float32, as roped/numeric.h
 */
#ifndef ROPED_CPU_VECTOR_H
#define ROPED_CPU_VECTOR_H

#include <roped/dtype.h>
#include <roped/numeric.h>

#include <stdbool.h>

#define UNLIKELY(condition) __builtin_expect((condition), 0)

#if defined(__AVX512VBMI__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "cpu/vector_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/vector_avx2.h"
#else
#include "cpu/vector_portable.h"
#endif

/* The functions below take types that are constants where they are called. */
#define INLINE static inline __attribute__((always_inline))

INLINE size_t size_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F32                          ? 4
           : dtype == ROPED_F16 || dtype == ROPED_BF16 ? 2
                                                       : 1;
}

INLINE block load(enum roped_dtype dtype, const void *from)
{
    if (dtype == ROPED_F16)
        return widen_f16(load16(from));
    if (dtype == ROPED_BF16)
        return widen_bf16(load16(from));
    return load32(from);
}

INLINE block load_part(enum roped_dtype dtype, const void *from, int64_t n)
{
    if (dtype == ROPED_F16)
        return widen_f16(load16_part(from, n));
    if (dtype == ROPED_BF16)
        return widen_bf16(load16_part(from, n));
    return load32_part(from, n);
}

INLINE raw16 narrow16(enum roped_dtype dtype, block x)
{
    return dtype == ROPED_F16 ? narrow_f16(x) : narrow_bf16(x);
}

INLINE raw8 narrow8(enum roped_dtype dtype, block x)
{
    return dtype == ROPED_F8_E4M3 ? narrow_fp8(x, 3, 7, ROPED_E4M3_MAX)
                                  : narrow_fp8(x, 2, 15, ROPED_E5M2_MAX);
}

INLINE void store(enum roped_dtype dtype, void *to, block x, bool is_streamed)
{
    if (dtype == ROPED_F32 && is_streamed)
        stream32(to, x);
    else if (dtype == ROPED_F32)
        store32(to, x);
    else if (size_of(dtype) == 2 && is_streamed)
        stream16(to, narrow16(dtype, x));
    else if (size_of(dtype) == 2)
        store16(to, narrow16(dtype, x));
    else if (is_streamed)
        stream8(to, narrow8(dtype, x));
    else
        store8(to, narrow8(dtype, x));
}

INLINE void store_part(enum roped_dtype dtype, void *to, block x, int64_t n)
{
    if (dtype == ROPED_F32)
        store32_part(to, x, n);
    else if (size_of(dtype) == 2)
        store16_part(to, narrow16(dtype, x), n);
    else
        store8_part(to, narrow8(dtype, x), n);
}

#endif
