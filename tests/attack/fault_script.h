/*
 * fault_script.h - the requests that test_faults.c makes beside a fault, one of
 * each kind. Include it after check.h.
 */
#ifndef ROPED_TESTS_ATTACK_FAULT_SCRIPT_H
#define ROPED_TESTS_ATTACK_FAULT_SCRIPT_H

#include "attack/attack.h"
#include "http/service.h"

#include <sys/socket.h>
#include <unistd.h>

static const double patience_seconds = 5;

static struct request {
    const char *method, *target, *name;
    bool is_fixed; /* every 200 has the same body */
    struct bytes bytes, answer;
} requests[] = {
    {.method = "GET", .target = "/v2/health/live", .name = "health"},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm of 1 KiB", true, {0}, {0}},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm of 1 MiB", true, {0}, {0}},
    {.method = "POST", .target = "/v2/models/rmsnorm/infer", .name = "infer"},
    {.method = "PUT", .target = "/v1/regions/r", .name = "region put"},
    {"GET", "/v1/regions/r", "region get", true, {0}, {0}},
    {.method = "DELETE", .target = "/v1/regions/r", .name = "region delete"},
    {.method = "GET", .target = "/metrics", .name = "metrics"},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm in chunks", true, {0}, {0}},
    {.method = "POST",
     .target = "/v2/systemsharedmemory/region/s/register",
     .name = "memory of a client"},
    {.method = "POST",
     .target = "/v2/systemsharedmemory/region/s/unregister",
     .name = "forgetting it"},
};
enum {
    HEALTH,
    SMALL,
    LARGE,
    INFER,
    PUT,
    METRICS = 7,
    CHUNKED,
    REGISTER,
    UNREGISTER,
    N_REQUESTS
};

static void make_request(struct request *request, const void *body, size_t n)
{
    bytes_format(&request->bytes,
                 "%s %s HTTP/1.1\r\nHost: localhost\r\n"
                 "Authorization: Bearer secret\r\nContent-Length: %zu\r\n\r\n",
                 request->method, request->target, n);
    bytes_add(&request->bytes, body, n);
}

/* Its body grows in the daemon, which does not know how long it will be. */
static void make_chunked(struct request *request, const unsigned char *body,
                         size_t n)
{
    enum { PIECE = 50000 };
    bytes_format(&request->bytes,
                 "%s %s HTTP/1.1\r\nHost: localhost\r\n"
                 "Authorization: Bearer secret\r\nExpect: 100-continue\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n",
                 request->method, request->target);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t piece = n - at < PIECE ? n - at : PIECE;
        bytes_format(&request->bytes, "%zx\r\n", piece);
        bytes_add(&request->bytes, body + at, piece);
        bytes_text(&request->bytes, "\r\n");
    }
    bytes_text(&request->bytes, "0\r\n\r\n");
}

/* Memory of a client: its key. */
static void make_requests(const char *shared_key)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],"
        "\"data\":[1,1,1,1]}]}";
    char memory[128];
    snprintf(memory, sizeof memory,
             "{\"key\":\"%s\",\"offset\":0,\"byte_size\":4096}", shared_key);
    for (int i = 0; i < N_REQUESTS; i++) {
        size_t n = 0;
        unsigned char *body = NULL;
        if (i == SMALL || i == LARGE || i == PUT || i == CHUNKED)
            body = ones(i == LARGE || i == CHUNKED ? 1024 : 1, 256, &n);
        if (i == CHUNKED)
            make_chunked(&requests[i], body, n);
        else if (i == INFER)
            make_request(&requests[i], json, sizeof json - 1);
        else if (i == REGISTER)
            make_request(&requests[i], memory, strlen(memory));
        else
            make_request(&requests[i], body, n);
        free(body);
    }
}

/* On a new connection, which does not make the test wait for ever. */
static struct exchange send_request(int port, const struct request *request)
{
    struct timeval limit = {(time_t)patience_seconds, 0};
    struct exchange all = {0};
    int fd = client_connect(port);
    if (fd < 0) { /* the daemon has ended */
        all.is_closed = true;
        return all;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    attack_send(fd, request->bytes.start, request->bytes.n);
    all = exchange_read(fd, 1, patience_seconds);
    close(fd);
    return all;
}

/* A fixed answer is the first one that came. */
static bool is_right(struct request *request, const struct exchange *all)
{
    if (exchange_code(all) != 200 || !request->is_fixed)
        return true;
    const struct found_answer *answer = &all->answer[0];
    if (!request->answer.start)
        bytes_add(&request->answer, answer->body, answer->body_bytes);
    return answer->body && answer->body_bytes == request->answer.n &&
           memcmp(answer->body, request->answer.start, request->answer.n) == 0;
}

#endif
