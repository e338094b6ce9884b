/*
 * slices.h - a call that is cut by rows, so that both directions of the link to
 * a device are busy at once: while one slice comes back the next one goes up.
 *
 * Slices take turns on a few queues. Each is a call of its own
 * (roped_call_slice); those of one queue follow one another in the same memory
 * of the device, so the call needs room for a slice of each queue and not for
 * all of it.
 */
#ifndef ROPED_EXEC_SLICES_H
#define ROPED_EXEC_SLICES_H

#include "exec/executor.h"

/* Two would do if upload, kernel and download followed at once. */
enum { SLICE_SIDES = 3 };

struct lane;

struct slices {
    int n; /* 0: the call stays in one piece */
    int64_t rows, step;
    uint64_t aux_bytes;  /* of each */
    uint64_t side_bytes; /* of the device's memory, for each queue */
    uint64_t room[ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS]; /* of any slice; 0: the
                                                            tensor is not */
};

/* How to cut a planned call whose tensors are settled (placement_settle). */
struct slices slices_of(const struct exec_job *job,
                        const struct device *device);

/* What it needs of a lane's arena, and of its scratch. */
uint64_t slices_arena_bytes(const struct slices *slices);
size_t slices_scratch_bytes(const struct slices *slices);

/* Runs it on a lane that has these; waits for the device. */
ROPED_MUST_CHECK enum roped_status slices_run(const struct slices *slices,
                                              struct lane *lane,
                                              struct exec_job *job);

#endif
