/*
 * norm_pair.h - RMS norms with a gate for each row on the CPU backend, and
 * those of heads.
 */
#ifndef ROPED_CPU_NORM_PAIR_H
#define ROPED_CPU_NORM_PAIR_H

#include "cpu/cpu_internal.h"
#include "ops/norm_pair.h"

struct cpu_norm_pair {
    const struct norm_pair_plan *plan;
    const struct roped_tensor *x, *weight, *out;
    const struct roped_tensor *second; /* NULL with NORM_ALONE */
};

ROPED_MUST_CHECK enum roped_status cpu_norm_pair(const struct cpu_norm_pair *of,
                                                 const struct roped_call *call,
                                                 struct roped_queue *queue,
                                                 struct roped_error *err);

#endif
