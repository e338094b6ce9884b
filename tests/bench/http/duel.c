/*
 * duel.c - turns.
 */
#include "bench/http/duel.h"

#include "bench/http/curl_client.h"
#include "load/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where answers go: touched once, so that no call pays for its pages. */
struct room {
    unsigned char *start;
    size_t bytes;
};

/* What a run asks through. */
struct connection {
    int fd;
    struct curl_client *curl; /* or NULL */
};

static struct connection connect_to(const struct contender *contender)
{
    uint16_t port = contender->server->port;
    struct connection connection = {.fd = -1};
    if (contender->by_curl)
        connection.curl =
            curl_client_open(port, contender->ca_file, &contender->request);
    else if (contender->socket)
        connection.fd = client_connect_path(contender->socket);
    else
        connection.fd = client_open(port);
    return connection;
}

static void disconnect(struct connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    if (connection->curl)
        curl_client_close(connection->curl);
}

/* One call; its seconds, or less than 0. */
static double ask(struct contender *contender, struct connection *connection,
                  const struct room *room)
{
    struct http_answer answer = {0};
    double start = now_seconds();
    long code = 0;
    if (connection->curl)
        code = curl_client_exchange(connection->curl, room->start, room->bytes);
    else if (client_exchange(connection->fd, &contender->request, room->start,
                             room->bytes, &answer))
        code = answer.code;
    double seconds = now_seconds() - start;
    bool is_taken = contender->refusal && code == contender->refusal;
    if (code / 100 != 2 && !is_taken)
        return -1;
    for (int i = 0; answer.phases.is_known && i < N_PHASES; i++)
        stats_add(&contender->phase[i], answer.phases.us[i]);
    if (answer.closes) { /* nginx does after 1,000 calls */
        disconnect(connection);
        *connection = connect_to(contender);
    }
    return seconds;
}

static void forget_phases(struct contender *contender, size_t n)
{
    for (int i = 0; i < N_PHASES; i++)
        if (contender->phase[i].n > n)
            contender->phase[i].n = n;
}

static void run_calls(struct contender *contender, double seconds,
                      const struct room *room)
{
    double cpu = server_cpu_seconds(contender->server);
    struct connection connection = connect_to(contender);
    struct samples calls = {0};
    size_t known = contender->phase[0].n;
    double start = now_seconds(), one = ask(contender, &connection, room);
    forget_phases(contender, known); /* the first one only warms up */
    for (int i = 0; one >= 0 && i < DUEL_MOST_CALLS; i++) {
        if (i > 0 && now_seconds() - start >= seconds)
            break;
        one = ask(contender, &connection, room);
        if (one < 0)
            break;
        stats_add(&calls, one);
        stats_add(&contender->calls, one);
    }
    contender->n_failed += one < 0;
    contender->cpu_seconds += server_cpu_seconds(contender->server) - cpu;
    contender->n_asked += calls.n + 1;
    if (calls.n > 0)
        stats_add(&contender->medians, stats_quantile(&calls, 0.5));
    stats_free(&calls);
    disconnect(&connection);
}

static struct room make_room(const struct contender *contenders, int n)
{
    struct room room = {0};
    for (int i = 0; i < n; i++) {
        const struct contender *contender = &contenders[i];
        size_t bytes = contender->request.body_bytes > contender->answer_bytes
                           ? contender->request.body_bytes
                           : contender->answer_bytes;
        room.bytes = bytes > room.bytes ? bytes : room.bytes;
    }
    room.bytes += CLIENT_PIECE_BYTES;
    room.start = malloc(room.bytes);
    if (!room.start) {
        fprintf(stderr, "bench_http: no memory for answers of %zu bytes\n",
                room.bytes);
        exit(EXIT_FAILURE);
    }
    memset(room.start, 1, room.bytes);
    return room;
}

static void run_load(struct contender *contender, double seconds, int c)
{
    double cpu = server_cpu_seconds(contender->server);
    struct load_result result = {.n_sent = 0};
    struct load load = {.port = contender->server->port,
                        .n_clients = c,
                        .request = &contender->request,
                        .n_requests = 1,
                        .warm_up_seconds = seconds / 10,
                        .seconds = seconds,
                        .patience_seconds = 20,
                        .ends_refused = true};
    load_run_spread(&load, &result);
    contender->n_failed +=
        (uint64_t)(result.n_sent - result.n_ok + result.n_unconnected);
    contender->cpu_seconds += server_cpu_seconds(contender->server) - cpu;
    contender->n_asked += (uint64_t)result.n_ok;
    for (size_t i = 0; i < result.latency.n; i++)
        stats_add(&contender->calls, result.latency.value[i]);
    if (result.n_timed > 0) {
        stats_add(&contender->rates, (double)result.n_timed / result.seconds);
        stats_add(&contender->medians, stats_quantile(&result.latency, 0.5));
    }
    stats_free(&result.latency);
}

void duel_latency(struct contender *contenders, int n,
                  const struct duel_plan *plan)
{
    struct room room = make_room(contenders, n);
    for (int run = 0; run < plan->n_runs; run++)
        for (int i = 0; i < n; i++)
            run_calls(&contenders[i], plan->seconds, &room);
    free(room.start);
}

void duel_rate(struct contender *contenders, int n,
               const struct duel_plan *plan, int n_connections)
{
    for (int run = 0; run < plan->n_runs; run++)
        for (int i = 0; i < n; i++)
            run_load(&contenders[i], plan->seconds, n_connections);
}

double duel_median_us(struct contender *contender)
{
    return stats_quantile(&contender->medians, 0.5) * 1e6;
}

double duel_best_us(struct contender *contender)
{
    return stats_quantile(&contender->medians, 0) * 1e6;
}

double duel_rate_of(struct contender *contender)
{
    return stats_quantile(&contender->rates, 0.5);
}

double duel_cpu_us(const struct contender *contender)
{
    return contender->n_asked > 0
               ? contender->cpu_seconds / (double)contender->n_asked * 1e6
               : 0;
}

struct phases duel_phases(struct contender *contender)
{
    struct phases phases = {.is_known = contender->phase[0].n > 0};
    for (int i = 0; i < N_PHASES; i++)
        phases.us[i] = stats_quantile(&contender->phase[i], 0.5);
    return phases;
}

void duel_free(struct contender *contenders, int n)
{
    for (int i = 0; i < n; i++) {
        struct contender *contender = &contenders[i];
        request_free(&contender->request);
        stats_free(&contender->calls);
        stats_free(&contender->medians);
        stats_free(&contender->rates);
        for (int j = 0; j < N_PHASES; j++)
            stats_free(&contender->phase[j]);
    }
}
