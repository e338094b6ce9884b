/*
 * recordings.h - the launches of programs that a lane has seen before, recorded
 * by the backend, so that they are repeated at less than their cost.
 *
 * A recording is found by what its launches depend on (roped_chain_key), all
 * addresses included: it is repeated where a run would launch the very same,
 * and nowhere else. So recordings hold neither regions nor tables: one that
 * points at memory that is gone is not found any more, unless a run has other
 * memory there, which is then as good. What is not found for long is dropped.
 *
 * The first run of its kind is launched in order, so that every kernel has been
 * loaded and the queue has its memory, and the second is recorded. Where only a
 * table has moved, as one that grows, the recording is replaced at once. A lane
 * whose runs differ all the time would record and never repeat: so it earns a
 * recording by eight runs, and begins with as many as it keeps.
 *
 * Whoever has the lane has its recordings.
 */
#ifndef ROPED_EXEC_RECORDINGS_H
#define ROPED_EXEC_RECORDINGS_H

#include "exec/programs.h"

#include <roped/backend.h>

#include <stdatomic.h>
#include <stdint.h>

struct recordings;

/* Of a device. A fallback is a run in order of a program that the lane has a
 * recording of, or that cannot be recorded. */
struct recording_counts {
    atomic_uint_least64_t captures, replays, fallbacks;
};

/* Of a backend that has recordings, for a queue, which outlives them. */
ROPED_MUST_CHECK enum roped_status
recordings_open(const struct roped_backend_api *api, struct roped_queue *queue,
                struct recording_counts *counts, struct recordings **out,
                struct roped_error *err);
void recordings_close(struct recordings *recordings);

/* roped_chain_launch of a run of the program, by a recording where there is
 * one. */
ROPED_MUST_CHECK enum roped_status
recordings_launch(struct recordings *recordings, const struct program *program,
                  const struct roped_chain *chain, struct roped_error *err);

#endif
