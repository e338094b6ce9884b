/*
 * fp8_table.h - FP8 codes of bfloat16, and values of FP8 codes, by tables of
 * bytes: with AVX-512.
 *
 * All values of a row have one divisor, and 128 mantissas. Codes of normal
 * numbers are those of the mantissa, and as many binades further as the
 * exponent says. So no value is divided but those that the table is made of.
 *
 * Words are magnitudes of bfloat16, whose order is that of their bits.
 */
#ifndef ROPED_CPU_FP8_TABLE_H
#define ROPED_CPU_FP8_TABLE_H

#include "cpu/quantize_rows.h"
#include "cpu/vector.h"

enum { BF16_INFINITY = 0x7F80, BF16_MAGNITUDE = 0x7FFF, TABLE_STEP = 64 };

/* The least words that become the codes 1 to 16, where these are subnormal: a
 * product cut off to a word is one too small at most, or two where the product
 * was rounded. */
INLINE void fill_subnormals(float d, float unit, uint16_t *from)
{
    const vmask even = 0x5555; /* which ties stay at */
    const vfloat half_way =
        _mm512_set_ps(15.5f, 14.5f, 13.5f, 12.5f, 11.5f, 10.5f, 9.5f, 8.5f,
                      7.5f, 6.5f, 5.5f, 4.5f, 3.5f, 2.5f, 1.5f, 0.5f) *
        splat(unit);
    const __m512i one = _mm512_set1_epi32(0x10000);
    __m512i word = (__m512i)(half_way * splat(d)) & _mm512_set1_epi32(-0x10000);
    for (int i = 0; i < 2; i++) {
        const vfloat q = (vfloat)word / splat(d);
        const vmask is_below =
            is_less(q, half_way) | (even & (vmask)~is_less(half_way, q));
        word = _mm512_mask_add_epi32(word, is_below, word, one);
    }
    _mm256_storeu_si256((void *)from,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(word, 16)));
}

/* Of divisors from 2^-60 on. */
INLINE void fill_fp8_table(int m, float d, struct cpu_fp8_table *table)
{
    const int b = m == 3 ? 7 : 15;
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const float least = m == 3 ? 0x1p-6f : 0x1p-14f; /* normal */
    const uint32_t binade = roped_float_bits(d) & 0x7F800000u;
    const vint lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const __m512i first = _mm512_set1_epi8((char)(binade >> 23 << m));
    for (int i = 0; i < 128; i += 2 * BLOCK) {
        raw8 code[2];
        for (int j = 0; j < 2; j++) {
            const vint lo = ((lane + i + j * BLOCK) << 16) + (int32_t)binade;
            const vint hi = lo + (LANES << 16);
            code[j] = narrow_fp8(
                (block){(vfloat)lo / splat(d), (vfloat)hi / splat(d)}, 1, m, b,
                max);
        }
        _mm512_storeu_si512(
            table->code + i,
            _mm512_sub_epi8(
                _mm512_inserti64x4(_mm512_castsi256_si512(code[0]), code[1], 1),
                first));
    }
    fill_subnormals(d, least / (float)(1 << m), table->from);
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

/* The codes of TABLE_STEP values. */
INLINE __m512i table_codes(int m, const struct cpu_fp8_table *table, raw16 x,
                           raw16 y)
{
    enum { SELECT = 0xD8 }; /* bits of the second where the third is set */
    const __m512i magnitude = _mm512_set1_epi16(BF16_MAGNITUDE);
    const __m512i least = _mm512_set1_epi16((short)table->normal);
    const __m512i most = _mm512_set1_epi16((short)table->most);
    const __m512i room =
        _mm512_set1_epi16((short)(BF16_INFINITY - 1 - table->normal));
    const raw16 a = x & magnitude, c = y & magnitude;
    const raw16 lo = _mm512_min_epu16(a, most), hi = _mm512_min_epu16(c, most);
    const __mmask64 is_rare = _mm512_kunpackd(
        _mm512_cmpgt_epu16_mask(_mm512_sub_epi16(c, least), room),
        _mm512_cmpgt_epu16_mask(_mm512_sub_epi16(a, least), room));
    const __m512i binade =
        every_second_byte(_mm512_srli_epi16(lo, m == 3 ? 4 : 5),
                          _mm512_srli_epi16(hi, m == 3 ? 4 : 5), false);
    __m512i sign = every_second_byte(x, y, true);
    __m512i code = _mm512_add_epi8(
        _mm512_permutex2var_epi8(_mm512_loadu_si512(table->code),
                                 every_second_byte(lo, hi, false),
                                 _mm512_loadu_si512(table->code + 64)),
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
INLINE __m512i table_codes_of(int m, const struct cpu_fp8_table *table,
                              const uint16_t *x, int64_t n)
{
    const __mmask64 mask = n < TABLE_STEP ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
    return table_codes(
        m, table, _mm512_maskz_loadu_epi16((__mmask32)mask, x),
        _mm512_maskz_loadu_epi16((__mmask32)(mask >> 32), x + BLOCK));
}

INLINE void encode_row(int m, bool is_streamed,
                       const struct cpu_fp8_table *from, uint8_t *to,
                       const uint16_t *x, int64_t n)
{
    const struct cpu_fp8_table table = *from; /* which no store can change */
    int64_t i = 0;
    for (; i + TABLE_STEP <= n; i += TABLE_STEP) {
        const __m512i code =
            table_codes(m, &table, load16(x + i), load16(x + i + BLOCK));
        if (is_streamed)
            _mm512_stream_si512((void *)(to + i), code);
        else
            _mm512_storeu_si512(to + i, code);
    }
    if (i < n)
        _mm512_mask_storeu_epi8(to + i, ((uint64_t)1 << (n - i)) - 1,
                                table_codes_of(m, &table, x + i, n - i));
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
