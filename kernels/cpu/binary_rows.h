/*
 * binary_rows.h - the inner loops of binary_backward on the CPU, over blocks
 * of float32 that fit the first-level cache. One table of functions per
 * instruction set.
 */
#ifndef ROPED_CPU_BINARY_ROWS_H
#define ROPED_CPU_BINARY_ROWS_H

#include <stddef.h>
#include <stdint.h>

struct cpu_binary_rows {
    /*
     * to[i] = term of one operand's gradient (ops/binary_backward.h). side is
     * BINARY_IN_A or BINARY_IN_B; a and b are not read by add and sub.
     */
    void (*terms)(int function, int side, float *to, const float *g,
                  const float *a, const float *b, int64_t n);

    /* sum[i] += x[i] */
    void (*add)(double *sum, const float *x, int64_t n);

    /* sum[r] += x[r][0] + ... + x[r][columns - 1], in a fixed order */
    void (*add_row_sums)(double *sum, const float *x, int64_t rows,
                         int64_t columns);

    /*
     * Copies to memory that nobody reads soon, past the caches where the
     * processor can; stream_end makes such copies visible to other threads.
     */
    void (*stream)(void *to, const void *from, size_t bytes);
    void (*stream_end)(void);
};

/* The best table for this processor; static memory. */
const struct cpu_binary_rows *cpu_binary_rows_select(void);

#endif
