/*
 * memory.h - host memory of requests: blocks from one pool that is allocated
 * at start (page-locked where the backend is a GPU), so that a request costs
 * no allocation. What does not fit the pool gets a mapping of its own, slower
 * and still inside the host budget. Past the budget: ROPED_BUSY; larger than
 * the budget could ever give: ROPED_TOO_LARGE.
 */
#ifndef ROPED_EXEC_MEMORY_H
#define ROPED_EXEC_MEMORY_H

#include <roped/backend.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_pool;

/* A range of host memory, 64-byte aligned. start NULL: none. */
struct memory_block {
    unsigned char *start;
    size_t bytes;   /* usable, at least what was asked for */
    bool is_pinned; /* the device may read and write it in place */
};

struct memory_usage {
    uint64_t pool_bytes, pool_used_bytes; /* of the pool */
    uint64_t mapped_bytes;                /* own mappings, now */
    uint64_t budget_bytes;
};

ROPED_MUST_CHECK enum roped_status
memory_open(const struct roped_backend_api *api, struct roped_backend *backend,
            size_t pool_bytes, size_t budget_bytes, struct memory_pool **out,
            struct roped_error *err);
void memory_close(struct memory_pool *pool);

/* Thread-safe. bytes 0 is a valid block of 0 usable bytes. */
ROPED_MUST_CHECK enum roped_status memory_take(struct memory_pool *pool,
                                               size_t bytes,
                                               struct memory_block *out,
                                               struct roped_error *err);

/* Gives a block back and clears it; an empty block is ignored. */
void memory_give(struct memory_pool *pool, struct memory_block *block);

void memory_usage(struct memory_pool *pool, struct memory_usage *out);

#endif
