/*
 * rows.h - what bench_ops measures: a table of named calls at model shapes.
 */
#ifndef ROPED_TESTS_BENCH_ROWS_H
#define ROPED_TESTS_BENCH_ROWS_H

#include <roped/op.h>

enum bench_angles { BENCH_TABLE, BENCH_COMPUTE };

/* Dims in which the b of binary_backward is broadcast; added up. */
enum { BENCH_OUTER = 1, BENCH_MIDDLE = 2, BENCH_INNER = 4, BENCH_ALL = 7 };

/* Shapes of a and b, of one rank. */
struct bench_pair {
    int rank;
    int64_t a[5], b[5];
};

struct bench_row {
    const char *name;
    const char *op;
    enum roped_dtype dtype;
    int64_t n;          /* tokens or rows */
    int64_t a, b, c, d; /* rope: hq, hk, d, tokens per sequence (0: explicit
                           positions); rope_quantize: hq, hk, r, p;
                           MLA: hk 0;
                           norms: h; binary_backward: n x a x b is the
                           shape of a, c the dims in which b is 1 */
    bool is_gptj;
    enum bench_angles angles;
    double goal;             /* share of the copy to reach; 0: none stated */
    const char *param[2][2]; /* further parameters: name, value */
    int64_t of; /* elements of the rows that inputs are slices of; 0: packed */
    const struct bench_pair *pair; /* binary_backward: instead of n to c */
};

extern const struct bench_row bench_rows[];
extern const int bench_n_rows;

/* Builds the call of a row with random inputs (heap, case_free). Resolved. */
void bench_build(struct roped_call *call, const struct bench_row *row);

/* Bytes that one pass must read and write: of caches, what is written. */
int64_t bench_bytes(const struct roped_call *call);

#endif
