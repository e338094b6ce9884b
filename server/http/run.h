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
    int put_code;                  /* the answer's of a PUT */
};

/* If-Match and If-None-Match. */
struct program_conditions conditions_of(const struct head *head);

/* The request is a run: finds the program of the path, if it has one, and holds
 * it to the conditions. Failures are in the answer's error. */
ROPED_MUST_CHECK enum roped_status run_begin(struct run *run);

/* The same for v2, where call_begin has found no operator of the path's name;
 * that is its failure where there is no program either. */
ROPED_MUST_CHECK enum roped_status run_begin_model(struct run *run);

/* Gives back its regions and tables, when the job has ended; and when there is
 * a reply, before its blocks, everything. */
void run_give_regions(struct run *run);
void run_give(struct run *run);

#endif
