/*
 * body.c - the body of a request on its way in: where each piece goes.
 *
 * With a Content-Length the block is taken at once, and a call is checked as
 * soon as its header is there; so is a region's tensor. Chunked and compressed
 * bodies say how long they are at their end only: their block grows, and the
 * call is checked then. Either way the header ends at a multiple of
 * DATA_ALIGNMENT in the block. A large body of a call goes on to the device
 * from there as it arrives.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "wire/demo.h"
#include "wire/inflate.h"
#include "wire/safetensors.h"

#include <string.h>

enum {
    V2_JSON_BYTES = 4 << 20, /* its tree takes about 30 times as much */
    DATA_ALIGNMENT = 64,
    FIRST_BYTES = 64 << 10 /* of a block that grows */
};

static size_t place_behind(size_t header_bytes)
{
    return (DATA_ALIGNMENT - header_bytes % DATA_ALIGNMENT) % DATA_ALIGNMENT;
}

/* Safetensors or v2: what has a header that is read first. */
static bool has_header(const struct request *request)
{
    return request->match.route->body != ROUTE_BODY_JSON;
}

static bool is_safetensors(const struct request *request)
{
    enum route_body body = request->match.route->body;
    return body == ROUTE_BODY_V1 || body == ROUTE_BODY_TENSOR;
}

static bool is_v2(const struct request *request)
{
    return request->match.route->body == ROUTE_BODY_V2;
}

/* ------------------------------------------------------- the length of JSON */

static enum roped_status refuse_v2_range(struct request *request,
                                         uint64_t length)
{
    return roped_fail(&request->error, ROPED_INVALID,
                      "inference header size should be in range (0, %llu), "
                      "got: %llu",
                      (unsigned long long)request->content_length,
                      (unsigned long long)length);
}

/* Checks and notes the length of the JSON; content_length is known. */
static enum roped_status set_v2_length(struct request *request, uint64_t length)
{
    if (length > request->content_length)
        return refuse_v2_range(request, length);
    if (length > V2_JSON_BYTES)
        return roped_fail(&request->error, ROPED_TOO_LARGE,
                          "JSON of %llu bytes exceeds the maximum allowed %d: "
                          "send tensors as binary data behind it "
                          "(binary_data_size)",
                          (unsigned long long)length, V2_JSON_BYTES);
    request->header_bytes = (size_t)length;
    return ROPED_OK;
}

/* Inference-Header-Content-Length: how much of the body is JSON. Absent: all
 * of it. 0: none. */
static enum roped_status read_v2_length(struct request *request,
                                        uint64_t *length)
{
    const char *text = request_header(request, HEADER_INFERENCE_LENGTH);
    *length = request->content_length;
    if (!text || request_parse_length(text, length)) {
        request->is_raw = text && *length == 0;
        return ROPED_OK;
    }
    return roped_fail(&request->error, ROPED_INVALID,
                      "Unable to parse Inference-Header-Content-Length, got: "
                      "%.32s",
                      text);
}

static enum roped_status begin_v2(struct request *request)
{
    uint64_t length;
    enum roped_status status = read_v2_length(request, &length);
    if (status)
        return status;
    request->body_at = place_behind((size_t)(length % DATA_ALIGNMENT));
    return request->is_open_ended ? ROPED_OK : set_v2_length(request, length);
}

/* -------------------------------------------------------------- the block */

enum roped_status body_begin(struct request *request)
{
    uint64_t bytes =
        request->is_open_ended ? FIRST_BYTES : request->content_length;
    enum roped_status status = is_v2(request) ? begin_v2(request) : ROPED_OK;
    if (!status && request->is_compressed)
        status = inflater_new(&request->inflater, &request->error);
    if (status)
        return status;
    return memory_take(exec_memory(request->daemon->exec),
                       (size_t)bytes + DATA_ALIGNMENT, &request->body,
                       &request->error);
}

/* Room for bytes more: a block of twice the size takes over what is there. */
static enum roped_status make_room(struct request *request, size_t bytes)
{
    struct memory_pool *pool = exec_memory(request->daemon->exec);
    struct memory_block larger;
    size_t used = request->body_at + (size_t)request->received;
    size_t most = (size_t)request->body_limit + DATA_ALIGNMENT;
    size_t wanted = 2 * request->body.bytes;
    if (used + bytes <= request->body.bytes)
        return ROPED_OK;
    wanted = wanted < used + bytes ? used + bytes : wanted;
    enum roped_status status = memory_take(pool, wanted < most ? wanted : most,
                                           &larger, &request->error);
    if (status)
        return status;
    memcpy(larger.start, request->body.start, used);
    memory_give(pool, &request->body);
    request->body = larger;
    return ROPED_OK;
}

/* ------------------------------------------------------------------ pieces */

/* Once the length of the header is known, so is where the body goes. */
static enum roped_status place_safetensors(struct request *request)
{
    uint64_t most =
        request->is_open_ended ? request->body_limit : request->content_length;
    enum roped_status status = safetensors_header_bytes(
        request->prefix, most, &request->header_bytes, &request->error);
    if (status)
        return status;
    request->body_at = place_behind(request->header_bytes);
    memcpy(request->body.start + request->body_at, request->prefix,
           SAFETENSORS_PREFIX_BYTES);
    return ROPED_OK;
}

/* Takes what is missing of the prefix; *taken is how many bytes that was. */
static enum roped_status receive_prefix(struct request *request,
                                        const char *data, size_t bytes,
                                        size_t *taken)
{
    size_t missing = SAFETENSORS_PREFIX_BYTES - (size_t)request->received;
    *taken = bytes < missing ? bytes : missing;
    memcpy(request->prefix + request->received, data, *taken);
    request->received += *taken;
    return *taken == missing ? place_safetensors(request) : ROPED_OK;
}

/*
 * memcpy, but not by the processor's own string copy where that is slow: on
 * Zen 4 it takes many times as long when the target is a few bytes ahead of
 * the source within a page, which the length of a client's headers decides for
 * each piece of its body (seen with glibc 2.36). So few bytes are copied
 * otherwise.
 */
static void copy(unsigned char *to, const char *from, size_t bytes)
{
    enum { PAGE = 4096, NEAR = 64, PIECE = 1024 };
    bool is_near = ((uintptr_t)to - (uintptr_t)from) % PAGE < NEAR;
    while (is_near && bytes > PIECE) {
        memcpy(to, from, PIECE);
        to += PIECE;
        from += PIECE;
        bytes -= PIECE;
    }
    memcpy(to, from, bytes);
}

/* Puts plain bytes of the body where they belong. */
static enum roped_status store(struct request *request, const char *data,
                               size_t bytes)
{
    enum roped_status status = ROPED_OK;
    size_t taken = 0;
    uint64_t most =
        request->is_open_ended ? request->body_limit : request->content_length;
    if (bytes > most - request->received)
        return roped_fail(&request->error, ROPED_TOO_LARGE,
                          "body exceeds the maximum allowed %llu (%s)",
                          (unsigned long long)most, request->limit_name);
    if (is_safetensors(request) && request->received < SAFETENSORS_PREFIX_BYTES)
        status = receive_prefix(request, data, bytes, &taken);
    if (!status)
        status = make_room(request, bytes - taken);
    if (status || bytes == taken)
        return status;
    copy(request->body.start + request->body_at + request->received,
         data + taken, bytes - taken);
    request->received += bytes - taken;
    return ROPED_OK;
}

/* inflater_sink_fn */
static bool store_inflated(void *context, const char *data, size_t bytes)
{
    struct request *request = context;
    return store(request, data, bytes) == ROPED_OK;
}

/* A call or a tensor is checked as soon as that can be. */
static enum roped_status decode(struct request *request)
{
    request->is_decoded = true;
    return request->op ? call_decode(request) : region_decode(request);
}

/* The rest of the body of a call may go on to the device as it arrives. */
static void open_stage(struct request *request)
{
    if (request->op && request->body.is_pinned && !demo_is(request->op))
        exec_stage_open(request->daemon->exec, &request->job,
                        request->body.start,
                        request->body_at + request->header_bytes,
                        request->body_at + request->content_length);
}

enum roped_status body_receive(struct request *request, const char *data,
                               size_t bytes)
{
    enum roped_status status;
    request->error.status = ROPED_OK;
    if (request->inflater) {
        status = inflater_feed(request->inflater, data, bytes, store_inflated,
                               request, &request->error);
        return status ? status : request->error.status; /* of the sink */
    }
    status = store(request, data, bytes);
    bool is_complete =
        request->header_bytes > 0 && request->received >= request->header_bytes;
    if (!status && has_header(request) && is_complete && !request->is_decoded &&
        !request->is_open_ended) {
        status = decode(request);
        if (!status)
            open_stage(request);
    }
    if (!status)
        exec_stage_advance(&request->job, request->body_at + request->received);
    return status;
}

/* ------------------------------------------------------------------- the end
 */

/* An open-ended body has a length now, and its header one that can be held
 * against it. */
static enum roped_status end_open(struct request *request)
{
    uint64_t length;
    enum roped_status status =
        request->inflater ? inflater_end(request->inflater, &request->error)
                          : ROPED_OK;
    request->content_length = request->received;
    if (!status && is_v2(request)) {
        status = read_v2_length(request, &length);
        if (!status)
            status = set_v2_length(request, length);
    } else if (!status && request->header_bytes > 0) {
        status =
            safetensors_header_bytes(request->prefix, request->received,
                                     &request->header_bytes, &request->error);
    }
    return status;
}

enum roped_status body_end(struct request *request)
{
    enum roped_status status =
        request->is_open_ended ? end_open(request) : ROPED_OK;
    if (status || !has_header(request) || request->is_decoded)
        return status;
    return request->header_bytes > 0 || request->is_raw ? decode(request)
                                                        : ROPED_OK;
}
