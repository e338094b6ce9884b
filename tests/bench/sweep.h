/*
 * sweep.h - what `bench_ops --sweep` measures: many shapes of an operator, most
 * of which nobody has tuned it for.
 */
#ifndef ROPED_TESTS_BENCH_SWEEP_H
#define ROPED_TESTS_BENCH_SWEEP_H

#include "bench/rows.h"

/*
 * Row i of gradients: shapes of models first, then random ones that follow from
 * the seed. False past the last. The row's name and shapes stand in memory that
 * the next call overwrites.
 */
bool sweep_backward(int i, uint64_t seed, struct bench_row *row);

#endif
