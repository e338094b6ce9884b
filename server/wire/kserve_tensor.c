/*
 * kserve_tensor.c - datatype and shape of an input.
 */
#include "wire/kserve_tensor.h"

#include <stdio.h>
#include <string.h>

#define MOST_EXACT 9007199254740991.0 /* 2^53 - 1, of whole JSON numbers */

/* A dim beyond 2^53 is not exact any more; it is let through, to be refused
 * for the size of the tensor, in the words that clients expect. */
static bool read_dim(struct json_reader *reader, int64_t *out)
{
    const struct json_reader start = *reader;
    double value = -1;
    uint64_t size;
    if (json_read_size(reader, &size)) {
        *out = (int64_t)size;
        return true;
    }
    if (json_read_number(reader, &value) && value > MOST_EXACT &&
        value < 0x1p63) {
        *out = (int64_t)value;
        return true;
    }
    *reader = start;
    return false;
}

/* Can there be such a tensor at all? */
static enum roped_status check_size(const struct roped_tensor *tensor,
                                    const char *name, struct roped_error *err)
{
    int64_t n_elements, n_bytes;
    enum roped_status status =
        roped_tensor_size(tensor, name, &n_elements, &n_bytes, err);
    for (int i = 0; i < tensor->rank && !status; i++)
        if (tensor->dims[i] > (int64_t)MOST_EXACT)
            status = roped_fail(err, ROPED_BAD_SHAPE,
                                "tensor '%s': dim %d is %lld, expected less "
                                "than 2^53",
                                name, i, (long long)tensor->dims[i]);
    return status;
}

static enum roped_status read_shape(struct json_reader *shape, const char *name,
                                    struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    char found[64];
    int rank = 0;
    if (json_kind(shape) != JSON_ARRAY)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "Unable to parse 'shape' of input '%s': %s, expected "
                          "an array of dims",
                          name, json_describe(shape, found, sizeof found));
    json_open(shape);
    for (; json_next(shape); rank++) {
        int64_t dim;
        if (!read_dim(shape, &dim))
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "tensor '%s': dim %d is %s, expected an integer "
                              "of 0 or more",
                              name, rank,
                              json_describe(shape, found, sizeof found));
        if (rank < ROPED_MAX_RANK)
            tensor->dims[rank] = dim;
    }
    if (rank > ROPED_MAX_RANK)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': rank %d, expected at most %d", name,
                          rank, ROPED_MAX_RANK);
    tensor->rank = rank;
    return ROPED_OK;
}

/* "FP32, FP16, BF16": the v2 names of a set. */
static const char *v2_names(uint32_t set, char *text, size_t text_bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = ROPED_DTYPE_COUNT - 1; i > 0 && at < text_bytes; i--)
        if (set & ROPED_SET(i))
            at += (size_t)snprintf(text + at, text_bytes - at, "%s%s",
                                   at ? ", " : "",
                                   roped_dtype_v2_name((enum roped_dtype)i));
    return text;
}

static enum roped_status read_datatype(const struct signature *signature,
                                       int port,
                                       const struct json_reader *datatype,
                                       struct roped_tensor *tensor,
                                       struct roped_error *err)
{
    char found[33], expected[96];
    const char *name = signature_tensor(signature, false, port);
    uint32_t types = signature_types(signature, port);
    struct json_reader reader = *datatype;
    struct json_string string;
    if (!json_read_string(&reader, &string))
        return roped_fail(err, ROPED_BAD_TYPE,
                          "Unable to parse 'datatype' of input '%s'", name);
    if (json_copy(&string, found, sizeof found) < sizeof found)
        tensor->dtype = roped_dtype_from_v2_name(found, strlen(found));
    if (!tensor->dtype)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "invalid datatype for input %s: '%s', expected %s",
                          name, found,
                          v2_names(types, expected, sizeof expected));
    if (!(types & ROPED_SET(tensor->dtype)))
        return roped_fail(err, ROPED_BAD_TYPE,
                          "inference input '%s' data-type is '%s', but model "
                          "'%s' expects '%s'",
                          name, found, signature->name,
                          v2_names(types, expected, sizeof expected));
    return ROPED_OK;
}

enum roped_status kserve_read_tensor(const struct signature *signature,
                                     int port,
                                     const struct json_reader *datatype,
                                     struct json_reader *shape,
                                     struct roped_tensor *tensor,
                                     struct roped_error *err)
{
    const char *name = signature_tensor(signature, false, port);
    enum roped_status status =
        read_datatype(signature, port, datatype, tensor, err);
    if (!status)
        status = read_shape(shape, name, tensor, err);
    return status ? status : check_size(tensor, name, err);
}
