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
#include "http/protocol.h"

#include <string.h>
#include <strings.h>

/* More than this is not read only to be dropped. */
enum { DROP_BYTES = 1 << 30 };

/* What the pieces of a request see of each other. */
static void lend(struct request *request)
{
    struct call *call = &request->call;
    call->service = request->service;
    call->head = &request->head;
    call->body = &request->body;
    call->name = request->match.capture;
    call->version = request->match.second;
    call->answer = &request->answer;
    call->error = &request->answer.error;
    call->job = &request->job;
    request->transfer = (struct transfer){.exec = request->service->exec,
                                          .head = &request->head,
                                          .body = &request->body,
                                          .name = request->match.capture,
                                          .answer = &request->answer,
                                          .error = &request->answer.error,
                                          .job = &request->job};
    request->run.call = call;
}

void request_init(struct request *request, struct service *service)
{
    struct memory_pool *pool = exec_memory(service->exec);
    /* 3 of 28 KiB: the rest is written before it is read */
    memset(request, 0, offsetof(struct request, call));
    memset(&request->head, 0, offsetof(struct head, parameter));
    call_init(&request->call);
    answer_init(&request->answer, pool);
    exec_job_init(&request->job);
    request->service = service;
    request->body.pool = pool;
    request->body.started_ns = clock_now_ns();
    lend(request);
}

/* Gives back the blocks that nobody needs any more. keep: one that holds these
 * bytes stays. */
static void release_blocks(struct request *request, const void *keep)
{
    struct memory_block *blocks[] = {
        &request->body.block,  &request->call.json,  &request->call.values,
        &request->call.out,    &request->call.times, &request->transfer.out,
        &request->answer.text, &request->run.memory, &request->answer.packed};
    const unsigned char *kept = keep;
    struct executor *exec = request->service->exec;
    exec_inbox_abandon(exec, &request->job, &request->body.block);
    run_give(&request->run);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        bool is_kept = kept && blocks[i]->start && kept >= blocks[i]->start &&
                       kept < blocks[i]->start + blocks[i]->bytes;
        if (!is_kept)
            memory_give(exec_memory(exec), blocks[i]);
    }
}

void request_fini(struct request *request)
{
    struct executor *exec = request->service->exec;
    release_blocks(request, NULL);
    if (request->call.op)
        call_give_regions(&request->call);
    tables_give(exec_tables(exec), request->job.table);
    regions_give(exec_regions(exec), request->transfer.region);
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
    return accept(request,
                  roped_fail(&request->answer.error, status, "%s", text));
}

static bool check_framing(struct request *request)
{
    struct framing framing;
    enum roped_status status =
        head_framing(&request->head, &framing, &request->answer.error);
    request->must_close = status != ROPED_OK;
    request->body.length = framing.content_length;
    request->body.is_open_ended = framing.is_chunked;
    return accept(request, status);
}

static bool check_origin(struct request *request)
{
    return accept(request,
                  origin_check(&request->service->origins, &request->head,
                               &request->answer.error));
}

static bool check_access(struct request *request)
{
    const struct gate *gate = &request->service->gate;
    const struct route *route = request->match.route;
    enum roped_status status =
        gate_check(gate, route ? route->scope : SCOPE_ANY, &request->head,
                   &request->caller, &request->answer.error);
    request->call.tenant = request->transfer.tenant = request->caller.tenant;
    request->transfer.is_guarded = gate_is_guarded(gate);
    return accept(request, status);
}

/* Why there is no route for it. */
static enum roped_status refuse_path(const struct head *head,
                                     const struct route_match *match,
                                     struct roped_error *err)
{
    char near[128];
    const char *method = head->method;
    if (match->allow[0])
        return roped_fail(err, ROPED_WRONG_METHOD,
                          "no route '%.16s %.160s': the method is wrong, "
                          "expected %s",
                          method, head->path, match->allow);
    if (match->is_long)
        return roped_fail(err, ROPED_INVALID,
                          "a name in the path is empty, longer than 63 bytes, "
                          "or not printable");
    route_nearest(strcmp(method, "HEAD") == 0 ? "GET" : method, head->path,
                  near, sizeof near);
    return roped_fail(err, ROPED_NO_ROUTE,
                      "no route '%.16s %.160s'%s GET /openapi.json lists "
                      "them, GET /v1 the operators",
                      method, head->path, near[0] ? near : ";");
}

static bool check_route(struct request *request)
{
    const struct route *route = request->match.route;
    if (route && request->is_admin && route->kind != ROUTE_ADMIN)
        return refuse(request, ROPED_NO_ROUTE,
                      "admin_listen has health and metrics alone");
    return route || accept(request, refuse_path(&request->head, &request->match,
                                                &request->answer.error));
}

static enum roped_status check_room(const struct service *service,
                                    struct roped_error *err)
{
    const char *refusal = exec_refusal(service->exec);
    if (refusal)
        return roped_fail(err, ROPED_DRAINING, "%s", refusal);
    if (exec_has_room(service->exec))
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "Exceeds maximum queue size: %lld calls wait",
                      (long long)service->config->queue_depth);
}

static enum roped_status admit_tensors(struct request *request)
{
    const struct config *config = request->service->config;
    const struct body_limit limit = {(uint64_t)config->max_body_bytes,
                                     (uint64_t)config->max_inflated_bytes,
                                     "max_body_bytes"};
    enum body_kind kind = request->body.kind;
    enum roped_status status = ROPED_OK;
    request->call.protocol = kind == BODY_V2 ? &protocol_v2 : &protocol_v1;
    if (kind == BODY_V1 || kind == BODY_V2)
        status = call_begin(&request->call);
    else if (kind == BODY_PROGRAM)
        status = run_begin(&request->run);
    if (kind == BODY_V2 && status == ROPED_NO_OPERATOR)
        status = run_begin_model(&request->run);
    if (!status)
        status = check_room(request->service, &request->answer.error);
    return status ? status
                  : body_begin(&request->body, &request->head, &limit,
                               &request->answer.error);
}

static enum roped_status admit_body(struct request *request)
{
    struct body *body = &request->body;
    const struct body_limit limit = {
        JSON_BODY_BYTES, (uint64_t)request->service->config->max_inflated_bytes,
        "1 MiB for a document"};
    body->kind = request->match.route->body;
    switch (body->kind) {
    case BODY_IGNORED:
    case BODY_JSON:
        break;
    case BODY_TENSOR:
    case BODY_V1:
    case BODY_PROGRAM:
    case BODY_V2:
        return admit_tensors(request);
    }
    return body_begin(body, &request->head, &limit, &request->answer.error);
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

/* X-Request-Id, or NULL: what is not printable is none. */
static void read_id(const char *id, char out[REQUEST_ID_BYTES])
{
    size_t length = id ? strlen(id) : 0;
    if (length == 0 || length >= REQUEST_ID_BYTES)
        return;
    for (size_t i = 0; i < length; i++)
        if (id[i] < 0x21 || id[i] > 0x7E)
            return;
    memcpy(out, id, length + 1);
}

bool request_begin(struct request *request)
{
    const char *expect = head_value(&request->head, HEADER_EXPECT);
    const struct body *body = &request->body;
    route_find(request->head.method, request->head.path,
               head_value(&request->head, HEADER_ACCEPT), &request->match);
    read_id(head_value(&request->head, HEADER_X_REQUEST_ID), request->id);
    request->caller.name = "";
    if (request->service->config->compress_answers)
        request->answer.accepted =
            head_value(&request->head, HEADER_ACCEPT_ENCODING);
    if (admit(request))
        return true;
    /* a refusal now ends the connection: after it nothing more is read */
    bool has_more = body->length > 0 || body->is_open_ended;
    bool is_waiting =
        has_more && expect && strcasecmp(expect, "100-continue") == 0;
    return !request->must_close && !is_waiting && body->length <= DROP_BYTES;
}

/* ------------------------------------------------------------------- body */

static bool drop(struct body *body, size_t bytes)
{
    body->received += bytes;
    return body->received <= DROP_BYTES;
}

/* A call or a tensor is checked as soon as that can be. */
static enum roped_status decode(struct request *request)
{
    struct body *body = &request->body;
    body->is_decoded = true;
    enum roped_status status = request->call.op || request->call.run
                                   ? call_decode(&request->call)
                                   : transfer_decode(&request->transfer);
    return status ? body_explain(body, status, &request->answer.error) : status;
}

static enum roped_status receive(struct request *request, const char *data,
                                 size_t bytes)
{
    struct body *body = &request->body;
    enum roped_status status =
        body_receive(body, data, bytes, &request->answer.error);
    if (!status && body_can_decode(body)) {
        status = decode(request);
        if (!status)
            call_open_inbox(&request->call);
    }
    if (!status)
        exec_inbox_advance(&request->job, body->at + body->received);
    return status;
}

bool request_receive(struct request *request, const char *data, size_t bytes)
{
    struct body *body = &request->body;
    if (body->first_byte_ns == 0)
        body->first_byte_ns = clock_now_ns();
    if (request->is_refused || !request->match.route)
        return drop(body, bytes);
    if (body->kind != BODY_IGNORED) {
        (void)accept(request, receive(request, data, bytes));
        return true;
    }
    if (body->received + bytes > JSON_BODY_BYTES)
        (void)refuse(request, ROPED_TOO_LARGE, "this route takes no body");
    return drop(body, bytes);
}

/* --------------------------------------------------------------- handling */

static struct reply refusal(struct request *request)
{
    if (request->call.op || request->call.run)
        call_count_refusal(&request->call);
    return reply_status(&request->answer, &request->answer.error);
}

/* Inflates and decodes what has not been. */
static enum roped_status finish_body(struct request *request)
{
    struct body *body = &request->body;
    enum roped_status status = body_finish(body, &request->answer.error);
    return status || body->is_decoded || !body_has_header(body)
               ? status
               : decode(request);
}

static struct reply handle(struct request *request)
{
    if (request->body.kind != BODY_IGNORED &&
        !accept(request, finish_body(request)))
        return refusal(request);
    return request->match.route->handler(request);
}

/* What a document becomes while it is read, many times its size, counts
 * against the memory of requests. */
static enum roped_status reserve_tree(const struct body *body,
                                      struct memory_block *block,
                                      struct roped_error *err)
{
    enum { TREE_BYTES = 32 }; /* of a byte of text */
    size_t text = body->kind == BODY_JSON      ? (size_t)body->received
                  : body->kind == BODY_PROGRAM ? body->header_bytes
                                               : 0;
    *block = (struct memory_block){.bytes = 0};
    return text ? memory_take(body->pool, text * TREE_BYTES, block, err)
                : ROPED_OK;
}

/* An errand: the handler, or reading the body for it, takes its time. */
static enum roped_status handle_on_lane(struct exec_job *job)
{
    struct request *request = job->context;
    struct memory_block tree;
    enum roped_status status = reserve_tree(&request->body, &tree, &job->error);
    if (!status)
        request->answer.pending = handle(request);
    memory_give(request->body.pool, &tree);
    return status;
}

static struct reply take_pending(void *context)
{
    struct request *request = context;
    struct answer *answer = &request->answer;
    if (!answer->errand.status)
        return answer->pending;
    answer->error = answer->errand.error; /* its handler was not reached */
    return refusal(request);
}

/* What is sent, or what is to be done before that. */
static struct reply conclude(struct request *request, struct reply reply)
{
    if (reply.code)
        reply = reply_pack(&request->answer, &reply);
    request->then = reply.then;
    request->context = reply.context;
    if (reply.code)
        release_blocks(request, reply.data);
    return reply;
}

struct reply request_end(struct request *request)
{
    struct body *body = &request->body;
    const struct route *route = request->match.route;
    body->received_ns = clock_now_ns();
    if (body->first_byte_ns == 0)
        body->first_byte_ns = body->received_ns;
    if (!request->is_refused && route && body->kind != BODY_IGNORED)
        (void)accept(request, body_end(body, &request->answer.error));
    if (request->is_refused)
        return conclude(request, refusal(request));
    if (is_preflight(request))
        return conclude(request, reply_bytes(204, NULL, "", 0));
    bool is_long = route->kind == ROUTE_LONG;
    if (!is_long && !body_is_long(body))
        return conclude(request, handle(request));
    return conclude(request,
                    reply_errand(&request->answer, handle_on_lane,
                                 is_long ? UINT64_MAX : body_work(body),
                                 take_pending, request));
}

struct reply request_resume(struct request *request)
{
    return conclude(request, request->then(request->context));
}

void request_job_ended(struct request *request, struct exec_job *job)
{
    /* not when the answer is sent: a slow reader would keep them alive */
    if (job == &request->job && request->call.op)
        call_give_regions(&request->call);
    if (job == &request->job)
        run_give_regions(&request->run);
}

/* The server's longest wait for a lane, or the v2 client's own if shorter. */
uint64_t request_deadline_ns(const struct request *request)
{
    double seconds = request->service->config->queue_timeout_seconds;
    double asked = (double)request->call.timeout_us * 1e-6;
    seconds = asked > 0 && asked < seconds ? asked : seconds;
    return request->body.received_ns + (uint64_t)(seconds * 1e9);
}
