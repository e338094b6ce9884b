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

#include "exec/executor.h"
#include "wire/buffer.h"

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REPLY_TEXT_BYTES = 4096,
    REPLY_TEXT_WORK = 64 /* bytes moved in the time of a byte of text */
};

/* Makes a reply once a job has ended; on the connection's thread. */
typedef struct reply reply_then_fn(void *context);

struct reply {
    int code; /* of HTTP; 0: run job, then ask `then` */
    const char *type;
    const void *data;
    size_t bytes;
    size_t json_bytes;    /* of a v2 answer with binary tensors, else 0 */
    const char *encoding; /* Content-Encoding, or NULL */
    const char *policy;   /* Content-Security-Policy of a page, or NULL */
    struct exec_job *job;
    reply_then_fn *then;
    void *context; /* then's */
};

/* What the reply to a request is made of. */
struct answer {
    struct memory_pool *pool;
    const char *accepted;       /* Accept-Encoding; NULL: compress nothing */
    struct memory_block text;   /* of a document that scratch does not hold */
    struct memory_block packed; /* compressed */
    struct reply pending;       /* what an errand has made */
    struct exec_job errand;     /* long work that is no call */
    struct roped_error error;   /* why the request is refused */
    char scratch[REPLY_TEXT_BYTES]; /* short answers, headers of long ones */
};

/* For a new request; what it holds then is given back by its owner. */
void answer_init(struct answer *answer, struct memory_pool *pool);

/* The HTTP code of a status. */
int reply_code(enum roped_status status);

/* The one answer to what is refused: {"error": "...", "code": "..."} with the
 * HTTP status of the error's. It becomes answer->error, for the log. */
struct reply reply_status(struct answer *answer, const struct roped_error *err);

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
void reply_begin_text(struct answer *answer, struct buffer *buffer);
struct reply reply_text(int code, const char *type,
                        const struct buffer *buffer);
struct reply reply_json(const struct buffer *buffer);

/* The job runs first, on this thread or on a lane; then `then` makes the reply,
 * however the job ended. */
struct reply reply_after(struct exec_job *job, reply_then_fn *then,
                         void *context);

/* The same with answer->errand: the task runs on a lane, with context in
 * job->context, and takes as long as moving so many bytes. */
struct reply reply_errand(struct answer *answer,
                          enum roped_status (*task)(struct exec_job *job),
                          uint64_t bytes, reply_then_fn *then, void *context);

/* May it be compressed, by the settings and for this client? Then its bytes
 * must be such as nobody writes to meanwhile. */
bool reply_may_pack(const struct answer *answer);

/* The same bytes compressed, where the operator and the client want that and it
 * makes them fewer. Much of it takes its time: then a job comes first. */
struct reply reply_pack(struct answer *answer, const struct reply *reply);

#endif
