/*
 * reply.h - what a handler returns: the answer to a request, or the job that
 * has to run before there is one. Nothing is sent here: transport.c sends each
 * reply, once.
 *
 * The bytes of a reply belong to its request, whose blocks live until they are
 * sent, or for ever.
 */
#ifndef ROPED_HTTP_REPLY_H
#define ROPED_HTTP_REPLY_H

#include "metrics.h"
#include "wire/buffer.h"

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exec_job;
struct request;
struct reply;

/* Makes a reply. On the thread of the connection, or on a lane's for what takes
 * its time: see request.h. */
typedef struct reply reply_fn(struct request *request);

struct reply {
    int code; /* of HTTP; 0: run job, then ask `then` */
    const char *type;
    const void *data;
    size_t bytes;
    size_t json_bytes;    /* of a v2 answer with binary tensors, else 0 */
    const char *encoding; /* Content-Encoding, or NULL */
    const char *policy;   /* Content-Security-Policy of a page, or NULL */
    struct exec_job *job;
    reply_fn *then;
};

/* The HTTP code of a status. */
int reply_code(enum roped_status status);

/* The one answer to what is refused: {"error": "...", "code": "..."} with the
 * HTTP status of the error's. It becomes request->error, for the log. */
struct reply reply_status(struct request *request,
                          const struct roped_error *err);

/* Bytes that live as long as the request. */
struct reply reply_bytes(int code, const char *type, const void *data,
                         size_t bytes);

/* No body: v2's success of what has no result. */
struct reply reply_empty(void);

/*
 * A document of the request's own memory: begin the buffer, write, and return
 * what reply_text makes of it. 503 where there was no memory for it. One at a
 * time.
 */
void reply_begin_text(struct request *request, struct buffer *buffer);
struct reply reply_text(struct request *request, int code, const char *type,
                        const struct buffer *buffer);
struct reply reply_json(struct request *request, const struct buffer *buffer);

/* The job runs first, on this thread or on a lane; then `then` makes the reply,
 * on the connection's thread, however the job ended. */
struct reply reply_after(struct exec_job *job, reply_fn *then);

/* The same with request->errand: the task runs on a lane, and takes as long as
 * moving so many bytes. */
struct reply reply_errand(struct request *request,
                          enum roped_status (*task)(struct exec_job *job),
                          uint64_t bytes, reply_fn *then);

/* May it be compressed, by the settings and for this client? Then its bytes
 * must be such as nobody writes to meanwhile. */
bool reply_may_pack(const struct request *request);

/* The same bytes compressed, where the operator and the client want that and it
 * makes them fewer. Much of it takes its time: then a job comes first. */
struct reply reply_pack(struct request *request, const struct reply *reply);

/* How long each phase of a request's call took. */
void reply_phases(const struct request *request, uint64_t ns[N_PHASES]);

/* Headers of a reply besides those of its body: each is handed to emit. */
typedef void reply_header_fn(void *context, const char *name,
                             const char *value);
void reply_headers(const struct request *request, const struct reply *reply,
                   reply_header_fn *emit, void *context);

#endif
