/*
 * reply.c - replies, and their headers.
 */
#include "http/reply.h"

#include "http/request.h"
#include "wire/deflate.h"

#include <string.h>

int reply_code(enum roped_status status)
{
    static const int codes[ROPED_STATUS_COUNT] = {
#define X(id, token, http, meaning) [ROPED_##id] = http,
        ROPED_STATUS_MAP(X)
#undef X
    };
    return codes[status];
}

struct reply reply_bytes(int code, const char *type, const void *data,
                         size_t bytes)
{
    return (struct reply){
        .code = code, .type = type, .data = data, .bytes = bytes};
}

struct reply reply_empty(void)
{
    return reply_bytes(200, "application/json", "", 0);
}

struct reply reply_after(struct exec_job *job, reply_fn *then)
{
    return (struct reply){.job = job, .then = then};
}

struct reply reply_errand(struct request *request,
                          enum roped_status (*task)(struct exec_job *job),
                          uint64_t bytes, reply_fn *then)
{
    struct exec_job *job = &request->errand;
    exec_job_init(job);
    job->work = EXEC_TASK;
    job->task = task;
    job->task_bytes = bytes;
    return reply_after(job, then);
}

/* ------------------------------------------------------------------- text */

/* buffer_grow_fn: from the request's own text to a block of the pool, which
 * counts against host_bytes like all that a request holds. */
static char *grow_text(struct buffer *buffer, size_t capacity)
{
    struct request *request = buffer->context;
    struct memory_block *block = &request->text;
    struct roped_error err;
    size_t used = block->start ? buffer->bytes : 0;
    if (memory_extend(exec_memory(request->service->exec), block, used,
                      capacity, capacity, &err))
        return NULL;
    if (used == 0)
        memcpy(block->start, buffer->text, buffer->bytes);
    return (char *)block->start;
}

void reply_begin_text(struct request *request, struct buffer *buffer)
{
    memory_give(exec_memory(request->service->exec), &request->text);
    buffer_init_grow(buffer, request->scratch, sizeof request->scratch,
                     grow_text, request);
}

struct reply reply_text(struct request *request, int code, const char *type,
                        const struct buffer *buffer)
{
    (void)request;
    if (buffer->has_failed) { /* even without memory a client gets a reason */
        static const char reason[] =
            "{\"error\":\"no memory for the answer (host_bytes)\","
            "\"code\":\"no_memory\"}";
        return reply_bytes(reply_code(ROPED_NO_MEMORY), "application/json",
                           reason, sizeof reason - 1);
    }
    return reply_bytes(code, type, buffer->text, buffer->bytes);
}

struct reply reply_json(struct request *request, const struct buffer *buffer)
{
    return reply_text(request, 200, "application/json", buffer);
}

struct reply reply_status(struct request *request,
                          const struct roped_error *err)
{
    struct buffer buffer;
    if (err != &request->error)
        request->error = *err;
    reply_begin_text(request, &buffer);
    buffer_text(&buffer, "{\"error\":");
    buffer_json_string(&buffer, err->text);
    buffer_printf(&buffer, ",\"code\":\"%s\"}",
                  roped_status_token(err->status));
    return reply_text(request, reply_code(err->status), "application/json",
                      &buffer);
}

/* ------------------------------------------------------------- compression */

enum { LEAST_DEFLATED = 1 << 10, MOST_DEFLATED = 64 << 20 };

/* What the client takes. */
static enum deflate_format format_for(const struct request *request)
{
    if (!request->service->config->compress_answers)
        return DEFLATE_NONE;
    return deflate_accepted(head_value(&request->head, HEADER_ACCEPT_ENCODING));
}

bool reply_may_pack(const struct request *request)
{
    return format_for(request) != DEFLATE_NONE;
}

static enum deflate_format format_of(const struct request *request,
                                     const struct reply *reply)
{
    if (reply->code != 200 || reply->encoding ||
        reply->bytes < LEAST_DEFLATED || reply->bytes > MOST_DEFLATED)
        return DEFLATE_NONE;
    return format_for(request);
}

/* An errand: request->pending, smaller. It stays as it is where there is no
 * memory for that or nothing to be gained. */
static enum roped_status deflate_pending(struct exec_job *job)
{
    struct request *request = job->owner;
    struct reply *reply = &request->pending;
    enum deflate_format format = format_of(request, reply);
    struct memory_pool *pool = exec_memory(request->service->exec);
    struct memory_block packed;
    struct roped_error err;
    if (memory_take(pool, reply->bytes, &packed, &err))
        return ROPED_OK;
    size_t bytes = deflate_bytes(format, reply->data, reply->bytes,
                                 packed.start, reply->bytes - 1);
    if (bytes == 0) {
        memory_give(pool, &packed);
        return ROPED_OK;
    }
    memory_give(pool, &request->json); /* of the call's input: done with */
    request->json = packed;
    reply->data = packed.start;
    reply->bytes = bytes;
    reply->encoding = deflate_name(format);
    return ROPED_OK;
}

/* Also where it could not be compressed in time. */
static struct reply take_packed(struct request *request)
{
    struct reply reply = request->pending;
    if (!reply.encoding)
        reply.encoding = deflate_name(DEFLATE_NONE); /* not once more */
    return reply;
}

struct reply reply_pack(struct request *request, const struct reply *reply)
{
    if (format_of(request, reply) == DEFLATE_NONE)
        return *reply;
    request->pending = *reply;
    return reply_errand(request, deflate_pending,
                        reply->bytes * REQUEST_TEXT_WORK, take_packed);
}

/* ---------------------------------------------------------------- headers */

void reply_phases(const struct request *request, uint64_t ns[N_PHASES])
{
    ns[PHASE_RECEIVE] = request->received_ns - request->first_byte_ns;
#define PHASE(id, name, statistic, meaning)                                    \
    ns[PHASE_##id] = request->job.timing.name##_ns;
#include "phase.def"
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

/* Phases of a call in milliseconds, as browsers and proxies show them. Digit
 * by digit, from the last to the first: printf of six doubles is a microsecond
 * of a small call. */
static void emit_timing(const struct request *request, reply_header_fn *emit,
                        void *context)
{
    enum { NUMBER_BYTES = 22 }; /* 2^64 tenths of a microsecond */
#define LABEL(name) ", " #name ";dur="
    static const char labels[] =
#define BODY_PHASE(id, name, meaning)       LABEL(name)
#define PHASE(id, name, statistic, meaning) LABEL(name)
#include "phase.def"
        ;
    static const unsigned char label_bytes[N_PHASES] = {
#define BODY_PHASE(id, name, meaning)       sizeof LABEL(name) - 1,
#define PHASE(id, name, statistic, meaning) sizeof LABEL(name) - 1,
#include "phase.def"
    };
#undef LABEL
    char text[sizeof labels + N_PHASES * NUMBER_BYTES];
    char *at = text + sizeof text - 1;
    const char *label = labels + sizeof labels - 1;
    uint64_t ns[N_PHASES];
    reply_phases(request, ns);
    *at = '\0';
    for (int i = N_PHASES - 1; i >= 0; i--) {
        label -= label_bytes[i];
        at = write_ms(ns[i], at) - label_bytes[i];
        memcpy(at, label, label_bytes[i]);
    }
    emit(context, "Server-Timing", at + sizeof ", " - 1);
}

/* What keeps a page from doing, or being used for, anything else. */
static void emit_page(const struct reply *reply, reply_header_fn *emit,
                      void *context)
{
    emit(context, "Content-Security-Policy", reply->policy);
    emit(context, "X-Content-Type-Options", "nosniff");
    emit(context, "Referrer-Policy", "no-referrer");
    emit(context, "Cache-Control", "no-cache");
    emit(context, "Vary", "Accept");
}

static void emit_body(const struct reply *reply, reply_header_fn *emit,
                      void *context)
{
    char text[24];
    struct buffer buffer;
    if (reply->type)
        emit(context, "Content-Type", reply->type);
    if (reply->encoding && strcmp(reply->encoding, "identity") != 0) {
        emit(context, "Content-Encoding", reply->encoding);
        emit(context, "Vary", "Accept-Encoding");
    }
    if (reply->policy)
        emit_page(reply, emit, context);
    if (!reply->json_bytes)
        return;
    buffer_init_fixed(&buffer, text, sizeof text);
    buffer_unsigned(&buffer, reply->json_bytes);
    emit(context, "Inference-Header-Content-Length", text);
}

/* What a browser wants to see before a page may read the answer. */
static void emit_origin(const struct request *request, reply_header_fn *emit,
                        void *context)
{
    const struct origin_rules *rules = &request->service->origins;
    const char *origin = origin_allowed(rules, &request->head);
    const char *asked = head_value(&request->head, HEADER_REQUEST_HEADERS);
    if (!origin)
        return;
    emit(context, "Access-Control-Allow-Origin", origin);
    emit(context, "Vary", "Origin");
    emit(context, "Access-Control-Expose-Headers",
         "Inference-Header-Content-Length, Retry-After, Server-Timing, "
         "X-Request-Id");
    if (!origin_is_preflight(rules, &request->head))
        return;
    emit(context, "Access-Control-Allow-Methods", "GET, POST, PUT, DELETE");
    if (asked)
        emit(context, "Access-Control-Allow-Headers", asked);
    emit(context, "Access-Control-Max-Age", "600");
}

static bool must_close(const struct request *request)
{
    const struct service *service = request->service;
    bool is_chunked = head_value(&request->head, HEADER_TRANSFER_ENCODING);
    return request->must_close || atomic_load(&service->is_draining) ||
           (is_chunked && service->is_lax);
}

void reply_headers(const struct request *request, const struct reply *reply,
                   reply_header_fn *emit, void *context)
{
    emit_body(reply, emit, context);
    if (request->id[0])
        emit(context, "X-Request-Id", request->id);
    if (must_close(request))
        emit(context, "Connection", "close");
    if (reply->code == 503)
        emit(context, "Retry-After", "1");
    if (reply->code == 415)
        emit(context, "Accept-Encoding", "gzip, deflate");
    if (reply->code == 401)
        emit(context, "WWW-Authenticate", "Bearer");
    if (reply->code == 405)
        emit(context, "Allow", request->match.allow);
    if (request->call.op)
        emit_timing(request, emit, context);
    if (head_value(&request->head, HEADER_ORIGIN))
        emit_origin(request, emit, context);
}
