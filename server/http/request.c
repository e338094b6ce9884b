/*
 * request.c - the life of a request up to its handler: what the headers
 * decide, and how a refusal is made visible. Where the body goes: body.c.
 *
 * A client that is refused while it still sends would often see a reset
 * connection instead of the answer. So a refusal without 'Expect:
 * 100-continue' reads and drops the rest of the body, for a bounded time, and
 * answers then.
 */
#include "http/request.h"

#include "http/daemon_internal.h"
#include "http/job.h"
#include "http/reply.h"
#include "wire/inflate.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    JSON_BODY_BYTES = 1 << 20,
    DROP_BYTES = 1 << 30 /* more than this is not read only to be dropped */
};

struct request *request_new(struct daemon *daemon,
                            struct MHD_Connection *connection,
                            const char *method, const char *path)
{
    pthread_mutex_lock(&daemon->requests_lock);
    struct request *request = daemon->free_requests;
    if (request)
        daemon->free_requests = request->next;
    else
        request = malloc(sizeof *request);
    if (request)
        daemon->n_requests++;
    pthread_mutex_unlock(&daemon->requests_lock);
    if (!request)
        return NULL;
    /* 2 of 18 KiB: the rest is written before it is read */
    memset(request, 0,
           offsetof(struct request, job) + offsetof(struct exec_job, call));
    memset(&request->v2, 0, offsetof(struct kserve_request, regions));
    request->daemon = daemon;
    request->connection = connection;
    request->method = method;
    request->started_ns = daemon_now_ns();
    atomic_init(&request->state, REQUEST_RECEIVING);
    route_find(method, path, &request->match);
    return request;
}

void request_free(struct request *request)
{
    struct daemon *daemon = request->daemon;
    struct memory_pool *pool = exec_memory(daemon->exec);
    inflater_free(request->inflater);
    exec_stage_abandon(daemon->exec, &request->job, &request->body);
    memory_give(pool, &request->body);
    memory_give(pool, &request->json);
    memory_give(pool, &request->values);
    memory_give(pool, &request->out);
    tables_give(exec_tables(daemon->exec), request->job.table);
    regions_give(exec_regions(daemon->exec), request->region);
    job_release_regions(request);
    pthread_mutex_lock(&daemon->requests_lock);
    request->next = daemon->free_requests;
    daemon->free_requests = request;
    daemon->n_requests--;
    pthread_mutex_unlock(&daemon->requests_lock);
}

const char *request_header(const struct request *request,
                           enum request_header_name name)
{
    return request->known[name];
}

/* ---------------------------------------------------------------- headers */

static const struct {
    const char *name;
    size_t length;
} known_headers[N_REQUEST_HEADERS] = {
/* clang-format off */
#define KNOWN(name) {name, sizeof name - 1}
    /* clang-format on */
    [HEADER_ACCEPT_ENCODING] = KNOWN("Accept-Encoding"),
    [HEADER_AUTHORIZATION] = KNOWN("Authorization"),
    [HEADER_CONTENT_ENCODING] = KNOWN("Content-Encoding"),
    [HEADER_CONTENT_LENGTH] = KNOWN("Content-Length"),
    [HEADER_CONTENT_TYPE] = KNOWN("Content-Type"),
    [HEADER_EXPECT] = KNOWN("Expect"),
    [HEADER_INFERENCE_LENGTH] = KNOWN("Inference-Header-Content-Length"),
    [HEADER_TRANSFER_ENCODING] = KNOWN("Transfer-Encoding"),
    [HEADER_X_REQUEST_ID] = KNOWN("X-Request-Id")
#undef KNOWN
};

struct header_scan {
    struct request *request;
    int n_lengths, n_encodings;
    bool has_bad_name;
};

/* The characters of a header name. Whitespace before the colon, or a line
 * folded into the name by the library, could hide a Content-Length. */
static bool is_token(const char *name, size_t bytes)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) &&
            !memchr(others, name[i], sizeof others - 1))
            return false;
    return bytes > 0;
}

/* One of known_headers, or N_REQUEST_HEADERS. */
static int find_header(const char *key, size_t bytes)
{
    int i = 0;
    while (i < N_REQUEST_HEADERS &&
           !(known_headers[i].length == bytes &&
             strncasecmp(known_headers[i].name, key, bytes) == 0))
        i++;
    return i;
}

static mhd_result scan_header(void *context, enum MHD_ValueKind kind,
                              const char *key, size_t key_bytes,
                              const char *value, size_t value_bytes)
{
    struct header_scan *scan = context;
    int name = find_header(key, key_bytes);
    (void)kind;
    (void)value_bytes;
    if (name < N_REQUEST_HEADERS && !scan->request->known[name])
        scan->request->known[name] = value;
    scan->n_lengths += name == HEADER_CONTENT_LENGTH;
    scan->n_encodings += name == HEADER_TRANSFER_ENCODING;
    scan->has_bad_name |= !is_token(key, key_bytes);
    return MHD_YES;
}

bool request_parse_length(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > (INT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return true;
}

static bool refuse(struct request *request, int code, const char *text)
{
    request->refusal_code = code;
    roped_fail(&request->error, ROPED_INVALID, "%s", text);
    return false;
}

static bool refuse_status(struct request *request)
{
    request->refusal_code = reply_code(request->error.status);
    return false;
}

/* Equal in time that does not depend on where they differ. */
static bool same_secret(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned difference = n != m;
    for (size_t i = 0; i < m; i++)
        difference |=
            (unsigned)((unsigned char)a[n ? i % n : 0] ^ (unsigned char)b[i]);
    return difference == 0;
}

static bool check_token(struct request *request)
{
    const char *token = request->daemon->token;
    const char *sent = request_header(request, HEADER_AUTHORIZATION);
    if (!token[0] || (request->match.route && request->match.route->is_open))
        return true;
    if (sent && strncasecmp(sent, "Bearer ", 7) == 0 &&
        same_secret(sent + 7, token))
        return true;
    return refuse(request, MHD_HTTP_UNAUTHORIZED,
                  "missing or wrong bearer token");
}

/* Two lengths, or a length beside an encoding, are how requests are smuggled:
 * where the next one starts cannot be known. */
static bool check_framing(struct request *request,
                          const struct header_scan *scan)
{
    const char *length = request_header(request, HEADER_CONTENT_LENGTH);
    const char *encoding = request_header(request, HEADER_TRANSFER_ENCODING);
    request->must_close = true;
    if (scan->has_bad_name)
        return refuse(request, MHD_HTTP_BAD_REQUEST, "a header's name is none");
    if (scan->n_lengths + scan->n_encodings > 1)
        return refuse(request, MHD_HTTP_BAD_REQUEST,
                      "more than one of Content-Length and Transfer-Encoding");
    if (length && !request_parse_length(length, &request->content_length))
        return refuse(request, MHD_HTTP_BAD_REQUEST,
                      "Content-Length is no length");
    if (encoding && strcasecmp(encoding, "chunked") != 0)
        return refuse(request, MHD_HTTP_NOT_IMPLEMENTED,
                      "Transfer-Encoding is not chunked");
    request->must_close = false;
    request->has_length = length != NULL;
    request->is_chunked = encoding != NULL;
    return true;
}

static bool check_route(struct request *request)
{
    if (request->match.route)
        return true;
    if (request->match.allow[0])
        return refuse(request, MHD_HTTP_METHOD_NOT_ALLOWED,
                      "Method Not Allowed");
    return refuse(request, MHD_HTTP_NOT_FOUND, "Not Found");
}

/* Identity, or what body.c inflates. */
static bool check_encoding(struct request *request)
{
    const char *encoding = request_header(request, HEADER_CONTENT_ENCODING);
    if (!encoding || strcasecmp(encoding, "identity") == 0)
        return true;
    request->is_compressed = inflater_knows(encoding);
    return request->is_compressed ||
           refuse(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                  "Content-Encoding is not supported, expected gzip or "
                  "deflate, or none");
}

/* How large may the body be, and is it, as far as its headers say? */
static bool check_size(struct request *request, uint64_t limit,
                       const char *limit_name)
{
    const struct config *config = request->daemon->config;
    if (!check_encoding(request))
        return false;
    request->is_open_ended = request->is_chunked || request->is_compressed;
    request->body_limit = limit;
    request->limit_name = limit_name;
    if (request->is_compressed && config->max_inflated_bytes < limit) {
        request->body_limit = config->max_inflated_bytes;
        request->limit_name = "max_inflated_bytes";
    }
    if (request->content_length <= limit)
        return true;
    roped_fail(&request->error, ROPED_TOO_LARGE,
               "body of %llu bytes exceeds the maximum allowed %llu (%s)",
               (unsigned long long)request->content_length,
               (unsigned long long)limit, limit_name);
    return refuse_status(request);
}

static bool check_room(struct request *request)
{
    struct daemon *daemon = request->daemon;
    if (atomic_load(&daemon->is_quiescent))
        roped_fail(&request->error, ROPED_BUSY, "the server is shutting down");
    else if (!exec_has_room(daemon->exec))
        roped_fail(&request->error, ROPED_BUSY,
                   "Exceeds maximum queue size: %lld calls wait",
                   (long long)daemon->config->queue_depth);
    else
        return true;
    return refuse_status(request);
}

static bool admit_call(struct request *request)
{
    struct daemon *daemon = request->daemon;
    if (!check_size(request, daemon->config->max_body_bytes, "max_body_bytes"))
        return false;
    if (!call_begin(request))
        return refuse_status(request);
    if (!check_room(request))
        return false;
    return body_begin(request) ? refuse_status(request) : true;
}

static bool admit_tensor(struct request *request)
{
    struct daemon *daemon = request->daemon;
    if (!check_size(request, daemon->config->max_body_bytes,
                    "max_body_bytes") ||
        !check_room(request))
        return false;
    return body_begin(request) ? refuse_status(request) : true;
}

static bool admit(struct request *request, const struct header_scan *scan)
{
    if (!check_framing(request, scan) || !check_token(request) ||
        !check_route(request))
        return false;
    switch (request->match.route->body) {
    case ROUTE_BODY_IGNORED:
        return true;
    case ROUTE_BODY_JSON:
        if (!check_size(request, JSON_BODY_BYTES, "1 MiB for a document"))
            return false;
        return body_begin(request) ? refuse_status(request) : true;
    case ROUTE_BODY_TENSOR:
        return admit_tensor(request);
    case ROUTE_BODY_V1:
    case ROUTE_BODY_V2:
        return admit_call(request);
    }
    return true;
}

static void read_id(struct request *request)
{
    const char *id = request_header(request, HEADER_X_REQUEST_ID);
    size_t length = id ? strlen(id) : 0;
    if (length == 0 || length >= sizeof request->id)
        return;
    for (size_t i = 0; i < length; i++)
        if (id[i] < 0x21 || id[i] > 0x7E)
            return;
    memcpy(request->id, id, length + 1);
}

static bool has_body(const struct request *request)
{
    return request->match.route->body != ROUTE_BODY_IGNORED;
}

/* Reads on for a while only so that the client sees the answer. A client that
 * stalls meanwhile is cut off by the reaper a second later. */
static void start_dropping(struct request *request)
{
    const struct config *config = request->daemon->config;
    request->drop_until_ns = daemon_after_ns(config->refuse_drain_seconds);
    daemon_set_deadline(request->peer, request->drop_until_ns + 1000000000u);
}

static mhd_result answer_refusal(struct request *request)
{
    if (request->op)
        call_count_refusal(request);
    return reply_error(request, request->refusal_code, request->error.text);
}

mhd_result request_begin(struct request *request)
{
    const struct config *config = request->daemon->config;
    struct header_scan scan = {.request = request};
    MHD_get_connection_values_n(request->connection, MHD_HEADER_KIND,
                                scan_header, &scan);
    const char *expect = request_header(request, HEADER_EXPECT);
    read_id(request);
    daemon_set_deadline(request->peer,
                        request->started_ns +
                            (uint64_t)(config->body_timeout_seconds * 1e9));
    if (admit(request, &scan))
        return MHD_YES;
    /* an answer now ends the connection: after it the rest is not read */
    bool has_more = request->content_length > 0 || request->is_chunked;
    bool is_waiting =
        has_more && expect && strcasecmp(expect, "100-continue") == 0;
    if (request->must_close || is_waiting ||
        request->content_length > DROP_BYTES ||
        (request->content_length > 0 && config->refuse_drain_seconds <= 0))
        return answer_refusal(request);
    start_dropping(request);
    return MHD_YES; /* drop the body, then answer */
}

/* ------------------------------------------------------------------- body */

mhd_result request_receive(struct request *request, const char *data,
                           size_t bytes)
{
    if (request->first_byte_ns == 0)
        request->first_byte_ns = daemon_now_ns();
    if (request->refusal_code) { /* dropping, for a while */
        request->received += bytes;
        return daemon_now_ns() < request->drop_until_ns &&
                       request->received < DROP_BYTES
                   ? MHD_YES
                   : MHD_NO;
    }
    if (!has_body(request)) {
        request->received += bytes;
        return request->received <= JSON_BODY_BYTES ? MHD_YES : MHD_NO;
    }
    if (body_receive(request, data, bytes)) {
        (void)refuse_status(request);
        start_dropping(request);
    }
    return MHD_YES;
}

mhd_result request_finish(struct request *request)
{
    request->received_ns = daemon_now_ns();
    if (request->first_byte_ns == 0)
        request->first_byte_ns = request->received_ns;
    daemon_set_deadline(request->peer, 0);
    if (!request->refusal_code && has_body(request) && body_end(request))
        (void)refuse_status(request);
    if (request->refusal_code)
        return answer_refusal(request);
    request->match.route->handler(request);
    bool is_under_way = atomic_load(&request->state) != REQUEST_RECEIVING;
    return request->has_answered || is_under_way ? MHD_YES : MHD_NO;
}
