/*
 * test_order.c - which job is next: short ones before long ones, none of them
 * for ever, and a lane that is kept for short ones.
 */
#include "check.h"
#include "exec/heap.h"
#include "unit/server/exec/work.h"

#include <pthread.h>

static struct roped_error err;
static struct executor *exec;

/* -------------------------------------------------------------------- heap */

enum { N_NODES = 1 << 16 };

static struct heap_node nodes[N_NODES];

static uint64_t scramble(uint64_t n)
{
    n = (n + 1) * UINT64_C(0x9E3779B97F4A7C15);
    return n ^ n >> 29;
}

static bool is_taken_out(int i)
{
    return scramble((uint64_t)i) % 3 == 0;
}

TEST(a_heap_is_in_order_whatever_is_taken_out)
{
    struct heap heap = {NULL};
    uint64_t last = 0;
    int n = 0, n_unordered = 0, n_left = N_NODES;
    for (int i = 0; i < N_NODES; i++)
        heap_push(&heap, &nodes[i], scramble((uint64_t)i) >> 40);
    CHECK(heap.first->rank <= 17);
    for (int i = 0; i < N_NODES; i++)
        if (is_taken_out(i)) {
            heap_remove(&heap, &nodes[i]);
            n_left--;
        }
    CHECK(heap.first->rank <= 17);
    for (; heap.first; n++) {
        struct heap_node *first = heap.first;
        n_unordered += first->key < last || is_taken_out((int)(first - nodes));
        last = first->key;
        heap_remove(&heap, first);
    }
    CHECK_INT(n_unordered, 0);
    CHECK_INT(n, n_left);
}

TEST(a_heap_of_rising_and_of_falling_numbers_stays_flat)
{
    for (int falls = 0; falls < 2; falls++) {
        struct heap heap = {NULL};
        int n_unordered = 0;
        for (int i = 0; i < N_NODES; i++)
            heap_push(&heap, &nodes[i], (uint64_t)(falls ? N_NODES - i : i));
        for (int i = 0; i < N_NODES; i++) {
            struct heap_node *first = heap.first;
            n_unordered += first != &nodes[falls ? N_NODES - 1 - i : i];
            n_unordered += first->rank > 17;
            heap_remove(&heap, first);
        }
        CHECK_INT(n_unordered, 0);
        CHECK(!heap.first);
    }
}

/* ------------------------------------------------------------------- tasks */

/* Tasks that say in which order they ran; some wait until they may end. */
enum { MAX_TASKS = 16, SHORT_BYTES = 100, LONG_BYTES = 50000000 };

static struct work tasks[MAX_TASKS];
static atomic_int n_run, ran[MAX_TASKS];
static atomic_bool is_held;

static enum roped_status run_task(struct exec_job *job)
{
    struct work *work = job->owner;
    atomic_store(&ran[atomic_fetch_add(&n_run, 1)], (int)(work - tasks));
    return ROPED_OK;
}

static enum roped_status run_held_task(struct exec_job *job)
{
    enum roped_status status = run_task(job);
    while (atomic_load(&is_held))
        pause_ms(1);
    return status;
}

static void open_exec(int n_lanes, uint64_t inline_bytes)
{
    struct exec_options options = work_options(n_lanes, 64);
    options.inline_bytes = inline_bytes;
    atomic_store(&n_run, 0);
    exec = work_open(&options);
}

static struct exec_job *task(int i, uint64_t bytes)
{
    struct work *work = &tasks[i];
    work_make(work, 1);
    work->job.work = EXEC_TASK;
    work->job.task = run_task;
    work->job.task_bytes = bytes;
    return &work->job;
}

static struct exec_job *held_task(int i, uint64_t bytes)
{
    struct exec_job *job = task(i, bytes);
    job->task = run_held_task;
    return job;
}

static void submit(struct exec_job *job)
{
    CHECK_OK(exec_submit(exec, job, &err), &err);
}

static bool wait_running(int n)
{
    for (int i = 0; i < 20000 && atomic_load(&n_run) < n; i++)
        pause_ms(1);
    return atomic_load(&n_run) == n;
}

static void wait_tasks(int n)
{
    for (int i = 0; i < n; i++)
        CHECK(work_wait(&tasks[i]));
}

static int n_waiting(void)
{
    struct exec_usage usage;
    exec_usage(exec, &usage);
    return usage.n_waiting;
}

/* One lane, busy: these wait for it. */
static void check_order(const uint64_t *bytes, int n, const int *order)
{
    open_exec(1, SHORT_BYTES);
    atomic_store(&is_held, true);
    submit(held_task(0, SHORT_BYTES));
    CHECK(wait_running(1));
    for (int i = 1; i < n; i++)
        submit(task(i, bytes[i]));
    atomic_store(&is_held, false);
    wait_tasks(n);
    for (int i = 1; i < n; i++)
        CHECK_INT(atomic_load(&ran[i]), order[i]);
    work_close(exec);
}

TEST(who_takes_less_time_is_next)
{
    static const uint64_t bytes[] = {0, 8 * (uint64_t)LONG_BYTES,
                                     4 * LONG_BYTES, SHORT_BYTES, 0};
    static const int order[] = {0, 3, 4, 2, 1};
    check_order(bytes, 5, order);
}

/* 1 s is the most that a job can be behind: then it is who came first. */
TEST(the_longest_jobs_run_as_they_came)
{
    static const uint64_t bytes[] = {0, UINT64_MAX, 1000000000, UINT64_MAX,
                                     SHORT_BYTES};
    static const int order[] = {0, 4, 1, 2, 3};
    check_order(bytes, 5, order);
}

/* Once it has waited for its handicap nobody who comes overtakes a job. */
TEST(no_job_is_overtaken_for_ever)
{
    open_exec(1, SHORT_BYTES);
    atomic_store(&is_held, true);
    submit(held_task(0, SHORT_BYTES));
    CHECK(wait_running(1));
    submit(task(1, LONG_BYTES / 10));
    uint64_t handicap_over = after_ms(LONG_BYTES / 10 * 2 / 1000000 + 1);
    submit(task(2, SHORT_BYTES));
    while (after_ms(0) < handicap_over)
        pause_ms(1);
    submit(task(3, SHORT_BYTES));
    atomic_store(&is_held, false);
    wait_tasks(4);
    CHECK_INT(atomic_load(&ran[1]), 2);
    CHECK_INT(atomic_load(&ran[2]), 1);
    CHECK_INT(atomic_load(&ran[3]), 3);
    work_close(exec);
}

/* ----------------------------------------------------------------- the lane */

TEST(one_lane_is_kept_for_short_jobs)
{
    open_exec(3, SHORT_BYTES);
    atomic_store(&is_held, true);
    for (int i = 0; i < 4; i++)
        submit(held_task(i, LONG_BYTES));
    CHECK(wait_running(2));
    CHECK_INT(n_waiting(), 2);
    CHECK(exec_run_inline(exec, task(4, SHORT_BYTES)));
    submit(task(5, SHORT_BYTES));
    CHECK(work_wait(&tasks[5]));
    CHECK_INT(atomic_load(&n_run), 4);
    CHECK_INT(n_waiting(), 2);
    atomic_store(&is_held, false);
    wait_tasks(4);
    work_close(exec);
}

/* Also while the only idle lane is one that has just run a short job. */
TEST(short_jobs_on_every_lane_leave_it_to_long_ones)
{
    open_exec(2, SHORT_BYTES);
    atomic_store(&is_held, true);
    submit(held_task(0, SHORT_BYTES));
    submit(held_task(1, SHORT_BYTES));
    CHECK(wait_running(2));
    submit(task(2, LONG_BYTES));
    submit(task(3, LONG_BYTES));
    CHECK_INT(n_waiting(), 2);
    atomic_store(&is_held, false);
    wait_tasks(4);
    work_close(exec);
}

static void check_all_lanes_run_long(int n_lanes, uint64_t inline_bytes)
{
    open_exec(n_lanes, inline_bytes);
    atomic_store(&is_held, true);
    for (int i = 0; i < n_lanes; i++)
        submit(held_task(i, LONG_BYTES));
    CHECK(wait_running(n_lanes));
    CHECK_INT(n_waiting(), 0);
    atomic_store(&is_held, false);
    wait_tasks(n_lanes);
    work_close(exec);
}

TEST(a_lane_alone_and_lanes_without_short_jobs_run_any)
{
    check_all_lanes_run_long(1, SHORT_BYTES);
    check_all_lanes_run_long(2, 0);
}

/* A long job ends in time though the lane that it may not use is idle. */
TEST(deadlines_hold_for_jobs_that_wait_for_a_long_lane)
{
    open_exec(2, SHORT_BYTES);
    atomic_store(&is_held, true);
    submit(held_task(0, LONG_BYTES));
    CHECK(wait_running(1));
    struct exec_job *late = task(1, LONG_BYTES);
    late->deadline_ns = after_ms(20);
    submit(late);
    submit(task(2, LONG_BYTES));
    CHECK(work_wait(&tasks[1]));
    CHECK_INT(tasks[1].job.status, ROPED_DEADLINE);
    CHECK_INT(n_waiting(), 1);
    atomic_store(&is_held, false);
    wait_tasks(3);
    CHECK_INT(tasks[2].job.status, ROPED_OK);
    work_close(exec);
}

static void *let_go_after_last(void *context)
{
    work_wait(context);
    atomic_store(&is_held, false);
    return NULL;
}

static void check_drain(bool is_patient)
{
    pthread_t thread;
    open_exec(2, SHORT_BYTES);
    atomic_store(&is_held, true);
    for (int i = 0; i < 6; i++)
        submit(held_task(i, i % 2 ? LONG_BYTES : UINT64_MAX));
    CHECK(wait_running(1));
    CHECK_INT(n_waiting(), 5);
    atomic_store(&is_held, !is_patient);
    pthread_create(&thread, NULL, let_go_after_last, &tasks[5]);
    exec_drain(exec, after_ms(is_patient ? 20000 : 10));
    pthread_join(thread, NULL);
    for (int i = 0; i < 6; i++) {
        CHECK_INT(atomic_load(&tasks[i].n_done), 1);
        CHECK_INT(tasks[i].job.status,
                  i == 0 || is_patient ? ROPED_OK : ROPED_CANCELED);
    }
    work_close(exec);
}

TEST(drain_ends_long_jobs_with_or_without_a_lane)
{
    check_drain(true);
    check_drain(false);
}
