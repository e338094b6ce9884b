/*
 * lane_program.h - a run of a program on a lane: its steps one after another
 * on the lane's queue, with one wait at their end.
 */
#ifndef ROPED_EXEC_LANE_PROGRAM_H
#define ROPED_EXEC_LANE_PROGRAM_H

#include "exec/lane.h"
#include "exec/program_run.h"

/* Runs job->run; fills error and timing. Nothing of a region is written before
 * every step has been planned. */
ROPED_MUST_CHECK enum roped_status lane_program(struct lane *lane,
                                                struct exec_job *job);

#endif
