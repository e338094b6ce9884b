/*
 * bench_tensors.h - made-up tensors for any operator, from its descriptor and
 * from sizes of its dim symbols.
 */
#ifndef ROPED_CLIENT_BENCH_TENSORS_H
#define ROPED_CLIENT_BENCH_TENSORS_H

#include "ropectl.h"

/* "hq=32", or "rows=8,128" for '...rows'. */
struct bench_size {
    char symbol[16];
    int rank;
    int64_t dims[ROPED_MAX_RANK];
};
struct bench_sizes {
    int n;
    struct bench_size size[ROPED_MAX_DIMS];
};

/*
 * Reads SYMBOL=SIZE, a dim symbol of op, with 1 and more elements. EXIT_SUCCESS
 * or EXIT_USAGE after saying what is wrong.
 */
int bench_size_add(const char *command, struct bench_sizes *sizes,
                   const struct roped_op *op, const char *argument);

/* The setter of --dtype, f32, f16 or bf16; false: it is none of these. */
bool bench_dtype_read(const char *text, enum roped_dtype *dtype);

/*
 * Makes the tensors of a call, whose parameters are set: of the first form
 * that has all the symbols of sizes and whose shapes and rule the operator
 * accepts. *file, to be freed, is a safetensors file of them.
 */
ROPED_MUST_CHECK enum roped_status
bench_tensors_make(const struct roped_call *call, enum roped_dtype dtype,
                   const struct bench_sizes *sizes, void **file,
                   size_t *file_bytes, struct roped_error *err);

#endif
