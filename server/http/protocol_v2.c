/*
 * protocol_v2.c - KServe v2: JSON, and binary tensors behind it, each way.
 */
#include "http/call_regions.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

enum {
    JSON_OUTPUT_ELEMENTS = 1 << 20,
    LONG_ELEMENTS = 1 << 12 /* more values than this are written on a lane */
};

static const struct roped_op *find_op(struct call *call)
{
    const char *name = call->name, *version = call->version;
    struct model model;
    memset(&call->v2, 0, offsetof(struct kserve_request, regions));
    if (models_has_version(version) &&
        models_find(call->service->models, name, &model))
        return model.signature.op;
    roped_fail(call->error, ROPED_NO_OPERATOR,
               "Request for unknown model: '%s'%s%s is not found", name,
               models_has_version(version) ? "" : " version ",
               models_has_version(version) ? "" : version);
    return NULL;
}

/* A raw tensor without the header that says so is taken for JSON. */
static enum roped_status hint_at_raw(struct call *call)
{
    struct roped_error *err = call->error, was = *err;
    const char *type = head_value(call->head, HEADER_CONTENT_TYPE);
    if (strncmp(was.text, "failed to parse", 15) != 0 || !type ||
        strcasecmp(type, "application/octet-stream") != 0 ||
        head_value(call->head, HEADER_INFERENCE_LENGTH))
        return was.status;
    return roped_fail(err, was.status,
                      "%.400s (a body without JSON needs "
                      "'Inference-Header-Content-Length: 0')",
                      was.text);
}

static enum roped_status use_table(struct call *call, const char *name)
{
    if (call->op)
        return call_use_table(call, name);
    return roped_fail(call->error, ROPED_BAD_PARAMETER,
                      "parameter 'table': a program's steps name their tables, "
                      "expected none");
}

static enum roped_status decode(struct call *call)
{
    const struct body *body = call->body;
    const struct kserve_body sent = {
        .json = body_text(call->body),
        .json_bytes = body->header_bytes,
        .binary = body_bytes(call->body, body->header_bytes),
        .binary_bytes = body->length - body->header_bytes};
    const struct signature *made = &call->signature;
    struct kserve_request *v2 = &call->v2;
    if (body->is_raw)
        return kserve_read_raw(made, sent.binary, sent.binary_bytes, v2,
                               call->error);
    if (body->length == 0)
        return roped_fail(call->error, ROPED_INVALID,
                          "failed to parse the request JSON buffer: it is "
                          "empty at 0");
    enum roped_status status =
        kserve_read_request(made, &sent, v2, call->error);
    if (status)
        return hint_at_raw(call);
    call->timeout_us = v2->timeout_us;
    if (v2->table[0])
        status = use_table(call, v2->table);
    return status ? status : call_take_regions(call, &v2->regions);
}

static int64_t elements_of(const struct call *call, int output)
{
    struct roped_tensor tensor;
    (void)signature_output(&call->signature, output, &tensor);
    return roped_tensor_elements(&tensor);
}

/* Values as JSON are text, many times the size of what they say. */
static enum roped_status check_json_outputs(struct call *call)
{
    for (int i = 0; i < call->v2.n_outputs; i++) {
        int port = call->v2.output[i].port;
        int64_t n = elements_of(call, port);
        if (!call->v2.output[i].is_binary && call_sends(call, port) &&
            n > JSON_OUTPUT_ELEMENTS)
            return roped_fail(call->error, ROPED_TOO_LARGE,
                              "output '%s': %lld elements, expected at most "
                              "%d as JSON: ask for it with binary_data",
                              signature_tensor(&call->signature, true, port),
                              (long long)n, JSON_OUTPUT_ELEMENTS);
    }
    return ROPED_OK;
}

static enum roped_status check(struct call *call)
{
    call->v2.kept = call->kept;
    enum roped_status status =
        kserve_check_outputs(&call->signature, &call->v2, call->error);
    return status ? status : check_json_outputs(call);
}

static enum roped_status read_values(struct call *call)
{
    const struct body *body = call->body;
    if (call->v2.json_tensor_bytes == 0)
        return ROPED_OK;
    enum roped_status status = memory_take(exec_memory(call->service->exec),
                                           (size_t)call->v2.json_tensor_bytes,
                                           &call->json, call->error);
    if (status)
        return status;
    const char *json = body_text(call->body);
    return kserve_read_json_tensors(&call->signature, json, body->header_bytes,
                                    &call->v2, call->json.start, call->error);
}

static uint64_t align(uint64_t at)
{
    return (at + CALL_ALIGNMENT - 1) / CALL_ALIGNMENT * CALL_ALIGNMENT;
}

/* Outputs that the client did not ask for, or wants as text, are computed all
 * the same: their places follow those of the answer. */
static uint64_t place_others(struct call *call, uint64_t *offset, uint64_t at,
                             bool is_binary)
{
    bool is_placed[SIGNATURE_OUTPUTS] = {false};
    for (int i = 0; i < call->v2.n_outputs && is_binary; i++)
        is_placed[call->v2.output[i].port] = true;
    for (int i = 0; i < signature_count(&call->signature, true); i++) {
        struct roped_tensor tensor;
        if (is_placed[i] || !call_sends(call, i))
            continue;
        (void)signature_output(&call->signature, i, &tensor);
        offset[i] = align(at);
        at = offset[i] + (uint64_t)roped_tensor_bytes(&tensor);
    }
    return at;
}

static enum roped_status write_header(struct call *call, struct buffer *header,
                                      uint64_t *offset, uint64_t *sent,
                                      uint64_t *all)
{
    bool is_binary = kserve_is_binary_answer(&call->v2);
    enum roped_status status =
        is_binary ? kserve_write_response(header, &call->signature, &call->v2,
                                          offset, sent, call->error)
                  : ROPED_OK; /* written when the values exist */
    if (!status)
        *all = place_others(call, offset, *sent, is_binary);
    return status;
}

/* ----------------------------------------------------------------- answer */

static struct reply reply_mixed(size_t json_bytes, const struct buffer *buffer)
{
    bool has_binary = buffer->bytes > json_bytes;
    struct reply reply = reply_text(
        200, has_binary ? "application/octet-stream" : "application/json",
        buffer);
    if (has_binary && reply.code == 200)
        reply.json_bytes = json_bytes;
    return reply;
}

/* JSON values, with any binary outputs behind. */
static struct reply write_json(struct call *call)
{
    uint64_t offset[SIGNATURE_OUTPUTS], binary_bytes;
    struct buffer buffer;
    reply_begin_text(call->answer, &buffer);
    if (kserve_write_response(&buffer, &call->signature, &call->v2, offset,
                              &binary_bytes, call->error))
        return reply_status(call->answer, call->error);
    size_t json_bytes = buffer.bytes;
    for (int i = 0; i < call->v2.n_outputs; i++) {
        int port = call->v2.output[i].port;
        struct roped_tensor out;
        if (!call->v2.output[i].is_binary || !call_sends(call, port))
            continue;
        (void)signature_output(&call->signature, port, &out);
        buffer_append(&buffer, out.data, (size_t)roped_tensor_bytes(&out));
    }
    if (buffer.has_failed)
        call->error->status = ROPED_NO_MEMORY;
    return reply_mixed(json_bytes, &buffer);
}

/* An errand. */
static enum roped_status write_on_lane(struct exec_job *job)
{
    struct call *call = job->context;
    call->answer->pending = write_json(call);
    return ROPED_OK;
}

static struct reply take_written(void *context)
{
    const struct call *call = context;
    const struct exec_job *errand = &call->answer->errand;
    if (!errand->status)
        return call_finish(call, call->answer->pending);
    call->error->status = errand->status;
    return call_finish(call, reply_status(call->answer, &errand->error));
}

/* Values that are written as text. */
static int64_t n_text_values(const struct call *call)
{
    int64_t n = 0;
    for (int i = 0; i < call->v2.n_outputs; i++)
        if (!call->v2.output[i].is_binary &&
            call_sends(call, call->v2.output[i].port))
            n += elements_of(call, call->v2.output[i].port);
    return n;
}

static struct reply answer(struct call *call)
{
    enum { TEXT_BYTES = 10 }; /* of a value */
    int64_t n = n_text_values(call);
    if (n > LONG_ELEMENTS)
        return reply_errand(call->answer, write_on_lane,
                            (uint64_t)n * TEXT_BYTES * REPLY_TEXT_WORK,
                            take_written, call);
    if (!kserve_is_binary_answer(&call->v2))
        return call_finish(call, write_json(call));
    bool has_binary = call->answer_bytes > call->answer_json_bytes;
    struct reply reply = call_block(
        call, has_binary ? "application/octet-stream" : "application/json");
    reply.json_bytes = has_binary ? call->answer_json_bytes : 0;
    return reply;
}

const struct protocol protocol_v2 = {.transport = METRICS_V2,
                                     .find_op = find_op,
                                     .decode = decode,
                                     .check = check,
                                     .read_values = read_values,
                                     .write_header = write_header,
                                     .answer = answer};
