/*
 * test_memory.c - the host memory pool: blocks, merging, budget.
 */
#include "check.h"
#include "exec/memory.h"
#include "unit/server/exec/fake_backend.h"

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

int main(void)
{
    RUN(blocks_are_aligned_apart_and_merge_when_given_back);
    RUN(what_does_not_fit_the_pool_is_mapped_within_the_budget);
    return check_done();
}
