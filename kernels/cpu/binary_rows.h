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
    bool sums_a;      /* sweeps: a is the summed operand, b the full one */
    bool is_streamed; /* gradients are too large for the caches: past them */
};

struct cpu_binary_rows {
    /* Both gradients of n elements, nothing broadcast. */
    void (*elementwise)(const struct cpu_binary *binary, const void *g,
                        const void *a, const void *b, void *grad_a,
                        void *grad_b, int64_t n);

    /*
     * Where one operand is full (x) and the other summed (y, widened): writes
     * the full gradient of rows x width elements, stride apart, and adds the
     * terms of the other, of each column to sum[column]. y[column] likewise.
     * x and y are not read by add and sub.
     */
    void (*sweep_columns)(const struct cpu_binary *binary, const void *g,
                          const void *x, void *grad_x, const float *y,
                          double *sum, int64_t rows, int64_t width,
                          int64_t stride);

    /* The same of packed rows, with one y and one sum for each. */
    void (*sweep_rows)(const struct cpu_binary *binary, const void *g,
                       const void *x, void *grad_x, const float *y, double *sum,
                       int64_t rows, int64_t width);

    /*
     * to[i] = term of one operand's gradient, of values widened already. side
     * is BINARY_IN_A or BINARY_IN_B.
     */
    void (*terms)(int function, int side, float *to, const float *g,
                  const float *a, const float *b, int64_t n);

    /* sum[i] += x[i] */
    void (*add)(double *sum, const float *x, int64_t n);

    /* sum[r] += x[r][0] + ... + x[r][width - 1], in a fixed order */
    void (*add_row_sums)(double *sum, const float *x, int64_t rows,
                         int64_t width);
};

#endif
