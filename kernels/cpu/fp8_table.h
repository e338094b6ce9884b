/*
 * fp8_table.h - FP8 codes of bfloat16, and values of FP8 codes, by tables of
 * bytes: with AVX-512.
 *
 * Values of a tile have one divisor, and 128 mantissas. Codes of normal numbers
 * are those of the mantissa, and as many binades further as the exponent says.
 * Nothing is divided: where the codes of a binade begin, eight products say.
 *
 * Words are magnitudes of bfloat16, whose order is that of their bits.
 */
#ifndef ROPED_CPU_FP8_TABLE_H
#define ROPED_CPU_FP8_TABLE_H

#include "cpu/quantize_rows.h"
#include "cpu/vector.h"

enum { BF16_INFINITY = 0x7F80, BF16_MAGNITUDE = 0x7FFF, TABLE_STEP = 64 };

static const uint8_t byte_numbers[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/*
 * The least words whose quotients by d, correctly rounded to float32, have a
 * code above 8 numbers that are half-way between two codes, of which the lower
 * one is even and odd by turns. half_way has the middle between such a number
 * and the next float32, from which on quotients are no longer that number:
 * above it where ties go down, and below it where they go up. Products with d
 * are exact.
 */
INLINE __m512i least_words(__m512d half_way, double d)
{
    enum { CUT = 45, FIRST = (1023 - 127) << 7 }; /* bits; exponent 0 */
    const __m512i goes_up = _mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0);
    const __m512i bits =
        _mm512_castpd_si512(_mm512_mul_pd(half_way, _mm512_set1_pd(d)));
    return _mm512_add_epi64(
        _mm512_srli_epi64(_mm512_sub_epi64(bits, goes_up), CUT),
        _mm512_set1_epi64(1 - FIRST));
}

/* Where the codes of a binade begin, mantissas in their order, and how many of
 * these words are below the next binade. */
INLINE __m128i least_mantissas(int m, __m512i word, int64_t next, int *n_below)
{
    const uint64_t none = m == 3 ? 0 : UINT64_MAX << 32;
    const __mmask8 below =
        _mm512_cmplt_epi64_mask(word, _mm512_set1_epi64(next));
    const uint64_t x = (uint64_t)_mm_cvtsi128_si64(
        _mm512_cvtepi64_epi8(_mm512_and_si512(word, _mm512_set1_epi64(127))));
    *n_below = __builtin_popcount(below & ((1u << (1 << m)) - 1));
    const int by = 8 * *n_below % 64;
    return _mm_set_epi64x(-1, (int64_t)((x >> by | x << (-by & 63)) | none));
}

/* How many of 8 bytes, or of 4, are at most 0, 8, 16 .. 120. */
INLINE __m128i count_steps(int m, __m128i steps)
{
    const __m512i first = _mm512_broadcast_i32x4(_mm_set_epi8(
        120, 112, 104, 96, 88, 80, 72, 64, 56, 48, 40, 32, 24, 16, 8, 0));
    const __m512i lane = _mm512_set_epi64(
        0x0303030303030303, 0x0303030303030303, 0x0202020202020202,
        0x0202020202020202, 0x0101010101010101, 0x0101010101010101, 0, 0);
    const __m512i all = _mm512_broadcast_i32x4(steps);
    const __m512i one = _mm512_set1_epi8(1), four = _mm512_set1_epi8(4);
    __m512i n = _mm512_maskz_mov_epi8(
        _mm512_cmple_epu8_mask(_mm512_shuffle_epi8(all, lane), first), one);
    if (m == 3)
        n = _mm512_mask_add_epi8(
            n,
            _mm512_cmple_epu8_mask(
                _mm512_shuffle_epi8(all, _mm512_add_epi8(lane, four)), first),
            n, one);
    const __m256i half = _mm256_add_epi8(_mm512_castsi512_si256(n),
                                         _mm512_extracti64x4_epi64(n, 1));
    return _mm_add_epi8(_mm256_castsi256_si128(half),
                        _mm256_extracti128_si256(half, 1));
}

/* Of divisors from 2^-60 on. Steps are eight mantissas apart, or more. */
INLINE void fill_fp8_table(int m, float d, struct cpu_fp8_table *table)
{
    const int b = m == 3 ? 7 : 15;
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const float least = m == 3 ? 0x1p-6f : 0x1p-14f; /* normal */
    const double unit = (double)d * (m == 3 ? 0x1p-9 : 0x1p-16);
    const __m512d low = _mm512_set_pd(
        7.5 - 0x1p-22, 6.5 + 0x1p-22, 5.5 - 0x1p-22, 4.5 + 0x1p-22,
        3.5 - 0x1p-23, 2.5 + 0x1p-23, 1.5 - 0x1p-24, 0.5 + 0x1p-25);
    const __m512d high =
        m == 3 ? _mm512_set_pd(15.5 - 0x1p-21, 14.5 + 0x1p-21, 13.5 - 0x1p-21,
                               12.5 + 0x1p-21, 11.5 - 0x1p-21, 10.5 + 0x1p-21,
                               9.5 - 0x1p-21, 8.5 + 0x1p-21)
               : _mm512_shuffle_f64x2(low, low, 0xEE);
    const int64_t exponent = roped_float_bits(d * least) >> 23;
    int n_below;
    const __m128i steps = least_mantissas(m, least_words(high, unit),
                                          (exponent + 1) << 7, &n_below);
    const __m128i count = count_steps(m, steps);
    const __m512i step = _mm512_broadcast_i32x4(_mm_shuffle_epi8(steps, count));
    const __m512i code = _mm512_broadcast_i32x4(_mm_add_epi8(
        count, _mm_set1_epi8((char)(((b - 1) << m) + n_below -
                                    (int)(roped_float_bits(d) >> 23 << m)))));
    for (int i = 0; i < 2; i++) {
        const __m512i mantissa = _mm512_add_epi8(
            _mm512_set1_epi8((char)(64 * i)), _mm512_loadu_si512(byte_numbers));
        const __m512i eighth = _mm512_and_si512(_mm512_srli_epi16(mantissa, 3),
                                                _mm512_set1_epi8(15));
        const __m512i least_code = _mm512_shuffle_epi8(code, eighth);
        const __mmask64 is_next =
            _mm512_cmpge_epu8_mask(mantissa, _mm512_shuffle_epi8(step, eighth));
        _mm512_storeu_si512(table->code + 64 * i,
                            _mm512_mask_add_epi8(least_code, is_next,
                                                 least_code,
                                                 _mm512_set1_epi8(1)));
    }
    _mm_storeu_si128((void *)table->from,
                     _mm512_cvtepi64_epi16(least_words(low, unit)));
    table->normal = (uint16_t)((roped_float_bits(d * least) >> 16) + 1);
    table->most = (uint16_t)(roped_float_bits(d * max) >> 16);
    table->divisor = d;
}

/* Bytes 0, 2, 4 .. of two vectors; with odd those between them. */
INLINE __m512i every_second_byte(__m512i lo, __m512i hi, bool odd)
{
    const __m512i even = _mm512_set_epi8(
        126, 124, 122, 120, 118, 116, 114, 112, 110, 108, 106, 104, 102, 100,
        98, 96, 94, 92, 90, 88, 86, 84, 82, 80, 78, 76, 74, 72, 70, 68, 66, 64,
        62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
        26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i index =
        odd ? _mm512_or_si512(even, _mm512_set1_epi8(1)) : even;
    return _mm512_permutex2var_epi8(lo, index, hi);
}

/* Codes of words that are not normal: those that begin at no larger word. */
INLINE __m512i rare_codes(int m, const struct cpu_fp8_table *table, raw16 word)
{
    const __m512i infinite = _mm512_set1_epi16(BF16_INFINITY);
    __m512i code = _mm512_setzero_si512();
    for (int i = 0; i < 1 << m; i++)
        code = _mm512_mask_add_epi16(
            code,
            _mm512_cmpge_epu16_mask(word,
                                    _mm512_set1_epi16((short)table->from[i])),
            code, _mm512_set1_epi16(1));
    code = _mm512_mask_mov_epi16(code, _mm512_cmpeq_epu16_mask(word, infinite),
                                 _mm512_set1_epi16(m == 3 ? 0x7E : 0x7B));
    return _mm512_mask_mov_epi16(code, _mm512_cmpgt_epu16_mask(word, infinite),
                                 _mm512_set1_epi16(0x7F));
}

/* What every step of a row needs: no store can change it. */
struct common {
    __m512i code[2], least, most, room;
};

INLINE struct common common_of(const struct cpu_fp8_table *table)
{
    const int room = BF16_INFINITY - 1 - table->normal;
    return (struct common){
        {_mm512_loadu_si512(table->code), _mm512_loadu_si512(table->code + 64)},
        _mm512_set1_epi16((short)table->normal),
        _mm512_set1_epi16((short)table->most),
        _mm512_set1_epi16((short)room)};
}

/* The codes of TABLE_STEP values. */
INLINE __m512i table_codes(int m, const struct common *common,
                           const struct cpu_fp8_table *table, raw16 x, raw16 y)
{
    enum { SELECT = 0xD8 }; /* bits of the second where the third is set */
    const __m512i magnitude = _mm512_set1_epi16(BF16_MAGNITUDE);
    const raw16 a = x & magnitude, c = y & magnitude;
    const raw16 lo = _mm512_min_epu16(a, common->most);
    const raw16 hi = _mm512_min_epu16(c, common->most);
    const __mmask64 is_rare =
        _mm512_kunpackd(_mm512_cmpgt_epu16_mask(
                            _mm512_sub_epi16(c, common->least), common->room),
                        _mm512_cmpgt_epu16_mask(
                            _mm512_sub_epi16(a, common->least), common->room));
    const __m512i binade =
        every_second_byte(_mm512_srli_epi16(lo, m == 3 ? 4 : 5),
                          _mm512_srli_epi16(hi, m == 3 ? 4 : 5), false);
    __m512i sign = every_second_byte(x, y, true);
    __m512i code = _mm512_add_epi8(
        _mm512_permutex2var_epi8(
            common->code[0], every_second_byte(lo, hi, false), common->code[1]),
        binade & _mm512_set1_epi8((char)(0xFF << m)));
    if (UNLIKELY(is_rare != 0)) {
        const __m512i rare = every_second_byte(rare_codes(m, table, a),
                                               rare_codes(m, table, c), false);
        const __m512i nan = _mm512_set1_epi8(0x7F);
        code = _mm512_mask_mov_epi8(code, is_rare, rare);
        sign =
            _mm512_mask_mov_epi8(sign, _mm512_cmpeq_epi8_mask(code, nan), nan);
    }
    return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi8((char)0x80),
                                     SELECT);
}

/* The first n of TABLE_STEP values. */
INLINE __m512i table_codes_of(int m, const struct common *common,
                              const struct cpu_fp8_table *table,
                              const uint16_t *x, int64_t n)
{
    const __mmask64 mask = n < TABLE_STEP ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
    return table_codes(
        m, common, table, _mm512_maskz_loadu_epi16((__mmask32)mask, x),
        _mm512_maskz_loadu_epi16((__mmask32)(mask >> 32), x + BLOCK));
}

INLINE void encode_row(int m, bool is_streamed,
                       const struct cpu_fp8_table *table, uint8_t *to,
                       const uint16_t *x, int64_t n)
{
    const struct common common = common_of(table);
    int64_t i = 0;
    for (; i + TABLE_STEP <= n; i += TABLE_STEP) {
        const __m512i code = table_codes(m, &common, table, load16(x + i),
                                         load16(x + i + BLOCK));
        if (is_streamed)
            _mm512_stream_si512((void *)(to + i), code);
        else
            _mm512_storeu_si512(to + i, code);
    }
    if (i < n)
        _mm512_mask_storeu_epi8(
            to + i, ((uint64_t)1 << (n - i)) - 1,
            table_codes_of(m, &common, table, x + i, n - i));
}

/* Values in 16 bits of the codes from 0 to 127, byte by byte. */
struct value_table {
    __m512i low[2], high[2];
};

INLINE struct value_table value_table_of(const raw16 *value)
{
    struct value_table table;
    for (int i = 0; i < 2; i++) {
        const raw16 x = value[2 * i], y = value[2 * i + 1];
        table.low[i] = every_second_byte(x, y, false);
        table.high[i] = every_second_byte(x, y, true);
    }
    return table;
}

/* Of TABLE_STEP codes. Their signs turn those of the values. */
INLINE void look_up_values(const struct value_table *table, const void *codes,
                           raw16 *value)
{
    enum { TURNED = 0x78 }; /* the first, but bits that the others share */
    const __m512i first = _mm512_set_epi8(
        95, 31, 94, 30, 93, 29, 92, 28, 91, 27, 90, 26, 89, 25, 88, 24, 87, 23,
        86, 22, 85, 21, 84, 20, 83, 19, 82, 18, 81, 17, 80, 16, 79, 15, 78, 14,
        77, 13, 76, 12, 75, 11, 74, 10, 73, 9, 72, 8, 71, 7, 70, 6, 69, 5, 68,
        4, 67, 3, 66, 2, 65, 1, 64, 0);
    const __m512i last = _mm512_add_epi8(first, _mm512_set1_epi8(32));
    const __m512i code = _mm512_loadu_si512(codes);
    const __m512i low =
        _mm512_permutex2var_epi8(table->low[0], code, table->low[1]);
    __m512i high =
        _mm512_permutex2var_epi8(table->high[0], code, table->high[1]);
    high = _mm512_ternarylogic_epi32(high, code, _mm512_set1_epi8((char)0x80),
                                     TURNED);
    value[0] = _mm512_permutex2var_epi8(low, first, high);
    value[1] = _mm512_permutex2var_epi8(low, last, high);
}

#endif
