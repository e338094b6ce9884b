/*
 * kserve_raw.c - v2 requests without JSON: the body is the one input, of the
 * type and shape that the metadata states, its one variable dim as large as
 * the body says. A curl away; what needs more than that needs the JSON.
 */
#include "wire/kserve.h"
#include "wire/kserve_meta.h"

#include <stddef.h>
#include <string.h>

/* The one input that must be given, or -1. */
static int only_input(const struct roped_op *op, struct roped_error *err)
{
    int port = -1, n = 0;
    for (int i = 0; i < roped_op_inputs(op); i++) {
        if (op->in[i].flags & ROPED_OPTIONAL)
            continue;
        port = i;
        n++;
    }
    if (n == 1)
        return port;
    roped_fail(err, ROPED_INVALID,
               "Raw request must only have 1 input (found 1) to be deduced but "
               "got %d inputs in '%s' model configuration",
               n, op->name);
    return -1;
}

/* The stated dims, a pack left out; *variable is the one that the body sets,
 * or -1; *fixed the product of the others. */
static enum roped_status deduce_dims(const struct roped_port *port,
                                     struct roped_tensor *tensor, int *variable,
                                     int64_t *fixed, struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    enum roped_status status = roped_port_pattern(port, 0, &pattern, err);
    *variable = -1;
    *fixed = 1;
    for (int i = 0; i < pattern.count && !status; i++) {
        const struct roped_dim_pattern *dim = &pattern.dim[i];
        if (dim->is_pack)
            continue;
        if (dim->name[0] && *variable >= 0)
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "The shape of the raw input '%s' can not be "
                              "deduced because there are more than one "
                              "variable-sized dimension",
                              port->name);
        if (dim->name[0])
            *variable = tensor->rank;
        else
            *fixed *= dim->size;
        tensor->dims[tensor->rank++] = dim->size;
    }
    return status;
}

enum roped_status kserve_read_raw(struct roped_call *call, void *data,
                                  uint64_t bytes, struct kserve_request *out,
                                  struct roped_error *err)
{
    struct roped_tensor tensor = {.data = data};
    int variable, port = only_input(call->op, err);
    int64_t fixed;
    memset(out, 0, offsetof(struct kserve_request, regions));
    out->regions.n = 0;
    out->binary_output = true;
    out->binary_bytes = bytes;
    if (port < 0)
        return err->status;
    const struct roped_port *input = &call->op->in[port];
    enum roped_status status =
        deduce_dims(input, &tensor, &variable, &fixed, err);
    if (status)
        return status;
    tensor.dtype = kserve_stated_type(call->op, input);
    uint64_t unit = (uint64_t)fixed * roped_dtype_bytes(tensor.dtype);
    if (variable >= 0)
        tensor.dims[variable] = (int64_t)(bytes / unit);
    if (variable >= 0 ? bytes % unit != 0 : bytes != unit)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "input byte size mismatch for input '%s' for model "
                          "'%s'. Expected %s%llu, got %llu",
                          input->name, call->op->name,
                          variable >= 0 ? "a multiple of " : "",
                          (unsigned long long)unit, (unsigned long long)bytes);
    return roped_call_bind(call, input->name, &tensor, err);
}
