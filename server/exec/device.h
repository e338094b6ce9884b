/*
 * device.h - one open device of the executor: its backend, its resident
 * rotary tables, and the budget of device memory that its lanes share.
 *
 * A device has two numbers. Its number is its place among those of one
 * executor: what metrics, regions and clients call it. Its index is the
 * backend's own, which the same device may have under two numbers.
 */
#ifndef ROPED_EXEC_DEVICE_H
#define ROPED_EXEC_DEVICE_H

#include "exec/resident.h"

#include <roped/backend.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct device {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    int number, index;
    struct resident *resident;
    uint64_t device_bytes;      /* arenas of all lanes together */
    uint64_t lane_bytes;        /* what a lane keeps of them after a job */
    uint64_t mapped_bytes;      /* smaller jobs use host memory in place */
    uint64_t stage_limit_bytes; /* of device_bytes: most that stages take */
    /* Frees the arenas of lanes that are idle. */
    void (*reclaim)(void *context);
    void *reclaim_context;
    atomic_uint_least64_t arena_bytes; /* claimed, that of stages included */
    atomic_uint_least64_t stage_bytes; /* of these: of stages */
    atomic_uint_least64_t errors;
    atomic_uint_least64_t staged_bytes; /* uploaded while they arrived */
};

/* Opens the backend's device and its tables; the other members are the
 * caller's, and number, index and api are set before. */
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

/* The same for a stage, which must fit stage_limit_bytes too. */
bool device_claim_stage(struct device *device, uint64_t bytes);
void device_release_stage(struct device *device, uint64_t bytes);

#endif
