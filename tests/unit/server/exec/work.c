/*
 * work.c - jobs whose answers are known.
 */
#include "unit/server/exec/work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tests cannot go on without what these make. */
static void insist(enum roped_status status, const struct roped_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "work: %s\n", err->text);
    exit(EXIT_FAILURE);
}

uint64_t after_ms(int64_t ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(now.tv_sec * 1000000000 + now.tv_nsec + ms * 1000000);
}

void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

struct exec_options work_options(int n_lanes, int queue_depth)
{
    return (struct exec_options){.n_lanes = n_lanes,
                                 .queue_depth = queue_depth,
                                 .pool_bytes = 1 << 20,
                                 .host_bytes = 1 << 20,
                                 .device_bytes = 8 << 20,
                                 .table_budget_bytes = 1 << 20,
                                 .table_bytes = 1 << 20,
                                 .region_bytes = 1 << 20,
                                 .inline_bytes = 1 << 20};
}

struct executor *work_open(const struct exec_options *options)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct roped_error err;
    struct executor *exec = NULL;
    fake_reset();
    insist(exec_open(&fake_api, &backend, options, &exec, &err), &err);
    return exec;
}

void work_close(struct executor *exec)
{
    exec_drain(exec, after_ms(20000));
    exec_close(exec);
    if (atomic_load(&fake_n_live) != 0) {
        fprintf(stderr, "work: %d allocations left\n",
                atomic_load(&fake_n_live));
        exit(EXIT_FAILURE);
    }
}

static void on_done(struct exec_job *job)
{
    atomic_fetch_add(&((struct work *)job->owner)->n_done, 1);
}

struct region *work_region(struct executor *exec, const char *name,
                           uint64_t bytes, int device)
{
    struct region_info info = {.tenant = tenants_nameless(exec_tenants(exec)),
                               .bytes = bytes,
                               .device = device};
    struct region *region = NULL;
    struct roped_error err;
    snprintf(info.name, sizeof info.name, "%s", name);
    insist(regions_create(exec_regions(exec), &info, &region, &err), &err);
    return region;
}

void work_make(struct work *work, int rows)
{
    struct roped_error err;
    struct roped_tensor x = {ROPED_F32, 2, {rows, HIDDEN}, work->x};
    memset(work, 0, sizeof *work);
    work->rows = rows;
    for (int i = 0; i < rows * HIDDEN; i++)
        work->x[i] = (float)(i % HIDDEN % 2 ? 3 : -3);
    roped_call_init(&work->job.call, roped_op_find("rmsnorm"));
    insist(roped_call_bind(&work->job.call, "x", &x, &err), &err);
    insist(roped_call_resolve(&work->job.call, &err), &err);
    work->job.call.out[0].data = work->y;
    work->job.done = on_done;
    work->job.owner = work;
}

bool work_wait(struct work *work)
{
    for (int i = 0; i < 20000 && atomic_load(&work->n_done) == 0; i++)
        pause_ms(1);
    return atomic_load(&work->n_done) == 1;
}

void work_wait_idle(struct executor *exec)
{
    struct exec_usage usage;
    do {
        pause_ms(1);
        exec_usage(exec, &usage);
    } while (usage.n_busy_lanes > 0 || usage.n_waiting > 0);
}

bool work_wait_launches(int n)
{
    for (int i = 0; i < 20000 && atomic_load(&fake_n_launches) < n; i++)
        pause_ms(1);
    return atomic_load(&fake_n_launches) >= n;
}

static void *let_go_after(void *context)
{
    work_wait(context);
    fake_let_go();
    return NULL;
}

pthread_t work_let_go_after(struct work *work)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, let_go_after, work)) {
        fprintf(stderr, "work: no thread\n");
        exit(EXIT_FAILURE);
    }
    return thread;
}

bool work_is_right(const struct work *work)
{
    for (int i = 0; i < work->rows * HIDDEN; i++)
        if (fabsf(work->y[i] - (i % HIDDEN % 2 ? 1.0f : -1.0f)) > 1e-5f)
            return false;
    return true;
}
