/*
 * call.h - the part of a request that is a call of an operator or a run of a
 * program: from its header to a job, from the finished job to its reply. What a
 * run has besides is in run.h.
 */
#ifndef ROPED_HTTP_CALL_H
#define ROPED_HTTP_CALL_H

#include "http/body.h"
#include "http/head.h"
#include "http/protocol.h"
#include "http/reply.h"
#include "http/shared.h"
#include "wire/kserve.h"

enum { CALL_ALIGNMENT = 64 }; /* of outputs in the answer's block */

struct call;
struct run;

/* What differs between a call of an operator and a run of a program: a row of
 * each. */
struct call_kind {
    /* The header is there: parses, binds, resolves; says what is kept. */
    enum roped_status (*decode)(struct call *call);

    /* Where the job finds a tensor; and it is in that region from now on. */
    struct exec_place *(*place)(struct call *call, bool is_output, int index);
    void (*took)(struct call *call, const struct region_ref *ref);

    /* Host memory that index values in regions take; and the job, once the call
     * has that and a place for its answer. */
    uint64_t (*value_bytes)(const struct call *call);
    void (*fill_job)(struct call *call, bool is_pinned);

    /* Beside the metrics. */
    void (*count)(const struct call *call, const struct metrics_call *counted);
};

/* What timing=steps asks for; ns NULL: nothing. */
struct step_times {
    uint64_t *ns;
    int n;
};

struct call {
    /* the request's, set before call_begin */
    struct service *service;
    const struct head *head;
    const struct body *body;
    const char *name, *version; /* of the path; version "": none */
    struct tenant *tenant;      /* whose names it uses */
    struct answer *answer;
    struct roped_error *error; /* the answer's: why it is refused */
    struct exec_job *job;
    const struct protocol *protocol;

    const struct roped_op *op; /* NULL: none, or not known */
    struct run *run;           /* NULL: it is no run of a program */
    const struct call_kind *kind;
    struct signature signature; /* of op, or of the program once its run has
                                   memory; what is bound to the job */
    bool has_fp8, fp8_as_u8;
    bool has_timing;     /* timing=steps; of a run */
    uint64_t kept;       /* bit i: output i stays in a region */
    uint64_t timeout_us; /* longest wait for a lane; 0: the server's */
    struct memory_block json, values, out; /* its own; out: the answer's */
    struct memory_block times;             /* where these are: */
    struct step_times steps;
    size_t answer_at; /* in out */
    size_t answer_bytes, answer_json_bytes;
    struct kserve_request v2; /* call_init leaves it as it is */
};

static inline void call_init(struct call *call)
{
    memset(call, 0, offsetof(struct call, v2));
}

/* Gives back the regions of its job. */
void call_give_regions(struct call *call);

/* Finds the operator of the path; ROPED_NO_OPERATOR. Failures are in
 * call->error. */
ROPED_MUST_CHECK enum roped_status call_begin(struct call *call);

/* As soon as the header is there: parses, binds, resolves. */
ROPED_MUST_CHECK enum roped_status call_decode(struct call *call);

/* It was decoded, and where its body lies will not change any more: from now on
 * the body may go on to the device as it arrives. */
void call_open_inbox(struct call *call);

/* The body is complete, and decoded if it has a header: the job, or why there
 * is none. */
struct reply call_start(struct call *call);

/* Counts a call or run that was refused before it was a job. */
void call_count_refusal(const struct call *call);

/* Is output i part of the answer's body? */
bool call_sends(const struct call *call, int output);

/* The named table gives the angles; once. */
ROPED_MUST_CHECK enum roped_status call_use_table(struct call *call,
                                                  const char *name);

/* For protocols: counts the call and returns its reply; and the same for the
 * block that the job has filled. call->error->status says why it failed. */
struct reply call_finish(const struct call *call, struct reply reply);
struct reply call_block(const struct call *call, const char *type);

/* How long each of its phases took. */
void call_phases(const struct call *call, uint64_t ns[N_PHASES]);

/* Says that there is no operator of this name in /v1, and which one is near. */
enum roped_status call_no_operator(const char *name, struct roped_error *err);

#endif
