/*
 * call.c - a request that is a call of an operator: from its header to a job,
 * from the finished job to its answer.
 */
#include "exec/places.h"
#include "http/call_regions.h"
#include "http/daemon_internal.h"
#include "http/job.h"
#include "http/reply.h"
#include "wire/safetensors.h"
#include "wire/v1.h"

#include <string.h>
#include <strings.h>

enum { OUT_ALIGNMENT = 64, JSON_OUTPUT_ELEMENTS = 1 << 20 };

static bool is_v2(const struct request *request)
{
    return request->transport == METRICS_V2;
}

/* The operator, or the demo, of the path; NULL: there is none. */
static const struct roped_op *find_op(const struct request *request)
{
    struct model model;
    const char *name = request->match.capture;
    if (!is_v2(request))
        return roped_op_find(name);
    return models_find(request->daemon->models, name, &model) ? model.op : NULL;
}

bool call_begin(struct request *request)
{
    const struct route_match *match = &request->match;
    bool has_version = match->second[0] && strcmp(match->second, "1") != 0;
    request->transport =
        match->route->body == ROUTE_BODY_V2 ? METRICS_V2 : METRICS_V1;
    request->op = find_op(request);
    if (request->op && !has_version) {
        roped_call_init(&request->job.call, request->op);
        return true;
    }
    request->op = NULL;
    if (is_v2(request))
        roped_fail(&request->error, ROPED_NOT_FOUND,
                   "Request for unknown model: '%s'%s%s is not found",
                   match->capture, has_version ? " version " : "",
                   has_version ? match->second : "");
    else
        roped_fail(&request->error, ROPED_NOT_FOUND,
                   "no operator '%s'; GET /v1 lists them", match->capture);
    return false;
}

/* ----------------------------------------------------------------- decode */

static enum roped_status use_table(struct request *request, const char *name)
{
    struct exec_job *job = &request->job;
    struct roped_error *err = &request->error;
    if (job->table)
        return roped_fail(err, ROPED_INVALID,
                          "parameter 'table' is given twice");
    enum roped_status status =
        tables_take(exec_tables(request->daemon->exec), name, &job->table, err);
    if (status)
        return status;
    return roped_call_use_angles(&job->call, tables_set(job->table), err);
}

static enum roped_status set_param(struct request *request, const char *name,
                                   const char *value)
{
    if (!value)
        value = "";
    if (strcmp(name, "table") == 0)
        return use_table(request, value);
    if (strcmp(name, "fp8") == 0) {
        if (request->has_fp8)
            return roped_fail(&request->error, ROPED_INVALID,
                              "parameter 'fp8' is given twice");
        request->has_fp8 = true;
        request->fp8_as_u8 = strcmp(value, "u8") == 0;
        if (request->fp8_as_u8 || strcmp(value, "native") == 0)
            return ROPED_OK;
        return roped_fail(&request->error, ROPED_INVALID,
                          "parameter 'fp8': '%.32s', expected native or u8",
                          value);
    }
    return roped_call_set_text(&request->job.call, name, value,
                               &request->error);
}

struct query {
    struct request *request;
    enum roped_status status;
    struct region_refs regions;
};

static enum roped_status read_param(struct query *query, const char *name,
                                    const char *value)
{
    struct request *request = query->request;
    bool is_region;
    enum roped_status status =
        region_refs_read(&query->regions, request->op, name, value ? value : "",
                         &is_region, &request->error);
    return status || is_region ? status : set_param(request, name, value);
}

static mhd_result read_argument(void *context, enum MHD_ValueKind kind,
                                const char *key, size_t key_bytes,
                                const char *value, size_t value_bytes)
{
    struct query *query = context;
    (void)kind;
    /* an encoded NUL would make a text shorter than what was sent */
    if (strlen(key) != key_bytes || (value && strlen(value) != value_bytes))
        query->status =
            roped_fail(&query->request->error, ROPED_INVALID,
                       "parameter '%.32s': NUL in its name or value", key);
    else
        query->status = read_param(query, key, value);
    return query->status ? MHD_NO : MHD_YES;
}

static enum roped_status decode_v1(struct request *request)
{
    struct query query;
    query.request = request;
    query.status = ROPED_OK;
    query.regions.n = 0;
    MHD_get_connection_values_n(request->connection, MHD_GET_ARGUMENT_KIND,
                                read_argument, &query);
    enum roped_status status = query.status;
    unsigned char *body = request->body.start + request->body_at;
    if (!status && request->content_length > 0) /* else all is in regions */
        status = v1_read_request(&request->job.call, body,
                                 request->header_bytes, request->content_length,
                                 body + request->header_bytes, &request->error);
    if (!status)
        status = call_take_regions(request, &query.regions);
    return status ? status : call_bind_regions(request, &query.regions);
}

/* A raw tensor without the header that says so is taken for JSON. */
static enum roped_status hint_at_raw(struct request *request)
{
    struct roped_error *err = &request->error, was = *err;
    const char *type = request_header(request, HEADER_CONTENT_TYPE);
    if (strncmp(was.text, "failed to parse", 15) != 0 || !type ||
        strcasecmp(type, "application/octet-stream") != 0 ||
        request_header(request, HEADER_INFERENCE_LENGTH))
        return was.status;
    return roped_fail(err, was.status,
                      "%.400s (a body without JSON needs "
                      "'Inference-Header-Content-Length: 0')",
                      was.text);
}

static enum roped_status decode_v2(struct request *request)
{
    const char *json = (const char *)request->body.start + request->body_at;
    struct roped_call *call = &request->job.call;
    struct kserve_request *v2 = &request->v2;
    uint64_t binary_bytes = request->content_length - request->header_bytes;
    unsigned char *binary =
        request->body.start + request->body_at + request->header_bytes;
    if (request->is_raw)
        return kserve_read_raw(call, binary, binary_bytes, v2, &request->error);
    enum roped_status status =
        kserve_read_request(call, json, request->header_bytes, binary,
                            binary_bytes, v2, &request->error);
    if (status)
        return hint_at_raw(request);
    if (v2->table[0])
        status = use_table(request, v2->table);
    return status ? status : call_take_regions(request, &v2->regions);
}

static bool is_sent(const struct request *request, int output)
{
    return roped_tensor_given(&request->job.call.out[output]) &&
           !(request->kept >> output & 1);
}

/* Values as JSON are text, many times the size of what they say. */
static enum roped_status check_json_outputs(struct request *request)
{
    const struct roped_call *call = &request->job.call;
    for (int i = 0; i < request->v2.n_outputs; i++) {
        int port = request->v2.output[i].port;
        int64_t n = roped_tensor_elements(&call->out[port]);
        if (!request->v2.output[i].is_binary && is_sent(request, port) &&
            n > JSON_OUTPUT_ELEMENTS)
            return roped_fail(&request->error, ROPED_TOO_LARGE,
                              "output '%s': %lld elements, expected at most "
                              "%d as JSON: ask for it with binary_data",
                              call->op->out[port].name, (long long)n,
                              JSON_OUTPUT_ELEMENTS);
    }
    return ROPED_OK;
}

enum roped_status call_decode(struct request *request)
{
    enum roped_status status =
        is_v2(request) ? decode_v2(request) : decode_v1(request);
    if (!status)
        status = roped_call_resolve(&request->job.call, &request->error);
    if (!status)
        status = call_check_regions(request);
    request->kept = request->v2.kept = call_kept_outputs(request);
    if (!status && is_v2(request))
        status = kserve_check_outputs(&request->job.call, &request->v2,
                                      &request->error);
    if (!status && is_v2(request))
        status = check_json_outputs(request);
    return status;
}

/* ------------------------------------------------------------------ start */

static enum roped_status read_json_tensors(struct request *request)
{
    if (request->v2.json_tensor_bytes == 0)
        return ROPED_OK;
    enum roped_status status = memory_take(
        exec_memory(request->daemon->exec),
        (size_t)request->v2.json_tensor_bytes, &request->json, &request->error);
    if (status)
        return status;
    const char *json = (const char *)request->body.start + request->body_at;
    return kserve_read_json_tensors(&request->job.call, json,
                                    request->header_bytes, &request->v2,
                                    request->json.start, &request->error);
}

/* Writes the answer's header into request->header, where that can be done
 * before the values exist; finds each output's place behind it. */
static enum roped_status write_header(struct request *request,
                                      struct buffer *header, uint64_t *offset,
                                      uint64_t *data_bytes)
{
    const struct roped_call *call = &request->job.call;
    buffer_init_fixed(header, request->header, sizeof request->header);
    if (!is_v2(request))
        return v1_write_response_header(header, call, request->kept,
                                        request->fp8_as_u8, offset, data_bytes,
                                        &request->error);
    if (kserve_is_binary_answer(&request->v2))
        return kserve_write_response(header, call, &request->v2, offset,
                                     data_bytes, &request->error);
    *data_bytes = 0; /* values go into the JSON: aligned places of their own */
    for (int i = 0; i < call->n_out; i++) {
        offset[i] = *data_bytes;
        if (is_sent(request, i))
            *data_bytes += ((uint64_t)roped_tensor_bytes(&call->out[i]) +
                            OUT_ALIGNMENT - 1) /
                           OUT_ALIGNMENT * OUT_ALIGNMENT;
    }
    return ROPED_OK;
}

/* Outputs that a v2 client did not ask for are computed all the same: their
 * places follow those of the answer. */
static uint64_t place_unasked(struct request *request, uint64_t *offset,
                              uint64_t at)
{
    bool is_asked[ROPED_MAX_OUTPUTS] = {false};
    if (!is_v2(request) || !kserve_is_binary_answer(&request->v2))
        return at;
    for (int i = 0; i < request->v2.n_outputs; i++)
        is_asked[request->v2.output[i].port] = true;
    for (int i = 0; i < request->job.call.n_out; i++) {
        const struct roped_tensor *out = &request->job.call.out[i];
        if (is_asked[i] || !is_sent(request, i))
            continue;
        at = (at + OUT_ALIGNMENT - 1) / OUT_ALIGNMENT * OUT_ALIGNMENT;
        offset[i] = at;
        at += (uint64_t)roped_tensor_bytes(out);
    }
    return at;
}

static enum roped_status place_answer(struct request *request)
{
    uint64_t offset[ROPED_MAX_OUTPUTS] = {0}, data_bytes;
    struct roped_call *call = &request->job.call;
    struct buffer header;
    enum roped_status status =
        write_header(request, &header, offset, &data_bytes);
    if (status)
        return status;
    uint64_t places = place_unasked(request, offset, data_bytes);
    size_t pad = (OUT_ALIGNMENT - header.bytes % OUT_ALIGNMENT) % OUT_ALIGNMENT;
    status =
        memory_take(exec_memory(request->daemon->exec),
                    pad + header.bytes + (size_t)places + 2 * REPLY_BLOCK_TAIL,
                    &request->out, &request->error);
    if (status)
        return status;
    request->answer_at = pad;
    request->answer_bytes = header.bytes + (size_t)data_bytes;
    if (header.bytes)
        memcpy(request->out.start + pad, header.text, header.bytes);
    request->v2.binary_bytes = header.bytes; /* now: the answer's JSON */
    for (int i = 0; i < call->n_out; i++)
        if (is_sent(request, i))
            call->out[i].data =
                request->out.start + pad + header.bytes + offset[i];
    return ROPED_OK;
}

/* Index values in regions are read out when the job runs, into this. */
static enum roped_status take_values(struct request *request)
{
    uint64_t bytes = places_value_bytes(&request->job);
    if (bytes == 0)
        return ROPED_OK;
    enum roped_status status =
        memory_take(exec_memory(request->daemon->exec), (size_t)bytes,
                    &request->values, &request->error);
    request->job.values = request->values.start;
    return status;
}

static enum roped_status prepare(struct request *request)
{
    enum roped_status status = ROPED_OK;
    bool is_empty = request->content_length == 0;
    if (!request->is_decoded && is_v2(request))
        return roped_fail(&request->error, ROPED_INVALID,
                          "failed to parse the request JSON buffer: it is "
                          "empty at 0");
    if (!request->is_decoded && !is_empty)
        return roped_fail(&request->error, ROPED_INVALID,
                          "body of %llu bytes ends before its header does",
                          (unsigned long long)request->received);
    if (!request->is_decoded)
        status = call_decode(request);
    if (!status && is_v2(request))
        status = read_json_tensors(request);
    if (!status)
        status = take_values(request);
    return status ? status : place_answer(request);
}

static bool is_pinned(const struct memory_block *block)
{
    return !block->start || block->is_pinned;
}

static void call_answer(struct request *request);

void call_start(struct request *request)
{
    struct exec_job *job = &request->job;
    if (prepare(request)) {
        job->status = request->error.status;
        job->error = request->error;
        call_answer(request);
        return;
    }
    if (demo_is(request->op)) {
        job->work = EXEC_TASK;
        job->task = call_run_demo;
        job->task_bytes = (uint64_t)roped_call_bytes(&job->call);
    }
    job->is_pinned = is_pinned(&request->body) && is_pinned(&request->out) &&
                     is_pinned(&request->json) && is_pinned(&request->values);
    job_run(request, call_answer);
}

/* ----------------------------------------------------------------- answer */

static void count(const struct request *request, enum roped_status status,
                  uint64_t response_bytes)
{
    const struct exec_timing *timing = &request->job.timing;
    struct metrics_call call = {
        .op = models_index(request->daemon->models, request->op),
        .status = status,
        .transport = request->transport,
        .total_ns = daemon_now_ns() - request->started_ns,
        .request_bytes = request->received,
        .response_bytes = response_bytes,
        .stage_ns = {[METRICS_RECEIVE] =
                         request->received_ns - request->first_byte_ns,
                     [METRICS_QUEUE] = timing->queue_ns,
                     [METRICS_PLAN] = timing->plan_ns,
                     [METRICS_H2D] = timing->h2d_ns,
                     [METRICS_KERNEL] = timing->kernel_ns,
                     [METRICS_D2H] = timing->d2h_ns}};
    metrics_count_call(request->daemon->metrics, &call);
}

void call_count_refusal(struct request *request)
{
    count(request, request->error.status, 0);
}

/* JSON values, with any binary outputs behind: built when they exist. */
static void answer_json(struct request *request)
{
    uint64_t offset[ROPED_MAX_OUTPUTS], binary_bytes;
    const struct roped_call *call = &request->job.call;
    struct buffer buffer;
    buffer_init(&buffer);
    if (kserve_write_response(&buffer, call, &request->v2, offset,
                              &binary_bytes, &request->error)) {
        buffer_fini(&buffer);
        reply_status(request, &request->error);
        return;
    }
    size_t json_bytes = buffer.bytes;
    for (int i = 0; i < request->v2.n_outputs; i++) {
        const struct roped_tensor *out = &call->out[request->v2.output[i].port];
        if (request->v2.output[i].is_binary &&
            is_sent(request, request->v2.output[i].port))
            buffer_append(&buffer, out->data, (size_t)roped_tensor_bytes(out));
    }
    count(request, ROPED_OK, buffer.bytes);
    if (binary_bytes == 0)
        reply_json(request, &buffer);
    else
        reply_mixed(request, &buffer, json_bytes);
}

static void call_answer(struct request *request)
{
    if (request->job.status) {
        count(request, request->job.status, 0);
        reply_status(request, &request->job.error);
        return;
    }
    if (is_v2(request) && !kserve_is_binary_answer(&request->v2)) {
        answer_json(request);
        return;
    }
    /* counted before the client can see the answer and ask for statistics */
    count(request, ROPED_OK, request->answer_bytes);
    bool has_binary = request->answer_bytes > request->v2.binary_bytes;
    size_t json_bytes =
        is_v2(request) && has_binary ? (size_t)request->v2.binary_bytes : 0;
    const char *type = !is_v2(request) ? "application/x-safetensors"
                       : has_binary    ? "application/octet-stream"
                                       : "application/json";
    reply_block(request, type, &request->out, request->answer_at,
                request->answer_bytes, json_bytes);
}
