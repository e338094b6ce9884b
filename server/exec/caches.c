/*
 * caches.c - one mutex for each cache: it is free nearly always, and anybody
 * may empty any.
 */
#include "exec/caches.h"

#include "exec/extents.h"

#include <string.h>

void caches_init(struct caches *caches, size_t grain, size_t limit)
{
    memset(caches, 0, sizeof *caches);
    caches->limit = limit;
    for (int i = 0; i < CACHED_CLASSES; i++)
        caches->class_bytes[i] = extents_class_size(i) * grain;
    for (int i = 0; i < CACHES; i++)
        pthread_mutex_init(&caches->cache[i].lock, NULL);
}

void caches_fini(struct caches *caches)
{
    for (int i = 0; i < CACHES; i++)
        pthread_mutex_destroy(&caches->cache[i].lock);
}

/* No two threads share a cache while there are at most CACHES. */
static struct cache *own_cache(struct caches *caches)
{
    static atomic_uint n_threads;
    static _Thread_local unsigned number;
    if (number == 0)
        number = 1 + atomic_fetch_add(&n_threads, 1);
    return &caches->cache[number % CACHES];
}

static size_t bytes_of(const struct cache *cache)
{
    return atomic_load_explicit(&cache->bytes, memory_order_relaxed);
}

/* Under the cache's lock. */
static void set_bytes(struct cache *cache, size_t bytes)
{
    atomic_store_explicit(&cache->bytes, bytes, memory_order_relaxed);
}

static void push(struct cached **list, struct cached *block)
{
    block->next = *list;
    *list = block;
}

static struct cached *pop(struct cached **list)
{
    struct cached *block = *list;
    if (block)
        *list = block->next;
    return block;
}

struct cached *caches_take(struct caches *caches, int class)
{
    struct cache *cache = own_cache(caches);
    pthread_mutex_lock(&cache->lock);
    struct cached *block = pop(&cache->first[class]);
    if (block)
        set_bytes(cache, bytes_of(cache) - caches->class_bytes[class]);
    pthread_mutex_unlock(&cache->lock);
    return block;
}

/* Under the cache's lock: takes blocks out until at most so many bytes are
 * left, those of one class first. */
static struct cached *take_out(const struct caches *caches, struct cache *cache,
                               int class, size_t left)
{
    struct cached *list = NULL;
    size_t bytes = bytes_of(cache);
    for (int i = 0; i < CACHED_CLASSES; i++) {
        int c = (class + i) % CACHED_CLASSES;
        while (cache->first[c] && bytes > left) {
            push(&list, pop(&cache->first[c]));
            bytes -= caches->class_bytes[c];
        }
    }
    set_bytes(cache, bytes);
    return list;
}

struct cached *caches_give(struct caches *caches, struct cached *list,
                           int class)
{
    struct cache *cache = own_cache(caches);
    struct cached *block, *gone = NULL;
    pthread_mutex_lock(&cache->lock);
    size_t bytes = bytes_of(cache);
    while ((block = pop(&list))) {
        push(&cache->first[class], block);
        bytes += caches->class_bytes[class];
    }
    set_bytes(cache, bytes);
    if (bytes > caches->limit)
        gone = take_out(caches, cache, class, caches->limit / 2);
    pthread_mutex_unlock(&cache->lock);
    return gone;
}

struct cached *caches_empty(struct caches *caches)
{
    struct cached *all = NULL, *list, *block;
    for (int i = 0; i < CACHES; i++) {
        struct cache *cache = &caches->cache[i];
        if (bytes_of(cache) == 0)
            continue;
        pthread_mutex_lock(&cache->lock);
        list = take_out(caches, cache, 0, 0);
        pthread_mutex_unlock(&cache->lock);
        while ((block = pop(&list)))
            push(&all, block);
    }
    return all;
}

size_t caches_bytes(const struct caches *caches)
{
    size_t bytes = 0;
    for (int i = 0; i < CACHES; i++)
        bytes += bytes_of(&caches->cache[i]);
    return bytes;
}
