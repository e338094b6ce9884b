/*
 * case.h - tensors and parameters of a call that a test makes by hand, and
 * where a runner puts them.
 */
#ifndef ROPED_TESTS_CASE_H
#define ROPED_TESTS_CASE_H

#include "kernel/random.h"
#include "kernel/runner.h"

#include <roped/op.h>

/* A tensor in new memory with random values. */
struct roped_tensor case_tensor(struct random_source *source,
                                enum roped_dtype dtype, int rank,
                                const int64_t *dims, double scale);

/* n rows in new memory, those of few again and again; and the first of many
 * that is not as in few, or -1. */
struct roped_tensor case_repeat(const struct roped_tensor *few, int64_t n);
int64_t case_wrong_row(const struct roped_tensor *many,
                       const struct roped_tensor *few);

/* Binds a tensor, counting a failed check where it is refused. */
void case_bind(struct roped_call *call, const char *name,
               const struct roped_tensor *tensor);

/* Sets element i of an I32 or I64 tensor. */
void case_set_int(const struct roped_tensor *tensor, int64_t i, int64_t value);

/* Sets a parameter from text, likewise. */
void case_param(struct roped_call *call, const char *name, const char *text);

/* Those of "a=1&b=2", if it is not NULL. */
void case_params(struct roped_call *call, const char *params);

/* Steps, of any kind, for one call in three; less far apart where rows are
 * many. */
void case_strides(struct random_source *source, const struct roped_call *call,
                  struct runner_options *options);

/* Frees the data of every input. */
void case_free(struct roped_call *call);

#endif
