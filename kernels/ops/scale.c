/*
 * scale.c - a scale, from a parameter or a tensor.
 */
#include "ops/scale.h"

#include <math.h>
#include <string.h>

enum roped_status scale_rule(const struct roped_call *call, int port,
                             struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[port];
    const char *name = call->op->in[port].name;
    if (!roped_tensor_given(tensor))
        return ROPED_OK;
    if (tensor->dims[0] != 1)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim 0 is %lld, expected 1", name,
                          (long long)tensor->dims[0]);
    if (roped_call_gave(call, name))
        return roped_fail(err, ROPED_INVALID,
                          "parameter and tensor '%s' are both given, expected "
                          "one",
                          name);
    return ROPED_OK;
}

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
    if (isfinite(*out) && *out > 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_VALUE,
                      "tensor '%s': value %g, expected a finite number above 0",
                      name, (double)*out);
}
