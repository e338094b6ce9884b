/*
 * call.h - the part of a request that is a call of an operator: from its
 * header to a job, from the finished job to its reply.
 */
#ifndef ROPED_HTTP_CALL_H
#define ROPED_HTTP_CALL_H

#include "http/protocol.h"
#include "http/reply.h"

enum { CALL_ALIGNMENT = 64 }; /* of outputs in the answer's block */

struct call {
    const struct protocol *protocol; /* NULL: the request is no call */
    const struct roped_op *op;       /* NULL: none, or not known */
    bool has_fp8, fp8_as_u8;
    uint32_t kept;       /* bit i: output i stays in a region */
    uint64_t timeout_us; /* longest wait for a lane; 0: the server's */
    size_t answer_at;    /* in request->out */
    size_t answer_bytes, answer_json_bytes;
};

/* Finds the operator of the path; ROPED_NO_OPERATOR. */
enum roped_status call_begin(struct request *request);

/* As soon as the header is there: parses, binds, resolves. */
enum roped_status call_decode(struct request *request);

/* Handler of calls: the body is complete and decoded. */
reply_fn call_start;

/* call_demo.c: a job's task that computes a call of a demo model. */
enum roped_status call_run_demo(struct exec_job *job);

/* Counts a call of a known operator that was refused before it ran. */
void call_count_refusal(struct request *request);

/* Is output i part of the answer's body? */
bool call_sends(const struct request *request, int output);

/* The named table gives the angles; once. */
enum roped_status call_use_table(struct request *request, const char *name);

/* For protocols: counts the call and returns its reply; and the same for the
 * block that the job has filled. request->error.status says why it failed. */
struct reply call_finish(struct request *request, struct reply reply);
struct reply call_block(struct request *request, const char *type);

/* Says that the path's operator is none of /v1, and which one is near. */
enum roped_status call_no_operator(const struct request *request,
                                   struct roped_error *err);

#endif
