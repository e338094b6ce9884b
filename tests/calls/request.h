/*
 * request.h - a random call as a request: over /v1 or v2, its tensors in the
 * body or in a region with offsets and strides, its outputs in the answer or in
 * the region.
 */
#ifndef ROPED_TESTS_CALLS_REQUEST_H
#define ROPED_TESTS_CALLS_REQUEST_H

#include "calls/random_call.h"
#include "http/harness.h"
#include "wire/buffer.h"

/* Where a tensor is: in the request or answer, or in the region. */
struct place {
    bool is_in_region;
    size_t at, span;
    int64_t stride; /* elements; 0: packed */
};

/* How a call is sent. */
struct manner {
    const char *region; /* its name */
    bool is_v2, is_json;
    struct place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
    size_t region_bytes; /* 0: none */
};

/* A request, ready to be sent. */
struct request {
    struct buffer path, body;
    const char *headers[2]; /* NULL-ended */
    char header[64];
};

/* Where the region holds no tensor. */
enum { BETWEEN = 0x77 };

struct manner request_manner(const struct random_call *made, const char *region,
                             struct random_source *source);

/* Can it be sent? A tensor that is too large to try has no data. */
bool request_is_whole(const struct random_call *made);

/* Puts the region, with the inputs that are there. */
void request_put_region(const struct random_call *made,
                        const struct manner *manner,
                        const struct server *server);

/* Fills *out; request_end frees it. */
void request_write(const struct random_call *made, const struct manner *manner,
                   struct request *out);
void request_end(struct request *request);

/* Is the answer's code what the library says of the call? A table that was
 * asked for by angles=table may be larger than the daemon makes any. */
bool request_is_answered(const struct random_call *made,
                         const struct answer *answer);

#endif
