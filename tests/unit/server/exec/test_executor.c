/*
 * test_executor.c - jobs on a backend that misbehaves: every job ends exactly
 * once, in time, with its reason, and nothing is left behind.
 */
#include "check.h"
#include "unit/server/exec/work.h"

#include <pthread.h>
#include <sched.h>

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
    CHECK(work_is_right(&work));
    make(&work);
    CHECK(exec_run_inline(exec, &work.job));
    CHECK_INT(atomic_load(&work.n_done), 1);
    CHECK(work_is_right(&work));
    close_exec();
}

TEST(a_full_queue_refuses)
{
    static struct work work[4];
    int n_refused = 0;
    open_exec(1, 1);
    fake_hold();
    CHECK(exec_has_room(exec));
    for (int i = 0; i < 4; i++) {
        make(&work[i]);
        if (exec_submit(exec, &work[i].job, &err) == ROPED_BUSY)
            n_refused++;
        if (i == 0)
            CHECK(work_wait_launches(1)); /* the lane has it now */
    }
    CHECK_INT(n_refused, 2);
    CHECK_CONTAINS(err.text, "queue size");
    CHECK(!exec_has_room(exec));
    CHECK(!exec_run_inline(exec, &work[2].job)); /* no overtaking */
    fake_let_go();
    CHECK(work_wait(&work[0]) && work_wait(&work[1]));
    CHECK_INT(atomic_load(&work[2].n_done) + atomic_load(&work[3].n_done), 0);
    close_exec();
}

/* A second job of a request that was let in is not refused any more. */
TEST(a_continued_job_is_let_in_by_a_full_queue_and_by_a_drain)
{
    static struct work work[4];
    struct exec_usage usage;
    open_exec(1, 1);
    fake_hold();
    for (int i = 0; i < 4; i++) {
        make(&work[i]);
        work[i].job.is_continued = i >= 2;
    }
    CHECK_OK(exec_submit(exec, &work[0].job, &err), &err);
    CHECK(work_wait_launches(1));
    CHECK_OK(exec_submit(exec, &work[1].job, &err), &err);
    CHECK(!exec_has_room(exec));
    CHECK_OK(exec_submit(exec, &work[2].job, &err), &err);
    exec_usage(exec, &usage);
    CHECK_INT(usage.n_waiting, 1); /* of one that may */
    CHECK_INT(usage.n_waiting_again, 1);
    fake_let_go();
    for (int i = 0; i < 3; i++) {
        CHECK(work_wait(&work[i]));
        CHECK(work_is_right(&work[i]));
    }
    exec_drain(exec, after_ms(20000));
    CHECK_OK(exec_submit(exec, &work[3].job, &err), &err);
    CHECK(work_wait(&work[3]));
    CHECK(work_is_right(&work[3]));
    work_make(&work[3], 8);
    CHECK_INT(exec_submit(exec, &work[3].job, &err), ROPED_DRAINING);
    work[3].job.is_continued = true;
    work_wait_idle(exec);
    CHECK(exec_run_inline(exec, &work[3].job));
    close_exec();
}

TEST(a_deadline_ends_a_waiting_job_before_a_lane_is_free)
{
    static struct work work[2];
    open_exec(1, 8);
    fake_hold();
    make(&work[0]);
    make(&work[1]);
    CHECK_OK(exec_submit(exec, &work[0].job, &err), &err);
    CHECK(work_wait_launches(1));
    work[1].job.deadline_ns = after_ms(50);
    CHECK_OK(exec_submit(exec, &work[1].job, &err), &err);
    CHECK(work_wait(&work[1]));
    CHECK_INT(work[1].job.status, ROPED_DEADLINE);
    CHECK_INT(atomic_load(&work[0].n_done), 0); /* still on the device */
    fake_let_go();
    CHECK(work_wait(&work[0]));
    CHECK_INT(atomic_load(&fake_n_launches), 1);
    close_exec();
}

/* The sweeper sleeps until the first deadline: an earlier one wakes it. */
TEST(the_earliest_deadline_is_kept)
{
    static struct work work[3];
    open_exec(1, 8);
    fake_hold();
    for (int i = 0; i < 3; i++)
        make(&work[i]);
    CHECK_OK(exec_submit(exec, &work[0].job, &err), &err);
    CHECK(work_wait_launches(1));
    work[1].job.deadline_ns = after_ms(60000);
    CHECK_OK(exec_submit(exec, &work[1].job, &err), &err);
    pause_ms(50); /* it sleeps */
    work[2].job.deadline_ns = after_ms(50);
    CHECK_OK(exec_submit(exec, &work[2].job, &err), &err);
    CHECK(work_wait(&work[2]));
    CHECK_INT(work[2].job.status, ROPED_DEADLINE);
    CHECK_INT(atomic_load(&work[0].n_done), 0);
    fake_let_go();
    CHECK(work_wait(&work[1]));
    CHECK_INT(work[1].job.status, ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_launches), 2);
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
    fake_hold();
    for (int i = 0; i < 3; i++) {
        make(&work[i]);
        CHECK_OK(exec_submit(exec, &work[i].job, &err), &err);
    }
    CHECK(work_wait_launches(1));
    pthread_t thread = work_let_go_after(&work[2]);
    exec_drain(exec, after_ms(10));
    for (int i = 0; i < 3; i++)
        CHECK_INT(atomic_load(&work[i].n_done), 1);
    CHECK_INT(work[0].job.status, ROPED_OK);
    CHECK_INT(work[2].job.status, ROPED_CANCELED);
    pthread_join(thread, NULL);
    CHECK_INT(exec_submit(exec, &work[0].job, &err), ROPED_DRAINING);
    exec_close(exec);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

/* The n-th thing that the device is asked for fails, for every n. No pointer of
 * the device is left in the call. */
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
        CHECK(work.job.call.in[0].data == work.x);
        CHECK(work.job.call.out[0].data == work.y);
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

/* A device that is dead for good fails its call; the executor says so, takes no
 * more, and still closes. */
TEST(a_dead_device_is_reported)
{
    static struct work work;
    struct exec_usage usage;
    open_exec(1, 8);
    CHECK(exec_is_healthy(exec));
    atomic_store(&fake_is_dead, true);
    CHECK(exec_refusal(exec) == NULL);
    make(&work);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(work_wait(&work));
    CHECK_INT(work.job.status, ROPED_DEVICE);
    CHECK(!exec_is_healthy(exec));
    CHECK_INT(exec_lost_device(exec, &err), 0);
    CHECK_TEXT(err.text, "the device is dead");
    make(&work);
    CHECK_INT(exec_submit(exec, &work.job, &err), ROPED_DRAINING);
    CHECK_TEXT(err.text, "a device is lost");
    CHECK_TEXT(exec_refusal(exec), "a device is lost");
    /* done runs before the lane is free again, the count was made before it */
    exec_usage(exec, &usage);
    CHECK_INT(usage.device_errors, 1);
    close_exec();
}

static bool say_gone(const struct exec_job *job)
{
    (void)job;
    return true;
}

TEST(a_job_whose_client_is_gone_is_not_started)
{
    static struct work work;
    open_exec(1, 8);
    make(&work);
    work.job.is_gone = say_gone;
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(work_wait(&work));
    CHECK_INT(work.job.status, ROPED_CANCELED);
    CHECK_CONTAINS(work.job.error.text, "client");
    CHECK_INT(atomic_load(&fake_n_launches), 0);
    close_exec();
}

enum { N_CROWD = 32 };
static struct work crowd[N_CROWD + 1];
static atomic_bool third_is_gone;

static bool is_gone_third(const struct exec_job *job)
{
    const struct work *owner = job->owner;
    return atomic_load(&third_is_gone) && (owner - crowd) % 3 == 0;
}

/* Every third of those that wait; the lane is held all the while. */
TEST(jobs_that_wait_for_nobody_are_ended_at_once)
{
    open_exec(1, N_CROWD);
    fake_hold();
    for (int i = 0; i <= N_CROWD; i++) {
        make(&crowd[i]);
        crowd[i].job.is_gone = is_gone_third;
        crowd[i].job.deadline_ns = after_ms(60000 - 7 * i % 100);
        CHECK_OK(exec_submit(exec, &crowd[i].job, &err), &err);
        if (i == 0)
            CHECK(work_wait_launches(1)); /* the lane has it now */
    }
    atomic_store(&third_is_gone, true);
    exec_end_gone(exec);
    for (int i = 1; i <= N_CROWD; i++)
        CHECK_INT(atomic_load(&crowd[i].n_done), i % 3 == 0);
    CHECK_INT(atomic_load(&crowd[0].n_done), 0); /* it runs */
    CHECK_CONTAINS(crowd[3].job.error.text, "client");
    fake_let_go();
    for (int i = 0; i <= N_CROWD; i++)
        CHECK(work_wait(&crowd[i]));
    for (int i = 0; i <= N_CROWD; i++)
        CHECK_INT(crowd[i].job.status,
                  i > 0 && i % 3 == 0 ? ROPED_CANCELED : ROPED_OK);
    close_exec();
}

TEST(only_small_jobs_run_inline)
{
    static struct work small, large;
    struct exec_options options = work_options(1, 8);
    work_make(&small, 4);
    work_make(&large, 5);
    options.inline_bytes = (uint64_t)roped_call_bytes(&small.job.call);
    exec = work_open(&options);
    CHECK(exec_run_inline(exec, &small.job));
    CHECK(!exec_run_inline(exec, &large.job));
    CHECK_INT(atomic_load(&large.n_done), 0);
    exec_drain(exec, after_ms(1000));
    work_make(&small, 4);
    CHECK(!exec_run_inline(exec, &small.job)); /* shutting down */
    close_exec();
}

static enum roped_status count_task(struct exec_job *job)
{
    *(int *)job->values += 1;
    return ROPED_OK;
}

TEST(tasks_run_inline_if_they_say_that_they_are_small)
{
    static struct work work;
    int n_run = 0;
    struct exec_options options = work_options(1, 8);
    options.inline_bytes = 100;
    exec = work_open(&options);
    for (int bytes = 100; bytes <= 101; bytes++) {
        make(&work);
        work.job.work = EXEC_TASK;
        work.job.task = count_task;
        work.job.task_bytes = (uint64_t)bytes;
        work.job.values = &n_run;
        CHECK_INT(exec_run_inline(exec, &work.job), bytes == 100);
    }
    CHECK_INT(n_run, 1);
    close_exec();
}

static void *run_inline(void *context)
{
    struct work *work = context;
    return exec_run_inline(exec, &work->job) ? work : NULL;
}

/* The only lane is lent to another thread when a job comes: it is called once
 * it is back. */
TEST(a_job_waits_for_a_lane_that_is_lent)
{
    static struct work lent, waiting;
    pthread_t thread;
    void *result;
    open_exec(1, 8);
    fake_hold();
    make(&lent);
    make(&waiting);
    pthread_create(&thread, NULL, run_inline, &lent);
    CHECK(work_wait_launches(1));
    CHECK_OK(exec_submit(exec, &waiting.job, &err), &err);
    CHECK_INT(atomic_load(&lent.n_done), 0);
    fake_let_go();
    CHECK(work_wait(&waiting));
    CHECK_INT(waiting.job.status, ROPED_OK);
    pthread_join(thread, &result);
    CHECK(result == &lent);
    close_exec();
}

TEST(usage_and_times_are_those_of_the_work)
{
    static struct work work[2];
    struct exec_usage usage;
    open_exec(1, 8);
    fake_hold();
    make(&work[0]);
    make(&work[1]);
    CHECK_OK(exec_submit(exec, &work[0].job, &err), &err);
    CHECK(work_wait_launches(1));
    CHECK_OK(exec_submit(exec, &work[1].job, &err), &err);
    exec_usage(exec, &usage);
    CHECK_INT(usage.n_lanes, 1);
    CHECK_INT(usage.n_busy_lanes, 1);
    CHECK_INT(usage.n_waiting, 1);
    CHECK(usage.device_arena_bytes > 0);
    pause_ms(20);
    fake_let_go();
    CHECK(work_wait(&work[0]) && work_wait(&work[1]));
    const struct exec_timing *timing = &work[1].job.timing;
    CHECK(work[0].job.timing.kernel_ns >= 20000000);
    CHECK(work[0].job.timing.kernel_ns < 20000000000);
    CHECK(timing->queue_ns > 1000000); /* it waited for the first */
    CHECK(timing->queue_ns < 20000000000);
    CHECK(timing->plan_ns < 20000000000);
    close_exec();
}

/* ------------------------------------------------------------- many clients */

enum { N_CLIENTS = 64, N_ROUNDS = 60 };

struct client {
    pthread_t thread;
    unsigned seed;
    int n_right, n_busy, n_ended, n_wrong;
    struct work work;
};

static unsigned roll(struct client *client)
{
    return (client->seed = client->seed * 1103515245 + 12345) >> 16;
}

static void count_end(struct client *client)
{
    struct work *work = &client->work;
    switch (work->job.status) {
    case ROPED_OK:
        *(work_is_right(work) ? &client->n_right : &client->n_wrong) += 1;
        break;
    case ROPED_CANCELED:
    case ROPED_DEADLINE:
        client->n_ended++;
        break;
    default:
        client->n_wrong++;
        break;
    }
}

/* Jobs of any size, some inline, some with little time, some canceled. */
static void *run_client(void *context)
{
    struct client *client = context;
    struct work *work = &client->work;
    struct roped_error refusal;
    for (int i = 0; i < N_ROUNDS; i++) {
        work_make(work, 1 + (int)(roll(client) % MAX_ROWS));
        if (roll(client) % 4 == 0)
            work->job.deadline_ns = after_ms(1);
        if (roll(client) % 3 == 0 && exec_run_inline(exec, &work->job)) {
            client->n_wrong += atomic_load(&work->n_done) != 1;
            count_end(client);
            continue;
        }
        if (exec_submit(exec, &work->job, &refusal)) {
            client->n_busy++;
            continue;
        }
        if (roll(client) % 8 == 0)
            atomic_store(&work->job.is_canceled, true);
        while (atomic_load(&work->n_done) == 0)
            sched_yield();
        count_end(client);
    }
    return NULL;
}

static void check_many_clients(int n_lanes, uint64_t inline_bytes)
{
    static struct client clients[N_CLIENTS];
    struct exec_options options = work_options(n_lanes, N_CLIENTS / 2);
    int n_right = 0, n_all = 0;
    options.inline_bytes = inline_bytes;
    exec = work_open(&options);
    memset(clients, 0, sizeof clients);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].seed = (unsigned)i;
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        struct client *client = &clients[i];
        pthread_join(client->thread, NULL);
        CHECK_INT(client->n_wrong, 0);
        n_right += client->n_right;
        n_all += client->n_right + client->n_busy + client->n_ended;
    }
    CHECK_INT(n_all, N_CLIENTS * N_ROUNDS);
    CHECK(n_right > N_CLIENTS * N_ROUNDS / 10);
    close_exec();
}

TEST(many_clients_get_each_their_own_answer_once)
{
    check_many_clients(3, 1 << 20);
    check_many_clients(3, 4096); /* every second job is a long one */
    check_many_clients(40, 1 << 20);
    check_many_clients(1, 4096);
}

/* Drain races with clients that go on submitting: everything accepted has
 * ended when it returns. */
static atomic_int n_accepted, n_ended, turn;

static void count_done(struct exec_job *job)
{
    struct work *work = job->owner;
    atomic_fetch_add(&n_ended, 1);
    atomic_fetch_add(&work->n_done, 1);
}

static void *submit_until_refused(void *context)
{
    struct work *work = context;
    struct roped_error refusal;
    for (;;) {
        work_make(work, 2);
        work->job.done = count_done;
        atomic_fetch_add(&n_accepted, 1);
        if (atomic_fetch_xor(&turn, 1) && exec_run_inline(exec, &work->job))
            continue;
        if (exec_submit(exec, &work->job, &refusal)) {
            atomic_fetch_sub(&n_accepted, 1);
            if (strstr(refusal.text, "shutting down"))
                return NULL;
            sched_yield();
            continue;
        }
        while (atomic_load(&work->n_done) == 0)
            sched_yield();
    }
}

TEST(after_drain_every_accepted_job_has_ended)
{
    static struct work work[N_CLIENTS];
    pthread_t thread[N_CLIENTS];
    for (int round = 0; round < 10; round++) {
        open_exec(2, 4);
        atomic_store(&n_accepted, 0);
        atomic_store(&n_ended, 0);
        for (int i = 0; i < N_CLIENTS; i++)
            pthread_create(&thread[i], NULL, submit_until_refused, &work[i]);
        for (int i = 0; i < 20000 && atomic_load(&n_ended) == 0; i++)
            pause_ms(1);
        exec_drain(exec, after_ms(round % 2 ? 0 : 5000));
        int n_at_drain = atomic_load(&n_ended);
        for (int i = 0; i < N_CLIENTS; i++)
            pthread_join(thread[i], NULL);
        CHECK_INT(atomic_load(&n_ended), n_at_drain);
        CHECK_INT(atomic_load(&n_ended), atomic_load(&n_accepted));
        CHECK(n_at_drain > 0);
        close_exec();
    }
}
