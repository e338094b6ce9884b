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

/* Under lock. */
static void push(struct executor *exec, struct exec_job *job)
{
    heap_push(heap_of(exec, job), &job->waits,
              job->accepted_ns + handicap_ns(job));
    if (job->deadline_ns)
        heap_push(&exec->expiring, &job->expires, job->deadline_ns);
    atomic_fetch_add(&exec->n_queued_short, !job->is_long);
    atomic_fetch_add(&exec->n_queued, 1);
}

void dispatch_remove(struct executor *exec, struct exec_job *job)
{
    heap_remove(heap_of(exec, job), &job->waits);
    if (job->deadline_ns)
        heap_remove(&exec->expiring, &job->expires);
    atomic_fetch_sub(&exec->n_queued_short, !job->is_long);
    atomic_fetch_sub(&exec->n_queued, 1);
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

/* Under lock: may one more lane run a long job? */
static bool has_long_lane(const struct station *station)
{
    return station->n_drivers == 1 || station->n_long < station->n_drivers - 1;
}

/* Under lock: takes the job that is next for a lane of this device. */
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

/* ----------------------------------------------------------- who has a lane */

static bool is_idle(const struct driver *driver)
{
    return atomic_load(&driver->state) == LANE_IDLE;
}

static bool claim(struct driver *driver)
{
    int idle = LANE_IDLE;
    return is_idle(driver) &&
           atomic_compare_exchange_strong(&driver->state, &idle, LANE_BUSY);
}

/* Each thread comes back to the lane that it had last, if that is idle: what it
 * writes there is in its own cache then. */
static struct driver *claim_lane(struct station *station)
{
    static atomic_int n_threads;
    static _Thread_local int favourite = -1;
    if (favourite < 0)
        favourite = atomic_fetch_add(&n_threads, 1);
    for (int i = 0; i < station->n_drivers; i++) {
        int lane = (favourite + i) % station->n_drivers;
        if (!claim(&station->driver[lane]))
            continue;
        favourite = lane;
        return &station->driver[lane];
    }
    return NULL;
}

uint64_t dispatch_bytes(const struct station *station)
{
    uint64_t bytes = atomic_load(&station->arriving_bytes);
    for (int i = 0; i < station->n_drivers; i++)
        bytes += atomic_load_explicit(&station->driver[i].bytes,
                                      memory_order_relaxed);
    return bytes;
}

int dispatch_n_busy(const struct station *station)
{
    int n = 0;
    for (int i = 0; i < station->n_drivers; i++)
        n += atomic_load(&station->driver[i].state) == LANE_BUSY;
    return n;
}

static bool has_lane_for(const struct station *station,
                         const struct exec_job *job)
{
    if (job->device >= 0 && station->device.number != job->device)
        return false;
    if (job->is_long && !has_long_lane(station))
        return false;
    for (int i = 0; i < station->n_drivers; i++)
        if (is_idle(&station->driver[i]))
            return true;
    return false;
}

static struct station *choose(struct executor *exec, const struct exec_job *job)
{
    struct station *best = NULL;
    uint64_t least = 0;
    for (int i = 0; i < exec->n_stations; i++) {
        struct station *station = &exec->station[i];
        if (!has_lane_for(station, job))
            continue;
        uint64_t bytes = exec->n_stations > 1 ? dispatch_bytes(station) : 0;
        if (best && least <= bytes)
            continue;
        best = station;
        least = bytes;
    }
    return best;
}

struct driver *dispatch_claim(struct executor *exec, const struct exec_job *job)
{
    struct driver *driver = NULL;
    struct station *station;
    while (!driver && (station = choose(exec, job)))
        driver = claim_lane(station);
    return driver;
}

void dispatch_occupy(struct driver *driver, const struct exec_job *job)
{
    uint64_t counted = staging_bytes(job);
    uint64_t bytes = job->bytes > counted ? job->bytes - counted : 0;
    atomic_store_explicit(&driver->bytes, bytes, memory_order_relaxed);
    driver->has_long = job->is_long;
    if (job->is_long) /* else there is no lock */
        driver->station->n_long++;
}

/* Under lock. */
static void hand(struct driver *driver, struct exec_job *job)
{
    dispatch_occupy(driver, job);
    driver->job = job;
}

void dispatch_wake(struct driver *driver)
{
    pthread_cond_signal(&driver->wake);
}

/* Under lock: a lane that is claimed gets the next job, or idles. */
static bool give_next(struct driver *driver)
{
    struct exec_job *job = pop(driver->exec, driver->station);
    if (job)
        hand(driver, job);
    else
        atomic_store(&driver->state, LANE_IDLE);
    return job != NULL;
}

/*
 * A lane may become idle without the lock while a job is pushed. Who idles
 * looks at n_queued after that, who pushes looks at the lanes after that: one
 * of the two sees the other.
 */
bool dispatch_place(struct executor *exec, struct exec_job *job, bool may_wait,
                    struct driver **wakes)
{
    struct driver *driver = dispatch_claim(exec, job);
    *wakes = driver;
    if (driver) {
        hand(driver, job);
        return true;
    }
    if (!may_wait)
        return false;
    push(exec, job);
    driver = dispatch_claim(exec, job);
    if (driver && give_next(driver))
        *wakes = driver;
    return true;
}

bool dispatch_is_idle(const struct executor *exec)
{
    if (exec->n_ending > 0 || atomic_load(&exec->n_queued) > 0)
        return false;
    for (int i = 0; i < exec->n_stations; i++)
        if (dispatch_n_busy(&exec->station[i]) > 0)
            return false;
    return true;
}

/* Nobody waits for it but who drains. */
void dispatch_tell_idle(struct executor *exec)
{
    if (atomic_load(&exec->is_draining) && dispatch_is_idle(exec))
        pthread_cond_broadcast(&exec->idle);
}

/* Is there more to do for a lane that idles than to say so? The same holds of
 * is_draining as of n_queued. */
static bool is_awaited(const struct executor *exec)
{
    return atomic_load(&exec->n_queued) > 0 || atomic_load(&exec->is_draining);
}

static void release_locked(struct driver *driver)
{
    struct executor *exec = driver->exec;
    pthread_mutex_lock(&exec->lock);
    driver->station->n_long -= driver->has_long;
    driver->has_long = false;
    if (give_next(driver))
        dispatch_wake(driver);
    dispatch_tell_idle(exec);
    pthread_mutex_unlock(&exec->lock);
}

void dispatch_release(struct driver *driver)
{
    struct executor *exec = driver->exec;
    atomic_store_explicit(&driver->bytes, 0, memory_order_relaxed);
    if (driver->has_long || is_awaited(exec)) {
        release_locked(driver);
        return;
    }
    atomic_store(&driver->state, LANE_IDLE);
    if (is_awaited(exec) && claim(driver))
        release_locked(driver);
}

/* ------------------------------------------------------------------- lanes */

/*
 * For a lane that finds the device memory of all lanes claimed: frees what
 * idle ones keep. Nobody else can take such a lane meanwhile.
 */
void dispatch_reclaim(void *context)
{
    struct station *station = context;
    staging_free_idle(station);
    for (int i = 0; i < station->n_drivers; i++) {
        struct driver *driver = &station->driver[i];
        if (!claim(driver))
            continue;
        lane_release_arena(&driver->lane);
        dispatch_release(driver);
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
    dispatch_release(driver);
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
