/*
 * headers.c - the headers of a reply.
 */
#include "http/headers.h"

#include <string.h>

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
static void emit_timing(const struct call *call, reply_header_fn *emit,
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
    call_phases(call, ns);
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
static void emit_origin(const struct origin_rules *rules,
                        const struct head *head, reply_header_fn *emit,
                        void *context)
{
    const char *origin = origin_allowed(rules, head);
    const char *asked = head_value(head, HEADER_REQUEST_HEADERS);
    if (!origin)
        return;
    emit(context, "Access-Control-Allow-Origin", origin);
    emit(context, "Vary", "Origin");
    emit(context, "Access-Control-Expose-Headers",
         "ETag, Inference-Header-Content-Length, Retry-After, Server-Timing, "
         "X-Request-Id");
    if (!origin_is_preflight(rules, head))
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
    if (request->run.etag[0])
        emit(context, "ETag", request->run.etag);
    if (request->call.op || request->call.run)
        emit_timing(&request->call, emit, context);
    if (head_value(&request->head, HEADER_ORIGIN))
        emit_origin(&request->service->origins, &request->head, emit, context);
}
