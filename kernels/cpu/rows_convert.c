/*
 * rows_convert.c - rows as they are, in another type, and their norms as
 * floats.
 */
#include "cpu/rows_isa.h"

#if defined(HAS_BYTE_TABLES)
#include "cpu/largest_words.h"
#endif

/* Bits, where the types are the same. */
INLINE void copy_row(enum roped_dtype dtype, void *to, const void *from,
                     int64_t n, bool is_streamed)
{
    const int64_t step = 64;
    int64_t bytes = n * (int64_t)size_of(dtype), i = 0;
    if (to == from)
        return;
    if (is_streamed && is_aligned(dtype, to, 0))
        for (; i + step <= bytes; i += step)
            stream64(place(ROPED_U8, to, i), at(ROPED_U8, from, i));
    memcpy(place(ROPED_U8, to, i), at(ROPED_U8, from, i), (size_t)(bytes - i));
}

struct conversion {
    void *to;
    const void *from;
    int64_t n;
    float scale;
    bool is_streamed;
};

/* Elements [i, i + n), at most a block: no results of arithmetic. */
INLINE void convert_block(enum roped_dtype from, enum roped_dtype to,
                          const struct conversion *row, int64_t i, int64_t n,
                          bool is_streamed)
{
    const enum order order = order_of(from);
    const block x = load(from, order, at(from, row->from, i), n);
    if (to == ROPED_BF16)
        store_raw16(place(to, row->to, i), narrow_bf16(x), n, is_streamed);
    else
        store(to, order, place(to, row->to, i), x, row->scale, n, is_streamed);
}

INLINE void convert_blocks(enum roped_dtype from, enum roped_dtype to,
                           const struct conversion *a, bool is_streamed)
{
    const struct conversion row = *a; /* which no store can change */
    int64_t i = 0;
    for (; i + BLOCK <= row.n; i += BLOCK) {
        prefetch_ahead(from, at(from, row.from, i), BLOCK);
        convert_block(from, to, &row, i, BLOCK, is_streamed);
    }
    if (i < row.n)
        convert_block(from, to, &row, i, row.n - i, false);
}

INLINE void convert_row(enum roped_dtype from, enum roped_dtype to,
                        const struct conversion *a)
{
    if (from == to)
        copy_row(to, a->to, a->from, a->n, a->is_streamed);
    else if (a->is_streamed && is_aligned(to, a->to, 0))
        convert_blocks(from, to, a, true);
    else
        convert_blocks(from, to, a, false);
}

INSTANCES(convert_row, conversion)

void ISA(cpu_convert)(const struct cpu_conversion *how, void *to,
                      const void *from, int64_t n)
{
    const struct conversion a = {to, from, n, how->scale, how->is_streamed};
    CALL_INSTANCE(how->from, how->to, convert_row, &a)
}

INLINE void widen_row(enum roped_dtype dtype, float *to, const void *from,
                      int64_t n)
{
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_ahead(dtype, at(dtype, from, i), BLOCK);
        store32(to + i, load(dtype, HALVES, at(dtype, from, i), BLOCK));
    }
    if (i < n)
        store32_part(to + i, load(dtype, HALVES, at(dtype, from, i), n - i),
                     n - i);
}

void ISA(cpu_widen)(enum roped_dtype dtype, float *to, const void *from,
                    int64_t n)
{
    if (dtype == ROPED_F16)
        widen_row(ROPED_F16, to, from, n);
    else if (dtype == ROPED_BF16)
        widen_row(ROPED_BF16, to, from, n);
    else /* in vectors, which are loaded again as they were stored */
        widen_row(ROPED_F32, to, from, n);
}

/* Of any values, no results of arithmetic. */
INLINE void round_row(enum roped_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const block z = load(ROPED_F32, HALVES, x + i, part);
        const block y = dtype == ROPED_F16 ? widen_f16(narrow_f16(z))
                                           : widen_bf16(narrow_bf16(z));
        store(ROPED_F32, HALVES, x + i, y, 1, part, false);
    }
}

void ISA(cpu_round)(enum roped_dtype dtype, float *x, int64_t n)
{
    if (dtype == ROPED_F16)
        round_row(ROPED_F16, x, n);
    else
        round_row(ROPED_BF16, x, n);
}

/* Floats, or words that have their place: odd_word. */
INLINE void store_normal(bool is_words, enum order order, void *to, int64_t i,
                         block z, int64_t n)
{
#if defined(HAS_BYTE_TABLES)
    if (is_words) {
        store16((uint16_t *)to + i,
                order == PAIRS ? odd_word_of_pairs(z) : odd_word(z));
        return;
    }
#endif
    (void)is_words;
    store(ROPED_F32, order, (float *)to + i, z, 1, n, false);
}

INLINE void normal_row(bool is_words, enum order order, enum roped_dtype from,
                       enum roped_dtype type, const struct cpu_normal *how,
                       void *to, const void *x, const float *weight, int64_t n)
{
    const vfloat s = splat(how->s);
    const bool rounds_product = type != ROPED_F32 && how->rounds_product;
    const bool rounds_result = type != ROPED_F32 && how->rounds_result;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        prefetch_elements(from, at(ROPED_U8, at(from, x, i), how->ahead),
                          BLOCK);
        block z = times(load(from, order, at(from, x, i), part), s);
        if (rounds_product)
            z = round_to(type, z);
        z = product(z, load(ROPED_F32, HALVES, weight + i, part));
        if (rounds_result)
            z = round_to(type, z);
        store_normal(is_words, order, to, i, z, part);
    }
}

INLINE void normal(bool is_words, enum roped_dtype from, enum order order,
                   const struct cpu_normal *how, void *to, const void *x,
                   const float *weight, int64_t n)
{
    const enum roped_dtype type = how->type;
    if (from == type && type != ROPED_F32) /* from is a constant */
        normal_row(is_words, order, from, from, how, to, x, weight, n);
    else if (from != ROPED_F32 || type == ROPED_F32)
        normal_row(is_words, order, from, ROPED_F32, how, to, x, weight, n);
    else if (type == ROPED_F16)
        normal_row(is_words, order, from, ROPED_F16, how, to, x, weight, n);
    else
        normal_row(is_words, order, from, ROPED_BF16, how, to, x, weight, n);
}

void ISA(cpu_normal)(const struct cpu_normal *how, float *to, const void *x,
                     const float *weight, int64_t n)
{
    if (how->from == ROPED_F16)
        normal(false, ROPED_F16, HALVES, how, to, x, weight, n);
    else if (how->from == ROPED_BF16 && how->in_order)
        normal(false, ROPED_BF16, order_of(ROPED_BF16), how, to, x, weight, n);
    else if (how->from == ROPED_BF16)
        normal(false, ROPED_BF16, HALVES, how, to, x, weight, n);
    else
        normal(false, ROPED_F32, HALVES, how, to, x, weight, n);
}

#if defined(HAS_BYTE_TABLES)
void ISA(cpu_normal_words)(const struct cpu_normal *how, uint16_t *to,
                           const void *x, const float *weight, int64_t n)
{
    if (how->from == ROPED_F16)
        normal(true, ROPED_F16, HALVES, how, to, x, weight, n);
    else if (how->from == ROPED_BF16)
        normal(true, ROPED_BF16, PAIRS, how, to, x, weight, n);
    else
        normal(true, ROPED_F32, HALVES, how, to, x, weight, n);
}
#endif
