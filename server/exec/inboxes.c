/*
 * inboxes.c - who gets an inbox, and what becomes of it: see inbox.h.
 */
#include "exec/dispatch.h"
#include "exec/inbox.h"

enum { INBOXES_PER_LANE = 2 };

/* Under lock: the smallest idle inbox that is large enough, or NULL. */
static struct inbox *find_idle(const struct device *device, uint64_t bytes)
{
    struct inbox *best = NULL;
    for (struct inbox *at = device->idle; at; at = at->next)
        if (at->capacity >= bytes && (!best || at->capacity < best->capacity))
            best = at;
    return best;
}

/* Under lock. */
static void unlist(struct device *device, const struct inbox *inbox)
{
    struct inbox **link = &device->idle;
    while (*link != inbox)
        link = &(*link)->next;
    *link = inbox->next;
}

/* Its body is gone, and no copy is under way. */
static void put_back(struct inbox *inbox)
{
    struct device *device = inbox->device;
    pthread_mutex_lock(&device->exec->lock);
    atomic_fetch_sub(&device->arriving_bytes, inbox->bytes);
    inbox->next = device->idle;
    device->idle = inbox;
    pthread_mutex_unlock(&device->exec->lock);
}

/* Under lock: where a call that may run there would go now. */
static struct device *least_busy(struct executor *exec, int device)
{
    struct device *best = &exec->device[device < 0 ? 0 : device];
    for (int i = 0; i < exec->n_devices && device < 0; i++)
        if (dispatch_bytes(&exec->device[i]) < dispatch_bytes(best))
            best = &exec->device[i];
    return best;
}

/* Under lock. */
static struct inbox *take(struct device *device, uint64_t bytes)
{
    struct inbox *inbox = find_idle(device, bytes);
    if (!inbox)
        return NULL;
    unlist(device, inbox);
    atomic_fetch_add(&device->arriving_bytes, bytes);
    return inbox;
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
    job->inbox = take(least_busy(exec, job->device), bytes);
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

void inboxes_finish(struct exec_job *job)
{
    if (job->inbox)
        put_back(job->inbox);
    job->inbox = NULL;
}

/* ---------------------------------------------------------------- abandoned */

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
    put_back(inbox);
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
        put_back(inbox);
        return;
    }
    inbox->block = *block;
    *block = (struct memory_block){.start = NULL};
    inbox->end = (struct exec_job){.work = EXEC_TASK,
                                   .task = wait_for_copies,
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

/* ------------------------------------------------------------------- memory */

void inboxes_free_idle(struct device *device)
{
    struct executor *exec = device->exec;
    pthread_mutex_lock(&exec->lock);
    struct inbox *idle = device->idle;
    device->idle = NULL;
    for (const struct inbox *at = idle; at; at = at->next)
        device->n_inboxes--;
    pthread_mutex_unlock(&exec->lock);
    while (idle) {
        struct inbox *next = idle->next;
        inbox_free(idle);
        idle = next;
    }
}

/* Under lock: whether to make one; *smaller is one to be freed for it, NULL
 * where there is room beside all others. */
static bool may_grow(struct device *device, uint64_t bytes,
                     struct inbox **smaller)
{
    int most = INBOXES_PER_LANE * device->exec->options.n_lanes;
    *smaller = NULL;
    if (find_idle(device, bytes))
        return false; /* it was in use then */
    if (device->n_inboxes < most)
        return true;
    *smaller = device->idle;
    return *smaller != NULL;
}

void inboxes_grow(struct device *device, uint64_t bytes)
{
    struct executor *exec = device->exec;
    struct inbox *smaller;
    pthread_mutex_lock(&exec->lock);
    bool is_wanted = may_grow(device, bytes, &smaller);
    if (smaller)
        unlist(device, smaller);
    else if (is_wanted)
        device->n_inboxes++;
    pthread_mutex_unlock(&exec->lock);
    if (!is_wanted)
        return;
    if (smaller)
        inbox_free(smaller);
    struct inbox *inbox = inbox_new(device, bytes);
    if (!inbox) {
        inboxes_free_idle(device); /* smaller ones, all of them */
        inbox = inbox_new(device, bytes);
    }
    pthread_mutex_lock(&exec->lock);
    if (inbox) {
        inbox->next = device->idle;
        device->idle = inbox;
    } else {
        device->n_inboxes--;
    }
    pthread_mutex_unlock(&exec->lock);
}
