/*
 * test_memory.c - the host memory pool: blocks, merging, budget.
 */
#include "check.h"
#include "exec/memory.h"
#include "unit/server/exec/fake_backend.h"

#include <pthread.h>

static struct roped_error err;
static struct roped_backend *backend;

static struct memory_pool *open_pool(size_t pool_bytes, size_t budget_bytes)
{
    struct memory_pool *pool = NULL;
    struct roped_backend_options options = {.n_threads = 1};
    CHECK_OK(fake_api.open(&options, &backend, &err), &err);
    CHECK_OK(
        memory_open(&fake_api, backend, pool_bytes, budget_bytes, &pool, &err),
        &err);
    return pool;
}

static void close_pool(struct memory_pool *pool)
{
    memory_close(pool);
    fake_api.close(backend);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

TEST(blocks_are_aligned_apart_and_merge_when_given_back)
{
    struct memory_pool *pool = open_pool(1 << 20, 1 << 20);
    struct memory_block block[8];
    struct memory_usage usage;
    for (int i = 0; i < 8; i++) {
        CHECK_OK(memory_take(pool, 100000, &block[i], &err), &err);
        CHECK_INT((uintptr_t)block[i].start % 64, 0);
        CHECK(block[i].is_pinned && block[i].bytes >= 100000);
        memset(block[i].start, i, block[i].bytes);
    }
    for (int i = 0; i < 8; i++)
        CHECK_INT(block[i].start[99999], i);
    for (int i = 0; i < 8; i += 2)
        memory_give(pool, &block[i]);
    for (int i = 1; i < 8; i += 2)
        memory_give(pool, &block[i]);
    CHECK(block[0].start == NULL);
    memory_usage(pool, &usage);
    CHECK_INT(usage.pool_used_bytes, 0);
    CHECK_OK(memory_take(pool, 1 << 20, &block[0], &err), &err);
    memory_give(pool, &block[0]);
    close_pool(pool);
}

TEST(what_does_not_fit_the_pool_is_mapped_within_the_budget)
{
    struct memory_pool *pool = open_pool(1 << 20, 4 << 20);
    struct memory_block a, b, c;
    CHECK_OK(memory_take(pool, 2 << 20, &a, &err), &err);
    CHECK(!a.is_pinned);
    CHECK_INT(memory_take(pool, 2 << 20, &b, &err), ROPED_BUSY);
    CHECK_INT(memory_take(pool, 64 << 20, &c, &err), ROPED_TOO_LARGE);
    CHECK_CONTAINS(err.text, "67108864");
    memory_give(pool, &a);
    CHECK_OK(memory_take(pool, 3 << 20, &b, &err), &err); /* a kept one goes */
    memory_give(pool, &b);
    close_pool(pool);
}

static uint64_t mapped_bytes(struct memory_pool *pool)
{
    struct memory_usage usage;
    memory_usage(pool, &usage);
    return usage.mapped_bytes;
}

static uint64_t kept_bytes(struct memory_pool *pool)
{
    struct memory_usage usage;
    memory_usage(pool, &usage);
    return usage.kept_bytes;
}

/* Freed mappings serve again while they fit; the oldest go first. */
TEST(freed_mappings_are_kept_for_a_while)
{
    struct memory_pool *pool = open_pool(1 << 20, 64 << 20);
    struct memory_block block[5];
    for (int i = 0; i < 5; i++)
        CHECK_OK(memory_take(pool, (size_t)(2 + i) << 20, &block[i], &err),
                 &err);
    CHECK_INT(mapped_bytes(pool), (2 + 3 + 4 + 5 + 6) << 20);
    for (int i = 0; i < 5; i++)
        memory_give(pool, &block[i]);
    CHECK_INT(mapped_bytes(pool), (3 + 4 + 5 + 6) << 20); /* four are kept */
    CHECK_OK(memory_take(pool, 6 << 20, &block[0], &err), &err);
    CHECK_INT(mapped_bytes(pool), (3 + 4 + 5 + 6) << 20); /* one served */
    CHECK_INT(block[0].bytes, 6 << 20);
    CHECK_OK(memory_take(pool, 50 << 20, &block[1], &err), &err);
    CHECK_INT(mapped_bytes(pool), (6 + 5 + 50) << 20); /* 3 and 4 went */
    memory_give(pool, &block[0]);
    memory_give(pool, &block[1]);
    close_pool(pool);
}

/* Those that serve stay, however often it is looked; of two that fit, the same
 * one serves again and the other goes. */
TEST(kept_mappings_that_nobody_uses_are_given_back)
{
    struct memory_pool *pool = open_pool(1 << 20, 64 << 20);
    struct memory_block a, b;
    CHECK_OK(memory_take(pool, 4 << 20, &a, &err), &err);
    CHECK_OK(memory_take(pool, 4 << 20, &b, &err), &err);
    CHECK_INT(kept_bytes(pool), 0);
    memory_give(pool, &a);
    memory_give(pool, &b);
    CHECK_INT(kept_bytes(pool), 8 << 20);
    for (int i = 0; i < MEMORY_TRIMS; i++) {
        memory_trim(pool);
        CHECK_INT(kept_bytes(pool), 8 << 20);
        CHECK_OK(memory_take(pool, 4 << 20, &a, &err), &err);
        CHECK_INT(kept_bytes(pool), 4 << 20);
        memory_give(pool, &a);
    }
    memory_trim(pool);
    CHECK_INT(kept_bytes(pool), 4 << 20);
    CHECK_INT(mapped_bytes(pool), 4 << 20);
    for (int i = 0; i < MEMORY_TRIMS; i++)
        memory_trim(pool);
    CHECK_INT(kept_bytes(pool), 0);
    CHECK_INT(mapped_bytes(pool), 0);
    close_pool(pool);
}

TEST(blocks_of_nothing_and_of_too_much)
{
    struct memory_pool *pool = open_pool(1 << 20, 1 << 20);
    struct memory_block block, none = {.start = NULL};
    CHECK_OK(memory_take(pool, 0, &block, &err), &err);
    CHECK(block.start != NULL);
    memory_give(pool, &block);
    memory_give(pool, &block); /* cleared: nothing to give */
    memory_give(pool, &none);
    CHECK_INT(memory_take(pool, SIZE_MAX, &block, &err), ROPED_TOO_LARGE);
    CHECK_INT(memory_take(pool, SIZE_MAX - 4096, &block, &err),
              ROPED_TOO_LARGE);
    CHECK_INT(memory_take(pool, (1 << 20) + 1, &block, &err), ROPED_TOO_LARGE);
    CHECK_CONTAINS(err.text, "expected at most 1048576");
    CHECK(block.start == NULL);
    close_pool(pool);
}

/* ------------------------------------------------------ memory that arrives */

enum { KIB = 1 << 10, MIB = 1 << 20 };

static uint64_t lent_bytes(struct memory_pool *pool)
{
    struct memory_usage usage;
    memory_usage(pool, &usage);
    return usage.lent_bytes;
}

static void fill(struct memory_block *block, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        block->start[i] = (unsigned char)(i * 7 + i / 4096);
}

static bool is_filled(const struct memory_block *block, size_t to)
{
    for (size_t i = 0; i < to; i++)
        if (block->start[i] != (unsigned char)(i * 7 + i / 4096))
            return false;
    return true;
}

TEST(a_body_gets_all_of_its_block_at_once_and_it_is_lent)
{
    struct memory_pool *pool = open_pool(16 * MIB, 16 * MIB);
    struct memory_block block = {.start = NULL};
    CHECK_OK(memory_extend(pool, &block, 0, 16 * KIB, 2 * MIB, &err), &err);
    CHECK_INT(block.bytes, 2 * MIB);
    CHECK_INT(lent_bytes(pool), 2 * MIB - 16 * KIB);
    unsigned char *start = block.start;
    CHECK_OK(memory_extend(pool, &block, 16 * KIB, MIB, 2 * MIB, &err), &err);
    CHECK(block.start == start);
    memory_arrived(pool, &block, MIB);
    CHECK_INT(lent_bytes(pool), MIB);
    memory_arrived(pool, &block, 16 * KIB); /* nothing goes back out */
    CHECK_INT(lent_bytes(pool), MIB);
    memory_arrived(pool, &block, 2 * MIB - 100); /* in the last grain */
    CHECK_INT(lent_bytes(pool), 0);
    memory_give(pool, &block);
    CHECK_OK(memory_extend(pool, &block, 0, 16 * KIB, 2 * MIB, &err), &err);
    memory_give(pool, &block); /* gone before it arrived */
    CHECK_INT(lent_bytes(pool), 0);
    close_pool(pool);
}

TEST(blocks_of_64_kib_are_given_whole_and_never_lent)
{
    struct memory_pool *pool = open_pool(MIB, MIB);
    struct memory_block block[16];
    memset(block, 0, sizeof block);
    for (int i = 0; i < 16; i++) {
        CHECK_OK(memory_extend(pool, &block[i], 0, 1, 64 * KIB, &err), &err);
        CHECK_INT(block[i].bytes, 64 * KIB);
    }
    CHECK_INT(lent_bytes(pool), 0);
    for (int i = 0; i < 16; i++)
        memory_give(pool, &block[i]);
    close_pool(pool);
}

/* However many bodies are announced, a quarter is the most that they take. */
TEST(announced_bodies_take_no_memory_from_others)
{
    enum { N = 200 };
    struct memory_pool *pool = open_pool(16 * MIB, 64 * MIB);
    static struct memory_block silent[N];
    struct memory_block small, large = {.start = NULL};
    struct memory_usage usage;
    for (int i = 0; i < N; i++)
        CHECK_OK(memory_extend(pool, &silent[i], 0, 4 * KIB, 3 * MIB, &err),
                 &err);
    memory_usage(pool, &usage);
    CHECK(usage.lent_bytes <= 16 * MIB && usage.lent_bytes >= 2 * MIB);
    CHECK(usage.pool_used_bytes <= 4 * MIB + N * 8 * KIB);
    CHECK(usage.mapped_bytes <= 13 * MIB + N * 8 * KIB);
    CHECK_OK(memory_take(pool, 8 * MIB, &small, &err), &err);
    CHECK(small.is_pinned);
    /* who sends grows as the bytes come, and is whole in the end */
    for (size_t used = 0; used < 20 * MIB; used += 64 * KIB) {
        CHECK_OK(
            memory_extend(pool, &large, used, used + 64 * KIB, 20 * MIB, &err),
            &err);
        fill(&large, used, used + 64 * KIB);
        memory_arrived(pool, &large, used + 64 * KIB);
    }
    CHECK(is_filled(&large, 20 * MIB));
    CHECK_INT(large.bytes, 20 * MIB);
    memory_give(pool, &large);
    memory_give(pool, &small);
    for (int i = 0; i < N; i++)
        memory_give(pool, &silent[i]);
    CHECK_INT(lent_bytes(pool), 0);
    close_pool(pool);
}

/* In the pool, behind what it has, or elsewhere; in a mapping; and when its
 * length is not known. */
TEST(a_block_grows_and_keeps_what_is_in_it)
{
    struct memory_pool *pool = open_pool(MIB, 32 * MIB);
    struct memory_block block = {.start = NULL}, other;
    CHECK_OK(memory_extend(pool, &block, 0, 8 * KIB, 0, &err), &err);
    unsigned char *start = block.start;
    CHECK_INT(block.bytes, 8 * KIB);
    fill(&block, 0, 8 * KIB);
    CHECK_OK(memory_extend(pool, &block, 8 * KIB, 9 * KIB, 0, &err), &err);
    CHECK(block.start == start); /* nothing was behind it */
    CHECK_INT(block.bytes, 16 * KIB);
    fill(&block, 0, 16 * KIB);
    CHECK_OK(memory_take(pool, 4 * KIB, &other, &err), &err);
    CHECK_OK(memory_extend(pool, &block, 16 * KIB, 17 * KIB, 0, &err), &err);
    CHECK(block.start != start && block.is_pinned);
    CHECK(is_filled(&block, 16 * KIB));
    for (size_t used = 16 * KIB; used < 10 * MIB;) {
        fill(&block, used, block.bytes);
        used = block.bytes;
        CHECK_OK(memory_extend(pool, &block, used, used + 1, 0, &err), &err);
        CHECK(is_filled(&block, used));
    }
    CHECK(!block.is_pinned && block.bytes >= 10 * MIB);
    memory_give(pool, &block);
    memory_give(pool, &other);
    CHECK_OK(memory_take(pool, MIB, &other, &err), &err);
    CHECK(other.is_pinned); /* all came back */
    memory_give(pool, &other);
    close_pool(pool);
}

TEST(a_body_that_can_never_fit_is_refused_at_once)
{
    struct memory_pool *pool = open_pool(8 * MIB, 16 * MIB);
    struct memory_block block = {.start = NULL}, all[3];
    CHECK_INT(memory_extend(pool, &block, 0, 4 * KIB, 9 * MIB, &err),
              ROPED_TOO_LARGE);
    CHECK_CONTAINS(err.text, "9437184 bytes");
    CHECK(block.start == NULL);
    CHECK_INT(memory_extend(pool, &block, 0, 4 * KIB, SIZE_MAX, &err),
              ROPED_TOO_LARGE);
    CHECK_INT(memory_extend(pool, &block, 0, SIZE_MAX, 0, &err),
              ROPED_TOO_LARGE);
    CHECK_OK(memory_extend(pool, &block, 0, 4 * KIB, 0, &err), &err);
    block.start[0] = 'a';
    unsigned char *start = block.start;
    CHECK_OK(memory_take(pool, 7 * MIB, &all[0], &err), &err);
    CHECK_OK(memory_take(pool, 4 * MIB, &all[1], &err), &err);
    CHECK_OK(memory_take(pool, 4 * MIB, &all[2], &err), &err);
    CHECK_INT(memory_extend(pool, &block, 1, 2 * MIB, 0, &err), ROPED_BUSY);
    CHECK(block.start == start && block.bytes == 4 * KIB);
    CHECK_INT(block.start[0], 'a');
    for (int i = 0; i < 3; i++)
        memory_give(pool, &all[i]);
    memory_give(pool, &block);
    close_pool(pool);
}

/* Large bodies that came half-way fill what is for them; small calls go on. */
TEST(large_blocks_leave_an_eighth_to_small_ones)
{
    enum { N = 64 };
    struct memory_pool *pool = open_pool(32 * MIB, 128 * MIB);
    static struct memory_block half[N];
    struct memory_block small[16];
    struct memory_usage usage;
    size_t taken = 0;
    int n_busy = 0;
    for (int i = 0; i < N; i++) {
        enum roped_status status =
            memory_extend(pool, &half[i], 0, 5 * MIB, 10 * MIB, &err);
        CHECK(status == ROPED_OK || status == ROPED_BUSY);
        n_busy += status == ROPED_BUSY;
        memory_arrived(pool, &half[i], 5 * MIB);
        taken += half[i].bytes;
    }
    CHECK(n_busy > 0 && taken <= 112 * MIB && taken > 100 * MIB);
    memory_usage(pool, &usage);
    CHECK(usage.pool_used_bytes <= 28 * MIB);
    /* the same of the one that only announces to be large */
    CHECK_INT(memory_extend(pool, &half[N - 1], 0, 5 * MIB, 0, &err),
              ROPED_BUSY);
    for (int i = 0; i < 16; i++) {
        CHECK_OK(memory_take(pool, i % 2 ? MIB : KIB, &small[i], &err), &err);
        CHECK(i > 7 || small[i].is_pinned);
    }
    for (int i = 0; i < 16; i++)
        memory_give(pool, &small[i]);
    for (int i = 0; i < N; i++)
        memory_give(pool, &half[i]);
    CHECK_OK(memory_take(pool, 28 * MIB, &small[0], &err), &err);
    CHECK(small[0].is_pinned);
    memory_give(pool, &small[0]);
    close_pool(pool);
}

/* ------------------------------------------------------------ many threads */

enum { N_THREADS = 64, N_HELD = 8, N_STEPS = 400 };

struct holder {
    struct memory_pool *pool;
    pthread_t thread;
    unsigned seed;
    int n_taken, n_damaged, n_unexpected;
};

static unsigned roll(struct holder *holder)
{
    return (holder->seed = holder->seed * 1103515245 + 12345) >> 16;
}

/* A body of so many bytes that comes in pieces, or only its first ones. */
static enum roped_status receive(struct holder *holder, size_t bytes,
                                 struct memory_block *block)
{
    struct roped_error refusal;
    size_t most = roll(holder) % 2 ? bytes : 0, used = 0;
    bool stops = roll(holder) % 4 == 0;
    while (used < bytes && !(stops && used > bytes / 2)) {
        size_t more = bytes - used < 20000 ? bytes - used : 20000;
        enum roped_status status = memory_extend(holder->pool, block, used,
                                                 used + more, most, &refusal);
        if (status) {
            memory_give(holder->pool, block);
            return status;
        }
        memset(block->start + used, (int)(used / 20000), more);
        used += more;
        memory_arrived(holder->pool, block, used);
    }
    for (size_t i = 0; i < used; i++)
        holder->n_damaged += block->start[i] != (unsigned char)(i / 20000);
    return ROPED_OK;
}

/* First, middle and last byte of a block tell whose it is. */
static void stamp(const struct memory_block *block, unsigned char mark)
{
    block->start[0] = block->start[block->bytes / 2] = mark;
    block->start[block->bytes - 1] = mark;
}

static bool has_stamp(const struct memory_block *block, unsigned char mark)
{
    return block->start[0] == mark && block->start[block->bytes / 2] == mark &&
           block->start[block->bytes - 1] == mark;
}

static void *hold_blocks(void *context)
{
    struct holder *holder = context;
    struct memory_block held[N_HELD] = {{.start = NULL}};
    unsigned char mark = (unsigned char)(1 + holder->seed);
    struct roped_error refusal;
    for (int i = 0; i < N_STEPS; i++) {
        struct memory_block *block = &held[roll(holder) % N_HELD];
        if (block->start) {
            holder->n_damaged += !has_stamp(block, mark);
            memory_give(holder->pool, block);
            continue;
        }
        size_t bytes = (size_t)1 << roll(holder) % 20;
        enum roped_status status =
            i % 4 ? memory_take(holder->pool, bytes, block, &refusal)
                  : receive(holder, bytes, block);
        holder->n_unexpected += status != ROPED_OK && status != ROPED_BUSY;
        if (status)
            continue;
        holder->n_taken++;
        stamp(block, mark);
    }
    for (int i = 0; i < N_HELD; i++)
        memory_give(holder->pool, &held[i]);
    return NULL;
}

/* Blocks that one thread takes and another gives back: each leaves its own in
 * one of a few places and takes what it finds there. */
enum { N_PLACES = 32 };

static _Atomic(struct memory_block *) places[N_PLACES];
static struct memory_block exchanged[N_THREADS][N_STEPS];

static void give_found(struct holder *holder, struct memory_block *block)
{
    if (!block)
        return;
    holder->n_damaged += !has_stamp(block, (unsigned char)(block->bytes >> 12));
    memory_give(holder->pool, block);
}

static void *exchange_blocks(void *context)
{
    struct holder *holder = context;
    struct memory_block *block = exchanged[holder->seed];
    struct roped_error refusal;
    for (int i = 0; i < N_STEPS; i++, block++) {
        size_t bytes = 1 + roll(holder) % (100 * KIB);
        if (memory_take(holder->pool, bytes, block, &refusal)) {
            holder->n_unexpected++;
            continue;
        }
        holder->n_taken++;
        stamp(block, (unsigned char)(block->bytes >> 12));
        give_found(holder,
                   atomic_exchange(&places[roll(holder) % N_PLACES], block));
    }
    return NULL;
}

TEST(threads_give_back_what_others_have_taken)
{
    struct memory_pool *pool = open_pool(32 * MIB, 32 * MIB);
    struct holder holder[N_THREADS];
    struct memory_usage usage;
    struct memory_block whole;
    memset(holder, 0, sizeof holder);
    for (int i = 0; i < N_THREADS; i++) {
        holder[i].pool = pool;
        holder[i].seed = (unsigned)i;
        pthread_create(&holder[i].thread, NULL, exchange_blocks, &holder[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(holder[i].thread, NULL);
    for (int i = 0; i < N_PLACES; i++)
        give_found(&holder[0], atomic_exchange(&places[i], NULL));
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(holder[i].n_damaged, 0);
        CHECK_INT(holder[i].n_unexpected, 0);
        CHECK_INT(holder[i].n_taken, N_STEPS);
    }
    memory_usage(pool, &usage);
    CHECK_INT(usage.pool_used_bytes, 0);
    CHECK_OK(memory_take(pool, 28 * MIB, &whole, &err), &err);
    CHECK(whole.is_pinned);
    memory_give(pool, &whole);
    close_pool(pool);
}

/* What is kept for the next small block is no one's when another wants it. */
TEST(caches_are_emptied_before_anything_is_refused)
{
    enum { N = 512 }; /* of 64 KiB: all of the pool */
    struct memory_pool *pool = open_pool(32 * MIB, 32 * MIB);
    static struct memory_block block[N];
    struct memory_block other;
    struct memory_usage usage;
    for (int i = 0; i < N; i++)
        CHECK_OK(memory_take(pool, 64 * KIB, &block[i], &err), &err);
    CHECK_INT(memory_take(pool, 1, &other, &err), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "33554432 of 33554432 taken");
    memory_give(pool, &block[0]);
    /* from the cache, which has it in one piece */
    CHECK_OK(memory_take(pool, 4 * KIB, &other, &err), &err);
    CHECK_OK(memory_take(pool, 60 * KIB, &block[0], &err), &err);
    memory_give(pool, &other);
    for (int i = 0; i < N; i++)
        memory_give(pool, &block[i]);
    memory_usage(pool, &usage);
    CHECK_INT(usage.pool_used_bytes, 0);
    CHECK_OK(memory_take(pool, 28 * MIB, &other, &err), &err);
    memory_give(pool, &other);
    close_pool(pool);
}

TEST(threads_never_share_a_block_and_all_comes_back)
{
    struct memory_pool *pool = open_pool(16 * MIB, 48 * MIB);
    struct holder holder[N_THREADS];
    struct memory_block whole;
    memset(holder, 0, sizeof holder);
    for (int i = 0; i < N_THREADS; i++) {
        holder[i].pool = pool;
        holder[i].seed = (unsigned)i;
        pthread_create(&holder[i].thread, NULL, hold_blocks, &holder[i]);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(holder[i].thread, NULL);
        CHECK_INT(holder[i].n_damaged, 0);
        CHECK_INT(holder[i].n_unexpected, 0);
        CHECK(holder[i].n_taken > N_STEPS / 10);
    }
    CHECK(mapped_bytes(pool) <= 32 * MIB);
    CHECK_INT(lent_bytes(pool), 0);
    CHECK_OK(memory_take(pool, 14 * MIB, &whole, &err), &err);
    CHECK(whole.is_pinned); /* what is for bulk is one free extent again */
    memory_give(pool, &whole);
    close_pool(pool);
}
