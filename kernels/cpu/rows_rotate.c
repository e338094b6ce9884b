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

/* What a loop over heads is made for. */
struct form {
    bool is_gptj, is_streamed, is_normal;
};

/* Where a head's pairs are: in memory, and what normalises them. */
struct head {
    const void *x;
    void *y;
    const float *weight;
    float s;
};

/* Elements [i, i + n) of a head, normalised where they are to be. */
INLINE block load_normal(enum roped_dtype from, enum order order,
                         const struct cpu_heads *heads, struct head head,
                         int64_t i, int64_t n, bool is_normal)
{
    block v = load(from, order, at(from, head.x, i), n);
    if (!is_normal)
        return v;
    v = times(v, splat(head.s));
    if (heads->rounds_product)
        v = round_to(from, v);
    return product(v, load(ROPED_F32, order, head.weight + i, n));
}

/* (a, b) by an angle each: a * c - b * s and b * c + a * s. */
INLINE void rotate_vectors(vfloat *a, vfloat *b, vfloat c, vfloat s)
{
    const vfloat x = *a, y = *b;
    *a = difference_of_products(x, c, y, s);
    *b = multiply_add(y, c, x * s);
}

INLINE struct head head_at(enum roped_dtype from, enum roped_dtype to,
                           const struct rotation *r, int64_t i, bool is_normal)
{
    return (struct head){at(from, r->from, i * r->heads.from_pitch),
                         place(to, r->to, i * r->heads.to_pitch), r->weight,
                         is_normal ? r->heads.s[i] : 1};
}

/* Pairs (x[i], x[i + second]). */
INLINE void rotate_neox(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, struct head head, int64_t i,
                        block c, block s, int64_t n, struct form form)
{
    const int64_t j = i + r->heads.n_pairs;
    block a = load_normal(from, HALVES, &r->heads, head, i, n, form.is_normal);
    block b = load_normal(from, HALVES, &r->heads, head, j, n, form.is_normal);
    rotate_vectors(&a.lo, &b.lo, c.lo, s.lo);
    rotate_vectors(&a.hi, &b.hi, c.hi, s.hi);
    store(to, HALVES, place(to, head.y, i), a, r->heads.scale, n,
          form.is_streamed);
    store(to, HALVES, place(to, head.y, j), b, r->heads.scale, n,
          form.is_streamed);
}

/* Elements [i, i + n), at most a block, of pairs (x[2j], x[2j + 1]). */
INLINE void rotate_gptj(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, struct head head, int64_t i,
                        vfloat c, vfloat s, int64_t n, struct form form)
{
    block a = load_normal(from, PAIRS, &r->heads, head, i, n, form.is_normal);
    rotate_vectors(&a.lo, &a.hi, c, s);
    store(to, PAIRS, place(to, head.y, i), a, r->heads.scale, n,
          form.is_streamed);
}

/* Pairs [i, i + n) of a head. */
INLINE void rotate_block(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, struct head head, int64_t i,
                         block c, block s, int64_t n, struct form form)
{
    if (!form.is_gptj) {
        rotate_neox(from, to, r, head, i, c, s, n, form);
        return;
    }
    const int64_t n_low = 2 * n < BLOCK ? 2 * n : BLOCK;
    rotate_gptj(from, to, r, head, 2 * i, c.lo, s.lo, n_low, form);
    if (n_low < 2 * n)
        rotate_gptj(from, to, r, head, 2 * i + BLOCK, c.hi, s.hi, 2 * n - BLOCK,
                    form);
}

/* Heads of one block or two: their angles stay in registers. */
INLINE void rotate_short(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, int n_blocks,
                         struct form form)
{
    const int64_t last = (n_blocks - 1) * BLOCK;
    const block c[2] = {load32(r->c), load32(r->c + last)};
    const block s[2] = {load32(r->s), load32(r->s + last)};
    for (int64_t i = 0; i < r->heads.n_heads; i++) {
        const struct head head = head_at(from, to, r, i, form.is_normal);
        if (form.is_streamed)
            prefetch_ahead(from, head.x, r->heads.from_pitch);
        rotate_block(from, to, r, head, 0, c[0], s[0], BLOCK, form);
        if (n_blocks == 2)
            rotate_block(from, to, r, head, BLOCK, c[1], s[1], BLOCK, form);
    }
}

INLINE void rotate_long(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, struct form form)
{
    struct form rest = form;
    rest.is_streamed = false;
    for (int64_t j = 0; j < r->heads.n_heads; j++) {
        const struct head head = head_at(from, to, r, j, form.is_normal);
        int64_t i = 0;
        for (; i + BLOCK <= r->n; i += BLOCK)
            rotate_block(from, to, r, head, i, load32(r->c + i),
                         load32(r->s + i), BLOCK, form);
        if (i < r->n)
            rotate_block(from, to, r, head, i, load32_part(r->c + i, r->n - i),
                         load32_part(r->s + i, r->n - i), r->n - i, rest);
    }
}

INLINE void rotate_form(enum roped_dtype from, enum roped_dtype to,
                        const struct rotation *r, struct form form)
{
    struct rotation token = *r; /* which no store can change */
    for (int64_t left = r->heads.n_more; left >= 0; left--) {
        if (token.n == BLOCK)
            rotate_short(from, to, &token, 1, form);
        else if (token.n == 2 * BLOCK)
            rotate_short(from, to, &token, 2, form);
        else
            rotate_long(from, to, &token, form);
        token.from = at(from, token.from, token.heads.more_from);
        token.to = place(to, token.to, token.heads.more_to);
        token.c += token.n;
        token.s += token.n;
        if (form.is_normal)
            token.heads.s += token.heads.n_heads;
    }
}

INLINE void rotate_style(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r, bool is_gptj, bool is_normal)
{
    if (r->is_streamed)
        rotate_form(from, to, r, (struct form){is_gptj, true, is_normal});
    else
        rotate_form(from, to, r, (struct form){is_gptj, false, is_normal});
}

INLINE void rotate_heads(enum roped_dtype from, enum roped_dtype to,
                         const struct rotation *r)
{
    const bool is_normal = (from == to || size_of(to) == 1) && r->heads.s;
    if (r->heads.is_gptj && is_normal)
        rotate_style(from, to, r, true, true);
    else if (r->heads.is_gptj)
        rotate_style(from, to, r, true, false);
    else if (is_normal)
        rotate_style(from, to, r, false, true);
    else
        rotate_style(from, to, r, false, false);
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
    const struct cpu_heads *heads = r->heads;
    for (int64_t j = 0; j < heads->n_heads; j++) {
        const struct head head = {at(from, r->from, j * heads->from_pitch),
                                  place(to, r->to, j * heads->to_pitch),
                                  heads->weight, heads->s[j]};
        for (int64_t i = r->first; i < r->end; i += BLOCK) {
            const int64_t n = r->end - i < BLOCK ? r->end - i : BLOCK;
            block v = load_normal(from, HALVES, heads, head, i, n, true);
            store(to, HALVES, place(to, head.y, i), v, heads->scale, n, false);
        }
    }
}

INSTANCES(normalize_rest, rest)

static void write_rest(const struct cpu_heads *heads, void *to,
                       const void *from, int64_t first, int64_t end)
{
    const struct rest r = {heads, to, from, first, end};
    if (heads->s) {
        CALL_INSTANCE(heads->from, heads->to, normalize_rest, &r)
    } else
        for (int64_t i = 0; i < heads->n_heads && first < end; i++)
            ISA(cpu_convert)
    (heads->to, place(heads->to, to, i * heads->to_pitch + first), heads->from,
     at(heads->from, from, i * heads->from_pitch + first), heads->scale,
     end - first, heads->is_streamed);
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
                     int64_t first_pair, int64_t n, const float *c,
                     const float *s)
{
    int64_t first = heads->first + (heads->is_gptj ? 2 : 1) * first_pair;
    const struct rotation r = {
        .heads = *heads,
        .to = place(heads->to, to, first),
        .from = at(heads->from, from, first),
        .c = c,
        .s = s,
        .weight = heads->s ? heads->weight + first : NULL,
        .n = n,
        .is_streamed = heads->is_streamed && can_stream(heads, to, first, n)};
    CALL_INSTANCE(heads->from, heads->to, rotate_heads, &r)
    if (first_pair == 0 && heads->width > 2 * heads->n_pairs)
        write_rests(heads, to, from);
}
