/*
 * rotary_case.h - random positions and angles for any rotary operator: every
 * way in which a client can state them.
 */
#ifndef ROPED_TESTS_ROTARY_CASE_H
#define ROPED_TESTS_ROTARY_CASE_H

#include "kernel/random.h"
#include "kernel/runner.h"

#include <roped/op.h>

enum case_positions {
    CASE_IMPLICIT,
    CASE_I32,
    CASE_I64,
    CASE_RAGGED_I32,
    CASE_RAGGED_I64,
    CASE_MROPE,
    CASE_MROPE_INTERLEAVED,
    CASE_POSITIONS
};

enum case_angles {
    CASE_COMPUTED, /* from parameters, on the fly */
    CASE_COMPUTED_F64,
    CASE_TABLE,     /* from parameters, resident table */
    CASE_CACHE_F32, /* cos_sin_cache in the request */
    CASE_CACHE_F16,
    CASE_CACHE_BF16,
    CASE_PAIR,   /* cos and sin in the request, F32 */
    CASE_PAIR_T, /* the same in the type of q */
    CASE_ANGLES
};

struct rotary_case {
    enum case_positions positions;
    enum case_angles angles;
    enum roped_dtype dtype; /* of q: for CASE_PAIR_T */
    int64_t n_tokens;
    int64_t n_pairs;
    int64_t largest_position;
    int padding_in; /* of a positions tensor one token in this many has -1 */
};

/* A tensor in new memory with random values. */
struct roped_tensor case_tensor(struct random_source *source,
                                enum roped_dtype dtype, int rank,
                                const int64_t *dims, double scale);

/* n rows in new memory, those of few again and again; and the first of many
 * that is not as in few, or -1. */
struct roped_tensor case_repeat(const struct roped_tensor *few, int64_t n);
int64_t case_wrong_row(const struct roped_tensor *many,
                       const struct roped_tensor *few);

/* Binds a tensor, counting a failed check where it is refused. */
void case_bind(struct roped_call *call, const char *name,
               const struct roped_tensor *tensor);

/* Sets element i of an I32 or I64 tensor. */
void case_set_int(const struct roped_tensor *tensor, int64_t i, int64_t value);

/* Sets a parameter from text, likewise. */
void case_param(struct roped_call *call, const char *name, const char *text);

/* Those of "a=1&b=2", if it is not NULL. */
void case_params(struct roped_call *call, const char *params);

/* Positions of this mode, or of one that goes with the angles: sections have
 * no meaning beside cos and sin. */
enum case_positions case_positions_beside(enum case_angles angles,
                                          enum case_positions positions);

/* Sets a scale: a parameter, or a tensor of one value. */
void case_scale(struct roped_call *call, struct random_source *source,
                const char *name, const char *text, bool is_tensor);

/* Steps, of any kind, for one call in three. */
void case_strides(struct random_source *source, struct runner_options *options);

/* Binds positions and angles and sets parameters; memory is freed by
 * case_free. */
void case_bind_angles(struct roped_call *call, struct random_source *source,
                      const struct rotary_case *c);

/* Frees the data of every input. */
void case_free(struct roped_call *call);

#endif
