/*
 * dispatch.c - which lane runs which job, and the threads of the lanes.
 */
#include "exec/executor_internal.h"

#include "exec/places.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

/* ------------------------------------------------------------------ queues */

/* A CPU moves some 32 bytes in a nanosecond, so the handicap is 64 times what
 * the job takes: beside 64 clients with long jobs a short one is next. */
enum { HANDICAP_NS_PER_BYTE = 2, MOST_HANDICAP_NS = 1000000000 };

static uint64_t handicap_ns(const struct exec_job *job)
{
    uint64_t most = MOST_HANDICAP_NS / HANDICAP_NS_PER_BYTE;
    return (job->work_bytes < most ? job->work_bytes : most) *
           HANDICAP_NS_PER_BYTE;
}

static struct waiting *waiting_for(struct executor *exec, int device)
{
    return device < 0 ? &exec->waiting : &exec->station[device].waiting;
}

static struct heap *heap_of(struct executor *exec, const struct exec_job *job)
{
    struct waiting *waiting = waiting_for(exec, job->device);
    return job->is_long ? &waiting->longs : &waiting->shorts;
}

static struct exec_job *job_of(struct heap_node *waits)
{
    return (struct exec_job *)((char *)waits -
                               offsetof(struct exec_job, waits));
}

/* Under lock, like all that follows. */
void dispatch_push(struct executor *exec, struct exec_job *job)
{
    heap_push(heap_of(exec, job), &job->waits,
              job->accepted_ns + handicap_ns(job));
    if (job->deadline_ns)
        heap_push(&exec->expiring, &job->expires, job->deadline_ns);
    exec->n_queued++;
}

void dispatch_remove(struct executor *exec, struct exec_job *job)
{
    heap_remove(heap_of(exec, job), &job->waits);
    if (job->deadline_ns)
        heap_remove(&exec->expiring, &job->expires);
    exec->n_queued--;
}

static struct heap_node *first_of(struct heap_node *a, struct heap_node *b)
{
    if (!a || !b)
        return a ? a : b;
    return b->key < a->key ? b : a;
}

struct exec_job *dispatch_next(struct executor *exec, int device)
{
    const struct waiting *waiting = waiting_for(exec, device);
    struct heap_node *first =
        first_of(waiting->shorts.first, waiting->longs.first);
    return first ? job_of(first) : NULL;
}

/* May one more lane run a long job? */
static bool has_long_lane(const struct station *station)
{
    return station->n_drivers == 1 || station->n_long < station->n_drivers - 1;
}

/* Takes the job that is next for an idle lane of this device. */
static struct exec_job *pop(struct executor *exec, struct station *station)
{
    const struct waiting *own = &station->waiting, *any = &exec->waiting;
    struct heap_node *first = first_of(own->shorts.first, any->shorts.first);
    if (has_long_lane(station))
        first = first_of(first, first_of(own->longs.first, any->longs.first));
    if (!first)
        return NULL;
    dispatch_remove(exec, job_of(first));
    return job_of(first);
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

struct driver *dispatch_choose(struct executor *exec,
                               const struct exec_job *job)
{
    struct driver *best = NULL;
    for (int i = 0; i < exec->n_stations; i++) {
        struct station *station = &exec->station[i];
        if (job->device >= 0 && i != job->device)
            continue;
        if (job->is_long && !has_long_lane(station))
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
    driver->has_long = job->is_long;
    driver->station->bytes += driver->bytes;
    driver->station->n_busy++;
    driver->station->n_long += driver->has_long;
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
    driver->station->n_long -= driver->has_long;
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

void dispatch_start(const struct executor *exec, struct exec_job *job)
{
    uint64_t short_bytes = exec->options.inline_bytes;
    job->accepted_ns = lane_now_ns();
    job->next = NULL;
    job->status = ROPED_OK;
    job->bytes = places_bytes(job);
    if (job->bytes == UINT64_MAX)
        job->bytes = 0; /* nobody knows */
    job->work_bytes = places_work(job, exec->api->is_host);
    job->is_long = short_bytes > 0 && job->work_bytes > short_bytes;
    /* a stage is on the device of the call's regions, if it has any */
    job->device = job->stage ? job->stage->device->number : places_device(job);
    memset(&job->timing, 0, sizeof job->timing);
}
