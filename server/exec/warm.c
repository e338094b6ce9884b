/*
 * warm.c - a run of a program on every lane, before anybody waits for one. A
 * lane launches the first in order and records the second (recordings.h).
 */
#include "exec/warm.h"

#include "exec/dispatch.h"
#include "exec/program_run.h"

#include <stdatomic.h>
#include <time.h>

enum { RUNS = 2 };

/* Under load lanes are idle for moments. */
static enum roped_status await_lane(struct executor *exec, struct lane *lane,
                                    uint64_t deadline_ns,
                                    struct roped_error *err)
{
    static const struct timespec nap = {.tv_nsec = 200000};
    while (!dispatch_claim_lane(lane)) {
        if (exec_refusal(exec))
            return roped_fail(err, ROPED_DRAINING, "%s", exec_refusal(exec));
        if (deadline_ns && lane_now_ns() > deadline_ns)
            return roped_fail(err, ROPED_DEADLINE,
                              "lane %d of device %d had other work for too "
                              "long",
                              (int)(lane - lane->device->lane),
                              lane->device->number);
        nanosleep(&nap, NULL);
    }
    return ROPED_OK;
}

static enum roped_status run_on(struct executor *exec, struct lane *lane,
                                struct program_run *run,
                                struct roped_error *err)
{
    struct exec_job job;
    for (int i = 0; i < RUNS; i++) {
        exec_job_init(&job);
        job.work = EXEC_PROGRAM;
        job.run = run;
        dispatch_start(exec, &job);
        lane_run(lane, &job);
        if (job.status) {
            *err = job.error;
            return job.status;
        }
    }
    return ROPED_OK;
}

static enum roped_status warm_lane(struct executor *exec, struct lane *lane,
                                   const struct exec_job *errand,
                                   struct program_run *run,
                                   struct roped_error *err)
{
    if (lane == errand->lane)
        return run_on(exec, lane, run, err);
    enum roped_status status = await_lane(exec, lane, errand->deadline_ns, err);
    if (status)
        return status;
    status = run_on(exec, lane, run, err);
    dispatch_release(lane);
    return status;
}

static enum roped_status warm_all(struct executor *exec,
                                  const struct exec_job *errand,
                                  struct program_run *run,
                                  struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < exec->n_devices && !status; i++)
        for (int j = 0; j < exec->device[i].n_lanes && !status; j++)
            status =
                warm_lane(exec, &exec->device[i].lane[j], errand, run, err);
    return status;
}

enum roped_status exec_warm(struct executor *exec,
                            const struct exec_job *errand,
                            struct program_run *run, struct roped_error *err)
{
    if (!exec->api->record)
        return ROPED_OK;
    /* two of them, each on a lane that the other wants, would not end */
    if (atomic_exchange(&exec->is_warming, true))
        return roped_fail(err, ROPED_BUSY,
                          "another program is being warmed just now");
    enum roped_status status = warm_all(exec, errand, run, err);
    atomic_store(&exec->is_warming, false);
    return status;
}
