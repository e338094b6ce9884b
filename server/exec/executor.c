/*
 * executor.c - the queue of jobs, and the threads that drive the lanes. See
 * executor.h for the design and executor's one lock.
 */
#include "exec/executor.h"

#include "exec/device.h"
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
    struct station *station;
    struct lane lane;
    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake; /* it has a job, or closing */

    /* guarded by lock */
    enum lane_state state;
    struct exec_job *job; /* for its thread to take */
    uint64_t bytes;       /* of the job that runs */
};

/* Jobs that wait, the first come first. */
struct waiting {
    struct exec_job *first, **last;
};

/* A device, its lanes, and the jobs that can run there only. */
struct station {
    struct device device;
    struct executor *exec;
    struct driver *driver; /* n_drivers of them */
    int n_drivers;

    /* guarded by lock */
    struct waiting waiting;
    int n_busy;
    uint64_t bytes; /* of the jobs that run */
};

struct executor {
    const struct roped_backend_api *api;
    struct memory_pool *memory;
    struct tables *tables;
    struct regions *regions;
    struct exec_options options;
    int n_stations;
    struct station *station;
    struct resident **resident; /* of each station, for the tables */
    pthread_t sweeper; /* ends jobs whose deadline passes while they wait */
    bool has_sweeper;

    pthread_mutex_t lock;   /* guards the following */
    pthread_cond_t idle;    /* nothing waits and nothing runs */
    pthread_cond_t sweep;   /* a job with a deadline waits, or closing */
    struct waiting waiting; /* jobs that can run anywhere */
    int n_queued, n_busy;
    int n_ending; /* jobs that left the queue without a lane, done under way */
    bool is_draining, is_closing;
};

/* ------------------------------------------------------------------ queues */

static void init_waiting(struct waiting *waiting)
{
    waiting->first = NULL;
    waiting->last = &waiting->first;
}

/* Under lock, like all that follows. */
static void push(struct executor *exec, struct exec_job *job)
{
    struct waiting *waiting =
        job->device < 0 ? &exec->waiting : &exec->station[job->device].waiting;
    *waiting->last = job;
    waiting->last = &job->next;
    exec->n_queued++;
}

/* The job that has waited longest of those that this device may run. */
static struct exec_job *pop(struct executor *exec, struct station *station)
{
    struct waiting *waiting = &exec->waiting;
    const struct exec_job *own = station->waiting.first;
    if (own &&
        (!waiting->first || own->accepted_ns < waiting->first->accepted_ns))
        waiting = &station->waiting;
    struct exec_job *job = waiting->first;
    if (!job)
        return NULL;
    waiting->first = job->next;
    if (!waiting->first)
        waiting->last = &waiting->first;
    exec->n_queued--;
    return job;
}

/* Tells who waits for the end of all work, if this is it. */
static void tell_idle(struct executor *exec)
{
    if (exec->n_busy == 0 && exec->n_ending == 0 && exec->n_queued == 0)
        pthread_cond_broadcast(&exec->idle);
}

static struct driver *idle_lane(struct station *station)
{
    for (int i = 0; i < station->n_drivers; i++)
        if (station->driver[i].state == LANE_IDLE)
            return &station->driver[i];
    return NULL;
}

/* The one place that says where a job runs: see executor.h. NULL: nowhere yet.
 * Where a lane is idle no job waits that it could run: whoever frees a lane
 * gives it the next one. */
static struct driver *choose_lane(struct executor *exec, int device)
{
    struct driver *best = NULL;
    for (int i = 0; i < exec->n_stations; i++) {
        struct station *station = &exec->station[i];
        if (device >= 0 && i != device)
            continue;
        if (best && best->station->bytes <= station->bytes)
            continue;
        struct driver *driver = idle_lane(station);
        best = driver ? driver : best;
    }
    return best;
}

/* The lane has this job now. */
static void occupy(struct driver *driver, const struct exec_job *job)
{
    driver->state = LANE_BUSY;
    driver->bytes = job->bytes;
    driver->station->bytes += job->bytes;
    driver->station->n_busy++;
    driver->exec->n_busy++;
}

static void hand(struct driver *driver, struct exec_job *job)
{
    occupy(driver, job);
    driver->job = job;
    pthread_cond_signal(&driver->wake);
}

/* A lane is free: it gets the next job, or idles. */
static void free_lane(struct driver *driver)
{
    struct exec_job *job = pop(driver->exec, driver->station);
    driver->state = LANE_IDLE;
    if (job)
        hand(driver, job);
}

/* The job of this lane has ended. */
static void vacate(struct driver *driver)
{
    driver->station->bytes -= driver->bytes;
    driver->station->n_busy--;
    driver->exec->n_busy--;
    free_lane(driver);
    tell_idle(driver->exec);
}

/* ------------------------------------------------------------------- lanes */

/*
 * For a lane that finds the device memory of all lanes claimed: frees what
 * idle ones keep. Nobody else can take such a lane meanwhile.
 */
static void reclaim_arenas(void *context)
{
    struct station *station = context;
    struct executor *exec = station->exec;
    for (int i = 0; i < station->n_drivers; i++) {
        struct driver *driver = &station->driver[i];
        pthread_mutex_lock(&exec->lock);
        bool is_idle = driver->state == LANE_IDLE;
        if (is_idle)
            driver->state = LANE_BUSY;
        pthread_mutex_unlock(&exec->lock);
        if (!is_idle)
            continue;
        lane_release_arena(&driver->lane);
        pthread_mutex_lock(&exec->lock);
        free_lane(driver);
        pthread_mutex_unlock(&exec->lock);
    }
}

static void *drive_lane(void *context)
{
    struct driver *driver = context;
    struct executor *exec = driver->exec;
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        while (!exec->is_closing && !driver->job)
            pthread_cond_wait(&driver->wake, &exec->lock);
        struct exec_job *job = driver->job;
        if (!job)
            break;
        driver->job = NULL;
        pthread_mutex_unlock(&exec->lock);
        lane_run(&driver->lane, job);
        job->done(job); /* while it counts as busy: drain waits for it */
        pthread_mutex_lock(&exec->lock);
        vacate(driver);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

/* ---------------------------------------------------------------- expiring */

/* Who must end now, and when that is next the case. */
struct expiry {
    uint64_t now_ns, next_ns; /* UINT64_MAX: never */
    bool takes_all;
    struct exec_job *first, **end;
};

/* Under lock: unlinks every job of one queue that must end now. */
static void expire(struct executor *exec, struct waiting *waiting,
                   struct expiry *expiry)
{
    struct exec_job **link = &waiting->first;
    while (*link) {
        struct exec_job *job = *link;
        bool is_late = job->deadline_ns && job->deadline_ns <= expiry->now_ns;
        if (!is_late && !expiry->takes_all && !atomic_load(&job->is_canceled)) {
            if (job->deadline_ns && job->deadline_ns < expiry->next_ns)
                expiry->next_ns = job->deadline_ns;
            link = &job->next;
            continue;
        }
        *link = job->next;
        job->next = NULL;
        *expiry->end = job;
        expiry->end = &job->next;
        exec->n_queued--;
        exec->n_ending++;
    }
    waiting->last = link;
}

/* Under lock: the same of all queues. */
static struct exec_job *take_expired(struct executor *exec, uint64_t now_ns,
                                     bool takes_all, uint64_t *next_ns)
{
    struct expiry expiry = {now_ns, UINT64_MAX, takes_all, NULL, NULL};
    expiry.end = &expiry.first;
    expire(exec, &exec->waiting, &expiry);
    for (int i = 0; i < exec->n_stations; i++)
        expire(exec, &exec->station[i].waiting, &expiry);
    *next_ns = expiry.next_ns;
    return expiry.first;
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
    pthread_cond_init(&exec->idle, &monotonic);
    pthread_cond_init(&exec->sweep, &monotonic);
    pthread_condattr_destroy(&monotonic);
    init_waiting(&exec->waiting);
}

/* Sets up what a station has without its device. */
static enum roped_status init_station(struct executor *exec, int number,
                                      int index, struct roped_error *err)
{
    struct station *station = &exec->station[number];
    const struct exec_options *options = &exec->options;
    station->exec = exec;
    station->device = (struct device){.api = exec->api,
                                      .number = number,
                                      .index = index,
                                      .device_bytes = options->device_bytes,
                                      .lane_bytes = options->device_bytes /
                                                    (uint64_t)options->n_lanes,
                                      .mapped_bytes = options->mapped_bytes,
                                      .reclaim = reclaim_arenas,
                                      .reclaim_context = station};
    init_waiting(&station->waiting);
    station->driver = calloc((size_t)options->n_lanes, sizeof *station->driver);
    return station->driver
               ? ROPED_OK
               : roped_fail(err, ROPED_NO_MEMORY, "no memory for the lanes");
}

static enum roped_status
open_stations(struct executor *exec,
              const struct roped_backend_options *backend_options,
              struct roped_error *err)
{
    const struct exec_options *options = &exec->options;
    int n = options->devices ? options->n_devices : 1;
    exec->station = calloc((size_t)n, sizeof *exec->station);
    exec->resident = calloc((size_t)n, sizeof(struct resident *));
    enum roped_status status =
        exec->station && exec->resident
            ? ROPED_OK
            : roped_fail(err, ROPED_NO_MEMORY, "no memory for the devices");
    for (int i = 0; i < n && !status; i++) {
        struct device *device = &exec->station[i].device;
        exec->n_stations = i + 1;
        status = init_station(exec, i,
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
    size_t n = (size_t)exec->n_stations;
    struct roped_backend **backends = calloc(n, sizeof(struct roped_backend *));
    if (!backends)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the regions");
    for (size_t i = 0; i < n; i++)
        backends[i] = exec->station[i].device.backend;
    enum roped_status status =
        regions_open(exec->api, backends, (int)n, exec->options.region_bytes,
                     &exec->regions, err);
    free(backends);
    return status;
}

static enum roped_status start_lane(struct station *station,
                                    struct roped_error *err)
{
    struct driver *driver = &station->driver[station->n_drivers];
    driver->exec = station->exec;
    driver->station = station;
    pthread_cond_init(&driver->wake, NULL);
    station->n_drivers++;
    enum roped_status status = lane_init(&driver->lane, &station->device, err);
    if (status)
        return status;
    driver->has_thread =
        pthread_create(&driver->thread, NULL, drive_lane, driver) == 0;
    return driver->has_thread
               ? ROPED_OK
               : roped_fail(err, ROPED_NO_MEMORY,
                            "cannot start the thread of lane %d of device %d",
                            station->n_drivers - 1, station->device.number);
}

static enum roped_status start_threads(struct executor *exec,
                                       struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < exec->n_stations; i++)
        for (int j = 0; j < exec->options.n_lanes && !status; j++)
            status = start_lane(&exec->station[i], err);
    if (status)
        return status;
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
    exec->api = api;
    enum roped_status status = open_stations(exec, backend_options, err);
    /* page-locked once: portable, so that every device reaches it */
    if (!status)
        status = memory_open(api, exec->station[0].device.backend,
                             options->pool_bytes, options->host_bytes,
                             &exec->memory, err);
    if (!status)
        status =
            tables_open(exec->resident, exec->n_stations, &exec->tables, err);
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

void exec_drain(struct executor *exec, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u),
                             (long)(deadline_ns % 1000000000u)};
    uint64_t next_ns;
    pthread_mutex_lock(&exec->lock);
    exec->is_draining = true;
    while (exec->n_queued > 0 || exec->n_busy > 0 || exec->n_ending > 0)
        if (pthread_cond_timedwait(&exec->idle, &exec->lock, &until) != 0)
            break;
    uint64_t now_ns = lane_now_ns();
    end_jobs(exec, take_expired(exec, now_ns, true, &next_ns), now_ns);
    /* what runs on the device cannot be called back: it ends soon */
    while (exec->n_busy > 0 || exec->n_ending > 0)
        pthread_cond_wait(&exec->idle, &exec->lock);
    pthread_mutex_unlock(&exec->lock);
}

static void stop_lanes(struct station *station)
{
    for (int i = 0; i < station->n_drivers; i++) {
        struct driver *driver = &station->driver[i];
        if (driver->has_thread)
            pthread_join(driver->thread, NULL);
        lane_fini(&driver->lane);
        pthread_cond_destroy(&driver->wake);
    }
}

void exec_close(struct executor *exec)
{
    if (!exec)
        return;
    pthread_mutex_lock(&exec->lock);
    exec->is_closing = true;
    for (int i = 0; i < exec->n_stations; i++)
        for (int j = 0; j < exec->station[i].n_drivers; j++)
            pthread_cond_signal(&exec->station[i].driver[j].wake);
    pthread_cond_broadcast(&exec->sweep);
    pthread_mutex_unlock(&exec->lock);
    for (int i = 0; i < exec->n_stations; i++)
        stop_lanes(&exec->station[i]);
    if (exec->has_sweeper)
        pthread_join(exec->sweeper, NULL);
    regions_close(exec->regions);
    tables_close(exec->tables);
    memory_close(exec->memory);
    for (int i = 0; i < exec->n_stations; i++) {
        device_close(&exec->station[i].device);
        free(exec->station[i].driver);
    }
    pthread_cond_destroy(&exec->idle);
    pthread_cond_destroy(&exec->sweep);
    pthread_mutex_destroy(&exec->lock);
    free(exec->resident);
    free(exec->station);
    free(exec);
}

/* ---------------------------------------------------------------- submit */

static void start_job(struct exec_job *job)
{
    job->accepted_ns = lane_now_ns();
    job->next = NULL;
    job->status = ROPED_OK;
    job->bytes = job->work == EXEC_TASK ? 0 : places_bytes(job);
    job->device = places_device(job);
    memset(&job->timing, 0, sizeof job->timing);
}

bool exec_run_inline(struct executor *exec, struct exec_job *job)
{
    if (job->work == EXEC_TASK ||
        places_bytes(job) > exec->options.inline_bytes)
        return false;
    start_job(job);
    pthread_mutex_lock(&exec->lock);
    struct driver *driver =
        exec->is_draining ? NULL : choose_lane(exec, job->device);
    if (driver)
        occupy(driver, job);
    pthread_mutex_unlock(&exec->lock);
    if (!driver)
        return false;
    lane_run(&driver->lane, job);
    job->done(job); /* while it counts as busy: drain waits for it */
    pthread_mutex_lock(&exec->lock);
    vacate(driver);
    pthread_mutex_unlock(&exec->lock);
    return true;
}

enum roped_status exec_submit(struct executor *exec, struct exec_job *job,
                              struct roped_error *err)
{
    start_job(job);
    pthread_mutex_lock(&exec->lock);
    bool is_draining = exec->is_draining;
    struct driver *driver = is_draining ? NULL : choose_lane(exec, job->device);
    bool is_refused =
        is_draining || (!driver && exec->n_queued >= exec->options.queue_depth);
    if (driver) {
        hand(driver, job);
    } else if (!is_refused) {
        push(exec, job);
        if (job->deadline_ns)
            pthread_cond_signal(&exec->sweep);
    }
    pthread_mutex_unlock(&exec->lock);
    if (!is_refused)
        return ROPED_OK;
    if (is_draining)
        return roped_fail(err, ROPED_BUSY, "the server is shutting down");
    return roped_fail(err, ROPED_BUSY,
                      "Exceeds maximum queue size: %d calls wait",
                      exec->options.queue_depth);
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
    bool is_healthy = true;
    for (int i = 0; i < exec->n_stations; i++)
        is_healthy &= exec->api->is_healthy(exec->station[i].device.backend);
    return is_healthy;
}

struct memory_pool *exec_memory(struct executor *exec)
{
    return exec->memory;
}

struct tables *exec_tables(struct executor *exec)
{
    return exec->tables;
}

struct regions *exec_regions(struct executor *exec)
{
    return exec->regions;
}

const struct roped_backend_api *exec_backend(struct executor *exec)
{
    return exec->api;
}

/* ------------------------------------------------------------------- usage */

void exec_usage(struct executor *exec, struct exec_usage *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&exec->lock);
    out->n_busy_lanes = exec->n_busy;
    out->n_queued = exec->n_queued;
    pthread_mutex_unlock(&exec->lock);
    for (int i = 0; i < exec->n_stations; i++) {
        struct device *device = &exec->station[i].device;
        out->n_lanes += exec->station[i].n_drivers;
        out->device_arena_bytes += atomic_load(&device->arena_bytes);
        out->device_errors += atomic_load(&device->errors);
    }
}

int exec_n_devices(const struct executor *exec)
{
    return exec->n_stations;
}

void exec_device_info(struct executor *exec, int number,
                      struct roped_device_info *out)
{
    exec->api->info(exec->station[number].device.backend, out);
}

void exec_device_usage(struct executor *exec, int number,
                       struct exec_device_usage *out)
{
    struct station *station = &exec->station[number];
    struct device *device = &station->device;
    pthread_mutex_lock(&exec->lock);
    out->n_busy_lanes = station->n_busy;
    pthread_mutex_unlock(&exec->lock);
    out->n_lanes = station->n_drivers;
    out->index = device->index;
    out->is_healthy = exec->api->is_healthy(device->backend);
    out->arena_bytes = atomic_load(&device->arena_bytes);
    out->arena_limit_bytes = device->device_bytes;
    out->region_bytes = regions_device_bytes(exec->regions, number);
    out->region_limit_bytes = exec->options.region_bytes;
    out->jobs = atomic_load(&device->jobs);
    out->errors = atomic_load(&device->errors);
    out->busy_seconds = (double)atomic_load(&device->busy_ns) * 1e-9;
}

int exec_find_device(const struct executor *exec, uint64_t index)
{
    for (int i = 0; i < exec->n_stations; i++)
        if ((uint64_t)exec->station[i].device.index == index)
            return i;
    return -1;
}
