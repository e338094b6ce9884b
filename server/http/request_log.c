/*
 * request_log.c - lines about requests. What a client wrote goes in quoted; its
 * token never does.
 */
#include "http/request_log.h"

#include "address.h"
#include "http/clock.h"
#include "log.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { QUOTED_BYTES = 300, CLIENT_BYTES = 4 * ADDRESS_TEXT_BYTES };

/* ------------------------------------------------------------------ traces */

/* So many digits of lower-case hex at text. */
static bool is_hex(const char *text, size_t digits)
{
    return strspn(text, "0123456789abcdef") >= digits;
}

static bool is_zero(const char *text, size_t digits)
{
    return strspn(text, "0") >= digits;
}

/* "00-<32 digits>-<16 digits>-<2 digits>"; of later versions more may follow.
 */
static bool is_well_formed(const char *text)
{
    enum { LENGTH = 55 };
    if (strlen(text) < LENGTH || !is_hex(text, 2) || text[2] != '-' ||
        !is_hex(text + 3, 32) || text[35] != '-' || !is_hex(text + 36, 16) ||
        text[52] != '-' || !is_hex(text + 53, 2))
        return false;
    bool is_version_0 = strncmp(text, "00", 2) == 0;
    bool ends = text[LENGTH] == '\0' || (!is_version_0 && text[LENGTH] == '-');
    return ends && strncmp(text, "ff", 2) != 0 && !is_zero(text + 3, 32) &&
           !is_zero(text + 36, 16);
}

void trace_read(const char *header, struct trace *out)
{
    *out = (struct trace){.trace_id = ""};
    if (!header || !is_well_formed(header))
        return;
    memcpy(out->trace_id, header + 3, sizeof out->trace_id - 1);
    memcpy(out->parent_id, header + 36, sizeof out->parent_id - 1);
}

/* ------------------------------------------------------------------- lines */

/* Who is at the other end: "127.0.0.1:4711"; "": nobody any more. Quoted: a
 * Unix socket of a client may be bound to a name of any bytes. */
static const char *client_of(int fd, char quoted[CLIENT_BYTES])
{
    struct sockaddr_storage client;
    socklen_t bytes = sizeof client;
    char text[ADDRESS_TEXT_BYTES] = "";
    if (getpeername(fd, (struct sockaddr *)&client, &bytes) == 0)
        address_text((struct sockaddr *)&client, bytes, text);
    return log_quote(text, quoted, CLIENT_BYTES);
}

static void log_slow(const struct request *request, uint64_t total_ns, int fd)
{
    char phases[512], id[QUOTED_BYTES], from[CLIENT_BYTES];
    static const char *const names[] = {
#define BODY_PHASE(id, name, meaning)       #name,
#define PHASE(id, name, statistic, meaning) #name,
#include "phase.def"
    };
    uint64_t ns[N_PHASES];
    struct buffer buffer;
    call_phases(&request->call, ns);
    buffer_init_fixed(&buffer, phases, sizeof phases);
    for (int i = 0; i < N_PHASES; i++)
        buffer_printf(&buffer, " %s_ms=%.3f", names[i], (double)ns[i] * 1e-6);
    log_line(LOG_WARN, "slow",
             "op=%s total_ms=%.3f%.*s bytes=%llu client=\"%s\" id=\"%s\" "
             "name=\"%s\"",
             request->call.run ? "program" : request->call.op->name,
             (double)total_ns * 1e-6, (int)buffer.bytes, phases,
             (unsigned long long)request->body.received, client_of(fd, from),
             log_quote(request->id, id, sizeof id), request->caller.name);
}

/* " error_code=bad_shape error=\"...\"" of what was refused, else "". */
static const char *error_of(const struct request *request, int code, char *out,
                            size_t bytes)
{
    char error[2 * ROPED_ERROR_BYTES];
    out[0] = '\0';
    if (code >= 400 && request->answer.error.status)
        snprintf(out, bytes, " error_code=%s error=\"%s\"",
                 roped_status_token(request->answer.error.status),
                 log_quote(request->answer.error.text, error, sizeof error));
    return out;
}

void request_log(const struct request *request, int code, bool is_whole, int fd)
{
    char method[40], target[160], id[QUOTED_BYTES], from[CLIENT_BYTES];
    char error[2 * ROPED_ERROR_BYTES + 64];
    const struct config *config = request->service->config;
    uint64_t total_ns = clock_now_ns() - request->body.started_ns;
    struct trace trace;
    if (config->slow_request_ms > 0 &&
        (request->call.op || request->call.run) && code > 0 &&
        total_ns > (uint64_t)config->slow_request_ms * 1000000u)
        log_slow(request, total_ns, fd);
    if (!config->log_requests)
        return;
    trace_read(head_value(&request->head, HEADER_TRACEPARENT), &trace);
    log_line(LOG_INFO, "request",
             "method=\"%s\" route=%s target=\"%s\" code=%d is_whole=%s "
             "bytes=%llu seconds=%.6f id=\"%s\" trace_id=\"%s\" "
             "parent_id=\"%s\" name=\"%s\" client=\"%s\"%s",
             log_quote(request->head.method, method, sizeof method),
             request->match.route ? request->match.route->path : "none",
             log_quote(request->match.capture, target, sizeof target), code,
             is_whole ? "true" : "false",
             (unsigned long long)request->body.received,
             (double)total_ns * 1e-9, log_quote(request->id, id, sizeof id),
             trace.trace_id, trace.parent_id, request->caller.name,
             client_of(fd, from), error_of(request, code, error, sizeof error));
}

void request_log_refusal(const struct request *request, int code, int fd)
{
    char method[40], error[2 * ROPED_ERROR_BYTES], id[QUOTED_BYTES];
    char from[CLIENT_BYTES];
    struct trace trace;
    if (code != 401 && code != 403 && code != 421)
        return;
    trace_read(head_value(&request->head, HEADER_TRACEPARENT), &trace);
    log_line(LOG_WARN, "refused",
             "code=%d error=\"%s\" client=\"%s\" method=\"%s\" route=%s "
             "id=\"%s\" trace_id=\"%s\" name=\"%s\"",
             code, log_quote(request->answer.error.text, error, sizeof error),
             client_of(fd, from),
             log_quote(request->head.method, method, sizeof method),
             request->match.route ? request->match.route->path : "none",
             log_quote(request->id, id, sizeof id), trace.trace_id,
             request->caller.name);
}
