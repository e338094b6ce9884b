/*
 * section_crowd.c - clients that are idle, slow, large or refused, and what
 * that does to the others.
 */
#include "bench/http/bench.h"
#include "load/load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_IDLE = 1000, MOST_DRIPPERS = 100 };
static const double drip_seconds = 0.1;

/* The start of a call whose JSON of 4 KiB never ends: nothing in it is wrong
 * but how slowly it comes. */
static const char slow_body[] = "POST /v1/rmsnorm HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: 65536\r\n\r\n"
                                "\0\x10\0\0\0\0\0\0{";

/* ------------------------------------------------------------- the crowd */

struct crowd {
    uint16_t port;
    int n_idle, idle[MOST_IDLE];
    int n_drippers, dripper[MOST_DRIPPERS];
    pthread_t drip_thread;
    bool has_drip_thread;
    atomic_bool is_over;
};

/* Keep-alive connections that have asked once. */
static bool open_idle(struct crowd *crowd, const struct http_request *request,
                      int n)
{
    for (; crowd->n_idle < n; crowd->n_idle++) {
        struct http_answer answer;
        int fd = client_open(crowd->port);
        if (fd < 0)
            return false;
        crowd->idle[crowd->n_idle] = fd;
        if (!client_exchange(fd, request, NULL, 0, &answer))
            return false;
    }
    return true;
}

/* A byte of each body now and then. */
static void *drip(void *context)
{
    struct crowd *crowd = context;
    while (!atomic_load(&crowd->is_over)) {
        for (int i = 0; i < crowd->n_drippers; i++)
            (void)send(crowd->dripper[i], " ", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        pause_seconds(drip_seconds);
    }
    return NULL;
}

static bool open_drippers(struct crowd *crowd, int n)
{
    for (; crowd->n_drippers < n; crowd->n_drippers++) {
        int fd = client_open(crowd->port);
        if (fd < 0)
            return false;
        crowd->dripper[crowd->n_drippers] = fd;
        if (send(fd, slow_body, sizeof slow_body - 1, MSG_NOSIGNAL) < 0)
            return false;
    }
    crowd->has_drip_thread =
        pthread_create(&crowd->drip_thread, NULL, drip, crowd) == 0;
    return crowd->has_drip_thread;
}

static void disperse(struct crowd *crowd)
{
    atomic_store(&crowd->is_over, true);
    if (crowd->has_drip_thread)
        pthread_join(crowd->drip_thread, NULL);
    for (int i = 0; i < crowd->n_idle; i++)
        close(crowd->idle[i]);
    for (int i = 0; i < crowd->n_drippers; i++)
        close(crowd->dripper[i]);
}

/* A client that asks for this again and again, in a process of its own. */
static struct load_child start_large(uint16_t port,
                                     const struct http_request *large)
{
    struct load load = {.port = port,
                        .n_clients = 1,
                        .request = large,
                        .n_requests = 1,
                        .seconds = 3600,
                        .ends_refused = true};
    return load_start(&load);
}

/* Has it been answered? */
static bool end_large(struct load_child *child)
{
    atomic_store(&child->result->is_over, true);
    load_wait(child);
    bool is_answered = child->result->n_ok > 0;
    load_free(child);
    return is_answered;
}

/* ---------------------------------------------------------- small requests */

/* One client, a small POST every half millisecond: times in *out. */
static bool ask_steadily(uint16_t port, const struct http_request *request,
                         double seconds, struct samples *out)
{
    struct load_result result = {.latency = *out};
    struct load load = {.port = port,
                        .n_clients = 1,
                        .request = request,
                        .n_requests = 1,
                        .seconds = seconds,
                        .patience_seconds = 60,
                        .pause_seconds = 0.5e-3,
                        .ends_refused = true};
    load_run(&load, &result);
    *out = result.latency;
    return result.n_ok > 0 && result.n_ok == result.n_sent;
}

static void report_small(struct bench *bench, const char *name,
                         struct samples *times, bool is_answered,
                         const double p99_goals[2], const double p999_goals[2])
{
    struct row row = {.unit = "ms, p99", .is_ceiling = true};
    snprintf(row.name, sizeof row.name, "%s", name);
    row.p50_us = stats_quantile(times, 0.5) * 1e6;
    row.p99_us = stats_quantile(times, 0.99) * 1e6;
    row.p999_us = stats_quantile(times, 0.999) * 1e6;
    row.value = row.p99_us * 1e-3;
    row.must = p99_goals[0];
    row.stretch = p99_goals[1];
    if (!is_answered) {
        bench->n_failed++;
        snprintf(row.note, sizeof row.note, "a request was not answered");
    }
    report_row(&bench->report, &row);
    if (p999_goals[0] == 0)
        return;
    struct row tail = {.unit = "ms, p99.9",
                       .value = row.p999_us * 1e-3,
                       .must = p999_goals[0],
                       .stretch = p999_goals[1],
                       .is_ceiling = true};
    snprintf(tail.name, sizeof tail.name, "  its p99.9");
    report_row(&bench->report, &tail);
}

static void report_memory(struct bench *bench, uint64_t before, uint64_t after,
                          int n)
{
    struct row row = {.unit = "KiB",
                      .must = 64,
                      .stretch = 40,
                      .is_ceiling = true,
                      .note = "resident memory of the daemon"};
    snprintf(row.name, sizeof row.name, "each of %d idle keep-alive clients",
             n);
    row.value = ((double)after - (double)before) / n / 1024;
    report_row(&bench->report, &row);
}

static void small_beside(struct bench *bench)
{
    static const double none[2] = {0}, crowded[2] = {5, 1}, mixed[2] = {10, 3},
                        mixed_tail[2] = {25, 5};
    double seconds = bench->is_quick ? 0.4 : 5;
    int n_idle = bench->is_quick ? 200 : MOST_IDLE;
    int n_drippers = bench->is_quick ? 20 : MOST_DRIPPERS;
    size_t large_bytes = bench->is_quick ? 4 * MIB : 64 * MIB;
    static struct crowd crowd;
    struct samples times = {0};
    struct server roped;
    struct http_request small = call_rmsnorm(KIB);
    struct http_request large = call_echo(large_bytes);
    static const char *const flags[] = {"--demo-models", "true", NULL};
    char name[ROW_TEXT];
    server_roped(&roped, bench->binary, bench->backend, flags, ANY_CPU);
    memset(&crowd, 0, sizeof crowd);
    crowd.port = roped.port;
    bool ok = ask_steadily(roped.port, &small, seconds, &times);
    report_small(bench, "POST 1 KiB, alone", &times, ok, none, none);
    stats_free(&times);

    uint64_t before = server_rss_bytes(&roped);
    ok = open_idle(&crowd, &small, n_idle);
    report_memory(bench, before, server_rss_bytes(&roped), crowd.n_idle);
    ok = ok && open_drippers(&crowd, n_drippers) &&
         ask_steadily(roped.port, &small, seconds, &times);
    snprintf(name, sizeof name, "POST 1 KiB, %d idle, %d dripping",
             crowd.n_idle, crowd.n_drippers);
    report_small(bench, name, &times, ok, crowded, none);
    stats_free(&times);

    struct load_child child = start_large(roped.port, &large);
    ok = ask_steadily(roped.port, &small, seconds, &times);
    snprintf(name, sizeof name, "POST 1 KiB, the same and a %zu MiB echo loop",
             large_bytes / MIB);
    ok = end_large(&child) && ok;
    disperse(&crowd);
    report_small(bench, name, &times, ok, mixed, mixed_tail);
    stats_free(&times);
    request_free(&small);
    request_free(&large);
    server_stop(&roped);
}

/* One client beside one that sends large bodies all the time and reads them
 * back: what a server does for the one, the other waits for. In turns with the
 * reference server, which shows what this machine does to a tail. */
static void beside_large(struct bench *bench)
{
    enum { RAW, ROPED, N_SIDES };
    static const double none[2] = {0}, goals[2] = {10, 3}, tail[2] = {25, 5};
    static const char *const flags[] = {"--demo-models", "true", NULL};
    size_t bytes = bench->is_quick ? 4 * MIB : 64 * MIB;
    double seconds = bench->is_quick ? 0.4 : 2;
    struct server server[N_SIDES];
    struct samples times[N_SIDES] = {{0}};
    bool ok[N_SIDES] = {true, true};
    char name[ROW_TEXT];
    if (!bench_has_room(bench, bytes, 5))
        return;
    server_raw(&server[RAW], ANY_CPU);
    server_roped(&server[ROPED], bench->binary, bench->backend, flags, ANY_CPU);
    struct http_request small[N_SIDES] = {call_plain(KIB), call_rmsnorm(KIB)};
    struct http_request large[N_SIDES] = {call_plain(bytes), call_echo(bytes)};
    for (int run = 0; run < bench->plan.n_runs * N_SIDES; run++) {
        int i = run % N_SIDES;
        struct load_child child = start_large(server[i].port, &large[i]);
        ok[i] &= ask_steadily(server[i].port, &small[i], seconds, &times[i]);
        ok[i] &= end_large(&child);
    }
    snprintf(name, sizeof name, "raw POST 1 KiB beside a %zu MiB echo loop",
             bytes / MIB);
    report_small(bench, name, &times[RAW], ok[RAW], none, none);
    snprintf(name, sizeof name, "POST 1 KiB beside a %zu MiB echo loop",
             bytes / MIB);
    report_small(bench, name, &times[ROPED], ok[ROPED], goals, tail);
    for (int i = 0; i < N_SIDES; i++) {
        stats_free(&times[i]);
        request_free(&small[i]);
        request_free(&large[i]);
        server_stop(&server[i]);
    }
}

/* ---------------------------------------------------------------- refusals */

struct refusal {
    bool is_seen; /* the 413 */
    double seconds;
};

/* Sends without looking up until it is told off, then reads. */
static struct refusal send_blindly(uint16_t port,
                                   const struct http_request *request)
{
    char text[2048];
    struct refusal out = {0};
    uint64_t sent = 0;
    struct http_answer answer = {0};
    const char *body = request->body;
    double start = now_seconds();
    int fd = client_open(port);
    if (fd < 0)
        return out;
    ssize_t n = send(fd, request->head, request->head_bytes, MSG_NOSIGNAL);
    while (n > 0 && sent < request->body_bytes) {
        size_t left = request->body_bytes - sent;
        n = send(fd, body + sent,
                 left < CLIENT_PIECE_BYTES ? left : CLIENT_PIECE_BYTES,
                 MSG_NOSIGNAL);
        sent += n > 0 ? (uint64_t)n : 0;
    }
    n = recv(fd, text, sizeof text - 1, 0);
    out.seconds = now_seconds() - start;
    if (n > 0) {
        text[n] = '\0';
        client_read_head(text, (size_t)n, &answer);
    }
    out.is_seen = answer.code == 413;
    close(fd);
    return out;
}

/* A body that is too large is read and dropped, so that its sender does not
 * miss the answer: how long that takes. */
static void refuse(struct bench *bench)
{
    enum { N = 20 };
    static const char *const flags[] = {"--max-body-bytes", "1m", NULL};
    struct server roped;
    struct http_request request = call_rmsnorm(64 * MIB);
    struct samples times = {0};
    int n_seen = 0;
    struct row time = {.name = "413 for 64 MiB", .unit = "ms"};
    server_roped(&roped, bench->binary, bench->backend, flags, ANY_CPU);
    for (int i = 0; i < N; i++) {
        struct refusal one = send_blindly(roped.port, &request);
        n_seen += one.is_seen;
        stats_add(&times, one.seconds);
    }
    snprintf(time.note, sizeof time.note, "seen by %d of %d blind senders",
             n_seen, N);
    time.value = stats_quantile(&times, 0.5) * 1e3;
    bench->n_failed += n_seen < N;
    report_row(&bench->report, &time);
    stats_free(&times);
    request_free(&request);
    server_stop(&roped);
}

/* Seconds until the server hangs up on who sends a byte now and then. */
static double drip_until_cut(uint16_t port, const char *start, size_t bytes,
                             double limit)
{
    double from = now_seconds();
    int fd = client_open(port);
    char byte;
    if (fd < 0)
        return limit;
    (void)send(fd, start, bytes, MSG_NOSIGNAL);
    while (now_seconds() - from < limit) {
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        (void)send(fd, " ", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        pause_seconds(drip_seconds);
    }
    close(fd);
    return now_seconds() - from;
}

static void cut_off(struct bench *bench)
{
    static const char slow_head[] = "GET /v2 HTTP/1.1\r\nX-Slow: ";
    static const char *const flags[] = {"--header-timeout-seconds", "0.5",
                                        "--body-timeout-seconds", "1", NULL};
    struct server roped;
    struct row head = {.name = "dripping headers are cut off",
                       .unit = "s late",
                       .must = 1,
                       .is_ceiling = true,
                       .note = "after a deadline of 0.5 s"};
    struct row body = {.name = "a dripping body is cut off",
                       .unit = "s late",
                       .must = 1,
                       .is_ceiling = true,
                       .note = "after a deadline of 1 s"};
    server_roped(&roped, bench->binary, bench->backend, flags, ANY_CPU);
    head.value =
        drip_until_cut(roped.port, slow_head, sizeof slow_head - 1, 10) - 0.5;
    body.value =
        drip_until_cut(roped.port, slow_body, sizeof slow_body - 1, 10) - 1;
    report_row(&bench->report, &head);
    report_row(&bench->report, &body);
    server_stop(&roped);
}

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void section_crowd(struct bench *bench)
{
    raise_file_limit();
    report_title(&bench->report, "Idle, slow, large and refused clients");
    small_beside(bench);
    beside_large(bench);
    refuse(bench);
    cut_off(bench);
}
