/*
 * executor.c - its life, admission, who gets an inbox, and jobs that end
 * without a lane. See executor.h for the design and executor's one lock.
 */
#include "exec/dispatch.h"

#include "exec/inbox.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What inboxes may take of a device's memory for calls: one part in so many. */
enum { INBOXES_SHARE = 4 };

enum { LEAST_TRIM_NS = 10000000 }; /* between two looks at kept memory */

/* ---------------------------------------------------------------- expiring */

static struct exec_job *expiring_job(struct heap_node *node)
{
    return (struct exec_job *)((char *)node -
                               offsetof(struct exec_job, expires));
}

static struct exec_job *first_to_expire(const struct executor *exec)
{
    struct heap_node *node = exec->expiring.first;
    return node ? expiring_job(node) : NULL;
}

/* Under lock: any job that waits. */
static struct exec_job *any_waiting(struct executor *exec)
{
    struct exec_job *job = NULL;
    for (int i = -1; i < exec->n_devices && !job; i++)
        job = dispatch_next(exec, i);
    return job;
}

/* Under lock: a job waits no longer, to be ended without a lane. */
static void take_out(struct executor *exec, struct exec_job *job,
                     struct exec_job **list)
{
    dispatch_remove(exec, job);
    exec->n_ending++;
    job->next = *list;
    *list = job;
}

/* Under lock: takes out those whose deadline has passed, or all. */
static struct exec_job *take_expired(struct executor *exec, uint64_t now_ns)
{
    struct exec_job *list = NULL, *job;
    while ((job = first_to_expire(exec)) && job->deadline_ns <= now_ns)
        take_out(exec, job, &list);
    return list;
}

/* Under lock: takes out those that nobody waits for. */
static struct exec_job *take_gone(struct executor *exec)
{
    struct exec_job *list = NULL, *gone = NULL;
    for (struct heap_node *node = exec->expiring.first; node;
         node = heap_walk(node)) {
        struct exec_job *job = expiring_job(node);
        if (!job->is_gone || !job->is_gone(job))
            continue;
        atomic_store(&job->is_canceled, true);
        job->next = gone;
        gone = job;
    }
    while (gone) {
        struct exec_job *job = gone;
        gone = job->next;
        take_out(exec, job, &list);
    }
    return list;
}

static struct exec_job *take_all(struct executor *exec)
{
    struct exec_job *list = NULL, *job;
    while ((job = any_waiting(exec)))
        take_out(exec, job, &list);
    return list;
}

/* Under lock, which it lets go for each done: ends jobs without a lane. */
static void end_jobs(struct executor *exec, struct exec_job *jobs,
                     uint64_t now_ns)
{
    while (jobs) {
        struct exec_job *job = jobs;
        jobs = job->next;
        pthread_mutex_unlock(&exec->lock);
        job->status = lane_check(job, now_ns);
        if (!job->status)
            job->status = roped_fail(&job->error, ROPED_CANCELED, "%s",
                                     atomic_load(&exec->refusal));
        job->done(job);
        pthread_mutex_lock(&exec->lock);
        exec->n_ending--;
    }
    dispatch_tell_idle(exec);
}

/* Under lock, which it lets go: gives back memory that is kept and not used,
 * so often that the trim which ends it comes keep_ns after the first. */
static void trim(struct executor *exec, uint64_t now_ns)
{
    uint64_t interval_ns = exec->options.keep_ns / MEMORY_TRIMS;
    if (interval_ns < LEAST_TRIM_NS)
        interval_ns = LEAST_TRIM_NS;
    exec->trim_ns = exec->options.keep_ns ? now_ns + interval_ns : UINT64_MAX;
    pthread_mutex_unlock(&exec->lock);
    memory_trim(exec->memory);
    pthread_mutex_lock(&exec->lock);
}

/* Under lock, which it lets go. */
static void wait_to_sweep(struct executor *exec)
{
    const struct exec_job *first = first_to_expire(exec);
    uint64_t next_ns = first ? first->deadline_ns : UINT64_MAX;
    next_ns = next_ns < exec->trim_ns ? next_ns : exec->trim_ns;
    exec->sweep_ns = next_ns;
    if (next_ns == UINT64_MAX) {
        pthread_cond_wait(&exec->sweep, &exec->lock);
    } else {
        struct timespec until = {(time_t)(next_ns / 1000000000u),
                                 (long)(next_ns % 1000000000u)};
        pthread_cond_timedwait(&exec->sweep, &exec->lock, &until);
    }
}

static void *sweep(void *context)
{
    struct executor *exec = context;
    pthread_mutex_lock(&exec->lock);
    while (!exec->is_closing) {
        uint64_t now = lane_now_ns();
        struct exec_job *expired = take_expired(exec, now);
        if (expired)
            end_jobs(exec, expired, now);
        else if (now >= exec->trim_ns)
            trim(exec, now);
        else
            wait_to_sweep(exec);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

/* ------------------------------------------------------------- life cycle */

static void init_sync(struct executor *exec)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&exec->lock, NULL);
    pthread_cond_init(&exec->idle, &monotonic);
    pthread_cond_init(&exec->sweep, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Sets up what a device has before its backend is open. */
static enum roped_status init_device(struct executor *exec, int number,
                                     int index, struct roped_error *err)
{
    struct device *device = &exec->device[number];
    const struct exec_options *options = &exec->options;
    bool has_inboxes = options->stage_bytes > 0 && !exec->api->is_host;
    uint64_t inboxes = has_inboxes ? options->device_bytes / INBOXES_SHARE : 0;
    *device = (struct device){.api = exec->api,
                              .exec = exec,
                              .lock = &exec->lock,
                              .reclaim = dispatch_reclaim,
                              .number = number,
                              .index = index,
                              .device_bytes = options->device_bytes,
                              .lane_bytes = (options->device_bytes - inboxes) /
                                            (uint64_t)options->n_lanes,
                              .mapped_bytes = options->mapped_bytes,
                              .inbox_limit_bytes = inboxes};
    size_t bytes = (size_t)options->n_lanes * sizeof *device->lane;
    device->lane = aligned_alloc(CACHE_LINE, bytes);
    if (!device->lane)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the lanes");
    memset(device->lane, 0, bytes);
    return ROPED_OK;
}

static enum roped_status
open_devices(struct executor *exec,
             const struct roped_backend_options *backend_options,
             struct roped_error *err)
{
    const struct exec_options *options = &exec->options;
    int n = options->devices ? options->n_devices : 1;
    exec->device = calloc((size_t)n, sizeof *exec->device);
    exec->resident = calloc((size_t)n, sizeof(struct resident *));
    enum roped_status status =
        exec->device && exec->resident
            ? ROPED_OK
            : roped_fail(err, ROPED_NO_MEMORY, "no memory for the devices");
    for (int i = 0; i < n && !status; i++) {
        struct device *device = &exec->device[i];
        exec->n_devices = i + 1;
        status = init_device(exec, i,
                             options->devices ? options->devices[i]
                                              : backend_options->device,
                             err);
        if (!status)
            status = device_open(device, backend_options,
                                 options->table_budget_bytes,
                                 options->table_bytes, err);
        exec->resident[i] = device->resident;
    }
    return status;
}

static enum roped_status open_regions(struct executor *exec,
                                      struct roped_error *err)
{
    size_t n = (size_t)exec->n_devices;
    struct device_memory **memory = calloc(n, sizeof(struct device_memory *));
    if (!memory)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the regions");
    for (size_t i = 0; i < n; i++)
        memory[i] = &exec->device[i].memory;
    enum roped_status status = regions_open(
        memory, (int)n, exec->options.region_bytes, &exec->regions, err);
    free(memory);
    return status;
}

static enum roped_status start_lane(struct device *device,
                                    struct roped_error *err)
{
    struct lane *lane = &device->lane[device->n_lanes++];
    enum roped_status status = lane_init(lane, device, err);
    if (status)
        return status;
    lane->has_thread =
        pthread_create(&lane->thread, NULL, dispatch_thread, lane) == 0;
    return lane->has_thread
               ? ROPED_OK
               : roped_fail(err, ROPED_NO_MEMORY,
                            "cannot start the thread of lane %d of device %d",
                            device->n_lanes - 1, device->number);
}

static enum roped_status start_threads(struct executor *exec,
                                       struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < exec->n_devices; i++)
        for (int j = 0; j < exec->options.n_lanes && !status; j++)
            status = start_lane(&exec->device[i], err);
    if (status)
        return status;
    exec->has_sweeper = pthread_create(&exec->sweeper, NULL, sweep, exec) == 0;
    if (!exec->has_sweeper)
        return roped_fail(err, ROPED_NO_MEMORY, "cannot start a thread");
    return ROPED_OK;
}

enum roped_status exec_open(const struct roped_backend_api *api,
                            const struct roped_backend_options *backend_options,
                            const struct exec_options *options,
                            struct executor **out, struct roped_error *err)
{
    assert(options->n_lanes > 0);
    struct executor *exec = aligned_alloc(CACHE_LINE, sizeof *exec);
    if (!exec)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for an executor");
    memset(exec, 0, sizeof *exec);
    init_sync(exec);
    atomic_init(&exec->refusal, NULL);
    exec->options = *options;
    exec->api = api;
    enum roped_status status = open_devices(exec, backend_options, err);
    /* page-locked once: portable, so that every device reaches it */
    if (!status)
        status = memory_open(api, exec->device[0].backend, options->pool_bytes,
                             options->host_bytes, &exec->memory, err);
    if (!status)
        status = tenants_open(&exec->tenants, err);
    if (!status)
        status =
            tables_open(exec->resident, exec->n_devices, &exec->tables, err);
    if (!status)
        status = programs_open(exec->memory, &exec->programs, err);
    if (!status)
        status = open_regions(exec, err);
    if (!status)
        status = start_threads(exec, err);
    if (status) {
        exec_close(exec);
        return status;
    }
    *out = exec;
    return ROPED_OK;
}

void exec_refuse(struct executor *exec, const char *why)
{
    pthread_mutex_lock(&exec->lock);
    atomic_store(&exec->refusal, why);
    atomic_store(&exec->is_draining, true);
    end_jobs(exec, take_all(exec), lane_now_ns());
    pthread_mutex_unlock(&exec->lock);
}

void exec_drain(struct executor *exec, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u),
                             (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&exec->lock);
    atomic_store(&exec->refusal, "the server is shutting down");
    atomic_store(&exec->is_draining, true);
    while (!dispatch_is_idle(exec))
        if (pthread_cond_timedwait(&exec->idle, &exec->lock, &until) != 0)
            break;
    uint64_t now_ns = lane_now_ns();
    end_jobs(exec, take_all(exec), now_ns);
    /* what runs on the device cannot be called back: it ends soon */
    while (!dispatch_is_idle(exec))
        pthread_cond_wait(&exec->idle, &exec->lock);
    pthread_mutex_unlock(&exec->lock);
}

static void stop_lanes(struct device *device)
{
    for (int i = 0; i < device->n_lanes; i++) {
        struct lane *lane = &device->lane[i];
        if (lane->has_thread)
            pthread_join(lane->thread, NULL);
        lane_fini(lane);
    }
    inbox_free_idle(device);
}

void exec_close(struct executor *exec)
{
    if (!exec)
        return;
    pthread_mutex_lock(&exec->lock);
    exec->is_closing = true;
    for (int i = 0; i < exec->n_devices; i++)
        for (int j = 0; j < exec->device[i].n_lanes; j++)
            pthread_cond_signal(&exec->device[i].lane[j].wake);
    pthread_cond_broadcast(&exec->sweep);
    pthread_mutex_unlock(&exec->lock);
    for (int i = 0; i < exec->n_devices; i++)
        stop_lanes(&exec->device[i]);
    if (exec->has_sweeper)
        pthread_join(exec->sweeper, NULL);
    regions_close(exec->regions);
    programs_close(exec->programs);
    tables_close(exec->tables);
    tenants_close(exec->tenants);
    memory_close(exec->memory);
    for (int i = 0; i < exec->n_devices; i++) {
        device_close(&exec->device[i]);
        free(exec->device[i].lane);
    }
    pthread_cond_destroy(&exec->idle);
    pthread_cond_destroy(&exec->sweep);
    pthread_mutex_destroy(&exec->lock);
    free(exec->resident);
    free(exec->device);
    free(exec);
}

/* ---------------------------------------------------------------- submit */

/* Is this job refused, whatever room there is? */
static bool is_shut(const struct executor *exec, const struct exec_job *job)
{
    return atomic_load(&exec->refusal) && !job->is_continued;
}

bool exec_run_inline(struct executor *exec, struct exec_job *job)
{
    dispatch_start(exec, job);
    if (job->work_bytes > exec->options.inline_bytes ||
        atomic_load_explicit(&exec->n_waiting_short, memory_order_relaxed) > 0)
        return false;
    struct lane *lane = dispatch_claim(exec, job);
    if (!lane)
        return false;
    if (is_shut(exec, job)) { /* not before: a drain looks at the lanes next */
        dispatch_release(lane);
        return false;
    }
    dispatch_occupy(lane, job);
    dispatch_run(lane, job);
    return true;
}

/* Under lock: *wakes is a lane that got a job. */
static enum roped_status admit(struct executor *exec, struct exec_job *job,
                               struct lane **wakes, struct roped_error *err)
{
    int depth = exec->options.queue_depth;
    bool may_wait = atomic_load(&exec->n_waiting) < depth || job->is_continued;
    *wakes = NULL;
    if (is_shut(exec, job))
        return roped_fail(err, ROPED_DRAINING, "%s",
                          atomic_load(&exec->refusal));
    if (dispatch_place(exec, job, may_wait, wakes))
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "Exceeds maximum queue size: %d calls wait", depth);
}

enum roped_status exec_submit(struct executor *exec, struct exec_job *job,
                              struct roped_error *err)
{
    struct lane *wakes;
    dispatch_start(exec, job);
    pthread_mutex_lock(&exec->lock);
    enum roped_status status = admit(exec, job, &wakes, err);
    const struct heap_node *first = exec->expiring.first;
    bool ends_before_sweep = first && first->key < exec->sweep_ns;
    pthread_mutex_unlock(&exec->lock);
    /* not before: who is woken would run into the lock */
    if (wakes)
        dispatch_wake(wakes);
    if (ends_before_sweep)
        pthread_cond_signal(&exec->sweep);
    return status;
}

void exec_end_gone(struct executor *exec)
{
    pthread_mutex_lock(&exec->lock);
    end_jobs(exec, take_gone(exec), lane_now_ns());
    pthread_mutex_unlock(&exec->lock);
}

bool exec_has_room(struct executor *exec)
{
    return atomic_load_explicit(&exec->n_waiting, memory_order_relaxed) <
           exec->options.queue_depth;
}

const char *exec_refusal(struct executor *exec)
{
    return atomic_load(&exec->refusal);
}

bool exec_is_healthy(struct executor *exec)
{
    bool is_healthy = true;
    for (int i = 0; i < exec->n_devices; i++)
        is_healthy &= exec->api->is_healthy(exec->device[i].backend, NULL);
    return is_healthy;
}

int exec_lost_device(struct executor *exec, struct roped_error *why)
{
    int lost = -1;
    why->text[0] = '\0';
    for (int i = 0; i < exec->n_devices && !why->text[0]; i++)
        if (!exec->api->is_healthy(exec->device[i].backend, why))
            lost = i;
    return lost;
}

struct memory_pool *exec_memory(struct executor *exec)
{
    return exec->memory;
}

struct tenants *exec_tenants(struct executor *exec)
{
    return exec->tenants;
}

struct tables *exec_tables(struct executor *exec)
{
    return exec->tables;
}

struct programs *exec_programs(struct executor *exec)
{
    return exec->programs;
}

struct regions *exec_regions(struct executor *exec)
{
    return exec->regions;
}

const struct roped_backend_api *exec_backend(struct executor *exec)
{
    return exec->api;
}

/* --------------------------------------------- bodies uploaded on arrival */

/* Under lock: where a call that may run there would go now. */
static struct device *least_busy(struct executor *exec, int device)
{
    struct device *best = &exec->device[device < 0 ? 0 : device];
    for (int i = 0; i < exec->n_devices && device < 0; i++)
        if (dispatch_bytes(&exec->device[i]) < dispatch_bytes(best))
            best = &exec->device[i];
    return best;
}

/*
 * The one place that decides whether a body is uploaded while it arrives, and
 * to which device.
 *
 * Whether: up to stage_bytes it is not, since a call of 4 MiB is used where it
 * is, or uploaded in less time than handing it over takes. Beyond, the copies
 * hide behind the socket. Measured with 64 MiB of BF16 on an H200, one
 * connection on the loopback: receive 18.5 ms, then upload 1.3, kernel 0.04,
 * download 1.2; with 4 MiB at a time what is left of the upload when the body
 * is complete is its last chunk, 0.08 ms at 55 GB/s.
 *
 * Where: on the device of the call's regions; else on the one that moves the
 * fewest bytes right now, bodies on their way to it included, by the same
 * measure as dispatch_claim. If that has no inbox to spare the call gets none,
 * rather than one on a busier device: it is then free to run anywhere, and the
 * device where it runs makes an inbox for the next.
 */
void exec_inbox_open(struct executor *exec, struct exec_job *job,
                     const void *host, uint64_t first, uint64_t bytes)
{
    if (exec->options.stage_bytes == 0 || exec->api->is_host ||
        bytes - first <= exec->options.stage_bytes ||
        inbox_capacity(bytes) > exec->device[0].inbox_limit_bytes)
        return;
    placement_measure(job, false);
    pthread_mutex_lock(&exec->lock);
    job->inbox = inbox_take(least_busy(exec, job->device), bytes);
    pthread_mutex_unlock(&exec->lock);
    job->inbox_lacked = job->inbox ? 0 : bytes;
    if (job->inbox)
        inbox_begin(job->inbox, host, first, bytes,
                    exec->options.stage_chunk_bytes);
}

void exec_inbox_advance(struct exec_job *job, uint64_t end)
{
    if (job->inbox)
        inbox_advance(job->inbox, end);
}

static enum roped_status wait_for_copies(struct exec_job *job)
{
    return inbox_wait(job->owner, &job->error);
}

/* A job that was ended without a lane has not waited. A device that is lost,
 * which is what an error here is, copies nothing any more. */
static void give_all_back(struct exec_job *job)
{
    struct inbox *inbox = job->owner;
    if (job->status)
        (void)!inbox_wait(inbox, NULL);
    memory_give(inbox->device->exec->memory, &inbox->block);
    inbox_put_back(inbox);
}

void exec_inbox_abandon(struct executor *exec, struct exec_job *job,
                        struct memory_block *block)
{
    struct inbox *inbox = job->inbox;
    struct lane *wakes;
    job->inbox = NULL;
    if (!inbox)
        return;
    if (inbox->sent == inbox->first) { /* nothing was copied */
        inbox_put_back(inbox);
        return;
    }
    inbox->block = *block;
    *block = (struct memory_block){.start = NULL};
    inbox->end = (struct exec_job){.work = EXEC_TASK,
                                   .task = wait_for_copies,
                                   .is_continued = true,
                                   .done = give_all_back,
                                   .owner = inbox};
    dispatch_start(exec, &inbox->end);
    inbox->end.device = inbox->device->number;
    pthread_mutex_lock(&exec->lock);
    /* past every bound, and also while draining: it was let in long ago */
    (void)dispatch_place(exec, &inbox->end, true, &wakes);
    pthread_mutex_unlock(&exec->lock);
    if (wakes)
        dispatch_wake(wakes);
}

/* ------------------------------------------------------------------- usage */

void exec_usage(struct executor *exec, struct exec_usage *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&exec->lock);
    out->n_waiting_again = exec->n_waiting_again;
    out->n_waiting = atomic_load(&exec->n_waiting) - out->n_waiting_again;
    pthread_mutex_unlock(&exec->lock);
    for (int i = 0; i < exec->n_devices; i++) {
        struct device *device = &exec->device[i];
        out->n_lanes += device->n_lanes;
        out->n_busy_lanes += dispatch_n_busy(device);
        out->device_arena_bytes += atomic_load(&device->arena_bytes);
        out->device_errors += atomic_load(&device->errors);
    }
}

int exec_n_devices(const struct executor *exec)
{
    return exec->n_devices;
}

void exec_device_info(struct executor *exec, int number,
                      struct roped_device_info *out)
{
    exec->api->info(exec->device[number].backend, out);
}

void exec_device_usage(struct executor *exec, int number,
                       struct exec_device_usage *out)
{
    struct device *device = &exec->device[number];
    uint64_t jobs = 0, busy_ns = 0;
    for (int i = 0; i < device->n_lanes; i++) {
        jobs += atomic_load(&device->lane[i].jobs);
        busy_ns += atomic_load(&device->lane[i].busy_ns);
    }
    out->n_busy_lanes = dispatch_n_busy(device);
    out->n_lanes = device->n_lanes;
    out->index = device->index;
    out->is_healthy = exec->api->is_healthy(device->backend, NULL);
    out->arena_bytes = atomic_load(&device->arena_bytes);
    out->arena_limit_bytes = device->device_bytes;
    out->region_bytes = regions_device_bytes(exec->regions, number);
    out->region_limit_bytes = exec->options.region_bytes;
    out->scratch_bytes = atomic_load(&device->scratch_bytes);
    out->jobs = jobs;
    out->errors = atomic_load(&device->errors);
    out->early_bytes = atomic_load(&device->early_bytes);
    out->fetched_bytes = atomic_load(&device->fetched_bytes);
    out->captures = atomic_load(&device->recorded.captures);
    out->replays = atomic_load(&device->recorded.replays);
    out->fallbacks = atomic_load(&device->recorded.fallbacks);
    out->busy_seconds = (double)busy_ns * 1e-9;
}

int exec_find_device(const struct executor *exec, uint64_t index)
{
    for (int i = 0; i < exec->n_devices; i++)
        if ((uint64_t)exec->device[i].index == index)
            return i;
    return -1;
}
