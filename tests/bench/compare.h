/*
 * compare.h - `bench_ops compare`: did any operator become slower between two
 * runs of `bench_ops --json`, by more than those runs disagree with
 * themselves?
 */
#ifndef ROPED_TESTS_BENCH_COMPARE_H
#define ROPED_TESTS_BENCH_COMPARE_H

#include <stdio.h>

/*
 * Each path is a file of JSON lines as bench_ops writes them; several runs may
 * follow each other in it. Rows are matched by name and backend, and judged by
 * their time relative to the copy of the same run, t = us / copy_us: the
 * machine's mood is in both. A row is slower where
 *
 *     t_new > t_old * (1 + 3 * noise + 0.02)
 *
 * noise is that of the two sides added in quadrature. A side of one run has
 * sqrt(spread^2 + copy_spread^2) and its t; a side of several has
 * (largest t - smallest t) / median t and the median. The 0.02 stands for what
 * neither sees: clocks, placement of buffers.
 *
 * Writes a table into table and errors into errors. Returns the exit status: 0
 * where no row is slower, 1 where one is, 2 where a file cannot be read, a line
 * is not one of bench_ops's (the error has its number and what was expected) or
 * no row is in both. Rows of one side alone are listed and fail nothing.
 */
int compare_files(const char *old_path, const char *new_path, FILE *table,
                  FILE *errors);

#endif
