/*
 * test_regions.c - memory that clients leave on the server: made, read back,
 * used by calls of both wires, forgotten under their feet.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"
#include "load/client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { H = 64 };

static struct server server;

static struct answer put(const char *path, const void *body, size_t bytes)
{
    return ask(&server, "PUT", path, body ? body : "", bytes, NULL);
}

static struct answer post(const char *path, const void *body, size_t bytes)
{
    return ask(&server, "POST", path, body ? body : "", bytes, NULL);
}

static void delete_region(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    expect_code(ask(&server, "DELETE", path, NULL, 0, NULL), 200, "{}", path);
}

/* rows x H floats, all of one value, as the file of one tensor; free it. */
static unsigned char *constant(const char *name, int64_t rows, float value,
                               size_t *bytes)
{
    int64_t dims[2] = {rows, H};
    struct tensor_file file = {0};
    float *x = malloc((size_t)(rows * H) * sizeof *x);
    for (int64_t i = 0; i < rows * H; i++)
        x[i] = value;
    bool is_row = rows == 1;
    file_add(&file, name, ROPED_F32, is_row ? 1 : 2, dims + is_row, x);
    unsigned char *body = file_write(&file, bytes);
    free(x);
    return body;
}

/* Makes region name of a constant. */
static void put_constant(const char *name, const char *tensor, int64_t rows,
                         float value, int code)
{
    char path[128];
    size_t bytes;
    unsigned char *body = constant(tensor, rows, value, &bytes);
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    expect_code(put(path, body, bytes), code, tensor, path);
    free(body);
}

/* Are floats of the region, read back, all of this value? */
static void expect_region(const char *name, int64_t n, float value)
{
    char path[128];
    struct tensor_file file = {0};
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    struct answer answer = get(&server, path);
    const char *type = answer_header(&answer, "Content-Type");
    bool is_raw = type && strcmp(type, "application/octet-stream") == 0;
    const float *x = (const void *)answer.body;
    if (!is_raw && file_read(&file, answer.body, answer.bytes, NULL, NULL))
        x = file.tensor[0].data;
    CHECK_INT(is_raw ? answer.bytes
                     : (size_t)roped_tensor_bytes(&file.tensor[0]),
              (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n && answer.code == 200; i++)
        if (fabsf(x[i] - value) > 1e-5f) {
            CHECK_FAIL("%s[%lld] is %g, expected %g", name, (long long)i,
                       (double)x[i], (double)value);
            break;
        }
    file_free(&file);
    answer_free(&answer);
}

/* ------------------------------------------------------------------- life */

TEST(a_region_is_made_listed_read_and_forgotten)
{
    size_t bytes;
    unsigned char *body = constant("weights", 3, 2.5f, &bytes);
    server_start(&server, NULL);
    expect_code(get(&server, "/v1/regions"), 200, "\"regions\":[]", "none");
    expect_code(
        put("/v1/regions/w", body, bytes), 201,
        "{\"name\":\"w\",\"kind\":\"resident\",\"bytes\":768,\"device\":0,"
        "\"tensor\":\"weights\",\"dtype\":\"F32\",\"shape\":[3,64]}",
        "put");
    expect_code(put("/v1/regions/w", body, bytes), 200, "\"w\"", "again");
    expect_code(get(&server, "/v1/regions"), 200,
                "\"used\":768,\"regions\":[{\"name\":\"w\"", "listed");
    struct answer answer = get(&server, "/v1/regions/w");
    CHECK_TEXT(answer_header(&answer, "Content-Type"),
               "application/x-safetensors");
    struct tensor_file file;
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_TEXT(file.name[0], "weights");
    CHECK_INT(file.tensor[0].dims[1], H);
    file_free(&file);
    answer_free(&answer);
    expect_region("w", 3 * H, 2.5f);
    CHECK_DOUBLE(metric(&server, "roped_region_bytes{kind=\"resident\"} "), 768,
                 0);
    CHECK_DOUBLE(metric(&server, "roped_regions{kind=\"resident\"} "), 1, 0);
    delete_region("w");
    expect_code(get(&server, "/v1/regions/w"), 404,
                "no region named 'w'; GET /v1/regions lists them", "gone");
    expect_code(ask(&server, "DELETE", "/v1/regions/w", NULL, 0, NULL), 404,
                "'w'", "deleted twice");
    expect_metric(&server, "roped_region_bytes{kind=\"resident\"} ", 0);
    free(body);
    CHECK(server_stop(&server));
}

TEST(a_region_without_a_body_is_zeros)
{
    server_start(&server, NULL);
    expect_code(put("/v1/regions/raw?bytes=40", NULL, 0), 201,
                "{\"name\":\"raw\",\"kind\":\"resident\",\"bytes\":40,"
                "\"device\":0}",
                "raw");
    expect_region("raw", 10, 0);
    expect_code(put("/v1/regions/kv?dtype=BF16&shape=16,2,64", NULL, 0), 201,
                "\"bytes\":4096,\"device\":0,\"tensor\":\"kv\",\"dtype\":"
                "\"BF16\",\"shape\":"
                "[16,2,64]",
                "typed");
    expect_code(put("/v1/regions/none?bytes=0", NULL, 0), 201, "\"bytes\":0",
                "empty");
    expect_region("none", 0, 0);
    /* what curl -X PUT sends: no Content-Length at all */
    static const char request[] =
        "PUT /v1/regions/plain?bytes=8 HTTP/1.1\r\n"
        "Host: localhost\r\nConnection: close\r\n\r\n";
    struct answer answer = ask_raw(&server, request, sizeof request - 1, 5);
    expect_code(answer, 201, "\"bytes\":8", "without Content-Length");
    CHECK(server_stop(&server));
}

TEST(a_region_larger_than_a_lane_likes_comes_back_whole)
{
    enum { ROWS = 40000 }; /* 10 MiB: not inline, not in one piece */
    server_start(&server, NULL);
    put_constant("big", "t", ROWS, 7, 201);
    expect_region("big", (int64_t)ROWS * H, 7);
    CHECK(server_stop(&server));
}

/* What a reader has begun to read is not the next owner's. */
TEST(a_slow_reader_gets_the_region_that_it_asked_for)
{
    enum { ROWS = 65536 }; /* 16 MiB: more than sockets hold */
    static const char ask_for[] =
        "GET /v1/regions/slow HTTP/1.1\r\n"
        "Host: localhost\r\nConnection: close\r\n\r\n";
    const size_t bytes = (size_t)ROWS * H * sizeof(float);
    unsigned char *got = malloc(bytes + 8192);
    float last;
    size_t n = 1024;
    server_start(&server, NULL);
    put_constant("slow", "t", ROWS, 7, 201);
    int fd = client_connect(server.port);

    CHECK(send(fd, ask_for, sizeof ask_for - 1, 0) == sizeof ask_for - 1);
    CHECK(recv(fd, got, n, MSG_WAITALL) == (ssize_t)n);
    put_constant("slow", "t", ROWS, 8, 200);
    delete_region("slow");
    put_constant("other", "t", ROWS, 9, 201);
    for (ssize_t more; (more = recv(fd, got + n, bytes + 8192 - n, 0)) > 0;)
        n += (size_t)more;
    close(fd);
    CHECK(n > bytes);
    for (size_t i = n - bytes; i < n; i += sizeof last) {
        memcpy(&last, got + i, sizeof last);
        if (last != 7)
            CHECK_FAIL("byte %zu of %zu: %g, expected 7", i, n, (double)last);
    }
    free(got);
    CHECK(server_stop(&server));
}

/* ------------------------------------------------------------------ calls */

TEST(calls_read_and_write_regions)
{
    size_t bytes;
    unsigned char *body = constant("x", 4, 3, &bytes);
    server_start(&server, NULL);
    put_constant("w", "weight", 1, 5, 201);
    expect_code(put("/v1/regions/y?bytes=4096", NULL, 0), 201, "", "y");
    /* one input on the wire, one in a region, the output in another */
    struct answer answer =
        post("/v1/rmsnorm?eps=0&from.weight=w&into.y=y:1024", body, bytes);
    struct tensor_file file = {0};
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer_header(&answer, "Server-Timing"), "kernel;dur=");
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(file.n, 0); /* nothing is sent */
    file_free(&file);
    answer_free(&answer);
    /* chained: the result, described by the query, is the next call's input,
     * and in place */
    expect_code(post("/v1/rmsnorm?eps=0&from.x=y:1024&shape.x=4,64&dtype.x=F32"
                     "&into.y=y:1024",
                     NULL, 0),
                200, "", "in place");
    answer = get(&server, "/v1/regions/y");
    const float *y = (const void *)answer.body;
    for (int i = 0; i < 1024; i++) {
        float expected = i >= 256 && i < 256 + 4 * H ? 1 : 0;
        if (fabsf(y[i] - expected) > 1e-5f)
            CHECK_FAIL("y[%d] is %g", i, (double)y[i]);
    }
    answer_free(&answer);
    /* the region's own description */
    put_constant("x", "anything", 4, 3, 201);
    answer = post("/v1/rmsnorm?eps=0&from.x=x", NULL, 0);
    CHECK(are_ones(&answer, 4 * H));
    answer_free(&answer);
    free(body);
    CHECK(server_stop(&server));
}

static struct answer infer(const char *parameters_of_x, const char *outputs)
{
    char body[1024];
    int bytes = snprintf(body, sizeof body,
                         "{\"parameters\":{\"eps\":0},\"inputs\":[{\"name\":"
                         "\"x\",\"datatype\":\"FP32\",\"shape\":[4,64],"
                         "\"parameters\":{%s}}]%s}",
                         parameters_of_x, outputs);
    return post("/v2/models/rmsnorm/infer", body, (size_t)bytes);
}

#define X_IN_REGION                                                            \
    "\"shared_memory_region\":\"x\",\"shared_memory_byte_size\":1024"
#define Y_IN_REGION(rest)                                                      \
    ",\"outputs\":[{\"name\":\"y\",\"parameters\":{\"shared_memory_region\":"  \
    "\"y\"" rest "}}]"

TEST(the_v2_protocol_names_regions_too)
{
    server_start(&server, NULL);
    put_constant("x", "x", 4, 3, 201);
    expect_code(put("/v1/regions/y?bytes=2048", NULL, 0), 201, "", "y");
    expect_code(
        infer(X_IN_REGION, Y_IN_REGION(",\"shared_memory_byte_size\":1024")),
        200,
        "\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":"
        "[4,64]}]",
        "both");
    expect_code(
        infer(X_IN_REGION, Y_IN_REGION(",\"shared_memory_byte_size\":1024,"
                                       "\"shared_memory_offset\":1024")),
        200, "", "at an offset");
    expect_region("y", 8 * H, 1);
    struct answer answer = infer(X_IN_REGION, "");
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "\"data\":[1");
    answer_free(&answer);
    expect_code(
        infer(X_IN_REGION, Y_IN_REGION(",\"shared_memory_byte_size\":1000")),
        400,
        "shared memory size specified with the request for output 'y' "
        "(1000 bytes) should be at least 1024 bytes to hold the results",
        "too small");
    expect_code(
        infer(X_IN_REGION, Y_IN_REGION(",\"shared_memory_byte_size\":4096")),
        400, "Invalid offset + byte size for shared memory region: 'y'",
        "more than there is");
    expect_code(
        infer(X_IN_REGION, Y_IN_REGION(",\"shared_memory_byte_size\":1024,"
                                       "\"shared_memory_offset\":3000")),
        400, "Invalid offset for shared memory region: 'y'", "offset");
    expect_code(infer("\"shared_memory_region\":\"x\","
                      "\"shared_memory_byte_size\":1028",
                      ""),
                400, "input byte size mismatch for input 'x'", "not exact");
    expect_code(infer("\"shared_memory_region\":\"z\","
                      "\"shared_memory_byte_size\":1024",
                      ""),
                404, "Unable to find shared memory region: 'z'", "unknown");
    CHECK(server_stop(&server));
}

/* Rows of two heads of q, one of k and one of v, each of four. */
enum { TOKENS = 3, ROW = 16 };

static void put_qkv(float (*qkv)[ROW], int code)
{
    int64_t dims[2] = {TOKENS, ROW};
    struct tensor_file file = {0};
    size_t bytes;
    for (int i = 0; i < TOKENS * ROW; i++)
        qkv[i / ROW][i % ROW] = (float)(i % 7 - 3);
    file_add(&file, "qkv", ROPED_F32, 2, dims, qkv);
    unsigned char *body = file_write(&file, &bytes);
    expect_code(put("/v1/regions/qkv", body, bytes), code, "", "qkv");
    free(body);
}

/* q and k of the rows, from a packed call. */
static void rotate_packed(float (*qkv)[ROW])
{
    float q[TOKENS][8], k[TOKENS][4];
    int64_t q_dims[3] = {TOKENS, 2, 4}, k_dims[3] = {TOKENS, 1, 4};
    struct tensor_file file = {0}, found = {0};
    size_t bytes;
    for (int i = 0; i < TOKENS; i++) {
        memcpy(q[i], qkv[i], sizeof q[i]);
        memcpy(k[i], qkv[i] + 8, sizeof k[i]);
    }
    file_add(&file, "q", ROPED_F32, 3, q_dims, q);
    file_add(&file, "k", ROPED_F32, 3, k_dims, k);
    unsigned char *body = file_write(&file, &bytes);
    struct answer answer = post("/v1/rope?offset=5", body, bytes);
    if (file_read(&found, answer.body, answer.bytes, NULL, NULL))
        for (int i = 0; i < TOKENS; i++) {
            memcpy(qkv[i], (float *)found.tensor[0].data + 8 * i, sizeof q[i]);
            memcpy(qkv[i] + 8, (float *)found.tensor[1].data + 4 * i,
                   sizeof k[i]);
        }
    CHECK_INT(found.n, 2);
    file_free(&found);
    answer_free(&answer);
    free(body);
}

static void expect_qkv(float (*expected)[ROW], const char *what)
{
    struct answer answer = get(&server, "/v1/regions/qkv");
    struct tensor_file file = {0};
    if (!file_read(&file, answer.body, answer.bytes, NULL, NULL) ||
        memcmp(file.tensor[0].data, expected, sizeof(float[TOKENS][ROW])) != 0)
        CHECK_FAIL("%s: other rows than the packed call's", what);
    file_free(&file);
    answer_free(&answer);
}

#define QKV_PLACES                                                             \
    "from.q=qkv:0&shape.q=3,2,4&stride.q=16&into.q=qkv&"                       \
    "from.k=qkv:32&shape.k=3,1,4&stride.k=16&into.k=qkv:32"
#define QKV_REGION(at)                                                         \
    "{\"shared_memory_region\":\"qkv\",\"shared_memory_byte_size\":160,"       \
    "\"shared_memory_offset\":" at ",\"stride\":16}"

#define QKV_INPUT(name, shape, at)                                             \
    "{\"name\":\"" name "\",\"datatype\":\"FP32\",\"shape\":" shape            \
    ",\"parameters\":" QKV_REGION(at) "}"
#define QKV_OUTPUT(name, at)                                                   \
    "{\"name\":\"" name "\",\"parameters\":" QKV_REGION(at) "}"

static const char qkv_inference[] =
    "{\"parameters\":{\"offset\":5},"
    "\"inputs\":[" QKV_INPUT("q", "[3,2,4]", "0") "," QKV_INPUT(
        "k", "[3,1,4]", "32") "],"
                              "\"outputs\":[" QKV_OUTPUT(
                                  "q", "0") "," QKV_OUTPUT("k", "32") "]}";

/* By both protocols: the bits of a packed call, and v as it was. */
TEST(slices_of_a_fused_row_are_rotated_in_place)
{
    float expected[TOKENS][ROW];
    server_start(&server, NULL);
    put_qkv(expected, 201);
    rotate_packed(expected);
    expect_code(post("/v1/rope?offset=5&" QKV_PLACES, NULL, 0), 200, "", "v1");
    expect_qkv(expected, "v1");
    float again[TOKENS][ROW];
    put_qkv(again, 200);
    expect_code(
        post("/v2/models/rope/infer", qkv_inference, sizeof qkv_inference - 1),
        200, "\"shape\":[3,2,4]", "v2");
    expect_qkv(expected, "v2");
    /* packed answers of strided inputs */
    struct answer answer =
        post("/v1/rmsnorm?eps=0&from.x=qkv&shape.x=3,4&stride.x=16", NULL, 0);
    CHECK_INT(answer.code, 200);
    struct tensor_file file = {0};
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(file.tensor[0].dims[1], 4);
    file_free(&file);
    answer_free(&answer);
    CHECK(server_stop(&server));
}

TEST(strides_on_wrong_places_are_refused)
{
    static const struct {
        const char *query, *part;
    } cases[] = {
        {"from.q=qkv&shape.q=3,2,4&stride.q=7",
         "tensor 'q': stride 7, expected at least 8, the elements of a token"},
        {"from.q=qkv&shape.q=3,2,4&stride.q=21",
         "tensor 'q' takes 200 bytes at offset 0, expected both within 192"},
        {"stride.q=16", "'stride.q' is given without 'from.q'"},
        {"from.q=qkv&shape.q=3,2,4&stride.q=16&into_stride.q=16",
         "'into_stride.q' is given without 'into.q'"},
        {"from.q=qkv&shape.q=3,2,4&stride.q=16&into.q=qkv&into_stride.q=17",
         "output 'q': stride 17 in the place of its input, expected that one's "
         "stride, 16"},
        {"from.q=qkv&shape.q=3,2,4&stride.q=16&into.q=qkv:16",
         "overlap input 'q'"},
        {"from.q=qkv&shape.q=3,2,4&from.positions=qkv&dtype.positions=I32&"
         "shape.positions=3&stride.positions=16",
         "tensor 'positions': stride 16, expected none: it is packed"},
        {"from.q=qkv&shape.q=3,2,4&stride.q=wide", "'wide', expected elements"},
    };
    float qkv[TOKENS][ROW];
    char path[256];
    server_start(&server, NULL);
    put_qkv(qkv, 201);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "/v1/rope?%s", cases[i].query);
        expect_code(post(path, NULL, 0), 400, cases[i].part, cases[i].query);
    }
    CHECK(server_stop(&server));
}

/* Positions in a region are checked like those on the wire. */
TEST(index_values_in_regions_are_checked)
{
    int64_t dims[3] = {4, 1, 16}, positions[4] = {0, 1, 2, -7};
    float q[64] = {0};
    struct tensor_file file = {0}, in = {0};
    size_t bytes, in_bytes;
    server_start(&server, NULL);
    file_add(&file, "q", ROPED_F32, 3, dims, q);
    file_add(&in, "p", ROPED_I64, 1, dims, positions);
    unsigned char *body = file_write(&file, &bytes);
    unsigned char *region = file_write(&in, &in_bytes);
    expect_code(put("/v1/regions/p", region, in_bytes), 201, "I64", "put");
    expect_code(post("/v1/rope?from.positions=p", body, bytes), 400,
                "tensor 'positions': position -7 at index 3", "bad position");
    expect_code(
        post("/v1/rope?from.positions=p&shape.positions=3", body, bytes), 400,
        "'positions'", "too few");
    free(region);
    positions[3] = 3;
    region = file_write(&in, &in_bytes);
    expect_code(put("/v1/regions/p", region, in_bytes), 200, "I64", "again");
    expect_code(post("/v1/rope?from.positions=p", body, bytes), 200, "",
                "good");
    free(region);
    free(body);
    CHECK(server_stop(&server));
}

/* --------------------------------------------------------------- refusals */

TEST(puts_that_make_no_sense_are_refused)
{
    static const struct {
        const char *path, *part;
        int code;
    } cases[] = {
        {"/v1/regions/a", "expected parameter 'bytes', or", 400},
        {"/v1/regions/a?bytes=", "parameter 'bytes'", 400},
        {"/v1/regions/a?bytes=-1", "parameter 'bytes': '-1'", 400},
        {"/v1/regions/a?bytes=1&bytes=1", "each once", 400},
        {"/v1/regions/a?bytes=1&dtype=F32", "region 'a': no body", 400},
        {"/v1/regions/a?dtype=F32", "region 'a': no body", 400},
        {"/v1/regions/a?dtype=FP32&shape=1", "parameter 'dtype'", 400},
        {"/v1/regions/a?dtype=F32&shape=1,", "parameter 'shape'", 400},
        {"/v1/regions/a?dtype=F32&shape=4611686018427387904,4", "2^63", 400},
        {"/v1/regions/a?size=1", "parameter 'size'", 400},
        {"/v1/regions/a%20b?bytes=1", "region names", 400},
        {"/v1/regions/a%3A1?bytes=1", "region names", 400},
        {"/v1/regions/a?bytes=65537",
         "region 'a': 65537 bytes, expected at most 65536 (region_memory)",
         413},
        {"/v1/regions/a?bytes=9223372036854775807", "region_memory", 413}};
    const char *flags[] = {"--region-memory", "64k", NULL};
    server_start(&server, flags);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_code(put(cases[i].path, NULL, 0), cases[i].code, cases[i].part,
                    cases[i].path);
    expect_code(put("/v1/regions/a?bytes=65000", NULL, 0), 201, "", "most");
    expect_code(put("/v1/regions/b?bytes=537&device=0", NULL, 0), 503,
                "expected at most the 536 that other regions leave", "full");
    expect_code(put("/v1/regions/b?bytes=536&device=0", NULL, 0), 201, "",
                "the rest");
    delete_region("a");
    expect_code(get(&server, "/v1/regions"), 200, "\"used\":536", "used");
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(bodies_that_are_no_tensor_are_refused)
{
    size_t bytes;
    unsigned char *body = constant("x", 4, 1, &bytes);
    int64_t one = 1;
    float value = 1;
    struct tensor_file two = {0}, none = {0};
    size_t two_bytes, none_bytes;
    file_add(&two, "a", ROPED_F32, 1, &one, &value);
    file_add(&two, "b", ROPED_F32, 1, &one, &value);
    unsigned char *pair = file_write(&two, &two_bytes);
    unsigned char *empty = file_write(&none, &none_bytes);
    server_start(&server, NULL);
    expect_code(put("/v1/regions/a", pair, two_bytes), 400,
                "region 'a': tensor 'b' beside 'a', expected one", "two");
    expect_code(put("/v1/regions/a", empty, none_bytes), 400,
                "no tensor in the body", "none");
    expect_code(put("/v1/regions/a?bytes=8", body, bytes), 400,
                "expected either", "both");
    expect_code(put("/v1/regions/a", "garbage garbage", 15), 400, "safetensors",
                "garbage");
    expect_code(put("/v1/regions/a", "abc", 3), 400, "", "three bytes");
    expect_code(put("/v1/regions/a", body, bytes - 1), 400, "safetensors",
                "cut short");
    expect_code(get(&server, "/v1/regions"), 200, "\"regions\":[]", "nothing");
    CHECK_DOUBLE(metric(&server, "roped_region_bytes{kind=\"resident\"} "), 0,
                 0);
    free(empty);
    free(pair);
    free(body);
    CHECK(server_stop(&server));
}

TEST(a_tensor_too_large_is_refused_before_it_is_sent)
{
    size_t bytes;
    unsigned char *body = constant("x", 40000, 1, &bytes);
    const char *flags[] = {"--region-memory", "1m", NULL};
    server_start(&server, flags);
    double start = now_seconds();
    expect_code(put("/v1/regions/a", body, bytes), 413, "region_memory", "put");
    CHECK(now_seconds() - start < 2);
    put_constant("small", "x", 4, 1, 201);
    free(body);
    CHECK(server_stop(&server));
}

TEST(calls_on_wrong_places_are_refused)
{
    static const struct {
        const char *query, *part;
        int code;
    } cases[] = {
        {"from.x=nope", "no region named 'nope'; GET /v1/regions", 404},
        {"from.x=x&into.y=nope", "'nope'", 404},
        {"from.q=x", "unknown tensor 'q'", 400},
        {"from.x=x&into.z=y", "unknown tensor 'z', rmsnorm returns y", 400},
        {"from.x=raw", "region 'raw' is plain bytes, expected 'dtype.x'", 400},
        {"from.x=raw&dtype.x=F32", "expected 'shape.x'", 400},
        {"from.x=x:256", "offset 256 in region 'x', expected 'shape.x'", 400},
        {"from.x=x:256&shape.x=4,64",
         "Invalid offset + byte size for shared memory region: 'x': tensor 'x' "
         "takes 1024 bytes at offset 256, expected both within 1024 bytes",
         400},
        {"from.x=x:2&shape.x=1,64",
         "offset 2 in region 'x', expected a "
         "multiple of 4, the size of F32",
         400},
        {"from.x=x&dtype.x=I32", "tensor 'x': I32, expected", 400},
        {"shape.x=4,64", "without 'from.x'", 400},
        {"from.x=x&into.y=raw:8", "Invalid offset + byte size", 400},
        {"from.x=x&into.y=x:4", "Invalid offset + byte size", 400},
        {"from.x=x&shape.x=2,64&into.y=x:256", "overlap input 'x'", 400},
        {"from.x=x:9223372036854775804&shape.x=1,64", "Invalid offset for",
         400},
        {"from.x=x&from.x=x", "given twice", 400},
        {"from.x=x:", "parameter 'from.x'", 400}};
    server_start(&server, NULL);
    put_constant("x", "x", 4, 1, 201);
    expect_code(put("/v1/regions/raw?bytes=1024", NULL, 0), 201, "", "raw");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        snprintf(path, sizeof path, "/v1/rmsnorm?%s", cases[i].query);
        expect_code(post(path, NULL, 0), cases[i].code, cases[i].part, path);
    }
    size_t bytes;
    unsigned char *body = constant("x", 4, 1, &bytes);
    expect_code(post("/v1/rmsnorm?from.x=x", body, bytes), 400,
                "tensor 'x' is given twice", "in both places");
    free(body);
    CHECK(call_ones(&server, 4, H));
    /* nothing is held by what was refused */
    delete_region("x");
    delete_region("raw");
    expect_metric(&server, "roped_region_bytes{kind=\"resident\"} ", 0);
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------------- threads */

enum { N_CLIENTS = 4 };

static atomic_int n_good, n_gone, n_wrong;
static atomic_bool is_over;

/* Calls with a weight that others replace and delete: an answer is made of one
 * of its versions, whole, or there is no such region. */
static void *use_weight(void *context)
{
    size_t bytes;
    unsigned char *body = constant("x", 64, 1, &bytes);
    char path[64];
    snprintf(path, sizeof path, "/v1/rmsnorm?eps=0&from.weight=w%d",
             *(int *)context);
    while (!atomic_load(&is_over)) {
        struct answer answer = post(path, body, bytes);
        struct tensor_file file = {0};
        if (answer.code == 200 &&
            file_read(&file, answer.body, answer.bytes, NULL, NULL)) {
            const float *y = file.tensor[0].data;
            bool is_whole = y[0] >= 1 && y[0] <= 9;
            for (int i = 1; i < 64 * H; i++)
                is_whole &= y[i] == y[0];
            atomic_fetch_add(is_whole ? &n_good : &n_wrong, 1);
            file_free(&file);
        } else {
            atomic_fetch_add(answer.code == 404 ? &n_gone : &n_wrong, 1);
        }
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(regions_are_replaced_and_deleted_while_calls_use_them)
{
    static int ids[N_CLIENTS] = {0, 1, 0, 1};
    pthread_t threads[N_CLIENTS];
    const char *flags[] = {"--inline-bytes", "16k", "--lanes", "3", NULL};
    int n_puts = check_cases(600);
    atomic_store(&is_over, false);
    server_start(&server, flags);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&threads[i], NULL, use_weight, &ids[i]);
    for (int i = 0; i < n_puts; i++) {
        char path[64];
        size_t bytes;
        unsigned char *body = constant("w", 1, (float)(1 + i % 9), &bytes);
        snprintf(path, sizeof path, "/v1/regions/w%d", i % 2);
        struct answer answer = put(path, body, bytes);
        CHECK(answer.code == 200 || answer.code == 201);
        answer_free(&answer);
        free(body);
        if (i % 3 == 0)
            expect_code(ask(&server, "DELETE", path, NULL, 0, NULL), 200, "",
                        path);
    }
    /* the last ones stay a while, so that some calls find theirs */
    put_constant("w0", "w", 1, 9, 200);
    put_constant("w1", "w", 1, 9, 200);
    for (int i = 0; i < 500 && atomic_load(&n_good) < 20; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    atomic_store(&is_over, true);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_good) >= 20);
    printf("%d calls found their region, %d did not\n", atomic_load(&n_good),
           atomic_load(&n_gone));
    delete_region("w0");
    delete_region("w1");
    expect_metric(&server, "roped_region_bytes{kind=\"resident\"} ", 0);
    CHECK(server_stop(&server));
}
