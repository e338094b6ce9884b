/*
 * binary_rows.h - the inner loops of binary_backward on the CPU. One table of
 * functions per instruction set, that cpu_rows points at. A loop that streamed
 * ends with cpu_rows's fence().
 */
#ifndef ROPED_CPU_BINARY_ROWS_H
#define ROPED_CPU_BINARY_ROWS_H

#include <roped/dtype.h>

#include <stdbool.h>
#include <stdint.h>

/* Most columns of a sweep: their sums fit the second-level cache. Narrower
 * parts of a row than that cost more than they save: each is a new place to
 * read from. */
enum { CPU_BINARY_SUMS = 8192 };

/* What the loops over a call's memory are made for. */
struct cpu_binary {
    int32_t function; /* enum binary_function */
    enum roped_dtype dtype;
    bool sums_a;      /* a is the summed operand, b the full one */
    bool is_inverse;  /* the divisor's values are, of sums alone */
    bool is_streamed; /* gradients are too large for the caches: past them */
};

/* n elements where nothing is broadcast; a and b are not read by add and sub.
 */
struct cpu_elements {
    const void *g, *a, *b;
    void *grad_a, *grad_b;
    int64_t n;
};

/* rows x width elements, where one operand is full (x) and the other summed (y,
 * widened); x and y are not read by add and sub. */
struct cpu_sweep {
    const void *g, *x;
    void *grad_x;
    const float *y;
    double *sum;
    int64_t rows, width;
    int64_t stride; /* elements from one row to the next */
};

/* rows x width elements, where both are broadcast. */
struct cpu_wide {
    const void *g, *x; /* x of the operand that is not summed */
    int64_t rows, width;
    int64_t stride, x_stride; /* elements from one row to the next */
    const float *values;      /* instead of x, or NULL: see below */
    const float *y;           /* where that is a divisor: one for each sum */
    double *sum;
    bool is_begun; /* sums are added to */
};

/* Where both operands are broadcast, and what is made of sums. */
struct cpu_binary_sum_rows {
    /* sum[column] becomes the terms of the summed operand's gradient, or where
     * it is begun is added to; values[row] is one for all columns. sum has room
     * for width rounded up to CPU_LANES. */
    void (*wide_columns)(const struct cpu_binary *binary,
                         const struct cpu_wide *wide);

    /* The same of sum[row]; values[column] is one for all rows. */
    void (*wide_rows)(const struct cpu_binary *binary,
                      const struct cpu_wide *wide);

    /* Each of n runs of elements, so many times. It reads and writes up to
     * CPU_LANES behind a run: the next one replaces that. to may be from. */
    void (*repeat)(float *to, const float *from, int64_t n, int64_t times,
                   int64_t run);

    /* x[i] of a divisor becomes 1 / x[i], or -1 / x[i]^2 where squared. false:
     * not all of them are normal numbers, and x is as it was. */
    bool (*invert)(float *x, int64_t n, bool squared);

    /* term[i] becomes, or where it is begun is added, the term of the summed
     * operand's gradient, a and b spread over g and widened; that operand's own
     * values are read where it is a divisor. term has room for n rounded up to
     * CPU_LANES. */
    void (*add_terms)(const struct cpu_binary *binary, float *term,
                      bool is_begun, const void *g, const float *a,
                      const float *b, int64_t n);

    /* sum[i] becomes term[i], or where it is begun is added to it. */
    void (*add_floats)(double *sum, bool is_begun, const float *term,
                       int64_t n);

    /* x is [outer][n][inner], sum becomes [outer][inner]: the sums over n, in a
     * fixed order. x and sum have room for CPU_LANES more. */
    void (*fold_floats)(double *sum, const float *x, int64_t outer, int64_t n,
                        int64_t inner);

    /* The nearest floats. */
    void (*round_sums)(float *to, const double *sum, int64_t n);

    /* fold_floats of doubles; x becomes the sums. */
    void (*fold)(double *x, int64_t outer, int64_t n, int64_t inner);
};

struct cpu_binary_rows {
    /* Both gradients. */
    void (*elementwise)(const struct cpu_binary *binary,
                        const struct cpu_elements *elements);

    /* Writes the full gradient, and adds the terms of the other, of each column
     * to sum[column]. y[column] likewise. */
    void (*sweep_columns)(const struct cpu_binary *binary,
                          const struct cpu_sweep *sweep);

    /* The same of packed rows, with one y and one sum for each. */
    void (*sweep_rows)(const struct cpu_binary *binary,
                       const struct cpu_sweep *sweep);

    const struct cpu_binary_sum_rows *sums;
};

#endif
