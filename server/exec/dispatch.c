/*
 * dispatch.c - which lane runs which job, and the threads of the lanes.
 */
#include "exec/dispatch.h"

#include "exec/inbox.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

/* ----------------------------------------------------------- jobs that wait */

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
    return device < 0 ? &exec->waiting : &exec->device[device].waiting;
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
    atomic_fetch_add(&exec->n_waiting_short, !job->is_long);
    atomic_fetch_add(&exec->n_waiting, 1);
    exec->n_waiting_again += job->is_continued;
}

void dispatch_remove(struct executor *exec, struct exec_job *job)
{
    heap_remove(heap_of(exec, job), &job->waits);
    if (job->deadline_ns)
        heap_remove(&exec->expiring, &job->expires);
    atomic_fetch_sub(&exec->n_waiting_short, !job->is_long);
    atomic_fetch_sub(&exec->n_waiting, 1);
    exec->n_waiting_again -= job->is_continued;
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
static bool has_long_lane(const struct device *device)
{
    return device->n_lanes == 1 || device->n_long < device->n_lanes - 1;
}

/* Under lock: takes the job that is next for a lane of this device. */
static struct exec_job *pop(struct executor *exec, struct device *device)
{
    const struct waiting *own = &device->waiting, *any = &exec->waiting;
    struct heap_node *first = first_of(own->shorts.first, any->shorts.first);
    if (has_long_lane(device))
        first = first_of(first, first_of(own->longs.first, any->longs.first));
    if (!first)
        return NULL;
    dispatch_remove(exec, job_of(first));
    return job_of(first);
}

/* ----------------------------------------------------------- who has a lane */

static bool is_idle(const struct lane *lane)
{
    return atomic_load(&lane->state) == LANE_IDLE;
}

bool dispatch_claim_lane(struct lane *lane)
{
    int idle = LANE_IDLE;
    return is_idle(lane) &&
           atomic_compare_exchange_strong(&lane->state, &idle, LANE_BUSY);
}

/* Each thread comes back to the lane that it had last, if that is idle: what it
 * writes there is in its own cache then. */
static struct lane *claim_lane(struct device *device)
{
    static atomic_int n_threads;
    static _Thread_local int favourite = -1;
    if (favourite < 0)
        favourite = atomic_fetch_add(&n_threads, 1);
    for (int i = 0; i < device->n_lanes; i++) {
        int lane = (favourite + i) % device->n_lanes;
        if (!dispatch_claim_lane(&device->lane[lane]))
            continue;
        favourite = lane;
        return &device->lane[lane];
    }
    return NULL;
}

uint64_t dispatch_bytes(const struct device *device)
{
    uint64_t bytes = atomic_load(&device->arriving_bytes);
    for (int i = 0; i < device->n_lanes; i++)
        bytes +=
            atomic_load_explicit(&device->lane[i].bytes, memory_order_relaxed);
    return bytes;
}

int dispatch_n_busy(const struct device *device)
{
    int n = 0;
    for (int i = 0; i < device->n_lanes; i++)
        n += atomic_load(&device->lane[i].state) == LANE_BUSY;
    return n;
}

static bool has_lane_for(const struct device *device,
                         const struct exec_job *job)
{
    if (job->device >= 0 && device->number != job->device)
        return false;
    if (job->is_long && !has_long_lane(device))
        return false;
    for (int i = 0; i < device->n_lanes; i++)
        if (is_idle(&device->lane[i]))
            return true;
    return false;
}

static struct device *choose(struct executor *exec, const struct exec_job *job)
{
    struct device *best = NULL;
    uint64_t least = 0;
    for (int i = 0; i < exec->n_devices; i++) {
        struct device *device = &exec->device[i];
        if (!has_lane_for(device, job))
            continue;
        uint64_t bytes = exec->n_devices > 1 ? dispatch_bytes(device) : 0;
        if (best && least <= bytes)
            continue;
        best = device;
        least = bytes;
    }
    return best;
}

struct lane *dispatch_claim(struct executor *exec, const struct exec_job *job)
{
    struct lane *lane = NULL;
    struct device *device;
    while (!lane && (device = choose(exec, job)))
        lane = claim_lane(device);
    return lane;
}

void dispatch_occupy(struct lane *lane, const struct exec_job *job)
{
    /* its device counts these already, as a body that arrives */
    uint64_t counted = job->inbox ? job->inbox->bytes : 0;
    uint64_t bytes = job->bytes > counted ? job->bytes - counted : 0;
    atomic_store_explicit(&lane->bytes, bytes, memory_order_relaxed);
    lane->has_long = job->is_long;
    if (job->is_long) /* else there is no lock */
        lane->device->n_long++;
}

/* Under lock. */
static void hand(struct lane *lane, struct exec_job *job)
{
    dispatch_occupy(lane, job);
    lane->job = job;
}

void dispatch_wake(struct lane *lane)
{
    pthread_cond_signal(&lane->wake);
}

/* Under lock: a lane that is claimed gets the next job, or idles. */
static bool give_next(struct lane *lane)
{
    struct exec_job *job = pop(lane->device->exec, lane->device);
    if (job)
        hand(lane, job);
    else
        atomic_store(&lane->state, LANE_IDLE);
    return job != NULL;
}

/*
 * A lane may become idle without the lock while a job is pushed. Who idles
 * looks at n_waiting after that, who pushes looks at the lanes after that: one
 * of the two sees the other.
 */
bool dispatch_place(struct executor *exec, struct exec_job *job, bool may_wait,
                    struct lane **wakes)
{
    struct lane *lane = dispatch_claim(exec, job);
    *wakes = lane;
    if (lane) {
        hand(lane, job);
        return true;
    }
    if (!may_wait)
        return false;
    push(exec, job);
    lane = dispatch_claim(exec, job);
    if (lane && give_next(lane))
        *wakes = lane;
    return true;
}

bool dispatch_is_idle(const struct executor *exec)
{
    if (exec->n_ending > 0 || atomic_load(&exec->n_waiting) > 0)
        return false;
    for (int i = 0; i < exec->n_devices; i++)
        if (dispatch_n_busy(&exec->device[i]) > 0)
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
 * is_draining as of n_waiting. */
static bool is_awaited(const struct executor *exec)
{
    return atomic_load(&exec->n_waiting) > 0 || atomic_load(&exec->is_draining);
}

static void release_locked(struct lane *lane)
{
    struct executor *exec = lane->device->exec;
    pthread_mutex_lock(&exec->lock);
    lane->device->n_long -= lane->has_long;
    lane->has_long = false;
    if (give_next(lane))
        dispatch_wake(lane);
    dispatch_tell_idle(exec);
    pthread_mutex_unlock(&exec->lock);
}

void dispatch_release(struct lane *lane)
{
    struct executor *exec = lane->device->exec;
    atomic_store_explicit(&lane->bytes, 0, memory_order_relaxed);
    if (lane->has_long || is_awaited(exec)) {
        release_locked(lane);
        return;
    }
    atomic_store(&lane->state, LANE_IDLE);
    if (is_awaited(exec) && dispatch_claim_lane(lane))
        release_locked(lane);
}

/* ------------------------------------------------------------------- lanes */

/* Nobody else can take a lane meanwhile. */
void dispatch_reclaim(struct device *device)
{
    inbox_free_idle(device);
    for (int i = 0; i < device->n_lanes; i++) {
        struct lane *lane = &device->lane[i];
        if (!dispatch_claim_lane(lane))
            continue;
        lane_release_arena(lane);
        dispatch_release(lane);
    }
}

/* A device that is lost fails every call: no more are taken, on any. Who waits
 * already meets the device, or whoever drains. */
static void look_after(struct device *device)
{
    if (device->api->is_healthy(device->backend, NULL))
        return;
    const char *taken = NULL;
    (void)atomic_compare_exchange_strong(&device->exec->refusal, &taken,
                                         "a device is lost");
}

void dispatch_run(struct lane *lane, struct exec_job *job)
{
    uint64_t lacked = job->inbox_lacked;
    lane_run(lane, job);
    if (job->status == ROPED_DEVICE)
        look_after(lane->device);
    if (job->inbox)
        inbox_put_back(job->inbox);
    job->inbox = NULL;
    job->done(job); /* while it counts as busy: drain waits for it */
    if (lacked)
        inbox_grow(lane->device, lacked);
    dispatch_release(lane);
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
    struct lane *lane = context;
    struct executor *exec = lane->device->exec;
    yield_to_wakers();
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        while (!exec->is_closing && !lane->job)
            pthread_cond_wait(&lane->wake, &exec->lock);
        struct exec_job *job = lane->job;
        if (!job)
            break;
        lane->job = NULL;
        pthread_mutex_unlock(&exec->lock);
        dispatch_run(lane, job);
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
    placement_measure(job, exec->api->is_host);
    if (job->bytes == UINT64_MAX)
        job->bytes = 0; /* nobody knows */
    job->is_long = short_bytes > 0 && job->work_bytes > short_bytes;
    if (job->inbox) /* on the device of the call's regions, if it has any */
        job->device = job->inbox->device->number;
    memset(&job->timing, 0, sizeof job->timing);
}
