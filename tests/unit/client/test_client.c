/*
 * test_client.c - the client library against a server that says what the test
 * wants: how failures read, on every way to one.
 */
#include "roped_client.h"

#include "check.h"
#include "unit/client/comma.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/* One answer to one request, then the connection is closed. */
struct peer {
    int listener, port;
    const char *answer; /* NULL: none, and the connection stays open */
    const char *file;   /* NULL: none; else a safetensors header behind it */
    char request[4096]; /* what came first */
    pthread_t thread;
};

static void *serve(void *context)
{
    struct peer *peer = context;
    int fd = accept(peer->listener, NULL, NULL);
    size_t n = 0;
    while (!strstr(peer->request, "\r\n\r\n")) {
        ssize_t got =
            recv(fd, peer->request + n, sizeof peer->request - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    uint64_t file_bytes = peer->file ? strlen(peer->file) : 0;
    if (peer->answer)
        send(fd, peer->answer, strlen(peer->answer), MSG_NOSIGNAL);
    else
        recv(fd, &n, sizeof n, 0); /* until the client gives up */
    if (peer->file) {
        send(fd, &file_bytes, sizeof file_bytes, MSG_NOSIGNAL);
        send(fd, peer->file, file_bytes, MSG_NOSIGNAL);
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, &n, sizeof n, 0) > 0)
        ;
    close(fd);
    return NULL;
}

static void peer_start(struct peer *peer, const char *answer, const char *file)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    memset(peer, 0, sizeof *peer);
    peer->answer = answer;
    peer->file = file;
    peer->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(peer->listener, (void *)&address, sizeof address) ||
        listen(peer->listener, 4) ||
        getsockname(peer->listener, (void *)&address, &length) ||
        pthread_create(&peer->thread, NULL, serve, peer)) {
        perror("a peer");
        exit(EXIT_FAILURE);
    }
    peer->port = ntohs(address.sin_port);
}

static void peer_stop(struct peer *peer)
{
    pthread_join(peer->thread, NULL);
    close(peer->listener);
}

static int http_status; /* of the last request */

/* GET /x of a server that answers so, with these options but for the URL. */
static enum roped_status ask(const char *answer,
                             struct roped_client_options options,
                             struct roped_error *err)
{
    struct peer peer;
    struct roped_client *client;
    char url[64], *text = NULL;
    peer_start(&peer, answer, NULL);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", peer.port);
    options.url = url;
    CHECK_OK(roped_client_open(&options, &client, err), err);
    enum roped_status status =
        roped_client_request(client, "GET", "/x", NULL, 0, &text, err);
    http_status = roped_client_http_status(client);
    roped_client_close(client);
    peer_stop(&peer);
    CHECK_CONTAINS(peer.request, "GET /x HTTP/1.1\r\n");
    free(text);
    return status;
}

static void expect(const char *answer, enum roped_status status,
                   const char *text)
{
    struct roped_error err = {.text = ""};
    CHECK_INT(ask(answer, (struct roped_client_options){0}, &err), status);
    CHECK_CONTAINS(err.text, text);
}

#define ANSWER(head, body) "HTTP/1.1 " head "\r\nConnection: close\r\n\r\n" body

TEST(the_error_is_the_servers_sentence)
{
    struct roped_error err = {.text = ""};
    CHECK_INT(ask(ANSWER("400 Bad Request", "{\"error\":\"eps is 'x'\"}"),
                  (struct roped_client_options){0}, &err),
              ROPED_INVALID);
    CHECK_TEXT(err.text, "eps is 'x'");
    expect(ANSWER("404 Not Found",
                  "{ \"code\": 5,\n\"error\" : \"no \\\"caf\\u00e9\\\"\\n\" }"),
           ROPED_NOT_FOUND, "no \"caf\xc3\xa9\"\\u000a");
    expect(ANSWER("413 Too Large", "{\"error\":\"too large\"}"),
           ROPED_TOO_LARGE, "too large");
    expect(ANSWER("501 No", "{\"error\":\"no such backend\"}"),
           ROPED_UNSUPPORTED, "no such backend");
    expect(ANSWER("500 No", "{\"error\":\"broken\"}"), ROPED_INTERNAL,
           "broken");
}

TEST(the_status_is_that_of_the_code)
{
    expect(ANSWER("404 No", "{\"error\":\"none\",\"code\":\"no_region\"}"),
           ROPED_NO_REGION, "none");
    expect(ANSWER("503 No", "{\"code\":\"draining\",\"error\":\"ends\"}"),
           ROPED_DRAINING, "ends");
    expect(ANSWER("401 No", "{\"error\":\"who\",\"code\":\"no_token\"}"),
           ROPED_NO_TOKEN, "who");
    /* of another HTTP status, or of a later version */
    expect(ANSWER("404 No", "{\"error\":\"none\",\"code\":\"busy\"}"),
           ROPED_NOT_FOUND, "none");
    expect(ANSWER("404 No", "{\"error\":\"none\",\"code\":\"no_moon\"}"),
           ROPED_NOT_FOUND, "none");
}

TEST(what_is_not_ropeds_is_said_with_the_url)
{
    expect(ANSWER("502 Bad Gateway", "<html>\r\n<body>nginx"), ROPED_INTERNAL,
           " answered 502: <html>");
    expect(ANSWER("502 Bad Gateway", ""), ROPED_INTERNAL,
           " answered 502 without a reason");
    expect(ANSWER("400 No", "{\"error\":"), ROPED_INVALID, "http://127.0.0.1:");
    expect(ANSWER("400 No", "{\"error\":7}"), ROPED_INVALID,
           "answered 400: {\"error\":7}");
    expect(ANSWER("400 No", "[]"), ROPED_INVALID, "answered 400: []");
}

TEST(the_status_of_http_is_kept)
{
    struct roped_error err;
    expect(ANSWER("418 Teapot", "{\"error\":\"no\"}"), ROPED_INVALID, "no");
    CHECK_INT(http_status, 418);
    expect("HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nabc", ROPED_INTERNAL,
           " 6 bytes ");
    CHECK_INT(http_status, 0); /* half an answer is none */
    CHECK_INT(ask(ANSWER("200 OK", ""), (struct roped_client_options){0}, &err),
              ROPED_OK);
    CHECK_INT(http_status, 200);
}

TEST(retry_after_is_said)
{
    struct roped_error err;
    expect(ANSWER("503 Busy\r\nretry-after:  7", "{\"error\":\"full\"}"),
           ROPED_BUSY, "full: try again in 7 s");
    CHECK_INT(ask(ANSWER("503 Busy", "{\"error\":\"full\"}"),
                  (struct roped_client_options){0}, &err),
              ROPED_BUSY);
    CHECK_TEXT(err.text, "full");
}

TEST(a_broken_answer_is_said_with_the_url)
{
    expect("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ROPED_INTERNAL,
           "http://127.0.0.1:");
    expect("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ROPED_INTERNAL,
           " 6 bytes ");
    expect("", ROPED_INTERNAL, "Empty reply from server");
    expect("HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\nabc",
           ROPED_TOO_LARGE, " over 1073741824 bytes");
}

TEST(a_server_that_does_not_answer_is_given_up)
{
    struct roped_error err = {.text = ""};
    CHECK_INT(
        ask(NULL, (struct roped_client_options){.timeout_seconds = 0.05}, &err),
        ROPED_DEADLINE);
    CHECK_CONTAINS(err.text, "http://127.0.0.1:");
    CHECK_CONTAINS(err.text, "timed out after");
}

TEST(an_answer_has_a_limit)
{
    static const char answers[][128] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef",
        "HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\na",
        "HTTP/1.1 200 OK\r\n\r\nabcdef",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        "3\r\ndef\r\n0\r\n\r\n"};
    struct roped_client_options options = {.max_answer_bytes = 5};
    struct roped_error err = {.text = ""};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        CHECK_INT(ask(answers[i], options, &err), ROPED_TOO_LARGE);
        CHECK_CONTAINS(err.text, ": the answer is over 5 bytes");
        CHECK_INT(http_status, 0);
    }
    options.max_answer_bytes = 6;
    CHECK_OK(ask(answers[0], options, &err), &err);
    CHECK_OK(ask(answers[2], options, &err), &err);
    CHECK_OK(ask(answers[3], options, &err), &err);
    /* a refusal is no answer: its sentence is wanted */
    options.max_answer_bytes = 1;
    CHECK_INT(ask(ANSWER("400 No", "{\"error\":\"no\"}"), options, &err),
              ROPED_INVALID);
    CHECK_TEXT(err.text, "no");
}

TEST(an_answer_that_ends_in_its_head_is_none)
{
    expect("HTTP/1.1 200 OK\r\nX", ROPED_INTERNAL, " ended within its head");
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX", ROPED_INTERNAL,
           " ended within its head");
}

TEST(the_shortest_time_is_some)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct roped_client_options options = {.timeout_seconds = 1e-9};
    struct roped_client *client;
    struct roped_error err = {.text = ""};
    char url[64], *text;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* who listens */
    CHECK(!bind(fd, (void *)&address, sizeof address) && !listen(fd, 4) &&
          !getsockname(fd, (void *)&address, &length));
    snprintf(url, sizeof url, "127.0.0.1:%d", ntohs(address.sin_port));
    options.url = url;
    CHECK_OK(roped_client_open(&options, &client, &err), &err);
    CHECK_INT(roped_client_request(client, "GET", "/", NULL, 0, &text, &err),
              ROPED_DEADLINE);
    roped_client_close(client);
    close(fd);
}

TEST(no_server_is_said_with_the_reason)
{
    struct roped_client_options options = {.url = "127.0.0.1:1/"};
    struct roped_client *client;
    struct roped_error err;
    char *text;
    CHECK_OK(roped_client_open(&options, &client, &err), &err);
    CHECK_INT(roped_client_request(client, "GET", "/", NULL, 0, &text, &err),
              ROPED_NOT_FOUND);
    CHECK_TEXT(err.text,
               "could not connect to http://127.0.0.1:1: Connection refused");
    roped_client_close(client);
    options.url = "nothing://127.0.0.1";
    CHECK_OK(roped_client_open(&options, &client, &err), &err);
    CHECK(roped_client_request(client, "GET", "/", NULL, 0, &text, &err));
    CHECK_CONTAINS(err.text, "nothing://127.0.0.1: ");
    CHECK_CONTAINS(err.text, "not supported");
    roped_client_close(client);
}

TEST(a_token_is_sent_whole)
{
    char path[] = "/tmp/roped_test_XXXXXX", token[600];
    struct roped_client_options options = {.token_file = path};
    struct roped_client *client;
    struct roped_error err = {.text = ""};
    int fd = mkstemp(path);
    CHECK(roped_client_open(&options, &client, &err) != ROPED_OK);
    CHECK_CONTAINS(err.text, "': its first line is empty");
    memset(token, 'x', sizeof token);
    token[sizeof token - 1] = '\n';
    CHECK(write(fd, token, sizeof token) == sizeof token);
    close(fd);
    token[sizeof token - 1] = '\0';
    struct peer peer;
    char url[64], *text;
    peer_start(&peer, ANSWER("401 No", "{\"error\":\"no token\"}"), NULL);
    snprintf(url, sizeof url, "127.0.0.1:%d", peer.port);
    options.url = url;
    CHECK_OK(roped_client_open(&options, &client, &err), &err);
    CHECK_INT(roped_client_request(client, "GET", "/", NULL, 0, &text, &err),
              ROPED_NO_TOKEN);
    CHECK_TEXT(err.text, "no token (the token file has another)");
    roped_client_close(client);
    peer_stop(&peer);
    CHECK_CONTAINS(peer.request, token);
    unlink(path);
    CHECK_INT(roped_client_open(&options, &client, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "No such file or directory");
}

static void *open_and_close(void *context)
{
    struct roped_client *client;
    struct roped_error err;
    int *n_open = context;
    for (int i = 0; i < 20; i++)
        if (!roped_client_open(&(struct roped_client_options){0}, &client,
                               &err)) {
            roped_client_close(client);
            ++*n_open;
        }
    return NULL;
}

/* First of all: libcurl has not been started yet. */
TEST(threads_open_clients_at_once)
{
    enum { N = 8 };
    pthread_t thread[N];
    int n_open[N] = {0};
    for (int i = 0; i < N; i++)
        CHECK_INT(pthread_create(&thread[i], NULL, open_and_close, &n_open[i]),
                  0);
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++)
        CHECK_INT(n_open[i], 20);
}

TEST(a_file_of_many_tensors_is_read)
{
    enum { N = 1000 };
    char *file = malloc(8 + N * 80), *at = file + 8;
    struct roped_client_tensor *tensors;
    struct roped_error err;
    int n = 0;
    for (int i = 0; i < N; i++)
        at +=
            snprintf(at, 80,
                     "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[%d],"
                     "\"data_offsets\":[0,%d]}",
                     i ? "," : "{", i, i == N - 1 ? 4 : 0, i == N - 1 ? 4 : 0);
    *at++ = '}';
    uint64_t length = (uint64_t)(at - file) - 8;
    memcpy(file, &length, 8);
    memcpy(at, "abcd", 4);
    CHECK_OK(
        roped_client_read(file, (size_t)(at - file) + 4, &tensors, &n, &err),
        &err);
    CHECK_INT(n, N);
    if (n == N) {
        CHECK_TEXT(tensors[0].name, "t0");
        CHECK_TEXT(tensors[N - 1].name, "t999");
        CHECK(tensors[N - 1].tensor.data == at);
        free(tensors);
    }
    CHECK_INT(roped_client_read(file, 7, &tensors, &n, &err), ROPED_INVALID);
    free(file);
}

/* The seconds in the kernel that a call finds where the server says this. */
static double kernel_seconds(const char *timing)
{
    static const char header[] = "{\"y\":{\"dtype\":\"F32\",\"shape\":[0],"
                                 "\"data_offsets\":[0,0]}}";
    char answer[256], url[64];
    struct roped_client_options options = {.url = url};
    struct roped_client_result result;
    struct roped_client *client;
    struct roped_error err = {.text = ""};
    struct peer peer;
    snprintf(answer, sizeof answer,
             "HTTP/1.1 200 OK\r\nServer-Timing: %s\r\n\r\n", timing);
    peer_start(&peer, answer, header);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", peer.port);
    CHECK_OK(roped_client_open(&options, &client, &err), &err);
    CHECK_OK(
        roped_client_call_bytes(client, "rope", NULL, "", 0, &result, &err),
        &err);
    double seconds = result.timing.kernel;
    roped_client_result_free(&result);
    roped_client_close(client);
    peer_stop(&peer);
    return seconds;
}

/* Last of all: the locale stays. */
TEST(timing_is_read_in_every_locale)
{
    CHECK(kernel_seconds("plan;dur=1, kernel;dur=0.25, d2h;dur=1") == 0.25e-3);
    CHECK(kernel_seconds("kernel;dur=nan") == 0);
    CHECK(kernel_seconds("kernel;dur=1e999") == 0);
    CHECK(kernel_seconds("kernel;dur=-1") == 0);
    comma_use();
    CHECK(kernel_seconds("plan;dur=1, kernel;dur=0.25, d2h;dur=1") == 0.25e-3);
}
