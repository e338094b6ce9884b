/*
 * dispatch.c - which lane runs which job, and the threads of the lanes.
 */
#include "exec/executor_internal.h"

#include "exec/places.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

/* ------------------------------------------------------------------ queues */

void dispatch_init(struct waiting *waiting)
{
    waiting->first = NULL;
    waiting->last = &waiting->first;
}

/* Under lock, like all that follows. */
void dispatch_push(struct executor *exec, struct exec_job *job)
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

void dispatch_tell_idle(struct executor *exec)
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

struct driver *dispatch_choose(struct executor *exec, int device)
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

void dispatch_occupy(struct driver *driver, const struct exec_job *job)
{
    uint64_t counted = staging_bytes(job);
    driver->state = LANE_BUSY;
    driver->bytes = job->bytes > counted ? job->bytes - counted : 0;
    driver->station->bytes += driver->bytes;
    driver->station->n_busy++;
    driver->exec->n_busy++;
}

void dispatch_hand(struct driver *driver, struct exec_job *job)
{
    dispatch_occupy(driver, job);
    driver->job = job;
}

void dispatch_wake(struct driver *driver)
{
    pthread_cond_signal(&driver->wake);
}

/* A lane is free: it gets the next job, or idles. */
static void free_lane(struct driver *driver)
{
    struct exec_job *job = pop(driver->exec, driver->station);
    driver->state = LANE_IDLE;
    if (!job)
        return;
    dispatch_hand(driver, job);
    dispatch_wake(driver);
}

/* The job of this lane has ended. */
static void vacate(struct driver *driver)
{
    driver->station->bytes -= driver->bytes;
    driver->station->n_busy--;
    driver->exec->n_busy--;
    free_lane(driver);
    dispatch_tell_idle(driver->exec);
}

/* ------------------------------------------------------------------- lanes */

/*
 * For a lane that finds the device memory of all lanes claimed: frees what
 * idle ones keep. Nobody else can take such a lane meanwhile.
 */
void dispatch_reclaim(void *context)
{
    struct station *station = context;
    struct executor *exec = station->exec;
    staging_free_idle(station);
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

void dispatch_run(struct driver *driver, struct exec_job *job)
{
    uint64_t lacked = job->stage_lacked;
    lane_run(&driver->lane, job);
    staging_finish(driver->exec, job);
    job->done(job); /* while it counts as busy: drain waits for it */
    if (lacked)
        staging_grow(driver->station, lacked);
    pthread_mutex_lock(&driver->exec->lock);
    vacate(driver);
    pthread_mutex_unlock(&driver->exec->lock);
}

/*
 * A lane that waits for a long copy naps between looks at it: Linux makes such
 * a nap 50 us longer unless asked not to. On an H200 a call of 64 MiB in shared
 * memory took 2.93 ms, and takes 2.71.
 */
static void nap_exactly(void)
{
    (void)prctl(PR_SET_TIMERSLACK, 1UL); /* else it is only slower */
}

/*
 * Woken lanes do not push the waking thread off its CPU: a busy connection's
 * thread hands over all that has arrived before lanes run, instead of a switch
 * of threads for each call (bench_http --section small, "by a lane"). A CPU
 * that is idle takes a lane at once.
 */
static void yield_to_wakers(void)
{
    static const struct sched_param none;
    /* else it is only slower */
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

void *dispatch_thread(void *context)
{
    struct driver *driver = context;
    struct executor *exec = driver->exec;
    yield_to_wakers();
    nap_exactly();
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        while (!exec->is_closing && !driver->job)
            pthread_cond_wait(&driver->wake, &exec->lock);
        struct exec_job *job = driver->job;
        if (!job)
            break;
        driver->job = NULL;
        pthread_mutex_unlock(&exec->lock);
        dispatch_run(driver, job);
        pthread_mutex_lock(&exec->lock);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

void dispatch_start(struct exec_job *job)
{
    job->accepted_ns = lane_now_ns();
    job->next = NULL;
    job->status = ROPED_OK;
    job->bytes = places_bytes(job);
    if (job->bytes == UINT64_MAX)
        job->bytes = 0; /* nobody knows */
    /* a stage is on the device of the call's regions, if it has any */
    job->device = job->stage ? job->stage->device->number : places_device(job);
    memset(&job->timing, 0, sizeof job->timing);
}
