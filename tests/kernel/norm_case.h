/*
 * norm_case.h - one random call of any norm operator, run and judged; builds
 * and repeats calls of any operator whose inputs are rows of one width.
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

/* The same call on rows [first, first + n) of its tensors, which it shares. */
void norm_case_rows(struct roped_call *call, const struct roped_call *all,
                    const struct norm_case *c, int64_t first, int64_t n);

/* The same call on many rows, those of few again and again, in memory of its
 * own (case_free). */
void norm_case_repeat(struct roped_call *call, const struct roped_call *few,
                      const struct norm_case *c, int64_t rows);

/* Builds, runs and judges; of quick tests a fifth. */
void norm_case_run(struct runner *runner, struct random_source *source,
                   const struct norm_case *c);

#endif
