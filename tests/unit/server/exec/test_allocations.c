/*
 * test_allocations.c - after warm-up a job costs no heap allocation, on a lane
 * or inline. The program's own allocator counts; not built under sanitizers,
 * which have theirs.
 */
#include "check.h"
#include "unit/server/exec/work.h"

#include <errno.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int n_allocations;

void *malloc(size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

static struct roped_error err;
static struct executor *exec;
static struct work work;

/* A rotary job of one token of one head, with a table and index values. */
static void make_rotation(void)
{
    static int64_t position = 7;
    struct roped_call *call = &work.job.call;
    struct roped_tensor q = {ROPED_F32, 3, {1, 1, HIDDEN}, work.x};
    struct roped_tensor positions = {ROPED_I64, 1, {1}, &position};
    work_make(&work, 1);
    roped_call_init(call, roped_op_find("rope"));
    CHECK_OK(roped_call_bind(call, "q", &q, &err), &err);
    CHECK_OK(roped_call_bind(call, "positions", &positions, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    call->out[0].data = work.y;
}

static int n_with_inbox;

/* A body that is uploaded while it arrives, and one whose client goes away and
 * leaves its block to the executor. */
static void run_with_inbox(struct memory_block *block)
{
    for (int i = 0; i < 2; i++) {
        work_make(&work, MAX_ROWS);
        memcpy(block->start, work.x, sizeof work.x);
        work.job.call.in[0].data = block->start;
        exec_inbox_open(exec, &work.job, block->start, 0, sizeof work.x);
        n_with_inbox += work.job.inbox != NULL;
        exec_inbox_advance(&work.job, i ? 3000 : sizeof work.x);
        if (i == 0) {
            CHECK_OK(exec_submit(exec, &work.job, &err), &err);
            CHECK(work_wait(&work));
            CHECK(work_is_right(&work));
        } else {
            exec_inbox_abandon(exec, &work.job, block);
        }
        work_wait_idle(exec); /* what it had is there for the next */
    }
    memory_give(exec_memory(exec), block); /* where there was no inbox */
}

/* One job of each kind, on a lane and inline, on pool memory and mapped. */
static void run_jobs(void)
{
    struct memory_block pooled, mapped;
    CHECK_OK(memory_take(exec_memory(exec), 100000, &pooled, &err), &err);
    CHECK_OK(memory_take(exec_memory(exec), 2 << 20, &mapped, &err), &err);
    for (int i = 0; i < 4; i++) {
        if (i < 2)
            make_rotation();
        else
            work_make(&work, MAX_ROWS);
        if (i % 2) {
            work_wait_idle(exec);
            CHECK(exec_run_inline(exec, &work.job));
        } else {
            CHECK_OK(exec_submit(exec, &work.job, &err), &err);
        }
        CHECK(work_wait(&work));
        CHECK_OK(work.job.status, &work.job.error);
    }
    run_with_inbox(&pooled);
    CHECK(pooled.start == NULL);
    memory_give(exec_memory(exec), &mapped);
}

TEST(a_job_allocates_nothing_after_warm_up)
{
    struct exec_options options = work_options(1, 8);
    options.host_bytes = 8 << 20;
    options.stage_bytes = options.stage_chunk_bytes = 1024;
    int before = atomic_load(&n_allocations);
    exec = work_open(&options);
    CHECK(atomic_load(&n_allocations) > before); /* the counter counts */
    for (int i = 0; i < 3; i++)
        run_jobs();
    before = atomic_load(&n_allocations);
    for (int i = 0; i < 100; i++)
        run_jobs();
    CHECK_INT(atomic_load(&n_allocations) - before, 0);
    CHECK_INT(n_with_inbox, 2 * 103 - 1); /* the first finds none */
    work_close(exec);
}
