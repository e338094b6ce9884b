/*
 * protocol.h - the two ways to make a call, a row each: /v1, a safetensors
 * file with parameters in the query string, and KServe v2, JSON with binary
 * tensors behind it.
 */
#ifndef ROPED_HTTP_PROTOCOL_H
#define ROPED_HTTP_PROTOCOL_H

#include "http/reply.h"
#include "metrics.h"
#include "wire/buffer.h"

#include <roped/op.h>

struct call;

struct protocol {
    enum metrics_transport transport;

    /* The operator of the path; NULL, with call->error set, for none. */
    const struct roped_op *(*find_op)(struct call *call);

    /* Reads the header, which has arrived: parameters, tensors, regions. */
    enum roped_status (*decode)(struct call *call);

    /* After the call is resolved: do the wanted outputs fit it? */
    enum roped_status (*check)(struct call *call);

    /* Values of tensors that are in the header itself, into memory. */
    enum roped_status (*read_values)(struct call *call);

    /*
     * Writes the answer's header, where that can be done before the values
     * exist. offset[i]: where output i goes behind it; *sent: bytes behind the
     * header that are part of the answer; *all: with those that are not.
     */
    enum roped_status (*write_header)(struct call *call, struct buffer *header,
                                      uint64_t *offset, uint64_t *sent,
                                      uint64_t *all);

    /* The job has ended well: the answer. */
    struct reply (*answer)(struct call *call);
};

extern const struct protocol protocol_v1, protocol_v2;

#endif
