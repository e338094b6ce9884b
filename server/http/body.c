/*
 * body.c - the body of a request on its way in.
 *
 * With a Content-Length a call is checked as soon as its header is there; so
 * is a region's tensor. Chunked and compressed bodies say how long they are at
 * their end only, and are checked then. A large body of a call goes on to the
 * device from its block as it arrives.
 */
#include "http/body.h"

#include "http/reply.h"
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
    INFLATE_BYTES = 64 << 10,
    LONG_BYTES = 64 << 10 /* more text than this is an errand */
};

static size_t place_behind(size_t header_bytes)
{
    return (DATA_ALIGNMENT - header_bytes % DATA_ALIGNMENT) % DATA_ALIGNMENT;
}

/* Safetensors or v2: what has a header that is read first. */
static bool has_header(const struct body *body)
{
    return body->kind != BODY_JSON;
}

static bool is_safetensors(const struct body *body)
{
    return body->kind == BODY_V1 || body->kind == BODY_PROGRAM ||
           body->kind == BODY_TENSOR;
}

/* ------------------------------------------------------- the length of JSON */

static enum roped_status refuse_v2_range(const struct body *body,
                                         uint64_t length,
                                         struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "inference header size should be in range (0, %llu), "
                      "got: %llu",
                      (unsigned long long)body->length,
                      (unsigned long long)length);
}

/* Checks and notes the length of the JSON; the body's is known. */
static enum roped_status set_v2_length(struct body *body, uint64_t length,
                                       struct roped_error *err)
{
    if (length > body->length)
        return refuse_v2_range(body, length, err);
    if (length > V2_JSON_BYTES)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "JSON of %llu bytes exceeds the maximum allowed %d: "
                          "send tensors as binary data behind it "
                          "(binary_data_size)",
                          (unsigned long long)length, V2_JSON_BYTES);
    body->header_bytes = (size_t)length;
    return ROPED_OK;
}

/* Inference-Header-Content-Length: how much of the body is JSON. Absent: all
 * of it. 0: none. */
static enum roped_status read_v2_length(struct body *body, uint64_t *length,
                                        struct roped_error *err)
{
    const char *text = body->json_length;
    *length = body->length;
    if (!text || head_parse_length(text, length)) {
        body->is_raw = text && *length == 0;
        return ROPED_OK;
    }
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse Inference-Header-Content-Length, got: "
                      "%.32s",
                      text);
}

static enum roped_status begin_v2(struct body *body, struct roped_error *err)
{
    uint64_t length;
    enum roped_status status = read_v2_length(body, &length, err);
    if (status)
        return status;
    body->at = place_behind((size_t)(length % DATA_ALIGNMENT));
    return body->is_open_ended || body->is_compressed
               ? ROPED_OK
               : set_v2_length(body, length, err);
}

/* ------------------------------------------------------------------- begin */

static enum roped_status check_size(const struct body *body,
                                    struct roped_error *err)
{
    if (body->length <= body->limit)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "body of %llu bytes exceeds the maximum allowed %llu "
                      "(%s)",
                      (unsigned long long)body->length,
                      (unsigned long long)body->limit, body->limit_name);
}

enum roped_status body_begin(struct body *body, const struct head *head,
                             const struct body_limit *limit,
                             struct roped_error *err)
{
    const char *encoding = head_value(head, HEADER_CONTENT_ENCODING);
    body->is_compressed = encoding && inflater_knows(encoding);
    body->json_length = head_value(head, HEADER_INFERENCE_LENGTH);
    body->limit = limit->bytes;
    body->inflated_limit = limit->inflated_bytes < limit->bytes
                               ? limit->inflated_bytes
                               : limit->bytes;
    body->limit_name = limit->name;
    if (encoding && !body->is_compressed && strcasecmp(encoding, "identity"))
        return roped_fail(err, ROPED_WRONG_ENCODING,
                          "Content-Encoding '%.32s' is not supported, expected "
                          "gzip or deflate, or none",
                          encoding);
    enum roped_status status = check_size(body, err);
    return status || body->kind != BODY_V2 ? status : begin_v2(body, err);
}

/* -------------------------------------------------------------- the block */

/* Room for bytes more. A body gets all of its memory once it has shown that it
 * comes: announcing one takes none away from others. */
static enum roped_status make_room(struct body *body, size_t bytes,
                                   struct roped_error *err)
{
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
    return memory_extend(body->pool, &body->block,
                         body->received > 0 ? used : 0, least,
                         most < least ? least : most, err);
}

/* ------------------------------------------------------------------ pieces */

/* What the client may have meant, and how to say it. */
static const char *advice(const struct body *body)
{
    bool is_call = body->kind == BODY_V1;
    size_t n = body->received < sizeof body->prefix ? (size_t)body->received
                                                    : sizeof body->prefix;
    switch (safetensors_mistaken(body->prefix, n)) {
    case SAFETENSORS_JSON:
        return is_call ? "JSON: POST that to /v2/models/{operator}/infer, or "
                         "send a safetensors file"
               : body->kind == BODY_PROGRAM ? "JSON: PUT a program's document, "
                                              "or send a safetensors file"
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
static enum roped_status explain(const struct body *body,
                                 enum roped_status status,
                                 struct roped_error *err)
{
    const char *looks = advice(body);
    return looks ? roped_fail(err, status,
                              "safetensors: the body looks like %s", looks)
                 : status;
}

enum roped_status body_explain(const struct body *body,
                               enum roped_status status,
                               struct roped_error *err)
{
    /* gzip without a time begins with a length that may well be one */
    bool is_no_file = is_safetensors(body) &&
                      body->header_bytes > SAFETENSORS_PREFIX_BYTES &&
                      *body_bytes(body, SAFETENSORS_PREFIX_BYTES) != '{';
    return is_no_file ? explain(body, status, err) : status;
}

enum roped_status body_is_short(const struct body *body,
                                struct roped_error *err)
{
    enum roped_status status = roped_fail(
        err, ROPED_INVALID, "body of %llu bytes ends before its header does",
        (unsigned long long)body->received);
    return is_safetensors(body) ? explain(body, status, err) : status;
}

static uint64_t most_bytes(const struct body *body)
{
    return body->is_open_ended ? body->limit : body->length;
}

/* Takes what is missing of the prefix; *taken is how many bytes that was. Once
 * the length of the header is known, so is where the body goes. */
static enum roped_status receive_prefix(struct body *body, const char *data,
                                        size_t bytes, size_t *taken,
                                        struct roped_error *err)
{
    size_t missing = SAFETENSORS_PREFIX_BYTES - (size_t)body->received;
    *taken = bytes < missing ? bytes : missing;
    memcpy(body->prefix + body->received, data, *taken);
    body->received += *taken;
    if (*taken < missing)
        return ROPED_OK;
    enum roped_status status = safetensors_header_bytes(
        body->prefix, most_bytes(body), &body->header_bytes, err);
    if (status)
        return explain(body, status, err);
    body->at = place_behind(body->header_bytes);
    body->received = 0;
    status = make_room(body, SAFETENSORS_PREFIX_BYTES, err);
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
static enum roped_status store(struct body *body, const char *data,
                               size_t bytes, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    size_t taken = 0;
    if (bytes > most_bytes(body) - body->received)
        return roped_fail(
            err, ROPED_TOO_LARGE, "body exceeds the maximum allowed %llu (%s)",
            (unsigned long long)most_bytes(body), body->limit_name);
    if (!body->is_compressed && is_safetensors(body) &&
        body->received < SAFETENSORS_PREFIX_BYTES)
        status = receive_prefix(body, data, bytes, &taken, err);
    if (status || bytes == taken)
        return status;
    status = make_room(body, bytes - taken, err);
    if (status)
        return status;
    copy(body->block.start + body->at + body->received, data + taken,
         bytes - taken);
    body->received += bytes - taken;
    return ROPED_OK;
}

bool body_has_header(const struct body *body)
{
    return body->is_raw ||
           (body->header_bytes > 0 && body->received >= body->header_bytes);
}

bool body_can_decode(const struct body *body)
{
    return has_header(body) && !body->is_decoded && !body->is_open_ended &&
           body->header_bytes > 0 && body->received >= body->header_bytes &&
           body->header_bytes <= LONG_BYTES &&
           body->block.bytes >= body->at + body->length;
}

enum roped_status body_receive(struct body *body, const char *data,
                               size_t bytes, struct roped_error *err)
{
    enum roped_status status = store(body, data, bytes, err);
    if (!status && !body->is_compressed)
        memory_arrived(body->pool, &body->block,
                       body->at + (size_t)body->received);
    return status;
}

/* ------------------------------------------------------------------ the end */

/* A body that was open-ended has a length now, and its header one that can be
 * held against it. */
static enum roped_status close_end(struct body *body, struct roped_error *err)
{
    uint64_t length;
    body->length = body->received;
    enum roped_status status = ROPED_OK;
    if (body->kind != BODY_V2 && body->header_bytes > 0)
        status = safetensors_header_bytes(body->prefix, body->received,
                                          &body->header_bytes, err);
    if (body->kind != BODY_V2)
        return status ? explain(body, status, err) : ROPED_OK;
    status = read_v2_length(body, &length, err);
    return status ? status : set_v2_length(body, length, err);
}

enum roped_status body_end(struct body *body, struct roped_error *err)
{
    if (!body->is_open_ended || body->is_compressed)
        return ROPED_OK;
    return close_end(body, err);
}

bool body_is_long(const struct body *body)
{
    size_t text = has_header(body) ? body->header_bytes : body->received;
    return body->is_compressed || (text > LONG_BYTES && !body->is_decoded);
}

unsigned char *body_bytes(const struct body *body, size_t from)
{
    return body->block.start ? body->block.start + body->at + from : NULL;
}

const char *body_text(const struct body *body)
{
    const unsigned char *bytes = body_bytes(body, 0);
    return bytes ? (const char *)bytes : "";
}

uint64_t body_work(const struct body *body)
{
    enum { MOST_INFLATED = 1032 }; /* bytes of a byte of zlib */
    uint64_t inflated = body->received * MOST_INFLATED;
    if (!body->is_compressed)
        return body->received * REPLY_TEXT_WORK;
    return inflated < body->inflated_limit ? inflated : body->inflated_limit;
}

/* What an inflater gives goes to. */
struct inflating {
    struct body *body;
    struct roped_error *err;
};

/* inflater_sink_fn */
static bool store_inflated(void *context, const char *data, size_t bytes)
{
    const struct inflating *to = context;
    return store(to->body, data, bytes, to->err) == ROPED_OK;
}

static enum roped_status inflate_block(struct body *body, const char *data,
                                       uint64_t bytes, struct roped_error *err)
{
    struct inflater *inflater;
    struct inflating to = {body, err};
    enum roped_status status = inflater_new(&inflater, err);
    if (status)
        return status;
    err->status = ROPED_OK; /* the sink's, if it stops */
    for (uint64_t at = 0; at < bytes && !status && !err->status;) {
        size_t n = bytes - at < INFLATE_BYTES ? (size_t)(bytes - at)
                                              : (size_t)INFLATE_BYTES;
        status =
            inflater_feed(inflater, data + at, n, store_inflated, &to, err);
        at += n;
    }
    status = status ? status : err->status;
    if (!status)
        status = inflater_end(inflater, err);
    inflater_free(inflater);
    return status;
}

/* What came compressed becomes the body as it was meant. */
static enum roped_status inflate_body(struct body *body,
                                      struct roped_error *err)
{
    struct memory_block block = body->block;
    const char *data = body_text(body);
    uint64_t bytes = body->received;
    body->block = (struct memory_block){.bytes = 0};
    body->received = 0;
    body->is_compressed = false;
    body->is_open_ended = true;
    if (body->inflated_limit < body->limit) {
        body->limit = body->inflated_limit;
        body->limit_name = "max_inflated_bytes";
    }
    enum roped_status status = inflate_block(body, data, bytes, err);
    memory_give(body->pool, &block);
    return status ? status : close_end(body, err);
}

enum roped_status body_finish(struct body *body, struct roped_error *err)
{
    return body->is_compressed ? inflate_body(body, err) : ROPED_OK;
}
