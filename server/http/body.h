/*
 * body.h - the body of a request on its way in: where each piece goes.
 *
 * Memory is taken as bytes arrive (memory_extend): a body that is announced and
 * never sent holds none. What will be decoded is placed so that the end of its
 * header is at a multiple of 64. A compressed body is kept as it came and
 * inflated when it is complete.
 */
#ifndef ROPED_HTTP_BODY_H
#define ROPED_HTTP_BODY_H

#include "exec/memory.h"
#include "http/head.h"

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum body_kind {
    BODY_IGNORED, /* read and dropped */
    BODY_JSON,    /* small, kept whole */
    BODY_TENSOR,  /* safetensors, or none at all */
    BODY_V1,      /* a call: safetensors */
    BODY_PROGRAM, /* a run of a program: safetensors */
    BODY_V2       /* a call: JSON and binary tensors */
};

enum { JSON_BODY_BYTES = 1 << 20 }; /* of a body that is JSON, at most */

struct body {
    /* set before body_begin */
    enum body_kind kind;
    struct memory_pool *pool;
    uint64_t length;    /* Content-Length; of an open-ended body, at its end */
    bool is_open_ended; /* chunked: its end says how long it is */
    uint64_t started_ns, first_byte_ns, received_ns; /* when it came: that of
                                                        the request, its own */

    struct memory_block block;
    size_t at;          /* where in the block the body starts */
    uint64_t received;  /* bytes that have arrived; then, inflated */
    bool is_compressed; /* until it has been inflated */
    uint64_t limit, inflated_limit;
    const char *limit_name;  /* for people */
    const char *json_length; /* v2: how much of it is JSON, as it was sent */
    unsigned char prefix[8]; /* safetensors: until its length is complete */
    size_t header_bytes;     /* prefix + JSON; v2: JSON; 0: not known yet */
    bool is_raw;             /* v2: no JSON, the body is the one input */
    bool is_decoded;         /* its user's: see body_can_decode */
};

struct body_limit {
    uint64_t bytes, inflated_bytes;
    const char *name; /* of the first, for people */
};

/* From the head: is its length one that is taken? */
ROPED_MUST_CHECK enum roped_status body_begin(struct body *body,
                                              const struct head *head,
                                              const struct body_limit *limit,
                                              struct roped_error *err);

/* One piece. */
ROPED_MUST_CHECK enum roped_status body_receive(struct body *body,
                                                const char *data, size_t bytes,
                                                struct roped_error *err);

/* That was all: now lengths are known that were not before. */
ROPED_MUST_CHECK enum roped_status body_end(struct body *body,
                                            struct roped_error *err);

/* Inflates what came compressed: takes its time where body_is_long, about that
 * of moving body_work bytes. */
ROPED_MUST_CHECK enum roped_status body_finish(struct body *body,
                                               struct roped_error *err);
bool body_is_long(const struct body *body);
uint64_t body_work(const struct body *body);

/* May what stands in its header be read before its end? Data pointers that come
 * of that lead into a block that is to stay. And: is the whole header there? */
bool body_can_decode(const struct body *body);
bool body_has_header(const struct body *body);

/* The refusal of a body that has no whole header; and that of one that could
 * not be decoded, which says what it looks like where it is no safetensors
 * file. */
enum roped_status body_is_short(const struct body *body,
                                struct roped_error *err);
enum roped_status body_explain(const struct body *body,
                               enum roped_status status,
                               struct roped_error *err);

/* The body from a place on; NULL where there is none. And a document:
 * body.received bytes of it. */
unsigned char *body_bytes(const struct body *body, size_t from);
const char *body_text(const struct body *body);

#endif
