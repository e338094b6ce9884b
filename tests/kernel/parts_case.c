/*
 * parts_case.c - building such calls.
 */
#include "kernel/parts_case.h"

#include <math.h>
#include <stdio.h>

static const enum roped_dtype types[] = {ROPED_F16, ROPED_BF16, ROPED_F32};

struct parts_case parts_case_model(int model, int t, bool is_gptj)
{
    static const int64_t shapes[PARTS_MODELS][4] = {
        /* hq, hk, r, p */
        {128, 0, 64, 512},  {64, 0, 128, 256}, {32, 0, 32, 96}, {32, 8, 64, 64},
        {64, 16, 128, 128}, {24, 6, 32, 96},   {32, 8, 128, 0}, {64, 8, 64, 0},
        {16, 16, 128, 128}, {8, 8, 32, 96}};
    static const int64_t tokens[] = {1, 19, 67};
    const int64_t *shape = shapes[model];
    struct parts_case c = {
        .hq = shape[0],
        .hk = shape[1],
        .r = shape[2],
        .p = shape[3],
        .scale = 1,
        .scale_q = "0.75",
        .scale_k = "3",
        .is_gptj = is_gptj,
        .rotary = {.positions = CASE_I32,
                   .angles = (enum case_angles)((model + t + is_gptj) %
                                                CASE_CACHE_F16),
                   .dtype = types[t],
                   .n_tokens = tokens[(model + t) % 3],
                   .n_pairs = shape[2] / 2,
                   .largest_position = 4000}};
    c.options.use_table = c.rotary.angles == CASE_TABLE;
    return c;
}

struct parts_case parts_case_random(struct random_source *source)
{
    static const int64_t widths[] = {2,  6,  16, 30,  40, 48,
                                     64, 80, 96, 112, 128};
    static const int64_t nope[] = {0, 1, 7, 16, 33, 64, 96, 128, 200, 512};
    static const int64_t tokens[] = {0, 1, 2, 5, 19, 64};
    static const double scales[] = {0.001, 1, 100, 40000};
    struct parts_case c = {
        .hq = random_int(source, 1, 9),
        .hk = random_int(source, 0, 4),
        .r = random_pick(source, widths, 11),
        .p = random_pick(source, nope, 10),
        .scale = scales[random_int(source, 0, 3)],
        .scale_q = random_once_in(source, 2) ? "1" : "0.0371",
        .scale_k = random_once_in(source, 2) ? "2" : "17.3",
        .is_tensor = random_once_in(source, 2),
        .is_gptj = random_once_in(source, 2),
        .is_e5m2 = random_once_in(source, 2),
        .has_non_finite = random_once_in(source, 3),
        .rotary = {
            .positions =
                (enum case_positions)random_int(source, 0, CASE_POSITIONS - 1),
            .angles = (enum case_angles)random_int(source, 0, CASE_ANGLES - 1),
            .dtype = types[random_int(source, 0, 2)],
            .n_tokens = random_pick(source, tokens, 6),
            .padding_in = random_once_in(source, 4) ? 3 : 0}};
    c.rotary.n_pairs = c.r / 2;
    c.rotary.largest_position = c.rotary.n_tokens + 100;
    c.rotary.positions =
        case_positions_beside(c.rotary.angles, c.rotary.positions);
    c.options.use_table = c.rotary.angles == CASE_TABLE;
    c.options.misalign_elements = random_once_in(source, 4) ? 1 : 0;
    case_strides(source, &c.options);
    return c;
}

void parts_case_bind(struct roped_call *call, struct random_source *source,
                     const struct parts_case *c, const char *name,
                     int64_t heads, int64_t width)
{
    int64_t dims[3] = {c->rotary.n_tokens, heads ? heads : width, width};
    struct roped_tensor tensor =
        case_tensor(source, c->rotary.dtype, heads ? 3 : 2, dims, c->scale);
    int64_t n = roped_tensor_elements(&tensor);
    if (c->has_non_finite && c->rotary.dtype == ROPED_F32 && n > 3) {
        ((float *)tensor.data)[0] = NAN;
        ((float *)tensor.data)[1] = -INFINITY;
        ((float *)tensor.data)[n - 1] = -NAN;
        ((float *)tensor.data)[n - 2] = INFINITY;
    } else if (c->has_non_finite && n > 3) {
        ((uint16_t *)tensor.data)[0] = 0x7FFF; /* NaN in both types */
        ((uint16_t *)tensor.data)[n - 1] = 0xFFFF;
    }
    case_bind(call, name, &tensor);
}

void parts_case_build(struct roped_call *call, struct random_source *source,
                      const struct parts_case *c)
{
    struct parts_case finite = *c;
    finite.has_non_finite = false; /* NaN times a pair is NaN twice */
    parts_case_bind(call, source, &finite, "q_rope", c->hq, c->r);
    parts_case_bind(call, source, &finite, "k_rope", c->hk, c->r);
    if (c->p) {
        parts_case_bind(call, source, c, "q_nope", c->hq, c->p);
        parts_case_bind(call, source, c, "k_nope", c->hk, c->p);
    }
    case_scale(call, source, "scale_q", c->scale_q, c->is_tensor);
    case_scale(call, source, "scale_k", c->scale_k, c->is_tensor);
    if (c->is_gptj)
        case_param(call, "style", "gptj");
    case_bind_angles(call, source, &c->rotary);
}

const char *parts_case_text(const struct parts_case *c, char *out,
                            size_t out_bytes)
{
    char how[160];
    snprintf(out, out_bytes,
             "%s n %lld hq %lld hk %lld r %lld p %lld gptj %d e5m2 %d scale %g "
             "positions %d angles %d %s",
             roped_dtype_name(c->rotary.dtype), (long long)c->rotary.n_tokens,
             (long long)c->hq, (long long)c->hk, (long long)c->r,
             (long long)c->p, c->is_gptj, c->is_e5m2, c->scale,
             c->rotary.positions, c->rotary.angles,
             runner_options_text(&c->options, how, sizeof how));
    return out;
}
