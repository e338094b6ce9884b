/*
 * device_memory.h - the memory of one device, and what this daemon holds of it.
 * All that is allocated on a device goes through here, so that who is told that
 * there is none left is told whose it is.
 */
#ifndef ROPED_EXEC_DEVICE_MEMORY_H
#define ROPED_EXEC_DEVICE_MEMORY_H

#include <roped/backend.h>

#include <stdatomic.h>
#include <stdint.h>

enum memory_use { FOR_REGIONS, FOR_CALLS, FOR_TABLES, MEMORY_USES };

struct device_memory {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    int number; /* of the device among those of its executor */
    atomic_uint_least64_t held[MEMORY_USES]; /* bytes */
};

/* ROPED_NO_MEMORY names the device, what the backend knows of its memory, and
 * what is held of it for each use. */
ROPED_MUST_CHECK enum roped_status
device_memory_take(struct device_memory *memory, enum memory_use use,
                   uint64_t bytes, void **out, struct roped_error *err);

/* As many bytes as were taken; data NULL is ignored. */
void device_memory_give(struct device_memory *memory, enum memory_use use,
                        uint64_t bytes, void *data);

#endif
