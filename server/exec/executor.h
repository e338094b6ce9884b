/*
 * executor.h - when and where a call runs: admission, a bounded queue, lanes.
 *
 * DESIGN. A lane is one queue of the backend (a CUDA stream), one device arena
 * that grows to the largest call it has seen, a small page-locked scratch, and
 * the thread that drives it. A job waits in one bounded first-in first-out
 * queue; the next free lane plans it, uploads, launches, downloads, waits,
 * and calls done. Jobs are the caller's memory; done runs exactly once per
 * accepted job, on a lane's thread (or inside exec_run_inline), also for
 * deadline, cancel and shutdown, and after it the executor
 * never touches the job.
 *
 * LOCKS. One mutex guards the queue and the lanes' states. No lock is held
 * while the device works or done runs.
 */
#ifndef ROPED_EXEC_EXECUTOR_H
#define ROPED_EXEC_EXECUTOR_H

#include "exec/memory.h"
#include "exec/regions.h"
#include "exec/tables.h"

#include <roped/backend.h>
#include <roped/op.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct executor;

struct exec_options {
    int n_lanes;
    int queue_depth;             /* jobs that may wait */
    uint64_t pool_bytes;         /* host pool, page-locked on a GPU */
    uint64_t host_bytes;         /* host budget, pool included */
    uint64_t device_bytes;       /* device arenas of all lanes together */
    uint64_t table_budget_bytes; /* resident rotary tables, all */
    uint64_t table_bytes;        /* and one of them */
    uint64_t region_bytes;       /* resident regions, all */
    uint64_t inline_bytes; /* smaller jobs may run on their caller's thread */
    uint64_t mapped_bytes; /* smaller jobs use host memory in place */
};

/* Nanoseconds of each stage of one job; 0 where a stage did not happen. */
struct exec_timing {
    uint64_t queue_ns; /* accepted to taken by a lane */
    uint64_t plan_ns;  /* value checks, frequencies, table */
    uint64_t h2d_ns;
    uint64_t kernel_ns;
    uint64_t d2h_ns;
};

enum exec_work {
    EXEC_CALL,
    EXEC_STORE, /* host memory into a region */
    EXEC_LOAD,  /* a region into host memory */
    EXEC_CLEAR, /* zeros into a region */
    EXEC_TASK   /* a function of the caller's, which may take its time */
};

/* Where a tensor of a call is; region NULL: in host memory, at its data. */
struct exec_place {
    struct region *region; /* not owned */
    uint64_t offset;
};

/* What EXEC_STORE, EXEC_LOAD and EXEC_CLEAR move: the region's first bytes. */
struct exec_transfer {
    struct region *region; /* not owned */
    void *host;
    uint64_t bytes;
};

struct exec_job {
    /* set by the caller; the call is resolved, in[] and out[] data point at
     * host memory but for those in a region; out[] data may be at any byte
     * address. places.h says which places are allowed. */
    enum exec_work work;
    struct roped_call call;
    struct exec_place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
    struct exec_transfer transfer;
    enum roped_status (*task)(struct exec_job *job); /* fills job->error */
    void *values;              /* places_value_bytes() of host memory */
    struct table_entry *table; /* behind call.angle_set, or NULL; not owned */
    bool is_pinned;            /* in[], out[], values: in pinned blocks */
    uint64_t deadline_ns;      /* CLOCK_MONOTONIC, 0: none */
    void (*done)(struct exec_job *job);
    void *owner;                           /* for done */
    atomic_bool is_canceled;               /* set by anyone: do not start it */
    bool (*is_gone)(struct exec_job *job); /* (optional) asked just before
                                              it starts: cancel it? */

    /* set by the executor */
    enum roped_status status;
    struct roped_error error;
    struct exec_timing timing;

    /* executor's own */
    uint64_t accepted_ns;
    struct exec_job *next;
};

struct exec_usage {
    int n_lanes, n_busy_lanes, n_queued;
    uint64_t device_arena_bytes;
    uint64_t device_errors;
};

ROPED_MUST_CHECK enum roped_status
exec_open(const struct roped_backend_api *api,
          const struct roped_backend_options *backend_options,
          const struct exec_options *options, struct executor **out,
          struct roped_error *err);

/* Refuses new jobs and waits until none is queued or running, or until
 * deadline_ns (CLOCK_MONOTONIC); what is still queued then ends canceled. */
void exec_drain(struct executor *exec, uint64_t deadline_ns);

/* After drain: stops the lanes and frees everything. */
void exec_close(struct executor *exec);

/*
 * Accepts a job or refuses it: ROPED_BUSY when the queue is full or draining.
 * done runs later, on a lane's thread.
 */
ROPED_MUST_CHECK enum roped_status exec_submit(struct executor *exec,
                                               struct exec_job *job,
                                               struct roped_error *err);

/*
 * Runs a job of at most inline_bytes on the calling thread if a lane is idle
 * and nothing waits; done has run when it returns true. False: nothing was
 * done, submit it.
 */
bool exec_run_inline(struct executor *exec, struct exec_job *job);

/* False when a new job would be refused now: asked before a body is read. */
bool exec_has_room(struct executor *exec);

bool exec_is_healthy(struct executor *exec);
struct memory_pool *exec_memory(struct executor *exec);
struct tables *exec_tables(struct executor *exec);
struct regions *exec_regions(struct executor *exec);
const struct roped_backend_api *exec_backend(struct executor *exec);
void exec_device_info(struct executor *exec, struct roped_device_info *out);
void exec_usage(struct executor *exec, struct exec_usage *out);

#endif
