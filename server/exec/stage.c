/*
 * stage.c - copies of a body, chunk by chunk.
 */
#include "exec/stage.h"

#include <stdlib.h>

/* An eighth of the next power of two: bodies of about one size share stages,
 * and little is lost to rounding. */
uint64_t stage_capacity(uint64_t bytes)
{
    uint64_t grain = 64 << 10;
    while (8 * grain < bytes)
        grain *= 2;
    return (bytes + grain - 1) / grain * grain;
}

struct stage *stage_new(struct device *device, uint64_t bytes)
{
    struct stage *stage = calloc(1, sizeof *stage);
    void *memory;
    if (!stage)
        return NULL;
    stage->device = device;
    bytes = stage_capacity(bytes);
    if (!device_claim_stage(device, bytes)) {
        free(stage);
        return NULL;
    }
    stage->capacity = bytes;
    if (device->api->queue_open(device->backend, &stage->queue, NULL) ||
        device->api->device_alloc(device->backend, (size_t)bytes, &memory,
                                  NULL)) {
        stage_free(stage);
        return NULL;
    }
    stage->memory = memory;
    return stage;
}

void stage_free(struct stage *stage)
{
    struct device *device = stage->device;
    if (stage->queue)
        device->api->queue_close(stage->queue);
    if (stage->memory)
        device->api->device_free(device->backend, stage->memory);
    device_release_stage(device, stage->capacity);
    free(stage);
}

void stage_begin(struct stage *stage, const void *host, uint64_t first,
                 uint64_t bytes, uint64_t chunk_bytes)
{
    stage->host = host;
    stage->first = stage->sent = first;
    stage->bytes = bytes;
    stage->chunk_bytes = chunk_bytes;
    stage->has_failed = false;
}

/* The body's last chunk is what a call waits for: it is timed. */
static enum roped_status mark(struct stage *stage, int at, bool is_last)
{
    const struct roped_backend_api *api = stage->device->api;
    return is_last && api->mark ? api->mark(stage->queue, at, NULL) : ROPED_OK;
}

static enum roped_status copy(struct stage *stage, uint64_t bytes, bool is_last)
{
    enum roped_status status = mark(stage, STAGE_MARK_LAST, is_last);
    if (!status)
        status = stage->device->api->upload(
            stage->queue, stage->memory + stage->sent,
            stage->host + stage->sent, (size_t)bytes, NULL);
    return status ? status : mark(stage, STAGE_MARK_END, is_last);
}

void stage_advance(struct stage *stage, uint64_t end)
{
    bool is_all = end >= stage->bytes;
    while (!stage->has_failed && stage->sent < end) {
        uint64_t left = end - stage->sent;
        if (left < stage->chunk_bytes && !is_all)
            return;
        uint64_t n = left < stage->chunk_bytes ? left : stage->chunk_bytes;
        stage->has_failed = copy(stage, n, is_all && n == left) != ROPED_OK;
        stage->sent += n; /* also a failed one: it may be under way */
        if (!stage->has_failed)
            atomic_fetch_add_explicit(&stage->device->staged_bytes, n,
                                      memory_order_relaxed);
    }
}

unsigned char *stage_find(const struct stage *stage, const void *data,
                          uint64_t bytes)
{
    uintptr_t at = (uintptr_t)data, start = (uintptr_t)stage->host;
    if (stage->has_failed || bytes == 0 || at < start + stage->first ||
        at - start > stage->sent || bytes > stage->sent - (at - start))
        return NULL;
    return stage->memory + (at - start);
}

enum roped_status stage_wait(struct stage *stage, struct roped_error *err)
{
    return stage->device->api->wait(stage->queue, err);
}
