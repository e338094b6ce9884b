/*
 * rows_convert.c - rows as they are, in another type.
 */
#include "cpu/rows_isa.h"

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
        if (is_streamed)
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
    for (; i + BLOCK <= n; i += BLOCK)
        store32(to + i, load(dtype, HALVES, at(dtype, from, i), BLOCK));
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
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}
