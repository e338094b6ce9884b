/*
 * inbox.c - copies of a body, chunk by chunk; and the inboxes that a device
 * has.
 */
#include "exec/inbox.h"

#include <stdlib.h>

/* An eighth of the next power of two: bodies of about one size share inboxes,
 * and little is lost to rounding. */
uint64_t inbox_capacity(uint64_t bytes)
{
    uint64_t grain = 64 << 10;
    while (8 * grain < bytes)
        grain *= 2;
    return (bytes + grain - 1) / grain * grain;
}

struct inbox *inbox_new(struct device *device, uint64_t bytes)
{
    struct inbox *inbox = calloc(1, sizeof *inbox);
    void *memory;
    if (!inbox)
        return NULL;
    inbox->device = device;
    bytes = inbox_capacity(bytes);
    if (!device_claim_inbox(device, bytes)) {
        free(inbox);
        return NULL;
    }
    inbox->capacity = bytes;
    if (device->api->queue_open(device->backend, &inbox->queue, NULL) ||
        device_memory_take(&device->memory, FOR_CALLS, bytes, &memory, NULL)) {
        inbox_free(inbox);
        return NULL;
    }
    inbox->memory = memory;
    return inbox;
}

void inbox_free(struct inbox *inbox)
{
    struct device *device = inbox->device;
    if (inbox->queue)
        device->api->queue_close(inbox->queue);
    device_memory_give(&device->memory, FOR_CALLS, inbox->capacity,
                       inbox->memory);
    device_release_inbox(device, inbox->capacity);
    free(inbox);
}

void inbox_begin(struct inbox *inbox, const void *host, uint64_t first,
                 uint64_t bytes, uint64_t chunk_bytes)
{
    inbox->host = host;
    inbox->first = inbox->sent = first;
    inbox->bytes = bytes;
    inbox->chunk_bytes = chunk_bytes;
    inbox->has_failed = false;
}

/* The body's last chunk is what a call waits for: it is timed. */
static enum roped_status mark(struct inbox *inbox, int at, bool is_last)
{
    const struct roped_backend_api *api = inbox->device->api;
    return is_last && api->mark ? api->mark(inbox->queue, at, NULL) : ROPED_OK;
}

static enum roped_status copy(struct inbox *inbox, uint64_t bytes, bool is_last)
{
    enum roped_status status = mark(inbox, INBOX_MARK_LAST, is_last);
    if (!status)
        status = inbox->device->api->upload(
            inbox->queue, inbox->memory + inbox->sent,
            inbox->host + inbox->sent, (size_t)bytes, NULL);
    return status ? status : mark(inbox, INBOX_MARK_END, is_last);
}

void inbox_advance(struct inbox *inbox, uint64_t end)
{
    bool is_all = end >= inbox->bytes;
    while (!inbox->has_failed && inbox->sent < end) {
        uint64_t left = end - inbox->sent;
        if (left < inbox->chunk_bytes && !is_all)
            return;
        uint64_t n = left < inbox->chunk_bytes ? left : inbox->chunk_bytes;
        inbox->has_failed = copy(inbox, n, is_all && n == left) != ROPED_OK;
        inbox->sent += n; /* also a failed one: it may be under way */
        if (!inbox->has_failed)
            atomic_fetch_add_explicit(&inbox->device->early_bytes, n,
                                      memory_order_relaxed);
    }
}

unsigned char *inbox_find(const struct inbox *inbox, const void *data,
                          uint64_t bytes)
{
    uintptr_t at = (uintptr_t)data, start = (uintptr_t)inbox->host;
    if (inbox->has_failed || bytes == 0 || at < start + inbox->first ||
        at - start > inbox->sent || bytes > inbox->sent - (at - start))
        return NULL;
    return inbox->memory + (at - start);
}

enum roped_status inbox_wait(struct inbox *inbox, struct roped_error *err)
{
    return inbox->device->api->wait(inbox->queue, err);
}

/* ------------------------------------------------------- those of a device */

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
static void list(struct inbox *inbox)
{
    inbox->next = inbox->device->idle;
    inbox->device->idle = inbox;
}

/* Under lock. */
static void unlist(struct device *device, const struct inbox *inbox)
{
    struct inbox **link = &device->idle;
    while (*link != inbox)
        link = &(*link)->next;
    *link = inbox->next;
}

struct inbox *inbox_take(struct device *device, uint64_t bytes)
{
    struct inbox *inbox = find_idle(device, bytes);
    if (!inbox)
        return NULL;
    unlist(device, inbox);
    atomic_fetch_add(&device->arriving_bytes, bytes);
    return inbox;
}

void inbox_put_back(struct inbox *inbox)
{
    struct device *device = inbox->device;
    pthread_mutex_lock(device->lock);
    atomic_fetch_sub(&device->arriving_bytes, inbox->bytes);
    list(inbox);
    pthread_mutex_unlock(device->lock);
}

void inbox_free_idle(struct device *device)
{
    pthread_mutex_lock(device->lock);
    struct inbox *idle = device->idle;
    device->idle = NULL;
    for (const struct inbox *at = idle; at; at = at->next)
        device->n_inboxes--;
    pthread_mutex_unlock(device->lock);
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
    int most = INBOXES_PER_LANE * device->n_lanes;
    *smaller = NULL;
    if (find_idle(device, bytes))
        return false; /* it was in use then */
    if (device->n_inboxes < most)
        return true;
    *smaller = device->idle;
    return *smaller != NULL;
}

void inbox_grow(struct device *device, uint64_t bytes)
{
    struct inbox *smaller;
    pthread_mutex_lock(device->lock);
    bool is_wanted = may_grow(device, bytes, &smaller);
    if (smaller)
        unlist(device, smaller);
    else if (is_wanted)
        device->n_inboxes++;
    pthread_mutex_unlock(device->lock);
    if (!is_wanted)
        return;
    if (smaller)
        inbox_free(smaller);
    struct inbox *inbox = inbox_new(device, bytes);
    if (!inbox) {
        inbox_free_idle(device); /* smaller ones, all of them */
        inbox = inbox_new(device, bytes);
    }
    pthread_mutex_lock(device->lock);
    if (inbox)
        list(inbox);
    else
        device->n_inboxes--;
    pthread_mutex_unlock(device->lock);
}
