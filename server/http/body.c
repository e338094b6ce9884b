/*
 * body.c - the body of a request on its way in.
 *
 * With a Content-Length a call is checked as soon as its header is there; so
 * is a region's tensor. Chunked and compressed bodies say how long they are at
 * their end only, and are checked then. A large body of a call goes on to the
 * device from its block as it arrives.
 */
#include "http/body.h"

#include "http/handlers.h"
#include "http/request.h"
#include "wire/demo.h"
#include "wire/inflate.h"
#include "wire/safetensors.h"

#include <string.h>
#include <strings.h>

enum {
    V2_JSON_BYTES = 4 << 20,
    DATA_ALIGNMENT = 64,
    FIRST_BYTES = 8 << 10,  /* what a body must send before it gets more: the
                               first piece of a large one is 10 KB */
    WHOLE_BYTES = 64 << 10, /* a body of so many gets its block at once */
    INFLATE_BYTES = 64 << 10
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
                      (unsigned long long)request->body.length,
                      (unsigned long long)length);
}

/* Checks and notes the length of the JSON; the body's is known. */
static enum roped_status set_v2_length(struct request *request, uint64_t length)
{
    if (length > request->body.length)
        return refuse_v2_range(request, length);
    if (length > V2_JSON_BYTES)
        return roped_fail(&request->error, ROPED_TOO_LARGE,
                          "JSON of %llu bytes exceeds the maximum allowed %d: "
                          "send tensors as binary data behind it "
                          "(binary_data_size)",
                          (unsigned long long)length, V2_JSON_BYTES);
    request->body.header_bytes = (size_t)length;
    return ROPED_OK;
}

/* Inference-Header-Content-Length: how much of the body is JSON. Absent: all
 * of it. 0: none. */
static enum roped_status read_v2_length(struct request *request,
                                        uint64_t *length)
{
    const char *text = head_value(&request->head, HEADER_INFERENCE_LENGTH);
    *length = request->body.length;
    if (!text || head_parse_length(text, length)) {
        request->body.is_raw = text && *length == 0;
        return ROPED_OK;
    }
    return roped_fail(&request->error, ROPED_INVALID,
                      "Unable to parse Inference-Header-Content-Length, got: "
                      "%.32s",
                      text);
}

static enum roped_status begin_v2(struct request *request)
{
    struct body *body = &request->body;
    uint64_t length;
    enum roped_status status = read_v2_length(request, &length);
    if (status)
        return status;
    body->at = place_behind((size_t)(length % DATA_ALIGNMENT));
    return body->is_open_ended || body->is_compressed
               ? ROPED_OK
               : set_v2_length(request, length);
}

/* ------------------------------------------------------------------- begin */

static enum roped_status check_size(struct request *request)
{
    const struct body *body = &request->body;
    if (body->length <= body->limit)
        return ROPED_OK;
    return roped_fail(&request->error, ROPED_TOO_LARGE,
                      "body of %llu bytes exceeds the maximum allowed %llu "
                      "(%s)",
                      (unsigned long long)body->length,
                      (unsigned long long)body->limit, body->limit_name);
}

enum roped_status body_begin(struct request *request, uint64_t limit,
                             const char *limit_name)
{
    struct body *body = &request->body;
    const char *encoding = head_value(&request->head, HEADER_CONTENT_ENCODING);
    uint64_t most = request->service->config->max_inflated_bytes;
    body->is_compressed = encoding && inflater_knows(encoding);
    body->limit = limit;
    body->inflated_limit = most < limit ? most : limit;
    body->limit_name = limit_name;
    if (encoding && !body->is_compressed && strcasecmp(encoding, "identity"))
        return roped_fail(&request->error, ROPED_WRONG_ENCODING,
                          "Content-Encoding '%.32s' is not supported, expected "
                          "gzip or deflate, or none",
                          encoding);
    enum roped_status status = check_size(request);
    return status || !is_v2(request) ? status : begin_v2(request);
}

/* -------------------------------------------------------------- the block */

/* Room for bytes more. A body gets all of its memory once it has shown that it
 * comes: announcing one takes none away from others. */
static enum roped_status make_room(struct request *request, size_t bytes)
{
    struct body *body = &request->body;
    size_t used = body->at + (size_t)body->received, least = used + bytes;
    /* A little more than a power of two, else body and answer meet in the same
     * sets of the caches: 7 % of the time of an echo of 1 MiB. */
    size_t whole = body->at + (size_t)body->length + DATA_ALIGNMENT;
    size_t most = least < FIRST_BYTES ? FIRST_BYTES : least;
    if (least <= body->block.bytes)
        return ROPED_OK;
    if (body->is_open_ended)
        most = most < 2 * body->block.bytes ? 2 * body->block.bytes : most;
    else if (whole <= WHOLE_BYTES || least >= FIRST_BYTES)
        most = whole;
    return memory_extend(exec_memory(request->service->exec), &body->block,
                         body->received > 0 ? used : 0, least,
                         most < least ? least : most, &request->error);
}

/* ------------------------------------------------------------------ pieces */

/* What the client may have meant, and how to say it. */
static const char *advice(const struct request *request)
{
    const struct body *body = &request->body;
    bool is_call = request->call.op != NULL;
    size_t n = body->received < sizeof body->prefix ? (size_t)body->received
                                                    : sizeof body->prefix;
    switch (safetensors_mistaken(body->prefix, n)) {
    case SAFETENSORS_JSON:
        return is_call ? "JSON: POST that to /v2/models/{operator}/infer, or "
                         "send a safetensors file"
                       : "JSON: send a safetensors file";
    case SAFETENSORS_NPY:
        return is_call ? "a .npy file: 'ropectl run' converts it, or send a "
                         "safetensors file"
                       : "a .npy file: 'ropectl regions put' converts it, or "
                         "send a safetensors file";
    case SAFETENSORS_ZIP:
        return is_call ? "a zip archive: 'ropectl run' converts .npz, or send "
                         "a safetensors file"
                       : "a zip archive: 'ropectl regions put' converts .npz, "
                         "or send a safetensors file";
    case SAFETENSORS_GZIP:
        return "gzip: say 'Content-Encoding: gzip', or send a safetensors file";
    case SAFETENSORS_TEXT:
        return "text: send a safetensors file";
    case SAFETENSORS_UNKNOWN:
        break;
    }
    return NULL;
}

/* A body without the header that it must have: says what it looks like, else
 * leaves the error as it is. */
static enum roped_status explain(struct request *request,
                                 enum roped_status status)
{
    const char *looks = advice(request);
    return looks ? roped_fail(&request->error, status,
                              "safetensors: the body looks like %s", looks)
                 : status;
}

enum roped_status body_is_short(struct request *request)
{
    enum roped_status status =
        roped_fail(&request->error, ROPED_INVALID,
                   "body of %llu bytes ends before its header does",
                   (unsigned long long)request->body.received);
    return is_safetensors(request) ? explain(request, status) : status;
}

static uint64_t most_bytes(const struct body *body)
{
    return body->is_open_ended ? body->limit : body->length;
}

/* Takes what is missing of the prefix; *taken is how many bytes that was. Once
 * the length of the header is known, so is where the body goes. */
static enum roped_status receive_prefix(struct request *request,
                                        const char *data, size_t bytes,
                                        size_t *taken)
{
    struct body *body = &request->body;
    size_t missing = SAFETENSORS_PREFIX_BYTES - (size_t)body->received;
    *taken = bytes < missing ? bytes : missing;
    memcpy(body->prefix + body->received, data, *taken);
    body->received += *taken;
    if (*taken < missing)
        return ROPED_OK;
    enum roped_status status = safetensors_header_bytes(
        body->prefix, most_bytes(body), &body->header_bytes, &request->error);
    if (status)
        return explain(request, status);
    body->at = place_behind(body->header_bytes);
    body->received = 0;
    status = make_room(request, SAFETENSORS_PREFIX_BYTES);
    body->received = SAFETENSORS_PREFIX_BYTES;
    if (!status)
        memcpy(body->block.start + body->at, body->prefix,
               SAFETENSORS_PREFIX_BYTES);
    return status;
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

/* Puts bytes of the body where they belong. */
static enum roped_status store(struct request *request, const char *data,
                               size_t bytes)
{
    struct body *body = &request->body;
    enum roped_status status = ROPED_OK;
    size_t taken = 0;
    if (bytes > most_bytes(body) - body->received)
        return roped_fail(&request->error, ROPED_TOO_LARGE,
                          "body exceeds the maximum allowed %llu (%s)",
                          (unsigned long long)most_bytes(body),
                          body->limit_name);
    if (!body->is_compressed && is_safetensors(request) &&
        body->received < SAFETENSORS_PREFIX_BYTES)
        status = receive_prefix(request, data, bytes, &taken);
    if (status || bytes == taken)
        return status;
    status = make_room(request, bytes - taken);
    if (status)
        return status;
    copy(body->block.start + body->at + body->received, data + taken,
         bytes - taken);
    body->received += bytes - taken;
    return ROPED_OK;
}

/* A call or a tensor is checked as soon as that can be. */
static enum roped_status decode(struct request *request)
{
    const struct body *body = &request->body;
    request->body.is_decoded = true;
    enum roped_status status =
        request->call.op ? call_decode(request) : region_decode(request);
    /* gzip without a time begins with a length that may well be one */
    bool is_no_file = is_safetensors(request) &&
                      body->header_bytes > SAFETENSORS_PREFIX_BYTES &&
                      *body_bytes(request, SAFETENSORS_PREFIX_BYTES) != '{';
    return status && is_no_file ? explain(request, status) : status;
}

/* The rest of the body of a call that can_decode may go on to the device as it
 * arrives: where it lies will not change any more. */
static void open_inbox(struct request *request)
{
    const struct body *body = &request->body;
    if (request->call.op && body->block.is_pinned && !demo_is(request->call.op))
        exec_inbox_open(request->service->exec, &request->job,
                        body->block.start, body->at + body->header_bytes,
                        body->at + body->length);
}

/* Data pointers of a call that was decoded lead into a block that is to stay,
 * so a body that may still move is decoded later. */
static bool can_decode(const struct request *request)
{
    const struct body *body = &request->body;
    return has_header(request) && !body->is_decoded && !body->is_open_ended &&
           body->header_bytes > 0 && body->received >= body->header_bytes &&
           body->header_bytes <= REQUEST_LONG_BYTES &&
           body->block.bytes >= body->at + body->length;
}

enum roped_status body_receive(struct request *request, const char *data,
                               size_t bytes)
{
    struct body *body = &request->body;
    enum roped_status status = store(request, data, bytes);
    if (status || body->is_compressed)
        return status;
    memory_arrived(exec_memory(request->service->exec), &body->block,
                   body->at + (size_t)body->received);
    if (can_decode(request)) {
        status = decode(request);
        if (!status)
            open_inbox(request);
    }
    if (!status)
        exec_inbox_advance(&request->job, body->at + body->received);
    return status;
}

/* ------------------------------------------------------------------ the end */

/* A body that was open-ended has a length now, and its header one that can be
 * held against it. */
static enum roped_status close_end(struct request *request)
{
    struct body *body = &request->body;
    uint64_t length;
    body->length = body->received;
    enum roped_status status = ROPED_OK;
    if (!is_v2(request) && body->header_bytes > 0)
        status = safetensors_header_bytes(body->prefix, body->received,
                                          &body->header_bytes, &request->error);
    if (!is_v2(request))
        return status ? explain(request, status) : ROPED_OK;
    status = read_v2_length(request, &length);
    return status ? status : set_v2_length(request, length);
}

enum roped_status body_end(struct request *request)
{
    const struct body *body = &request->body;
    if (!body->is_open_ended || body->is_compressed)
        return ROPED_OK;
    return close_end(request);
}

bool body_is_long(const struct request *request)
{
    const struct body *body = &request->body;
    size_t text = has_header(request) ? body->header_bytes : body->received;
    return body->is_compressed ||
           (text > REQUEST_LONG_BYTES && !body->is_decoded);
}

unsigned char *body_bytes(const struct request *request, size_t from)
{
    const struct body *body = &request->body;
    return body->block.start ? body->block.start + body->at + from : NULL;
}

const char *body_text(const struct request *request)
{
    const unsigned char *bytes = body_bytes(request, 0);
    return bytes ? (const char *)bytes : "";
}

uint64_t body_work(const struct request *request)
{
    enum { MOST_INFLATED = 1032 }; /* bytes of a byte of zlib */
    const struct body *body = &request->body;
    uint64_t inflated = body->received * MOST_INFLATED;
    if (!body->is_compressed)
        return body->received * REQUEST_TEXT_WORK;
    return inflated < body->inflated_limit ? inflated : body->inflated_limit;
}

/* inflater_sink_fn */
static bool store_inflated(void *context, const char *data, size_t bytes)
{
    struct request *request = context;
    return store(request, data, bytes) == ROPED_OK;
}

static enum roped_status inflate_block(struct request *request,
                                       const char *data, uint64_t bytes)
{
    struct inflater *inflater;
    struct roped_error *err = &request->error;
    enum roped_status status = inflater_new(&inflater, err);
    if (status)
        return status;
    err->status = ROPED_OK; /* the sink's, if it stops */
    for (uint64_t at = 0; at < bytes && !status && !err->status;) {
        size_t n = bytes - at < INFLATE_BYTES ? (size_t)(bytes - at)
                                              : (size_t)INFLATE_BYTES;
        status =
            inflater_feed(inflater, data + at, n, store_inflated, request, err);
        at += n;
    }
    status = status ? status : err->status;
    if (!status)
        status = inflater_end(inflater, err);
    inflater_free(inflater);
    return status;
}

/* What came compressed becomes the body as it was meant. */
static enum roped_status inflate_body(struct request *request)
{
    struct body *body = &request->body;
    struct memory_block block = body->block;
    const char *data = body_text(request);
    uint64_t bytes = body->received;
    body->block = (struct memory_block){.bytes = 0};
    body->received = 0;
    body->is_compressed = false;
    body->is_open_ended = true;
    if (body->inflated_limit < body->limit) {
        body->limit = body->inflated_limit;
        body->limit_name = "max_inflated_bytes";
    }
    enum roped_status status = inflate_block(request, data, bytes);
    memory_give(exec_memory(request->service->exec), &block);
    return status ? status : close_end(request);
}

enum roped_status body_finish(struct request *request)
{
    const struct body *body = &request->body;
    enum roped_status status =
        body->is_compressed ? inflate_body(request) : ROPED_OK;
    if (status || !has_header(request) || body->is_decoded)
        return status;
    bool is_complete =
        body->header_bytes > 0 && body->received >= body->header_bytes;
    return is_complete || body->is_raw ? decode(request) : ROPED_OK;
}
