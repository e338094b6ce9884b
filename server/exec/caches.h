/*
 * caches.h - small blocks that were given back, kept for the next of the same
 * size: each thread has a cache that few others use, so that threads of a busy
 * server take and give without writing to what others read.
 */
#ifndef ROPED_EXEC_CACHES_H
#define ROPED_EXEC_CACHES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum {
    CACHES = 64,
    CACHED_CLASSES = 25, /* extents_class, up to 64 grains */
    CACHE_LINE = 128     /* what processors fetch at once */
};

/* A block in a cache or in a list, at its start. */
struct cached {
    struct cached *next;
};

struct cache {
    _Alignas(CACHE_LINE) pthread_mutex_t lock; /* guards the following */
    struct cached *first[CACHED_CLASSES];
    atomic_size_t bytes; /* read without the lock too */
};

struct caches {
    struct cache cache[CACHES];
    size_t class_bytes[CACHED_CLASSES]; /* what a block of each has */
    size_t limit;                       /* most bytes that each cache keeps */
};

/* grain: bytes of one. */
void caches_init(struct caches *caches, size_t grain, size_t limit);

/* What is still in them is nobody's any more. */
void caches_fini(struct caches *caches);

/* Thread-safe, like all that follows. A block of the calling thread's cache,
 * or NULL. */
struct cached *caches_take(struct caches *caches, int class);

/* Keeps a list of blocks of a class; returns others, of any, that had to go. */
struct cached *caches_give(struct caches *caches, struct cached *list,
                           int class);

/* All blocks of all caches. */
struct cached *caches_empty(struct caches *caches);

/* What moves from one cache to another meanwhile may count twice. */
size_t caches_bytes(const struct caches *caches);

#endif
