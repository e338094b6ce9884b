/*
 * sweep.h - what `bench_ops --sweep` measures: many shapes of an operator, most
 * of which nobody has tuned it for.
 */
#ifndef ROPED_TESTS_BENCH_SWEEP_H
#define ROPED_TESTS_BENCH_SWEEP_H

#include "bench/rows.h"

/* The row, whose name and texts stand in memory that the next one overwrites.
 */
typedef void sweep_visit_fn(void *context, const struct bench_row *row);

/* A type as names of rows have it: "bf16". */
const char *sweep_type_name(enum roped_dtype dtype);

/* What has rows, and rotations: shapes of forty models by the number of tokens
 * of a step, a batch and a prompt, then random ones by the seed, in more of the
 * operators' forms; or, if n_random is not 0, so many of these alone. */
void sweep_models(uint64_t seed, int n_random, sweep_visit_fn *visit,
                  void *context);

/* Gradients of binary functions: the same. */
void sweep_backward(uint64_t seed, int n_random, sweep_visit_fn *visit,
                    void *context);

#endif
