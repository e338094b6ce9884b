/*
 * test_framing.c - where one request ends and the next begins, byte by byte
 * over raw sockets: requests without a body, with and without 'Expect:
 * 100-continue', and what stands behind them.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* A request without a body on each kind of route. */
static const char *const bodyless[] = {
    "GET /v2/health/live",
    "HEAD /metrics",
    "GET /v1/rope",
    "GET /v1/regions/r",
    "GET /v1/regions",
    "PUT /v1/regions/r?bytes=64",
    "DELETE /v1/regions/nobody",
    "PUT /v1/tables/t",
    "POST /v1/rmsnorm?from.x=x&into.y=y",
    "POST /v1/rmsnorm?from.x=x",
    "POST /v1/rmsnorm",
    "POST /v2/models/rmsnorm/infer",
    "POST /v2/repository/index",
    "POST /v2/cudasharedmemory/unregister",
    "GET /nothing",
    "PATCH /v1/rope",
};

static const char *const headers[] = {
    "",
    "Content-Length: 0\r\n",
    "Expect: 100-continue\r\n",
    "Expect: 100-continue\r\nContent-Length: 0\r\n",
};

static const char next_request[] = "GET /v2/health/live HTTP/1.1\r\nHost: "
                                   "localhost\r\nConnection: close\r\n\r\n";

/* Reads until n whole answers other than 100 have begun, or seconds pass. */
static int count_answers(int fd, int n, double seconds)
{
    static char text[1 << 20];
    size_t bytes = 0;
    int found = 0;
    double until = now_seconds() + seconds;
    while (found < n && now_seconds() < until) {
        struct pollfd wait = {fd, POLLIN, 0};
        if (poll(&wait, 1, 100) <= 0)
            continue;
        ssize_t got = recv(fd, text + bytes, sizeof text - 1 - bytes, 0);
        if (got <= 0)
            break;
        bytes += (size_t)got;
        text[bytes] = '\0';
        found = 0;
        for (const char *at = text; at < text + bytes; at++)
            found += strncmp(at, "HTTP/1.1 ", 9) == 0 && at[9] != '1';
    }
    return found;
}

/* One request with the bytes behind it in the same segment. */
static void expect_answers(const struct server *server, const char *request,
                           const char *behind, size_t behind_bytes, int n)
{
    char text[1024];
    size_t bytes = strlen(request);
    memcpy(text, request, bytes);
    memcpy(text + bytes, behind, behind_bytes);
    int fd = open_raw(server, text, bytes + behind_bytes);
    int found = count_answers(fd, n, 5);
    if (found != n)
        CHECK_FAIL("%d of %d answers with %zu bytes behind: %s", found, n,
                   behind_bytes, request);
    close(fd);
}

TEST(what_stands_behind_a_bodyless_request_is_the_next_one)
{
    struct server server;
    char request[512];
    server_start(&server, NULL);
    expect_code(
        ask(&server, "PUT", "/v1/regions/x?dtype=F32&shape=2,8", NULL, 0, NULL),
        201, "x", "region x");
    expect_code(ask(&server, "PUT", "/v1/regions/y?bytes=64", NULL, 0, NULL),
                201, "y", "region y");
    for (size_t i = 0; i < sizeof bodyless / sizeof *bodyless; i++)
        for (size_t j = 0; j < sizeof headers / sizeof *headers; j++) {
            snprintf(request, sizeof request,
                     "%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", bodyless[i],
                     headers[j]);
            expect_answers(&server, request, "", 0, 1);
            expect_answers(&server, request, "G", 1, 1);
            expect_answers(&server, request, next_request,
                           sizeof next_request - 1, 2);
            CHECK(server_is_alive(&server));
        }
    CHECK(server_stop(&server));
}
