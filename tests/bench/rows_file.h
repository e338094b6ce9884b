/*
 * rows_file.h - rows of bench_ops from a file, for shapes that are in none of
 * its tables.
 */
#ifndef ROPED_TESTS_BENCH_ROWS_FILE_H
#define ROPED_TESTS_BENCH_ROWS_FILE_H

#include "bench/rows.h"

#include <stdbool.h>
#include <stdio.h>

typedef void rows_file_fn(void *context, const struct bench_row *row);

/* One line: a row, which ends with its newline or with more members. */
void rows_file_write_row(FILE *file, const struct bench_row *row);

/*
 * The file has lines as `bench_ops --list --json` writes them, and as bench_ops
 * --json does, whose further members are passed over. "row", "op", "dtype" and
 * "sizes" must be there. Calls visit for each line, whose row lives until it
 * returns. False after a line into errors that says which line lacks what.
 */
bool rows_file_read(const char *path, rows_file_fn *visit, void *context,
                    FILE *errors);

#endif
