/*
 * memory.c - blocks from one page-locked range, or mappings of their own.
 *
 * DESIGN. The range is cut into extents (extents.h); its first eighth is a
 * range apart, for small blocks. What does not fit gets a mapping of its own
 * (mappings.h).
 *
 * CACHES. Blocks of up to 256 KiB are rounded up to one of a few sizes, and
 * those given back stay in caches (caches.h). To the extents these are taken:
 * all are emptied before the pool is said to be full.
 *
 * THREADS. One mutex guards what is taken, another each cache; nobody holds
 * two. None is held while the kernel makes or tears down a mapping: tearing
 * down a large one takes milliseconds. What is lent is counted without them.
 */
#include "exec/memory.h"

#include "exec/caches.h"
#include "exec/extents.h"
#include "exec/heaps.h"
#include "exec/mappings.h"
#include "exec/poison.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRAIN_BYTES = 4096,
    LENT_BYTES = 64 << 10, /* blocks up to this are never lent */
    BULK_BYTES = 4 << 20,  /* blocks beyond leave room for smaller ones */
    LENT_SHARE = 4,        /* one part in so many may be lent */
    RESERVE_SHARE = 8,     /* one part in so many is not for bulk */
    CACHE_BYTES = 1 << 20, /* most that a cache keeps */
    CACHE_SHARE = 256,     /* and of the pool one part in so many */
    CACHED_BYTES = 256 << 10,
    REFILL_BYTES = 64 << 10
};

/* Where a block may be. */
enum { IN_POOL = 1, MAPPED = 2, ANYWHERE = IN_POOL | MAPPED };

/* What a block is to be: bytes now, at most so many later. */
struct wish {
    size_t bytes, most;
    int where;
    size_t room; /* in the pool only where so many bytes are free */
};

struct memory_pool {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    unsigned char *range;
    size_t range_bytes, budget_bytes;
    size_t reserve_bytes; /* at the start of range, not for bulk */
    struct grain *grain;  /* of the range */
    struct caches caches;

    _Alignas(CACHE_LINE) atomic_size_t lent_bytes;
    atomic_size_t lent_pool_bytes;

    pthread_mutex_t lock; /* guards the following */
    struct extents reserve, rest;
    size_t used_bytes; /* of range, caches included */
    size_t bulk_bytes; /* of used and mapped blocks */
    struct mappings mappings;
};

/* ------------------------------------------------------------- life cycle */

static size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t grains(size_t bytes)
{
    return (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
}

/* A range that has no room for bulk needs no reserve. */
static size_t reserve_of(size_t range_bytes)
{
    return range_bytes > BULK_BYTES ? grains(range_bytes / RESERVE_SHARE) : 0;
}

static enum roped_status open_range(struct memory_pool *pool,
                                    struct roped_error *err)
{
    size_t n = pool->range_bytes / GRAIN_BYTES;
    size_t n_reserve = pool->reserve_bytes / GRAIN_BYTES;
    void *range;
    pool->grain = calloc(n ? n : 1, sizeof *pool->grain);
    if (!pool->grain)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the pool");
    enum roped_status status =
        pool->api->host_alloc(pool->backend, pool->range_bytes, &range, err);
    if (status)
        return status;
    pool->range = range;
    extents_init(&pool->reserve, pool->grain, (uint32_t)n_reserve);
    extents_init(&pool->rest, pool->grain + n_reserve,
                 (uint32_t)(n - n_reserve));
    return ROPED_OK;
}

enum roped_status memory_open(const struct roped_backend_api *api,
                              struct roped_backend *backend, size_t pool_bytes,
                              size_t budget_bytes, struct memory_pool **out,
                              struct roped_error *err)
{
    struct memory_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the pool");
    heaps_bound();
    memset(pool, 0, sizeof *pool);
    pool->api = api;
    pool->backend = backend;
    pool->range_bytes = pool_bytes / GRAIN_BYTES * GRAIN_BYTES;
    pool->reserve_bytes = reserve_of(pool->range_bytes);
    pool->budget_bytes = budget_bytes > pool_bytes ? budget_bytes : pool_bytes;
    enum roped_status status = open_range(pool, err);
    if (status) {
        free(pool->grain);
        free(pool);
        return status;
    }
    pthread_mutex_init(&pool->lock, NULL);
    mappings_init(&pool->mappings, &pool->lock,
                  pool->budget_bytes - pool->range_bytes);
    caches_init(&pool->caches, GRAIN_BYTES,
                least_of(CACHE_BYTES, pool->range_bytes / CACHE_SHARE));
    *out = pool;
    return ROPED_OK;
}

void memory_close(struct memory_pool *pool)
{
    if (!pool)
        return;
    mappings_fini(&pool->mappings);
    pool->api->host_free(pool->backend, pool->range);
    pthread_mutex_destroy(&pool->lock);
    caches_fini(&pool->caches);
    free(pool->grain);
    free(pool);
}

/* ------------------------------------------------------------------ limits */

static size_t bulk_limit(const struct memory_pool *pool)
{
    return pool->budget_bytes - pool->budget_bytes / RESERVE_SHARE;
}

static bool is_bulk(size_t most)
{
    return most > BULK_BYTES;
}

static size_t larger_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Could a block of so many bytes be had if there were no other? */
static enum roped_status judge(const struct memory_pool *pool, size_t bytes,
                               struct roped_error *err)
{
    size_t mapped = pool->mappings.limit_bytes;
    if (is_bulk(bytes) && mapped > bulk_limit(pool))
        mapped = bulk_limit(pool);
    size_t most = larger_of(mapped, pool->range_bytes - pool->reserve_bytes);
    if (!is_bulk(bytes))
        most = larger_of(most, pool->reserve_bytes);
    if (bytes <= most / GRAIN_BYTES * GRAIN_BYTES)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "a call needs %zu bytes of host memory in one piece, "
                      "expected at most %zu (host_bytes, pool_bytes)",
                      bytes, most);
}

/* Under lock: bytes of the range in blocks. What moves from one cache to
 * another meanwhile may be seen in both. */
static size_t pool_used_bytes(const struct memory_pool *pool)
{
    return pool->used_bytes -
           least_of(caches_bytes(&pool->caches), pool->used_bytes);
}

/* Under lock. */
static enum roped_status refuse(const struct memory_pool *pool, size_t bytes,
                                struct roped_error *err)
{
    return roped_fail(err, ROPED_BUSY,
                      "host memory is in use: %zu bytes wanted, %zu of %zu "
                      "taken",
                      bytes, pool_used_bytes(pool) + pool->mappings.bytes,
                      pool->budget_bytes);
}

/* Under lock: claims bytes for bulk, if any. */
static bool claim_bulk(struct memory_pool *pool, size_t bytes)
{
    if (bytes && (bytes > bulk_limit(pool) ||
                  pool->bulk_bytes > bulk_limit(pool) - bytes))
        return false;
    pool->bulk_bytes += bytes;
    return true;
}

/* Under lock: what a block counts of bulk_bytes. */
static size_t bulk_of(const struct memory_block *block)
{
    return is_bulk(block->most) ? block->bytes : 0;
}

/* ---------------------------------------------------------------- the range */

static bool is_in_pool(const struct memory_pool *pool, const void *start)
{
    uintptr_t at = (uintptr_t)start, range = (uintptr_t)pool->range;
    return at >= range && at - range < pool->range_bytes;
}

/* Under lock: the extents that a place of the range belongs to, and its number
 * there. */
static struct extents *extents_at(struct memory_pool *pool, const void *start,
                                  uint32_t *number)
{
    size_t at = (uintptr_t)start - (uintptr_t)pool->range;
    bool is_reserve = at < pool->reserve_bytes;
    at -= is_reserve ? 0 : pool->reserve_bytes;
    *number = (uint32_t)(at / GRAIN_BYTES);
    return is_reserve ? &pool->reserve : &pool->rest;
}

/* Under lock: bytes at the start of free ones of at least room; or NULL. */
static void *take_from(struct memory_pool *pool, struct extents *extents,
                       size_t bytes, size_t room)
{
    size_t n = bytes / GRAIN_BYTES, n_room = room / GRAIN_BYTES;
    if (n_room > extents->n)
        return NULL;
    uint32_t start = extents_take(extents, (uint32_t)n, (uint32_t)n_room);
    if (start == EXTENT_NONE)
        return NULL;
    pool->used_bytes += bytes;
    unsigned char *taken = pool->range +
                           (extents == &pool->rest ? pool->reserve_bytes : 0) +
                           (size_t)start * GRAIN_BYTES;
    poison_taken(taken, bytes);
    return taken;
}

/* Under lock. Small blocks fill the reserve first: the rest is in one piece
 * for longer. */
static void *take_range(struct memory_pool *pool, const struct wish *wish)
{
    void *start = NULL;
    size_t room = larger_of(wish->room, wish->bytes);
    if (!is_bulk(wish->most))
        start = take_from(pool, &pool->reserve, wish->bytes, room);
    return start ? start : take_from(pool, &pool->rest, wish->bytes, room);
}

/* Under lock. */
static void give_range(struct memory_pool *pool, void *start)
{
    uint32_t number;
    struct extents *extents = extents_at(pool, start, &number);
    pool->used_bytes -= (size_t)extents_give(extents, number) * GRAIN_BYTES;
}

/* ------------------------------------------------------------------ caches */

/* The class of blocks that are kept where these may be; or -1. */
static int cached_class(const struct memory_pool *pool, size_t bytes,
                        size_t most)
{
    if (bytes > least_of(CACHED_BYTES, pool->caches.limit) || is_bulk(most))
        return -1;
    return extents_class((uint32_t)(bytes / GRAIN_BYTES));
}

/* Under lock. */
static void give_list(struct memory_pool *pool, struct cached *list)
{
    while (list) {
        struct cached *next = list->next;
        give_range(pool, list);
        list = next;
    }
}

static void give_cached(struct memory_pool *pool, struct cached *list,
                        int class)
{
    struct cached *gone = caches_give(&pool->caches, list, class);
    if (!gone)
        return;
    pthread_mutex_lock(&pool->lock);
    give_list(pool, gone);
    pthread_mutex_unlock(&pool->lock);
}

/* A block from the extents, and a few more of its size for the next. */
static struct cached *refill(struct memory_pool *pool, int class)
{
    size_t bytes = pool->caches.class_bytes[class];
    struct wish wish = {bytes, bytes, IN_POOL, 0};
    struct cached *list = NULL, *block;
    size_t n = least_of(REFILL_BYTES, pool->caches.limit / 2) / bytes;
    pthread_mutex_lock(&pool->lock);
    struct cached *first = take_range(pool, &wish);
    for (; first && n > 1 && (block = take_range(pool, &wish)); n--) {
        block->next = list;
        list = block;
    }
    pthread_mutex_unlock(&pool->lock);
    if (list)
        give_cached(pool, list, class);
    return first;
}

/* Gives what is in all caches back to the extents: under lock, which it lets
 * go. False: there was nothing. */
static bool empty_caches(struct memory_pool *pool)
{
    pthread_mutex_unlock(&pool->lock);
    struct cached *list = caches_empty(&pool->caches);
    pthread_mutex_lock(&pool->lock);
    give_list(pool, list);
    return list != NULL;
}

/* ---------------------------------------------------------------- mappings */

/* Under lock, which it lets go while the kernel makes the mapping. */
static enum roped_status take_mapping(struct memory_pool *pool, size_t bytes,
                                      struct memory_block *out,
                                      struct roped_error *err)
{
    struct mapping mapping;
    bool is_refused;
    if (!mappings_take(&pool->mappings, bytes, &mapping, &is_refused))
        return is_refused ? roped_fail(err, ROPED_NO_MEMORY,
                                       "no memory for %zu bytes", bytes)
                          : refuse(pool, bytes, err);
    *out = (struct memory_block){.start = mapping.start,
                                 .bytes = mapping.bytes,
                                 .is_pinned = pool->api->is_host};
    poison_taken(out->start, out->bytes);
    return ROPED_OK;
}

/* ----------------------------------------------------------- take and give */

static struct memory_block in_pool(void *start, const struct wish *wish)
{
    return (struct memory_block){.start = start,
                                 .bytes = wish->bytes,
                                 .is_pinned = true,
                                 .most = wish->most};
}

/* Under lock, which it may let go. */
static enum roped_status take_somewhere(struct memory_pool *pool,
                                        const struct wish *wish,
                                        struct memory_block *out,
                                        struct roped_error *err)
{
    void *start = wish->where & IN_POOL ? take_range(pool, wish) : NULL;
    if (!start && wish->where & IN_POOL && empty_caches(pool))
        start = take_range(pool, wish);
    if (start)
        *out = in_pool(start, wish);
    if (start)
        return ROPED_OK;
    if (wish->where & MAPPED)
        return take_mapping(pool, wish->bytes, out, err);
    return refuse(pool, wish->bytes, err);
}

/* A small block, without the lock unless none is in the cache. */
static bool take_small(struct memory_pool *pool, const struct wish *wish,
                       struct memory_block *out)
{
    int class = cached_class(pool, wish->bytes, wish->most);
    if (class < 0 || wish->room || !(wish->where & IN_POOL))
        return false;
    struct cached *block = caches_take(&pool->caches, class);
    if (!block)
        block = refill(pool, class);
    if (!block)
        return false;
    *out = in_pool(block, wish);
    out->bytes = pool->caches.class_bytes[class];
    poison_taken(out->start, out->bytes);
    return true;
}

/* A new block for a block (or an empty one), which counts no longer as bulk
 * while that is made: it will be given back. */
static enum roped_status take(struct memory_pool *pool, const struct wish *wish,
                              const struct memory_block *instead_of,
                              struct memory_block *out, struct roped_error *err)
{
    size_t before = bulk_of(instead_of);
    size_t bulk = is_bulk(wish->most) ? wish->bytes : 0;
    enum roped_status status;
    if (before == 0 && take_small(pool, wish, out))
        return ROPED_OK;
    pthread_mutex_lock(&pool->lock);
    pool->bulk_bytes -= before;
    bool has_room = claim_bulk(pool, bulk);
    pool->bulk_bytes += before;
    status = has_room ? take_somewhere(pool, wish, out, err)
                      : refuse(pool, wish->bytes, err);
    if (!status) {
        out->most = wish->most;
        pool->bulk_bytes += bulk_of(out) - bulk; /* a kept one is larger */
    } else {
        pool->bulk_bytes -= has_room ? bulk : 0;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static const struct memory_block no_block;

enum roped_status memory_take(struct memory_pool *pool, size_t bytes,
                              struct memory_block *out, struct roped_error *err)
{
    memset(out, 0, sizeof *out);
    if (bytes > SIZE_MAX - GRAIN_BYTES)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "cannot allocate %zu bytes in one block", bytes);
    size_t wanted = grains(bytes ? bytes : 1);
    struct wish wish = {wanted, wanted, ANYWHERE, 0};
    enum roped_status status = judge(pool, wanted, err);
    return status ? status : take(pool, &wish, &no_block, out, err);
}

/* One that has just the size of its class. */
static bool give_small(struct memory_pool *pool,
                       const struct memory_block *block)
{
    int class = cached_class(pool, block->bytes, block->most);
    if (class < 0 || pool->caches.class_bytes[class] != block->bytes ||
        !is_in_pool(pool, block->start))
        return false;
    struct cached *cached = (struct cached *)block->start;
    cached->next = NULL;
    give_cached(pool, cached, class);
    return true;
}

void memory_give(struct memory_pool *pool, struct memory_block *block)
{
    if (!block->start)
        return;
    memory_arrived(pool, block, SIZE_MAX);
    if (is_in_pool(pool, block->start))
        poison_given(block->start, block->bytes);
    if (!give_small(pool, block)) {
        pthread_mutex_lock(&pool->lock);
        pool->bulk_bytes -= bulk_of(block);
        if (is_in_pool(pool, block->start))
            give_range(pool, block->start);
        else
            mappings_give(&pool->mappings,
                          (struct mapping){block->start, block->bytes});
        pthread_mutex_unlock(&pool->lock);
    }
    memset(block, 0, sizeof *block);
}

/* ----------------------------------------------------------------- lending */

static bool add_below(atomic_size_t *sum, size_t bytes, size_t limit)
{
    size_t now = atomic_load(sum);
    do
        if (bytes > limit || now > limit - bytes)
            return false;
    while (!atomic_compare_exchange_weak(sum, &now, now + bytes));
    return true;
}

/* Counts bytes as lent, wherever they will be; returns where they may. */
static int lend(struct memory_pool *pool, size_t bytes)
{
    if (!add_below(&pool->lent_bytes, bytes, pool->budget_bytes / LENT_SHARE))
        return 0;
    return add_below(&pool->lent_pool_bytes, bytes,
                     pool->range_bytes / LENT_SHARE)
               ? ANYWHERE
               : MAPPED;
}

static void unlend(struct memory_pool *pool, size_t bytes, int where)
{
    atomic_fetch_sub(&pool->lent_bytes, bytes);
    if (where & IN_POOL)
        atomic_fetch_sub(&pool->lent_pool_bytes, bytes);
}

static int where_is(const struct memory_pool *pool,
                    const struct memory_block *block)
{
    return is_in_pool(pool, block->start) ? IN_POOL : MAPPED;
}

void memory_arrived(struct memory_pool *pool, struct memory_block *block,
                    size_t used)
{
    if (!block->lent)
        return;
    size_t left = used < block->most ? block->most - used : 0;
    left = left / GRAIN_BYTES * GRAIN_BYTES; /* most was rounded up */
    if (left >= block->lent)
        return;
    unlend(pool, block->lent - left, where_is(pool, block));
    block->lent = left;
}

/* ----------------------------------------------------------------- growing */

/* Under lock, which it lets go while the kernel grows the mapping. */
static bool grow_mapping(struct memory_pool *pool, struct memory_block *block,
                         size_t bytes)
{
    struct mapping mapping = {block->start, block->bytes};
    if (!mappings_grow(&pool->mappings, &mapping, bytes))
        return false;
    block->start = mapping.start;
    return true;
}

/* Under lock. A block in the reserve does not become bulk there. */
static bool grow_extent(struct memory_pool *pool,
                        const struct memory_block *block, size_t bytes,
                        size_t most)
{
    uint32_t number;
    struct extents *extents = extents_at(pool, block->start, &number);
    if (extents == &pool->reserve && is_bulk(most))
        return false;
    if (bytes / GRAIN_BYTES > extents->n ||
        !extents_grow(extents, number, (uint32_t)(bytes / GRAIN_BYTES)))
        return false;
    pool->used_bytes += bytes - block->bytes;
    return true;
}

/* Makes a block larger without a copy of what is in it. */
static bool grow_in_place(struct memory_pool *pool, struct memory_block *block,
                          const struct wish *wish)
{
    size_t before = bulk_of(block);
    size_t bulk = is_bulk(wish->most) ? wish->bytes : 0;
    int where = where_is(pool, block) & wish->where;
    pthread_mutex_lock(&pool->lock);
    pool->bulk_bytes -= before;
    bool has_room = claim_bulk(pool, bulk);
    bool has_grown =
        has_room && where &&
        (where == IN_POOL ? grow_extent(pool, block, wish->bytes, wish->most)
                          : grow_mapping(pool, block, wish->bytes));
    if (!has_grown)
        pool->bulk_bytes += before - (has_room ? bulk : 0);
    pthread_mutex_unlock(&pool->lock);
    if (!has_grown)
        return false;
    poison_taken(block->start + block->bytes, wish->bytes - block->bytes);
    block->bytes = wish->bytes;
    block->most = wish->most;
    return true;
}

/* Makes a block larger, in place or not. */
static enum roped_status grow(struct memory_pool *pool,
                              struct memory_block *block, size_t used,
                              const struct wish *wish, struct roped_error *err)
{
    struct memory_block larger;
    if (block->start && grow_in_place(pool, block, wish))
        return ROPED_OK;
    enum roped_status status = take(pool, wish, block, &larger, err);
    if (status)
        return status;
    if (used)
        memcpy(larger.start, block->start, used);
    memory_give(pool, block);
    *block = larger;
    return ROPED_OK;
}

/*
 * All of it at once, if that can be lent. Where a device reaches the pool
 * alone, and that lends nothing now, a part is taken in front of as much free
 * memory as the block will need: there it may grow, and be whole once others
 * have arrived.
 */
static bool grow_whole(struct memory_pool *pool, struct memory_block *block,
                       size_t used, size_t loan, const struct wish *part)
{
    int where = loan ? lend(pool, loan) : ANYWHERE;
    struct wish whole = {part->most, part->most, where, 0};
    struct wish pooled = {part->bytes, part->most, IN_POOL, part->most};
    if (!where)
        return false;
    if (where == MAPPED && !pool->api->is_host &&
        !grow(pool, block, used, &pooled, NULL)) {
        unlend(pool, loan, where);
        return true;
    }
    if (grow(pool, block, used, &whole, NULL)) {
        unlend(pool, loan, where);
        return false;
    }
    if (where & ~where_is(pool, block) & IN_POOL)
        atomic_fetch_sub(&pool->lent_pool_bytes, loan);
    block->lent = loan;
    return true;
}

/* Twice what the block has, if it may become that large. */
static size_t twice(const struct memory_pool *pool,
                    const struct memory_block *block, size_t least, size_t most)
{
    size_t bytes = larger_of(2 * block->bytes, least);
    if (most)
        return bytes < most ? bytes : most;
    return judge(pool, bytes, NULL) ? least : bytes;
}

enum roped_status memory_extend(struct memory_pool *pool,
                                struct memory_block *block, size_t used,
                                size_t least, size_t most,
                                struct roped_error *err)
{
    if (block->start && block->bytes >= least)
        return ROPED_OK;
    if (larger_of(least, most) > SIZE_MAX / 2)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "cannot allocate %zu bytes in one block",
                          larger_of(least, most));
    least = grains(least ? least : 1);
    most = most ? larger_of(grains(most), least) : 0;
    enum roped_status status = judge(pool, larger_of(least, most), err);
    if (status)
        return status;
    memory_arrived(pool, block, SIZE_MAX);
    size_t bytes = twice(pool, block, least, most);
    struct wish part = {bytes, larger_of(most, bytes), ANYWHERE, 0};
    size_t loan = most > LENT_BYTES ? most - least : 0;
    if (most && grow_whole(pool, block, used, loan, &part))
        return ROPED_OK;
    status = grow(pool, block, used, &part, err);
    part.bytes = least;
    if (status == ROPED_BUSY && bytes > least)
        status = grow(pool, block, used, &part, err);
    return status;
}

void memory_trim(struct memory_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mappings_trim(&pool->mappings, MEMORY_TRIMS);
    pthread_mutex_unlock(&pool->lock);
    heaps_trim();
}

void memory_usage(struct memory_pool *pool, struct memory_usage *out)
{
    pthread_mutex_lock(&pool->lock);
    out->pool_bytes = pool->range_bytes;
    out->pool_used_bytes = pool_used_bytes(pool);
    out->mapped_bytes = pool->mappings.bytes;
    out->kept_bytes = mappings_kept_bytes(&pool->mappings);
    out->budget_bytes = pool->budget_bytes;
    pthread_mutex_unlock(&pool->lock);
    out->lent_bytes = atomic_load(&pool->lent_bytes);
    out->pool_resident_bytes =
        mappings_resident_bytes(pool->range, pool->range_bytes);
}
