/*
 * request.c - the life of a request: what its head decides, what is refused,
 * and when its handler runs.
 *
 * A client that is refused while it still sends would often see a reset
 * connection instead of the answer. So a refusal without 'Expect:
 * 100-continue' drops the rest of the body, for as long as it comes no slower
 * than bodies must, and answers then.
 */
#include "http/request.h"

#include "http/clock.h"

#include <string.h>
#include <strings.h>

enum {
    JSON_BODY_BYTES = 1 << 20,
    DROP_BYTES = 1 << 30 /* more than this is not read only to be dropped */
};

void request_init(struct request *request, struct service *service)
{
    /* 2.5 of 28 KiB: the rest is written before it is read */
    memset(request, 0,
           offsetof(struct request, head) + offsetof(struct head, parameter));
    exec_job_init(&request->job);
    request->error.status = ROPED_OK;
    request->error.text[0] = '\0';
    request->service = service;
    request->started_ns = clock_now_ns();
}

/* Gives back the blocks that nobody needs any more. keep: one that holds these
 * bytes stays. */
static void release_blocks(struct request *request, const void *keep)
{
    struct memory_block *blocks[] = {&request->body.block, &request->json,
                                     &request->values, &request->out,
                                     &request->text};
    const unsigned char *kept = keep;
    struct memory_pool *pool = exec_memory(request->service->exec);
    exec_inbox_abandon(request->service->exec, &request->job,
                       &request->body.block);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        bool is_kept = kept && blocks[i]->start && kept >= blocks[i]->start &&
                       kept < blocks[i]->start + blocks[i]->bytes;
        if (!is_kept)
            memory_give(pool, blocks[i]);
    }
}

static void release_regions(struct request *request)
{
    struct regions *regions = exec_regions(request->service->exec);
    struct exec_job *job = &request->job;
    if (!request->call.op) /* there is no call */
        return;
    for (int i = 0; i < job->call.n_in; i++) {
        regions_give(regions, job->in[i].region);
        job->in[i].region = NULL;
    }
    for (int i = 0; i < job->call.n_out; i++) {
        regions_give(regions, job->out[i].region);
        job->out[i] = (struct exec_place){.region = NULL};
    }
}

void request_fini(struct request *request)
{
    struct executor *exec = request->service->exec;
    release_blocks(request, NULL);
    release_regions(request);
    tables_give(exec_tables(exec), request->job.table);
    regions_give(exec_regions(exec), request->region);
}

/* ------------------------------------------------------------------- head */

/* True where status is ROPED_OK; else the refusal is that of the error. */
static bool accept(struct request *request, enum roped_status status)
{
    request->is_refused |= status != ROPED_OK;
    return status == ROPED_OK;
}

static bool refuse(struct request *request, enum roped_status status,
                   const char *text)
{
    return accept(request, roped_fail(&request->error, status, "%s", text));
}

static bool check_framing(struct request *request)
{
    struct framing framing;
    enum roped_status status =
        head_framing(&request->head, &framing, &request->error);
    request->must_close = status != ROPED_OK;
    request->body.length = framing.content_length;
    request->body.is_open_ended = framing.is_chunked;
    return accept(request, status);
}

static bool check_origin(struct request *request)
{
    return accept(request, origin_check(&request->service->origins,
                                        &request->head, &request->error));
}

static bool check_access(struct request *request)
{
    return accept(request, gate_check(&request->service->gate,
                                      request->match.route, &request->head,
                                      &request->caller, &request->error));
}

static bool refuse_path(struct request *request)
{
    char near[128];
    const struct head *head = &request->head;
    const char *method = head->method;
    if (request->match.allow[0])
        return accept(
            request, roped_fail(&request->error, ROPED_WRONG_METHOD,
                                "no route '%.16s %.160s': the method is wrong, "
                                "expected %s",
                                method, head->path, request->match.allow));
    if (request->match.is_long)
        return refuse(request, ROPED_INVALID,
                      "a name in the path is empty, longer than 63 bytes, or "
                      "not printable");
    route_nearest(strcmp(method, "HEAD") == 0 ? "GET" : method, head->path,
                  near, sizeof near);
    return accept(
        request, roped_fail(&request->error, ROPED_NO_ROUTE,
                            "no route '%.16s %.160s'%s GET /openapi.json lists "
                            "them, GET /v1 the operators",
                            method, head->path, near[0] ? near : ";"));
}

static bool check_route(struct request *request)
{
    const struct route *route = request->match.route;
    if (route && request->is_admin && route->kind != ROUTE_ADMIN)
        return refuse(request, ROPED_NO_ROUTE,
                      "admin_listen has health and metrics alone");
    return route || refuse_path(request);
}

static enum roped_status check_room(struct request *request)
{
    struct service *service = request->service;
    const char *refusal = exec_refusal(service->exec);
    if (refusal)
        return roped_fail(&request->error, ROPED_DRAINING, "%s", refusal);
    if (exec_has_room(service->exec))
        return ROPED_OK;
    return roped_fail(&request->error, ROPED_BUSY,
                      "Exceeds maximum queue size: %lld calls wait",
                      (long long)service->config->queue_depth);
}

static enum roped_status admit_tensors(struct request *request, bool is_call)
{
    enum roped_status status = is_call ? call_begin(request) : ROPED_OK;
    if (!status)
        status = check_room(request);
    return status
               ? status
               : body_begin(request, request->service->config->max_body_bytes,
                            "max_body_bytes");
}

static enum roped_status admit_body(struct request *request)
{
    enum route_body body = request->match.route->body;
    switch (body) {
    case ROUTE_BODY_IGNORED:
    case ROUTE_BODY_JSON:
        break;
    case ROUTE_BODY_TENSOR:
    case ROUTE_BODY_V1:
    case ROUTE_BODY_V2:
        return admit_tensors(request, body != ROUTE_BODY_TENSOR);
    }
    return body_begin(request, JSON_BODY_BYTES, "1 MiB for a document");
}

static bool is_preflight(const struct request *request)
{
    return origin_is_preflight(&request->service->origins, &request->head);
}

static bool admit(struct request *request)
{
    if (!check_framing(request) || !check_origin(request))
        return false;
    if (is_preflight(request)) /* a browser asks without its token */
        return true;
    return check_access(request) && check_route(request) &&
           accept(request, admit_body(request));
}

static void read_id(struct request *request)
{
    const char *id = head_value(&request->head, HEADER_X_REQUEST_ID);
    size_t length = id ? strlen(id) : 0;
    if (length == 0 || length >= sizeof request->id)
        return;
    for (size_t i = 0; i < length; i++)
        if (id[i] < 0x21 || id[i] > 0x7E)
            return;
    memcpy(request->id, id, length + 1);
}

bool request_begin(struct request *request)
{
    const char *expect = head_value(&request->head, HEADER_EXPECT);
    const struct body *body = &request->body;
    route_find(request->head.method, request->head.path,
               head_value(&request->head, HEADER_ACCEPT), &request->match);
    read_id(request);
    request->caller.name = "";
    if (admit(request))
        return true;
    /* a refusal now ends the connection: after it nothing more is read */
    bool has_more = body->length > 0 || body->is_open_ended;
    bool is_waiting =
        has_more && expect && strcasecmp(expect, "100-continue") == 0;
    return !request->must_close && !is_waiting && body->length <= DROP_BYTES;
}

/* ------------------------------------------------------------------- body */

static bool drop(struct request *request, size_t bytes)
{
    request->body.received += bytes;
    return request->body.received <= DROP_BYTES;
}

bool request_receive(struct request *request, const char *data, size_t bytes)
{
    const struct route *route = request->match.route;
    if (request->first_byte_ns == 0)
        request->first_byte_ns = clock_now_ns();
    if (request->is_refused || !route)
        return drop(request, bytes);
    if (route->body != ROUTE_BODY_IGNORED) {
        (void)accept(request, body_receive(request, data, bytes));
        return true;
    }
    if (request->body.received + bytes > JSON_BODY_BYTES)
        (void)refuse(request, ROPED_TOO_LARGE, "this route takes no body");
    return drop(request, bytes);
}

/* --------------------------------------------------------------- handling */

static struct reply refusal(struct request *request)
{
    if (request->call.op)
        call_count_refusal(request);
    return reply_status(request, &request->error);
}

static struct reply handle(struct request *request)
{
    if (request->match.route->body != ROUTE_BODY_IGNORED &&
        !accept(request, body_finish(request)))
        return refusal(request);
    return request->match.route->handler(request);
}

/* What a document becomes while it is read, many times its size, counts
 * against the memory of requests. */
static enum roped_status reserve_tree(struct request *request,
                                      struct memory_block *block,
                                      struct roped_error *err)
{
    enum { TREE_BYTES = 32 }; /* of a byte of text */
    bool is_document = request->match.route->body == ROUTE_BODY_JSON;
    *block = (struct memory_block){.bytes = 0};
    return is_document
               ? memory_take(exec_memory(request->service->exec),
                             (size_t)request->body.received * TREE_BYTES, block,
                             err)
               : ROPED_OK;
}

/* An errand: the handler, or reading the body for it, takes its time. */
static enum roped_status handle_on_lane(struct exec_job *job)
{
    struct request *request = job->owner;
    struct memory_block tree;
    enum roped_status status = reserve_tree(request, &tree, &job->error);
    if (!status)
        request->pending = handle(request);
    memory_give(exec_memory(request->service->exec), &tree);
    return status;
}

static struct reply take_pending(struct request *request)
{
    if (request->errand.status)
        return reply_status(request, &request->errand.error);
    return request->pending;
}

/* What is sent, or what is to be done before that. */
static struct reply conclude(struct request *request, struct reply reply)
{
    if (reply.code)
        reply = reply_pack(request, &reply);
    request->then = reply.then;
    if (reply.code)
        release_blocks(request, reply.data);
    return reply;
}

struct reply request_end(struct request *request)
{
    request->received_ns = clock_now_ns();
    if (request->first_byte_ns == 0)
        request->first_byte_ns = request->received_ns;
    if (!request->is_refused && request->match.route &&
        request->match.route->body != ROUTE_BODY_IGNORED)
        (void)accept(request, body_end(request));
    if (request->is_refused)
        return conclude(request, refusal(request));
    if (is_preflight(request))
        return conclude(request, reply_bytes(204, NULL, "", 0));
    bool is_long = request->match.route->kind == ROUTE_LONG;
    if (!is_long && !body_is_long(request))
        return conclude(request, handle(request));
    return conclude(request,
                    reply_errand(request, handle_on_lane,
                                 is_long ? UINT64_MAX : body_work(request),
                                 take_pending));
}

struct reply request_resume(struct request *request)
{
    return conclude(request, request->then(request));
}

void request_job_ended(struct request *request, struct exec_job *job)
{
    /* not when the answer is sent: a slow reader would keep them alive */
    if (job == &request->job)
        release_regions(request);
}

/* The server's longest wait for a lane, or the v2 client's own if shorter. */
uint64_t request_deadline_ns(const struct request *request)
{
    double seconds = request->service->config->queue_timeout_seconds;
    double asked = (double)request->call.timeout_us * 1e-6;
    seconds = asked > 0 && asked < seconds ? asked : seconds;
    return request->received_ns + (uint64_t)(seconds * 1e9);
}
