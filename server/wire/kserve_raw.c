/*
 * kserve_raw.c - v2 requests without JSON: the body is the one input, of the
 * type and shape that the metadata states, its one variable dim as large as
 * the body says. A curl away; what needs more than that needs the JSON.
 */
#include "wire/kserve.h"

#include <stddef.h>
#include <string.h>

/* The one input that must be given, or -1. */
static int only_input(const struct signature *signature,
                      struct roped_error *err)
{
    int port = -1, n = 0;
    for (int i = 0; i < signature_count(signature, false); i++) {
        if (signature_is_optional(signature, i))
            continue;
        port = i;
        n++;
    }
    if (n == 1)
        return port;
    roped_fail(err, ROPED_INVALID,
               "Raw request must only have 1 input (found 1) to be deduced but "
               "got %d inputs in '%s' model configuration",
               n, signature->name);
    return -1;
}

/* The stated dims, a pack left out; *variable is the one that the body sets,
 * or -1; *fixed the product of the others. */
static enum roped_status deduce_dims(const struct signature_tensor *stated,
                                     struct roped_tensor *tensor, int *variable,
                                     int64_t *fixed, struct roped_error *err)
{
    *variable = -1;
    *fixed = 1;
    for (int i = 0; i < stated->rank; i++) {
        bool is_variable = stated->dims[i] < 0;
        if (stated->packs >> i & 1)
            continue;
        if (is_variable && *variable >= 0)
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "The shape of the raw input '%s' can not be "
                              "deduced because there are more than one "
                              "variable-sized dimension",
                              stated->name);
        if (is_variable)
            *variable = tensor->rank;
        else
            *fixed *= stated->dims[i];
        tensor->dims[tensor->rank++] = stated->dims[i];
    }
    return ROPED_OK;
}

enum roped_status kserve_read_raw(const struct signature *signature, void *data,
                                  uint64_t bytes, struct kserve_request *out,
                                  struct roped_error *err)
{
    struct roped_tensor tensor = {.data = data};
    struct signature_tensor stated;
    int variable, port = only_input(signature, err);
    int64_t fixed;
    memset(out, 0, offsetof(struct kserve_request, regions));
    out->regions.n = 0;
    out->texts.bytes = 0;
    out->binary_output = true;
    out->binary_bytes = bytes;
    if (port < 0)
        return err->status;
    signature_describe(signature, false, port, &stated);
    enum roped_status status =
        deduce_dims(&stated, &tensor, &variable, &fixed, err);
    if (status)
        return status;
    tensor.dtype = stated.dtype;
    uint64_t unit = (uint64_t)fixed * roped_dtype_bytes(tensor.dtype);
    bool is_whole = unit ? bytes % unit == 0 : bytes == 0;
    if (variable >= 0)
        tensor.dims[variable] = unit ? (int64_t)(bytes / unit) : 0;
    if (variable >= 0 ? !is_whole : bytes != unit)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "input byte size mismatch for input '%s' for model "
                          "'%s'. Expected %s%llu, got %llu",
                          stated.name, signature->name,
                          variable >= 0 ? "a multiple of " : "",
                          (unsigned long long)unit, (unsigned long long)bytes);
    return signature_bind(signature, stated.name, &tensor, err);
}
