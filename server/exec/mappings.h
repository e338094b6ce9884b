/*
 * mappings.h - blocks that do not fit the pool: mappings of their own, within
 * a limit. The last few that were given back are kept, inside it, because
 * faulting in the pages of a fresh one costs more than copying the data. Those
 * that have served nobody for a time are given back to the kernel.
 *
 * LOCK. The caller's, which every function is called under and lets go while
 * the kernel works: tearing down a large mapping takes milliseconds.
 */
#ifndef ROPED_EXEC_MAPPINGS_H
#define ROPED_EXEC_MAPPINGS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { KEPT_MAPPINGS = 4 };

struct mapping {
    void *start; /* NULL: none */
    size_t bytes;
};

struct kept_mapping {
    struct mapping mapping;
    int n_trims; /* since it was given back */
};

struct mappings {
    pthread_mutex_t *lock;
    size_t limit_bytes;
    size_t bytes;                            /* of all, kept ones included */
    struct kept_mapping kept[KEPT_MAPPINGS]; /* oldest first, then empty ones */
};

void mappings_init(struct mappings *mappings, pthread_mutex_t *lock,
                   size_t limit_bytes);

/* Unmaps the kept ones; without the lock, when nobody else is left. */
void mappings_fini(struct mappings *mappings);

/* One of at least so many bytes. False: they are over the limit, or, with
 * *is_refused, the kernel has none. */
bool mappings_take(struct mappings *mappings, size_t bytes, struct mapping *out,
                   bool *is_refused);
void mappings_give(struct mappings *mappings, struct mapping mapping);

/* Unmaps the kept ones that this has found so many times before. */
void mappings_trim(struct mappings *mappings, int n_trims);

size_t mappings_kept_bytes(const struct mappings *mappings);

/* Of a range of whole pages: how much is in memory, and not only mapped. */
size_t mappings_resident_bytes(void *start, size_t bytes);

/* Makes one larger, at another address maybe; what is in it stays. */
bool mappings_grow(struct mappings *mappings, struct mapping *mapping,
                   size_t bytes);

#endif
