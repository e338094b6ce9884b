/*
 * test_executor.c - jobs on a backend that misbehaves: every job ends exactly
 * once, in time, with its reason, and nothing is left behind.
 */
#include "check.h"
#include "unit/server/exec/work.h"

static struct roped_error err;
static struct executor *exec;

static void open_exec(int n_lanes, int queue_depth)
{
    struct exec_options options = work_options(n_lanes, queue_depth);
    exec = work_open(&options);
}

static void close_exec(void)
{
    work_close(exec);
    exec = NULL;
}

static void make(struct work *work)
{
    work_make(work, 8);
}

TEST(jobs_run_on_lanes_and_inline)
{
    static struct work work;
    open_exec(2, 8);
    make(&work);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(work_wait(&work));
    CHECK_INT(work.job.status, ROPED_OK);
    CHECK_DOUBLE((double)work.y[8 * HIDDEN - 1], 1, 1e-6);
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
    CHECK(work_wait(&work[0]) && work_wait(&work[1]));
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
    CHECK(work_wait(&work[1]));
    CHECK_INT(work[1].job.status, ROPED_DEADLINE);
    CHECK_INT(atomic_load(&work[0].n_done), 0); /* still on the device */
    CHECK(work_wait(&work[0]));
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
    CHECK(work_wait(&work));
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
        CHECK(work_wait(&work));
        n_failures += work.job.status != ROPED_OK;
        if (work.job.status)
            CHECK_CONTAINS(work.job.error.text, "fake device");
        atomic_store(&fake_fail_at, 0);
        make(&work);
        CHECK_OK(exec_submit(exec, &work.job, &err), &err);
        CHECK(work_wait(&work));
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
