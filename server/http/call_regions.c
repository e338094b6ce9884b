/*
 * call_regions.c - from the names in a request to the places of a job.
 */
#include "http/call_regions.h"

static const char *tensor_name(const struct call *call,
                               const struct region_ref *ref)
{
    return signature_tensor(&call->signature, ref->is_output, ref->port);
}

static struct exec_place *place_of(struct call *call,
                                   const struct region_ref *ref)
{
    return call->kind->place(call, ref->is_output, ref->port);
}

static enum roped_status take(struct call *call, const struct region_ref *ref)
{
    struct exec_place *place = place_of(call, ref);
    const char *name = tensor_name(call, ref);
    enum roped_status status = region_refs_check(ref, name, call->error);
    if (status)
        return status;
    status = regions_take(exec_regions(call->service->exec), call->tenant,
                          ref->region, &place->region, call->error);
    if (status == ROPED_NO_REGION && call->body->kind == BODY_V2)
        return roped_fail(call->error, status, /* as its clients know it */
                          "Unable to find shared memory region: '%.64s'",
                          ref->region);
    if (status)
        return status;
    place->offset = ref->offset;
    place->stride = ref->is_output ? ref->tensor.stride : 0;
    call->kind->took(call, ref);
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

enum roped_status call_bind_regions(struct call *call,
                                    const struct region_refs *refs)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < refs->n && !status; i++) {
        const struct region_ref *ref = &refs->ref[i];
        struct roped_tensor tensor;
        if (ref->is_output)
            continue;
        const struct region_info *info =
            region_info(place_of(call, ref)->region);
        status = region_refs_describe(ref, tensor_name(call, ref), info->name,
                                      &info->tensor, &tensor, call->error);
        if (!status)
            status = signature_bind(&call->signature, tensor_name(call, ref),
                                    &tensor, call->error);
    }
    return status;
}
