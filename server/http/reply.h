/*
 * reply.h - every HTTP answer is made here, and nowhere else are there HTTP
 * codes for statuses.
 */
#ifndef ROPED_HTTP_REPLY_H
#define ROPED_HTTP_REPLY_H

#include "http/request.h"
#include "wire/buffer.h"

/* The HTTP code of a status. */
int reply_code(enum roped_status status);

/* {"error": "..."} with a code; BUSY-like codes carry Retry-After. */
mhd_result reply_error(struct request *request, int code, const char *text);

/* The error of a status, by reply_code. */
mhd_result reply_status(struct request *request, const struct roped_error *err);

/* A document: takes the buffer's memory. 503 where writing it failed. */
mhd_result reply_buffer(struct request *request, int code,
                        const char *content_type, struct buffer *buffer);

/* The same for JSON with code 200. */
mhd_result reply_json(struct request *request, struct buffer *buffer);

/* Code 200 without a body: v2's success of what has no result. */
mhd_result reply_empty(struct request *request);

/*
 * The answer of a call straight from a block: bytes at block->start + at.
 * The block is given back to the pool when the last byte is sent, or stays with
 * the caller where its bytes were compressed into another.
 */
mhd_result reply_block(struct request *request, const char *content_type,
                       struct memory_block *block, size_t at, size_t bytes,
                       size_t v2_header_bytes);

/* A v2 answer of JSON and binary parts: takes the buffer's memory. */
mhd_result reply_mixed(struct request *request, struct buffer *buffer,
                       size_t json_bytes);

/* Room that reply_block needs behind the bytes of a block. */
enum { REPLY_BLOCK_TAIL = 64 };

#endif
