/*
 * golden.h - a run of a golden file, which the sources of test_golden share.
 */
#ifndef ROPED_TESTS_HTTP_GOLDEN_H
#define ROPED_TESTS_HTTP_GOLDEN_H

#include "http/harness.h"
#include "wire/buffer.h"

/* One run of a file: which inputs go along, with which parameters. */
struct run {
    const struct server *server;
    const char *file_name;
    struct tensor_file inputs, expected, answer;
    struct buffer query, json; /* "a=1&b=2", and v2's parameters */
    const char *op;
    const char *function;                 /* of binary_backward */
    const struct roped_tensor *positions; /* of rope; NULL: angles were given */
    double theta;
    int64_t rotary_dim;
    bool is_gptj;
    enum roped_dtype inputs_dtype; /* of the operator's first input */
};

/* The start of input i in a v2 request: parameters are to follow. */
void golden_write_v2_input(struct buffer *body, const struct run *run, int i);

/*
 * The run's call again through both protocols, every tensor in a region. Fused:
 * inputs that may have a stride are slices of the rows of one. The bits are to
 * be those of run->answer.
 */
void golden_post_in_regions(const struct run *run, bool is_fused);

#endif
