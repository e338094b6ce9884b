/*
 * request.h - one HTTP request on its way: headers, body, call, answer.
 *
 * The access handler of the HTTP library is called several times for one
 * request; 'state' says where it is. A request is used by one thread at a
 * time: the connection's, or, while the connection is suspended, the lane's.
 */
#ifndef ROPED_HTTP_REQUEST_H
#define ROPED_HTTP_REQUEST_H

#include "exec/executor.h"
#include "http/route.h"
#include "metrics.h"
#include "wire/kserve.h"

#include <microhttpd.h>
#include <stdatomic.h>

enum { REQUEST_HEADER_BYTES = 4096, REQUEST_ID_BYTES = 129 };

/* MHD_Result came with libmicrohttpd 0.9.71 */
typedef enum MHD_Result mhd_result;

/* The headers that decide something; the first of each name. */
enum request_header_name {
    HEADER_ACCEPT_ENCODING,
    HEADER_AUTHORIZATION,
    HEADER_CONTENT_ENCODING,
    HEADER_CONTENT_LENGTH,
    HEADER_CONTENT_TYPE,
    HEADER_EXPECT,
    HEADER_INFERENCE_LENGTH, /* Inference-Header-Content-Length */
    HEADER_TRANSFER_ENCODING,
    HEADER_X_REQUEST_ID,
    N_REQUEST_HEADERS
};

enum request_state {
    REQUEST_RECEIVING,
    REQUEST_RUNNING, /* suspended: the executor has the job */
    REQUEST_FINISHED /* the job is done, the answer is not queued yet */
};

/* One open connection, for the absolute deadlines. */
struct peer {
    int fd;
    _Atomic uint64_t deadline_ns; /* 0: none */
    struct peer *previous, *next;
};

struct request {
    struct daemon *daemon;
    struct MHD_Connection *connection;
    struct peer *peer;
    struct route_match match;
    const char *method;
    const char *known[N_REQUEST_HEADERS]; /* values, the library's; or NULL */
    atomic_int state;                     /* enum request_state */
    bool has_answered;
    int code;                  /* HTTP code of the answer; 0: none yet */
    char id[REQUEST_ID_BYTES]; /* X-Request-Id, or "" */

    /* a refusal that waits for the rest of the body to be dropped */
    int refusal_code; /* 0: none */
    bool must_close;  /* where the next request starts cannot be known */
    struct roped_error error;
    uint64_t drop_until_ns;

    /* the body */
    uint64_t started_ns, first_byte_ns, received_ns;
    uint64_t content_length; /* of an open-ended body: known at its end */
    uint64_t received;       /* of a compressed body: inflated */
    bool has_length, is_chunked, is_compressed;
    bool is_open_ended; /* chunked or compressed: its end says how long it is */
    uint64_t body_limit;
    const char *limit_name; /* for people */
    struct inflater *inflater;
    unsigned char prefix[8]; /* safetensors: until its length is complete */
    size_t header_bytes;     /* prefix + JSON; v2: JSON; 0: not known yet */
    bool is_raw;             /* v2: no JSON, the body is the one input */
    size_t body_at;          /* where in the block the body starts */
    bool is_decoded;
    struct memory_block body;

    /* the call and its answer */
    const struct roped_op *op;
    enum metrics_transport transport;
    bool has_fp8, fp8_as_u8;
    struct memory_block json, values, out;
    uint32_t kept; /* bit i: output i stays in a region */
    size_t answer_at, answer_bytes;
    route_handler_fn *answer; /* once the job has ended */

    struct region *region; /* of /v1/regions: held until the answer */

    struct request *next; /* free list */

    /* of these a new request clears the first parts: see request_new */
    struct exec_job job;
    struct kserve_request v2;
    char header[REQUEST_HEADER_BYTES]; /* the answer's, being written */
};

/* A request for a new call of the access handler; NULL: out of memory. */
struct request *request_new(struct daemon *daemon,
                            struct MHD_Connection *connection,
                            const char *method, const char *path);

/* Gives back everything that the request holds. */
void request_free(struct request *request);

/* The first call: decides from the headers alone. */
mhd_result request_begin(struct request *request);

/* A call with body bytes: takes all of them. */
mhd_result request_receive(struct request *request, const char *data,
                           size_t bytes);

/* A call without: the body is complete, or the job is. */
mhd_result request_finish(struct request *request);

/* Header value, or NULL. */
const char *request_header(const struct request *request,
                           enum request_header_name name);

/* Digits alone, up to 2^63 - 1. */
bool request_parse_length(const char *text, uint64_t *out);

/* ---- body.c: where the pieces of a body go. Failures are in request->error */

/* From the headers: takes memory. */
enum roped_status body_begin(struct request *request);

/* One piece. A call is decoded as soon as its header is there. */
enum roped_status body_receive(struct request *request, const char *data,
                               size_t bytes);

/* That was all: now lengths are known that were not before. */
enum roped_status body_end(struct request *request);

/* ---- call.c: the part of a request that is a call of an operator */

/* Finds the operator of the path; false with error set: unknown. */
bool call_begin(struct request *request);

/* As soon as the header is there: parses, binds, resolves. */
enum roped_status call_decode(struct request *request);

/* Handler of calls: the body is complete. Starts the job. */
void call_start(struct request *request);

/* call_demo.c: a job's task that computes a call of a demo model. */
enum roped_status call_run_demo(struct exec_job *job);

/* Counts a call of a known operator that was refused before it ran. */
void call_count_refusal(struct request *request);

#endif
