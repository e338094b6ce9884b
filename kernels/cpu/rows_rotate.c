/*
 * rows_rotate.c - heads rotated, pair by pair.
 */
#include "cpu/rows_isa.h"

/* Pairs of a token's heads, and their angles. */
struct rotation {
    struct cpu_heads heads;
    void *to; /* the first pair of the first head */
    const void *from;
    const float *c, *s;
    int64_t n; /* pairs */
    bool is_streamed;
};

/* (a, b) by an angle each: a * c - b * s and b * c + a * s. */
INLINE void rotate_vectors(vfloat *a, vfloat *b, vfloat c, vfloat s)
{
    const vfloat x = *a, y = *b;
    *a = multiply_subtract(x, c, y * s);
    *b = multiply_add(y, c, x * s);
}

/* Pairs (x[i], x[i + second]). */
INLINE void rotate_neox(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, void *y, const void *x,
                        block c, block s, int64_t n, bool is_streamed)
{
    const int64_t second = r->heads.n_pairs;
    block a = load(from, HALVES, x, n);
    block b = load(from, HALVES, at(from, x, second), n);
    rotate_vectors(&a.lo, &b.lo, c.lo, s.lo);
    rotate_vectors(&a.hi, &b.hi, c.hi, s.hi);
    store(to, HALVES, y, a, r->heads.scale, n, is_streamed);
    store(to, HALVES, place(to, y, second), b, r->heads.scale, n, is_streamed);
}

/* Pairs (x[2i], x[2i + 1]), in two blocks of elements. */
INLINE void rotate_gptj(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, void *y, const void *x,
                        block c, block s, int64_t n, bool is_streamed)
{
    const int64_t n_low = 2 * n < BLOCK ? 2 * n : BLOCK;
    block a = load(from, PAIRS, x, n_low);
    rotate_vectors(&a.lo, &a.hi, c.lo, s.lo);
    store(to, PAIRS, y, a, r->heads.scale, n_low, is_streamed);
    if (n_low == 2 * n)
        return;
    a = load(from, PAIRS, at(from, x, BLOCK), 2 * n - BLOCK);
    rotate_vectors(&a.lo, &a.hi, c.hi, s.hi);
    store(to, PAIRS, place(to, y, BLOCK), a, r->heads.scale, 2 * n - BLOCK,
          is_streamed);
}

/* Pairs [i, i + n) of the head at x. */
INLINE void rotate_block(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, void *y, const void *x,
                         int64_t i, block c, block s, int64_t n, bool is_gptj,
                         bool is_streamed)
{
    if (is_gptj)
        rotate_gptj(from, to, r, place(to, y, 2 * i), at(from, x, 2 * i), c, s,
                    n, is_streamed);
    else
        rotate_neox(from, to, r, place(to, y, i), at(from, x, i), c, s, n,
                    is_streamed);
}

/* Heads of one block or two: their angles stay in registers. */
INLINE void rotate_short(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, int n_blocks, bool is_gptj,
                         bool is_streamed)
{
    const int64_t last = (n_blocks - 1) * BLOCK;
    const block c[2] = {load32(r->c), load32(r->c + last)};
    const block s[2] = {load32(r->s), load32(r->s + last)};
    for (int64_t head = 0; head < r->heads.n_heads; head++) {
        const void *x = at(from, r->from, head * r->heads.from_pitch);
        void *y = place(to, r->to, head * r->heads.to_pitch);
        rotate_block(from, to, r, y, x, 0, c[0], s[0], BLOCK, is_gptj,
                     is_streamed);
        if (n_blocks == 2)
            rotate_block(from, to, r, y, x, BLOCK, c[1], s[1], BLOCK, is_gptj,
                         is_streamed);
    }
}

INLINE void rotate_long(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, bool is_gptj,
                        bool is_streamed)
{
    for (int64_t head = 0; head < r->heads.n_heads; head++) {
        const void *x = at(from, r->from, head * r->heads.from_pitch);
        void *y = place(to, r->to, head * r->heads.to_pitch);
        int64_t i = 0;
        for (; i + BLOCK <= r->n; i += BLOCK)
            rotate_block(from, to, r, y, x, i, load32(r->c + i),
                         load32(r->s + i), BLOCK, is_gptj, is_streamed);
        if (i < r->n)
            rotate_block(from, to, r, y, x, i, load32_part(r->c + i, r->n - i),
                         load32_part(r->s + i, r->n - i), r->n - i, is_gptj,
                         false);
    }
}

INLINE void rotate_style(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, bool is_gptj,
                         bool is_streamed)
{
    const struct rotation local = *r; /* which no store can change */
    if (r->n == BLOCK)
        rotate_short(from, to, &local, 1, is_gptj, is_streamed);
    else if (r->n == 2 * BLOCK)
        rotate_short(from, to, &local, 2, is_gptj, is_streamed);
    else
        rotate_long(from, to, &local, is_gptj, is_streamed);
}

INLINE void rotate_heads(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r)
{
    if (r->heads.is_gptj && r->is_streamed)
        rotate_style(from, to, r, true, true);
    else if (r->heads.is_gptj)
        rotate_style(from, to, r, true, false);
    else if (r->is_streamed)
        rotate_style(from, to, r, false, true);
    else
        rotate_style(from, to, r, false, false);
}

INSTANCES(rotate_heads, rotation)

/* Elements [first, end) of every head, as they are. */
static void convert_part(const struct cpu_heads *heads, void *to,
                         const void *from, int64_t first, int64_t end)
{
    for (int64_t i = 0; i < heads->n_heads && first < end; i++)
        ISA(cpu_convert)
    (heads->to, place(heads->to, to, i * heads->to_pitch + first), heads->from,
     at(heads->from, from, i * heads->from_pitch + first), heads->scale,
     end - first, heads->is_streamed);
}

/* Do whole blocks at aligned addresses cover the pairs? */
static bool can_stream(const struct cpu_heads *heads, const void *to,
                       int64_t first, int64_t n)
{
    enum roped_dtype dtype = heads->to;
    return n % BLOCK == 0 && is_aligned(dtype, to, first) &&
           is_aligned(dtype, to, first + heads->n_pairs) &&
           is_aligned(dtype, to, first + heads->to_pitch);
}

void ISA(cpu_rotate)(const struct cpu_heads *heads, void *to, const void *from,
                     int64_t first_pair, int64_t n, const float *c,
                     const float *s)
{
    int64_t first = heads->first + (heads->is_gptj ? 2 : 1) * first_pair;
    const struct rotation r = {.heads = *heads,
                               .to = place(heads->to, to, first),
                               .from = at(heads->from, from, first),
                               .c = c,
                               .s = s,
                               .n = n,
                               .is_streamed = heads->is_streamed &&
                                              can_stream(heads, to, first, n)};
    CALL_INSTANCE(heads->from, heads->to, rotate_heads, &r)
    if (first_pair == 0) {
        convert_part(heads, to, from, 0, heads->first);
        convert_part(heads, to, from, heads->first + 2 * heads->n_pairs,
                     heads->width);
    }
}
