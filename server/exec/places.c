/*
 * places.c - the rules of tensors in regions.
 */
#include "exec/places.h"

/* What lanes ask of small host memory that a GPU uses where it is. */
enum { VALUE_ALIGNMENT = 64 };

/* A tensor of a call that is in a region, and the bytes it takes there. */
struct span {
    const char *name;
    const struct exec_place *place;
    const struct roped_tensor *tensor;
    uint64_t begin, end;
};

static struct span span_of(const char *name, const struct exec_place *place,
                           const struct roped_tensor *tensor)
{
    uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
    return (struct span){name, place, tensor, place->offset,
                         place->offset + bytes};
}

static struct span input_span(const struct exec_job *job, int i)
{
    return span_of(job->call.op->in[i].name, &job->in[i], &job->call.in[i]);
}

static struct span output_span(const struct exec_job *job, int i)
{
    return span_of(job->call.op->out[i].name, &job->out[i], &job->call.out[i]);
}

static bool is_same(const struct exec_place *a, const struct exec_place *b)
{
    return a->region == b->region && a->offset == b->offset;
}

/* ----------------------------------------------------------------- updated */

/* An updated input in a region takes its output along. */
static enum roped_status follow_input(struct exec_job *job,
                                      struct regions *regions, int input,
                                      struct roped_error *err)
{
    const struct exec_place *from = &job->in[input];
    int output = roped_op_updates(job->call.op, input);
    if (output < 0 || !from->region)
        return ROPED_OK;
    struct exec_place *into = &job->out[output];
    if (!into->region) {
        into->region = regions_share(regions, from->region);
        into->offset = from->offset;
    }
    if (is_same(from, into))
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID,
        "tensor '%s': updated at offset %llu of region '%s', "
        "expected its output there and not at offset %llu of "
        "region '%s'",
        job->call.op->in[input].name, (unsigned long long)from->offset,
        region_info(from->region)->name, (unsigned long long)into->offset,
        region_info(into->region)->name);
}

/* ------------------------------------------------------------------- alone */

static enum roped_status check_span(const struct span *span,
                                    struct roped_error *err)
{
    const struct exec_place *place = span->place;
    size_t size = roped_dtype_bytes(span->tensor->dtype);
    enum roped_status status =
        region_check_range(place->region, span->name, place->offset,
                           (uint64_t)roped_tensor_bytes(span->tensor), err);
    /* host memory is copied where a kernel cannot use it */
    bool is_free = region_info(place->region)->kind == REGION_SYSTEM;
    if (status || is_free || place->offset % size == 0)
        return status;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu in region '%s', expected a "
                      "multiple of %zu, the size of %s",
                      span->name, (unsigned long long)place->offset,
                      region_info(place->region)->name, size,
                      roped_dtype_name(span->tensor->dtype));
}

/* ----------------------------------------------------------------- overlap */

static bool overlap(const struct span *a, const struct span *b)
{
    return a->place->region && a->place->region == b->place->region &&
           a->begin < a->end && b->begin < b->end && /* not empty */
           a->begin < b->end && b->begin < a->end;
}

static enum roped_status refuse_overlap(const struct span *output,
                                        const struct span *other,
                                        const char *role,
                                        struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "output '%s': bytes %llu to %llu of region '%s' overlap "
                      "%s '%s' at %llu to %llu, expected a place of its own",
                      output->name, (unsigned long long)output->begin,
                      (unsigned long long)output->end,
                      region_info(output->place->region)->name, role,
                      other->name, (unsigned long long)other->begin,
                      (unsigned long long)other->end);
}

/* Inputs whose values the host checks are copied out before the launch, but
 * overlapping them is as much of a mistake. */
static enum roped_status check_output(const struct exec_job *job, int output,
                                      struct roped_error *err)
{
    const struct roped_op *op = job->call.op;
    struct span out = output_span(job, output);
    int shared = op->out[output].in_place
                     ? roped_op_input(op, op->out[output].in_place)
                     : -1;
    for (int i = 0; i < job->call.n_in; i++) {
        if (!job->in[i].region)
            continue;
        struct span in = input_span(job, i);
        bool is_in_place = i == shared && is_same(in.place, out.place);
        if (roped_tensor_given(in.tensor) && overlap(&out, &in) && !is_in_place)
            return refuse_overlap(&out, &in, "input", err);
    }
    for (int i = 0; i < output; i++) {
        if (!job->out[i].region)
            continue;
        struct span other = output_span(job, i);
        if (roped_tensor_given(other.tensor) && overlap(&out, &other))
            return refuse_overlap(&out, &other, "output", err);
    }
    return ROPED_OK;
}

/* ------------------------------------------------------------------ device */

static int device_of(const struct exec_place *place)
{
    return place->region ? region_info(place->region)->device
                         : REGION_ANY_DEVICE;
}

/* The i-th of all tensors of a call, inputs first: its place, and all of it. */
static const struct exec_place *any_place(const struct exec_job *job, int i)
{
    return i < ROPED_MAX_INPUTS ? &job->in[i] : &job->out[i - ROPED_MAX_INPUTS];
}

static struct span any_span(const struct exec_job *job, int i)
{
    return i < ROPED_MAX_INPUTS ? input_span(job, i)
                                : output_span(job, i - ROPED_MAX_INPUTS);
}

static enum roped_status check_devices(const struct exec_job *job,
                                       struct roped_error *err)
{
    enum { N_TENSORS = ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS };
    int first = -1;
    for (int i = 0; i < N_TENSORS; i++) {
        int device = device_of(any_place(job, i));
        if (device == REGION_ANY_DEVICE)
            continue;
        first = first < 0 ? i : first;
        if (device == device_of(any_place(job, first)))
            continue;
        struct span span = any_span(job, i), other = any_span(job, first);
        return roped_fail(
            err, ROPED_INVALID,
            "tensor '%s': in region '%s' of device %d, but tensor '%s' is in "
            "region '%s' of device %d, expected one device (PUT with device=N)",
            span.name, region_info(span.place->region)->name, device,
            other.name, region_info(other.place->region)->name,
            device_of(other.place));
    }
    return ROPED_OK;
}

int places_device(const struct exec_job *job)
{
    int device = REGION_ANY_DEVICE;
    if (job->work == EXEC_TASK)
        return device;
    if (job->work != EXEC_CALL)
        return region_info(job->transfer.region)->device;
    for (int i = 0; i < job->call.n_in && device < 0; i++)
        device = device_of(&job->in[i]);
    for (int i = 0; i < job->call.n_out && device < 0; i++)
        device = device_of(&job->out[i]);
    return device;
}

/* -------------------------------------------------------------------- all */

static bool uses_regions(const struct exec_job *job)
{
    bool is_used = false;
    for (int i = 0; i < job->call.n_in; i++)
        is_used |= job->in[i].region != NULL;
    for (int i = 0; i < job->call.n_out; i++)
        is_used |= job->out[i].region != NULL;
    return is_used;
}

enum roped_status places_check(struct exec_job *job, struct regions *regions,
                               struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (!uses_regions(job))
        return ROPED_OK;
    for (int i = 0; i < job->call.n_in && !status; i++) {
        if (!job->in[i].region)
            continue;
        struct span span = input_span(job, i);
        status = check_span(&span, err);
        if (!status)
            status = follow_input(job, regions, i, err);
    }
    for (int i = 0; i < job->call.n_out && !status; i++) {
        if (!job->out[i].region)
            continue;
        struct span span = output_span(job, i);
        const char *needed = job->call.op->out[i].requires_;
        if (!roped_tensor_given(span.tensor))
            return roped_fail(
                err, ROPED_INVALID, "output '%s' is not made: it needs %s '%s'",
                span.name,
                roped_op_input(job->call.op, needed) < 0 ? "parameter"
                                                         : "input",
                needed);
        status = check_span(&span, err);
        if (!status)
            status = check_output(job, i, err);
    }
    return status ? status : check_devices(job, err);
}

bool places_is_value(const struct exec_job *job, int input)
{
    return job->in[input].region && job->call.op->in[input].flags & ROPED_INDEX;
}

size_t places_value_stride(const struct roped_tensor *tensor)
{
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    return (bytes + VALUE_ALIGNMENT - 1) / VALUE_ALIGNMENT * VALUE_ALIGNMENT;
}

uint64_t places_value_bytes(const struct exec_job *job)
{
    uint64_t bytes = 0;
    for (int i = 0; i < job->call.n_in; i++)
        if (places_is_value(job, i))
            bytes += places_value_stride(&job->call.in[i]);
    return bytes;
}

enum roped_status places_check_memory(const struct exec_job *job,
                                      struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < job->call.n_in && !status; i++)
        if (job->in[i].region)
            status = region_check(job->in[i].region, err);
    for (int i = 0; i < job->call.n_out && !status; i++)
        if (job->out[i].region)
            status = region_check(job->out[i].region, err);
    return status;
}

static bool is_on_device(const struct exec_place *place)
{
    return place->region && region_is_device(place->region);
}

/* Bytes of an input that the job updates and of the output that it is, where
 * both stay in a region: nobody knows how much of them it touches. */
static uint64_t updated_bytes(const struct exec_job *job, int input)
{
    const struct roped_call *call = &job->call;
    bool stays =
        job->in[input].region && call->op->in[input].flags & ROPED_UPDATED;
    return stays ? 2 * (uint64_t)roped_tensor_bytes(&call->in[input]) : 0;
}

uint64_t places_bytes(const struct exec_job *job)
{
    if (job->work == EXEC_TASK)
        return job->task_bytes;
    if (job->work != EXEC_CALL)
        return job->transfer.bytes;
    uint64_t bytes = (uint64_t)roped_call_bytes(&job->call);
    for (int i = 0; i < job->call.n_in; i++)
        bytes -= updated_bytes(job, i);
    return bytes;
}

/*
 * How long a job takes on its device, as what exec_run_inline compares: bytes
 * that the CPU backend moves meanwhile, or would. Measured on an H200 (PCIe 5
 * x16), wall clock of kernel and copies, without some 11 us that every call
 * takes there:
 *
 *     page-locked memory of the host, in place or copied    54 GB/s  in and out
 *     memory of the device                                4000 GB/s
 *     the CPU backend, two EPYC cores, 1 MiB in and out      35 GB/s
 *
 * so a byte there is half of one here, or a 128th, and 2 MiB, the default of
 * inline_bytes, are some 60 us of a CPU or 80 us of that GPU: 2 MiB in and 2
 * out, or 256 MiB in regions. Handing a call over and back takes two threads
 * that wake up, 10 to 100 us each; a body of 1 MiB has taken its thread 120 us
 * to receive. What is not page-locked goes through the driver's own buffers,
 * at a CPU's pace.
 */
enum { LINK_BYTES_PER_BYTE = 2, DEVICE_BYTES_PER_BYTE = 128 };

/* Not rounded to nothing: with inline_bytes 0 no call runs inline. */
static uint64_t share(uint64_t bytes, uint64_t of)
{
    return bytes / of + (bytes % of != 0);
}

uint64_t places_work(const struct exec_job *job, bool is_host)
{
    const struct roped_call *call = &job->call;
    uint64_t resident = 0;
    if (is_host || job->work != EXEC_CALL)
        return places_bytes(job);
    for (int i = 0; i < job->call.n_in; i++)
        if (is_on_device(&job->in[i]))
            resident += (uint64_t)roped_tensor_bytes(&call->in[i]) -
                        updated_bytes(job, i);
    for (int i = 0; i < job->call.n_out; i++)
        if (is_on_device(&job->out[i]))
            resident += (uint64_t)roped_tensor_bytes(&call->out[i]);
    uint64_t sent = places_bytes(job) - resident;
    return share(sent, job->is_pinned ? LINK_BYTES_PER_BYTE : 1) +
           share(resident, DEVICE_BYTES_PER_BYTE);
}
