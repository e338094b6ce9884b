/*
 * test_stage.c - bodies that are uploaded while they arrive, over HTTP: on a
 * GPU, or on the daemon whose device has queues that are threads
 * (roped_queued). The CPU backend uploads nothing.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>
#include <zlib.h>

enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128 };
static const char *const staged_name =
    "roped_device_staged_bytes_total{device=\"0\"}";
static struct server server;

/* 64 MiB of rope in BF16, or a tenth: any bits that are no NaN will do. */
static unsigned char *rope_body(size_t *bytes, size_t *data_bytes)
{
    int64_t tokens = check_cases(6553);
    int64_t q[3] = {tokens, HEADS, HEAD_DIM},
            k[3] = {tokens, KV_HEADS, HEAD_DIM};
    size_t n = (size_t)tokens * (HEADS + KV_HEADS) * HEAD_DIM;
    uint16_t *values = malloc(n * sizeof *values);
    int64_t *positions = malloc((size_t)tokens * sizeof *positions);
    struct tensor_file file = {0};
    for (size_t i = 0; i < n; i++) /* -2 .. 2 */
        values[i] =
            (uint16_t)(0x3F00 + i * 2654435761u % 256 + i % 3 / 2 * 0x8000);
    for (int64_t i = 0; i < tokens; i++)
        positions[i] = i * 7 % 8192;
    file_add(&file, "q", ROPED_BF16, 3, q, values);
    file_add(&file, "k", ROPED_BF16, 3, k,
             values + (size_t)tokens * HEADS * HEAD_DIM);
    file_add(&file, "positions", ROPED_I64, 1, &tokens, positions);
    unsigned char *body = file_write(&file, bytes);
    *data_bytes = n * sizeof *values + (size_t)tokens * sizeof *positions;
    free(values);
    free(positions);
    return body;
}

static struct answer rope(const void *body, size_t bytes)
{
    return ask(&server, "POST", "/v1/rope", body, bytes, NULL);
}

static bool is_same(const struct answer *a, const struct answer *b)
{
    return a->code == 200 && b->code == 200 && a->bytes == b->bytes &&
           memcmp(a->body, b->body, a->bytes) == 0;
}

/* The device makes an inbox right after a call that had none. */
static void warm(const void *body, size_t bytes)
{
    for (int i = 0; i < 50 && metric(&server, staged_name) == 0; i++) {
        struct answer answer = rope(body, bytes);
        CHECK_INT(answer.code, 200);
        answer_free(&answer);
    }
    CHECK(metric(&server, staged_name) > 0);
}

static void start(const char *const *flags)
{
    server_start(&server, flags);
}

static void stop(void)
{
    /* libmicrohttpd may miss an end that comes with the last bytes; then it
     * is the body's timeout that ends the request */
    for (int i = 0; i < 60; i++)
        if (metric(&server, "roped_pool_bytes{state=\"used\"}") != 0)
            nanosleep(&(struct timespec){0, 500000000}, NULL);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(a_staged_call_has_the_answer_of_one_that_is_not)
{
    const char *never[] = {"--stage_bytes", "0", NULL};
    size_t bytes, data_bytes;
    unsigned char *body = rope_body(&bytes, &data_bytes);
    start(never);
    struct answer plain = rope(body, bytes);
    CHECK_INT(plain.code, 200);
    expect_metric(&server, staged_name, 0);
    stop();
    start(NULL);
    warm(body, bytes);
    for (int i = 0; i < 5; i++) {
        double before = metric(&server, staged_name);
        struct answer staged = rope(body, bytes);
        CHECK(is_same(&staged, &plain));
        CHECK_DOUBLE(metric(&server, staged_name), before + (double)data_bytes,
                     0);
        answer_free(&staged);
    }
    expect_metric(&server, "roped_device_errors_total{device=\"0\"}", 0);
    stop();
    answer_free(&plain);
    free(body);
}

/* How long they are is known at their end only: not staged, and as right. */
TEST(chunked_and_compressed_bodies_are_uploaded_when_they_are_complete)
{
    static const char *const chunked[] = {"Transfer-Encoding: chunked", NULL};
    static const char *const packed_type[] = {"Content-Encoding: deflate",
                                              NULL};
    const char *flags[] = {"--max_inflated_bytes", "1g", NULL};
    size_t bytes, data_bytes;
    unsigned char *body = rope_body(&bytes, &data_bytes);
    uLongf n = compressBound(bytes);
    unsigned char *packed = malloc(n);
    CHECK_INT(compress2(packed, &n, body, bytes, 1), Z_OK);
    start(flags);
    warm(body, bytes);
    double before = metric(&server, staged_name);
    struct answer plain = rope(body, bytes);
    CHECK_DOUBLE(metric(&server, staged_name), before + (double)data_bytes, 0);
    struct answer answer =
        ask(&server, "POST", "/v1/rope", body, bytes, chunked);
    CHECK(is_same(&answer, &plain));
    answer_free(&answer);
    answer = ask(&server, "POST", "/v1/rope", packed, n, packed_type);
    CHECK(is_same(&answer, &plain));
    answer_free(&answer);
    CHECK_DOUBLE(metric(&server, staged_name), before + (double)data_bytes, 0);
    answer_free(&plain);
    stop();
    free(packed);
    free(body);
}

/* A request whose body stops after so many bytes. */
static void send_part(const void *body, size_t bytes, size_t part,
                      double seconds)
{
    char *text = malloc(256 + part);
    int n = snprintf(text, 256,
                     "POST /v1/rope HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     bytes);
    memcpy(text + n, body, part);
    struct answer answer = ask_raw(&server, text, (size_t)n + part, seconds);
    CHECK_INT(answer.code, 0);
    answer_free(&answer);
    free(text);
}

TEST(clients_that_go_away_midway_leave_nothing)
{
    const char *flags[] = {"--stage_chunk_bytes", "256k",
                           "--body_timeout_seconds", "5", NULL};
    size_t bytes, data_bytes;
    unsigned char *body = rope_body(&bytes, &data_bytes);
    start(flags);
    warm(body, bytes);
    struct answer plain = rope(body, bytes);
    for (size_t i = 1; i <= 8; i++) {
        send_part(body, bytes, bytes / 9 * i, 0.05);
        struct answer answer = rope(body, bytes);
        CHECK(is_same(&answer, &plain));
        answer_free(&answer);
    }
    answer_free(&plain);
    stop();
    free(body);
}

/* Refused by what is in its tensors, which are on the device by then. */
TEST(a_staged_call_that_is_refused_leaves_nothing)
{
    size_t bytes, data_bytes;
    unsigned char *body = rope_body(&bytes, &data_bytes);
    start(NULL);
    warm(body, bytes);
    struct answer plain = rope(body, bytes);
    int64_t good, bad = -5;
    unsigned char *position = body + bytes - sizeof good; /* the last one */
    memcpy(&good, position, sizeof good);
    for (int i = 0; i < 4; i++) {
        memcpy(position, &bad, sizeof bad);
        expect_code(rope(body, bytes), 400, "positions", "a bad position");
        memcpy(position, &good, sizeof good);
        struct answer answer = rope(body, bytes);
        CHECK(is_same(&answer, &plain));
        answer_free(&answer);
    }
    answer_free(&plain);
    stop();
    free(body);
}

struct half {
    const unsigned char *body;
    size_t bytes;
};

static void *send_half(void *context)
{
    const struct half *half = context;
    send_part(half->body, half->bytes, half->bytes / 2, 30);
    return NULL;
}

/* All three have connected, beside us, and a body is on its way: once it stops,
 * the daemon's port is closed. */
static bool have_begun(double staged_before)
{
    return metric(&server, staged_name) > staged_before &&
           metric(&server, "roped_connections") >= 4;
}

TEST(the_daemon_stops_while_bodies_arrive)
{
    const char *flags[] = {"--drain_delay_seconds",
                           "0",
                           "--drain_timeout_seconds",
                           "0.2",
                           "--stage_chunk_bytes",
                           "256k",
                           NULL};
    size_t bytes, data_bytes;
    struct half half;
    pthread_t thread[3];
    unsigned char *body = rope_body(&bytes, &data_bytes);
    half = (struct half){body, bytes};
    start(flags);
    warm(body, bytes);
    double before = metric(&server, staged_name);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, send_half, &half);
    for (int i = 0; i < 500 && !have_begun(before); i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK(metric(&server, staged_name) > before);
    CHECK(server_stop(&server));
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    free(body);
}

int main(void)
{
    const char *backend = getenv("ROPED_TEST_BACKEND");
    if (!backend || strcmp(backend, "cpu") == 0) {
        printf("skipped: the cpu backend uploads nothing; "
               "ROPED_TEST_BACKEND=cuda, on a GPU or with "
               "ROPED_TEST_BIN=.../roped_queued\n");
        return CHECK_SKIP;
    }
    check_run();
    return check_done();
}
