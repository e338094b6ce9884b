/*
 * test_overload.c - more than the machine can do, from clients that behave:
 * every request is answered, 200 or 503 with Retry-After, and none is lost;
 * health and metrics answer all the while. And a refused body that comes slowly
 * is read long enough for its client to see why it was refused.
 *   --seconds N   how long (10)
 *   --clients N   how many (256)
 *   --bytes N     bodies of this size alone (1 KiB, 1 MiB and 4 MiB in turn)
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <unistd.h>

static double seconds;
static int n_clients, only_bytes;

enum { N_SIZES = 3, ROW = 256 };

static int make_requests(struct http_request *request)
{
    static const int sizes[N_SIZES] = {1 << 10, 1 << 20, 4 << 20};
    int n = only_bytes ? 1 : N_SIZES;
    for (int i = 0; i < n; i++)
        request[i] =
            post_ones((only_bytes ? only_bytes : sizes[i]) / 4 / ROW, ROW);
    return n;
}

/* Asks both pages until the load ends: how many did not answer within 2 s, and
 * the slowest that did. */
static int watch_pages(const struct server *server, double until, int *n_asked,
                       double *slowest)
{
    static const char *const page[] = {"/v2/health/ready", "/metrics"};
    int n_missed = 0;
    for (*n_asked = 0; now_seconds() < until; ++*n_asked) {
        double start = now_seconds();
        int code = attack_get(server->port, page[*n_asked % 2], 2);
        double took = now_seconds() - start;
        n_missed += code != 200;
        *slowest = took > *slowest ? took : *slowest;
        pause_seconds(0.05);
    }
    return n_missed;
}

TEST(every_request_is_answered)
{
    const char *flags[] = {"--host_bytes", "512m", NULL};
    struct http_request request[N_SIZES];
    struct server server;
    double slowest = 0;
    int n_asked;
    server_start(&server, flags);
    struct load load = {.port = server.port,
                        .n_clients = n_clients,
                        .seconds = seconds,
                        .patience_seconds = 30,
                        .request = request,
                        .n_requests = make_requests(request)};
    struct load_child child = load_start(&load);
    int n_missed =
        watch_pages(&server, now_seconds() + seconds, &n_asked, &slowest);
    load_wait(&child);
    struct load_result *result = child.result;
    load_print("overload", result, seconds);
    printf("health and metrics: asked %d times, %d unanswered, slowest %.0f "
           "ms\n",
           n_asked, n_missed, slowest * 1e3);
    CHECK(result->n_ok > 0);
    CHECK_INT(result->n_lost, 0);
    CHECK_INT(result->n_wrong, 0);
    CHECK_INT(result->n_ok + result->n_refused, result->n_sent);
    CHECK_INT(n_missed, 0);
    load_free(&child);
    CHECK(server_stop(&server));
    for (int i = 0; i < load.n_requests; i++)
        request_free(&request[i]);
}

/* -------------------------------------------------------- slow and refused */

enum { SLOW_BYTES = 16 << 20, SLOW_RATE = 4 << 20, SLOW_TICKS = 16 };

struct slow {
    const char *target;
    int code, fd;
    size_t sent;
    bool is_cut;
};

/* One piece of each body, sixteen times a second. */
static void send_slowly(struct slow *slow, int n)
{
    char *piece = calloc(1, SLOW_RATE / SLOW_TICKS);
    double start = now_seconds();
    for (int tick = 1; tick <= SLOW_BYTES / SLOW_RATE * SLOW_TICKS; tick++) {
        for (int i = 0; i < n; i++)
            slow[i].is_cut |=
                !attack_send(slow[i].fd, piece, SLOW_RATE / SLOW_TICKS);
        double ahead = start + (double)tick / SLOW_TICKS - now_seconds();
        pause_seconds(ahead > 0 ? ahead : 0);
    }
    free(piece);
}

TEST(a_slow_sender_sees_why_it_is_refused)
{
    const char *flags[] = {"--max_body_bytes", "20m", NULL};
    struct slow slow[] = {{.target = "/v1/nothing", .code = 404},
                          {.target = "/v1/rmsnorm?nonsense=1", .code = 400},
                          {.target = "/v2/repository/index", .code = 413}};
    enum { N_SLOW = sizeof slow / sizeof *slow };
    char head[256];
    struct server server;
    server_start(&server, flags);
    for (int i = 0; i < N_SLOW; i++) {
        int n = snprintf(head, sizeof head,
                         "POST %s HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Length: %d\r\n\r\n",
                         slow[i].target, SLOW_BYTES);
        slow[i].fd = client_connect(server.port);
        attack_send(slow[i].fd, head, (size_t)n);
    }
    send_slowly(slow, N_SLOW);
    for (int i = 0; i < N_SLOW; i++) {
        struct exchange all = exchange_read(slow[i].fd, 1, 2);
        if (exchange_code(&all) != slow[i].code || slow[i].is_cut)
            CHECK_FAIL("16 MiB at 4 MiB/s to %s: %sanswered %d, expected %d",
                       slow[i].target, slow[i].is_cut ? "cut off, " : "",
                       exchange_code(&all), slow[i].code);
        exchange_free(&all);
        close(slow[i].fd);
    }
    CHECK(server_stop(&server));
}

int main(int argc, char **argv)
{
    seconds = argument_seconds(argc, argv, 10);
    n_clients = (int)argument(argc, argv, "--clients", 256);
    only_bytes = (int)argument(argc, argv, "--bytes", 0);
    check_run();
    return check_done();
}
