/*
 * tensor.c - shapes: their size with every product checked, and as text.
 */
#include <roped/tensor.h>

#include <stdio.h>

enum roped_status roped_tensor_size(const struct roped_tensor *tensor,
                                    const char *name, int64_t *n_elements,
                                    int64_t *n_bytes, struct roped_error *err)
{
    int64_t n = 1, bytes;
    bool is_empty = false, has_overflowed = false;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] < 0)
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "tensor '%s': dim %d is %lld, expected 0 or more",
                              name, i, (long long)tensor->dims[i]);
        is_empty |= tensor->dims[i] == 0;
        has_overflowed |= __builtin_mul_overflow(n, tensor->dims[i], &n);
    }
    if (is_empty)
        n = 0; /* whatever the other dims are: nothing is addressed */
    else if (has_overflowed)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': its shape causes total element count "
                          "to exceed maximum size of 2^63 - 1",
                          name);
    if (__builtin_mul_overflow(n, (int64_t)roped_dtype_bytes(tensor->dtype),
                               &bytes))
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "byte size overflow for input '%s'", name);
    *n_elements = n;
    *n_bytes = bytes;
    return ROPED_OK;
}

/* Of dims [first, end), without overflow where one of them is 0. */
static int64_t product(const struct roped_tensor *tensor, int first, int end)
{
    int64_t n = 1;
    for (int i = first; i < end; i++)
        if (tensor->dims[i] == 0)
            return 0;
    for (int i = first; i < end; i++)
        n *= tensor->dims[i];
    return n;
}

int64_t roped_tensor_elements(const struct roped_tensor *tensor)
{
    return product(tensor, 0, tensor->rank);
}

int64_t roped_tensor_bytes(const struct roped_tensor *tensor)
{
    return roped_tensor_elements(tensor) *
           (int64_t)roped_dtype_bytes(tensor->dtype);
}

int64_t roped_tensor_tokens(const struct roped_tensor *tensor)
{
    return product(tensor, 0, tensor->stride_dims);
}

int64_t roped_tensor_token(const struct roped_tensor *tensor)
{
    return product(tensor, tensor->stride_dims, tensor->rank);
}

int64_t roped_tensor_span(const struct roped_tensor *tensor)
{
    int64_t element_bytes = (int64_t)roped_dtype_bytes(tensor->dtype);
    if (tensor->stride == 0 || roped_tensor_elements(tensor) == 0)
        return roped_tensor_bytes(tensor);
    return ((roped_tensor_tokens(tensor) - 1) * tensor->stride +
            roped_tensor_token(tensor)) *
           element_bytes;
}

const char *roped_shape_text(const int64_t *dims, int rank, char *text,
                             size_t text_bytes)
{
    size_t at = (size_t)snprintf(text, text_bytes, "[");
    for (int i = 0; i < rank && at < text_bytes; i++)
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%lld",
                               i ? ", " : "", (long long)dims[i]);
    if (at < text_bytes)
        snprintf(text + at, text_bytes - at, "]");
    return text;
}
