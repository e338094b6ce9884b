/*
 * chain_internal.h - what the files that make up a run of a program share.
 */
#ifndef ROPED_CORE_CHAIN_INTERNAL_H
#define ROPED_CORE_CHAIN_INTERNAL_H

#include "core/program_internal.h"

/* A value or place: its tensor, and where it is. */
struct chain_name {
    struct roped_tensor tensor; /* data NULL */
    struct roped_area area;     /* of a place */
    int piece;                  /* -1: none yet */
    uint64_t offset;            /* in that */
};

struct chain_input {
    struct roped_tensor tensor;
    struct roped_area area;
    int piece;
};

struct chain_into {
    struct roped_area area;
    int64_t stride;
};

/* Where a tensor of a step is. */
struct chain_use {
    int piece;
    uint64_t offset;
};

/* What a chain was given when it was resolved last. */
enum { CHAIN_PARAM_BYTES = 1024 };
struct chain_before {
    bool is_resolved; /* else the rest says nothing */
    bool is_trusting;
    char param[CHAIN_PARAM_BYTES];
    struct chain_input input[ROPED_PROGRAM_INPUTS];
    struct chain_into into[ROPED_PROGRAM_OUTPUTS];
};
struct chain_set_before {
    const struct roped_angle_set *at;
    struct roped_angle_set set;
};

struct roped_chain {
    const struct roped_program *program;
    bool is_trusting;
    int n_pieces, n_active;
    uint64_t arena_bytes, moved_bytes;
    size_t aux_bytes;
    const char *param[ROPED_PROGRAM_PARAMS];
    struct chain_input input[ROPED_PROGRAM_INPUTS];
    struct chain_into into[ROPED_PROGRAM_OUTPUTS];

    /* behind it */
    struct roped_call *call;            /* of each step */
    struct chain_name *name;            /* as the program's */
    struct chain_use *use;              /* as the program's refs */
    const struct roped_angle_set **set; /* as the program's tables */
    size_t *aux_at;                     /* of each step */
    struct roped_piece *piece;
    int *active; /* pieces of the arena that are in use, by offset */
    struct chain_before *before;
    struct chain_name *place_before;     /* as the program's places */
    struct chain_set_before *set_before; /* as its tables */
};

/* What a parameter of the program is in this run; NULL: nobody has said. */
const char *chain_value(const struct roped_chain *chain, int param,
                        struct roped_error *err);

/* Are all inputs there, and as the program declares them? */
ROPED_MUST_CHECK enum roped_status
chain_check_inputs(const struct roped_chain *chain, struct roped_error *err);

/* Is it given what it was given when it was resolved last? Then that holds. And
 * after it was resolved: what that is. */
bool chain_is_as_before(struct roped_chain *chain);
void chain_note(struct roped_chain *chain);

#endif
