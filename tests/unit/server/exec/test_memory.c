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

TEST(blocks_of_nothing_and_of_too_much)
{
    struct memory_pool *pool = open_pool(1 << 20, 1 << 20);
    struct memory_block block, none = {NULL, 0, false};
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

/* ------------------------------------------------------------ many threads */

enum { N_THREADS = 6, N_HELD = 8, N_STEPS = 2000 };

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
    struct memory_block held[N_HELD] = {{NULL, 0, false}};
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
            memory_take(holder->pool, bytes, block, &refusal);
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

TEST(threads_never_share_a_block_and_all_comes_back)
{
    struct memory_pool *pool = open_pool(1 << 20, 3 << 20);
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
    CHECK(mapped_bytes(pool) <= 2 << 20);
    CHECK_OK(memory_take(pool, 1 << 20, &whole, &err), &err);
    CHECK(whole.is_pinned); /* the pool is one free extent again */
    memory_give(pool, &whole);
    close_pool(pool);
}

int main(void)
{
    RUN(blocks_are_aligned_apart_and_merge_when_given_back);
    RUN(what_does_not_fit_the_pool_is_mapped_within_the_budget);
    RUN(freed_mappings_are_kept_for_a_while);
    RUN(blocks_of_nothing_and_of_too_much);
    RUN(threads_never_share_a_block_and_all_comes_back);
    return check_done();
}
