/*
 * vector.h - blocks of consecutive elements as vectors of float32, whatever
 * their type in memory: what the row kernels are written in. A block is two
 * vectors. Private to the rows; one of four files below has the machine's
 * instructions, vector_plain.h what three of them share:
 *
 *     vfloat, block                 LANES floats; two of them, lo and hi
 *     larger_magnitude              |x|, or magnitude where that is larger or x
 *                                   is NaN
 *     smaller_magnitude             |x|, or most where that is smaller; of NaN
 *                                   a number
 *     largest_magnitude             of both vectors of a block, lane by lane;
 *                                   a NaN may be left out
 *     unless_negative               x, or -0 where it is negative
 *     larger_integers               lane by lane
 *     largest_lane                  of lanes that are not NaN
 *     largest_lanes4                the same of four vectors, none of them NaN
 *     sum_of_doubles                of the lanes of both vectors
 *     sums_of_doubles8              the same of eight such pairs, to the bit
 *     quotient_codes                FP8 codes, m mantissa bits, of n blocks in
 *                                   an order, from a little more than their
 *                                   quotients, none of them NaN: see below.
 *                                   false where that cannot tell all of them
 *     bounded                       x, of magnitude at most bound
 *     any_nan                       is a lane of a block NaN?
 *     vmask                         some of the lanes: is_less, is_nan
 *     pick_lanes                    of these from yes, of the others from no
 *     at_least                      x, or least where that is larger or x is
 *                                   NaN
 *     at_most                       x, or most where that is smaller
 *     negative_magnitude            -|x|
 *     HAS_POWERS                    is a table of 32 powers one instruction?
 *     power_of_part                 2^(k / 32) of the last five bits of k, then
 *     permuted                      lane k of x, for each lane of k
 *     look_up                       of a table of 32 floats, by the same bits
 *     scaled                        x * 2^k, k a whole number from -250 to 250;
 *                                   with HAS_POWERS what is below any k
 *     reciprocal                    1 / x of a positive normal number, to
 *                                   1.2e-7
 *     raw16, raw8                   BLOCK elements of 2 or 1 bytes
 *     load32 load16                 any address
 *     store32 store16 store8        any address
 *     ..._part                      the first n of a block, 0 < n < BLOCK; a
 *                                   load sets the others to 0
 *     first_of                      the first n of a block, the others 0
 *     stream32 stream16 stream8     past the caches; address aligned to the
 *                                   stored bytes
 *     STREAMS                       is memory asked for ahead of its use?
 *     UNROLLS                       do loops work on two blocks at once? Where
 *                                   blocks are short and registers many
 *     HAS_JOINED                    is joined one instruction? Then raw16 is a
 *                                   line
 *     joined                        BLOCK elements of x and then y, from one of
 *                                   x on
 *     load_f16                      load16 and widen_f16
 *     widen_*, narrow_*             to and from float32, as roped/numeric.h;
 *                                   narrow_fp8 multiplies by scale first
 *     result_bf16                   narrow_bf16 of what arithmetic made, whose
 *                                   NaNs are quiet: a NaN, not every bit of it
 *     low_bytes                     of the lanes of a block of integers
 *     load_bytes                    LANES bytes, one a lane
 *     add_bf16_squares              the squares of two elements to each lane
 *     split*, merge*                the same, with the even elements in lo and
 *                                   the odd ones in hi
 */
#ifndef ROPED_CPU_VECTOR_H
#define ROPED_CPU_VECTOR_H

#include <roped/dtype.h>
#include <roped/numeric.h>

#include <stdbool.h>

/* Types and counts are constants where these functions are called. Without
 * optimisation all that code stays: clang took 5 GiB for one file. With
 * sanitizers most of it stays too, and took GCC three quarters of the time of a
 * whole build: they look at each function once. */
#if defined __OPTIMIZE__ && !defined __SANITIZE_ADDRESS__ &&                   \
    !defined __SANITIZE_THREAD__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline __attribute__((unused))
#endif
#define NOINLINE            __attribute__((noinline))
#define UNLIKELY(condition) __builtin_expect((condition), 0)

/* Which elements of a row the two vectors of a block hold. */
enum order {
    HALVES, /* lo the first LANES, hi the next */
    PAIRS   /* lo the even ones, hi the odd ones */
};

/*
 * FP8 codes of float32 quotients v / d, rounded to nearest even, from products
 * with 1 / d: q is v / d, between 8 and 24 * 2^-24 of it larger in magnitude
 * and so 4 to 25 units in the last place. Where no code, and no value half-way
 * between two, is among the QUOTIENT_WINDOW floats up to q, both lie between
 * the same two of these and round alike, and it is no tie. All such values end
 * in zeros: 22 - m, or more where codes are subnormal.
 *
 * q of e4m3 is multiplied by QUOTIENT_E4M3, which makes its codes the upper
 * bits of float16's: float16 has those of e5m2 as it is.
 */
enum { QUOTIENT_WINDOW = 32 };
#define QUOTIENT_ABOVE 0x1.00001p0f /* what 1 / d is multiplied by */
#define QUOTIENT_E4M3  0x1p-8f

#if defined(__AVX512VBMI__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "cpu/vector_avx512.h"
#define HAS_BYTE_TABLES /* of 128 bytes, by one permutation: fp8_table.h */
#else
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/vector_avx2.h"
#elif defined(__aarch64__) && !defined(VECTOR_PORTABLE)
#include "cpu/vector_neon.h"
#else
#include "cpu/vector_portable.h"
#endif
#include "cpu/vector_plain.h"
#endif

INLINE size_t size_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F32                          ? 4
           : dtype == ROPED_F16 || dtype == ROPED_BF16 ? 2
                                                       : 1;
}

/* The order in which a row of a type costs least to load, work on and store. */
INLINE enum order order_of(enum roped_dtype dtype)
{
    return dtype == ROPED_BF16 && LANES == 16 ? PAIRS : HALVES;
}

/* The first n elements, at most BLOCK, of any address. */
INLINE block load(enum roped_dtype dtype, enum order order, const void *from,
                  int64_t n)
{
    if (size_of(dtype) == 4) {
        block x = n == BLOCK ? load32(from) : load32_part(from, n);
        return order == PAIRS ? split32(x) : x;
    }
    if (dtype == ROPED_F16 && order == HALVES && n == BLOCK)
        return load_f16(from);
    raw16 x = n == BLOCK ? load16(from) : load16_part(from, n);
    if (dtype == ROPED_F16)
        return order == PAIRS ? split_f16(x) : widen_f16(x);
    return order == PAIRS ? split_bf16(x) : widen_bf16(x);
}

INLINE raw16 narrow16(enum roped_dtype dtype, enum order order, block x)
{
    if (dtype == ROPED_F16)
        return order == PAIRS ? merge_f16(x) : narrow_f16(x);
    return order == PAIRS ? merge_bf16(x) : result_bf16(x);
}

INLINE raw8 narrow8(enum roped_dtype dtype, enum order order, block x,
                    float scale)
{
    const int m = dtype == ROPED_F8_E4M3 ? 3 : 2;
    const int b = dtype == ROPED_F8_E4M3 ? 7 : 15;
    const float max = dtype == ROPED_F8_E4M3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    return order == PAIRS ? merge_fp8(x, scale, m, b, max)
                          : narrow_fp8(x, scale, m, b, max);
}

/* The first n codes; a whole block may be streamed. */
INLINE void store_raw16(void *to, raw16 code, int64_t n, bool is_streamed)
{
    if (n < BLOCK)
        store16_part(to, code, n);
    else if (is_streamed)
        stream16(to, code);
    else
        store16(to, code);
}

INLINE void store_raw8(void *to, raw8 code, int64_t n, bool is_streamed)
{
    if (n < BLOCK)
        store8_part(to, code, n);
    else if (is_streamed)
        stream8(to, code);
    else
        store8(to, code);
}

/*
 * The first n elements of x, which arithmetic made; into FP8 times scale; a
 * whole block may be streamed.
 */
INLINE void store(enum roped_dtype dtype, enum order order, void *to, block x,
                  float scale, int64_t n, bool is_streamed)
{
    if (size_of(dtype) == 4) {
        if (order == PAIRS)
            x = merge32(x);
        if (n < BLOCK)
            store32_part(to, x, n);
        else if (is_streamed)
            stream32(to, x);
        else
            store32(to, x);
    } else if (size_of(dtype) == 2) {
        store_raw16(to, narrow16(dtype, order, x), n, is_streamed);
    } else {
        store_raw8(to, narrow8(dtype, order, x, scale), n, is_streamed);
    }
}

#endif
