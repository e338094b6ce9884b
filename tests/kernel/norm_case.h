/*
 * norm_case.h - one random call of any operator whose inputs are rows of one
 * width, such as a norm, run and judged.
 */
#ifndef ROPED_TESTS_NORM_CASE_H
#define ROPED_TESTS_NORM_CASE_H

#include "kernel/random.h"
#include "kernel/runner.h"

struct norm_case {
    const char *op;
    enum roped_dtype x, weight; /* weight ROPED_NO_DTYPE: absent */
    int64_t rows, hidden;
    double scale;        /* of the values */
    const char *params;  /* "a=1&b=2", or NULL */
    const char *without; /* (optional) an input that is left out */
    struct runner_options options;
};

/* Types of x and weight that go together; the first three are one type. */
enum { NORM_TYPE_PAIRS = 10 };
extern const enum roped_dtype norm_type_pairs[NORM_TYPE_PAIRS][2];

/*
 * Fills call with random tensors (case_free) and the parameters, resolved.
 * Ends the program where that is refused.
 */
void norm_case_build(struct roped_call *call, struct random_source *source,
                     const struct norm_case *c);

/* The same tensors, which it shares, with the parameters of c. */
void norm_case_again(struct roped_call *call, const struct roped_call *made,
                     const struct norm_case *c);

/* Builds, runs and judges; of quick tests a fifth. */
void norm_case_run(struct runner *runner, struct random_source *source,
                   const struct norm_case *c);

#endif
