/*
 * device_memory.c - taking memory of a device, and saying why there is none.
 */
#include "exec/device_memory.h"

#include <stddef.h>

static unsigned long long held(const struct device_memory *memory,
                               enum memory_use use)
{
    return atomic_load(&memory->held[use]);
}

enum roped_status device_memory_take(struct device_memory *memory,
                                     enum memory_use use, uint64_t bytes,
                                     void **out, struct roped_error *err)
{
    struct roped_error why;
    enum roped_status status =
        memory->api->device_alloc(memory->backend, (size_t)bytes, out, &why);
    if (!status)
        atomic_fetch_add(&memory->held[use], bytes);
    else if (status != ROPED_NO_MEMORY)
        roped_fail(err, status, "%s", why.text);
    else
        roped_fail(
            err, status,
            "device %d: %llu bytes wanted: %s; of its memory this daemon "
            "holds %llu bytes for regions, %llu for calls and %llu for "
            "tables",
            memory->number, (unsigned long long)bytes, why.text,
            held(memory, FOR_REGIONS), held(memory, FOR_CALLS),
            held(memory, FOR_TABLES));
    return status;
}

void device_memory_give(struct device_memory *memory, enum memory_use use,
                        uint64_t bytes, void *data)
{
    if (!data)
        return;
    memory->api->device_free(memory->backend, data);
    atomic_fetch_sub(&memory->held[use], bytes);
}
