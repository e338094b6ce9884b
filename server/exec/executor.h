/*
 * executor.h - when and where a call runs: admission, a bounded queue, devices
 * and their lanes.
 *
 * DESIGN. A lane is one queue of the backend (a stream), one device arena
 * that grows to the largest call it has seen, a small page-locked scratch, and
 * the thread that drives it. Every device has n_lanes of them. A job waits, in
 * a bounded queue, for a lane; that plans it, uploads, launches, downloads,
 * waits, and calls done. Jobs are the caller's memory; done runs exactly once
 * per accepted job, on a lane's thread (or inside exec_run_inline), also for
 * deadline, cancel and shutdown, and after it the executor never touches the
 * job.
 *
 * ORDER. Short jobs do not wait behind long ones. Each job has a handicap of
 * 2 ns for each byte of its work (places_work), at most 1 s, and of those that
 * wait the one with the least sum of its time of arrival and its handicap is
 * next. So a job is overtaken only by jobs that came less than its handicap
 * after it: no job waits for ever. And one lane of each device that has several
 * never runs a long job, one whose work is more than inline_bytes: a short one
 * finds it idle, or waits for short ones. Where inline_bytes is 0 all are
 * alike, and every lane runs any.
 *
 * WHICH DEVICE. A job that uses regions in the memory of a device runs there.
 * Any other is not bound before it runs: it goes to the device that moves the
 * fewest bytes among those with an idle lane, and where none is idle it waits
 * for the first lane to be free anywhere, so that no device idles while calls
 * wait. Bytes, not calls: what devices spend their time on is moving tensors,
 * and one call may be as long as ten thousand. On a tie the first device has
 * it, whose tables and caches are warm then.
 *
 * STAGES. The body of a large call may be copied to a device while it still
 * arrives (stage.h). That binds the call to the device early: staging.c chooses
 * it, by the same measure. A call without a stage is uploaded when it runs.
 *
 * LOCKS. Who has a lane is one atomic word in it: a short call that finds an
 * idle lane runs there without a lock, and writes to nothing that the calls of
 * other threads write to. One mutex guards the queues and what lanes get from
 * them, and who has which stage. It is not held while the device works, while
 * memory of a device is allocated or freed, or while done runs.
 */
#ifndef ROPED_EXEC_EXECUTOR_H
#define ROPED_EXEC_EXECUTOR_H

#include "exec/heap.h"
#include "exec/memory.h"
#include "exec/regions.h"
#include "exec/tables.h"

#include <roped/backend.h>
#include <roped/op.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct executor;
struct stage; /* stage.h */

/* Bytes of device memory are those of each device. */
struct exec_options {
    const int *devices; /* indices of the backend's, which may repeat; NULL:
                           that of the backend's options alone */
    int n_devices;
    int n_lanes;                 /* of each device */
    int queue_depth;             /* jobs that may wait */
    uint64_t pool_bytes;         /* host pool, page-locked on a GPU */
    uint64_t host_bytes;         /* host budget, pool included */
    uint64_t device_bytes;       /* device arenas of its lanes together */
    uint64_t table_budget_bytes; /* resident rotary tables, all */
    uint64_t table_bytes;        /* and one of them */
    uint64_t region_bytes;       /* resident regions, all */
    uint64_t
        inline_bytes; /* jobs that take no longer than the CPU backend takes
                         for so many may run on their caller's thread */
    uint64_t mapped_bytes; /* smaller jobs use host memory in place */
    uint64_t stage_bytes;  /* larger bodies are uploaded while they arrive, on
                              devices that are not the host; 0: none is */
    uint64_t stage_chunk_bytes; /* in such pieces */
};

/* Nanoseconds of each phase of one job, as queue_ns; 0 where it did not
 * happen. */
struct exec_timing {
#define PHASE(id, name, statistic, meaning) uint64_t name##_ns;
#include "phase.def"
};

enum exec_work {
    EXEC_CALL,
    EXEC_STORE, /* host memory into a region */
    EXEC_LOAD,  /* a region into host memory */
    EXEC_CLEAR, /* zeros into a region */
    EXEC_TASK   /* a function of the caller's */
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
    /* set by the caller; the call (below) is resolved, its in[] and out[] data
     * point at host memory but for those in a region; out[] data may be at any
     * byte address. places.h says which places are allowed. */
    enum exec_work work;
    struct exec_place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
    struct exec_transfer transfer;
    enum roped_status (*task)(struct exec_job *job); /* fills job->error */
    uint64_t task_bytes; /* that it moves; UINT64_MAX: it may take its time */
    void *values;        /* places_value_bytes() of host memory */
    struct table_entry *table; /* behind call.angle_set, or NULL; not owned */
    bool is_pinned;            /* in[], out[], values: in pinned blocks */
    uint64_t deadline_ns;      /* CLOCK_MONOTONIC, 0: none */
    bool is_continued; /* goes on with a request that was accepted before: a
                          full queue does not refuse it, nor does a drain */
    void (*done)(struct exec_job *job);
    void *owner;                           /* for done */
    atomic_bool is_canceled;               /* set by anyone: do not start it */
    bool (*is_gone)(struct exec_job *job); /* (optional) asked just before
                                              it starts: cancel it? */

    /* set by exec_stage_open */
    struct stage *stage;   /* NULL: none, or the job has run */
    uint64_t stage_lacked; /* bytes of the body that found none */

    /* set by the executor */
    enum roped_status status;
    struct roped_error error;
    struct exec_timing timing;

    /* executor's own */
    uint64_t accepted_ns;
    uint64_t bytes;      /* places_bytes(), 0 of a task */
    uint64_t work_bytes; /* places_work() */
    bool is_long;        /* not for the lane that is kept for short ones */
    int device;          /* number of the one that it needs, or -1 */
    struct heap_node waits, expires;
    struct exec_job *next;

    /* set by the caller where work is EXEC_CALL, by roped_call_init first: the
     * last member, so that the rest can be cleared without these 5 KiB */
    struct roped_call call;
};

struct exec_usage {
    int n_lanes, n_busy_lanes, n_queued;
    uint64_t device_arena_bytes;
    uint64_t device_errors;
};

struct exec_device_usage {
    int index; /* the backend's */
    int n_lanes, n_busy_lanes;
    bool is_healthy;
    uint64_t arena_bytes, arena_limit_bytes;
    uint64_t region_bytes, region_limit_bytes;
    uint64_t jobs, errors; /* that ran; of them: failed in the device */
    uint64_t staged_bytes; /* uploaded while they arrived */
    double busy_seconds;   /* of its lanes together */
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
 * Accepts a job or refuses it: ROPED_BUSY when the queue is full or draining,
 * unless the job is_continued. done runs later, on a lane's thread.
 */
ROPED_MUST_CHECK enum roped_status exec_submit(struct executor *exec,
                                               struct exec_job *job,
                                               struct roped_error *err);

/*
 * Runs a short job, of at most inline_bytes by places_work, on the calling
 * thread if a lane is idle and nothing waits; done has run when it returns
 * true. False: nothing was done, submit it.
 */
bool exec_run_inline(struct executor *exec, struct exec_job *job);

/*
 * A body of a call that is resolved begins to arrive in pinned host memory:
 * from first to bytes of host is what devices may read. The call's places are
 * checked. Gives the job a stage on the device where it will run, or none: then
 * it is uploaded when it runs. The one place that decides is in staging.c.
 * Never waits for the device, and allocates nothing.
 */
void exec_stage_open(struct executor *exec, struct exec_job *job,
                     const void *host, uint64_t first, uint64_t bytes);

/* The body has arrived up to end: chunks start on their way. Before the job is
 * submitted; by one thread at a time. */
void exec_stage_advance(struct exec_job *job, uint64_t end);

/* For a job that ended without running, or never was submitted: takes its
 * stage off, and the host block of exec_memory(), which is given back when no
 * copy reads it any more. The block is then empty. Does not wait. */
void exec_stage_abandon(struct executor *exec, struct exec_job *job,
                        struct memory_block *block);

/* False when a new job would be refused now: asked before a body is read. */
bool exec_has_room(struct executor *exec);

/* False where one device is not. */
bool exec_is_healthy(struct executor *exec);
struct memory_pool *exec_memory(struct executor *exec);
struct tables *exec_tables(struct executor *exec);
struct regions *exec_regions(struct executor *exec);
const struct roped_backend_api *exec_backend(struct executor *exec);

/* All devices together. */
void exec_usage(struct executor *exec, struct exec_usage *out);

/* One device: 0 <= number < exec_n_devices(). */
int exec_n_devices(const struct executor *exec);
void exec_device_info(struct executor *exec, int number,
                      struct roped_device_info *out);
void exec_device_usage(struct executor *exec, int number,
                       struct exec_device_usage *out);

/* The number of the first device with this index of the backend's, or -1. */
int exec_find_device(const struct executor *exec, uint64_t index);

#endif
