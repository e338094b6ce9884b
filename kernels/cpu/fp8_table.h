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

/*
 * Where codes begin, for values of one divisor d. Bits of magnitudes are those
 * of words, or of floats: words with 16 more behind them. A binade of codes has
 * 128 words from base on, slots of eight, none of which has the beginnings of
 * two codes. In each slot a number that is added to bits, less those of base,
 * makes codes of them: 1 << (7 - m) words have one code then, 0 at zero.
 */
/*
 * The least bits whose quotients by d, correctly rounded to float32, have a
 * code above 8 numbers of so many units, or 4, that are half-way between two
 * codes, of which the lower one is even and odd by turns. half_way has the
 * middle between such a number and the next float32, from which on quotients
 * are no longer that number: above it where ties go down, and below it where
 * they go up. Products with d are exact. Returned is how far they are below
 * 'from', and 0 behind them.
 */
INLINE __m512i steps_below(int m, int cut, double unit, int64_t from)
{
    enum { FIRST = (1023 - 127) << 7 }; /* exponent 0, of words */
    const __m512i goes_up = _mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0);
    const __m512d half_way =
        m == 3 ? _mm512_set_pd(15.5 - 0x1p-21, 14.5 + 0x1p-21, 13.5 - 0x1p-21,
                               12.5 + 0x1p-21, 11.5 - 0x1p-21, 10.5 + 0x1p-21,
                               9.5 - 0x1p-21, 8.5 + 0x1p-21)
               : _mm512_set_pd(0, 0, 0, 0, 7.5 - 0x1p-22, 6.5 + 0x1p-22,
                               5.5 - 0x1p-22, 4.5 + 0x1p-22);
    const __m512i bits =
        _mm512_castpd_si512(_mm512_mul_pd(half_way, _mm512_set1_pd(unit)));
    const __m512i last = _mm512_srli_epi64(_mm512_sub_epi64(bits, goes_up),
                                           (unsigned)(29 + cut));
    const __m512i below = _mm512_sub_epi64(
        _mm512_set1_epi64(from + ((int64_t)FIRST << (16 - cut)) - 1), last);
    return _mm512_zextsi256_si512(_mm512_maskz_cvtepi64_epi32(
        (__mmask8)((1u << (1 << m)) - 1), below));
}

/* Are there steps of a divisor? */
INLINE bool has_steps(float d)
{
    return d >= 0x1p-60f && d <= 0x1.fffffep127f;
}

/* cut: how many bits are cut off from floats, 16 for words. */
INLINE void find_steps(int m, int cut, float d, struct cpu_fp8_steps *steps)
{
    enum { WORDS = 128, SLOT = 8 };
    const int by = 16 - cut; /* bits behind those of words */
    const int step = WORDS >> m;
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const float normal = d * (m == 3 ? 0x1p-6f : 0x1p-14f);
    const float unit = d * (m == 3 ? 0x1p-9f : 0x1p-16f);
    const int32_t base = (int32_t)(roped_float_bits(normal) >> 16) << by;
    const __m512i slot = _mm512_set_epi32(
        15 * SLOT, 14 * SLOT, 13 * SLOT, 12 * SLOT, 11 * SLOT, 10 * SLOT,
        9 * SLOT, 8 * SLOT, 7 * SLOT, 6 * SLOT, 5 * SLOT, 4 * SLOT, 3 * SLOT,
        2 * SLOT, SLOT, 0);
    /* how many codes have begun where a slot does, or one less where the last
     * of these begins there */
    const __m512 first = _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_slli_epi32(_mm512_set1_epi32(base), (unsigned)cut),
        _mm512_slli_epi32(slot, 16)));
    const __m512i n = _mm512_cvttps_epi32(
        _mm512_fmadd_ps(first, splat(0x1.fffffp-1f / unit),
                        splat(m == 3 ? -7.5f : -3.5f)));
    const __m512i next = _mm512_permutexvar_epi32(
        n, steps_below(m, cut, unit, base + ((WORDS + step) << by)));
    const __m512i no_step = _mm512_slli_epi32(
        _mm512_sub_epi32(_mm512_set1_epi32(WORDS), slot), (unsigned)by);
    __m512i more = _mm512_add_epi32(
        _mm512_slli_epi32(n, (unsigned)(7 - m + by)),
        _mm512_max_epi32(next, no_step));
    const int32_t twice = cut == 16 ? 0x10001 : 1;
    if (cut == 16)
        more = _mm512_or_si512(more, _mm512_slli_epi32(more, 16));
    _mm512_store_si512(steps->more, more);
    steps->base = base * twice;
    steps->room = ((BF16_INFINITY << by) - 1 - base) * twice;
    steps->most = ((int32_t)(roped_float_bits(d * max) >> cut) - base) * twice;
    steps->divisor = d;
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

/* Bits of x where the mask has them, and else of y. */
INLINE __m512i selected(__m512i mask, __m512i x, __m512i y)
{
    enum { SELECT = 0xE4 };
    return _mm512_ternarylogic_epi32(x, y, mask, SELECT);
}

/* The same in vectors, which no store can change. */
struct steps {
    __m512i more, base, room, most;
};

INLINE struct steps load_steps(const struct cpu_fp8_steps *of)
{
    return (struct steps){_mm512_load_si512(of->more),
                          _mm512_set1_epi32(of->base),
                          _mm512_set1_epi32(of->room),
                          _mm512_set1_epi32(of->most)};
}

/* Codes in the upper bytes of words, right where values are normal: others are
 * in rare. */
INLINE __m512i words_of_codes(int m, const struct steps *steps, raw16 x,
                              __mmask32 *rare)
{
    const __m512i above =
        _mm512_sub_epi16(x & _mm512_set1_epi16(BF16_MAGNITUDE), steps->base);
    const __m512i at = _mm512_min_epu16(above, steps->most);
    const __m512i sum = _mm512_add_epi16(
        at, _mm512_permutexvar_epi16(_mm512_srli_epi16(at, 2), steps->more));
    *rare = _mm512_cmpgt_epu16_mask(above, steps->room);
    return selected(_mm512_set1_epi16(0x7F00),
                    m == 3 ? _mm512_slli_epi16(sum, 4)
                           : _mm512_slli_epi16(sum, 3),
                    x);
}

/* The codes of quotients, whatever they are. */
static NOINLINE __m512i divided_words(int m, raw16 x, raw16 y, float d)
{
    const vfloat by = splat(d);
    const block lo = widen_bf16(x), hi = widen_bf16(y);
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const int b = m == 3 ? 7 : 15;
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(
            narrow_fp8((block){lo.lo / by, lo.hi / by}, 1, m, b, max)),
        narrow_fp8((block){hi.lo / by, hi.hi / by}, 1, m, b, max), 1);
}

/* The codes of TABLE_STEP values. */
INLINE __m512i codes_of_words(int m, const struct steps *steps, raw16 x,
                              raw16 y, float d)
{
    __mmask32 rare[2];
    const __m512i lo = words_of_codes(m, steps, x, &rare[0]);
    const __m512i hi = words_of_codes(m, steps, y, &rare[1]);
    if (UNLIKELY(!_kortestz_mask32_u8(rare[0], rare[1])))
        return divided_words(m, x, y, d);
    return every_second_byte(lo, hi, true);
}

INLINE void encode_row(int m, bool is_streamed, const struct cpu_fp8_steps *of,
                       uint8_t *to, const uint16_t *x, int64_t n, int64_t ahead)
{
    const struct steps steps = load_steps(of);
    const float d = of->divisor;
    int64_t i = 0;
    for (; i + TABLE_STEP <= n; i += TABLE_STEP) {
        if (ahead)
            prefetch_elements(ROPED_BF16, at(ROPED_U8, x + i, ahead), TABLE_STEP);
        const __m512i code = codes_of_words(m, &steps, load16(x + i),
                                            load16(x + i + BLOCK), d);
        if (is_streamed)
            _mm512_stream_si512((void *)(to + i), code);
        else
            _mm512_storeu_si512(to + i, code);
    }
    if (i < n) {
        const __mmask64 some = ((uint64_t)1 << (n - i)) - 1;
        _mm512_mask_storeu_epi8(
            to + i, some,
            codes_of_words(
                m, &steps, _mm512_maskz_loadu_epi16((__mmask32)some, x + i),
                _mm512_maskz_loadu_epi16((__mmask32)(some >> 32),
                                         x + i + BLOCK),
                d));
    }
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
