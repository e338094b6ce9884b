/*
 * reply.c - HTTP answers.
 */
#include "http/reply.h"

#include "http/daemon_internal.h"
#include "wire/deflate.h"

#include <stdlib.h>
#include <string.h>

int reply_code(enum roped_status status)
{
    switch (status) {
    case ROPED_OK:
        return MHD_HTTP_OK;
    case ROPED_INVALID:
        return MHD_HTTP_BAD_REQUEST;
    case ROPED_NOT_FOUND:
        return MHD_HTTP_NOT_FOUND;
    case ROPED_TOO_LARGE:
        return 413; /* named differently from release to release */
    case ROPED_UNSUPPORTED:
        return MHD_HTTP_NOT_IMPLEMENTED;
    case ROPED_BUSY:
    case ROPED_NO_MEMORY:
    case ROPED_DEADLINE:
    case ROPED_CANCELED:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    case ROPED_DEVICE:
    case ROPED_INTERNAL:
    case ROPED_STATUS_COUNT:
        break;
    }
    return MHD_HTTP_INTERNAL_SERVER_ERROR;
}

static void add_header(struct MHD_Response *response, const char *name,
                       const char *value)
{
    /* a header that does not fit in memory is left out: the answer counts */
    (void)MHD_add_response_header(response, name, value);
}

/* Nanoseconds as milliseconds, "0.0123", in front of end; returns its start. */
static char *write_ms(uint64_t ns, char *end)
{
    uint64_t tenths_of_us = (ns + 50) / 100;
    for (int i = 0; i < 4; i++, tenths_of_us /= 10)
        *--end = (char)('0' + tenths_of_us % 10);
    *--end = '.';
    do {
        *--end = (char)('0' + tenths_of_us % 10);
        tenths_of_us /= 10;
    } while (tenths_of_us > 0);
    return end;
}

/* Stages of a call in milliseconds, as browsers and proxies show them. Digit
 * by digit, from the last to the first: printf of six doubles is a microsecond
 * of a small call. */
static void add_timing(const struct request *request,
                       struct MHD_Response *response)
{
    enum { NUMBER_BYTES = 22 }; /* 2^64 tenths of a microsecond */
#define STAGE(name, ns)                                                        \
    {                                                                          \
        name ";dur=", sizeof name ";dur=" - 1, ns                              \
    }
    const struct exec_timing *t = &request->job.timing;
    const struct {
        const char *name;
        size_t bytes;
        uint64_t ns;
    } stage[] = {
        STAGE("receive", request->received_ns - request->first_byte_ns),
        STAGE(", queue", t->queue_ns),
        STAGE(", plan", t->plan_ns),
        STAGE(", h2d", t->h2d_ns),
        STAGE(", kernel", t->kernel_ns),
        STAGE(", d2h", t->d2h_ns)};
#undef STAGE
    enum { N_STAGES = sizeof stage / sizeof *stage };
    char text[N_STAGES * (sizeof ", receive;dur=" + NUMBER_BYTES)];
    char *at = text + sizeof text - 1;
    *at = '\0';
    for (int i = N_STAGES - 1; i >= 0; i--) {
        at = write_ms(stage[i].ns, at) - stage[i].bytes;
        memcpy(at, stage[i].name, stage[i].bytes);
    }
    add_header(response, "Server-Timing", at);
}

/* Queues and lets go of a response. */
static mhd_result queue(struct request *request, int code,
                        const char *content_type, struct MHD_Response *response)
{
    struct daemon *daemon = request->daemon;
    if (!response)
        return MHD_NO;
    add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    if (request->id[0])
        add_header(response, "X-Request-Id", request->id);
    if (request->must_close || atomic_load(&daemon->is_draining))
        add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (code == MHD_HTTP_SERVICE_UNAVAILABLE)
        add_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (code == MHD_HTTP_UNSUPPORTED_MEDIA_TYPE)
        add_header(response, MHD_HTTP_HEADER_ACCEPT_ENCODING, "gzip, deflate");
    if (code == MHD_HTTP_UNAUTHORIZED)
        add_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (request->match.allow[0])
        add_header(response, MHD_HTTP_HEADER_ALLOW, request->match.allow);
    if (request->op)
        add_timing(request, response);
    metrics_count_response(daemon->metrics, code);
    request->code = code;
    daemon_set_deadline(request->peer,
                        daemon_after_ns(daemon->config->body_timeout_seconds));
    mhd_result result =
        MHD_queue_response(request->connection, (unsigned)code, response);
    MHD_destroy_response(response);
    /* an answer that was not taken must end the connection: a handler that
     * goes on without one makes the library's loop spin */
    request->has_answered = result == MHD_YES;
    return result;
}

/* ------------------------------------------------------------- compression */

enum { LEAST_DEFLATED = 1 << 10, MOST_DEFLATED = 64 << 20 };

/* The same bytes compressed, where the operator and the client want that and
 * it makes them fewer; NULL: send them as they are. */
static struct MHD_Response *deflated(const struct request *request, int code,
                                     const void *bytes, size_t n)
{
    size_t packed_n;
    if (!request->daemon->config->compress_answers || code != MHD_HTTP_OK ||
        n < LEAST_DEFLATED || n > MOST_DEFLATED)
        return NULL;
    enum deflate_format format =
        deflate_accepted(request_header(request, HEADER_ACCEPT_ENCODING));
    if (format == DEFLATE_NONE)
        return NULL;
    unsigned char *packed = deflate_bytes(format, bytes, n, &packed_n);
    if (!packed)
        return NULL;
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(packed_n, packed,
                                                           free);
    if (!response) {
        free(packed);
        return NULL;
    }
    add_header(response, MHD_HTTP_HEADER_CONTENT_ENCODING,
               deflate_name(format));
    add_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT_ENCODING);
    return response;
}

/* A response of the buffer's text, which it takes; NULL without memory. */
static struct MHD_Response *response_of(const struct request *request, int code,
                                        struct buffer *buffer)
{
    struct MHD_Response *response =
        deflated(request, code, buffer->text, buffer->bytes);
    if (response) {
        buffer_fini(buffer);
        return response;
    }
    response = MHD_create_response_from_buffer_with_free_callback(
        buffer->bytes, buffer->text, free);
    if (!response)
        buffer_fini(buffer);
    return response;
}

/* ---------------------------------------------------------------- documents */

static mhd_result reply_no_memory(struct request *request,
                                  struct buffer *buffer)
{
    buffer_fini(buffer);
    return reply_error(request, reply_code(ROPED_NO_MEMORY),
                       "no memory for the answer");
}

mhd_result reply_buffer(struct request *request, int code,
                        const char *content_type, struct buffer *buffer)
{
    if (buffer->has_failed || !buffer->text)
        return reply_no_memory(request, buffer);
    return queue(request, code, content_type,
                 response_of(request, code, buffer));
}

static void add_json_length(struct MHD_Response *response, size_t json_bytes)
{
    char text[24];
    struct buffer buffer;
    buffer_init_fixed(&buffer, text, sizeof text);
    buffer_unsigned(&buffer, json_bytes);
    add_header(response, "Inference-Header-Content-Length", text);
}

mhd_result reply_mixed(struct request *request, struct buffer *buffer,
                       size_t json_bytes)
{
    if (buffer->has_failed || !buffer->text)
        return reply_no_memory(request, buffer);
    struct MHD_Response *response = response_of(request, MHD_HTTP_OK, buffer);
    if (!response)
        return MHD_NO;
    add_json_length(response, json_bytes);
    return queue(request, MHD_HTTP_OK, "application/octet-stream", response);
}

mhd_result reply_json(struct request *request, struct buffer *buffer)
{
    return reply_buffer(request, MHD_HTTP_OK, "application/json", buffer);
}

mhd_result reply_empty(struct request *request)
{
    static char nothing[] = "";
    return queue(
        request, MHD_HTTP_OK, "application/json",
        MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT));
}

mhd_result reply_error(struct request *request, int code, const char *text)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_text(&buffer, "{\"error\":");
    buffer_json_string(&buffer, text);
    buffer_text(&buffer, "}");
    if (buffer.has_failed) { /* even without memory a client gets a reason */
        static char fallback[] = "{\"error\":\"no memory\"}";
        buffer_fini(&buffer);
        return queue(request, code, "application/json",
                     MHD_create_response_from_buffer(sizeof fallback - 1,
                                                     fallback,
                                                     MHD_RESPMEM_PERSISTENT));
    }
    return reply_buffer(request, code, "application/json", &buffer);
}

mhd_result reply_status(struct request *request, const struct roped_error *err)
{
    return reply_error(request, reply_code(err->status), err->text);
}

/* What gives a block back: it lives in the block's own tail. */
struct block_owner {
    struct memory_pool *pool;
    struct memory_block block;
    const unsigned char *answer; /* in it */
    size_t bytes;
};
_Static_assert(sizeof(struct block_owner) <= REPLY_BLOCK_TAIL,
               "a block's owner fits its tail");

/* Clients that read Content-Length into an int end there and then when it is
 * larger than one: such answers go out in chunks. */
enum { CHUNK_BYTES = 1 << 20 };
static const uint64_t most_with_length = INT32_MAX;

/* MHD_ContentReaderCallback over the block's answer. */
static ssize_t read_block(void *context, uint64_t at, char *out, size_t room)
{
    const struct block_owner *owner = context;
    size_t left = owner->bytes - (size_t)at;
    if (left == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    size_t n = left < room ? left : room;
    memcpy(out, owner->answer + at, n);
    return (ssize_t)n;
}

static void give_block(void *context)
{
    struct block_owner owner = *(struct block_owner *)context;
    memory_give(owner.pool, &owner.block);
}

/* A response of a part of the block. It takes the block, which is then empty,
 * unless it has a copy; NULL without memory. */
static struct MHD_Response *response_of_block(struct request *request,
                                              struct memory_block *block,
                                              size_t at, size_t bytes)
{
    struct MHD_Response *response =
        deflated(request, MHD_HTTP_OK, block->start + at, bytes);
    if (response)
        return response;
    size_t tail = (block->bytes - REPLY_BLOCK_TAIL) / 64 * 64;
    struct block_owner *owner = (void *)(block->start + tail);
    owner->pool = exec_memory(request->daemon->exec);
    owner->block = *block;
    owner->answer = block->start + at;
    owner->bytes = bytes;
    response =
        bytes > most_with_length
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES,
                                                read_block, owner, give_block)
            : MHD_create_response_from_buffer_with_free_callback_cls(
                  bytes, block->start + at, give_block, owner);
    if (response)
        memset(block, 0, sizeof *block);
    return response;
}

mhd_result reply_block(struct request *request, const char *content_type,
                       struct memory_block *block, size_t at, size_t bytes,
                       size_t v2_header_bytes)
{
    struct MHD_Response *response =
        response_of_block(request, block, at, bytes);
    if (!response)
        return MHD_NO; /* the request still owns the block */
    if (v2_header_bytes)
        add_json_length(response, v2_header_bytes);
    return queue(request, MHD_HTTP_OK, content_type, response);
}
