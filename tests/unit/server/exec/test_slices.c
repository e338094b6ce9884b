/*
 * test_slices.c - large calls cut into slices, on a device whose copies take
 * their time: right answers, less memory, and an end when a copy fails.
 */
#include "check.h"
#include "unit/server/exec/queued_backend.h"
#include "unit/server/exec/work.h"

#include <math.h>
#include <stdlib.h>

enum { WIDE = 1024, MIB = 1 << 20 };

/* rmsnorm of rows that differ from each other, with a weight. */
struct large {
    struct exec_job job;
    int64_t rows;
    float *x, *y, weight[WIDE];
    atomic_bool is_done;
};

static struct roped_error err;
static struct executor *exec;

static void open_exec(uint64_t device_bytes)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct exec_options options = work_options(2, 8);
    options.device_bytes = device_bytes;
    queued_reset();
    if (exec_open(&queued_api, &backend, &options, &exec, &err)) {
        fprintf(stderr, "test_slices: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
}

static void close_exec(void)
{
    exec_drain(exec, after_ms(20000));
    exec_close(exec);
    CHECK_INT(atomic_load(&queued_n_live), 0);
}

static void on_done(struct exec_job *job)
{
    atomic_store(&((struct large *)job->owner)->is_done, true);
}

static float *floats(int64_t n)
{
    float *memory = malloc((size_t)n * sizeof *memory);
    if (!memory)
        exit(EXIT_FAILURE);
    return memory;
}

/* In each row one value, so that the norm of any is a sign. */
static void make(struct large *large, int64_t rows)
{
    struct roped_tensor x = {ROPED_F32, 2, {rows, WIDE}, NULL};
    struct roped_tensor weight = {ROPED_F32, 1, {WIDE}, large->weight};
    memset(large, 0, sizeof *large);
    large->rows = rows;
    large->x = floats(rows * WIDE);
    large->y = floats(rows * WIDE);
    for (int64_t i = 0; i < rows * WIDE; i++)
        large->x[i] = (float)(i / WIDE % 2 ? i / WIDE + 1 : -i / WIDE - 1);
    for (int i = 0; i < WIDE; i++)
        large->weight[i] = (float)i;
    x.data = large->x;
    roped_call_init(&large->job.call, roped_op_find("rmsnorm"));
    CHECK_OK(roped_call_bind(&large->job.call, "x", &x, &err), &err);
    CHECK_OK(roped_call_bind(&large->job.call, "weight", &weight, &err), &err);
    CHECK_OK(roped_call_resolve(&large->job.call, &err), &err);
    large->job.call.out[0].data = large->y;
    large->job.done = on_done;
    large->job.owner = large;
}

static enum roped_status run(struct large *large)
{
    CHECK_OK(exec_submit(exec, &large->job, &err), &err);
    while (!atomic_load(&large->is_done))
        pause_ms(1);
    return large->job.status;
}

static int64_t count_wrong(const struct large *large)
{
    int64_t n = 0;
    for (int64_t i = 0; i < large->rows * WIDE; i++) {
        float expected = (float)(i % WIDE) * (i / WIDE % 2 ? 1.0f : -1.0f);
        n += !(fabsf(large->y[i] - expected) <= 1e-3f);
    }
    return n;
}

static void drop(struct large *large)
{
    free(large->x);
    free(large->y);
}

/* The rows are no multiple of the slices. */
TEST(a_call_in_slices_is_right)
{
    static struct large large;
    open_exec(256 * MIB);
    make(&large, 7001); /* 27 MiB each way: 6 slices */
    CHECK_INT(run(&large), ROPED_OK);
    CHECK_INT(count_wrong(&large), 0);
    CHECK_INT(atomic_load(&queued_n_uploads),
              6 + 3); /* a weight for each side */
    drop(&large);
    close_exec();
}

TEST(a_small_call_is_not_cut)
{
    static struct large large;
    open_exec(256 * MIB);
    make(&large, 3000); /* 12 MiB */
    CHECK_INT(run(&large), ROPED_OK);
    CHECK_INT(count_wrong(&large), 0);
    CHECK_INT(atomic_load(&queued_n_uploads), 2);
    drop(&large);
    close_exec();
}

TEST(slices_need_less_memory_than_the_call)
{
    static struct large large;
    open_exec(32 * MIB);
    make(&large, 16384); /* 64 MiB each way */
    CHECK_INT(run(&large), ROPED_OK);
    CHECK_INT(count_wrong(&large), 0);
    drop(&large);
    close_exec();
}

/* Each upload in turn, at once or when it is waited for: the call ends with the
 * device's error, after nothing is under way, and the next one is right. */
TEST(a_failed_copy_ends_the_call_alone)
{
    static struct large large;
    for (int late = 0; late < 2; late++)
        for (int n = 1; n <= 9; n++) {
            open_exec(256 * MIB);
            make(&large, 7001);
            atomic_store(&queued_fails_late, late);
            atomic_store(&queued_fail_upload, n);
            CHECK_INT(run(&large), ROPED_DEVICE);
            CHECK_CONTAINS(large.job.error.text, "the device failed");
            drop(&large);
            make(&large, 7001);
            CHECK_INT(run(&large), ROPED_OK);
            CHECK_INT(count_wrong(&large), 0);
            drop(&large);
            close_exec();
        }
}
