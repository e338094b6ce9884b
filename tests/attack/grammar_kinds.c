/*
 * grammar_kinds.c - a valid request of every route, in its forms: plain, in
 * chunks, compressed, with Expect.
 */
#include "attack/grammar.h"
#include "check.h"
#include "http/service.h"

#define ZLIB_CONST
#include <zlib.h>

enum body {
    NO_BODY,
    BODY_ONES, /* 64 bytes of them, inline */
    BODY_MANY, /* 16 KiB, by a lane */
    BODY_ROPE,
    BODY_JSON,   /* v2, values as JSON */
    BODY_BINARY, /* v2, values behind it */
    BODY_REGION, /* v2, values in a region */
    BODY_RAW,    /* v2, values alone */
    BODY_TABLE,
    BODY_STEPS, /* a program's document */
    BODY_GIVEN, /* a run with its document in it */
    BODY_OBJECT,
    BODY_SHM,
    N_BODIES
};

/* %s becomes 'keep' in connections that are valid and 'play' in others, which
 * may do to their regions what they like. */
/* clang-format off */
static const struct kind kinds[] = {
    {"GET",    "/v2/health/live",                NO_BODY,     200, 200, "true"},
    {"HEAD",   "/v2/health/ready",               NO_BODY,     200, 200, ""},
    {"GET",    "/v1",                            NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v1/devices",                    NO_BODY,     200, 200, "backend"},
    {"GET",    "/v1/tables",                     NO_BODY,     200, 200, ""},
    {"GET",    "/v1/regions",                    NO_BODY,     200, 200, "in-keep"},
    {"GET",    "/v1/rope",                       NO_BODY,     200, 200, "rope"},
    {"HEAD",   "/v1/rope",                       NO_BODY,     200, 200, ""},
    {"GET",    "/metrics",                       NO_BODY,     200, 200, "roped_"},
    {"HEAD",   "/metrics",                       NO_BODY,     200, 200, ""},
    {"GET",    "/",                              NO_BODY,     200, 200, ""},
    {"GET",    "/docs",                          NO_BODY,     200, 200, "<!doctype html>"},
    {"GET",    "/openapi.json",                  NO_BODY,     200, 200, "openapi"},
    {"POST",   "/v1/rmsnorm?eps=0",              BODY_ONES,   200, 200, "F32"},
    {"POST",   "/v1/rmsnorm?eps=0",              BODY_MANY,   200, 200, "F32"},
    {"POST",   "/v1/rope?theta=10000",            BODY_ROPE,   200, 200, "F32"},
    {"POST",   "/v1/rmsnorm?from.x=in-%s&into.y=out-%s", NO_BODY, 200, 200, ""},
    {"POST",   "/v1/rmsnorm?from.x=in-%s",       NO_BODY,     200, 200, "F32"},
    {"POST",   "/v1/rmsnorm",                    NO_BODY,     400, 400, "error"},
    {"PUT",    "/v1/tables/table-%s",            BODY_TABLE,  201, 200, "table"},
    {"GET",    "/v1/tables/fixed-%s",            NO_BODY,     200, 200, "fixed"},
    {"DELETE", "/v1/tables/none-%s",             NO_BODY,     404, 404, "error"},
    {"GET",    "/v1/programs",                   NO_BODY,     200, 200, "programs"},
    {"PUT",    "/v1/programs/norm-%s",           BODY_STEPS,  201, 200, "norm"},
    {"GET",    "/v1/programs/fixed-%s",          NO_BODY,     200, 200, "steps"},
    {"POST",   "/v1/programs/fixed-%s",          BODY_ONES,   200, 200, "F32"},
    {"POST",   "/v1/programs",                   BODY_GIVEN,  200, 200, "F32"},
    {"DELETE", "/v1/programs/none-%s",           NO_BODY,     404, 404, "error"},
    {"PUT",    "/v1/regions/put-%s",             BODY_ONES,   201, 200, "put"},
    {"PUT",    "/v1/regions/zero-%s?bytes=64",   NO_BODY,     201, 200, "zero"},
    {"GET",    "/v1/regions/in-%s",              NO_BODY,     200, 200, "F32"},
    {"HEAD",   "/v1/regions/in-%s",              NO_BODY,     200, 200, ""},
    {"DELETE", "/v1/regions/none-%s",            NO_BODY,     404, 404, "error"},
    {"GET",    "/v2",                            NO_BODY,     200, 200, "roped"},
    {"GET",    "/v2/models/rmsnorm",             NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/ready",       NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/versions/1",  NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/versions/1/ready", NO_BODY, 200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/versions/1/config", NO_BODY, 200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/versions/1/stats", NO_BODY, 200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/config",      NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v2/models/rmsnorm/stats",       NO_BODY,     200, 200, "rmsnorm"},
    {"GET",    "/v2/models/stats",               NO_BODY,     200, 200, "rmsnorm"},
    {"POST",   "/v2/models/rmsnorm/infer",       BODY_JSON,   200, 200, "\"data\":[0.99"},
    {"POST",   "/v2/models/rmsnorm/versions/1/infer", BODY_BINARY, 200, 200, "\"data\":[0.99"},
    {"POST",   "/v2/models/rmsnorm/infer",       BODY_REGION, 200, 200, "\"data\":[0.99"},
    {"POST",   "/v2/models/identity_fp32/infer", BODY_RAW,    200, 200, "OUTPUT0"},
    {"POST",   "/v2/repository/index",           BODY_OBJECT, 200, 200, "rmsnorm"},
    {"POST",   "/v2/repository/index",           NO_BODY,     200, 200, "rmsnorm"},
    {"POST",   "/v2/repository/models/rope/load",   BODY_OBJECT, 200, 200, ""},
    {"POST",   "/v2/repository/models/rope/unload", NO_BODY,  400, 400, "error"},
    {"GET",    "/v2/logging",                    NO_BODY,     200, 200, "log_info"},
    {"POST",   "/v2/logging",                    BODY_OBJECT, 200, 200, "log_info"},
    {"GET",    "/v2/trace/setting",              NO_BODY,     200, 200, "OFF"},
    {"POST",   "/v2/trace/setting",              BODY_OBJECT, 200, 200, "OFF"},
    {"GET",    "/v2/models/rope/trace/setting",  NO_BODY,     200, 200, "OFF"},
    {"POST",   "/v2/models/rope/trace/setting",  BODY_OBJECT, 200, 200, "OFF"},
    {"GET",    "/v2/systemsharedmemory/status",  NO_BODY,     200, 200, "["},
    {"GET",    "/v2/systemsharedmemory/region/none/status", NO_BODY, 400, 404, "error"},
    {"POST",   "/v2/systemsharedmemory/region/none/register", BODY_SHM, 400, 400, "error"},
    {"POST",   "/v2/systemsharedmemory/region/none/unregister", NO_BODY, 200, 200, ""},
    {"POST",   "/v2/systemsharedmemory/unregister", NO_BODY,  200, 200, ""},
    {"GET",    "/v2/cudasharedmemory/status",    NO_BODY,     200, 200, "["},
    {"GET",    "/v2/cudasharedmemory/region/none/status", NO_BODY, 400, 404, "error"},
    {"POST",   "/v2/cudasharedmemory/unregister", NO_BODY,    200, 200, ""},
    {"POST",   "/v2/cudasharedmemory/region/none/unregister", NO_BODY, 200, 200, ""},
    {"POST",   "/v2/cudasharedmemory/region/none/register", BODY_OBJECT, 400, 501, "error"},
    {"GET",    "/nothing",                       NO_BODY,     404, 404, "error"},
    {"PATCH",  "/v1/rope",                       NO_BODY,     405, 405, "error"},
    {"GET",    "/v1/rope%%2Fx",                  NO_BODY,     404, 404, "error"},
};
/* clang-format on */
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* The routes that the daemon has. */
static const struct {
    const char *method, *path;
} routes[] = {
#define UNLISTED_ROUTE(method, path, ...) {#method, path},
#define ROUTE(method, path, ...)          {#method, path},
#include "routes.def"
};

static struct bytes plain[N_BODIES], gzipped[N_BODIES];
static size_t json_bytes[N_BODIES]; /* of v2: those before the values */

static const char *const names[] = {"keep", "play"};

/* A v2 request's JSON, and then these values. */
static void add_v2(enum body body, const char *how, size_t values)
{
    float one = 1;
    bytes_format(&plain[body],
                 "{\"inputs\":[{\"name\":\"x\",\"shape\":[2,8],\"datatype\":"
                 "\"FP32\",%s}]}",
                 how);
    json_bytes[body] = plain[body].n;
    for (size_t i = 0; i < values; i++)
        bytes_add(&plain[body], &one, sizeof one);
}

static void add_tensor(enum body body, const char *name, int rank,
                       const int64_t *dims)
{
    struct tensor_file file = {0};
    size_t n = 1, bytes;
    for (int i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = 1;
    file_add(&file, name, ROPED_F32, rank, dims, x);
    unsigned char *all = file_write(&file, &bytes);
    bytes_add(&plain[body], all, bytes);
    free(all);
    free(x);
}

static const char program[] =
    "{\"inputs\":[\"x\"],\"steps\":[{\"op\":\"rmsnorm\",\"in\":{\"x\":\"x\"},"
    "\"out\":{\"y\":\"y\"}}],\"outputs\":[\"y\"]}";

/* The tensor x of 64 bytes, behind a header that has the program. */
static void add_given(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"program\":\"{\\\"inputs\\\":[\\\"x\\\"],"
        "\\\"steps\\\":[{\\\"op\\\":\\\"rmsnorm\\\",\\\"in\\\":{\\\"x\\\":"
        "\\\"x\\\"},\\\"out\\\":{\\\"y\\\":\\\"y\\\"}}],\\\"outputs\\\":"
        "[\\\"y\\\"]}\"},\"x\":{\"dtype\":\"F32\",\"shape\":[2,8],"
        "\"data_offsets\":[0,64]}}";
    uint64_t length = sizeof header - 1;
    float x[16];
    for (int i = 0; i < 16; i++)
        x[i] = 1;
    bytes_add(&plain[BODY_GIVEN], &length, sizeof length);
    bytes_add(&plain[BODY_GIVEN], header, sizeof header - 1);
    bytes_add(&plain[BODY_GIVEN], x, sizeof x);
}

static void compress_body(const struct bytes *in, struct bytes *out)
{
    static unsigned char packed[1 << 16];
    z_stream stream = {0};
    if (deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY))
        abort();
    stream.next_in = (const unsigned char *)in->start;
    stream.avail_in = (unsigned)in->n;
    stream.next_out = packed;
    stream.avail_out = sizeof packed;
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END)
        abort();
    bytes_add(out, packed, stream.total_out);
    deflateEnd(&stream);
}

/* Is it a path of this pattern, in which '*' stands for one segment? */
static bool is_of(const char *target, const char *pattern)
{
    for (; *pattern; pattern++)
        if (*pattern == '*')
            target += strcspn(target, "/?");
        else if (*target++ != *pattern)
            return false;
    return *target == '\0' || *target == '?';
}

static bool is_a(const struct kind *kind, const char *method, const char *path)
{
    bool is_head = strcmp(kind->method, "HEAD") == 0;
    return strcmp(is_head ? "GET" : kind->method, method) == 0 &&
           is_of(kind->target, path);
}

/* A route that nobody asks for is not attacked. */
static void check_routes(void)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t k = 0;
        while (k < N_KINDS &&
               !is_a(&kinds[k], routes[i].method, routes[i].path))
            k++;
        if (k == N_KINDS)
            CHECK_FAIL("no kind of request is a '%s %s'", routes[i].method,
                       routes[i].path);
    }
}

void grammar_init(void)
{
    float raw[4] = {1, 1, 1, 1};
    add_tensor(BODY_ONES, "x", 2, (int64_t[]){2, 8});
    add_tensor(BODY_MANY, "x", 2, (int64_t[]){64, 64});
    add_tensor(BODY_ROPE, "q", 3, (int64_t[]){2, 1, 64});
    add_v2(BODY_JSON, "\"data\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 0);
    add_v2(BODY_BINARY, "\"parameters\":{\"binary_data_size\":64}", 16);
    bytes_text(&plain[BODY_BINARY], "");
    add_v2(BODY_REGION,
           "\"parameters\":{\"shared_memory_region\":\"in-keep\","
           "\"shared_memory_byte_size\":64}",
           0);
    bytes_add(&plain[BODY_RAW], raw, sizeof raw);
    bytes_text(&plain[BODY_TABLE], "{\"rotary_dim\":64,\"max_position\":128}");
    bytes_text(&plain[BODY_OBJECT], "{}");
    bytes_text(&plain[BODY_SHM],
               "{\"key\":\"/attack_none\",\"offset\":0,\"byte_size\":64}");
    bytes_text(&plain[BODY_STEPS], program);
    add_given();
    for (int i = 1; i < N_BODIES; i++)
        compress_body(&plain[i], &gzipped[i]);
    check_routes();
}

void grammar_prepare(const struct server *server)
{
    char path[64];
    for (size_t i = 0; i < 2; i++) {
        const struct bytes *one = &plain[BODY_ONES];
        const struct bytes *table = &plain[BODY_TABLE];
        const struct bytes *steps = &plain[BODY_STEPS];
        snprintf(path, sizeof path, "/v1/regions/in-%s", names[i]);
        expect_code(ask(server, "PUT", path, one->start, one->n, NULL), 201,
                    "in", path);
        snprintf(path, sizeof path, "/v1/regions/out-%s?bytes=64", names[i]);
        expect_code(ask(server, "PUT", path, NULL, 0, NULL), 201, "out", path);
        snprintf(path, sizeof path, "/v1/tables/fixed-%s", names[i]);
        expect_code(ask(server, "PUT", path, table->start, table->n, NULL), 201,
                    "fixed", path);
        snprintf(path, sizeof path, "/v1/programs/fixed-%s", names[i]);
        expect_code(ask(server, "PUT", path, steps->start, steps->n, NULL), 201,
                    "fixed", path);
    }
    if (check_failures)
        exit(EXIT_FAILURE);
}

void message_free(struct message *message)
{
    bytes_free(&message->method);
    bytes_free(&message->target);
    bytes_free(&message->version);
    bytes_free(&message->host);
    bytes_free(&message->headers);
    bytes_free(&message->framing);
    bytes_free(&message->body);
}

/* The body in chunks of any size. */
static void add_chunks(struct bytes *out, const struct bytes *body,
                       struct dice *dice)
{
    for (size_t at = 0; at < body->n;) {
        size_t left = body->n - at;
        size_t n = dice_chance(dice, 30) ? left : 1 + dice_below(dice, left);
        bytes_format(out, dice_chance(dice, 20) ? "%zX" : "%zx", n);
        bytes_text(out, dice_chance(dice, 10) ? ";a=b\r\n" : "\r\n");
        bytes_add(out, body->start + at, n);
        bytes_text(out, "\r\n");
        at += n;
    }
    bytes_text(out, "0\r\n\r\n");
}

static void add_body(struct message *message, enum body body, struct dice *dice)
{
    static const char infer[] = "Inference-Header-Content-Length";
    bool is_call = body >= BODY_ONES && body <= BODY_BINARY;
    bool is_packed = is_call && dice_chance(dice, 10);
    const struct bytes *bytes = is_packed ? &gzipped[body] : &plain[body];
    if (is_packed)
        bytes_text(&message->headers, "Content-Encoding: gzip\r\n");
    if (body == BODY_BINARY || body == BODY_RAW)
        bytes_format(&message->headers, "%s: %zu\r\n", infer, json_bytes[body]);
    message->is_chunked = dice_chance(dice, 25);
    if (message->is_chunked) {
        bytes_text(&message->framing, "Transfer-Encoding: chunked\r\n");
        add_chunks(&message->body, bytes, dice);
    } else {
        bytes_format(&message->framing, "Content-Length: %zu\r\n", bytes->n);
        bytes_add(&message->body, bytes->start, bytes->n);
    }
}

const struct kind *message_make(struct message *message, struct dice *dice,
                                const char *name)
{
    static const char *const other[] = {
        "Accept: */*\r\n",
        "USER-AGENT:  attack \r\n",
        "x-other:\r\n",
        "Content-Type: application/octet-stream\r\n",
        "Accept-Encoding: gzip, deflate\r\n",
        "Connection: keep-alive\r\n"};
    const struct kind *kind = &kinds[dice_below(dice, N_KINDS)];
    char target[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(target, sizeof target, kind->target, name, name);
#pragma GCC diagnostic pop
    bytes_text(&message->method, kind->method);
    bytes_text(&message->target, target);
    bytes_text(&message->version, "HTTP/1.1");
    bytes_text(&message->host, "Host: localhost\r\n");
    for (size_t n = dice_below(dice, 3); n > 0; n--)
        bytes_text(&message->headers,
                   other[dice_below(dice, sizeof other / sizeof *other)]);
    if (dice_chance(dice, 15))
        bytes_text(&message->headers, "Expect: 100-continue\r\n");
    if (kind->body)
        add_body(message, (enum body)kind->body, dice);
    else if (dice_chance(dice, 30))
        bytes_text(&message->framing, "Content-Length: 0\r\n");
    return kind;
}
