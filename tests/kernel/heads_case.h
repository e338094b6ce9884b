/*
 * heads_case.h - random q and k in the forms of rope, for every operator that
 * takes them: shapes, pair style, rotated part, positions and angles.
 */
#ifndef ROPED_TESTS_HEADS_CASE_H
#define ROPED_TESTS_HEADS_CASE_H

#include "kernel/rotary_case.h"

enum heads_form { HEADS, PACKED, BATCHES };

struct heads_case {
    struct rotary_case rotary;
    int64_t hq, hk, d, r, first; /* first: rotary_offset */
    enum heads_form form;
    bool is_gptj, is_inverse;
};

/* Any form, width, position mode and angle source; at least min_hk keys. */
struct heads_case heads_case_random(struct random_source *source,
                                    int64_t min_hk);

/* A type of a norm's weights that goes with q: none, q's, wider or narrower. */
enum roped_dtype heads_case_weight(struct random_source *source,
                                   const struct heads_case *c);

/* Binds one tensor of heads, as q and k are. */
void heads_case_bind(struct roped_call *call, struct random_source *source,
                     const struct heads_case *c, const char *name,
                     int64_t heads);

/* Starts a call of op: q, k (unless hk is 0), parameters, angles. */
void heads_case_build(struct roped_call *call, struct random_source *source,
                      const char *op, const struct heads_case *c);

/* The case in words. */
const char *heads_case_text(const struct heads_case *c, char *text,
                            size_t bytes);

/* Sets an integer parameter. */
void case_int_param(struct roped_call *call, const char *name, int64_t value);

#endif
