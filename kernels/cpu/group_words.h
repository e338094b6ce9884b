/*
 * group_words.h - codes of groups of 16 and 32 bfloat16, of 16 float16, and
 * values of their e2m1 codes, from words and tables: with AVX-512. See
 * fp8_table.h.
 *
 * MXFP8 and MXFP4: a scale is a power of two. So the word of a quotient is that
 * of the value less the exponent of the scale, and what follows is the same for
 * all groups: words are rounded to three bits of mantissa, or one table has
 * their codes.
 *
 * NVFP4: a scale is one of 127 numbers. For each of them that a call meets, a
 * table has the seven words at which codes begin, and three comparisons find a
 * value among these.
 */
#ifndef ROPED_CPU_GROUP_WORDS_H
#define ROPED_CPU_GROUP_WORDS_H

#include "cpu/largest_words.h"

#include <math.h>

/* ------------------------------------------------------- powers of two: MX */

/*
 * What is taken from words of a group, so that their exponents are those of
 * codes: twice, as one load spreads 32 bits. Groups whose values may be
 * subnormal, and those of NaN and Inf, are unusual: their quotients are made as
 * floats.
 */
enum { MOST_GROUPS = CPU_BLOCK / MX_GROUP };
_Static_assert(MOST_GROUPS <= 64, "a bit for each");

struct bases {
    uint64_t unusual; /* a bit for each group */
    uint32_t base[MOST_GROUPS];
};

static void find_bases(struct bases *to, const float *divisor, int64_t n,
                       uint32_t less)
{
    const uint32_t least = 16 << 7, most = 0xFD << 7;
    uint8_t is_unusual[MOST_GROUPS] = {0};
    for (int64_t i = 0; i < n; i++) {
        const uint32_t word = roped_float_bits(divisor[i]) >> 16;
        const uint32_t one = word - less;
        to->base[i] = one | one << 16;
        is_unusual[i] = word < least || word > most;
    }
    const __m512i some = _mm512_loadu_si512(is_unusual);
    to->unusual = _mm512_test_epi8_mask(some, some);
}

INLINE __m512i base_of(uint32_t base)
{
    return _mm512_set1_epi32((int)base);
}

/* Codes of a group that is unusual, as bytes: of zeros their signs. */
static NOINLINE raw8 unusual_fp8(int m, int b, float max, raw16 x,
                                 float divisor)
{
    const block q = times(widen_bf16(x), splat(1 / divisor));
    if (_mm512_test_epi16_mask(x, _mm512_set1_epi16(BF16_MAGNITUDE)) == 0)
        return _mm512_cvtepi16_epi8(_mm512_srli_epi16(x, 8));
    return narrow_fp8(q, 1, m, b, max);
}

INLINE __m512i joined_bytes(raw8 lo, raw8 hi)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* x + 1 where the lowest bit of the other is set, the last of x that is kept:
 * half-way between two that are even and odd by turns, it goes up to the even
 * one. */
INLINE __m512i nudged(__m512i x, __m512i kept)
{
    return _mm512_add_epi16(x, kept & _mm512_set1_epi16(1));
}

/* ------------------------------------------------------------------- MXFP8 */

/* Words of the binade below e4m3's normal numbers become 0 to 127. A quotient
 * is rounded to its upper bits: 7 more are half a unit, nudged. */
enum { E4M3_BINADE = 7 << 7, E4M3_HALF = 7, E4M3_MOST = 0x7EF };
#define NORMAL 0x78787878u /* bits of which normal codes have some */

/* Codes in the upper bytes, right where they are normal numbers or zeros. */
INLINE __m512i e4m3_words(raw16 x, __m512i base)
{
    const __m512i of = x & _mm512_set1_epi16(BF16_MAGNITUDE);
    const __m512i word = _mm512_min_epu16(
        _mm512_subs_epu16(nudged(of, _mm512_srli_epi16(of, 4)), base),
        _mm512_set1_epi16(E4M3_MOST));
    return selected(_mm512_set1_epi16(0x7F00), _mm512_slli_epi16(word, 4), x);
}

/* The same, of all words: subnormal codes begin at these, of which 0 is half
 * of the smallest. */
static NOINLINE __m512i all_e4m3_words(raw16 x, __m512i base)
{
    enum { BINADES = 3 << 7, N_CODES = 8 };
    static const uint16_t first[N_CODES] = {
        1,        128 + 64, 256 + 33, 256 + 96,
        384 + 17, 384 + 48, 384 + 81, 384 + 112,
    };
    const __m512i magnitude = _mm512_set1_epi16(BF16_MAGNITUDE);
    const __m512i word = _mm512_subs_epu16(
        x & magnitude,
        _mm512_sub_epi16(base, _mm512_set1_epi16(BINADES - E4M3_HALF)));
    const __m512i one = _mm512_set1_epi16(0x100);
    const __mmask32 is_small =
        _mm512_cmplt_epu16_mask(word, _mm512_set1_epi16(BINADES + 128));
    __m512i code = x & _mm512_set1_epi16((short)0x8000);
    for (int i = 0; i < N_CODES; i++)
        code = _mm512_mask_add_epi16(
            code,
            _mm512_cmpge_epu16_mask(word, _mm512_set1_epi16((short)first[i])),
            code, one);
    return _mm512_mask_mov_epi16(e4m3_words(x, base), is_small, code);
}

/* Of two groups. */
INLINE __m512i mxfp8_codes(bool is_unusual, raw16 x, raw16 y,
                           const uint32_t *base, const float *divisor)
{
    /* in memory, as GCC makes a constant anew in each step */
    static const _Alignas(64) uint32_t normal[16] = {
        NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL,
        NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL};
    const __m512i first = base_of(base[0]), second = base_of(base[1]);
    if (UNLIKELY(is_unusual))
        return joined_bytes(unusual_fp8(3, 7, ROPED_E4M3_MAX, x, divisor[0]),
                            unusual_fp8(3, 7, ROPED_E4M3_MAX, y, divisor[1]));
    const __m512i code =
        every_second_byte(e4m3_words(x, first), e4m3_words(y, second), true);
    if (UNLIKELY(_mm512_testn_epi8_mask(code, _mm512_load_si512(normal)) != 0))
        return every_second_byte(all_e4m3_words(x, first),
                                 all_e4m3_words(y, second), true);
    return code;
}

/* Memory that will be read soon, as long as n bytes are ahead of x. */
INLINE void ask_ahead(const void *x, int64_t ahead, int64_t n)
{
    for (int64_t i = 0; ahead && i < n; i += 64)
        __builtin_prefetch((const uint8_t *)x + ahead + i, 0, 2);
}

INLINE void store_bytes(void *to, __m512i x, int64_t n, bool is_streamed)
{
    if (n < 64)
        _mm512_mask_storeu_epi8(to, ((uint64_t)1 << n) - 1, x);
    else if (is_streamed)
        _mm512_stream_si512(to, x);
    else
        _mm512_storeu_si512(to, x);
}

INLINE void encode_mxfp8(bool is_streamed, uint8_t *to, const uint16_t *x,
                         int64_t n, int64_t ahead, const float *divisor)
{
    enum { STEP = 2 * BLOCK };
    struct bases of;
    int64_t i = 0, j = 0;
    find_bases(&of, divisor, n / MX_GROUP, E4M3_BINADE + E4M3_HALF);
    for (; i + STEP <= n; i += STEP, j += 2) {
        ask_ahead(x + i, ahead, STEP * (int64_t)sizeof *x);
        store_bytes(to + i,
                    mxfp8_codes(of.unusual >> j & 3, load16(x + i),
                                load16(x + i + BLOCK), of.base + j,
                                divisor + j),
                    STEP, is_streamed);
    }
    if (i < n) {
        const uint32_t base[2] = {of.base[j], of.base[j]};
        const float by[2] = {divisor[j], divisor[j]};
        store_bytes(to + i,
                    mxfp8_codes(of.unusual >> j & 1, load16(x + i),
                                _mm512_setzero_si512(), base, by),
                    BLOCK, false);
    }
}

/* ------------------------------------------------------------------- MXFP4 */

/* e2m1's codes by a quarter of a binade, from 0.25 on, below which is one more.
 * Codes begin at quarters or, where ties go down, one word behind them: all
 * words are one less but those that are nudged. */
enum { E2M1_BINADE = 2 << 7, E2M1_QUARTER = 32 - 1 };

/* Two e2m1 codes a byte, of 128 bytes that are one each. */
INLINE __m512i packed_nibbles(__m512i lo, __m512i hi)
{
    const __m512i by = _mm512_set1_epi16(0x1001);
    return every_second_byte(_mm512_maddubs_epi16(lo, by),
                             _mm512_maddubs_epi16(hi, by), false);
}

/* In the upper six bits a sign and a quarter. */
INLINE __m512i e2m1_quarters(raw16 x, __m512i base)
{
    const __m512i magnitude = _mm512_set1_epi16(BF16_MAGNITUDE);
    const __m512i of = x & magnitude;
    const __m512i word =
        _mm512_subs_epu16(nudged(of, _mm512_srli_epi16(of, 6)), base);
    return selected(magnitude, _mm512_slli_epi16(word, 5), x);
}

static NOINLINE __m512i unusual_nibbles(raw16 x, raw16 y, const float *divisor)
{
    const __m512i code =
        joined_bytes(unusual_fp8(1, 1, ROPED_E2M1_MAX, x, divisor[0]),
                     unusual_fp8(1, 1, ROPED_E2M1_MAX, y, divisor[1]));
    return (code & _mm512_set1_epi8(7)) |
           (_mm512_srli_epi16(code, 4) & _mm512_set1_epi8(8));
}

/* Of two groups, a byte each. */
INLINE __m512i mxfp4_codes(bool is_unusual, raw16 x, raw16 y,
                           const uint32_t *base, const float *divisor)
{
    static const _Alignas(64) uint8_t codes[64] = {
        0,  1,  1,  1,  1,  1,  1,  2,  2,  2,  3,  3,  4,  4,  5,  5,
        6,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
        8,  9,  9,  9,  9,  9,  9,  10, 10, 10, 11, 11, 12, 12, 13, 13,
        14, 14, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15};
    if (UNLIKELY(is_unusual))
        return unusual_nibbles(x, y, divisor);
    const __m512i index =
        every_second_byte(e2m1_quarters(x, base_of(base[0])),
                          e2m1_quarters(y, base_of(base[1])), true);
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(index, 2),
                                   _mm512_load_si512(codes));
}

INLINE void encode_mxfp4(bool is_streamed, uint8_t *to, const uint16_t *x,
                         int64_t n, int64_t ahead, const float *divisor)
{
    enum { STEP = 4 * BLOCK };
    struct bases of;
    int64_t i = 0, j = 0;
    find_bases(&of, divisor, n / MX_GROUP, E2M1_BINADE + E2M1_QUARTER);
    for (; i + STEP <= n; i += STEP, j += 4) {
        const uint32_t *base = of.base + j;
        const float *by = divisor + j;
        const uint16_t *from = x + i;
        ask_ahead(from, ahead, STEP * (int64_t)sizeof *x);
        store_bytes(
            to + i / 2,
            packed_nibbles(
                mxfp4_codes(of.unusual >> j & 3, load16(from),
                            load16(from + BLOCK), base, by),
                mxfp4_codes(of.unusual >> j & 12, load16(from + 2 * BLOCK),
                            load16(from + 3 * BLOCK), base + 2, by + 2)),
            STEP / 2, is_streamed);
    }
    for (; i < n; i += MX_GROUP, j++) {
        const uint32_t base[2] = {of.base[j], of.base[j]};
        const float by[2] = {divisor[j], divisor[j]};
        const __m512i code = mxfp4_codes(of.unusual >> j & 1, load16(x + i),
                                         _mm512_setzero_si512(), base, by);
        store_bytes(to + i / 2, packed_nibbles(code, code), MX_GROUP / 2,
                    false);
    }
}

/* ------------------------------------------------------------ known scales */

/* A table is asked for 64 scales at a time. */
static int64_t first_unknown(const bool is_known[256], const uint8_t *scale,
                             int64_t n)
{
    enum { STEP = 64 };
    const __m512i *known = (const void *)is_known;
    const __m512i a = _mm512_loadu_si512(known),
                  b = _mm512_loadu_si512(known + 1),
                  c = _mm512_loadu_si512(known + 2),
                  d = _mm512_loadu_si512(known + 3);
    for (int64_t i = 0; i < n; i += STEP) {
        const __mmask64 some =
            n - i < STEP ? ((uint64_t)1 << (n - i)) - 1 : UINT64_MAX;
        const __m512i code = _mm512_maskz_loadu_epi8(some, scale + i);
        const __m512i lower = _mm512_permutex2var_epi8(a, code, b);
        const __m512i upper = _mm512_permutex2var_epi8(c, code, d);
        const __m512i of =
            _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(code), upper);
        const __mmask64 unknown = _mm512_mask_testn_epi8_mask(some, of, of);
        if (UNLIKELY(unknown != 0))
            return i + __builtin_ctzll(unknown);
    }
    return n;
}

/* ------------------------------------------------------------------- NVFP4 */

/* Floats cut off to words, in lanes of 32 bits; and back. */
INLINE __m256i words_below(enum roped_dtype dtype, __m256 x)
{
    return dtype == ROPED_F16
               ? _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_ZERO))
               : _mm256_srli_epi32(_mm256_castps_si256(x), 16);
}

INLINE __m256 floats_of_words(enum roped_dtype dtype, __m256i word)
{
    return dtype == ROPED_F16
               ? _mm256_cvtph_ps(_mm256_cvtepi32_epi16(word))
               : _mm256_castsi256_ps(_mm256_slli_epi32(word, 16));
}

/*
 * The least words whose codes are 1 to 7 where values are multiplied by factor
 * and divided by d, each rounded to float32. A number that is half-way between
 * two codes has the even one. It is near the word that a division says: of
 * three words those below are counted.
 */
INLINE void fill_nibble_words(enum roped_dtype dtype, float factor, float d,
                              uint16_t *least)
{
    enum { GOES_UP = 0x2A, WORDS = 3 };
    const __m256 half_way =
        _mm256_setr_ps(0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, INFINITY);
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i near = words_below(dtype, half_way * _mm256_set1_ps(d) /
                                                _mm256_set1_ps(factor));
    __m256i word = _mm256_sub_epi32(_mm256_max_epi32(near, one), one);
    __m256i next = word;
    for (int i = 0; i < WORDS; i++) {
        const __m256 q = floats_of_words(dtype, next) * _mm256_set1_ps(factor) /
                         _mm256_set1_ps(d);
        const __mmask8 is_below =
            (__mmask8)((_mm256_cmp_ps_mask(q, half_way, _CMP_LT_OQ) & GOES_UP) |
                       (_mm256_cmp_ps_mask(q, half_way, _CMP_LE_OQ) &
                        ~GOES_UP));
        word = _mm256_mask_add_epi32(word, is_below, word, one);
        next = _mm256_add_epi32(next, one);
    }
    word = _mm256_min_epi32(word, _mm256_set1_epi32(infinity_of(dtype) + 1));
    _mm_storeu_si128((void *)least, _mm256_cvtepi32_epi16(word));
}

INLINE void know_scales(enum roped_dtype dtype, float factor, int64_t n,
                        const uint8_t *scale, struct cpu_nibble_words *table)
{
    for (int64_t i = 0;
         (i += first_unknown(table->is_known, scale + i, n - i)) < n;) {
        const uint8_t code = scale[i];
        const float d = roped_e4m3_to_float(code);
        fill_nibble_words(dtype, factor, d == 0 ? INFINITY : d,
                          table->least[code]);
        table->is_known[code] = true;
    }
}

/* Twice the codes of two groups, and their signs above: a byte of each word.
 * Of seven words the one in the middle is compared first. */
INLINE __m512i e2m1_words(enum roped_dtype dtype, raw16 x,
                          const uint16_t *first, const uint16_t *second)
{
    const __m512i words = _mm512_mask_broadcast_i32x4(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)first)), 0xFF00,
        _mm_loadu_si128((const void *)second));
    const __m512i magnitude = x & _mm512_set1_epi16(BF16_MAGNITUDE);
    const __mmask32 is_upper = _mm512_cmpge_epi16_mask(
        magnitude, _mm512_shuffle_epi8(words, _mm512_set1_epi16(0x0706)));
    __m512i at = _mm512_mask_mov_epi16(_mm512_set1_epi16(0x0302), is_upper,
                                       _mm512_set1_epi16(0x0B0A));
    const __mmask32 is_next =
        _mm512_cmpge_epi16_mask(magnitude, _mm512_shuffle_epi8(words, at));
    at = _mm512_sub_epi16(at, _mm512_set1_epi16(0x0202));
    at = _mm512_mask_add_epi16(at, is_next, at, _mm512_set1_epi16(0x0404));
    const __mmask32 is_last =
        _mm512_cmpge_epi16_mask(magnitude, _mm512_shuffle_epi8(words, at));
    /* NaN has no sign: it is above -Inf where words are signed */
    const __mmask32 is_negative = _mm512_cmple_epi16_mask(
        x, _mm512_set1_epi16((short)(infinity_of(dtype) | 0x8000)));
    at = _mm512_mask_add_epi16(at, is_last, at, _mm512_set1_epi16(2));
    return _mm512_mask_add_epi16(at, is_negative, at, _mm512_set1_epi16(16));
}

/* Of two vectors of words, two codes in each word. */
INLINE __m512i nibble_pairs(__m512i lo, __m512i hi)
{
    const __m512i code = every_second_byte(lo, hi, false);
    return _mm512_srli_epi16(
        _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x1001)), 1);
}

/* Of n values, at most a step, and the words of eight groups. */
enum { NV_STEP = 4 * BLOCK, NV_GROUPS = NV_STEP / NV_GROUP };

INLINE void encode_nv_step(enum roped_dtype dtype, bool is_streamed, void *to,
                           const uint16_t *x, int64_t n, const uint8_t *scale,
                           const struct cpu_nibble_words *table)
{
    __m512i word[NV_GROUPS / 2];
    for (int i = 0; i < NV_GROUPS / 2; i++)
        word[i] = e2m1_words(
            dtype,
            n == NV_STEP ? load16(x + i * BLOCK) : words_of(x, i * BLOCK, n),
            table->least[scale[2 * i]], table->least[scale[2 * i + 1]]);
    store_bytes(to,
                every_second_byte(nibble_pairs(word[0], word[1]),
                                  nibble_pairs(word[2], word[3]), false),
                n / 2, is_streamed);
}

INLINE void encode_nvfp4(enum roped_dtype dtype, bool is_streamed, uint8_t *to,
                         const uint16_t *x, int64_t n, int64_t ahead,
                         const uint8_t *scale,
                         const struct cpu_nibble_words *table)
{
    int64_t i = 0;
    for (; i + NV_STEP <= n; i += NV_STEP) {
        ask_ahead(x + i, ahead, NV_STEP * (int64_t)sizeof *x);
        encode_nv_step(dtype, is_streamed, to + i / 2, x + i, NV_STEP,
                       scale + i / NV_GROUP, table);
    }
    if (i < n) {
        uint8_t last[NV_GROUPS] = {0};
        memcpy(last, scale + i / NV_GROUP, (size_t)((n - i) / NV_GROUP));
        encode_nv_step(dtype, false, to + i / 2, x + i, n - i, last, table);
    }
}

/* -------------------------------------------------------- values of nibbles */

/* Each word has a nibble in its low bits; above it anything. */
INLINE __m512i spread_nibbles(__m128i bytes)
{
    const __m512i first = _mm512_set1_epi64(0x0C0C080804040000);
    return _mm512_multishift_epi64_epi8(first, _mm512_cvtepu16_epi64(bytes));
}

/* Of a block of codes: 16 words have the values by one scale. */
INLINE raw16 values_of_nibbles(__m128i codes, const uint16_t *first,
                               const uint16_t *second)
{
    const __m512i group =
        _mm512_set_epi64(0x0010001000100010, 0x0010001000100010,
                         0x0010001000100010, 0x0010001000100010, 0, 0, 0, 0);
    const __m512i low = _mm512_set1_epi16(15);
    const __m256i *lo = (const void *)first, *hi = (const void *)second;
    const __m512i code = spread_nibbles(codes);
    if (first == second) /* of MXFP4, where the compiler knows it */
        return _mm512_permutexvar_epi16(
            code, _mm512_broadcast_i64x4(_mm256_loadu_si256(lo)));
    return _mm512_permutexvar_epi16(
        (code & low) | group,
        joined_bytes(_mm256_loadu_si256(lo), _mm256_loadu_si256(hi)));
}

INLINE void expand_nibble_row(int64_t group, bool is_streamed, uint16_t *to,
                              const uint8_t *from, int64_t n,
                              const uint8_t *scale,
                              const struct cpu_nibble_values *table)
{
    const int64_t next = group == NV_GROUP;
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        const uint8_t *of = scale + i / group;
        if (i % (4 * BLOCK) == 0)
            __builtin_prefetch(from + i / 2 + CPU_AHEAD, 0, 2);
        store_raw16(
            to + i,
            values_of_nibbles(_mm_loadu_si128((const void *)(from + i / 2)),
                              table->value[of[0]], table->value[of[next]]),
            BLOCK, is_streamed);
    }
    if (i < n) {
        const uint16_t *values = table->value[scale[i / group]];
        store16_part(
            to + i,
            values_of_nibbles(_mm_loadl_epi64((const void *)(from + i / 2)),
                              values, values),
            n - i);
    }
}

/* ----------------------------------------------------------- values of e4m3 */

/* Are the values by that power of two, a word of bfloat16, normal numbers? The
 * least is 2^-9 of it, the largest less than 2^9. */
INLINE bool shifts_e4m3(uint32_t word)
{
    return word >= (1 + 9) << 7 && word <= (254 - 9) << 7;
}

/* Values of a step, by one, times the powers of its groups. 0 stays, and so
 * does NaN. */
INLINE void shift_values(__m512i code, const uint32_t *power, raw16 *value)
{
    enum { ONE = 127 << 7, N_NUMBERS = 0x7E };
    const __m512i magnitude = code & _mm512_set1_epi8(0x7F);
    const __mmask64 is_number =
        _mm512_cmplt_epu8_mask(_mm512_sub_epi8(magnitude, _mm512_set1_epi8(1)),
                               _mm512_set1_epi8(N_NUMBERS));
    for (int i = 0; i < 2; i++)
        value[i] = _mm512_mask_add_epi16(
            value[i], (__mmask32)(is_number >> (i * BLOCK)), value[i],
            _mm512_set1_epi16((short)(power[i] - ONE)));
}

/* Are values of e4m3 by a scale, of any sign, normal numbers? */
INLINE bool scales_e4m3(float scale)
{
    const uint32_t bits = roped_float_bits(scale) & 0x7FFFFFFFu;
    return bits >= (1u + 9) << 23 && bits < (254u - 9) << 23;
}

/* Those of the codes from 0 to 15, and once more. */
INLINE block first_values(float scale)
{
    const vfloat x =
        _mm512_setr_ps(0, 0x1p-9f, 0x1p-8f, 0x1.8p-8f, 0x1p-7f, 0x1.4p-7f,
                       0x1.8p-7f, 0x1.cp-7f, 0x1p-6f, 0x1.2p-6f, 0x1.4p-6f,
                       0x1.6p-6f, 0x1.8p-6f, 0x1.ap-6f, 0x1.cp-6f, 0x1.ep-6f) *
        splat(scale);
    return (block){x, x};
}

/* Of all codes as bfloat16: from 8 on each eight are a binade. The last 32 have
 * NaN behind them. */
INLINE void spread_values(raw16 first, raw16 nan, raw16 *value)
{
    const __m512i binade =
        _mm512_set_epi16(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,
                         1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i index = _mm512_set_epi16(
        15, 14, 13, 12, 11, 10, 9, 8, 15, 14, 13, 12, 11, 10, 9, 8, 15, 14, 13,
        12, 11, 10, 9, 8, 15, 14, 13, 12, 11, 10, 9, 8);
    const __m512i one = _mm512_set1_epi16(1 << 7);
    const __m512i more = _mm512_slli_epi16(binade, 7);
    __m512i x = _mm512_add_epi16(
        _mm512_sub_epi16(_mm512_permutexvar_epi16(index, first), one), more);
    value[0] = _mm512_mask_mov_epi16(x, 0xFFFF, first);
    for (int i = 1; i < 4; i++) {
        x = _mm512_add_epi16(x, _mm512_set1_epi16(4 << 7));
        value[i] = x;
    }
    value[3] = _mm512_mask_mov_epi16(x, 0x80000000u, nan);
}

#endif
