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

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request;

struct body {
    struct memory_block block;
    size_t at;          /* where in the block the body starts */
    uint64_t received;  /* bytes that have arrived; then, inflated */
    uint64_t length;    /* Content-Length; of an open-ended body, at its end */
    bool is_open_ended; /* chunked: its end says how long it is */
    bool is_compressed; /* until it has been inflated */
    uint64_t limit, inflated_limit;
    const char *limit_name;  /* for people */
    unsigned char prefix[8]; /* safetensors: until its length is complete */
    size_t header_bytes;     /* prefix + JSON; v2: JSON; 0: not known yet */
    bool is_raw;             /* v2: no JSON, the body is the one input */
    bool is_decoded;
};

/* From the head: is its length one that is taken? Failures of all of these are
 * in request->error. */
enum roped_status body_begin(struct request *request, uint64_t limit,
                             const char *limit_name);

/* One piece. A call or tensor is decoded as soon as its header is there. */
enum roped_status body_receive(struct request *request, const char *data,
                               size_t bytes);

/* That was all: now lengths are known that were not before. */
enum roped_status body_end(struct request *request);

/* Inflates and decodes what has not been: takes its time where body_is_long,
 * about that of moving body_work bytes. */
enum roped_status body_finish(struct request *request);
/* The refusal of a body that has no whole header. */
enum roped_status body_is_short(struct request *request);
bool body_is_long(const struct request *request);
uint64_t body_work(const struct request *request);

/* The body from a place on; NULL where there is none. And a document:
 * body.received bytes of it. */
unsigned char *body_bytes(const struct request *request, size_t from);
const char *body_text(const struct request *request);

#endif
