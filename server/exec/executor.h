/*
 * executor.h - when and where a call runs: admission, jobs that wait, devices
 * and their lanes.
 *
 * DESIGN. A device is one GPU, or the CPU. It has n_lanes lanes: each is one
 * queue of the backend (a stream), one arena in the device's memory that grows
 * to the largest call it has seen, a small page-locked scratch, and a thread.
 * Jobs wait for a lane, at most queue_depth of them. The lane plans a job, says
 * where its tensors are (placement.h), uploads, launches, downloads, waits, and
 * calls done. Jobs are the caller's memory; done runs exactly once per accepted
 * job, on a lane's thread (or inside exec_run_inline), also for deadline,
 * cancel and shutdown, and after it the executor never touches the job.
 *
 * ORDER. Short jobs do not wait behind long ones. Each job has a handicap of
 * 2 ns for each byte of its work (placement_measure), at most 1 s, and of those
 * that wait the one with the least sum of its time of arrival and its handicap
 * is next. So a job is overtaken only by jobs that came less than its handicap
 * after it: no job waits for ever. And one lane of each device that has several
 * never runs a long job, one whose work is more than inline_bytes: a short one
 * finds it idle, or waits for short ones. Where inline_bytes is 0 all are
 * alike, and every lane runs any.
 *
 * WHICH DEVICE. A job that writes regions in the memory of a device runs
 * there, one that only reads them where most of what it reads is; what it reads
 * of other devices is copied to the arena of its lane first. Any other is not
 * bound before it runs: it goes to the device that moves the fewest bytes among
 * those with an idle lane, and where none is idle it waits for the first lane
 * to be free anywhere, so that no device idles while calls wait. Bytes, not
 * calls: what devices spend their time on is moving tensors, and one call may
 * be as long as ten thousand. On a tie the first device has it, whose tables
 * and caches are warm then.
 *
 * INBOXES. The body of a large call may be copied to a device while it still
 * arrives, into an inbox (inbox.h). That binds the call to the device early:
 * exec_inbox_open chooses it, by the same measure. A call without an inbox is
 * uploaded when it runs.
 *
 * LOCKS. Who has a lane is one atomic word in it: a short call that finds an
 * idle lane runs there without a lock, and writes to nothing that the calls of
 * other threads write to. One mutex guards who waits and what lanes get of
 * that, and who has which inbox. It is not held while the device works, while
 * memory of a device is allocated or freed, or while done runs.
 */
#ifndef ROPED_EXEC_EXECUTOR_H
#define ROPED_EXEC_EXECUTOR_H

#include "exec/heap.h"
#include "exec/memory.h"
#include "exec/placement.h"
#include "exec/programs.h"
#include "exec/regions.h"
#include "exec/tables.h"
#include "exec/tenants.h"
#include "exec/timing.h"

#include <roped/backend.h>
#include <roped/op.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct executor;
struct inbox;       /* inbox.h */
struct lane;        /* lane.h */
struct program_run; /* program_run.h */

/* Bytes of device memory are those of each device. */
struct exec_options {
    const int *devices; /* indices of the backend's, which may repeat; NULL:
                           that of the backend's options alone */
    int n_devices;
    int n_lanes;                 /* of each device */
    int queue_depth;             /* jobs that may wait */
    uint64_t pool_bytes;         /* host pool, page-locked on a GPU */
    uint64_t host_bytes;         /* host budget, pool included */
    uint64_t keep_ns;            /* mappings that nobody uses are kept so long;
                                    0: for ever */
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

enum exec_work {
    EXEC_CALL,
    EXEC_PROGRAM, /* a chain of calls */
    EXEC_STORE,   /* host memory into a region */
    EXEC_LOAD,    /* a region into host memory */
    EXEC_CLEAR,   /* zeros into a region */
    EXEC_TASK     /* a function of the caller's */
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
     * byte address. placement.h says which places are allowed. */
    enum exec_work work;
    struct exec_place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
    struct exec_transfer transfer;
    struct program_run *run; /* of EXEC_PROGRAM; not owned */
    enum roped_status (*task)(struct exec_job *job); /* fills job->error */
    uint64_t task_bytes; /* that it moves; UINT64_MAX: it may take its time */
    void *values;        /* placement.value_bytes of host memory */
    struct table_entry *table; /* behind call.angle_set, or NULL; not owned */
    bool is_pinned;            /* in[], out[], values: in pinned blocks */
    uint64_t deadline_ns;      /* CLOCK_MONOTONIC, 0: none */
    bool is_continued; /* goes on with a request that was accepted before:
                          neither queue_depth nor a drain refuses it */
    void (*done)(struct exec_job *job);
    void *owner;             /* for done */
    void *context;           /* for task */
    atomic_bool is_canceled; /* set by anyone: do not start it */
    /* (optional) asked under a lock, just before it starts, and by
     * exec_end_gone: does nobody wait for it? Then it is not started. */
    bool (*is_gone)(const struct exec_job *job);

    /* set by exec_inbox_open */
    struct inbox *inbox;   /* NULL: none, or the job has run */
    uint64_t inbox_lacked; /* bytes of the body that found none */

    /* set by the executor */
    enum roped_status status;
    struct roped_error error;
    struct exec_timing timing;
    struct lane *lane; /* of EXEC_TASK: that it runs on */

    /* executor's own */
    uint64_t accepted_ns;
    uint64_t bytes, work_bytes; /* placement_measure() */
    bool is_long; /* not for the lane that is kept for short ones */
    int device;   /* number of the one that it needs, or -1 */
    struct heap_node waits, expires;
    struct exec_job *next;

    /* where the call's tensors are. exec_job_init clears what is before its
     * port[], and not the 7 KiB from there on */
    struct placement placement;

    /* set by the caller where work is EXEC_CALL, by roped_call_init first */
    struct roped_call call;
};

struct exec_usage {
    int n_lanes, n_busy_lanes;
    int n_waiting;       /* at most queue_depth */
    int n_waiting_again; /* besides: jobs that are not the first of what they
                            belong to, which nothing refuses */
    uint64_t device_arena_bytes;
    uint64_t device_errors;
};

struct exec_device_usage {
    int index; /* the backend's */
    int n_lanes, n_busy_lanes;
    bool is_healthy;
    uint64_t arena_bytes, arena_limit_bytes;
    uint64_t region_bytes, region_limit_bytes;
    uint64_t scratch_bytes; /* host memory */
    uint64_t jobs, errors;  /* that ran; of them: failed in the device */
    uint64_t early_bytes;   /* of bodies: uploaded while they arrived */
    uint64_t fetched_bytes; /* of regions: copied from other devices */
    uint64_t captures, replays, fallbacks; /* recordings.h */
    double busy_seconds;                   /* of its lanes together */
};

ROPED_MUST_CHECK enum roped_status
exec_open(const struct roped_backend_api *api,
          const struct roped_backend_options *backend_options,
          const struct exec_options *options, struct executor **out,
          struct roped_error *err);

/* Refuses new jobs and waits until none waits or runs, or until
 * deadline_ns (CLOCK_MONOTONIC); what still waits then ends canceled. */
void exec_drain(struct executor *exec, uint64_t deadline_ns);

/* Refuses new jobs and ends those that wait, with this sentence, which outlives
 * the executor. What runs goes on. */
void exec_refuse(struct executor *exec, const char *why);

/* After drain: stops the lanes and frees everything. */
void exec_close(struct executor *exec);

/* Clears a job. */
static inline void exec_job_init(struct exec_job *job)
{
    memset(job, 0, offsetof(struct exec_job, placement.port));
}

/*
 * Accepts a job or refuses it: ROPED_BUSY when queue_depth jobs wait,
 * ROPED_DRAINING when no more are taken, unless the job is_continued. done runs
 * later, on a lane's thread.
 */
ROPED_MUST_CHECK enum roped_status exec_submit(struct executor *exec,
                                               struct exec_job *job,
                                               struct roped_error *err);

/* Ends the jobs that wait for a lane and is_gone of which is true: done runs on
 * this thread. Of those with a deadline. */
void exec_end_gone(struct executor *exec);

/*
 * Runs a short job, of at most inline_bytes of work (placement_measure), on the
 * calling thread if a lane is idle and nothing waits; done has run when it
 * returns true. False: nothing was done, submit it.
 */
bool exec_run_inline(struct executor *exec, struct exec_job *job);

/*
 * A body of a call that is resolved begins to arrive in pinned host memory:
 * from first to bytes of host is what devices may read. The call's places are
 * checked. Gives the job an inbox on the device where it will run, or none:
 * then it is uploaded when it runs. Never waits for the device, and allocates
 * nothing.
 */
void exec_inbox_open(struct executor *exec, struct exec_job *job,
                     const void *host, uint64_t first, uint64_t bytes);

/* The body has arrived up to end: chunks start on their way. Before the job is
 * submitted; by one thread at a time. */
void exec_inbox_advance(struct exec_job *job, uint64_t end);

/* For a job that ended without running, or never was submitted: takes its
 * inbox off, and the host block of exec_memory(), which is given back when no
 * copy reads it any more. The block is then empty. Does not wait. */
void exec_inbox_abandon(struct executor *exec, struct exec_job *job,
                        struct memory_block *block);

/* False when a new job would find no place now; and why none is taken at all,
 * or NULL: asked before a body is read. */
bool exec_has_room(struct executor *exec);
const char *exec_refusal(struct executor *exec);

/* False where one device is not. */
bool exec_is_healthy(struct executor *exec);

/* The number of the device whose error has cost the process its devices, and
 * its sentence; -1: all are healthy. */
int exec_lost_device(struct executor *exec, struct roped_error *why);

struct memory_pool *exec_memory(struct executor *exec);
struct tenants *exec_tenants(struct executor *exec);
struct tables *exec_tables(struct executor *exec);
struct programs *exec_programs(struct executor *exec);
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
