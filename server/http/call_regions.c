/*
 * call_regions.c - from the names in a request to the places of a job.
 */
#include "http/call_regions.h"

static const char *tensor_name(const struct call *call,
                               const struct region_ref *ref)
{
    return ref->is_output ? call->op->out[ref->port].name
                          : call->op->in[ref->port].name;
}

static struct exec_place *place_of(struct call *call,
                                   const struct region_ref *ref)
{
    return ref->is_output ? &call->job->out[ref->port]
                          : &call->job->in[ref->port];
}

static enum roped_status take(struct call *call, const struct region_ref *ref)
{
    struct exec_place *place = place_of(call, ref);
    const char *name = tensor_name(call, ref);
    if (!ref->region[0])
        return roped_fail(call->error, ROPED_BAD_PARAMETER,
                          "parameter '%s.%s' is given without '%s.%s', which "
                          "names the region",
                          ref->is_output      ? "into_stride"
                          : ref->has_shape    ? "shape"
                          : ref->tensor.dtype ? "dtype"
                                              : "stride",
                          name, ref->is_output ? "into" : "from", name);
    enum roped_status status =
        regions_take(exec_regions(call->service->exec), call->tenant,
                     ref->region, &place->region, call->error);
    if (status == ROPED_NO_REGION && call->body->kind == BODY_V2)
        return roped_fail(call->error, status, /* as its clients know it */
                          "Unable to find shared memory region: '%.64s'",
                          ref->region);
    if (status)
        return status;
    place->offset = ref->offset;
    place->stride = ref->is_output ? ref->tensor.stride : 0;
    /* v2 says how many bytes it gives, and outputs may not need them all */
    return region_check_range(place->region, name, ref->offset, ref->bytes,
                              call->error);
}

enum roped_status call_take_regions(struct call *call,
                                    const struct region_refs *refs)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < refs->n && !status; i++)
        status = take(call, &refs->ref[i]);
    return status;
}

/* What the query does not say the region does: its type, and at its start its
 * shape. */
static enum roped_status describe(struct call *call,
                                  const struct region_ref *ref,
                                  struct roped_tensor *tensor)
{
    const struct region_info *info = region_info(place_of(call, ref)->region);
    const char *name = tensor_name(call, ref);
    *tensor = ref->has_shape ? ref->tensor : info->tensor;
    tensor->dtype = ref->tensor.dtype ? ref->tensor.dtype : info->tensor.dtype;
    tensor->stride = ref->tensor.stride;
    tensor->data = NULL; /* known when the job runs */
    if (!tensor->dtype)
        return roped_fail(call->error, ROPED_INVALID,
                          "tensor '%s': region '%s' is plain bytes, expected "
                          "'dtype.%s' and 'shape.%s' to say what they are",
                          name, info->name, name, name);
    if (ref->has_shape || (info->tensor.dtype && ref->offset == 0))
        return ROPED_OK;
    return roped_fail(call->error, ROPED_INVALID,
                      "tensor '%s': offset %llu in region '%s', expected "
                      "'shape.%s' to say how much of it is meant",
                      name, (unsigned long long)ref->offset, info->name, name);
}

enum roped_status call_bind_regions(struct call *call,
                                    const struct region_refs *refs)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < refs->n && !status; i++) {
        const struct region_ref *ref = &refs->ref[i];
        struct roped_tensor tensor;
        if (ref->is_output)
            continue;
        status = describe(call, ref, &tensor);
        if (!status)
            status = roped_call_bind(&call->job->call, tensor_name(call, ref),
                                     &tensor, call->error);
    }
    return status;
}
