/*
 * test_executor.c - jobs on a backend that misbehaves: every job ends exactly
 * once, in time, with its reason, and nothing is left behind.
 */
#include "check.h"
#include "exec/executor.h"
#include "unit/server/exec/fake_backend.h"

#include <time.h>

enum { ROWS = 8, HIDDEN = 64 };

struct work {
    struct exec_job job;
    float x[ROWS * HIDDEN], y[ROWS * HIDDEN];
    atomic_int n_done;
};

static struct roped_error err;
static struct executor *exec;

static uint64_t after_ms(int64_t ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(now.tv_sec * 1000000000 + now.tv_nsec + ms * 1000000);
}

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void open_exec(int n_lanes, int queue_depth)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct exec_options options = {.n_lanes = n_lanes,
                                   .queue_depth = queue_depth,
                                   .pool_bytes = 1 << 20,
                                   .host_bytes = 1 << 20,
                                   .device_bytes = 8 << 20,
                                   .table_budget_bytes = 1 << 20,
                                   .table_bytes = 1 << 20,
                                   .inline_bytes = 1 << 20};
    fake_reset();
    CHECK_OK(exec_open(&fake_api, &backend, &options, &exec, &err), &err);
}

static void close_exec(void)
{
    exec_drain(exec, after_ms(5000));
    exec_close(exec);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

static void on_done(struct exec_job *job)
{
    atomic_fetch_add(&((struct work *)job->owner)->n_done, 1);
}

static void make(struct work *work)
{
    memset(work, 0, sizeof *work);
    struct roped_tensor x = {ROPED_F32, 2, {ROWS, HIDDEN}, work->x};
    for (int i = 0; i < ROWS * HIDDEN; i++)
        work->x[i] = 3;
    roped_call_init(&work->job.call, roped_op_find("rmsnorm"));
    CHECK_OK(roped_call_bind(&work->job.call, "x", &x, &err), &err);
    CHECK_OK(roped_call_resolve(&work->job.call, &err), &err);
    work->job.call.out[0].data = work->y;
    work->job.done = on_done;
    work->job.owner = work;
}

static bool wait_done(struct work *work)
{
    for (int i = 0; i < 5000 && atomic_load(&work->n_done) == 0; i++)
        pause_ms(1);
    return atomic_load(&work->n_done) == 1;
}

TEST(jobs_run_on_lanes_and_inline)
{
    static struct work work;
    open_exec(2, 8);
    make(&work);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(wait_done(&work));
    CHECK_INT(work.job.status, ROPED_OK);
    CHECK_DOUBLE((double)work.y[ROWS * HIDDEN - 1], 1, 1e-6);
    make(&work);
    CHECK(exec_run_inline(exec, &work.job));
    CHECK_INT(atomic_load(&work.n_done), 1);
    CHECK_DOUBLE((double)work.y[0], 1, 1e-6);
    close_exec();
}

TEST(a_full_queue_refuses)
{
    static struct work work[4];
    int n_refused = 0;
    open_exec(1, 1);
    atomic_store(&fake_slow_ms, 100);
    for (int i = 0; i < 4; i++) {
        make(&work[i]);
        if (exec_submit(exec, &work[i].job, &err) == ROPED_BUSY)
            n_refused++;
        if (i == 0)
            pause_ms(30); /* the lane has it now */
    }
    CHECK_INT(n_refused, 2);
    CHECK_CONTAINS(err.text, "queue size");
    CHECK(wait_done(&work[0]) && wait_done(&work[1]));
    close_exec();
}

TEST(a_deadline_ends_a_waiting_job_before_a_lane_is_free)
{
    static struct work work[2];
    open_exec(1, 8);
    atomic_store(&fake_slow_ms, 600);
    make(&work[0]);
    make(&work[1]);
    CHECK_OK(exec_submit(exec, &work[0].job, &err), &err);
    pause_ms(20);
    work[1].job.deadline_ns = after_ms(50);
    CHECK_OK(exec_submit(exec, &work[1].job, &err), &err);
    CHECK(wait_done(&work[1]));
    CHECK_INT(work[1].job.status, ROPED_DEADLINE);
    CHECK_INT(atomic_load(&work[0].n_done), 0); /* still on the device */
    CHECK(wait_done(&work[0]));
    CHECK_INT(atomic_load(&fake_n_launches), 1);
    close_exec();
}

TEST(a_canceled_job_is_not_started)
{
    static struct work work;
    open_exec(1, 8);
    make(&work);
    atomic_store(&work.job.is_canceled, true);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(wait_done(&work));
    CHECK_INT(work.job.status, ROPED_CANCELED);
    CHECK_INT(atomic_load(&fake_n_launches), 0);
    close_exec();
}

TEST(drain_finishes_what_runs_and_cancels_what_waits_too_long)
{
    static struct work work[3];
    open_exec(1, 8);
    atomic_store(&fake_slow_ms, 200);
    for (int i = 0; i < 3; i++) {
        make(&work[i]);
        CHECK_OK(exec_submit(exec, &work[i].job, &err), &err);
    }
    pause_ms(20);
    exec_drain(exec, after_ms(10));
    for (int i = 0; i < 3; i++)
        CHECK_INT(atomic_load(&work[i].n_done), 1);
    CHECK_INT(work[0].job.status, ROPED_OK);
    CHECK_INT(work[2].job.status, ROPED_CANCELED);
    CHECK_INT(exec_submit(exec, &work[0].job, &err), ROPED_BUSY);
    exec_close(exec);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

/* The n-th thing that the device is asked for fails, for every n. */
TEST(every_failure_of_the_device_ends_one_job_alone)
{
    static struct work work;
    int n_failures = 0;
    for (int n = 1; n < 12; n++) {
        open_exec(1, 8);
        make(&work);
        atomic_store(&fake_fail_at, n);
        CHECK_OK(exec_submit(exec, &work.job, &err), &err);
        CHECK(wait_done(&work));
        n_failures += work.job.status != ROPED_OK;
        if (work.job.status)
            CHECK_CONTAINS(work.job.error.text, "fake device");
        atomic_store(&fake_fail_at, 0);
        make(&work);
        CHECK_OK(exec_submit(exec, &work.job, &err), &err);
        CHECK(wait_done(&work));
        CHECK_INT(work.job.status, ROPED_OK);
        close_exec();
    }
    CHECK(n_failures >= 5); /* arena, upload, launch, download, wait */
}

TEST(an_open_that_fails_leaves_nothing_behind)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct exec_options options = {.n_lanes = 1,
                                   .queue_depth = 1,
                                   .pool_bytes = 1 << 20,
                                   .host_bytes = 1 << 20};
    fake_reset();
    atomic_store(&fake_fail_at, 1);
    CHECK_INT(exec_open(&fake_api, &backend, &options, &exec, &err),
              ROPED_NO_MEMORY);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

int main(void)
{
    RUN(jobs_run_on_lanes_and_inline);
    RUN(a_full_queue_refuses);
    RUN(a_deadline_ends_a_waiting_job_before_a_lane_is_free);
    RUN(a_canceled_job_is_not_started);
    RUN(drain_finishes_what_runs_and_cancels_what_waits_too_long);
    RUN(every_failure_of_the_device_ends_one_job_alone);
    RUN(an_open_that_fails_leaves_nothing_behind);
    return check_done();
}
