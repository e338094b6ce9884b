/*
 * rows_rotate.c - heads rotated, pair by pair, and normalised before that.
 */
#include "cpu/rows_isa.h"

/* Pairs of a token's heads, and their angles. */
struct rotation {
    struct cpu_heads heads;
    void *to; /* the first pair of the first head */
    const void *from;
    const float *c, *s;
    const float *weight; /* of the first pair's elements, where there is one */
    int64_t n;           /* pairs */
    bool is_streamed;
};

/* What a loop over heads is made for: constants, but for is_streamed. */
struct form {
    enum roped_dtype from, to;
    enum rope_style style;
    bool is_streamed, is_normal;
};

/* Where a head's pairs are: in memory, and what normalises them. */
struct head {
    const struct cpu_heads *of;
    const void *x;
    void *y;
    const float *weight;
    float s;
};

/* Angles of a block of pairs. */
struct turns {
    block c, s;
};

/* Elements [i, i + n) of a head, normalised where they are to be. */
INLINE block load_normal(struct form form, enum order order, struct head head,
                         int64_t i, int64_t n)
{
    block v = load(form.from, order, at(form.from, head.x, i), n);
    if (!form.is_normal)
        return v;
    v = times(v, splat(head.s));
    if (head.of->rounds_product)
        v = round_to(form.from, v);
    return product(v, load(ROPED_F32, order, head.weight + i, n));
}

INLINE void store_turned(struct form form, enum order order, struct head head,
                         int64_t i, int64_t n, block v)
{
    store(form.to, order, place(form.to, head.y, i), v, head.of->scale, n,
          form.is_streamed);
}

/* (a, b) by an angle each: a * c - b * s and b * c + a * s. */
INLINE void rotate_vectors(vfloat *a, vfloat *b, vfloat c, vfloat s)
{
    const vfloat x = *a, y = *b;
    *a = difference_of_products(x, c, y, s);
    *b = multiply_add(y, c, x * s);
}

INLINE struct head head_at(struct form form, const struct rotation *r,
                           int64_t i)
{
    return (struct head){&r->heads,
                         at(form.from, r->from, i * r->heads.from_pitch),
                         place(form.to, r->to, i * r->heads.to_pitch),
                         r->weight, form.is_normal ? r->heads.s[i] : 1};
}

/* Pairs (x[i], x[i + second]). */
INLINE void rotate_neox(struct form form, struct head head, int64_t i,
                        int64_t n, struct turns by)
{
    const int64_t j = i + head.of->n_pairs;
    block a = load_normal(form, HALVES, head, i, n);
    block b = load_normal(form, HALVES, head, j, n);
    rotate_vectors(&a.lo, &b.lo, by.c.lo, by.s.lo);
    rotate_vectors(&a.hi, &b.hi, by.c.hi, by.s.hi);
    store_turned(form, HALVES, head, i, n, a);
    store_turned(form, HALVES, head, j, n, b);
}

/* Elements [i, i + n), at most a block, of pairs (x[2j], x[2j + 1]). */
INLINE void rotate_gptj(struct form form, struct head head, int64_t i,
                        int64_t n, vfloat c, vfloat s)
{
    block a = load_normal(form, PAIRS, head, i, n);
    rotate_vectors(&a.lo, &a.hi, c, s);
    store_turned(form, PAIRS, head, i, n, a);
}

/* Pairs [i, i + n) of a head. */
INLINE void rotate_block(struct form form, struct head head, int64_t i,
                         int64_t n, struct turns by)
{
    if (form.style == ROPE_NEOX) {
        rotate_neox(form, head, i, n, by);
        return;
    }
    const int64_t n_low = 2 * n < BLOCK ? 2 * n : BLOCK;
    rotate_gptj(form, head, 2 * i, n_low, by.c.lo, by.s.lo);
    if (n_low < 2 * n)
        rotate_gptj(form, head, 2 * i + BLOCK, 2 * n - BLOCK, by.c.hi, by.s.hi);
}

/* Heads [first, end), and of each pairs from i on: one block or two. Their
 * angles stay in registers. */
INLINE void rotate_blocks(struct form form, const struct rotation *r,
                          int n_blocks, int64_t i, int64_t first, int64_t end)
{
    const int64_t last = i + (n_blocks - 1) * BLOCK;
    const struct turns by[2] = {{load32(r->c + i), load32(r->s + i)},
                                {load32(r->c + last), load32(r->s + last)}};
    for (int64_t j = first; j < end; j++) {
        const struct head head = head_at(form, r, j);
        if (form.is_streamed)
            prefetch_ahead(form.from, head.x, r->heads.from_pitch);
        rotate_block(form, head, i, BLOCK, by[0]);
        if (n_blocks == 2)
            rotate_block(form, head, last, BLOCK, by[1]);
    }
}

/* The last pairs of a head, less than a block: GCC 13 takes their number for
 * one that may be negative where it is a difference. */
INLINE void rotate_last(struct form form, const struct rotation *r,
                        struct head head)
{
    const int64_t n = (int64_t)((uint64_t)r->n % BLOCK), i = r->n - n;
    form.is_streamed = false;
    rotate_block(
        form, head, i, n,
        (struct turns){load32_part(r->c + i, n), load32_part(r->s + i, n)});
}

/* Heads [first, end), two blocks of each in turn: angles are loaded once. */
INLINE void rotate_group(struct form form, const struct rotation *r,
                         int64_t first, int64_t end)
{
    int64_t i = 0;
    for (; i + 2 * BLOCK <= r->n; i += 2 * BLOCK)
        rotate_blocks(form, r, 2, i, first, end);
    if (i + BLOCK <= r->n) {
        rotate_blocks(form, r, 1, i, first, end);
        i += BLOCK;
    }
    if (i < r->n)
        for (int64_t j = first; j < end; j++)
            rotate_last(form, r, head_at(form, r, j));
}

/* Some heads, and the next: what is read and written stays close together. */
INLINE void rotate_groups(struct form form, const struct rotation *r)
{
    enum { GROUP = 8 };
    const int64_t n = r->heads.n_heads;
    for (int64_t j = 0; j < n; j += GROUP)
        rotate_group(form, r, j, j + GROUP < n ? j + GROUP : n);
}

INLINE void rotate_long(struct form form, const struct rotation *r)
{
    for (int64_t j = 0; j < r->heads.n_heads; j++) {
        const struct head head = head_at(form, r, j);
        int64_t i = 0;
        for (; i + BLOCK <= r->n; i += BLOCK)
            rotate_block(form, head, i, BLOCK,
                         (struct turns){load32(r->c + i), load32(r->s + i)});
        if (i < r->n)
            rotate_last(form, r, head);
    }
}

INLINE void rotate_form(struct form form, const struct rotation *r)
{
    struct rotation token = *r; /* which no store can change */
    for (int64_t left = r->heads.n_more; left >= 0; left--) {
        if (UNROLLS)
            rotate_groups(form, &token);
        else if (token.n == BLOCK)
            rotate_blocks(form, &token, 1, 0, 0, token.heads.n_heads);
        else if (token.n == 2 * BLOCK)
            rotate_blocks(form, &token, 2, 0, 0, token.heads.n_heads);
        else
            rotate_long(form, &token);
        token.from = at(form.from, token.from, token.heads.more_from);
        token.to = place(form.to, token.to, token.heads.more_to);
        token.c += token.n;
        token.s += token.n;
        if (form.is_normal)
            token.heads.s += token.heads.n_heads;
    }
}

INLINE void rotate_style(struct form form, const struct rotation *r)
{
    form.is_streamed = r->is_streamed;
    rotate_form(form, r);
}

_Static_assert(ROPE_N_STYLES == 2, "rotate_heads, cpu_rotate, can_stream");

INLINE void rotate_heads(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r)
{
    const bool is_normal = (from == to || size_of(to) == 1) && r->heads.s;
    if (r->heads.style == ROPE_GPTJ && is_normal)
        rotate_style((struct form){from, to, ROPE_GPTJ, false, true}, r);
    else if (r->heads.style == ROPE_GPTJ)
        rotate_style((struct form){from, to, ROPE_GPTJ, false, false}, r);
    else if (is_normal)
        rotate_style((struct form){from, to, ROPE_NEOX, false, true}, r);
    else
        rotate_style((struct form){from, to, ROPE_NEOX, false, false}, r);
}

INSTANCES(rotate_heads, rotation)

/* Elements [first, end) of every head, which do not rotate. */
struct rest {
    const struct cpu_heads *heads;
    void *to;
    const void *from;
    int64_t first, end;
};

INLINE void normalize_rest(enum roped_dtype from, enum roped_dtype to,
                           const struct rest *r)
{
    const struct form form = {from, to, ROPE_NEOX, false, true};
    const struct cpu_heads *heads = r->heads;
    for (int64_t j = 0; j < heads->n_heads; j++) {
        const struct head head = {
            heads, at(from, r->from, j * heads->from_pitch),
            place(to, r->to, j * heads->to_pitch), heads->weight, heads->s[j]};
        for (int64_t i = r->first; i < r->end; i += BLOCK) {
            const int64_t n = r->end - i < BLOCK ? r->end - i : BLOCK;
            store_turned(form, HALVES, head, i, n,
                         load_normal(form, HALVES, head, i, n));
        }
    }
}

INSTANCES(normalize_rest, rest)

static void write_rest(const struct cpu_heads *heads, void *to,
                       const void *from, int64_t first, int64_t end)
{
    const struct rest r = {heads, to, from, first, end};
    const struct cpu_conversion how = {heads->from, heads->to, heads->scale,
                                       heads->is_streamed};
    if (heads->s) {
        CALL_INSTANCE(heads->from, heads->to, normalize_rest, &r)
        return;
    }
    for (int64_t i = 0; i < heads->n_heads && first < end; i++) {
        void *y = place(heads->to, to, i * heads->to_pitch + first);
        const void *x = at(heads->from, from, i * heads->from_pitch + first);
        ISA(cpu_convert)(&how, y, x, end - first);
    }
}

/* Of all tokens: before and behind what rotates. */
static void write_rests(const struct cpu_heads *heads, void *to,
                        const void *from)
{
    struct cpu_heads token = *heads;
    for (int64_t i = 0; i <= heads->n_more; i++) {
        void *y = place(heads->to, to, i * heads->more_to);
        const void *x = at(heads->from, from, i * heads->more_from);
        write_rest(&token, y, x, 0, token.first);
        write_rest(&token, y, x, token.first + 2 * token.n_pairs, token.width);
        if (token.s)
            token.s += token.n_heads;
    }
}

/*
 * Do whole blocks at aligned addresses cover the pairs? Blocks of FP8 are less
 * than what heads are aligned to: the second half may begin between.
 */
static bool can_stream(const struct cpu_heads *heads, const void *to,
                       int64_t first, int64_t n)
{
    enum roped_dtype dtype = heads->to;
    return n % BLOCK == 0 && is_aligned(dtype, to, first) &&
           (heads->n_pairs % BLOCK == 0 && size_of(dtype) == 1
                ? is_aligned(dtype, NULL, 2 * heads->n_pairs)
                : is_aligned(dtype, to, first + heads->n_pairs)) &&
           is_aligned(dtype, to, first + heads->to_pitch) &&
           (heads->n_more == 0 ||
            is_aligned(dtype, to, first + heads->more_to));
}

void ISA(cpu_rotate)(const struct cpu_heads *heads, void *to, const void *from,
                     const struct cpu_pairs *pairs)
{
    int64_t n = pairs->n;
    int64_t first =
        heads->first + (heads->style == ROPE_GPTJ ? 2 : 1) * pairs->first;
    const struct rotation r = {
        .heads = *heads,
        .to = place(heads->to, to, first),
        .from = at(heads->from, from, first),
        .c = pairs->c,
        .s = pairs->s,
        .weight = heads->s ? heads->weight + first : NULL,
        .n = n,
        .is_streamed = heads->is_streamed && can_stream(heads, to, first, n)};
    CALL_INSTANCE(heads->from, heads->to, rotate_heads, &r)
    if (pairs->first == 0 && heads->width > 2 * heads->n_pairs)
        write_rests(heads, to, from);
}
