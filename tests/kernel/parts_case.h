/*
 * parts_case.h - random heads in two parts, one that rotates and one that does
 * not, on their way to FP8: with a paged cache or without.
 */
#ifndef ROPED_TESTS_PARTS_CASE_H
#define ROPED_TESTS_PARTS_CASE_H

#include "kernel/rotary_case.h"
#include "kernel/runner.h"

struct parts_case {
    struct rotary_case rotary;
    int64_t hq, hk, r, p; /* hk 0: MLA form */
    double scale;         /* of the values */
    const char *scale_q, *scale_k;
    bool is_tensor; /* scales are tensors */
    bool is_gptj, is_e5m2, has_non_finite;
    struct runner_options options;
};

/* Shapes of models, with a type and a number of tokens for each t < 3. */
enum { PARTS_MODELS = 10 };
struct parts_case parts_case_model(int model, int t, bool is_gptj);

/* Any widths, scales that saturate, any positions and angles. */
struct parts_case parts_case_random(struct random_source *source);

/* A tensor [n, heads, width], or [n, width] where heads is 0. */
void parts_case_bind(struct roped_call *call, struct random_source *source,
                     const struct parts_case *c, const char *name,
                     int64_t heads, int64_t width);

/* The parts of q and k, their scales, the style and the angles. */
void parts_case_build(struct roped_call *call, struct random_source *source,
                      const struct parts_case *c);

/* What a failure says of the case. */
const char *parts_case_text(const struct parts_case *c, char *out,
                            size_t out_bytes);

#endif
