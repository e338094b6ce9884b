/*
 * request_log.h - lines of the log about requests: one for each, where the
 * settings want that, and one for each that is refused access.
 */
#ifndef ROPED_HTTP_REQUEST_LOG_H
#define ROPED_HTTP_REQUEST_LOG_H

#include "http/request.h"

/* Of the trace that a request belongs to, in lower-case hex. */
enum { TRACE_ID_BYTES = 33, PARENT_ID_BYTES = 17 };
struct trace {
    char trace_id[TRACE_ID_BYTES], parent_id[PARENT_ID_BYTES]; /* or "" */
};

/* Reads a traceparent header (W3C Trace Context; NULL: there is none). One that
 * is not well formed is none. */
void trace_read(const char *header, struct trace *out);

/* The request has ended; code 0: without an answer. Its head must be there. An
 * answered call over slow_request_ms has a line of its own. fd: its connection,
 * or -1.
 */
void request_log(const struct request *request, int code, bool is_whole,
                 int fd);

/* Its answer will be 401, 403 or 421; for others there is no line. fd: its
 * connection, or -1. */
void request_log_refusal(const struct request *request, int code, int fd);

#endif
