/*
 * memory.c - a first-fit pool over one page-locked range.
 *
 * DESIGN. The range is cut into extents, kept in address order in a doubly
 * linked list of preallocated nodes; giving a block back merges it with free
 * neighbours. Requests in flight are few, so the list is short and first fit
 * is a handful of steps. What does not fit gets a mapping of its own; the last
 * few that were given back are kept, in budget, because faulting in the pages
 * of a fresh one costs more than copying the data.
 *
 * THREADS. One mutex guards everything. It is never held while the kernel makes
 * or tears down a mapping: tearing down a large one takes milliseconds.
 */
#include "exec/memory.h"

#include <assert.h>
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
    size_t used_bytes;
    size_t mapped_bytes;                /* own mappings, kept ones included */
    struct mapping kept[KEPT_MAPPINGS]; /* oldest first, then empty ones */
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

/* Under lock: takes the i-th kept mapping out of the list. */
static struct mapping unkeep(struct memory_pool *pool, int i)
{
    struct mapping mapping = pool->kept[i];
    for (; i + 1 < KEPT_MAPPINGS; i++)
        pool->kept[i] = pool->kept[i + 1];
    pool->kept[i] = (struct mapping){NULL, 0};
    return mapping;
}

/* Under lock: a kept mapping that fits without wasting half of it. */
static struct mapping take_kept(struct memory_pool *pool, size_t bytes)
{
    for (int i = 0; i < KEPT_MAPPINGS; i++) {
        const struct mapping *kept = &pool->kept[i];
        if (kept->start && kept->bytes >= bytes && kept->bytes / 2 <= bytes)
            return unkeep(pool, i);
    }
    return (struct mapping){NULL, 0};
}

/* Unmaps. Under lock, which it lets go for as long as that takes: the bytes
 * count as taken until they are gone. */
static void unmap(struct memory_pool *pool, struct mapping mapping)
{
    pthread_mutex_unlock(&pool->lock);
    munmap(mapping.start, mapping.bytes);
    pthread_mutex_lock(&pool->lock);
    pool->mapped_bytes -= mapping.bytes;
}

static size_t mapped_limit(const struct memory_pool *pool)
{
    return pool->budget_bytes - pool->range_bytes;
}

/* Under lock: claims bytes of the budget, for which kept mappings may go. */
static bool claim(struct memory_pool *pool, size_t bytes)
{
    size_t limit = mapped_limit(pool);
    if (bytes > limit)
        return false;
    while (pool->mapped_bytes > limit - bytes && pool->kept[0].start)
        unmap(pool, unkeep(pool, 0));
    if (pool->mapped_bytes > limit - bytes)
        return false;
    pool->mapped_bytes += bytes;
    return true;
}

/* Under lock, which it lets go while the kernel makes the mapping. */
static enum roped_status take_mapping(struct memory_pool *pool, size_t bytes,
                                      struct memory_block *out,
                                      struct roped_error *err)
{
    size_t limit = mapped_limit(pool);
    size_t most = limit > pool->range_bytes ? limit : pool->range_bytes;
    if (bytes > most)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "a call needs %zu bytes of host memory in one piece, "
                          "expected at most %zu (host_bytes, pool_bytes)",
                          bytes, most);
    struct mapping mapping = take_kept(pool, bytes);
    if (!mapping.start) {
        if (!claim(pool, bytes))
            return roped_fail(err, ROPED_BUSY,
                              "host memory is in use: %zu bytes wanted, %zu "
                              "of %zu taken",
                              bytes, pool->used_bytes + pool->mapped_bytes,
                              pool->budget_bytes);
        pthread_mutex_unlock(&pool->lock);
        void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pthread_mutex_lock(&pool->lock);
        if (start == MAP_FAILED) {
            pool->mapped_bytes -= bytes;
            return roped_fail(err, ROPED_NO_MEMORY, "no memory for %zu bytes",
                              bytes);
        }
        mapping = (struct mapping){start, bytes};
    }
    out->start = mapping.start;
    out->bytes = mapping.bytes;
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
    assert(i >= 0 && !pool->extent[i].is_free); /* else not ours, or twice */
    pool->used_bytes -= pool->extent[i].bytes;
    pool->extent[i].is_free = true;
    merge_right(pool, i);
    if (pool->extent[i].previous >= 0)
        merge_right(pool, pool->extent[i].previous);
}

/* Under lock: keeps a mapping, for which the oldest kept one may go. */
static void give_mapping(struct memory_pool *pool, struct mapping mapping)
{
    int i = 0;
    struct mapping oldest = {NULL, 0};
    if (pool->kept[KEPT_MAPPINGS - 1].start)
        oldest = unkeep(pool, 0);
    while (pool->kept[i].start)
        i++;
    pool->kept[i] = mapping;
    if (oldest.start)
        unmap(pool, oldest);
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
        give_mapping(pool, (struct mapping){block->start, block->bytes});
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
