/*
 * fp8_table.h - values of FP8 codes by tables of bytes: with AVX-512.
 *
 * Words are magnitudes of bfloat16, whose order is that of their bits.
 */
#ifndef ROPED_CPU_FP8_TABLE_H
#define ROPED_CPU_FP8_TABLE_H

#include "cpu/quantize_rows.h"
#include "cpu/vector.h"

enum { BF16_INFINITY = 0x7F80, BF16_MAGNITUDE = 0x7FFF, TABLE_STEP = 64 };

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
