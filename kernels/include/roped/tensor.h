/*
 * tensor.h - a row-major array and the arithmetic of its shape.
 */
#ifndef ROPED_TENSOR_H
#define ROPED_TENSOR_H

#include <roped/dtype.h>
#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ROPED_MAX_RANK = 8 };

/*
 * Does not own data. dtype ROPED_NO_DTYPE means absent. Data may be at any byte
 * address on the wire; backends ask for the alignment that roped/backend.h
 * states.
 *
 * Data is packed unless stride says otherwise. With a stride, tokens (rows of a
 * norm) are further apart than they are long, because they are slices of wider
 * rows; inside a token data is packed. The leading dims together number the
 * tokens: [b, s, h, d] has b * s of them, each a stride after the one before.
 */
struct roped_tensor {
    enum roped_dtype dtype;
    int rank;
    int64_t dims[ROPED_MAX_RANK]; /* elements */
    void *data;
    int64_t stride;  /* elements from one token to the next; 0: packed */
    int stride_dims; /* leading dims that number tokens, by resolve; 0: none */
};

static inline bool roped_tensor_given(const struct roped_tensor *tensor)
{
    return tensor->dtype != ROPED_NO_DTYPE;
}

/*
 * Elements and bytes of a shape; ROPED_BAD_SHAPE where a dim is negative or a
 * product passes 2^63 - 1. name is the tensor's, for the message.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_tensor_size(const struct roped_tensor *tensor, const char *name,
                  int64_t *n_elements, int64_t *n_bytes,
                  struct roped_error *err);

/* Elements / bytes of a tensor that roped_tensor_size has accepted; what lies
 * between tokens does not count. */
ROPED_API int64_t roped_tensor_elements(const struct roped_tensor *tensor);
ROPED_API int64_t roped_tensor_bytes(const struct roped_tensor *tensor);

/* Tokens of a resolved tensor, the elements of one, and bytes from the first
 * element to behind the last: roped_tensor_bytes where it is packed. */
ROPED_API int64_t roped_tensor_tokens(const struct roped_tensor *tensor);
ROPED_API int64_t roped_tensor_token(const struct roped_tensor *tensor);
ROPED_API int64_t roped_tensor_span(const struct roped_tensor *tensor);

/* Writes "[7, 32, 128]" into text and returns text. */
ROPED_API const char *roped_shape_text(const int64_t *dims, int rank,
                                       char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif
