/*
 * lane.c - the steps of one job: regions, plan, table, placement, upload,
 * launch, download, wait. A job whose body was uploaded while it arrived runs
 * on the queue of its inbox, where its tensors are.
 *
 * DESIGN. Arenas and inboxes share one budget. Between jobs a lane keeps at
 * most its equal share of what inboxes may not take, so that a call of up to
 * one share finds memory on any lane unless larger calls run right then; a
 * larger call takes what idle lanes and idle inboxes keep. Of its scratch a
 * lane keeps KEPT_SCRATCH_BYTES: a body of tokens of a few bytes needs more of
 * it than it has itself.
 */
#include "exec/lane.h"

#include "exec/inbox.h"
#include "exec/lane_program.h"
#include "exec/poison.h"
#include "exec/recordings.h"

#include <string.h>
#include <time.h>

enum { KEPT_SCRATCH_BYTES = 4 << 20 };

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
    pthread_cond_init(&lane->wake, NULL);
    lane->device = device;
    enum roped_status status =
        device->api->queue_open(device->backend, &lane->queue, err);
    if (status || !device->api->record)
        return status;
    return recordings_open(device->api, lane->queue, &device->recorded,
                           &lane->recordings, err);
}

static void release_scratch(struct lane *lane)
{
    struct device *device = lane->device;
    if (!lane->scratch)
        return;
    device->api->host_free(device->backend, lane->scratch);
    atomic_fetch_sub(&device->scratch_bytes, lane->scratch_bytes);
    lane->scratch = NULL;
    lane->scratch_bytes = 0;
}

void lane_fini(struct lane *lane)
{
    struct device *device = lane->device;
    if (!device)
        return;
    lane_release_arena(lane);
    release_scratch(lane);
    recordings_close(lane->recordings);
    if (lane->queue)
        device->api->queue_close(lane->queue);
    for (int i = 0; i < SLICE_SIDES - 1; i++)
        if (lane->side[i])
            device->api->queue_close(lane->side[i]);
    pthread_cond_destroy(&lane->wake);
    memset(lane, 0, sizeof *lane);
}

/* ----------------------------------------------------------------- memory */

enum roped_status lane_need_scratch(struct lane *lane, size_t bytes,
                                    struct roped_error *err)
{
    const struct roped_backend_api *api = lane->device->api;
    size_t wanted = 4096;
    void *scratch;
    if (bytes <= lane->scratch_bytes)
        return ROPED_OK;
    while (wanted < bytes)
        wanted *= 2;
    release_scratch(lane);
    enum roped_status status =
        api->host_alloc(lane->device->backend, wanted, &scratch, err);
    if (status)
        return status;
    lane->scratch = scratch;
    lane->scratch_bytes = wanted;
    atomic_fetch_add(&lane->device->scratch_bytes, wanted);
    return ROPED_OK;
}

void lane_release_arena(struct lane *lane)
{
    struct device *device = lane->device;
    if (!lane->arena)
        return;
    device_memory_give(&device->memory, FOR_CALLS, lane->arena_bytes,
                       lane->arena);
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
    device->reclaim(device);
    return device_claim(device, bytes) ? bytes : 0;
}

static enum roped_status need_arena(struct lane *lane, struct exec_job *job,
                                    uint64_t bytes)
{
    struct device *device = lane->device;
    struct roped_error *err = &job->error;
    const char *copies = job->placement.has_elsewhere
                             ? ", copies of regions of other devices included"
                             : "";
    void *memory;
    if (bytes <= lane->arena_bytes)
        return ROPED_OK;
    if (bytes > device->device_bytes)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "a call needs %llu bytes of device memory%s, "
                          "expected at most %llu (device_bytes)",
                          (unsigned long long)bytes, copies,
                          (unsigned long long)device->device_bytes);
    lane_release_arena(lane);
    uint64_t claimed = claim_arena(device, bytes);
    if (claimed == 0)
        return roped_fail(err, ROPED_BUSY,
                          "device memory is in use by other calls: %llu "
                          "bytes wanted%s, %llu allowed in all",
                          (unsigned long long)bytes, copies,
                          (unsigned long long)device->device_bytes);
    enum roped_status status =
        device_memory_take(&device->memory, FOR_CALLS, claimed, &memory, err);
    if (status) {
        device_release(device, claimed);
        return status;
    }
    lane->arena = memory;
    lane->arena_bytes = claimed;
    return ROPED_OK;
}

/* ---------------------------------------------------------------- regions */

enum roped_status lane_await(struct lane *lane, enum roped_status status,
                             struct roped_error *err)
{
    enum roped_status waited =
        lane->device->api->wait(lane->queue, status ? NULL : err);
    return status ? status : waited;
}

/* Starts to copy what is in a region of another device. */
static enum roped_status fetch(const struct lane *lane,
                               struct roped_queue *queue,
                               const struct placed *p, void *to,
                               const void *from, size_t bytes,
                               struct roped_error *err)
{
    struct device *device = lane->device;
    enum roped_status status = device->api->fetch(
        queue, to, region_backend(p->place->region), from, bytes, err);
    if (!status)
        atomic_fetch_add_explicit(&device->fetched_bytes, bytes,
                                  memory_order_relaxed);
    return status;
}

enum roped_status lane_bring(const struct lane *lane, struct roped_queue *queue,
                             const struct placed *input, void *to,
                             const void *from, size_t bytes,
                             struct roped_error *err)
{
    return input->is_elsewhere
               ? fetch(lane, queue, input, to, from, bytes, err)
               : lane->device->api->upload(queue, to, from, bytes, err);
}

/* Those on another device come by way of this one. */
static enum roped_status download_values(struct lane *lane,
                                         struct exec_job *job,
                                         const struct placed *p, void *memory,
                                         const void *data)
{
    const struct roped_backend_api *api = lane->device->api;
    struct roped_error *err = &job->error;
    size_t bytes = (size_t)p->bytes;
    if (!placement_is_elsewhere(p, lane->device->number))
        return api->download(lane->queue, memory, data, bytes, err);
    enum roped_status status = need_arena(lane, job, p->bytes);
    if (status)
        return status;
    status = fetch(lane, lane->queue, p, lane->arena, data, bytes, err);
    if (!status)
        status = api->download(lane->queue, memory, lane->arena, bytes, err);
    return lane_await(lane, status, err); /* the next may need a larger arena */
}

/*
 * Copies index values out of a region. The copy is what the plan checks and
 * what the kernel gets: the region may change in between, and an unchecked
 * index would let a kernel read and write anywhere.
 */
static enum roped_status read_values(struct lane *lane, struct exec_job *job,
                                     const struct placed *p, void *memory)
{
    size_t bytes = (size_t)p->bytes;
    void *data = p->tensor->data;
    p->tensor->data = memory;
    if (region_is_device(p->place->region))
        return download_values(lane, job, p, memory, data);
    if (bytes)
        memcpy(memory, data, bytes);
    return ROPED_OK;
}

/* Points tensors that are in regions there, or at their values. */
static enum roped_status use_regions(struct lane *lane, struct exec_job *job)
{
    const struct placement *all = &job->placement;
    struct roped_error *err = &job->error;
    unsigned char *memory = job->values;
    if (!all->has_regions)
        return ROPED_OK;
    enum roped_status status = placement_check_memory(job, err);
    for (int i = 0; i < all->n && !status; i++) {
        const struct placed *p = &all->port[i];
        if (!p->place->region)
            continue;
        p->tensor->data = placement_region_data(p);
        if (!p->is_value)
            continue;
        status = read_values(lane, job, p, memory);
        memory += placement_value_stride(p);
    }
    return memory == job->values ? status : lane_await(lane, status, err);
}

/* -------------------------------------------------------------------- run */

enum roped_status lane_mark(struct lane *lane, struct exec_job *job, int at)
{
    const struct roped_backend_api *api = lane->device->api;
    if (!job->placement.has_copies || !api->mark)
        return ROPED_OK;
    return api->mark(lane->queue, at, &job->error);
}

static enum roped_status upload(struct lane *lane, struct exec_job *job)
{
    const struct roped_backend_api *api = lane->device->api;
    const struct placement *all = &job->placement;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < all->n_in && !status; i++) {
        const struct placed *p = &all->port[i];
        if (p->is_copied)
            status = lane_bring(lane, lane->queue, p, p->address, p->home,
                                (size_t)p->span, &job->error);
    }
    if (!status && all->aux_bytes > 0)
        status = api->upload(lane->queue, job->call.aux, lane->scratch,
                             (size_t)all->aux_bytes, &job->error);
    return status;
}

/* Tokens with a stride, without what is between them: others may write there.
 */
static enum roped_status download_tokens(struct lane *lane,
                                         const struct placed *p,
                                         struct roped_error *err)
{
    const struct roped_tensor *tensor = p->tensor;
    size_t element_bytes = roped_dtype_bytes(tensor->dtype);
    const struct roped_byte_rows rows = {
        (size_t)roped_tensor_tokens(tensor),
        (size_t)roped_tensor_token(tensor) * element_bytes,
        (size_t)tensor->stride * element_bytes};
    return lane->device->api->download_rows(lane->queue, p->home, p->address,
                                            &rows, err);
}

static enum roped_status download(struct lane *lane, struct exec_job *job)
{
    const struct placement *all = &job->placement;
    enum roped_status status = ROPED_OK;
    for (int i = all->n_in; i < all->n && !status; i++) {
        const struct placed *p = &all->port[i];
        if (p->is_copied && p->tensor->stride)
            status = download_tokens(lane, p, &job->error);
        else if (p->is_copied)
            status =
                lane->device->api->download(lane->queue, p->home, p->address,
                                            (size_t)p->bytes, &job->error);
    }
    return status;
}

static uint64_t nanoseconds(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

void lane_read_timing(struct lane *lane, struct exec_job *job,
                      uint64_t start_ns)
{
    const struct roped_backend_api *api = lane->device->api;
    if (!job->placement.has_copies || !api->mark) {
        job->timing.kernel_ns = lane_now_ns() - start_ns;
        return;
    }
    job->timing.h2d_ns = nanoseconds(
        api->seconds_between(lane->queue, LANE_MARK_START, LANE_MARK_UPLOADED));
    if (job->placement.uses_inbox) /* the body's end: a call waits for it */
        job->timing.h2d_ns += nanoseconds(
            api->seconds_between(lane->queue, INBOX_MARK_LAST, INBOX_MARK_END));
    job->timing.kernel_ns = nanoseconds(api->seconds_between(
        lane->queue, LANE_MARK_UPLOADED, LANE_MARK_COMPUTED));
    job->timing.d2h_ns = nanoseconds(api->seconds_between(
        lane->queue, LANE_MARK_COMPUTED, LANE_MARK_DOWNLOADED));
}

static enum roped_status compute(struct lane *lane, struct exec_job *job,
                                 uint64_t start_ns)
{
    const struct roped_backend_api *api = lane->device->api;
    enum roped_status status = lane_mark(lane, job, LANE_MARK_START);
    if (!status)
        status = upload(lane, job);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_UPLOADED);
    if (!status)
        status = api->launch(lane->queue, &job->call, &job->error);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_COMPUTED);
    if (!status)
        status = download(lane, job);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_DOWNLOADED);
    status = lane_await(lane, status, &job->error);
    if (!status)
        lane_read_timing(lane, job, start_ns);
    return status;
}

/* All that the host does before the device: what it learns is in job->call. */
static enum roped_status plan(struct lane *lane, struct exec_job *job,
                              size_t aux_bytes, struct resident_table **table)
{
    struct roped_error *err = &job->error;
    enum roped_status status = lane_need_scratch(lane, aux_bytes, err);
    if (status)
        return status;
    job->call.aux = aux_bytes ? lane->scratch : NULL;
    poison_taken(job->call.aux, aux_bytes);
    status = use_regions(lane, job);
    if (!status)
        status = roped_call_plan(&job->call, err);
    if (!status && job->call.table.wanted)
        status = resident_use(lane->device->resident, lane->queue,
                              &job->call.table, table, err);
    return status;
}

enum roped_status lane_take_arena(struct lane *lane, struct exec_job *job,
                                  uint64_t bytes)
{
    enum roped_status status = need_arena(lane, job, bytes);
    return status ? status
                  : poison_device(lane->device->api, lane->queue, lane->arena,
                                  bytes, &job->error);
}

/* In slices. Their copies overlap, so all of it is the kernel's time. */
static enum roped_status compute_slices(struct lane *lane, struct exec_job *job,
                                        const struct slices *slices,
                                        uint64_t start_ns)
{
    enum roped_status status =
        lane_take_arena(lane, job, slices_arena_bytes(slices));
    if (!status)
        status =
            lane_need_scratch(lane, slices_scratch_bytes(slices), &job->error);
    if (!status)
        status = slices_run(slices, lane, job);
    job->timing.kernel_ns = lane_now_ns() - start_ns;
    return status;
}

static enum roped_status compute_whole(struct lane *lane, struct exec_job *job,
                                       uint64_t start_ns)
{
    enum roped_status status =
        lane_take_arena(lane, job, job->placement.arena_bytes);
    if (status)
        return status;
    placement_enter(job, lane->arena);
    status = compute(lane, job, start_ns);
    placement_leave(job);
    return status;
}

static enum roped_status run_call(struct lane *lane, struct exec_job *job,
                                  struct resident_table **table)
{
    uint64_t start_ns = lane_now_ns();
    size_t aux_bytes = roped_call_aux_bytes(&job->call);
    enum roped_status status = plan(lane, job, aux_bytes, table);
    uint64_t planned_ns = lane_now_ns();
    job->timing.plan_ns = planned_ns - start_ns;
    if (status)
        return status;
    placement_settle(job, lane->device, aux_bytes);
    struct slices slices = slices_of(job, lane->device);
    status = slices.n ? compute_slices(lane, job, &slices, planned_ns)
                      : compute_whole(lane, job, planned_ns);
    return status ? status : placement_check_memory(job, &job->error);
}

/* Moves bytes between host memory and a region, or clears that. */
static enum roped_status transfer(struct lane *lane, struct exec_job *job)
{
    const struct roped_backend_api *api = lane->device->api;
    struct roped_error *err = &job->error;
    unsigned char *data = region_data(job->transfer.region);
    void *host = job->transfer.host;
    size_t bytes = (size_t)job->transfer.bytes;
    uint64_t start_ns = lane_now_ns();
    enum roped_status status =
        job->work == EXEC_LOAD
            ? ROPED_OK
            : poison_device(api, lane->queue, data, bytes, err);
    if (!status)
        status = job->work == EXEC_STORE
                     ? api->upload(lane->queue, data, host, bytes, err)
                 : job->work == EXEC_LOAD
                     ? api->download(lane->queue, host, data, bytes, err)
                     : api->clear(lane->queue, data, bytes, err);
    status = lane_await(lane, status, err);
    if (!status && job->work != EXEC_LOAD &&
        bytes == region_info(job->transfer.region)->bytes)
        region_set_written(job->transfer.region);
    uint64_t ns = lane_now_ns() - start_ns;
    *(job->work == EXEC_LOAD ? &job->timing.d2h_ns : &job->timing.h2d_ns) = ns;
    return status;
}

/* What a job does on the lane's queue. */
static enum roped_status run_work(struct lane *lane, struct exec_job *job)
{
    struct resident_table *table = NULL;
    if (job->work == EXEC_TASK) {
        job->lane = lane;
        return job->task(job);
    }
    if (job->work == EXEC_PROGRAM)
        return lane_program(lane, job);
    if (job->work != EXEC_CALL)
        return transfer(lane, job);
    enum roped_status status = run_call(lane, job, &table);
    resident_unuse(lane->device->resident, table);
    return status;
}

/* On the queue of its inbox, if it has one: behind the copies. */
static void run(struct lane *lane, struct exec_job *job)
{
    struct roped_queue *own = lane->queue;
    if (job->inbox)
        lane->queue = job->inbox->queue;
    job->status = run_work(lane, job);
    lane->queue = own;
}

/* A call that was refused has not waited for the copies of its body. */
static void await_inbox(struct exec_job *job)
{
    enum roped_status status =
        inbox_wait(job->inbox, job->status ? NULL : &job->error);
    if (!job->status)
        job->status = status;
}

enum roped_status lane_check(struct exec_job *job, uint64_t now_ns)
{
    job->timing.queue_ns = now_ns - job->accepted_ns;
    if (atomic_load(&job->is_canceled))
        return roped_fail(&job->error, ROPED_CANCELED, "the client went away");
    if (job->deadline_ns && job->deadline_ns <= now_ns)
        return roped_fail(&job->error, ROPED_DEADLINE,
                          "the call waited %.3f s for a lane",
                          (double)job->timing.queue_ns * 1e-9);
    return ROPED_OK;
}

void lane_run(struct lane *lane, struct exec_job *job)
{
    uint64_t now = lane_now_ns();
    if (job->is_gone && !atomic_load(&job->is_canceled) && job->is_gone(job))
        atomic_store(&job->is_canceled, true);
    job->status = lane_check(job, now);
    if (!job->status)
        run(lane, job);
    if (job->inbox)
        await_inbox(job);
    if (job->status == ROPED_DEVICE)
        atomic_fetch_add(&lane->device->errors, 1);
    if (lane->arena_bytes > lane->device->lane_bytes)
        lane_release_arena(lane);
    if (lane->scratch_bytes > KEPT_SCRATCH_BYTES)
        release_scratch(lane);
    atomic_fetch_add_explicit(&lane->jobs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&lane->busy_ns, lane_now_ns() - now,
                              memory_order_relaxed);
}
