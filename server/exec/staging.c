/*
 * staging.c - who gets a stage, and what becomes of it.
 *
 * Stages are made by whoever runs a call, after one whose body found none, so
 * that a body which arrives never allocates on a device or waits for it. They
 * stay for the next body until a lane needs their memory.
 *
 * A stage is in its station's list of idle ones, guarded by the executor's
 * lock, or belongs to one job, or to the task that waits for what a client
 * which went away has left under way. n_stages counts all of them.
 */
#include "exec/executor_internal.h"

#include "exec/places.h"

enum { STAGES_PER_LANE = 2 };

/* Under lock: the smallest idle stage that is large enough, or NULL. */
static struct stage *find_idle(const struct station *station, uint64_t bytes)
{
    struct stage *best = NULL;
    for (struct stage *s = station->idle; s; s = s->next)
        if (s->capacity >= bytes && (!best || s->capacity < best->capacity))
            best = s;
    return best;
}

/* Under lock. */
static void unlist(struct station *station, const struct stage *stage)
{
    struct stage **link = &station->idle;
    while (*link != stage)
        link = &(*link)->next;
    *link = stage->next;
}

static struct station *station_of(struct executor *exec,
                                  const struct stage *stage)
{
    return &exec->station[stage->device->number];
}

/* Its body is gone, and no copy is under way. */
static void put_back(struct executor *exec, struct stage *stage)
{
    struct station *station = station_of(exec, stage);
    pthread_mutex_lock(&exec->lock);
    atomic_fetch_sub(&station->arriving_bytes, stage->bytes);
    stage->next = station->idle;
    station->idle = stage;
    pthread_mutex_unlock(&exec->lock);
}

/* Under lock: where a call that may run there would go now. */
static struct station *least_busy(struct executor *exec, int device)
{
    struct station *best = &exec->station[device < 0 ? 0 : device];
    for (int i = 0; i < exec->n_stations && device < 0; i++)
        if (dispatch_bytes(&exec->station[i]) < dispatch_bytes(best))
            best = &exec->station[i];
    return best;
}

/* Under lock. */
static struct stage *take(struct station *station, uint64_t bytes)
{
    struct stage *stage = find_idle(station, bytes);
    if (!stage)
        return NULL;
    unlist(station, stage);
    atomic_fetch_add(&station->arriving_bytes, bytes);
    return stage;
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
 * measure as dispatch_claim. If that has no stage to spare the call gets none,
 * rather than one on a busier device: it is then free to run anywhere, and the
 * device where it runs makes a stage for the next.
 */
void exec_stage_open(struct executor *exec, struct exec_job *job,
                     const void *host, uint64_t first, uint64_t bytes)
{
    if (exec->options.stage_bytes == 0 || exec->api->is_host ||
        bytes - first <= exec->options.stage_bytes ||
        stage_capacity(bytes) > exec->station[0].device.stage_limit_bytes)
        return;
    int device = places_device(job);
    pthread_mutex_lock(&exec->lock);
    job->stage = take(least_busy(exec, device), bytes);
    pthread_mutex_unlock(&exec->lock);
    job->stage_lacked = job->stage ? 0 : bytes;
    if (job->stage)
        stage_begin(job->stage, host, first, bytes,
                    exec->options.stage_chunk_bytes);
}

void exec_stage_advance(struct exec_job *job, uint64_t end)
{
    if (job->stage)
        stage_advance(job->stage, end);
}

void staging_finish(struct executor *exec, struct exec_job *job)
{
    if (job->stage)
        put_back(exec, job->stage);
    job->stage = NULL;
}

uint64_t staging_bytes(const struct exec_job *job)
{
    return job->stage ? job->stage->bytes : 0;
}

/* ---------------------------------------------------------------- abandoned */

static enum roped_status wait_for_copies(struct exec_job *job)
{
    return stage_wait(job->owner, &job->error);
}

/* A job that was ended without a lane has not waited. A device that is lost,
 * which is what an error here is, copies nothing any more. */
static void give_all_back(struct exec_job *job)
{
    struct stage *stage = job->owner;
    struct executor *exec = stage->exec;
    if (job->status)
        (void)!stage_wait(stage, NULL);
    memory_give(exec->memory, &stage->block);
    put_back(exec, stage);
}

void exec_stage_abandon(struct executor *exec, struct exec_job *job,
                        struct memory_block *block)
{
    struct stage *stage = job->stage;
    struct driver *wakes;
    job->stage = NULL;
    if (!stage)
        return;
    if (stage->sent == stage->first) { /* nothing was copied */
        put_back(exec, stage);
        return;
    }
    stage->exec = exec;
    stage->block = *block;
    *block = (struct memory_block){.start = NULL};
    stage->end = (struct exec_job){.work = EXEC_TASK,
                                   .task = wait_for_copies,
                                   .done = give_all_back,
                                   .owner = stage};
    dispatch_start(exec, &stage->end);
    stage->end.device = stage->device->number;
    pthread_mutex_lock(&exec->lock);
    /* past every bound, and also while draining: it was let in long ago */
    (void)dispatch_place(exec, &stage->end, true, &wakes);
    pthread_mutex_unlock(&exec->lock);
    if (wakes)
        dispatch_wake(wakes);
}

/* ------------------------------------------------------------------- memory */

void staging_free_idle(struct station *station)
{
    struct executor *exec = station->exec;
    pthread_mutex_lock(&exec->lock);
    struct stage *idle = station->idle;
    station->idle = NULL;
    for (const struct stage *s = idle; s; s = s->next)
        station->n_stages--;
    pthread_mutex_unlock(&exec->lock);
    while (idle) {
        struct stage *next = idle->next;
        stage_free(idle);
        idle = next;
    }
}

/* Under lock: whether to make one; *smaller is one to be freed for it, NULL
 * where there is room beside all others. */
static bool may_grow(struct station *station, uint64_t bytes,
                     struct stage **smaller)
{
    int most = STAGES_PER_LANE * station->exec->options.n_lanes;
    *smaller = NULL;
    if (find_idle(station, bytes))
        return false; /* it was in use then */
    if (station->n_stages < most)
        return true;
    *smaller = station->idle;
    return *smaller != NULL;
}

void staging_grow(struct station *station, uint64_t bytes)
{
    struct executor *exec = station->exec;
    struct stage *smaller;
    pthread_mutex_lock(&exec->lock);
    bool is_wanted = may_grow(station, bytes, &smaller);
    if (smaller)
        unlist(station, smaller);
    else if (is_wanted)
        station->n_stages++;
    pthread_mutex_unlock(&exec->lock);
    if (!is_wanted)
        return;
    if (smaller)
        stage_free(smaller);
    struct stage *stage = stage_new(&station->device, bytes);
    if (!stage) {
        staging_free_idle(station); /* smaller ones, all of them */
        stage = stage_new(&station->device, bytes);
    }
    pthread_mutex_lock(&exec->lock);
    if (stage) {
        stage->next = station->idle;
        station->idle = stage;
    } else {
        station->n_stages--;
    }
    pthread_mutex_unlock(&exec->lock);
}
