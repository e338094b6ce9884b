/*
 * test_starve.c - clients that take without giving: 100 connections announce
 * the largest body and stay silent, drip or stop half-way. Meanwhile other
 * clients are served, and whoever is slower than min_body_rate is cut off.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_HOSTILE = 100, HALF_BYTES = 2 << 20, LEAST_BYTES = 3 << 20 };
static const double served_seconds = 5;
static struct server server;

/* The headers of the i-th: the first announce almost the largest body that the
 * daemon takes by default, the next ones less and less, to fill what is left of
 * its memory. */
static int announce(char *out, size_t out_bytes, int i, const char *expect)
{
    long announced = (1L << 30) - 4096;
    for (int j = 0; j < i / 10; j++)
        announced = announced / 2 > LEAST_BYTES ? announced / 2 : LEAST_BYTES;
    return snprintf(out, out_bytes,
                    "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Length: %ld\r\n%s\r\n",
                    announced, expect);
}

static int open_announced(int i, const char *expect)
{
    char head[256];
    int n = announce(head, sizeof head, i, expect);
    return open_raw(&server, head, (size_t)n);
}

/* ----------------------------------------------------- hostile connections */

struct hostile {
    int fd[N_HOSTILE];
    atomic_bool is_over;
};

/* As much of it as goes without waiting for the server. */
static void send_half(int fd)
{
    char *piece = calloc(1, HALF_BYTES);
    for (size_t at = 0; at < HALF_BYTES;) {
        ssize_t n =
            send(fd, piece + at, HALF_BYTES - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    free(piece);
}

static void *drip(void *context)
{
    struct hostile *hostile = context;
    while (!atomic_load(&hostile->is_over)) {
        for (int i = 0; i < N_HOSTILE; i++)
            send(hostile->fd[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        pause_seconds(0.1);
    }
    return NULL;
}

/* Another client's calls of 1 KiB and 1 MiB, all of which must be right. */
static void expect_service(const char *beside)
{
    int n_calls = 0, n_right = 0;
    double start = now_seconds(), slowest = 0;
    do {
        double before = now_seconds();
        n_right += call_ones(&server, 1, 256) + call_ones(&server, 1024, 256);
        n_calls += 2;
        double took = now_seconds() - before;
        slowest = took > slowest ? took : slowest;
    } while (now_seconds() - start < served_seconds && n_calls - n_right < 20);
    printf("beside %d that %s: %d of %d calls right, slowest pair %.1f ms\n",
           N_HOSTILE, beside, n_right, n_calls, slowest * 1e3);
    fflush(stdout);
    CHECK_INT(n_right, n_calls);
}

/* Each sends its headers, and then nothing, or a byte now and then. */
static void starve(const char *expect, bool drips, const char *name)
{
    struct hostile hostile = {0};
    pthread_t thread;
    server_start(&server, NULL);
    for (int i = 0; i < N_HOSTILE; i++) {
        hostile.fd[i] = open_announced(i, expect);
        if (drips && i % 2)
            send_half(hostile.fd[i]);
    }
    if (drips)
        pthread_create(&thread, NULL, drip, &hostile);
    expect_service(name);
    atomic_store(&hostile.is_over, true);
    if (drips)
        pthread_join(thread, NULL);
    for (int i = 0; i < N_HOSTILE; i++)
        close(hostile.fd[i]);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(silent_announcements_starve_nobody)
{
    starve("", false, "announce 1 GiB and are silent");
}

TEST(announcements_with_expect_starve_nobody)
{
    starve("Expect: 100-continue\r\n", false, "announce it with Expect");
}

TEST(drippers_and_bodies_that_stop_half_way_starve_nobody)
{
    starve("", true, "drip a byte in 100 ms, every other after 2 MiB");
}

/* -------------------------------------------------------- the slowest rate */

enum { N_SLOW = 8 };
static const double cut_seconds = 4; /* grace of 1 s, and room for a look */

static bool is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* An answer, then the end, counts as cut off. */
static int n_cut(const int *fd)
{
    char bytes[4096];
    int n = 0;
    for (int i = 0; i < N_SLOW; i++) {
        while (!is_closed(fd[i]) &&
               recv(fd[i], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        n += is_closed(fd[i]);
    }
    return n;
}

/* 10 bytes a second, where 16 KiB is the least. */
TEST(drippers_are_cut_off)
{
    const char *flags[] = {"--body_grace_seconds", "1", NULL};
    int fd[N_SLOW];
    server_start(&server, flags);
    for (int i = 0; i < N_SLOW; i++)
        fd[i] = open_announced(0, "");
    double start = now_seconds();
    while (n_cut(fd) < N_SLOW && now_seconds() - start < 15) {
        for (int i = 0; i < N_SLOW; i++)
            send(fd[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        pause_seconds(0.1);
    }
    double took = now_seconds() - start;
    printf("%d of %d drippers cut off after %.1f s\n", n_cut(fd), N_SLOW, took);
    CHECK_INT(n_cut(fd), N_SLOW);
    CHECK(took >= 0.9 && took <= cut_seconds);
    for (int i = 0; i < N_SLOW; i++)
        close(fd[i]);
    CHECK(server_stop(&server));
}

/* Four times the least: 256 KiB in 4 s. */
TEST(a_slow_but_steady_body_is_served)
{
    enum { TICKS = 40 };
    const char *flags[] = {"--body_grace_seconds", "1", NULL};
    struct bytes request = {0};
    server_start(&server, flags);
    request_ones(&request, 256, 256);
    int fd = client_connect(server.port);
    size_t sent = 0;
    for (int i = 1; i <= TICKS; i++) {
        size_t until = request.n * (size_t)i / TICKS;
        CHECK(attack_send(fd, request.start + sent, until - sent));
        sent = until;
        pause_seconds(0.1);
    }
    struct exchange all = exchange_read(fd, 1, 5);
    CHECK_INT(exchange_code(&all), 200);
    exchange_free(&all);
    close(fd);
    bytes_free(&request);
    CHECK(server_stop(&server));
}

/* A region of 64 MiB, of which nothing is read for a while: what then comes is
 * what the sockets held. At 64 MiB/s it should have been read in a second. */
TEST(who_does_not_read_an_answer_is_cut_off)
{
    enum { PIECE = 1 << 16, REGION_BYTES = 64 << 20 };
    static char piece[PIECE];
    const char *flags[] = {"--body_grace_seconds", "1", "--min_body_rate", "8m",
                           NULL};
    struct bytes request = {0};
    size_t got = 0;
    server_start(&server, flags);
    expect_code(
        ask(&server, "PUT", "/v1/regions/large?bytes=67108864", NULL, 0, NULL),
        201, "large", "region");
    request_plain(&request, "GET", "/v1/regions/large", "");
    int fd = open_raw(&server, request.start, request.n);
    pause_seconds(cut_seconds);
    struct timeval limit = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;)
        got += (size_t)n;
    printf("read %.1f of 64 MiB after %.0f s of not reading\n",
           (double)got / (1 << 20), cut_seconds);
    CHECK(got < REGION_BYTES);
    close(fd);
    bytes_free(&request);
    CHECK(server_stop(&server));
}
