/*
 * memory.c - a first-fit pool over one page-locked range.
 *
 * DESIGN. The range is cut into extents, kept in address order in a doubly
 * linked list of preallocated nodes; giving a block back merges it with free
 * neighbours. Requests in flight are few, so the list is short and first fit
 * is a handful of steps. One mutex guards everything; no allocation happens
 * under it but for own mappings of what does not fit.
 */
#include "exec/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GRAIN_BYTES = 4096, MAX_EXTENTS = 4096, KEPT_MAPPINGS = 4 };

struct extent {
    size_t start, bytes;
    bool is_free;
    int previous, next; /* -1: none */
};

/* A mapping that was given back and may serve the next large request. */
struct mapping {
    void *start;
    size_t bytes;
};

struct memory_pool {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    unsigned char *range;
    size_t range_bytes, budget_bytes;

    pthread_mutex_t lock; /* guards the following */
    struct extent extent[MAX_EXTENTS];
    int unused; /* list of unused nodes, by next */
    size_t used_bytes, mapped_bytes;
    struct mapping kept[KEPT_MAPPINGS];
};

static size_t grains(size_t bytes)
{
    return (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
}

enum roped_status memory_open(const struct roped_backend_api *api,
                              struct roped_backend *backend, size_t pool_bytes,
                              size_t budget_bytes, struct memory_pool **out,
                              struct roped_error *err)
{
    struct memory_pool *pool = calloc(1, sizeof *pool);
    void *range;
    if (!pool)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the pool");
    pool->api = api;
    pool->backend = backend;
    pool->range_bytes = pool_bytes / GRAIN_BYTES * GRAIN_BYTES;
    pool->budget_bytes = budget_bytes > pool_bytes ? budget_bytes : pool_bytes;
    enum roped_status status =
        api->host_alloc(backend, pool->range_bytes, &range, err);
    if (status) {
        free(pool);
        return status;
    }
    pool->range = range;
    pthread_mutex_init(&pool->lock, NULL);
    pool->extent[0] = (struct extent){0, pool->range_bytes, true, -1, -1};
    for (int i = 1; i < MAX_EXTENTS; i++)
        pool->extent[i].next = i + 1 < MAX_EXTENTS ? i + 1 : -1;
    pool->unused = 1;
    *out = pool;
    return ROPED_OK;
}

void memory_close(struct memory_pool *pool)
{
    if (!pool)
        return;
    for (int i = 0; i < KEPT_MAPPINGS; i++)
        if (pool->kept[i].start)
            munmap(pool->kept[i].start, pool->kept[i].bytes);
    pool->api->host_free(pool->backend, pool->range);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* Under lock: index of a free extent of at least bytes, or -1. */
static int find_extent(const struct memory_pool *pool, size_t bytes)
{
    int i = 0;
    while (i >= 0 &&
           !(pool->extent[i].is_free && pool->extent[i].bytes >= bytes))
        i = pool->extent[i].next;
    return i;
}

/* Under lock: makes extent i exactly bytes long, the rest a free one. */
static void split(struct memory_pool *pool, int i, size_t bytes)
{
    struct extent *extent = &pool->extent[i];
    int rest = pool->unused;
    if (extent->bytes == bytes || rest < 0)
        return; /* without a node the block is a little larger */
    pool->unused = pool->extent[rest].next;
    pool->extent[rest] = (struct extent){
        extent->start + bytes, extent->bytes - bytes, true, i, extent->next};
    if (extent->next >= 0)
        pool->extent[extent->next].previous = rest;
    extent->next = rest;
    extent->bytes = bytes;
}

/* Under lock: joins extent i with its right neighbour where both are free. */
static void merge_right(struct memory_pool *pool, int i)
{
    struct extent *extent = &pool->extent[i];
    int right = extent->next;
    if (right < 0 || !extent->is_free || !pool->extent[right].is_free)
        return;
    extent->bytes += pool->extent[right].bytes;
    extent->next = pool->extent[right].next;
    if (extent->next >= 0)
        pool->extent[extent->next].previous = i;
    pool->extent[right].next = pool->unused;
    pool->unused = right;
}

/* Under lock: a kept mapping that fits without wasting half of it. */
static bool take_kept(struct memory_pool *pool, size_t bytes,
                      struct memory_block *out)
{
    for (int i = 0; i < KEPT_MAPPINGS; i++) {
        struct mapping *kept = &pool->kept[i];
        if (!kept->start || kept->bytes < bytes || kept->bytes / 2 > bytes)
            continue;
        out->start = kept->start;
        out->bytes = kept->bytes;
        kept->start = NULL;
        return true;
    }
    return false;
}

/* Under lock: unmaps kept mappings until bytes more fit the budget. */
static bool make_room(struct memory_pool *pool, size_t bytes)
{
    size_t limit = pool->budget_bytes - pool->range_bytes;
    for (int i = 0; i < KEPT_MAPPINGS; i++) {
        struct mapping *kept = &pool->kept[i];
        if (pool->mapped_bytes + bytes <= limit)
            break;
        if (!kept->start)
            continue;
        munmap(kept->start, kept->bytes);
        pool->mapped_bytes -= kept->bytes;
        kept->start = NULL;
    }
    return pool->mapped_bytes + bytes <= limit;
}

static enum roped_status take_mapping(struct memory_pool *pool, size_t bytes,
                                      struct memory_block *out,
                                      struct roped_error *err)
{
    size_t limit = pool->budget_bytes - pool->range_bytes;
    if (bytes > limit && bytes > pool->range_bytes)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "a call needs %zu bytes of host memory, expected at "
                          "most %zu (host_bytes)",
                          bytes, pool->budget_bytes);
    if (!take_kept(pool, bytes, out)) {
        if (!make_room(pool, bytes))
            return roped_fail(err, ROPED_BUSY,
                              "host memory is in use: %zu bytes wanted, %zu "
                              "of %zu taken",
                              bytes, pool->used_bytes + pool->mapped_bytes,
                              pool->budget_bytes);
        void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED)
            return roped_fail(err, ROPED_NO_MEMORY, "no memory for %zu bytes",
                              bytes);
        out->start = start;
        out->bytes = bytes;
        pool->mapped_bytes += bytes;
    }
    out->is_pinned = pool->api->is_host;
    return ROPED_OK;
}

enum roped_status memory_take(struct memory_pool *pool, size_t bytes,
                              struct memory_block *out, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    memset(out, 0, sizeof *out);
    if (bytes > SIZE_MAX - GRAIN_BYTES)
        return roped_fail(err, ROPED_TOO_LARGE, "%zu bytes in one block",
                          bytes);
    size_t wanted = grains(bytes ? bytes : 1);
    pthread_mutex_lock(&pool->lock);
    int i = find_extent(pool, wanted);
    if (i >= 0) {
        split(pool, i, wanted);
        pool->extent[i].is_free = false;
        pool->used_bytes += pool->extent[i].bytes;
        out->start = pool->range + pool->extent[i].start;
        out->bytes = pool->extent[i].bytes;
        out->is_pinned = true;
    } else {
        status = take_mapping(pool, wanted, out, err);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Under lock: the extent that starts here. */
static int extent_at(const struct memory_pool *pool, size_t start)
{
    int i = 0;
    while (i >= 0 && pool->extent[i].start != start)
        i = pool->extent[i].next;
    return i;
}

static void give_extent(struct memory_pool *pool, size_t start)
{
    int i = extent_at(pool, start);
    pool->used_bytes -= pool->extent[i].bytes;
    pool->extent[i].is_free = true;
    merge_right(pool, i);
    if (pool->extent[i].previous >= 0)
        merge_right(pool, pool->extent[i].previous);
}

static void give_mapping(struct memory_pool *pool,
                         const struct memory_block *block)
{
    for (int i = 0; i < KEPT_MAPPINGS; i++)
        if (!pool->kept[i].start) {
            pool->kept[i].start = block->start;
            pool->kept[i].bytes = block->bytes;
            return;
        }
    munmap(block->start, block->bytes);
    pool->mapped_bytes -= block->bytes;
}

void memory_give(struct memory_pool *pool, struct memory_block *block)
{
    if (!block->start)
        return;
    pthread_mutex_lock(&pool->lock);
    bool is_ours = block->start >= pool->range &&
                   block->start < pool->range + pool->range_bytes;
    if (is_ours)
        give_extent(pool, (size_t)(block->start - pool->range));
    else
        give_mapping(pool, block);
    pthread_mutex_unlock(&pool->lock);
    memset(block, 0, sizeof *block);
}

void memory_usage(struct memory_pool *pool, struct memory_usage *out)
{
    pthread_mutex_lock(&pool->lock);
    out->pool_bytes = pool->range_bytes;
    out->pool_used_bytes = pool->used_bytes;
    out->mapped_bytes = pool->mapped_bytes;
    out->budget_bytes = pool->budget_bytes;
    pthread_mutex_unlock(&pool->lock);
}
