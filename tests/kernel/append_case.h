/*
 * append_case.h - random calls of the operators that rotate heads of q and k.
 * Of those that put k and v into a KV cache: slots or pages, either order of
 * heads and entries, the type of q or FP8, MLA's one cache. Of those that
 * normalise first: weights of every type. What an operator has no tensor for is
 * left out.
 */
#ifndef ROPED_TESTS_APPEND_CASE_H
#define ROPED_TESTS_APPEND_CASE_H

#include "kernel/heads_case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

enum append_places {
    PLACES_SLOTS,       /* [slots, hk, d] */
    PLACES_PAGED_SLOTS, /* slots of a cache with pages */
    PLACES_PAGES,
    PLACES_KINDS
};

struct append_case {
    struct heads_case heads; /* hk 0: MLA, and p is the latent width */
    int64_t p;
    int64_t page_size;
    enum append_places places;
    enum roped_dtype cache; /* ROPED_NO_DTYPE: that of q */
    int none_in; /* one token in this many has no place; 0: all have */
    bool is_wide, is_hnd, is_e5m2, returns_k; /* is_e5m2: of U8 caches */
    const char *scale_k, *scale_v;            /* of FP8; NULL: not given */
    bool is_tensor;                           /* scales are tensors */
    enum roped_dtype weight;                  /* of a norm; none */
    bool is_hf, is_gemma;
    struct runner_options options;
};

/* Any of these for op, with the forms of rope. */
struct append_case append_case_random(struct random_source *source,
                                      const char *op);

/* A call of op: q, k, v, caches of any bits, places, weights, angles. */
void append_case_build(struct roped_call *call, struct random_source *source,
                       const char *op, const struct append_case *c);

/* Resolves, runs and judges a call that has been built, and frees it. */
void append_case_run(struct roped_call *call, struct runner *runner,
                     const struct append_case *c);

#endif
