/*
 * case.c - tensors and parameters of a call.
 */
#include "kernel/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct roped_tensor case_tensor(struct random_source *source,
                                enum roped_dtype dtype, int rank,
                                const int64_t *dims, double scale)
{
    struct roped_tensor tensor = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        tensor.dims[i] = dims[i];
    tensor.data = runner_alloc((size_t)roped_tensor_bytes(&tensor));
    if (ROPED_SET(dtype) & ROPED_FLOATS)
        random_fill(source, &tensor, scale, true);
    return tensor;
}

static void stop(const char *what, const struct roped_error *err)
{
    fprintf(stderr, "%s was refused: %s\n", what, err->text);
    exit(EXIT_FAILURE);
}

struct roped_tensor case_repeat(const struct roped_tensor *few, int64_t n)
{
    struct roped_tensor out = *few;
    size_t few_bytes = (size_t)roped_tensor_bytes(few);
    out.dims[0] = n;
    size_t bytes = (size_t)roped_tensor_bytes(&out);
    out.data = runner_alloc(bytes);
    for (size_t at = 0; at < bytes; at += few_bytes)
        memcpy((char *)out.data + at, few->data,
               bytes - at < few_bytes ? bytes - at : few_bytes);
    return out;
}

int64_t case_wrong_row(const struct roped_tensor *many,
                       const struct roped_tensor *few)
{
    size_t row = (size_t)(roped_tensor_bytes(few) / few->dims[0]);
    for (int64_t i = 0; i < many->dims[0]; i++)
        if (memcmp((char *)many->data + (size_t)i * row,
                   (char *)few->data + (size_t)(i % few->dims[0]) * row,
                   row) != 0)
            return i;
    return -1;
}

void case_bind(struct roped_call *call, const char *name,
               const struct roped_tensor *tensor)
{
    struct roped_error err;
    if (roped_call_bind(call, name, tensor, &err))
        stop(name, &err);
}

void case_param(struct roped_call *call, const char *name, const char *text)
{
    struct roped_error err;
    if (roped_call_set_text(call, name, text, &err))
        stop(name, &err);
}

void case_params(struct roped_call *call, const char *params)
{
    char text[256], *next = text;
    snprintf(text, sizeof text, "%s", params ? params : "");
    while (*next) {
        char *name = next, *value = strchr(name, '=');
        next += strcspn(next, "&");
        if (*next)
            *next++ = '\0';
        *value = '\0';
        case_param(call, name, value + 1);
    }
}

void case_set_int(const struct roped_tensor *tensor, int64_t i, int64_t value)
{
    if (tensor->dtype == ROPED_I32)
        ((int32_t *)tensor->data)[i] = (int32_t)value;
    else
        ((int64_t *)tensor->data)[i] = value;
}

/* Of the input that has most. */
static int64_t most_tokens(const struct roped_call *call)
{
    int64_t most = 0;
    for (int i = 0; i < call->n_in; i++) {
        if (!roped_tensor_given(&call->in[i]) ||
            !(call->op->in[i].flags & ROPED_STRIDED))
            continue;
        int64_t tokens = roped_tensor_tokens(&call->in[i]);
        most = tokens > most ? tokens : most;
    }
    return most;
}

void case_strides(struct random_source *source, const struct roped_call *call,
                  struct runner_options *options)
{
    static const int64_t gaps[] = {0, 1, 3, 8, 16, 72, 4096};
    enum { MOST_BETWEEN = 1 << 23 }; /* elements, or memory would not do */
    options->has_strides = random_once_in(source, 3);
    const int64_t gap = random_pick(source, gaps, 7);
    options->gap = gap * most_tokens(call) > MOST_BETWEEN ? 8 : (int)gap;
    options->is_fused = random_once_in(source, 2);
    options->packs_outputs = random_once_in(source, 2);
}

void case_free(struct roped_call *call)
{
    for (int i = 0; i < ROPED_MAX_INPUTS; i++) {
        free(call->in[i].data);
        call->in[i].data = NULL;
    }
}
