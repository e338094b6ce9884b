/*
 * memory.h - host memory of requests: blocks from one pool that is allocated
 * at start (page-locked where the backend is a GPU), so that a request costs
 * no allocation. What does not fit the pool gets a mapping of its own, slower
 * and still inside the host budget. Past the budget: ROPED_BUSY; larger than
 * the budget could ever give: ROPED_TOO_LARGE. The last few mappings are kept
 * for the next large blocks, until memory_trim finds that nobody used them.
 *
 * SMALL CALLS. Large blocks never take everything: blocks that are or will be
 * larger than 4 MiB take together at most 7/8 of the budget, and none of the
 * first eighth of the pool. So clients that stop in the middle of large bodies
 * leave memory for small calls.
 */
#ifndef ROPED_EXEC_MEMORY_H
#define ROPED_EXEC_MEMORY_H

#include <roped/backend.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_pool;

/* A range of host memory, 64-byte aligned. start NULL: none; {0} is an empty
 * block. */
struct memory_block {
    unsigned char *start;
    size_t bytes;   /* usable, at least what was asked for */
    bool is_pinned; /* the device may read and write it in place */
    /* the pool's own */
    size_t lent; /* of bytes: taken ahead of arrival */
    size_t most; /* that it will be, as far as was said */
};

struct memory_usage {
    uint64_t pool_bytes, pool_used_bytes; /* of the pool */
    uint64_t pool_resident_bytes;         /* pages of it ever used */
    uint64_t mapped_bytes;                /* own mappings, kept ones included */
    uint64_t kept_bytes;                  /* for the next large block */
    uint64_t budget_bytes;
    uint64_t lent_bytes; /* of used and mapped ones: ahead of arrival */
};

ROPED_MUST_CHECK enum roped_status
memory_open(const struct roped_backend_api *api, struct roped_backend *backend,
            size_t pool_bytes, size_t budget_bytes, struct memory_pool **out,
            struct roped_error *err);
void memory_close(struct memory_pool *pool);

/* Thread-safe, like all that follows; a block is one thread's at a time.
 * bytes 0 is a valid block of 0 usable bytes. */
ROPED_MUST_CHECK enum roped_status memory_take(struct memory_pool *pool,
                                               size_t bytes,
                                               struct memory_block *out,
                                               struct roped_error *err);

/*
 * Room for a body while it arrives. The first used bytes of the block stay,
 * maybe at another address; what is behind them is undefined. After it
 * block->bytes >= least; nothing happens where that holds already. The block
 * may be empty the first time.
 *
 * most is what the block will hold in the end, 0: not known. Where the pool can
 * spare it the block gets all of it at once, and most - least of that counts as
 * lent: the lent bytes of all blocks together stay under a quarter of the
 * budget, and those in the pool under a quarter of the pool, so that to
 * announce a body takes no memory away from others. Past that, and where most
 * is not known, the block gets at least twice what it had. Up to 64 KiB are
 * given at once and never lent.
 *
 * Errors: ROPED_TOO_LARGE where the budget could never give most (or least),
 * ROPED_BUSY, ROPED_NO_MEMORY; bytes and start of the block are then unchanged.
 */
ROPED_MUST_CHECK enum roped_status
memory_extend(struct memory_pool *pool, struct memory_block *block, size_t used,
              size_t least, size_t most, struct roped_error *err);

/* The first used bytes of the block have arrived: they are no longer lent.
 * Costs nothing where nothing of the block is lent. */
void memory_arrived(struct memory_pool *pool, struct memory_block *block,
                    size_t used);

/* Gives a block back, lent or not, and clears it; an empty block is ignored. */
void memory_give(struct memory_pool *pool, struct memory_block *block);

/* Unmaps what has been kept, and used by nobody, since MEMORY_TRIMS calls
 * before this one; and gives pages back that the C library's heaps keep. */
enum { MEMORY_TRIMS = 2 };
void memory_trim(struct memory_pool *pool);

void memory_usage(struct memory_pool *pool, struct memory_usage *out);

#endif
