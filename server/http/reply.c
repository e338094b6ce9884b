/*
 * reply.c - HTTP answers.
 */
#include "http/reply.h"

#include "http/daemon_internal.h"

#include <stdio.h>
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

/* Stages of a call in milliseconds, as browsers and proxies show them. */
static void add_timing(const struct request *request,
                       struct MHD_Response *response)
{
    char text[256];
    const struct exec_timing *t = &request->job.timing;
    uint64_t receive_ns = request->received_ns - request->first_byte_ns;
    snprintf(text, sizeof text,
             "receive;dur=%.4f, queue;dur=%.4f, plan;dur=%.4f, h2d;dur=%.4f, "
             "kernel;dur=%.4f, d2h;dur=%.4f",
             (double)receive_ns * 1e-6, (double)t->queue_ns * 1e-6,
             (double)t->plan_ns * 1e-6, (double)t->h2d_ns * 1e-6,
             (double)t->kernel_ns * 1e-6, (double)t->d2h_ns * 1e-6);
    add_header(response, "Server-Timing", text);
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
    if (code == MHD_HTTP_UNAUTHORIZED)
        add_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (request->match.allow[0])
        add_header(response, MHD_HTTP_HEADER_ALLOW, request->match.allow);
    if (request->op)
        add_timing(request, response);
    metrics_count_response(daemon->metrics, code);
    request->code = code;
    daemon_set_deadline(daemon, request->peer,
                        daemon_after_ns(daemon->config->body_timeout_seconds));
    mhd_result result =
        MHD_queue_response(request->connection, (unsigned)code, response);
    MHD_destroy_response(response);
    /* an answer that was not taken must end the connection: a handler that
     * goes on without one makes the library's loop spin */
    request->has_answered = result == MHD_YES;
    return result;
}

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
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(buffer->bytes,
                                                           buffer->text, free);
    if (!response)
        buffer_fini(buffer);
    return queue(request, code, content_type, response);
}

static void add_json_length(struct MHD_Response *response, size_t json_bytes)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", json_bytes);
    add_header(response, "Inference-Header-Content-Length", text);
}

mhd_result reply_mixed(struct request *request, struct buffer *buffer,
                       size_t json_bytes)
{
    if (buffer->has_failed || !buffer->text)
        return reply_no_memory(request, buffer);
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(buffer->bytes,
                                                           buffer->text, free);
    if (!response) {
        buffer_fini(buffer);
        return MHD_NO;
    }
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
};
_Static_assert(sizeof(struct block_owner) <= REPLY_BLOCK_TAIL,
               "a block's owner fits its tail");

static void give_block(void *context)
{
    struct block_owner owner = *(struct block_owner *)context;
    memory_give(owner.pool, &owner.block);
}

mhd_result reply_block(struct request *request, const char *content_type,
                       struct memory_block *block, size_t at, size_t bytes,
                       size_t v2_header_bytes)
{
    size_t tail = (block->bytes - REPLY_BLOCK_TAIL) / 64 * 64;
    struct block_owner *owner = (void *)(block->start + tail);
    owner->pool = exec_memory(request->daemon->exec);
    owner->block = *block;
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback_cls(
            bytes, owner->block.start + at, give_block, owner);
    if (!response)
        return MHD_NO; /* the request still owns the block */
    memset(block, 0, sizeof *block);
    if (v2_header_bytes)
        add_json_length(response, v2_header_bytes);
    return queue(request, MHD_HTTP_OK, content_type, response);
}
