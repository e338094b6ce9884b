/*
 * executor.c - the queue of jobs, and the threads that drive the lanes. See
 * executor.h for the design and executor's one lock.
 */
#include "exec/executor.h"

#include "exec/lane.h"
#include "exec/places.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum lane_state { LANE_IDLE, LANE_BUSY };

struct driver {
    struct executor *exec;
    struct lane lane;
    pthread_t thread;
    bool has_thread;
    enum lane_state state; /* guarded by lock */
};

struct executor {
    struct lane_shared shared;
    struct memory_pool *memory;
    struct regions *regions;
    struct exec_options options;
    int n_drivers;
    struct driver *driver;
    pthread_t sweeper; /* ends jobs whose deadline passes while they wait */
    bool has_sweeper;

    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t work;  /* a job waits, or closing */
    pthread_cond_t idle;  /* nothing waits and nothing runs */
    pthread_cond_t sweep; /* a job with a deadline waits, or closing */
    struct exec_job *first, **last;
    int n_queued, n_busy;
    int n_ending; /* jobs that left the queue without a lane, done under way */
    bool is_draining, is_closing;
};

/* ------------------------------------------------------------------ queue */

/* Under lock. */
static struct exec_job *pop(struct executor *exec)
{
    struct exec_job *job = exec->first;
    exec->first = job->next;
    if (!exec->first)
        exec->last = &exec->first;
    exec->n_queued--;
    return job;
}

/* Under lock: tells who waits for the end of all work, if this is it. */
static void tell_idle(struct executor *exec)
{
    if (exec->n_busy == 0 && exec->n_ending == 0 && !exec->first)
        pthread_cond_broadcast(&exec->idle);
}

/*
 * For a lane that finds the device memory of all lanes claimed: frees what
 * idle ones keep. Nobody else can take such a lane meanwhile.
 */
static void reclaim_arenas(void *context)
{
    struct executor *exec = context;
    for (int i = 0; i < exec->n_drivers; i++) {
        struct driver *driver = &exec->driver[i];
        pthread_mutex_lock(&exec->lock);
        bool is_idle = driver->state == LANE_IDLE;
        if (is_idle)
            driver->state = LANE_BUSY;
        pthread_mutex_unlock(&exec->lock);
        if (!is_idle)
            continue;
        lane_release_arena(&driver->lane);
        pthread_mutex_lock(&exec->lock);
        driver->state = LANE_IDLE;
        if (exec->first)
            pthread_cond_broadcast(&exec->work);
        pthread_mutex_unlock(&exec->lock);
    }
}

static void *drive_lane(void *context)
{
    struct driver *driver = context;
    struct executor *exec = driver->exec;
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        /* an inline job or reclaim may hold this lane for a moment */
        while (!exec->is_closing &&
               (!exec->first || driver->state == LANE_BUSY))
            pthread_cond_wait(&exec->work, &exec->lock);
        if (exec->is_closing)
            break;
        struct exec_job *job = pop(exec);
        driver->state = LANE_BUSY;
        exec->n_busy++;
        pthread_mutex_unlock(&exec->lock);
        lane_run(&driver->lane, job);
        job->done(job);
        pthread_mutex_lock(&exec->lock);
        driver->state = LANE_IDLE;
        exec->n_busy--;
        tell_idle(exec);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

/* Under lock: unlinks every waiting job that must end now. */
static struct exec_job *take_expired(struct executor *exec, uint64_t now_ns,
                                     bool take_all, uint64_t *next_ns)
{
    struct exec_job *expired = NULL, **link = &exec->first, **end = &expired;
    *next_ns = UINT64_MAX;
    while (*link) {
        struct exec_job *job = *link;
        bool is_late = job->deadline_ns && job->deadline_ns <= now_ns;
        if (!is_late && !take_all && !atomic_load(&job->is_canceled)) {
            if (job->deadline_ns && job->deadline_ns < *next_ns)
                *next_ns = job->deadline_ns;
            link = &job->next;
            continue;
        }
        *link = job->next;
        job->next = NULL;
        *end = job;
        end = &job->next;
        exec->n_queued--;
        exec->n_ending++;
    }
    exec->last = link;
    return expired;
}

/* Under lock, which it lets go for each done: ends jobs without a lane. */
static void end_jobs(struct executor *exec, struct exec_job *jobs,
                     uint64_t now_ns)
{
    while (jobs) {
        struct exec_job *job = jobs;
        jobs = job->next;
        pthread_mutex_unlock(&exec->lock);
        job->timing.queue_ns = now_ns - job->accepted_ns;
        if (atomic_load(&job->is_canceled))
            job->status =
                roped_fail(&job->error, ROPED_CANCELED, "the client went away");
        else if (job->deadline_ns && job->deadline_ns <= now_ns)
            job->status = roped_fail(&job->error, ROPED_DEADLINE,
                                     "the call waited %.3f s for a lane",
                                     (double)job->timing.queue_ns * 1e-9);
        else
            job->status = roped_fail(&job->error, ROPED_CANCELED,
                                     "the server is shutting down");
        job->done(job);
        pthread_mutex_lock(&exec->lock);
        exec->n_ending--;
    }
    tell_idle(exec);
}

static void *sweep_queue(void *context)
{
    struct executor *exec = context;
    uint64_t next_ns;
    pthread_mutex_lock(&exec->lock);
    while (!exec->is_closing) {
        uint64_t now = lane_now_ns();
        struct exec_job *expired = take_expired(exec, now, false, &next_ns);
        if (expired) {
            end_jobs(exec, expired, now);
            continue;
        }
        if (next_ns == UINT64_MAX) {
            pthread_cond_wait(&exec->sweep, &exec->lock);
        } else {
            struct timespec until = {(time_t)(next_ns / 1000000000u),
                                     (long)(next_ns % 1000000000u)};
            pthread_cond_timedwait(&exec->sweep, &exec->lock, &until);
        }
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
    pthread_cond_init(&exec->work, NULL);
    pthread_cond_init(&exec->idle, &monotonic);
    pthread_cond_init(&exec->sweep, &monotonic);
    pthread_condattr_destroy(&monotonic);
    exec->last = &exec->first;
}

static enum roped_status start_threads(struct executor *exec,
                                       struct roped_error *err)
{
    for (int i = 0; i < exec->options.n_lanes; i++) {
        struct driver *driver = &exec->driver[i];
        driver->exec = exec;
        enum roped_status status = lane_init(&driver->lane, &exec->shared, err);
        exec->n_drivers = i + 1;
        if (status)
            return status;
        if (pthread_create(&driver->thread, NULL, drive_lane, driver) != 0)
            return roped_fail(err, ROPED_NO_MEMORY,
                              "cannot start the thread of lane %d", i);
        driver->has_thread = true;
    }
    exec->has_sweeper =
        pthread_create(&exec->sweeper, NULL, sweep_queue, exec) == 0;
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
    struct executor *exec = calloc(1, sizeof *exec);
    if (!exec)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for an executor");
    init_sync(exec);
    exec->options = *options;
    exec->shared.api = api;
    exec->shared.device_bytes = options->device_bytes;
    exec->shared.lane_bytes =
        options->device_bytes / (uint64_t)options->n_lanes;
    exec->shared.reclaim = reclaim_arenas;
    exec->shared.reclaim_context = exec;
    exec->shared.mapped_bytes = options->mapped_bytes;
    exec->driver = calloc((size_t)options->n_lanes, sizeof *exec->driver);
    enum roped_status status =
        exec->driver
            ? api->open(backend_options, &exec->shared.backend, err)
            : roped_fail(err, ROPED_NO_MEMORY, "no memory for the lanes");
    if (!status)
        status = memory_open(api, exec->shared.backend, options->pool_bytes,
                             options->host_bytes, &exec->memory, err);
    if (!status)
        status =
            tables_open(api, exec->shared.backend, options->table_budget_bytes,
                        options->table_bytes, &exec->shared.tables, err);
    if (!status)
        status = regions_open(api, exec->shared.backend, options->region_bytes,
                              &exec->regions, err);
    if (!status)
        status = start_threads(exec, err);
    if (status) {
        exec_close(exec);
        return status;
    }
    *out = exec;
    return ROPED_OK;
}

void exec_drain(struct executor *exec, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u),
                             (long)(deadline_ns % 1000000000u)};
    uint64_t next_ns;
    pthread_mutex_lock(&exec->lock);
    exec->is_draining = true;
    while (exec->first || exec->n_busy > 0 || exec->n_ending > 0)
        if (pthread_cond_timedwait(&exec->idle, &exec->lock, &until) != 0)
            break;
    uint64_t now_ns = lane_now_ns();
    end_jobs(exec, take_expired(exec, now_ns, true, &next_ns), now_ns);
    /* what runs on the device cannot be called back: it ends soon */
    while (exec->n_busy > 0 || exec->n_ending > 0)
        pthread_cond_wait(&exec->idle, &exec->lock);
    pthread_mutex_unlock(&exec->lock);
}

void exec_close(struct executor *exec)
{
    if (!exec)
        return;
    pthread_mutex_lock(&exec->lock);
    exec->is_closing = true;
    pthread_cond_broadcast(&exec->work);
    pthread_cond_broadcast(&exec->sweep);
    pthread_mutex_unlock(&exec->lock);
    for (int i = 0; i < exec->n_drivers; i++) {
        if (exec->driver[i].has_thread)
            pthread_join(exec->driver[i].thread, NULL);
        lane_fini(&exec->driver[i].lane);
    }
    if (exec->has_sweeper)
        pthread_join(exec->sweeper, NULL);
    regions_close(exec->regions);
    tables_close(exec->shared.tables);
    memory_close(exec->memory);
    if (exec->shared.backend)
        exec->shared.api->close(exec->shared.backend);
    pthread_cond_destroy(&exec->work);
    pthread_cond_destroy(&exec->idle);
    pthread_cond_destroy(&exec->sweep);
    pthread_mutex_destroy(&exec->lock);
    free(exec->driver);
    free(exec);
}

/* ---------------------------------------------------------------- submit */

/* Under lock: an idle lane for a job on its caller's thread, or NULL. */
static struct driver *inline_lane(struct executor *exec,
                                  const struct exec_job *job)
{
    if (exec->first || places_bytes(job) > exec->options.inline_bytes)
        return NULL;
    for (int i = 0; i < exec->n_drivers; i++)
        if (exec->driver[i].state == LANE_IDLE)
            return &exec->driver[i];
    return NULL;
}

static void start_job(struct exec_job *job)
{
    job->accepted_ns = lane_now_ns();
    job->next = NULL;
    job->status = ROPED_OK;
    memset(&job->timing, 0, sizeof job->timing);
}

bool exec_run_inline(struct executor *exec, struct exec_job *job)
{
    pthread_mutex_lock(&exec->lock);
    struct driver *driver = exec->is_draining ? NULL : inline_lane(exec, job);
    if (driver) {
        driver->state = LANE_BUSY;
        exec->n_busy++;
    }
    pthread_mutex_unlock(&exec->lock);
    if (!driver)
        return false;
    start_job(job);
    lane_run(&driver->lane, job);
    job->done(job); /* while it counts as busy: drain waits for it */
    pthread_mutex_lock(&exec->lock);
    driver->state = LANE_IDLE;
    exec->n_busy--;
    if (exec->first)
        pthread_cond_broadcast(&exec->work); /* this lane may take it */
    tell_idle(exec);
    pthread_mutex_unlock(&exec->lock);
    return true;
}

enum roped_status exec_submit(struct executor *exec, struct exec_job *job,
                              struct roped_error *err)
{
    start_job(job);
    pthread_mutex_lock(&exec->lock);
    if (exec->is_draining || exec->n_queued >= exec->options.queue_depth) {
        bool is_draining = exec->is_draining;
        pthread_mutex_unlock(&exec->lock);
        if (is_draining)
            return roped_fail(err, ROPED_BUSY, "the server is shutting down");
        return roped_fail(err, ROPED_BUSY,
                          "Exceeds maximum queue size: %d calls wait",
                          exec->options.queue_depth);
    }
    *exec->last = job;
    exec->last = &job->next;
    exec->n_queued++;
    /* a signal could wake the driver of a lane that runs a job inline */
    if (exec->n_busy > 0)
        pthread_cond_broadcast(&exec->work);
    else
        pthread_cond_signal(&exec->work);
    if (job->deadline_ns)
        pthread_cond_signal(&exec->sweep);
    pthread_mutex_unlock(&exec->lock);
    return ROPED_OK;
}

bool exec_has_room(struct executor *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool has_room =
        !exec->is_draining && exec->n_queued < exec->options.queue_depth;
    pthread_mutex_unlock(&exec->lock);
    return has_room;
}

bool exec_is_healthy(struct executor *exec)
{
    return exec->shared.api->is_healthy(exec->shared.backend);
}

struct memory_pool *exec_memory(struct executor *exec)
{
    return exec->memory;
}

struct tables *exec_tables(struct executor *exec)
{
    return exec->shared.tables;
}

struct regions *exec_regions(struct executor *exec)
{
    return exec->regions;
}

const struct roped_backend_api *exec_backend(struct executor *exec)
{
    return exec->shared.api;
}

void exec_device_info(struct executor *exec, struct roped_device_info *out)
{
    exec->shared.api->info(exec->shared.backend, out);
}

void exec_usage(struct executor *exec, struct exec_usage *out)
{
    pthread_mutex_lock(&exec->lock);
    out->n_lanes = exec->n_drivers;
    out->n_busy_lanes = exec->n_busy;
    out->n_queued = exec->n_queued;
    pthread_mutex_unlock(&exec->lock);
    out->device_arena_bytes = atomic_load(&exec->shared.arena_bytes);
    out->device_errors = atomic_load(&exec->shared.device_errors);
}
