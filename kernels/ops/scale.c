/*
 * scale.c - a scale, from a parameter or a tensor.
 */
#include "ops/scale.h"

#include <string.h>

enum roped_status scale_plan(const struct roped_call *call, int port,
                             double param, float *out, struct roped_error *err)
{
    const char *name = call->op->in[port].name;
    *out = (float)param;
    if (!roped_tensor_given(&call->in[port]))
        return ROPED_OK;
    if (!call->host_values)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': on the device, expected the parameter "
                          "or a value on the host",
                          name);
    memcpy(out, call->in[port].data, sizeof *out);
    return ROPED_OK;
}
