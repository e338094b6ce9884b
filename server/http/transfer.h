/*
 * transfer.h - the part of a request that fills a resident region, or reads it.
 *
 * A PUT takes its memory when its header is there, stores when its body is,
 * and is found under its name only then: whoever uses a region of that name
 * meanwhile has the one before.
 */
#ifndef ROPED_HTTP_TRANSFER_H
#define ROPED_HTTP_TRANSFER_H

#include "exec/executor.h"
#include "http/body.h"
#include "http/head.h"
#include "http/reply.h"

struct transfer {
    /* the request's */
    struct executor *exec;
    const struct head *head;
    const struct body *body;
    const char *name;      /* of the path */
    struct tenant *tenant; /* whose names it uses */
    bool is_guarded;       /* then 'tenant' in the query is the gate's */
    struct answer *answer;
    struct roped_error *error; /* the answer's: why it is refused */
    struct exec_job *job;

    struct region *region;   /* held until the answer; or NULL */
    struct memory_block out; /* of a GET: the answer */
    size_t out_bytes;
};

/* The header of a PUT is complete: reads it, and takes the memory. */
ROPED_MUST_CHECK enum roped_status transfer_decode(struct transfer *transfer);

/* The body of a PUT is complete; a GET. Why not is in transfer->error. */
struct reply transfer_put(struct transfer *transfer);
struct reply transfer_get(struct transfer *transfer);

/* A region as JSON. sees: for whom; everyone is told whose it is. */
void transfer_write_info(struct buffer *buffer, const struct tenant *sees,
                         const struct region_info *info);

#endif
