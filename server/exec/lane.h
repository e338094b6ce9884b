/*
 * lane.h - one lane of a device: a queue of the backend (a stream), device
 * memory for one call, a thread, and the steps that take a job from host memory
 * to host memory.
 *
 * Whoever makes a lane busy has it: its thread, or one that runs a short job
 * itself.
 */
#ifndef ROPED_EXEC_LANE_H
#define ROPED_EXEC_LANE_H

#include "exec/caches.h" /* CACHE_LINE */
#include "exec/device.h"
#include "exec/executor.h"
#include "exec/slices.h"

#include <pthread.h>

enum lane_state { LANE_IDLE, LANE_BUSY };

struct lane {
    _Alignas(CACHE_LINE) atomic_int state; /* enum lane_state */
    atomic_uint_least64_t bytes; /* what the job that runs adds to those of the
                                    device */
    bool has_long;               /* is that a long one? */
    struct device *device;
    struct roped_queue *queue; /* that of the job's inbox meanwhile */
    struct roped_queue *side[SLICE_SIDES - 1]; /* for slices; NULL until there
                                                  are any */
    unsigned char *arena;                      /* device memory */
    uint64_t arena_bytes;
    void *scratch; /* host memory that the device reaches: aux */
    size_t scratch_bytes;
    struct recordings *recordings; /* for its own queue; NULL: the backend has
                                      none */
    atomic_uint_least64_t jobs, busy_ns; /* ever */

    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake;  /* it has a job, or closing */
    struct exec_job *job; /* for its thread to take; guarded by lock */
};

/* A lane without a thread. Also of one that is half open: lane_fini. */
ROPED_MUST_CHECK enum roped_status
lane_init(struct lane *lane, struct device *device, struct roped_error *err);
void lane_fini(struct lane *lane);

/* Frees the arena. The lane must be idle, or the calling thread's own. */
void lane_release_arena(struct lane *lane);

/* Says how long a job has waited, and whether it is too late to run it. */
ROPED_MUST_CHECK enum roped_status lane_check(struct exec_job *job,
                                              uint64_t now_ns);

/* Runs a job to its end on the calling thread: fills status, error, timing, and
 * the data pointers of tensors in regions. */
void lane_run(struct lane *lane, struct exec_job *job);

/* Starts to copy bytes of an input to the memory of the lane's device, on one
 * of its queues: from the host, or from a region of another device. */
ROPED_MUST_CHECK enum roped_status
lane_bring(const struct lane *lane, struct roped_queue *queue,
           const struct placed *input, void *to, const void *from, size_t bytes,
           struct roped_error *err);

/* Scratch of at least bytes; and an arena, which holds what nobody has written.
 */
ROPED_MUST_CHECK enum roped_status
lane_need_scratch(struct lane *lane, size_t bytes, struct roped_error *err);
ROPED_MUST_CHECK enum roped_status
lane_take_arena(struct lane *lane, struct exec_job *job, uint64_t bytes);

/* Waits for the device, also after a failure: the job's memory must not be
 * touched any more. */
ROPED_MUST_CHECK enum roped_status lane_await(struct lane *lane,
                                              enum roped_status status,
                                              struct roped_error *err);

/*
 * Where a job is on the queue; and how long it took. Marks cost more than a
 * small kernel, so a job without copies (placement.has_copies) is timed by the
 * host's clock around launch and wait, all of it as kernel time.
 */
enum {
    LANE_MARK_START,
    LANE_MARK_UPLOADED,
    LANE_MARK_COMPUTED,
    LANE_MARK_DOWNLOADED,
    LANE_MARK_BEFORE_STEP, /* of a program, where its steps are timed */
    LANE_MARK_AFTER_STEP
};
ROPED_MUST_CHECK enum roped_status lane_mark(struct lane *lane,
                                             struct exec_job *job, int at);
void lane_read_timing(struct lane *lane, struct exec_job *job,
                      uint64_t start_ns);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t lane_now_ns(void);

#endif
