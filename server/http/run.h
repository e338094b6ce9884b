/*
 * run.h - the part of a request that is a run of a program: from its header to
 * a job, from the finished job to its reply. What it shares with calls it
 * borrows from struct call.
 */
#ifndef ROPED_HTTP_RUN_H
#define ROPED_HTTP_RUN_H

#include "exec/program_run.h"
#include "http/call.h"

struct run {
    struct call *call; /* the request's, for what call.h lends it */
    bool is_run;       /* the request is one */

    struct program *program; /* NULL: not known yet */
    struct program_run *run; /* in memory */
    struct memory_block memory, values, out;
    char etag[PROGRAM_ETAG_BYTES]; /* for the answer, or "" */
    bool has_fp8, fp8_as_u8;
    uint64_t kept;    /* bit i: output i stays in a region */
    size_t answer_at; /* in out */
    size_t answer_bytes;
};

/* Finds the program of the path, if it has one, and holds it to If-Match.
 * Failures are in the answer's error. */
ROPED_MUST_CHECK enum roped_status run_begin(struct run *run);

/* As soon as the header is there: parses, binds, resolves every step. */
ROPED_MUST_CHECK enum roped_status run_decode(struct run *run);

/* The body is complete: the job, or why there is none. */
struct reply run_start(struct run *run);

/* Gives back its program, regions and tables; when the job has ended, and in
 * any case before its blocks. */
void run_give(struct run *run);

/* Counts a run that was refused before it was a job. */
void run_count_refusal(const struct run *run);

#endif
