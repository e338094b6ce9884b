/*
 * heads_case.c - q and k in the forms of rope.
 */
#include "kernel/heads_case.h"

#include <stdio.h>

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

void case_int_param(struct roped_call *call, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    case_param(call, name, text);
}

enum roped_dtype heads_case_weight(struct random_source *source,
                                   const struct heads_case *c)
{
    enum roped_dtype q = c->rotary.dtype;
    switch (random_int(source, 0, 3)) {
    case 0:
        return ROPED_NO_DTYPE;
    case 1:
        return q;
    default:
        return q == ROPED_F32 ? types[random_int(source, 1, 2)] : ROPED_F32;
    }
}

void heads_case_bind(struct roped_call *call, struct random_source *source,
                     const struct heads_case *c, const char *name,
                     int64_t heads)
{
    int64_t n = c->rotary.n_tokens;
    int64_t dims[3] = {n, heads, c->d};
    int rank = 3;
    if (c->form == PACKED) {
        dims[1] = heads * c->d;
        rank = 2;
    } else if (c->form == BATCHES) {
        dims[0] = n ? 3 : 0; /* n is a multiple of 3 here */
        dims[1] = n ? n / 3 : 5;
    }
    struct roped_tensor tensor =
        case_tensor(source, c->rotary.dtype, rank, dims, 2);
    case_bind(call, name, &tensor);
}

void heads_case_build(struct roped_call *call, struct random_source *source,
                      const char *op, const struct heads_case *c)
{
    roped_call_init(call, roped_op_find(op));
    heads_case_bind(call, source, c, "q", c->hq);
    if (c->hk)
        heads_case_bind(call, source, c, "k", c->hk);
    if (c->form == PACKED)
        case_int_param(call, "head_dim", c->d);
    if (c->form == BATCHES)
        case_param(call, "layout", "bsd");
    if (c->r != c->d)
        case_int_param(call, "rotary_dim", c->r);
    if (c->first)
        case_int_param(call, "rotary_offset", c->first);
    if (c->is_gptj)
        case_param(call, "style", "gptj");
    if (c->is_inverse)
        case_param(call, "inverse", "true");
    case_bind_angles(call, source, &c->rotary);
}

const char *heads_case_text(const struct heads_case *c, char *text,
                            size_t bytes)
{
    snprintf(text, bytes,
             "%s n %lld hq %lld hk %lld d %lld r %lld first %lld form %d "
             "gptj %d inverse %d positions %d angles %d largest %lld padding "
             "in %d",
             roped_dtype_name(c->rotary.dtype), (long long)c->rotary.n_tokens,
             (long long)c->hq, (long long)c->hk, (long long)c->d,
             (long long)c->r, (long long)c->first, c->form, c->is_gptj,
             c->is_inverse, c->rotary.positions, c->rotary.angles,
             (long long)c->rotary.largest_position, c->rotary.padding_in);
    return text;
}

/* Position modes and angle sources that go together. */
static void pick_angles(struct heads_case *c, struct random_source *source)
{
    struct rotary_case *rotary = &c->rotary;
    rotary->n_pairs = c->r / 2;
    rotary->largest_position =
        random_once_in(source, 3) ? 5000 : rotary->n_tokens + 40;
    rotary->positions =
        (enum case_positions)random_int(source, 0, CASE_POSITIONS - 1);
    rotary->angles = (enum case_angles)random_int(source, 0, CASE_ANGLES - 1);
    rotary->padding_in = random_once_in(source, 4) ? 3 : 0;
    if (c->form == BATCHES)
        rotary->positions %= CASE_RAGGED_I32;
    rotary->positions =
        case_positions_beside(rotary->angles, rotary->positions);
}

struct heads_case heads_case_random(struct random_source *source,
                                    int64_t min_hk)
{
    static const int64_t tokens[] = {0, 1, 2, 3, 6, 15, 33, 63, 129};
    static const int64_t widths[] = {2,   4,   6,   16,  30,  40,  48,
                                     64,  72,  80,  96,  100, 112, 128,
                                     160, 192, 256, 320, 512, 1024};
    static const int64_t heads[] = {1, 2, 3, 5, 8, 32};
    static const int64_t key_heads[] = {0, 0, 1, 2, 8};
    struct heads_case c = {.d = random_pick(source, widths, 20),
                           .hq = random_pick(source, heads, 6),
                           .hk = random_pick(source, key_heads, 5)};
    c.hk = c.hk < min_hk ? min_hk : c.hk;
    c.form = random_int(source, 0, 5) > 3 ? BATCHES : HEADS;
    if (c.form == HEADS && random_once_in(source, 4))
        c.form = PACKED;
    if (c.form == BATCHES)
        c.hq = 1, c.hk = c.hk ? 1 : 0;
    c.r = c.d;
    if (random_once_in(source, 3))
        c.r = 2 * random_int(source, 1, c.d / 2);
    if (c.r < c.d && random_once_in(source, 3))
        c.first = random_int(source, 0, c.d - c.r);
    c.is_gptj = random_once_in(source, 2);
    c.is_inverse = random_once_in(source, 5);
    c.rotary.dtype = types[random_int(source, 0, 2)];
    c.rotary.n_tokens = random_pick(source, tokens, 9);
    if (c.form == BATCHES)
        c.rotary.n_tokens -= c.rotary.n_tokens % 3;
    pick_angles(&c, source);
    return c;
}
