/*
 * duel.c - turns.
 */
#include "bench/http/duel.h"

#include "bench/http/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where answers go: touched once, so that no call pays for its pages. */
struct room {
    unsigned char *start;
    size_t bytes;
};

static void add_stages(struct contender *contender, const struct stages *s)
{
    const double value[DUEL_STAGES] = {s->receive, s->queue,  s->plan,
                                       s->h2d,     s->kernel, s->d2h};
    for (int i = 0; s->is_known && i < DUEL_STAGES; i++)
        stats_add(&contender->stage[i], value[i]);
}

/* One call; its seconds, or less than 0. */
static double ask(struct contender *contender, int fd, const struct room *room)
{
    struct http_answer answer = {0};
    double start = now_seconds();
    bool is_answered =
        contender->curl
            ? curl_client_exchange(contender->curl, room->start, room->bytes)
            : client_exchange(fd, contender->request, room->start, room->bytes,
                              &answer) &&
                  answer.code == 200;
    double seconds = now_seconds() - start;
    if (!is_answered)
        return -1;
    add_stages(contender, &answer.stages);
    return seconds;
}

static void forget_stages(struct contender *contender, size_t n)
{
    for (int i = 0; i < DUEL_STAGES; i++)
        if (contender->stage[i].n > n)
            contender->stage[i].n = n;
}

static double cpu_seconds(const struct contender *contender)
{
    return contender->server ? server_cpu_seconds(contender->server) : 0;
}

static void run_calls(struct contender *contender, double seconds,
                      const struct room *room)
{
    double cpu = cpu_seconds(contender);
    int fd = contender->curl ? -1 : client_connect(contender->port);
    struct samples calls = {0};
    size_t known = contender->stage[0].n;
    double start = now_seconds(), one = ask(contender, fd, room);
    forget_stages(contender, known); /* the first one only warms up */
    for (int i = 0; one >= 0 && i < DUEL_MOST_CALLS; i++) {
        if (i > 0 && now_seconds() - start >= seconds)
            break;
        one = ask(contender, fd, room);
        if (one < 0)
            break;
        stats_add(&calls, one);
        stats_add(&contender->calls, one);
    }
    contender->n_failed += one < 0;
    contender->cpu_seconds += cpu_seconds(contender) - cpu;
    contender->n_asked += calls.n + 1;
    if (calls.n > 0)
        stats_add(&contender->medians, stats_quantile(&calls, 0.5));
    stats_free(&calls);
    if (fd >= 0)
        close(fd);
}

static struct room make_room(const struct contender *contenders, int n)
{
    struct room room = {0};
    for (int i = 0; i < n; i++)
        if (contenders[i].request->body_bytes > room.bytes)
            room.bytes = contenders[i].request->body_bytes;
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

void duel_latency(struct contender *contenders, int n,
                  const struct duel_plan *plan)
{
    struct room room = make_room(contenders, n);
    for (int run = 0; run < plan->n_runs; run++)
        for (int i = 0; i < n; i++)
            run_calls(&contenders[i], plan->seconds, &room);
    free(room.start);
}

static void run_load(struct contender *contender, double seconds,
                     int n_connections)
{
    struct load load;
    double cpu = cpu_seconds(contender);
    if (!load_run(contender->port, contender->request, n_connections, seconds,
                  &load)) {
        contender->n_failed++;
        return;
    }
    contender->n_failed += load.n_failed;
    contender->cpu_seconds += cpu_seconds(contender) - cpu;
    contender->n_asked += load.n_all;
    for (size_t i = 0; i < load.latency.n; i++)
        stats_add(&contender->calls, load.latency.value[i]);
    if (load.n_calls > 0) {
        stats_add(&contender->rates, (double)load.n_calls / load.seconds);
        stats_add(&contender->medians, stats_quantile(&load.latency, 0.5));
    }
    stats_free(&load.latency);
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

struct stages duel_stages(struct contender *contender)
{
    double value[DUEL_STAGES];
    for (int i = 0; i < DUEL_STAGES; i++)
        value[i] = stats_quantile(&contender->stage[i], 0.5);
    return (struct stages){contender->stage[0].n > 0,
                           value[0],
                           value[1],
                           value[2],
                           value[3],
                           value[4],
                           value[5]};
}

void duel_free(struct contender *contender)
{
    stats_free(&contender->calls);
    stats_free(&contender->medians);
    stats_free(&contender->rates);
    for (int i = 0; i < DUEL_STAGES; i++)
        stats_free(&contender->stage[i]);
}
