/*
 * device.h - one GPU, or the CPU: its backend, its resident rotary tables, the
 * budget of its memory, its lanes (lane.h), its inboxes (inbox.h), and the jobs
 * that can run there only.
 *
 * A device has two numbers. Its number is its place among those of one
 * executor: what metrics, regions and clients call it. Its index is the
 * backend's own, which the same device may have under two numbers.
 */
#ifndef ROPED_EXEC_DEVICE_H
#define ROPED_EXEC_DEVICE_H

#include "exec/device_memory.h"
#include "exec/heap.h"
#include "exec/recordings.h"
#include "exec/resident.h"

#include <roped/backend.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Jobs that wait, by when they came and their handicap (executor.h). */
struct waiting {
    struct heap shorts, longs;
};

struct device {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    struct executor *exec;
    pthread_mutex_t *lock;                  /* the executor's */
    void (*reclaim)(struct device *device); /* frees what idle lanes and
                                               inboxes keep of its memory */
    int number, index;
    struct device_memory memory;
    struct resident *resident;
    struct lane *lane; /* n_lanes of them */
    int n_lanes;
    uint64_t device_bytes;      /* arenas and inboxes together */
    uint64_t inbox_limit_bytes; /* of these: most that inboxes take */
    uint64_t lane_bytes;        /* what a lane keeps of them after a job */
    uint64_t mapped_bytes;      /* smaller jobs use host memory in place */
    atomic_uint_least64_t arena_bytes;   /* claimed, that of inboxes included */
    atomic_uint_least64_t inbox_bytes;   /* of these: of inboxes */
    atomic_uint_least64_t scratch_bytes; /* host memory that lanes hold */
    atomic_uint_least64_t arriving_bytes; /* of bodies with an inbox */
    atomic_uint_least64_t early_bytes;    /* uploaded while they arrived */
    atomic_uint_least64_t fetched_bytes;  /* copied from other devices */
    atomic_uint_least64_t errors;
    struct recording_counts recorded;

    /* guarded by lock */
    struct waiting waiting;
    int n_long;         /* lanes with a long job */
    struct inbox *idle; /* inboxes without a body */
    int n_inboxes;
};

/* Opens the backend's device and its tables; the other members are the
 * caller's, and set before. Of an integrated one mapped_bytes and
 * inbox_limit_bytes are changed: it copies nothing. */
ROPED_MUST_CHECK enum roped_status
device_open(struct device *device, const struct roped_backend_options *options,
            uint64_t table_budget_bytes, uint64_t table_bytes,
            struct roped_error *err);

/* Also of one that is not open, or half. */
void device_close(struct device *device);

/* Adds bytes to arena_bytes unless that passes device_bytes; and takes them
 * off again. Thread-safe. */
bool device_claim(struct device *device, uint64_t bytes);
void device_release(struct device *device, uint64_t bytes);

/* The same for an inbox, which must fit inbox_limit_bytes too. */
bool device_claim_inbox(struct device *device, uint64_t bytes);
void device_release_inbox(struct device *device, uint64_t bytes);

#endif
