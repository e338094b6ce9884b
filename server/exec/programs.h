/*
 * programs.h - programs by name: PUT by a client, kept until DELETE. A program
 * is a definition and the document that said it; what runs of it need is each
 * run's own (program_run.h).
 */
#ifndef ROPED_EXEC_PROGRAMS_H
#define ROPED_EXEC_PROGRAMS_H

#include "exec/lost.h"
#include "exec/memory.h"
#include "exec/tenants.h"
#include "exec/timing.h"

#include <roped/program.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct programs;

enum { PROGRAM_ETAG_BYTES = 20, PROGRAM_IDLE_RUNS = 16 };

/* Totals of a program's runs, since it was put. */
struct program_statistics {
    uint64_t last_ms; /* Unix time of the last that went well, 0: none yet */
    uint64_t n_succeeded, succeeded_ns, n_failed, failed_ns;
    struct exec_timing timing; /* of those that went well */
};

/* What a program is; of one that is stored it never changes, but for runs that
 * have ended. */
struct program {
    struct tenant *tenant;
    char name[ROPED_NAME_BYTES];
    char etag[PROGRAM_ETAG_BYTES]; /* with its quotes */
    struct roped_program *definition;
    char *document;
    size_t document_bytes;
    int references; /* one is the list's; guarded by its lock */
    struct program *next;

    pthread_mutex_t lock; /* guards the following */
    struct memory_block idle[PROGRAM_IDLE_RUNS];
    int n_idle;
    struct program_statistics statistics;
};

struct programs_usage {
    int n;
    uint64_t bytes; /* of definitions and documents, about */
};

/* Memory of runs is the pool's, which outlives the programs. */
ROPED_MUST_CHECK enum roped_status programs_open(struct memory_pool *pool,
                                                 struct programs **out,
                                                 struct roped_error *err);
void programs_close(struct programs *programs);

/*
 * What a request asks of the program that there is, by its headers of these
 * names (RFC 9110, 13.1): NULL, "*" for any program, or ETags with commas
 * between them. A weak ETag, W/"...", is one to if_none_match alone.
 */
struct program_conditions {
    const char *if_match, *if_none_match;
};

/* ROPED_MISMATCH unless the program, or that there is none of the name (NULL),
 * is what they ask for. */
ROPED_MUST_CHECK enum roped_status
program_meets(const struct program *program, const char *name,
              const struct program_conditions *conditions,
              struct roped_error *err);

/* Has the client, by its if_none_match, the document already? */
bool program_is_known(const struct program *program,
                      const struct program_conditions *conditions);

/* The ETag of a document. */
void program_etag(const char *document, size_t bytes,
                  char etag[PROGRAM_ETAG_BYTES]);

/*
 * Stores a program, which owns the definition from now on, also where it is
 * refused, and a copy of the document. One of the same name and tenant is
 * replaced: runs that hold it finish with it. ROPED_MISMATCH: the one before
 * does not meet the conditions; ROPED_BUSY: there are too many, or more than
 * the tenant's quota.
 */
struct program_text {
    const char *name, *document;
    size_t document_bytes;
    struct program_conditions conditions;
};
ROPED_MUST_CHECK enum roped_status
programs_put(struct programs *programs, struct tenant *tenant,
             const struct program_text *text, struct roped_program *definition,
             bool *replaced, struct roped_error *err);

/* One that is in no list; the name may be "". The definition as above. */
ROPED_MUST_CHECK enum roped_status
programs_make(const struct program_text *text, struct roped_program *definition,
              struct program **out, struct roped_error *err);

/* Also of one that was lost; ROPED_NO_PROGRAM for an unknown name,
 * ROPED_MISMATCH as above. */
ROPED_MUST_CHECK enum roped_status
programs_delete(struct programs *programs, const struct tenant *tenant,
                const char *name, const struct program_conditions *conditions,
                struct roped_error *err);

/* Takes a program, or ROPED_NO_PROGRAM, or ROPED_PROGRAM_LOST;
 * programs_give returns it. It outlives its DELETE. */
ROPED_MUST_CHECK enum roped_status
programs_take(struct programs *programs, const struct tenant *tenant,
              const char *name, struct program **out, struct roped_error *err);
void programs_give(struct programs *programs, struct program *program);

/*
 * The memory of a run that has ended is kept with its program, at most
 * PROGRAM_IDLE_RUNS of each and a sixteenth of the pool's budget of all, for a
 * run to come: its chain knows what it was resolved to. False: there is none;
 * keep empties the block that it keeps.
 */
bool programs_take_idle(struct programs *programs, struct program *program,
                        struct memory_block *out);
void programs_keep_idle(struct programs *programs, struct program *program,
                        struct memory_block *block);

/* Counts a run that took so long in all; and what was counted. */
void program_count(struct program *program, enum roped_status status,
                   uint64_t total_ns, const struct exec_timing *timing);
void program_statistics(struct program *program,
                        struct program_statistics *out);

/* Calls visit for every program that the tenant sees, in name order, under the
 * lock. */
void programs_each(struct programs *programs, const struct tenant *tenant,
                   void (*visit)(void *context, struct program *program),
                   void *context);

/* Names of programs that went with a device, until they are put or deleted. */
struct lost *programs_lost(struct programs *programs);

void programs_usage(struct programs *programs, struct programs_usage *out);

#endif
