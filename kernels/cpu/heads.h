/*
 * heads.h - what loops over tokens do with the heads of one: rotate them,
 * normalised before where that is asked for, or take them as they are.
 */
#ifndef ROPED_CPU_HEADS_H
#define ROPED_CPU_HEADS_H

#include "cpu/cpu_internal.h"

/* The token that a loop is at, and the pairs whose cos and sin are at hand:
 * heads of up to one block of pairs find them once per token. */
struct cpu_token {
    const struct cpu_angles *angles;
    int64_t index, first; /* first -1: none yet */
    float c[CPU_PAIRS], s[CPU_PAIRS];
};

/* The loop is at this token now. */
static inline void cpu_token_set(struct cpu_token *token, int64_t index)
{
    token->index = index;
    token->first = -1;
}

/*
 * Rotates all n_heads of a token. Where heads have a weight, they are
 * normalised first, with eps, and are next to each other in from: up to
 * CPU_ROWS of them are read for their sums before any is written.
 */
void cpu_heads_rotate(struct cpu_token *token, const struct cpu_heads *heads,
                      float eps, void *to, const void *from);

/* The same heads as they are, or scaled and rounded. */
void cpu_heads_copy(const struct cpu_rows *rows, const struct cpu_heads *heads,
                    void *to, const void *from);

#endif
