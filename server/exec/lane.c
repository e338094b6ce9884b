/*
 * lane.c - the steps of one job: regions, plan, table, place, upload, launch,
 * download, wait. A job whose body was uploaded while it arrived runs on the
 * queue of its stage, where its tensors are.
 *
 * DESIGN. Arenas and stages share one budget. Between jobs a lane keeps at most
 * its equal share of what stages may not take, so that a call of up to one
 * share finds memory on any lane unless larger calls run right then; a larger
 * call takes what idle lanes and idle stages keep.
 */
#include "exec/lane.h"

#include "exec/places.h"

#include <string.h>
#include <time.h>

enum { DEVICE_ALIGNMENT = 256, MAPPED_ALIGNMENT = 16 };
enum { MAX_TENSORS = ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS };
enum { MARK_START, MARK_UPLOADED, MARK_COMPUTED, MARK_DOWNLOADED };

uint64_t lane_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum roped_status lane_init(struct lane *lane, struct device *device,
                            struct roped_error *err)
{
    memset(lane, 0, sizeof *lane);
    lane->device = device;
    return device->api->queue_open(device->backend, &lane->queue, err);
}

void lane_fini(struct lane *lane)
{
    struct device *device = lane->device;
    if (!device)
        return;
    lane_release_arena(lane);
    if (lane->scratch)
        device->api->host_free(device->backend, lane->scratch);
    if (lane->queue)
        device->api->queue_close(lane->queue);
    memset(lane, 0, sizeof *lane);
}

/* ----------------------------------------------------------------- memory */

static enum roped_status need_scratch(struct lane *lane, size_t bytes,
                                      struct roped_error *err)
{
    const struct roped_backend_api *api = lane->device->api;
    size_t wanted = 4096;
    if (bytes <= lane->scratch_bytes)
        return ROPED_OK;
    while (wanted < bytes)
        wanted *= 2;
    if (lane->scratch)
        api->host_free(lane->device->backend, lane->scratch);
    lane->scratch = NULL;
    lane->scratch_bytes = 0;
    enum roped_status status =
        api->host_alloc(lane->device->backend, wanted, &lane->scratch, err);
    if (!status)
        lane->scratch_bytes = wanted;
    return status;
}

void lane_release_arena(struct lane *lane)
{
    struct device *device = lane->device;
    if (!lane->arena)
        return;
    device->api->device_free(device->backend, lane->arena);
    device_release(device, lane->arena_bytes);
    lane->arena = NULL;
    lane->arena_bytes = 0;
}

/* Claims at least bytes, or with room for calls to come; 0: none to be had. */
static uint64_t claim_arena(struct device *device, uint64_t bytes)
{
    uint64_t wanted = 1 << 20;
    while (wanted < bytes)
        wanted *= 2;
    if (wanted > device->lane_bytes)
        wanted = bytes > device->lane_bytes ? bytes : device->lane_bytes;
    if (device_claim(device, wanted))
        return wanted;
    device->reclaim(device->reclaim_context);
    return device_claim(device, bytes) ? bytes : 0;
}

static enum roped_status need_arena(struct lane *lane, uint64_t bytes,
                                    struct roped_error *err)
{
    struct device *device = lane->device;
    void *memory;
    if (bytes <= lane->arena_bytes)
        return ROPED_OK;
    if (bytes > device->device_bytes)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "a call needs %llu bytes of device memory, expected "
                          "at most %llu (device_bytes)",
                          (unsigned long long)bytes,
                          (unsigned long long)device->device_bytes);
    lane_release_arena(lane);
    uint64_t claimed = claim_arena(device, bytes);
    if (claimed == 0)
        return roped_fail(err, ROPED_BUSY,
                          "device memory is in use by other calls: %llu "
                          "bytes wanted, %llu allowed in all",
                          (unsigned long long)bytes,
                          (unsigned long long)device->device_bytes);
    enum roped_status status =
        device->api->device_alloc(device->backend, claimed, &memory, err);
    if (status) {
        device_release(device, claimed);
        return status;
    }
    lane->arena = memory;
    lane->arena_bytes = claimed;
    return ROPED_OK;
}

/* ---------------------------------------------------------------- regions */

static void point_at(struct roped_tensor *tensor,
                     const struct exec_place *place)
{
    if (place->region)
        tensor->data = region_data(place->region) + place->offset;
}

/* Points tensors that are in regions there; notes which need no copy. */
static void use_regions(struct lane *lane, struct exec_job *job)
{
    lane->resident_in = lane->resident_out = 0;
    for (int i = 0; i < job->call.n_in; i++) {
        const struct exec_place *place = &job->in[i];
        point_at(&job->call.in[i], place);
        if (place->region && region_is_device(place->region))
            lane->resident_in |= 1u << i;
    }
    for (int i = 0; i < job->call.n_out; i++) {
        const struct exec_place *place = &job->out[i];
        point_at(&job->call.out[i], place);
        if (place->region && region_is_device(place->region))
            lane->resident_out |= 1u << i;
    }
}

/*
 * Copies index values out of regions. The copy is what the plan checks and
 * what the kernel gets: the region may change in between, and an unchecked
 * index would let a kernel read and write anywhere.
 */
static enum roped_status read_index_values(struct lane *lane,
                                           struct exec_job *job)
{
    const struct roped_backend_api *api = lane->device->api;
    unsigned char *memory = job->values;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < job->call.n_in && !status; i++) {
        struct roped_tensor *tensor = &job->call.in[i];
        if (!places_is_value(job, i))
            continue;
        size_t bytes = (size_t)roped_tensor_bytes(tensor);
        if (lane->resident_in >> i & 1)
            status = api->download(lane->queue, memory, tensor->data, bytes,
                                   &job->error);
        else if (bytes)
            memcpy(memory, tensor->data, bytes);
        tensor->data = memory;
        lane->resident_in &= ~(1u << i);
        memory += places_value_stride(tensor);
    }
    if (memory == job->values)
        return status;
    enum roped_status waited =
        api->wait(lane->queue, status ? NULL : &job->error);
    return status ? status : waited;
}

/* -------------------------------------------------------------- placement */

static bool is_aligned(const struct roped_tensor *tensor, size_t alignment)
{
    return (uintptr_t)tensor->data % alignment == 0;
}

/* Is an input on the device already? An output? An updated input that is not
 * has no place of its own either: it becomes the memory of its output. */
static bool is_placed(const struct lane *lane, const struct roped_call *call,
                      int input)
{
    return (lane->resident_in | lane->staged_in) >> input & 1 ||
           call->op->in[input].flags & ROPED_UPDATED;
}

static bool is_output_placed(const struct lane *lane, int output)
{
    return (lane->resident_out | lane->staged_out) >> output & 1;
}

/* Can the device use this host memory where it is? What is of the request
 * itself is page-locked: the caller has asked. */
static bool is_mappable(const struct roped_tensor *tensor,
                        const struct exec_place *place)
{
    return is_aligned(tensor, MAPPED_ALIGNMENT) &&
           (!place->region || region_is_pinned(place->region));
}

/* Bytes of the tensors that are not on the device; UINT64_MAX where one of
 * them cannot be used where it is. */
static uint64_t mappable_bytes(const struct lane *lane,
                               const struct exec_job *job)
{
    const struct roped_call *call = &job->call;
    uint64_t bytes = 0;
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *tensor = &call->in[i];
        struct exec_place place = job->in[i];
        if (!roped_tensor_given(tensor) || lane->resident_in >> i & 1)
            continue;
        if (places_is_value(job, i))
            place.region = NULL; /* a copy of its values is what is used */
        if (is_placed(lane, call, i) || !is_mappable(tensor, &place))
            return UINT64_MAX;
        bytes += (uint64_t)roped_tensor_bytes(tensor);
    }
    for (int i = 0; i < call->n_out; i++) {
        const struct roped_tensor *tensor = &call->out[i];
        if (!roped_tensor_given(tensor) || is_output_placed(lane, i))
            continue;
        if (!is_mappable(tensor, &job->out[i]))
            return UINT64_MAX;
        bytes += (uint64_t)roped_tensor_bytes(tensor);
    }
    return bytes;
}

/*
 * Where the tensors of a job are while it runs. Measured on an H200 (PCIe 5
 * x16; kernel that reads and writes each byte once, host wall clock):
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
static bool runs_in_place(const struct lane *lane, const struct exec_job *job)
{
    if (lane->device->api->is_host || lane->stage)
        return false; /* decided tensor by tensor */
    return job->is_pinned &&
           mappable_bytes(lane, job) <= lane->device->mapped_bytes;
}

/* Is the input in the stage, where a kernel can use it? An updated one takes
 * its output along, unless that has to be elsewhere. */
static void use_stage_for(struct lane *lane, const struct exec_job *job, int i)
{
    struct roped_call *call = &lane->call;
    const struct roped_tensor *in = &job->call.in[i];
    int output = roped_op_updates(call->op, i);
    if (!roped_tensor_given(in) || lane->resident_in >> i & 1 ||
        (output >= 0 && lane->resident_out >> output & 1))
        return;
    unsigned char *at =
        stage_find(lane->stage, in->data, (uint64_t)roped_tensor_bytes(in));
    if (!at || (uintptr_t)at % roped_dtype_bytes(in->dtype) != 0)
        return;
    call->in[i].data = at;
    lane->staged_in |= 1u << i;
    if (output < 0)
        return;
    call->out[output].data = at;
    lane->staged_out |= 1u << output;
}

static void use_stage(struct lane *lane, const struct exec_job *job)
{
    lane->staged_in = lane->staged_out = 0;
    for (int i = 0; i < job->call.n_in && lane->stage; i++)
        use_stage_for(lane, job, i);
}

/* Does this tensor need a place of its own? */
static bool needs_place(const struct lane *lane,
                        const struct roped_tensor *tensor)
{
    if (!roped_tensor_given(tensor) || roped_tensor_elements(tensor) == 0)
        return false;
    return !lane->device->api->is_host ||
           !is_aligned(tensor, roped_dtype_bytes(tensor->dtype));
}

static uint64_t place_bytes(const struct roped_tensor *tensor)
{
    uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
    return (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
}

/* The tensors that need a place; returns how many. */
static int list_places(struct lane *lane,
                       struct roped_tensor *list[MAX_TENSORS])
{
    struct roped_call *call = &lane->call;
    int n = 0;
    for (int i = 0; i < call->n_in; i++)
        if (!is_placed(lane, call, i) && needs_place(lane, &call->in[i]))
            list[n++] = &call->in[i];
    for (int i = 0; i < call->n_out; i++)
        if (!is_output_placed(lane, i) && needs_place(lane, &call->out[i]))
            list[n++] = &call->out[i];
    return n;
}

/* Replaces the pointers of tensors that need a place by places in the arena. */
static enum roped_status place(struct lane *lane, size_t aux_bytes,
                               struct roped_error *err)
{
    struct roped_tensor *list[MAX_TENSORS];
    bool has_aux = !lane->device->api->is_host && aux_bytes > 0;
    uint64_t total = has_aux ? aux_bytes : 0, at = 0;
    int n = list_places(lane, list);
    for (int i = 0; i < n; i++)
        total += place_bytes(list[i]);
    lane->has_copies = total > 0 || lane->staged_in;
    enum roped_status status = need_arena(lane, total, err);
    if (status)
        return status;
    for (int i = 0; i < n; i++) {
        list[i]->data = lane->arena + at;
        at += place_bytes(list[i]);
    }
    if (has_aux)
        lane->call.aux = lane->arena + at;
    return ROPED_OK;
}

/* An updated input is the memory of its output, wherever that is now. */
static void join_updated(struct roped_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        int output = roped_op_updates(call->op, i);
        if (output >= 0 && roped_tensor_given(&call->in[i]))
            call->in[i].data = call->out[output].data;
    }
}

/* -------------------------------------------------------------------- run */

static enum roped_status mark(struct lane *lane, int at,
                              struct roped_error *err)
{
    if (!lane->has_copies || !lane->device->api->mark)
        return ROPED_OK;
    return lane->device->api->mark(lane->queue, at, err);
}

static enum roped_status upload(struct lane *lane, const struct exec_job *job,
                                size_t aux_bytes, struct roped_error *err)
{
    const struct roped_backend_api *api = lane->device->api;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < job->call.n_in && !status; i++) {
        const struct roped_tensor *from = &job->call.in[i];
        if (roped_tensor_given(from) && lane->call.in[i].data != from->data &&
            !(lane->staged_in >> i & 1))
            status = api->upload(lane->queue, lane->call.in[i].data, from->data,
                                 (size_t)roped_tensor_bytes(from), err);
    }
    if (!status && aux_bytes && lane->call.aux != job->call.aux)
        status = api->upload(lane->queue, lane->call.aux, job->call.aux,
                             aux_bytes, err);
    return status;
}

static enum roped_status download(struct lane *lane, const struct exec_job *job,
                                  struct roped_error *err)
{
    const struct roped_backend_api *api = lane->device->api;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < job->call.n_out && !status; i++) {
        const struct roped_tensor *to = &job->call.out[i];
        if (roped_tensor_given(to) && lane->call.out[i].data != to->data)
            status =
                api->download(lane->queue, to->data, lane->call.out[i].data,
                              (size_t)roped_tensor_bytes(to), err);
    }
    return status;
}

static uint64_t nanoseconds(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

/*
 * Marks cost more than a small kernel, so a call without copies is timed by
 * the host's clock around launch and wait, all of it as kernel time.
 */
static void read_timing(struct lane *lane, struct exec_job *job,
                        uint64_t start_ns)
{
    const struct roped_backend_api *api = lane->device->api;
    if (!lane->has_copies || !api->mark) {
        job->timing.kernel_ns = lane_now_ns() - start_ns;
        return;
    }
    job->timing.h2d_ns = nanoseconds(
        api->seconds_between(lane->queue, MARK_START, MARK_UPLOADED));
    if (lane->staged_in) /* of the body what came last: a call waits for it */
        job->timing.h2d_ns += nanoseconds(
            api->seconds_between(lane->queue, STAGE_MARK_LAST, STAGE_MARK_END));
    job->timing.kernel_ns = nanoseconds(
        api->seconds_between(lane->queue, MARK_UPLOADED, MARK_COMPUTED));
    job->timing.d2h_ns = nanoseconds(
        api->seconds_between(lane->queue, MARK_COMPUTED, MARK_DOWNLOADED));
}

static enum roped_status compute(struct lane *lane, struct exec_job *job,
                                 size_t aux_bytes, uint64_t start_ns)
{
    const struct roped_backend_api *api = lane->device->api;
    struct roped_error *err = &job->error;
    enum roped_status status = mark(lane, MARK_START, err);
    if (!status)
        status = upload(lane, job, aux_bytes, err);
    if (!status)
        status = mark(lane, MARK_UPLOADED, err);
    if (!status)
        status = api->launch(lane->queue, &lane->call, err);
    if (!status)
        status = mark(lane, MARK_COMPUTED, err);
    if (!status)
        status = download(lane, job, err);
    if (!status)
        status = mark(lane, MARK_DOWNLOADED, err);
    /* also after a failure: the job's memory must not be touched any more */
    enum roped_status waited = api->wait(lane->queue, status ? NULL : err);
    if (!status)
        status = waited;
    if (!status)
        read_timing(lane, job, start_ns);
    return status;
}

static enum roped_status run_steps(struct lane *lane, struct exec_job *job,
                                   struct resident_table **table)
{
    struct roped_error *err = &job->error;
    uint64_t start_ns = lane_now_ns();
    size_t aux_bytes = roped_call_aux_bytes(&job->call);
    enum roped_status status = need_scratch(lane, aux_bytes, err);
    if (status)
        return status;
    job->call.aux = aux_bytes ? lane->scratch : NULL;
    use_regions(lane, job);
    status = places_check_memory(job, err);
    if (!status)
        status = read_index_values(lane, job);
    if (!status)
        status = roped_call_plan(&job->call, err);
    if (!status && job->call.table.wanted)
        status = resident_use(lane->device->resident, lane->queue,
                              &job->call.table, table, err);
    uint64_t planned_ns = lane_now_ns();
    job->timing.plan_ns = planned_ns - start_ns;
    if (status)
        return status;
    lane->call = job->call;
    lane->has_copies = false;
    use_stage(lane, job);
    if (!runs_in_place(lane, job))
        status = place(lane, aux_bytes, err);
    if (status)
        return status;
    join_updated(&lane->call);
    status = compute(lane, job, aux_bytes, planned_ns);
    return status ? status : places_check_memory(job, err);
}

static enum roped_status move_bytes(struct lane *lane, struct exec_job *job)
{
    const struct roped_backend_api *api = lane->device->api;
    const struct exec_transfer *transfer = &job->transfer;
    unsigned char *data = region_data(transfer->region);
    size_t bytes = (size_t)transfer->bytes;
    switch (job->work) {
    case EXEC_STORE:
        return api->upload(lane->queue, data, transfer->host, bytes,
                           &job->error);
    case EXEC_LOAD:
        return api->download(lane->queue, transfer->host, data, bytes,
                             &job->error);
    case EXEC_CLEAR:
        return api->clear(lane->queue, data, bytes, &job->error);
    case EXEC_CALL:
    case EXEC_TASK:
        break;
    }
    return roped_fail(&job->error, ROPED_INTERNAL, "no such work");
}

static enum roped_status transfer(struct lane *lane, struct exec_job *job)
{
    uint64_t start_ns = lane_now_ns();
    enum roped_status status = move_bytes(lane, job);
    enum roped_status waited =
        lane->device->api->wait(lane->queue, status ? NULL : &job->error);
    uint64_t ns = lane_now_ns() - start_ns;
    *(job->work == EXEC_LOAD ? &job->timing.d2h_ns : &job->timing.h2d_ns) = ns;
    return status ? status : waited;
}

/* What a job does on the lane's queue. */
static enum roped_status run_work(struct lane *lane, struct exec_job *job)
{
    struct resident_table *table = NULL;
    enum roped_status status;
    switch (job->work) {
    case EXEC_CALL:
        status = run_steps(lane, job, &table);
        resident_unuse(lane->device->resident, table);
        return status;
    case EXEC_TASK:
        return job->task(job);
    case EXEC_STORE:
    case EXEC_LOAD:
    case EXEC_CLEAR:
        break;
    }
    return transfer(lane, job);
}

/* On the queue of its stage, if it has one: behind the copies. */
static enum roped_status run_staged(struct lane *lane, struct exec_job *job)
{
    struct roped_queue *own = lane->queue;
    if (!job->stage)
        return run_work(lane, job);
    lane->stage = job->stage;
    lane->queue = job->stage->queue;
    enum roped_status status = run_work(lane, job);
    lane->queue = own;
    lane->stage = NULL;
    return status;
}

/* A call that was refused has not waited for the copies of its body. */
static void end_stage(struct exec_job *job)
{
    if (!job->stage)
        return;
    enum roped_status status =
        stage_wait(job->stage, job->status ? NULL : &job->error);
    if (!job->status)
        job->status = status;
}

void lane_run(struct lane *lane, struct exec_job *job)
{
    uint64_t now = lane_now_ns();
    job->timing.queue_ns = now - job->accepted_ns;
    if (atomic_load(&job->is_canceled) || (job->is_gone && job->is_gone(job)))
        job->status =
            roped_fail(&job->error, ROPED_CANCELED, "the client went away");
    else if (job->deadline_ns && now > job->deadline_ns)
        job->status = roped_fail(&job->error, ROPED_DEADLINE,
                                 "the call waited %.3f s for a lane",
                                 (double)job->timing.queue_ns * 1e-9);
    else
        job->status = run_staged(lane, job);
    end_stage(job);
    if (job->status == ROPED_DEVICE)
        atomic_fetch_add(&lane->device->errors, 1);
    if (lane->arena_bytes > lane->device->lane_bytes)
        lane_release_arena(lane);
    atomic_fetch_add_explicit(&lane->jobs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&lane->busy_ns, lane_now_ns() - now,
                              memory_order_relaxed);
}
