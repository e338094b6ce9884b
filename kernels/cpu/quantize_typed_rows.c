/*
 * quantize_typed_rows.c - largest values and codes of what tensors have,
 * without floats between; built once per instruction set, and empty where that
 * has no tables of bytes.
 */
#include "cpu/quantize_rows.h"
#include "cpu/quotients.h"

#if defined(HAS_BYTE_TABLES)
#include "cpu/fp8_steps.h"

/* ----------------------------------------------------------------- largest */

/* With what is beyond Inf added, NaN is negative. */
INLINE int32_t largest_word(int16_t infinite, const uint16_t *x, int64_t n)
{
    const int16_t beyond = (int16_t)(INT16_MAX - infinite);
    int16_t most = beyond;
    for (int64_t i = 0; i < n; i++) {
        const int16_t word = (int16_t)(uint16_t)((x[i] & INT16_MAX) + beyond);
        most = word > most ? word : most;
    }
    return most - beyond;
}

INLINE int32_t largest_float(const float *x, int64_t n)
{
    enum { STEP = 4 * LANES };
    vfloat most[4] = {splat(0), splat(0), splat(0), splat(0)};
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
        for (int j = 0; j < 4; j++)
            most[j] = at_least(
                most[j], _mm512_abs_ps(_mm512_loadu_ps(x + i + j * LANES)));
    most[0] = at_least(most[0], largest_of_floats(x + i, STEP, n - i));
    return (int32_t)roped_float_bits(largest_lane(
        at_least(at_least(most[0], most[1]), at_least(most[2], most[3]))));
}

INLINE int32_t largest_bits(enum roped_dtype dtype, const void *x, int64_t n)
{
    if (dtype == ROPED_F32)
        return largest_float(x, n);
    const int32_t word = largest_word(infinity_of(dtype), x, n);
    return dtype == ROPED_BF16
               ? word << 16
               : (int32_t)roped_float_bits(roped_f16_to_float((uint16_t)word));
}

INLINE void largest_of_tiles_of(enum roped_dtype dtype, const void *x,
                                int64_t n, int64_t tile, bool are_there,
                                int32_t *most)
{
    if (dtype != ROPED_F32) {
        largest_of_groups(dtype, tile, false, are_there, x, n, most);
        return;
    }
    for (; n > 0; n -= LANES * tile, x = at(dtype, x, LANES * tile)) {
        largest_of_sixteen(x, tile, n < LANES * tile ? n : LANES * tile,
                           are_there, most);
        most += LANES;
    }
}

/* Of a row. Tiles of 128 are a constant. */
INLINE void largest_of_row(enum roped_dtype dtype, const void *x, int64_t n,
                           int64_t tile, bool are_there, int32_t *most)
{
    if (tile < n && tile == WIDE_GROUP) {
        largest_of_tiles_of(dtype, x, n, WIDE_GROUP, are_there, most);
    } else if (tile < n) {
        largest_of_tiles_of(dtype, x, n, tile, are_there, most);
    } else {
        const int32_t bits = largest_bits(dtype, x, n);
        *most = are_there && *most > bits ? *most : bits;
    }
}

void ISA(cpu_largest_results)(const float *x, int64_t n, int32_t *most)
{
    enum { STEP = NV_GROUP * LANES };
    for (; n >= STEP; n -= STEP, x += STEP, most += LANES)
        largest_of_results(x, most);
    if (n > 0)
        largest_of_sixteen(x, NV_GROUP, n, false, most);
}

void ISA(cpu_largest_of)(enum roped_dtype dtype, const void *x, int64_t stride,
                         int64_t n_rows, int64_t n, int64_t tile, int32_t *most)
{
    for (int64_t row = 0; row < n_rows; row++, x = at(dtype, x, stride))
        if (dtype == ROPED_F16)
            largest_of_row(ROPED_F16, x, n, tile, row > 0, most);
        else if (dtype == ROPED_BF16)
            largest_of_row(ROPED_BF16, x, n, tile, row > 0, most);
        else
            largest_of_row(ROPED_F32, x, n, tile, row > 0, most);
}

/* ------------------------------------------------------------------- codes */

/* Some values, whose tiles have steps of their own. */
struct stepping {
    const void *x;
    uint8_t *to;
    int64_t n, tile, ahead;
    const float *divisor;
    struct cpu_fp8_steps *steps;
};

INLINE void encode_tiles(int m, enum roped_dtype dtype, bool is_streamed,
                         const struct stepping *of)
{
    const int64_t n = of->n, tile = of->tile;
    struct cpu_fp8_steps *steps = of->steps;
    for (int64_t i = 0, j = 0; i < n; i += tile, j++)
        if (steps[j].divisor != of->divisor[j])
            find_steps(m, cut_of(m, dtype, of->divisor[j]), of->divisor[j],
                       &steps[j]);
    for (int64_t i = 0; i < n; i += tile, steps++)
        encode_row(m, dtype, is_streamed, steps, of->to + i,
                   at(dtype, of->x, i), n - i < tile ? n - i : tile, of->ahead);
}

/*
 * int8 codes of a step, or false where a product with the inverse cannot tell
 * all of them. It is less than 2^-15 from a quotient whose code is not the
 * largest one, and both have the same code unless they are that near to what is
 * half-way between two. limit is how far from its code a product may be; what
 * no integer can hold is further away, and NaN is found by itself.
 */
INLINE bool bytes_of_products(enum roped_dtype dtype, const void *x,
                              vfloat inverse, vfloat limit, __m512i least,
                              __m512i *code)
{
    const __m512i order =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i word[2];
    vfloat most = splat(0);
    __mmask16 is_number = ALL_LANES;
    for (int i = 0; i < 2; i++) {
        const block p =
            product(load(dtype, HALVES, at(dtype, x, i * BLOCK), BLOCK),
                    (block){inverse, inverse});
        const __m512i lo = _mm512_cvtps_epi32(p.lo);
        const __m512i hi = _mm512_cvtps_epi32(p.hi);
        most = larger_magnitude(p.lo - _mm512_cvtepi32_ps(lo), most);
        most = larger_magnitude(p.hi - _mm512_cvtepi32_ps(hi), most);
        is_number = _mm512_mask_cmp_ps_mask(is_number, p.lo, p.hi, _CMP_ORD_Q);
        word[i] = _mm512_packs_epi32(lo, hi);
    }
    is_number = _mm512_mask_cmp_ps_mask(is_number, most, limit, _CMP_LT_OQ);
    *code = _mm512_max_epi8(
        _mm512_permutexvar_epi32(order, _mm512_packs_epi16(word[0], word[1])),
        least);
    return _kortestc_mask16_u8(is_number, is_number);
}

INLINE void divide_bytes(enum roped_dtype dtype, struct divisor by, float least,
                         uint8_t *to, const void *x, int64_t n,
                         bool is_streamed)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const block q =
            quotients_by(load(dtype, HALVES, at(dtype, x, i), part), by, by);
        store_raw8(to + i, low_bytes(i8_of(q.lo, least), i8_of(q.hi, least)),
                   part, is_streamed);
    }
}

/* Products with the inverse of a power of two are quotients. */
INLINE void encode_bytes(enum roped_dtype dtype, float least, bool is_streamed,
                         const struct stepping *of)
{
    const __m512i least_byte = _mm512_set1_epi8((char)least);
    for (int64_t first = 0, j = 0; first < of->n; first += of->tile, j++) {
        const int64_t left = of->n - first;
        const int64_t end = left < of->tile ? of->n : first + of->tile;
        const struct divisor by = divisor_of(of->divisor[j]);
        const bool is_power = (roped_float_bits(by.by) & 0x7FFFFF) == 0;
        const vfloat inverse = splat(by.inverse);
        const vfloat limit = splat(is_power ? 1 : 0.5f - 0x1p-15f);
        __m512i code;
        int64_t i = first;
        for (; i + TABLE_STEP <= end; i += TABLE_STEP) {
            const void *from = at(dtype, of->x, i);
            if (of->ahead)
                prefetch_elements(dtype, at(ROPED_U8, from, of->ahead),
                                  TABLE_STEP);
            if (UNLIKELY(!bytes_of_products(dtype, from, inverse, limit,
                                            least_byte, &code)))
                divide_bytes(dtype, by, least, of->to + i, from, TABLE_STEP,
                             is_streamed);
            else
                store_bytes(of->to + i, code, TABLE_STEP, is_streamed);
        }
        divide_bytes(dtype, by, least, of->to + i, at(dtype, of->x, i), end - i,
                     false);
    }
}

INLINE void encode_element(int m, enum roped_dtype dtype, bool is_streamed,
                           const struct stepping *of)
{
    if (is_streamed)
        encode_tiles(m, dtype, true, of);
    else
        encode_tiles(m, dtype, false, of);
}

#define ENCODE(dtype)                                                          \
    if (how->element == CODE_I8)                                               \
        encode_bytes(dtype, how->least, is_streamed, &of);                     \
    else if (how->element == CODE_E4M3)                                        \
        encode_element(3, dtype, is_streamed, &of);                            \
    else                                                                       \
        encode_element(2, dtype, is_streamed, &of)

void ISA(cpu_encode_type)(const struct cpu_codes *how, enum roped_dtype dtype,
                          void *to, const void *x, int64_t n, int64_t tile,
                          const float *divisor, struct cpu_fp8_steps *steps)
{
    const struct stepping of = {x, to, n, tile, how->ahead, divisor, steps};
    const bool is_streamed = how->is_streamed && is_aligned(ROPED_U8, to, 0) &&
                             (tile >= n || tile % STREAM_ALIGNMENT == 0);
    if (dtype == ROPED_BF16) {
        ENCODE(ROPED_BF16);
    } else if (dtype == ROPED_F16) {
        ENCODE(ROPED_F16);
    } else {
        ENCODE(ROPED_F32);
    }
}
#endif
