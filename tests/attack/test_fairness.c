/*
 * test_fairness.c - a small client beside 64 that send 4 MiB at a time, each
 * side a process of its own: the small one waits for none of them. It asks
 * every 2 ms, as one that thinks in between does.
 *   --seconds N   how long (10)
 *   --large N     how many large clients (64)
 */
#include "attack/attack.h"

#include "check.h"
#include "http/service.h"
#include <math.h>

enum { LARGE_ROWS = 4096, SMALL_ROWS = 1, ROW = 256 };
static const double most_ms = 10;           /* p99 of the small client */
static const double between_seconds = 2e-3; /* calls of the small client */
static double seconds;
static int n_large;

static struct load_child start_clients(int port, int n,
                                       const struct http_request *one,
                                       double for_seconds, double pause)
{
    struct load load = {.port = port,
                        .n_clients = n,
                        .seconds = for_seconds,
                        .patience_seconds = 30,
                        .pause_seconds = pause,
                        .request = one,
                        .n_requests = 1};
    return load_start(&load);
}

/* p99 of the small client in milliseconds, in one round beside the others. */
static double measure(const struct server *server,
                      const struct http_request *small,
                      const struct http_request *large)
{
    struct load_child many =
        start_clients(server->port, n_large, large, seconds + 1, 0);
    pause_seconds(0.5); /* in the midst of it, from the first byte */
    struct load_child beside =
        start_clients(server->port, 1, small, seconds, between_seconds);
    load_wait(&beside);
    load_wait(&many);
    struct load_result *result = beside.result;
    load_print("beside large ones", result, seconds);
    load_print("large ones", many.result, seconds + 1);
    CHECK(many.result->n_ok > 0);
    CHECK(result->n_ok > 0);
    CHECK_INT(result->n_lost + result->n_wrong, 0);
    double p99_ms = stats_quantile(&result->latency, 0.99) * 1e3;
    load_free(&beside);
    load_free(&many);
    return p99_ms;
}

/* The best of three rounds: the machine may have others to serve. */
TEST(a_small_client_beside_large_ones_waits_10_ms_at_most)
{
    enum { ROUNDS = 3 };
    struct http_request small = post_ones(SMALL_ROWS, ROW);
    struct http_request large = post_ones(LARGE_ROWS, ROW);
    struct server server;
    double least_ms = INFINITY;
    server_start(&server, NULL);
    struct load_child alone =
        start_clients(server.port, 1, &small, 1, between_seconds);
    load_wait(&alone);
    load_print("alone", alone.result, 1);
    load_free(&alone);
    for (int i = 0; i < ROUNDS && least_ms > most_ms; i++)
        least_ms = fmin(least_ms, measure(&server, &small, &large));
    if (least_ms > most_ms && !ATTACK_IS_SANITIZED)
        CHECK_FAIL("p99 of the small client is %.2f ms, expected at most %g",
                   least_ms, most_ms);
    request_free(&small);
    request_free(&large);
    CHECK(server_stop(&server));
}

int main(int argc, char **argv)
{
    seconds = argument_seconds(argc, argv, 6);
    n_large = (int)argument(argc, argv, "--large", 64);
    check_run();
    return check_done();
}
