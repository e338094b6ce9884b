/*
 * lane.h - one lane: a queue of the backend, memory on the device for one
 * call, and the steps that take a job from host memory to host memory.
 */
#ifndef ROPED_EXEC_LANE_H
#define ROPED_EXEC_LANE_H

#include "exec/device.h"
#include "exec/executor.h"
#include "exec/stage.h"

struct lane {
    struct device *device;
    struct roped_queue *queue;
    unsigned char *arena; /* device memory */
    uint64_t arena_bytes;
    void *scratch; /* host memory that the device reaches: aux */
    size_t scratch_bytes;
    struct roped_call call;              /* the job's, with device pointers */
    bool has_copies;                     /* this job's: marks were set */
    struct stage *stage;                 /* this job's, or NULL */
    uint32_t staged_in, staged_out;      /* bit i: there, nothing to upload */
    uint32_t resident_in, resident_out;  /* bit i: already on the device */
    atomic_uint_least64_t jobs, busy_ns; /* ever */
};

ROPED_MUST_CHECK enum roped_status
lane_init(struct lane *lane, struct device *device, struct roped_error *err);
void lane_fini(struct lane *lane);

/* Frees the arena. The lane must be idle, or the calling thread's own. */
void lane_release_arena(struct lane *lane);

/* Runs a job to its end on the calling thread: fills status, error, timing, and
 * the data pointers of tensors in regions. */
void lane_run(struct lane *lane, struct exec_job *job);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t lane_now_ns(void);

#endif
