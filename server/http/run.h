/*
 * run.h - what a run of a program has beside what call.h says: its program, and
 * the memory of its chain.
 */
#ifndef ROPED_HTTP_RUN_H
#define ROPED_HTTP_RUN_H

#include "exec/program_run.h"
#include "http/call.h"

struct run {
    struct call *call; /* the request's, for what call.h lends it */

    struct program *program; /* NULL: not known yet */
    struct program_run *run; /* in memory */
    struct memory_block memory;
    char etag[PROGRAM_ETAG_BYTES]; /* for the answer, or "" */
};

/* The request is a run: finds the program of the path, if it has one, and holds
 * it to If-Match. Failures are in the answer's error. */
ROPED_MUST_CHECK enum roped_status run_begin(struct run *run);

/* The same for v2, where call_begin has found no operator of the path's name;
 * that is its failure where there is no program either. */
ROPED_MUST_CHECK enum roped_status run_begin_model(struct run *run);

/* As soon as the header is there: parses, binds, resolves every step. */
ROPED_MUST_CHECK enum roped_status run_decode(struct run *run);

/* Host memory that its index values in regions take; and the job, once it has
 * that and the answer has its place. */
uint64_t run_value_bytes(const struct run *run);
void run_fill_job(struct run *run, bool is_pinned);

/* Gives back its regions and tables, when the job has ended; and when there is
 * a reply, before its blocks, everything. */
void run_give_regions(struct run *run);
void run_give(struct run *run);

/* For the statistics of its program. */
void run_count(const struct run *run, const struct metrics_call *counted);

#endif
