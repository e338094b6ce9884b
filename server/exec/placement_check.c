/*
 * placement_check.c - the rules of tensors in regions.
 */
#include "exec/executor.h"

#include <string.h>

static bool is_given(const struct placed *p)
{
    return roped_tensor_given(p->tensor);
}

static const char *region_name(const struct placed *p)
{
    return region_info(p->place->region)->name;
}

static uint64_t end_of(const struct placed *p)
{
    return p->place->offset + p->span;
}

static bool is_same(const struct exec_place *a, const struct exec_place *b)
{
    return a->region == b->region && a->offset == b->offset;
}

/* An updated input in a region takes its output along. */
static enum roped_status follow_input(struct regions *regions,
                                      const struct placed *p,
                                      struct roped_error *err)
{
    const struct exec_place *from = p->place;
    if (!p->pair)
        return ROPED_OK;
    struct exec_place *into = p->pair->place;
    if (!into->region) {
        into->region = regions_share(regions, from->region);
        into->offset = from->offset;
    }
    if (is_same(from, into))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': updated at offset %llu of region '%s', "
                      "expected its output there and not at offset %llu of "
                      "region '%s'",
                      p->port->name, (unsigned long long)from->offset,
                      region_name(p), (unsigned long long)into->offset,
                      region_name(p->pair));
}

/* ------------------------------------------------------------------- alone */

static enum roped_status check_alone(const struct placed *p,
                                     struct roped_error *err)
{
    const struct exec_place *place = p->place;
    size_t size = roped_dtype_bytes(p->tensor->dtype);
    enum roped_status status = region_check_range(place->region, p->port->name,
                                                  place->offset, p->span, err);
    /* host memory is copied where a kernel cannot use it */
    bool is_free = region_info(place->region)->kind == REGION_SYSTEM;
    if (status || is_free || place->offset % size == 0)
        return status;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu in region '%s', expected a "
                      "multiple of %zu, the size of %s",
                      p->port->name, (unsigned long long)place->offset,
                      region_name(p), size, roped_dtype_name(p->tensor->dtype));
}

static enum roped_status check_made(const struct roped_op *op,
                                    const struct placed *output,
                                    struct roped_error *err)
{
    const char *needed = output->port->requires_;
    if (is_given(output))
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID, "output '%s' is not made: it needs %s '%s'",
        output->port->name,
        roped_op_input(op, needed) < 0 ? "parameter" : "input", needed);
}

/* ----------------------------------------------------------------- overlap */

static uint64_t stride_bytes(const struct placed *p)
{
    return (uint64_t)p->tensor->stride * roped_dtype_bytes(p->tensor->dtype);
}

/* Are the tokens of b in the gaps between those of a, as slices of the same
 * rows are? */
static bool are_interleaved(const struct placed *a, const struct placed *b)
{
    uint64_t stride = stride_bytes(a);
    if (stride == 0 || stride != stride_bytes(b))
        return false;
    uint64_t a_token = (uint64_t)roped_tensor_token(a->tensor) *
                       roped_dtype_bytes(a->tensor->dtype);
    uint64_t b_token = (uint64_t)roped_tensor_token(b->tensor) *
                       roped_dtype_bytes(b->tensor->dtype);
    uint64_t between =
        (b->place->offset % stride + stride - a->place->offset % stride) %
        stride;
    return between >= a_token && between + b_token <= stride;
}

static bool overlap(const struct placed *a, const struct placed *b)
{
    return a->place->region == b->place->region && a->bytes > 0 &&
           b->bytes > 0 && a->place->offset < end_of(b) &&
           b->place->offset < end_of(a) && !are_interleaved(a, b);
}

static bool may_share(const struct placed *output, const struct placed *other)
{
    const char *input = output->port->in_place;
    return input && !other->is_output && is_same(output->place, other->place) &&
           strcmp(input, other->port->name) == 0;
}

/* An output and what is listed before it: all inputs, and other outputs.
 * Inputs whose values the host checks are copied out before the launch, but
 * overlapping them is as much of a mistake. */
static enum roped_status check_overlap(const struct placement *all,
                                       const struct placed *output,
                                       struct roped_error *err)
{
    for (const struct placed *p = all->port; p < output; p++)
        if (overlap(output, p) && !may_share(output, p))
            return roped_fail(
                err, ROPED_INVALID,
                "output '%s': bytes %llu to %llu of region '%s' overlap "
                "%s '%s' at %llu to %llu, expected a place of its own",
                output->port->name, (unsigned long long)output->place->offset,
                (unsigned long long)end_of(output), region_name(output),
                p->is_output ? "output" : "input", p->port->name,
                (unsigned long long)p->place->offset,
                (unsigned long long)end_of(p));
    return ROPED_OK;
}

/* ------------------------------------------------------------------ device */

/* What is written is on one device, where the call runs; what it reads may be
 * on any. *first is the first output in the memory of a device, or NULL. */
static enum roped_status check_device(const struct placed *output,
                                      const struct placed **first,
                                      struct roped_error *err)
{
    int device = region_info(output->place->region)->device;
    if (device == REGION_ANY_DEVICE)
        return ROPED_OK;
    *first = *first ? *first : output;
    int other = region_info((*first)->place->region)->device;
    if (device == other)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID,
        "output '%s': written to region '%s' of device %d, but output '%s' to "
        "region '%s' of device %d, expected one device for all that a call "
        "writes (PUT with device=N)",
        output->port->name, region_name(output), device, (*first)->port->name,
        region_name(*first), other);
}

/* ------------------------------------------------------------------- strides
 */

/* The stride of an output in a region: in the place of its input that one's. */
static enum roped_status settle_stride(struct exec_job *job, int output,
                                       struct roped_error *err)
{
    struct roped_call *call = &job->call;
    const struct exec_place *into = &job->out[output];
    int input = roped_op_shared(call->op, output);
    bool is_shared = input >= 0 && is_same(into, &job->in[input]);
    int64_t stride = is_shared ? call->in[input].stride : into->stride;
    if (!into->region || !roped_tensor_given(&call->out[output]))
        return ROPED_OK;
    if (into->stride && into->stride != stride)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "output '%s': stride %lld in the place of its input, "
                          "expected that one's stride, %lld",
                          call->op->out[output].name, (long long)into->stride,
                          (long long)stride);
    return roped_call_set_stride(call, output, stride, err);
}

/* -------------------------------------------------------------------- all */

enum roped_status placement_check(struct exec_job *job, struct regions *regions,
                                  struct roped_error *err)
{
    struct placement *all = &job->placement;
    const struct placed *first = NULL;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < job->call.n_out && !status; i++)
        status = settle_stride(job, i, err);
    placement_make(job);
    for (int i = 0; i < all->n && all->has_regions && !status; i++) {
        const struct placed *p = &all->port[i];
        if (!p->place->region)
            continue;
        status = p->is_output ? check_made(job->call.op, p, err) : ROPED_OK;
        if (!status)
            status = check_alone(p, err);
        if (!status)
            status = p->is_output ? check_overlap(all, p, err)
                                  : follow_input(regions, p, err);
        if (!status && p->is_output)
            status = check_device(p, &first, err);
    }
    return status;
}
