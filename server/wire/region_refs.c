/*
 * region_refs.c - regions in a query string.
 */
#include "wire/region_refs.h"

#include <roped/number.h>

#include <stdio.h>
#include <string.h>

struct region_ref *region_refs_of(struct region_refs *refs, bool is_output,
                                  int port)
{
    for (int i = 0; i < refs->n; i++)
        if (refs->ref[i].is_output == is_output && refs->ref[i].port == port)
            return &refs->ref[i];
    struct region_ref *ref = &refs->ref[refs->n++];
    memset(ref, 0, sizeof *ref);
    ref->is_output = is_output;
    ref->port = port;
    return ref;
}

/* ----------------------------------------------------------------- values */

/* "name" or "name:offset"; what follows the last colon is the offset. */
static enum roped_status read_place(const char *name, const char *value,
                                    struct region_ref *ref,
                                    struct roped_error *err)
{
    const char *colon = strrchr(value, ':');
    size_t length = colon ? (size_t)(colon - value) : strlen(value);
    if (ref->region[0])
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is given twice", name);
    if (length == 0 || length >= sizeof ref->region ||
        (colon && !roped_read_size(colon + 1, &ref->offset)))
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s': '%.64s', expected a region, or "
                          "region:offset with an offset in bytes",
                          name, value);
    memcpy(ref->region, value, length);
    return ROPED_OK;
}

static enum roped_status read_dtype(const char *name, const char *value,
                                    struct region_ref *ref,
                                    struct roped_error *err)
{
    if (ref->tensor.dtype)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is given twice", name);
    ref->tensor.dtype = roped_dtype_from_name(value, strlen(value));
    if (ref->tensor.dtype)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%.64s': '%.32s', expected a type as "
                      "safetensors spells it, like F32 or BF16",
                      name, value);
}

enum roped_status region_refs_read_shape(const char *name, const char *value,
                                         struct roped_tensor *tensor,
                                         struct roped_error *err)
{
    char text[24];
    const char *at = value;
    bool has_more = *value != '\0';
    tensor->rank = 0;
    while (has_more) {
        size_t length = strcspn(at, ",");
        uint64_t dim = 0;
        snprintf(text, sizeof text, "%.*s", (int)length, at);
        if (length >= sizeof text || tensor->rank == ROPED_MAX_RANK ||
            !roped_read_size(text, &dim))
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%.64s': '%.64s', expected at most %d "
                              "dims separated by commas",
                              name, value, ROPED_MAX_RANK);
        tensor->dims[tensor->rank++] = (int64_t)dim;
        has_more = at[length] == ',';
        at += length + has_more;
    }
    return ROPED_OK;
}

static enum roped_status read_shape(const char *name, const char *value,
                                    struct region_ref *ref,
                                    struct roped_error *err)
{
    if (ref->has_shape)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is given twice", name);
    enum roped_status status =
        region_refs_read_shape(name, value, &ref->tensor, err);
    ref->has_shape = status == ROPED_OK;
    return status;
}

static enum roped_status read_stride(const char *name, const char *value,
                                     struct region_ref *ref,
                                     struct roped_error *err)
{
    uint64_t stride = 0;
    if (ref->has_stride)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is given twice", name);
    if (!roped_read_size(value, &stride) || stride == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s': '%.64s', expected elements from "
                          "one token to the next, above 0",
                          name, value);
    ref->has_stride = true;
    ref->tensor.stride = (int64_t)stride;
    return ROPED_OK;
}

/* ------------------------------------------------------------------ names */

typedef enum roped_status read_fn(const char *name, const char *value,
                                  struct region_ref *ref,
                                  struct roped_error *err);

static enum roped_status unknown_tensor(const struct signature *signature,
                                        const char *name, const char *tensor,
                                        bool is_output, struct roped_error *err)
{
    char names[256];
    return roped_fail(
        err, ROPED_UNKNOWN_NAME,
        "parameter '%.64s': unknown tensor '%.64s', %s %s %s", name, tensor,
        signature->op ? signature->op->name : "the program",
        is_output ? "returns" : "takes",
        signature_list(signature, is_output, names, sizeof names));
}

enum roped_status region_refs_read(struct region_refs *refs,
                                   const struct signature *signature,
                                   const char *name, const char *value,
                                   bool *is_region, struct roped_error *err)
{
    static const struct {
        const char *prefix;
        bool is_output;
        read_fn *read;
    } kinds[] = {
        {"from.", false, read_place},    {"into.", true, read_place},
        {"shape.", false, read_shape},   {"dtype.", false, read_dtype},
        {"stride.", false, read_stride}, {"into_stride.", true, read_stride}};
    *is_region = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(name, kinds[i].prefix, length) != 0)
            continue;
        bool is_output = kinds[i].is_output;
        const char *tensor = name + length;
        int port = signature_find(signature, is_output, tensor);
        *is_region = true;
        if (port < 0)
            return unknown_tensor(signature, name, tensor, is_output, err);
        return kinds[i].read(name, value, region_refs_of(refs, is_output, port),
                             err);
    }
    return ROPED_OK;
}

/* --------------------------------------------------------------- together */

enum roped_status region_refs_check(const struct region_ref *ref,
                                    const char *tensor, struct roped_error *err)
{
    if (ref->region[0])
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%s.%s' is given without '%s.%s', which names "
                      "the region",
                      ref->is_output      ? "into_stride"
                      : ref->has_shape    ? "shape"
                      : ref->tensor.dtype ? "dtype"
                                          : "stride",
                      tensor, ref->is_output ? "into" : "from", tensor);
}

enum roped_status region_refs_describe(const struct region_ref *ref,
                                       const char *tensor, const char *region,
                                       const struct roped_tensor *its,
                                       struct roped_tensor *out,
                                       struct roped_error *err)
{
    *out = ref->has_shape ? ref->tensor : *its;
    out->dtype = ref->tensor.dtype ? ref->tensor.dtype : its->dtype;
    out->stride = ref->tensor.stride;
    out->data = NULL; /* known when the job runs */
    if (!out->dtype)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': region '%s' is plain bytes, expected "
                          "'dtype.%s' and 'shape.%s' to say what they are",
                          tensor, region, tensor, tensor);
    if (ref->has_shape || (its->dtype && ref->offset == 0))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu in region '%s', expected "
                      "'shape.%s' to say how much of it is meant",
                      tensor, (unsigned long long)ref->offset, region, tensor);
}
