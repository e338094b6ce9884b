/*
 * region.c - what a region is, and where its bytes are.
 */
#include "exec/region_internal.h"

#include <assert.h>
#include <string.h>

void region_set_written(struct region *region)
{
    region->is_written = true;
}

const struct region_info *region_info(const struct region *region)
{
    return &region->info;
}

void region_set_head(struct region *region, const void *head, size_t bytes)
{
    assert(bytes <= REGION_HEAD_BYTES);
    if (region->is_device)
        return;
    memcpy(region->data - bytes, head, bytes);
    region->head_bytes = bytes;
}

const unsigned char *region_whole(const struct region *region, size_t *bytes)
{
    if (region->is_device)
        return NULL;
    *bytes = region->head_bytes + (size_t)region->info.bytes;
    return region->data - region->head_bytes;
}

unsigned char *region_data(const struct region *region)
{
    return region->data;
}

bool region_is_device(const struct region *region)
{
    return region->is_device;
}

bool region_is_elsewhere(const struct region *region, int device)
{
    return region->is_device && region->info.device != device;
}

const struct roped_backend *region_backend(const struct region *region)
{
    return region->memory->backend;
}

bool region_is_pinned(const struct region *region)
{
    return region->client.is_pinned;
}

enum roped_status region_check(const struct region *region,
                               struct roped_error *err)
{
    if (region->info.kind != REGION_SYSTEM)
        return ROPED_OK;
    return client_memory_check(&region->client, region->info.name, err);
}

enum roped_status region_check_range(const struct region *region,
                                     const char *name, uint64_t offset,
                                     uint64_t bytes, struct roped_error *err)
{
    const struct region_info *info = &region->info;
    if (offset <= info->bytes && bytes <= info->bytes - offset)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Invalid offset%s for shared memory region: '%s': tensor "
                      "'%s' takes %llu bytes at offset %llu, expected both "
                      "within %llu bytes",
                      offset > info->bytes ? "" : " + byte size", info->name,
                      name, (unsigned long long)bytes,
                      (unsigned long long)offset,
                      (unsigned long long)info->bytes);
}
