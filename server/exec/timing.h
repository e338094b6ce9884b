/*
 * timing.h - how long each phase of a job takes.
 */
#ifndef ROPED_EXEC_TIMING_H
#define ROPED_EXEC_TIMING_H

#include <stdint.h>

/* Nanoseconds of each phase of one job, as queue_ns; 0 where it did not
 * happen. */
struct exec_timing {
#define PHASE(id, name, statistic, meaning) uint64_t name##_ns;
#include "phase.def"
};

#endif
