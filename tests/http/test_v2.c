/*
 * test_v2.c - what v2 clients ask besides calls of operators: settings, the
 * repository, demos, raw and compressed bodies. tests/interop asks the same
 * with the clients themselves, where they can be installed.
 */
#include "http/service.h"

#define ZLIB_CONST
#include <zlib.h>

static const char *const raw_header[] = {"Inference-Header-Content-Length: 0",
                                         NULL};

static struct answer post(const struct server *server, const char *path,
                          const char *body)
{
    return ask(server, "POST", path, body, strlen(body), NULL);
}

TEST(log_level_is_read_and_set)
{
    struct server server;
    server_start(&server, NULL);
    expect_code(get(&server, "/v2/logging"), 200, "\"log_info\":true", "log");
    expect_code(post(&server, "/v2/logging", "{\"log_verbose_level\":1}"), 200,
                "\"log_verbose_level\":1", "more");
    expect_code(get(&server, "/v2/logging"), 200, "\"log_verbose_level\":1",
                "it stays");
    expect_code(post(&server, "/v2/logging", "{\"log_warning\":false}"), 400,
                "contradict", "no such rung");
    expect_code(post(&server, "/v2/logging", "{\"log_file\":\"/tmp/x\"}"), 400,
                "log_file", "no file");
    expect_code(post(&server, "/v2/logging", ""), 200, "log_error", "nothing");
    CHECK(server_stop(&server));
}

TEST(traces_are_off_and_models_are_there)
{
    static const char load[] = "/v2/repository/models/rope/load";
    struct server server;
    server_start(&server, NULL);
    expect_code(get(&server, "/v2/trace/setting"), 200, "\"OFF\"", "trace");
    expect_code(get(&server, "/v2/models/rope/trace/setting"), 200, "\"OFF\"",
                "of a model");
    expect_code(get(&server, "/v2/models/none/trace/setting"), 404,
                "Request for unknown model: 'none' is not found", "of none");
    expect_code(post(&server, "/v2/trace/setting", "{\"trace_rate\":\"1\"}"),
                400, "tracing is not supported", "rate");
    expect_code(post(&server, load, ""), 200, "", "load");
    expect_code(post(&server, load, "{\"parameters\":{\"config\":\"{}\"}}"),
                400, "failed to load 'rope'", "load otherwise");
    expect_code(post(&server, "/v2/repository/models/none/load", "{}"), 400,
                "failed to load 'none'", "load none");
    expect_code(post(&server, "/v2/repository/models/rope/unload", ""), 400,
                "explicit model load / unload is not allowed", "unload");
    expect_code(post(&server, "/v2/repository/index", "{\"ready\":1}"), 400,
                "Invalid value for 'ready'", "index");
    expect_code(get(&server, "/v2/models/none/stats"), 404,
                "requested model 'none' is not available", "stats");
    CHECK(server_stop(&server));
}

TEST(demos_are_models_of_v2_alone)
{
    static const char simple[] =
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,16],\"datatype\":"
        "\"INT32\",\"data\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},{\"name\":"
        "\"INPUT1\",\"shape\":[1,16],\"datatype\":\"INT32\",\"data\":[1,1,1,1,"
        "1,1,1,1,1,1,1,1,1,1,1,1]}]}";
    const char *flags[] = {"--server_name", "triton", "--demo_models", "true",
                           NULL};
    float values[5] = {1, -2, 0.5F, 3, 4};
    struct server server;
    server_start(&server, flags);
    expect_code(get(&server, "/v2"), 200, "\"name\":\"triton\"", "name");
    expect_code(post(&server, "/v2/models/simple/infer", simple), 200,
                "\"data\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "sum");
    expect_code(get(&server, "/v2/models/simple/stats"), 200,
                "\"inference_count\":1,", "it counts");
    expect_code(get(&server, "/v2/models/simple/config"), 200,
                "\"max_batch_size\":8", "config");
    expect_code(get(&server, "/v1/simple"), 404, "no operator", "v1");
    struct answer answer =
        ask(&server, "POST", "/v2/models/identity_fp32/infer", values,
            sizeof values, raw_header);
    CHECK_INT(answer.code, 200);
    CHECK(answer.bytes > sizeof values &&
          memcmp(answer.body + answer.bytes - sizeof values, values,
                 sizeof values) == 0);
    answer_free(&answer);
    answer = ask(&server, "POST", "/v2/models/identity_fp32/infer", NULL, 0,
                 raw_header);
    expect_code(answer, 200, "\"shape\":[0]", "nothing is nothing");
    CHECK(server_stop(&server));
}

TEST(parts_of_operators_are_models)
{
    float x[4] = {3, 4, 3, 4};
    struct server server;
    server_start(&server, NULL);
    expect_code(get(&server, "/v2/models/rope:q,k"), 200,
                "\"name\":\"rope:q,k\"", "metadata");
    expect_code(get(&server, "/v2/models/rope:q%2Ck/config"), 200,
                "\"name\":\"rope:q,k\"", "encoded");
    expect_code(get(&server, "/v2/models/rope:q/stats"), 200,
                "\"name\":\"rope:q\"", "statistics");
    expect_code(get(&server, "/v2/models/rope:k"), 404,
                "Request for unknown model", "q is missing");
    struct answer answer = ask(&server, "POST", "/v2/models/rmsnorm:x/infer", x,
                               sizeof x, raw_header);
    CHECK_INT(answer.code, 200);
    answer_free(&answer);
    answer = ask(&server, "POST", "/v2/models/rope:q/infer", x, sizeof x,
                 raw_header);
    expect_code(answer, 400, "more than one variable-sized dimension", "rope");
    CHECK(server_stop(&server));
}

/* Compresses into a new block; window bits of 31 make it gzip. */
static unsigned char *gzip(const void *plain, size_t bytes, size_t *out_bytes)
{
    z_stream stream = {.next_in = plain, .avail_in = (unsigned)bytes};
    CHECK_INT(deflateInit2(&stream, 9, Z_DEFLATED, 31, 9, Z_DEFAULT_STRATEGY),
              Z_OK);
    size_t room = deflateBound(&stream, bytes);
    unsigned char *out = malloc(room);
    stream.next_out = out;
    stream.avail_out = (unsigned)room;
    CHECK_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *out_bytes = room - stream.avail_out;
    deflateEnd(&stream);
    return out;
}

static struct answer post_gzip(const struct server *server, const void *plain,
                               size_t bytes)
{
    static const char *const headers[] = {"Content-Encoding: gzip", NULL};
    size_t n;
    unsigned char *packed = gzip(plain, bytes, &n);
    struct answer answer =
        ask(server, "POST", "/v1/rmsnorm", packed, n, headers);
    free(packed);
    return answer;
}

TEST(compressed_bodies_are_bounded)
{
    const char *flags[] = {"--max_inflated_bytes", "1m", NULL};
    struct server server;
    size_t bytes, too_many;
    server_start(&server, flags);
    unsigned char *body = ones(3000, 64, &bytes);
    unsigned char *large = ones(5000, 64, &too_many);
    struct answer answer = post_gzip(&server, body, bytes);
    CHECK(are_ones(&answer, 3000 * 64));
    answer_free(&answer);
    expect_code(post_gzip(&server, large, too_many), 413, "max_inflated_bytes",
                "too large once inflated");
    expect_code(post_gzip(&server, body, bytes - 4), 400, "error",
                "ends early, and says it is whole");
    expect_code(post_gzip(&server, body, 5), 400, "ends before", "no header");
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
    free(body);
    free(large);
}

TEST(answers_are_compressed_where_both_want_that)
{
    const char *flags[] = {"--compress_answers", "true", NULL};
    static const char *const accept[] = {"Accept-Encoding: br, gzip", NULL};
    struct server server;
    server_start(&server, flags);
    struct answer plain = get(&server, "/openapi.json");
    struct answer packed =
        ask(&server, "GET", "/openapi.json", NULL, 0, accept);
    CHECK(answer_header(&plain, "Content-Encoding") == NULL);
    CHECK_TEXT(answer_header(&packed, "Content-Encoding"), "gzip");
    CHECK_TEXT(answer_header(&packed, "Vary"), "Accept-Encoding");
    CHECK(packed.bytes < plain.bytes / 2);
    answer_free(&plain);
    answer_free(&packed);
    packed = ask(&server, "GET", "/v2/health/live", NULL, 0, accept);
    CHECK(answer_header(&packed, "Content-Encoding") == NULL);
    answer_free(&packed);
    CHECK(server_stop(&server));
}
