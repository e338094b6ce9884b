/*
 * request.h - one HTTP request between its head and its reply. No sockets here:
 * transport.c feeds it, and sends what it returns.
 *
 *     request_begin    the head is complete: is the request taken?
 *     request_receive  bytes of the body, as often as there are some
 *     request_end      the body is complete: a reply, or a job to run first
 *     request_resume   that job has ended: a reply, or another job
 *
 * THREADS. One at a time: the connection's, or, while a job runs, a lane's.
 * What may take long is not done on the connection's thread, which has others
 * to serve: reading and writing much JSON and compressing are jobs too (the
 * answer's errand), with the deadlines of calls.
 */
#ifndef ROPED_HTTP_REQUEST_H
#define ROPED_HTTP_REQUEST_H

#include "http/body.h"
#include "http/call.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/reply.h"
#include "http/route.h"
#include "http/run.h"
#include "http/shared.h"
#include "http/transfer.h"

enum { REQUEST_ID_BYTES = 129 };

struct request {
    struct service *service;
    struct route_match match;
    struct caller caller;
    char id[REQUEST_ID_BYTES]; /* X-Request-Id, or "" */

    bool is_refused; /* the body is dropped, then the error is sent */
    bool is_admin;   /* it came to admin_listen */
    bool must_close; /* where the next request starts cannot be known */

    reply_then_fn *then; /* once the job has ended */
    void *context;       /* then's */

    /* its pieces: each sees of the others what request_init lends it */
    struct body body;
    struct transfer transfer;
    struct run run;

    /* of these a new request clears the first parts, or none: request_init */
    struct call call;
    struct answer answer;
    struct head head;
    struct exec_job job; /* a call, a run, or a transfer of a region */
};

/* For a new request line; and gives back everything that the request holds. */
void request_init(struct request *request, struct service *service);
void request_fini(struct request *request);

/* request->head is filled. False: the refusal must be sent now, and nothing
 * more be read (request_end makes it). */
bool request_begin(struct request *request);

/* One piece of the body. False: the connection is to be closed without an
 * answer, because the client sends what nobody reads. */
bool request_receive(struct request *request, const char *data, size_t bytes);

struct reply request_end(struct request *request);
struct reply request_resume(struct request *request);

/* A job of the request has ended, on whichever thread ran it: gives back what
 * it used and the answer does not need. */
void request_job_ended(struct request *request, struct exec_job *job);

/* Until when a job may wait for a lane. */
uint64_t request_deadline_ns(const struct request *request);

#endif
