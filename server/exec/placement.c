/*
 * placement.c - the list of a call's tensors, what the job costs, and where
 * they are while it runs.
 */
#include "exec/device.h"
#include "exec/executor.h"
#include "exec/inbox.h"
#include "exec/program_run.h"

enum {
    VALUE_ALIGNMENT = 64, /* what small host memory has that a GPU uses */
    MAPPED_ALIGNMENT = 16,
    ARENA_ALIGNMENT = 256
};

static uint64_t round_up(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static bool is_aligned(const void *data, size_t alignment)
{
    return (uintptr_t)data % alignment == 0;
}

/* ---------------------------------------------------------------- the list */

size_t placement_value_stride(const struct placed *input)
{
    return (size_t)round_up(input->bytes, VALUE_ALIGNMENT);
}

static void add(struct placement *all, const struct roped_port *port,
                struct roped_tensor *tensor, struct exec_place *place,
                bool is_output)
{
    bool has_region = place->region != NULL;
    struct placed *p = &all->port[all->n];
    if (!roped_tensor_given(tensor) && !(is_output && has_region))
        return;
    *p = (struct placed){.port = port,
                         .tensor = tensor,
                         .place = place,
                         .bytes = (uint64_t)roped_tensor_bytes(tensor),
                         .span = (uint64_t)roped_tensor_span(tensor),
                         .is_output = is_output,
                         .is_value = has_region && port->flags & ROPED_INDEX};
    all->n++;
    all->has_regions |= has_region;
    if (p->is_value)
        all->value_bytes += placement_value_stride(p);
}

/* Joins updated inputs and their outputs. */
static void join_updated(struct placement *all, const struct roped_op *op)
{
    for (int i = 0; i < all->n_in; i++) {
        struct placed *input = &all->port[i];
        int output = roped_op_updates(op, (int)(input->port - op->in));
        for (int j = all->n_in; j < all->n && output >= 0; j++) {
            if (all->port[j].port != &op->out[output])
                continue;
            input->pair = &all->port[j];
            all->port[j].pair = input;
        }
    }
}

void placement_make(struct exec_job *job)
{
    struct placement *all = &job->placement;
    struct roped_call *call = &job->call;
    const struct roped_op *op = call->op;
    unsigned flags = 0;
    all->n = 0;
    all->value_bytes = 0;
    all->has_regions = false;
    for (int i = 0; i < call->n_in; i++) {
        flags |= op->in[i].flags;
        add(all, &op->in[i], &call->in[i], &job->in[i], false);
    }
    all->n_in = all->n;
    for (int i = 0; i < call->n_out; i++)
        add(all, &op->out[i], &call->out[i], &job->out[i], true);
    if (flags & ROPED_UPDATED)
        join_updated(all, op);
}

/* ----------------------------------------------------------------- regions */

enum roped_status placement_check_memory(const struct exec_job *job,
                                         struct roped_error *err)
{
    const struct placement *all = &job->placement;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < all->n && all->has_regions && !status; i++)
        if (all->port[i].place->region)
            status = region_check(all->port[i].place->region, err);
    return status;
}

void *placement_region_data(const struct placed *p)
{
    return region_data(p->place->region) + p->place->offset;
}

static bool is_on_device(const struct placed *p)
{
    return p->place->region && region_is_device(p->place->region);
}

bool placement_is_elsewhere(const struct placed *p, int device)
{
    return p->place->region && region_is_elsewhere(p->place->region, device);
}

static int device_of(const struct placed *p)
{
    return p->place->region ? region_info(p->place->region)->device
                            : REGION_ANY_DEVICE;
}

/* -------------------------------------------------------------------- cost */

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

uint64_t placement_work_bytes(uint64_t host_bytes, uint64_t device_bytes,
                              bool is_pinned)
{
    return share(host_bytes, is_pinned ? LINK_BYTES_PER_BYTE : 1) +
           share(device_bytes, DEVICE_BYTES_PER_BYTE);
}

/* The device that has most of what the call reads in regions. */
static int richest(const struct placement *all)
{
    uint64_t most = 0;
    int best = REGION_ANY_DEVICE;
    for (int i = 0; i < all->n_in; i++) {
        uint64_t bytes = 0;
        int device = device_of(&all->port[i]);
        for (int j = 0; j < all->n_in; j++)
            bytes +=
                device_of(&all->port[j]) == device ? all->port[j].bytes : 0;
        if (device == REGION_ANY_DEVICE ||
            (best != REGION_ANY_DEVICE && bytes <= most))
            continue;
        best = device;
        most = bytes;
    }
    return best;
}

/* The device where a call runs; placement_check has seen that what it writes is
 * on one. */
static int choose_device(const struct placement *all)
{
    int device = REGION_ANY_DEVICE;
    bool is_one = true;
    for (int i = 0; i < all->n && all->has_regions; i++) {
        int other = device_of(&all->port[i]);
        if (other == REGION_ANY_DEVICE)
            continue;
        if (all->port[i].is_output)
            return other;
        is_one &= device == REGION_ANY_DEVICE || device == other;
        device = other;
    }
    return is_one ? device : richest(all);
}

/* What a tensor in a region adds to the bytes of a job. One that is updated
 * there adds nothing, since nobody knows how much of it the job touches: its
 * input takes off what its output adds. */
static uint64_t region_bytes(const struct placed *p)
{
    return p->pair && !p->is_output ? 0 - p->bytes : p->bytes;
}

static void measure_call(struct exec_job *job, bool is_host)
{
    struct placement *all = &job->placement;
    uint64_t resident = 0;
    if (all->n == 0)
        placement_make(job);
    job->bytes = (uint64_t)roped_call_bytes(&job->call);
    job->device = choose_device(all);
    for (int i = 0; i < all->n && all->has_regions; i++) {
        const struct placed *p = &all->port[i];
        if (!p->place->region)
            continue;
        job->bytes += region_bytes(p) - p->bytes;
        if (is_on_device(p) && !placement_is_elsewhere(p, job->device))
            resident += region_bytes(p);
    }
    job->work_bytes = is_host ? job->bytes
                              : placement_work_bytes(job->bytes - resident,
                                                     resident, job->is_pinned);
}

void placement_measure(struct exec_job *job, bool is_host)
{
    job->device = REGION_ANY_DEVICE;
    if (job->work == EXEC_CALL) {
        measure_call(job, is_host);
        return;
    }
    if (job->work == EXEC_PROGRAM) {
        program_run_measure(job, is_host);
        return;
    }
    job->bytes = job->work_bytes =
        job->work == EXEC_TASK ? job->task_bytes : job->transfer.bytes;
    if (job->work != EXEC_TASK)
        job->device = region_info(job->transfer.region)->device;
}

/* ------------------------------------------------------------- on a device */

/* The copy of an input in the inbox, if a kernel can use it. An updated one
 * takes its output along, unless that has to be elsewhere. */
static void *find_in_inbox(const struct inbox *inbox, const struct placed *p)
{
    if (!inbox)
        return NULL;
    if (p->is_output)
        return p->pair && p->pair->where == IN_INBOX ? p->pair->address : NULL;
    if (p->pair && is_on_device(p->pair))
        return NULL;
    void *at = inbox_find(inbox, p->tensor->data, p->bytes);
    return is_aligned(at, roped_dtype_bytes(p->tensor->dtype)) ? at : NULL;
}

/* Where a tensor is on a device, if the call is not mapped. */
static enum where find(struct placed *p, const struct inbox *inbox,
                       bool is_host)
{
    if (p->bytes == 0)
        return IN_HOST;
    if (is_on_device(p) && !p->is_value)
        return p->is_elsewhere ? IN_ARENA : IN_REGION;
    p->address = find_in_inbox(inbox, p);
    if (p->address)
        return IN_INBOX;
    if (p->pair && !p->is_output)
        return IN_OUTPUT;
    if (is_host &&
        is_aligned(p->tensor->data, roped_dtype_bytes(p->tensor->dtype)))
        return IN_HOST;
    return IN_ARENA;
}

/* Can the device use this host memory where it is? What is of the request
 * itself is page-locked: the caller has asked. */
static bool is_mappable(const struct placed *p)
{
    const struct region *region = p->is_value ? NULL : p->place->region;
    return p->where == IN_ARENA && is_aligned(p->home, MAPPED_ALIGNMENT) &&
           (!region || region_is_pinned(region));
}

/* What would be in the arena stays where it is. */
static void map(struct placement *all)
{
    for (int i = 0; i < all->n; i++)
        if (all->port[i].where == IN_ARENA)
            all->port[i].where = IN_HOST;
    all->arena_bytes = 0;
    all->has_copies = false;
}

/*
 * Measured on an H200 (PCIe 5 x16; kernel that reads and writes each byte once,
 * host wall clock):
 *
 *     in and out each            4 KiB   40 KiB   640 KiB   4 MiB
 *     page-locked memory, mapped  11.3     12.3      32.5    165 us
 *     upload, kernel, download    16.0     15.0      37.8    178 us
 *
 * so small page-locked calls are used where they are. A call that is larger,
 * misaligned, or outside page-locked memory goes through the arena. On the CPU
 * everything is in place unless it is misaligned for its element type. What is
 * in a region of the device is there already, in either case.
 */
void placement_settle(struct exec_job *job, const struct device *device,
                      uint64_t aux_bytes)
{
    struct placement *all = &job->placement;
    bool is_host = device->api->is_host;
    bool is_mapped = !is_host && !job->inbox && job->is_pinned;
    uint64_t bytes = 0;
    all->uses_inbox = all->has_copies = false;
    all->has_elsewhere = false;
    all->arena_bytes = 0;
    for (int i = 0; i < all->n; i++) {
        struct placed *p = &all->port[i];
        p->home = p->tensor->data;
        p->is_copied = false;
        p->is_elsewhere =
            !p->is_value && placement_is_elsewhere(p, device->number);
        p->where = find(p, job->inbox, is_host);
        if (p->where <= IN_REGION)
            continue;
        all->has_copies = true;
        all->has_elsewhere |= p->is_elsewhere;
        all->uses_inbox |= p->where == IN_INBOX;
        is_mapped &= is_mappable(p);
        bytes += p->bytes;
        if (p->where == IN_ARENA)
            all->arena_bytes += round_up(p->span, ARENA_ALIGNMENT);
    }
    is_mapped &= bytes <= device->mapped_bytes;
    if (is_mapped)
        map(all);
    all->aux_bytes = is_host || is_mapped ? 0 : aux_bytes;
    all->arena_bytes += all->aux_bytes;
    all->has_copies |= all->aux_bytes > 0;
}

/* Backwards: an updated input is where its output is. */
void placement_enter(struct exec_job *job, unsigned char *arena)
{
    struct placement *all = &job->placement;
    for (int i = all->n - 1; i >= 0 && all->has_copies; i--) {
        struct placed *p = &all->port[i];
        if (p->where <= IN_REGION)
            continue;
        if (p->where == IN_ARENA) {
            p->address = arena;
            arena += round_up(p->span, ARENA_ALIGNMENT);
        } else if (p->where == IN_OUTPUT) {
            p->address = p->pair->tensor->data;
        }
        p->is_copied =
            p->address != p->home && (p->is_output || p->where != IN_INBOX);
        p->tensor->data = p->address;
    }
    if (all->aux_bytes > 0)
        job->call.aux = arena;
}

void placement_leave(struct exec_job *job)
{
    struct placement *all = &job->placement;
    for (int i = 0; i < all->n && all->has_copies; i++)
        all->port[i].tensor->data = all->port[i].home;
}
