/*
 * rows.h - what bench_ops measures: a table of named calls at model shapes.
 */
#ifndef ROPED_TESTS_BENCH_ROWS_H
#define ROPED_TESTS_BENCH_ROWS_H

#include <roped/op.h>

/* Sizes are those of the descriptor's symbols, of packs as "o=16,1024,4096". */
struct bench_row {
    const char *name;
    const char *op;
    enum roped_dtype dtype;
    const char *sizes;  /* "n=4 hq=32 hk=8 d=128" */
    const char *inputs; /* of the optional ones, those to give: "k v" */
    const char *params; /* "a=1&b=2", or NULL */
    double goal;        /* share of the copy to reach; 0: none stated */
    int64_t of;         /* elements of the rows that inputs are slices of; 0:
                           packed */
    enum roped_dtype cache; /* of updated inputs; none: dtype, or FP8 */
};

extern const struct bench_row bench_rows[];
extern const int bench_n_rows;

/* The call of a row, without values. A row that is no call ends the program
 * with a line that says why. */
void bench_resolve(struct roped_call *call, const struct bench_row *row);

/* The same with random inputs (heap, case_free). */
void bench_build(struct roped_call *call, const struct bench_row *row);

/* Bytes that one pass must read and write: of caches, what is written. */
int64_t bench_bytes(const struct roped_call *call);

#endif
