/*
 * test_http.c - the service around the calls: health, methods, limits,
 * deadlines, tables, metrics. One client at a time; test_load.c has many.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <cjson/cJSON.h>
#include <unistd.h>

TEST(every_route_answers)
{
    struct server server;
    server_start(&server, NULL);
    expect_code(get(&server, "/"), 200, "roped", "root");
    expect_code(get(&server, "/v2/health/live"), 200, "true", "live");
    expect_code(get(&server, "/v2/health/ready"), 200, "true", "ready");
    expect_code(get(&server, "/v2"), 200, "statistics", "server");
    expect_code(get(&server, "/v2/"), 200, "extensions", "trailing slash");
    expect_code(get(&server, "/v2?a=1"), 200, "extensions", "query");
    expect_code(get(&server, "/v1"), 200, "rope_quantize", "operators");
    expect_code(get(&server, "/v1/rope"), 200, "cos_sin_cache", "operator");
    expect_code(get(&server, "/v2/models/rope"), 200, "roped_", "model");
    expect_code(get(&server, "/v2/models/rope/versions/1"), 200, "inputs",
                "version");
    expect_code(get(&server, "/v2/models/rope/versions/9"), 404,
                "Request for unknown model", "unknown version");
    expect_code(get(&server, "/v2/models/rope/ready"), 200, "true", "ready");
    expect_code(get(&server, "/v2/models/rope/config"), 200,
                "\"max_batch_size\":0", "config");
    expect_code(get(&server, "/v2/models/stats"), 200, "cache_miss", "stats");
    expect_code(get(&server, "/v2/models/rope/stats"), 200, "compute_infer",
                "stats of one");
    expect_code(ask(&server, "POST", "/v2/repository/index", "", 0, NULL), 200,
                "READY", "index");
    expect_code(get(&server, "/nothing"), 404,
                "no route 'GET /nothing'; GET /openapi.json", "unknown path");
    expect_code(get(&server, "/metric"), 404, "did you mean 'GET /metrics'?",
                "a near path");
    expect_code(ask(&server, "POST", "/v2/model/rope/infer", "", 0, NULL), 404,
                "did you mean 'POST /v2/models/rope/infer'?", "a near pattern");
    expect_code(get(&server, "/v1/nobody"), 404,
                "no operator 'nobody'; GET /v1 lists them", "unknown operator");
    expect_code(ask(&server, "POST", "/v1/rms_norm", "", 0, NULL), 404,
                "no operator 'rms_norm'; did you mean 'rmsnorm'? GET /v1",
                "another library's operator");
    expect_code(get(&server, "/v1/rotary_embedding"), 404, "mean 'rope'?",
                "to describe another library's operator");
    expect_code(ask(&server, "POST", "/v1/rmsnorm?epsilon=1", "", 0, NULL), 400,
                "did you mean 'eps'?", "another library's parameter");
    expect_code(ask(&server, "POST", "/v1/rope?is_neox_style=1", "", 0, NULL),
                400, "did you mean 'style'?", "another library's parameter");
    struct answer answer =
        ask(&server, "DELETE", "/v2/models/rope", NULL, 0, NULL);
    CHECK_TEXT(answer_header(&answer, "Allow"), "GET");
    expect_code(answer, 405,
                "no route 'DELETE /v2/models/rope': the method is wrong, "
                "expected GET",
                "method");
    answer = ask(&server, "POST", "/v1/tables", "", 0, NULL);
    CHECK_TEXT(answer_header(&answer, "Allow"), "GET");
    expect_code(answer, 405, "expected GET", "no operator 'tables'");
    answer = ask(&server, "HEAD", "/metrics", NULL, 0, NULL);
    CHECK_INT(answer.code, 200);
    CHECK_INT(answer.bytes, 0);
    answer_free(&answer);
    answer = get(&server, "/openapi.json");
    cJSON *tree = cJSON_Parse(answer.body);
    CHECK(cJSON_GetObjectItem(cJSON_GetObjectItem(tree, "paths"), "/v1/rope"));
    cJSON_Delete(tree);
    answer_free(&answer);
    CHECK(server_stop(&server));
}

TEST(answers_carry_timing_and_request_id)
{
    struct server server;
    const char *headers[] = {"X-Request-Id: abc-123", NULL};
    size_t bytes;
    unsigned char *body = ones(4, 64, &bytes);
    server_start(&server, NULL);
    struct answer answer =
        ask(&server, "POST", "/v1/rmsnorm", body, bytes, headers);
    CHECK_INT(answer.code, 200);
    CHECK_TEXT(answer_header(&answer, "X-Request-Id"), "abc-123");
    CHECK_CONTAINS(answer_header(&answer, "Server-Timing"), "kernel;dur=");
    CHECK_TEXT(answer_header(&answer, "Content-Type"),
               "application/x-safetensors");
    answer_free(&answer);
    free(body);
    CHECK(server_stop(&server));
}

static void raw(const struct server *server, const char *request, int code,
                const char *part, const char *what)
{
    struct answer answer = ask_raw(server, request, strlen(request), 3);
    expect_code(answer, code, part, what);
}

TEST(limits_are_answered_before_the_body)
{
    struct server server;
    const char *flags[] = {"--max_body_bytes", "100k", NULL};
    server_start(&server, flags);
    raw(&server,
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "9999999\r\n"
        "Expect: 100-continue\r\n\r\n",
        413, "9999999", "too large, waiting for 100");
    size_t bytes;
    unsigned char *body = ones(1024, 1024, &bytes);
    double start = now_seconds();
    struct answer answer =
        ask(&server, "POST", "/v1/rmsnorm", body, bytes, NULL);
    expect_code(answer, 413, "max_body_bytes", "too large, sent blindly");
    CHECK(now_seconds() - start < 2);
    free(body);
    raw(&server,
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Content-Encoding: gzip\r\nConnection: close\r\n\r\nxx",
        400, "Content-Encoding: the body is not gzip", "not compressed");
    raw(&server,
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Content-Encoding: br\r\nConnection: close\r\n\r\nxx",
        415, "Content-Encoding", "compressed otherwise");
    raw(&server,
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Content-Length: 3\r\nConnection: close\r\n\r\nxx",
        400, "", "two lengths");
    raw(&server,
        "POST /v2/models/rmsnorm/infer HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 2\r\nInference-Header-Content-Length: 9\r\n"
        "Connection: close\r\n\r\n{}",
        400, "inference header size should be in range", "header length");
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
}

/* A body in chunks of so many bytes, between the head and the last chunk. */
static char *in_chunks(const char *head, const unsigned char *body,
                       size_t bytes, size_t chunk, size_t *out_bytes)
{
    size_t at = strlen(head);
    char *out = malloc(at + bytes * 16 + 64);
    memcpy(out, head, at);
    for (size_t done = 0; done < bytes; done += chunk) {
        size_t n = bytes - done < chunk ? bytes - done : chunk;
        at += (size_t)snprintf(out + at, 16, "%zx\r\n", n);
        memcpy(out + at, body + done, n);
        memcpy(out + at + n, "\r\n", 2);
        at += n + 2;
    }
    memcpy(out + at, "0\r\n\r\n", 5);
    *out_bytes = at + 5;
    return out;
}

static void chunked(const struct server *server, const char *path,
                    const char *headers, const unsigned char *body,
                    size_t bytes, size_t chunk, int code, const char *contains)
{
    char head[256];
    size_t n;
    snprintf(
        head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        "Connection: close\r\n%s\r\n",
        path, headers);
    char *text = in_chunks(head, body, bytes, chunk, &n);
    struct answer answer = ask_raw(server, text, n, 10);
    free(text);
    expect_code(answer, code, contains, headers);
}

TEST(chunked_bodies_are_bodies)
{
    struct server server;
    const char *flags[] = {"--max_body_bytes", "300k", NULL};
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[1,2],\"datatype\":\"FP32\","
        "\"data\":[1,1]}]}";
    const unsigned char *text = (const unsigned char *)json;
    size_t bytes, too_many;
    server_start(&server, flags);
    unsigned char *body = ones(1000, 64, &bytes); /* the block grows twice */
    unsigned char *large = ones(2000, 64, &too_many);
    chunked(&server, "/v1/rmsnorm", "", body, bytes, 1000, 200, "");
    chunked(&server, "/v1/rmsnorm", "", body, bytes, 1 << 20, 200, "");
    chunked(&server, "/v1/rmsnorm", "", body, bytes - 1, 5000, 400, "error");
    chunked(&server, "/v1/rmsnorm", "", body, 100, 1, 400, "error");
    chunked(&server, "/v1/rmsnorm", "", body, 7, 1, 400, "ends before");
    chunked(&server, "/v1/rmsnorm", "", body, 0, 1, 400, "missing tensor");
    chunked(&server, "/v1/rmsnorm", "", large, too_many, 4096, 413,
            "max_body_bytes");
    chunked(&server, "/v2/models/rmsnorm/infer", "", text, sizeof json - 1, 1,
            200, "\"data\":[");
    chunked(&server, "/v2/models/rmsnorm/infer",
            "Inference-Header-Content-Length: 70\r\n", text, sizeof json - 1, 9,
            200, "\"data\":[");
    chunked(&server, "/v2/models/rmsnorm/infer",
            "Inference-Header-Content-Length: 71\r\n", text, sizeof json - 1, 9,
            400, "should be in range (0, 70), got: 71");
    chunked(&server, "/v2/models/rmsnorm/infer", "", text, 0, 1, 400,
            "empty at 0");
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
    free(body);
    free(large);
}

TEST(memory_that_is_not_there_is_503_or_413)
{
    struct server server;
    const char *flags[] = {"--pool_bytes", "1m", "--host_bytes", "8m", NULL};
    size_t bytes;
    unsigned char *body = ones(2048, 1024, &bytes);
    server_start(&server, flags);
    CHECK(call_ones(&server, 512, 1024)); /* 2 MiB: beyond the pool */
    struct answer answer =
        ask(&server, "POST", "/v1/rmsnorm", body, bytes, NULL);
    CHECK(answer.code == 503 || answer.code == 413);
    CHECK(strstr(answer.body, "memory"));
    answer_free(&answer);
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
    free(body);
}

/* A large call's memory stays for the next one, and then goes. */
TEST(memory_of_a_large_call_is_given_back_after_a_time)
{
    enum { ROWS = 8192, H = 1024 }; /* 32 MiB there, 32 MiB back */
    struct server server;
    const char *flags[] = {"--pool_bytes", "1m", "--keep_seconds", "2.5", NULL};
    double bytes = (double)ROWS * H * sizeof(float);
    server_start(&server, flags);
    double before = metric(&server, "process_resident_memory_bytes ");
    CHECK(call_ones(&server, ROWS, H));
    double kept = metric(&server, "roped_kept_bytes ");
    if (kept < bytes)
        CHECK_FAIL("%g bytes are kept, expected at least %g", kept, bytes);
    double during = metric(&server, "process_resident_memory_bytes ");
    CHECK(during > before + bytes);
    expect_metric(&server, "roped_kept_bytes ", 0);
    expect_metric(&server, "roped_mapped_bytes ", 0);
    double after = metric(&server, "process_resident_memory_bytes ");
    if (after > during - bytes)
        CHECK_FAIL("resident memory is %g, and was %g", after, during);
    CHECK(call_ones(&server, ROWS, H));
    CHECK(server_stop(&server));
}

TEST(slow_clients_are_cut_off)
{
    struct server server;
    const char *flags[] = {"--header_timeout_seconds", "0.5",
                           "--body_timeout_seconds", "0.5", NULL};
    server_start(&server, flags);
    double start = now_seconds();
    struct answer answer =
        ask_raw(&server, "POST /v1/rmsnorm HTTP/1.1\r\nHost", 31, 60);
    CHECK(now_seconds() - start < 30);
    answer_free(&answer);
    static const char half[] =
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 100\r\n\r\nhalf";
    start = now_seconds();
    answer = ask_raw(&server, half, sizeof half - 1, 60);
    CHECK(now_seconds() - start < 30);
    answer_free(&answer);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(a_bearer_token_guards_all_but_health)
{
    struct server server;
    char path[64];
    snprintf(path, sizeof path, "/tmp/roped_token_%d", (int)getpid());
    FILE *file = fopen(path, "w");
    fputs("secret\n", file);
    fclose(file);
    const char *flags[] = {"--bearer_token_file", path, NULL};
    const char *right[] = {"Authorization: Bearer secret", NULL};
    const char *wrong[] = {"Authorization: Bearer secrets", NULL};
    server_start(&server, flags);
    expect_code(get(&server, "/v2/health/ready"), 200, "true", "health");
    struct answer answer = get(&server, "/v1");
    CHECK_TEXT(answer_header(&answer, "WWW-Authenticate"), "Bearer");
    expect_code(answer, 401, "token", "no token");
    expect_code(ask(&server, "GET", "/v1", NULL, 0, wrong), 401, "token",
                "wrong token");
    expect_code(ask(&server, "GET", "/v1", NULL, 0, right), 200, "rope",
                "right token");
    CHECK(server_stop(&server));
    unlink(path);
}

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,"
    "\"max_position_embeddings\":131072,\"rope_theta\":500000.0,"
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192}}";

static const char layers[] =
    "{\"model_type\":\"gemma3\",\"head_dim\":8,\"max_position_embeddings\":64,"
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
    "\"factor\":8,\"rope_theta\":1000000},\"sliding_attention\":{"
    "\"rope_type\":\"default\",\"rope_theta\":10000}}}";

static struct answer put(const struct server *server, const char *path,
                         const char *text)
{
    return ask(server, "PUT", path, text, strlen(text), NULL);
}

static unsigned char *rope_body(int64_t position, int64_t d, size_t *bytes)
{
    static float q[2 * 128];
    static int64_t positions[2];
    int64_t dims[3] = {2, 1, d}, n = 2;
    struct tensor_file file = {0};
    for (int i = 0; i < 2 * d; i++)
        q[i] = (float)(i % 7) - 3;
    positions[1] = position;
    file_add(&file, "q", ROPED_F32, 3, dims, q);
    file_add(&file, "positions", ROPED_I64, 1, &n, positions);
    return file_write(&file, bytes);
}

TEST(tables_come_from_parameters_and_from_model_configs)
{
    struct server server;
    size_t bytes;
    server_start(&server, NULL);
    expect_code(put(&server, "/v1/tables/llama", llama), 201,
                "\"rotary_dim\":128", "config.json");
    expect_code(put(&server, "/v1/tables/llama", llama), 200, "llama3",
                "the same again");
    expect_code(put(&server, "/v1/tables/gemma", layers), 201,
                "gemma.sliding_attention", "per layer type");
    expect_code(put(&server, "/v1/tables/own",
                    "{\"theta\":5000,\"rotary_dim\":8,\"rows\":16}"),
                201, "5000", "own parameters");
    expect_code(put(&server, "/v1/tables/bad", "{\"thetta\":5}"), 400, "thetta",
                "unknown parameter");
    expect_code(put(&server, "/v1/tables/bad",
                    "{\"hidden_size\":64,\"num_attention_heads\":1,"
                    "\"rope_scaling\":{\"rope_type\":\"fope\"}}"),
                400, "fope", "unknown rope_type");
    raw(&server,
        "PUT /v1/tables/%2e%2e HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 2\r\nConnection: close\r\n\r\n{}",
        400, "and not '.' or '..'", "a folder's name");
    expect_code(get(&server, "/v1/tables"), 200, "\"own\"", "list");
    unsigned char *body = rope_body(1000, 128, &bytes);
    struct answer by_table =
        ask(&server, "POST", "/v1/rope?table=llama", body, bytes, NULL);
    struct answer inlined =
        ask(&server, "POST",
            "/v1/rope?theta=500000&scaling=llama3&factor=8&low_freq_factor=1"
            "&high_freq_factor=4&original_max_position=8192",
            body, bytes, NULL);
    CHECK_INT(by_table.code, 200);
    CHECK(by_table.bytes == inlined.bytes &&
          memcmp(by_table.body, inlined.body, inlined.bytes) == 0);
    answer_free(&by_table);
    answer_free(&inlined);
    expect_code(
        ask(&server, "POST", "/v1/rope?table=llama&theta=5", body, bytes, NULL),
        400, "theta", "table and theta");
    free(body);
    body = rope_body(16, 8, &bytes);
    expect_code(ask(&server, "POST", "/v1/rope?table=own", body, bytes, NULL),
                400, "own", "row past the table");
    free(body);
    expect_code(get(&server, "/v1/tables/llama"), 200, "resident_bytes",
                "one table");
    expect_code(ask(&server, "DELETE", "/v1/tables/llama", NULL, 0, NULL), 200,
                "", "delete");
    expect_code(ask(&server, "DELETE", "/v1/tables/llama", NULL, 0, NULL), 404,
                "llama", "delete again");
    CHECK(server_stop(&server));
}

/* Before the first call, and where some are asked for. */
TEST(metrics_have_what_there_is_to_say)
{
    struct server server;
    server_start(&server, NULL);
    struct answer answer = get(&server, "/metrics");
    int n = 0;
    for (const char *line = answer.body; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        n += *line && *line != '#';
    }
    CHECK(n > 50 && n <= 500);
    answer_free(&answer);
    CHECK(call_ones(&server, 2, 32));
    answer = get(&server, "/metrics?name[]=roped_request_bytes_total&x=1&"
                          "name%5B%5D=roped_queue_depth");
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "\nroped_request_bytes_total{op=\"rmsnorm\"} ");
    CHECK_CONTAINS(answer.body, "\nroped_queue_depth 0\n");
    CHECK(answer.bytes < 500);
    answer_free(&answer);
    CHECK(server_stop(&server));
}

TEST(metrics_and_statistics_count_calls)
{
    struct server server;
    server_start(&server, NULL);
    for (int i = 0; i < 5; i++)
        CHECK(call_ones(&server, 2, 32));
    CHECK_DOUBLE(metric(&server, "roped_requests_total{op=\"rmsnorm\",status="
                                 "\"ok\",transport=\"v1\"}"),
                 5, 0);
    CHECK_DOUBLE(metric(&server, "roped_stage_duration_seconds_count{op="
                                 "\"rmsnorm\",stage=\"kernel\"}"),
                 5, 0);
    CHECK(metric(&server, "process_resident_memory_bytes ") > 1e6);
    struct answer answer = get(&server, "/metrics");
    CHECK_CONTAINS(answer_header(&answer, "Content-Type"), "version=0.0.4");
    FILE *promtool = NULL;
    if (system("command -v promtool >/dev/null 2>&1") == 0)
        promtool = popen("promtool check metrics", "w");
    if (promtool) {
        fwrite(answer.body, 1, answer.bytes, promtool);
        CHECK_INT(pclose(promtool), 0);
    }
    answer_free(&answer);
    expect_code(get(&server, "/v2/models/rmsnorm/stats"), 200,
                "\"success\":{\"count\":5", "statistics");
    CHECK(server_stop(&server));
}

/* A header of so many bytes is read on a lane, within memory that is claimed
 * for it first. */
TEST(a_call_that_does_not_come_to_its_handler_is_counted)
{
    enum { PADDED = 300 << 10 };
    static const char document[] =
        "{\"inputs\":[\"x\"],\"steps\":[{\"op\":\"rmsnorm\",\"in\":{\"x\":"
        "\"x\"},\"out\":{\"y\":\"y\"}}],\"outputs\":[\"y\"]}";
    const char *flags[] = {"--pool_bytes", "1m", "--host_bytes", "8m", NULL};
    struct server server;
    unsigned char *body = malloc(8 + PADDED);
    server_start(&server, flags);
    expect_code(
        ask(&server, "PUT", "/v1/programs/p", document, strlen(document), NULL),
        201, "", "put");
    memset(body, ' ', 8 + PADDED);
    for (int i = 0; i < 8; i++)
        body[i] = (unsigned char)((uint64_t)PADDED >> 8 * i);
    memcpy(body + 8, "{}", 2);
    struct answer answer =
        ask(&server, "POST", "/v1/programs/p", body, 8 + PADDED, NULL);
    if (answer.code != 503 && answer.code != 413)
        CHECK_FAIL("answered %d %.200s, expected 503 or 413", answer.code,
                   answer.body);
    answer_free(&answer);
    CHECK_DOUBLE(metric_sum(&server, "roped_requests_total{op=\"program\""), 1,
                 0);
    expect_code(get(&server, "/v2/models/p/stats"), 200,
                "\"fail\":{\"count\":1", "statistics");
    CHECK(server_stop(&server));
    free(body);
}

/* They come faster than those before them are counted. */
TEST(a_burst_past_max_connections_stops_nothing)
{
    enum { N = 16 };
    const char *const flags[] = {"--max-connections", "2", "--http-threads",
                                 "1", NULL};
    int fd[N];
    struct server server;
    server_start(&server, flags);
    for (int i = 0; i < N; i++)
        fd[i] = open_raw(&server, "", 0);
    pause_seconds(0.2);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    expect_code(get(&server, "/v2/health/ready"), 200, "true", "after it");
    CHECK(server_stop(&server));
}
