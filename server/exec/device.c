/*
 * device.c - opening and closing a device, and the budget of its memory.
 */
#include "exec/device.h"

/* An integrated GPU uses host memory in place, whatever its size, and bodies
 * stay where they arrive. */
static void spare_copies(struct device *device)
{
    struct roped_device_info info;
    device->api->info(device->backend, &info);
    if (!info.is_integrated)
        return;
    device->mapped_bytes = UINT64_MAX;
    device->inbox_limit_bytes = 0;
}

enum roped_status device_open(struct device *device,
                              const struct roped_backend_options *options,
                              uint64_t table_budget_bytes, uint64_t table_bytes,
                              struct roped_error *err)
{
    struct roped_backend_options own = *options;
    own.device = device->index;
    enum roped_status status = device->api->open(&own, &device->backend, err);
    if (status)
        return status;
    spare_copies(device);
    device->memory.api = device->api;
    device->memory.backend = device->backend;
    device->memory.number = device->number;
    return resident_open(&device->memory, table_budget_bytes, table_bytes,
                         &device->resident, err);
}

void device_close(struct device *device)
{
    resident_close(device->resident);
    if (device->backend)
        device->api->close(device->backend);
    device->resident = NULL;
    device->backend = NULL;
}

/* Adds bytes to a sum unless that passes limit. */
static bool claim(atomic_uint_least64_t *claimed, uint64_t limit,
                  uint64_t bytes)
{
    uint64_t sum = atomic_load(claimed);
    do {
        if (bytes > limit || sum > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak(claimed, &sum, sum + bytes));
    return true;
}

bool device_claim(struct device *device, uint64_t bytes)
{
    return claim(&device->arena_bytes, device->device_bytes, bytes);
}

void device_release(struct device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->arena_bytes, bytes);
}

bool device_claim_inbox(struct device *device, uint64_t bytes)
{
    if (!claim(&device->inbox_bytes, device->inbox_limit_bytes, bytes))
        return false;
    if (device_claim(device, bytes))
        return true;
    atomic_fetch_sub(&device->inbox_bytes, bytes);
    return false;
}

void device_release_inbox(struct device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->inbox_bytes, bytes);
    device_release(device, bytes);
}
