/*
 * section_calls.c - operators over HTTP: where the time goes, beside the echo
 * and beside an empty request of the same daemon.
 */
#include "bench/http/bench.h"

#include <stdio.h>

/* One operator at c = 1 or more, without a goal: rate and stages. */
static void call_row(struct bench *bench, const struct server *roped,
                     const char *name, struct call *call, int c)
{
    struct row row = {.unit = NULL};
    struct contender side = {.port = roped->port, .request = &call->request};
    if (c == 1)
        duel_latency(&side, 1, &bench->plan);
    else
        duel_rate(&side, 1, &bench->plan, c);
    snprintf(row.name, sizeof row.name, "%s, c=%d", name, c);
    bench_report(bench, &row, &side, 2.0 * (double)call->request.body_bytes);
    duel_free(&side);
}

static void norms(struct bench *bench, const struct server *roped)
{
    for (int i = 0; i < N_BODY_LOADS; i++) {
        const struct body_load *load = &bench_loads[i];
        char name[64], size[32];
        struct call call;
        if (!bench_has_room(bench, load->bytes, 2 * load->c + 2))
            continue;
        call_rmsnorm(&call, load->bytes);
        snprintf(name, sizeof name, "rmsnorm %s",
                 bench_size_text(load->bytes, size));
        call_row(bench, roped, name, &call, load->c);
        call_free(&call);
    }
}

/* A 4-token rope beside a request that asks for nothing; how much more the same
 * bytes cost the raw server is how much of that is the wire. */
static void rope_of_4(struct bench *bench, const struct server *raw,
                      const struct server *roped)
{
    enum { N = 5 };
    struct call nothing, least, rope, plain;
    struct row empty = {.name = "empty request (GET /v2/health/live), c=1"};
    struct row norm = {.name = "rmsnorm 128 B, c=1"};
    struct row row = {.name = "rope 4 tokens, c=1",
                      .unit = "us more",
                      .must = 15,
                      .is_ceiling = true};
    call_get(&nothing, "/v2/health/live");
    call_rmsnorm(&least, 128);
    call_rope(&rope, 4);
    call_plain(&plain, rope.request.body_bytes);
    struct contender side[N] = {
        {.port = roped->port, .request = &nothing.request},
        {.port = roped->port, .request = &least.request},
        {.port = roped->port, .request = &rope.request},
        {.port = raw->port, .request = &nothing.request},
        {.port = raw->port, .request = &plain.request}};
    duel_latency(side, N, &bench->plan);
    bench_report(bench, &empty, &side[0], 0);
    bench_report(bench, &norm, &side[1],
                 2.0 * (double)least.request.body_bytes);
    row.value = duel_median_us(&side[2]) - duel_median_us(&side[0]);
    snprintf(row.note, sizeof row.note,
             "than an empty request; raw server, same bytes: %.1f us more",
             duel_median_us(&side[4]) - duel_median_us(&side[3]));
    bench_report(bench, &row, &side[2], 2.0 * (double)rope.request.body_bytes);
    for (int i = 0; i < N; i++)
        duel_free(&side[i]);
    call_row(bench, roped, "rope 4 tokens", &rope, 8);
    call_row(bench, roped, "rope 4 tokens", &rope, 64);
    call_free(&least);
    call_free(&rope);
    call_free(&plain);
}

/* A large rope: no more than the echo of its bytes and what the device does. */
static void rope_of(struct bench *bench, const struct server *roped,
                    size_t bytes)
{
    char size[32];
    struct call echo, rope;
    struct row reference = {.unit = NULL};
    struct row row = {.unit = "of the sum",
                      .must = 1.15,
                      .stretch = 1.05,
                      .is_ceiling = true};
    if (!bench_has_room(bench, bytes, 5))
        return;
    bench_size_text(bytes, size);
    call_rope(&rope, (int64_t)(bytes / CALL_ROPE_TOKEN_BYTES));
    call_echo(&echo, rope.request.body_bytes / 4 * 4);
    struct contender side[2] = {
        {.port = roped->port, .request = &echo.request},
        {.port = roped->port, .request = &rope.request}};
    duel_latency(side, 2, &bench->plan);
    struct stages by = duel_stages(&side[1]);
    double echo_us = duel_median_us(&side[0]) - duel_stages(&side[0]).kernel;
    double sum = echo_us + by.kernel + by.h2d + by.d2h;
    snprintf(reference.name, sizeof reference.name, "echo %s, c=1", size);
    bench_report(bench, &reference, &side[0], 2.0 * (double)bytes);
    snprintf(row.name, sizeof row.name, "rope %s, c=1", size);
    snprintf(row.note, sizeof row.note,
             "echo without its copy, h2d, kernel, d2h: %.0f us", sum);
    row.value = sum > 0 ? duel_median_us(&side[1]) / sum : 0;
    bench_report(bench, &row, &side[1], 2.0 * (double)bytes);
    duel_free(&side[0]);
    duel_free(&side[1]);
    call_free(&echo);
    call_free(&rope);
}

/* Small calls as the daemon is by default, beside nginx with one worker, which
 * drops the body. Nobody is pinned. */
static void small_beside_nginx(struct bench *bench, const struct server *roped)
{
    struct server nginx;
    struct call plain, rmsnorm;
    struct row reference = {.name = "nginx, POST 1 KiB, c=64"};
    struct row row = {.name = "rmsnorm 1 KiB beside nginx, c=64",
                      .unit = "of nginx",
                      .must = 0.60};
    if (!server_nginx(&nginx, ANY_CPU)) {
        printf("nginx is not installed: small calls are not compared\n");
        return;
    }
    call_plain(&plain, 1024);
    call_rmsnorm(&rmsnorm, 1024);
    struct contender side[2] = {
        {.port = nginx.port, .server = &nginx, .request = &plain.request},
        {.port = roped->port, .server = roped, .request = &rmsnorm.request}};
    duel_rate(side, 2, &bench->plan, 64);
    double base = duel_rate_of(&side[0]);
    row.value = base > 0 ? duel_rate_of(&side[1]) / base : 0;
    bench_report(bench, &reference, &side[0],
                 2.0 * (double)plain.request.body_bytes);
    bench_report(bench, &row, &side[1],
                 2.0 * (double)rmsnorm.request.body_bytes);
    duel_free(&side[0]);
    duel_free(&side[1]);
    call_free(&plain);
    call_free(&rmsnorm);
    server_stop(&nginx);
}

void section_calls(struct bench *bench)
{
    struct server raw, roped;
    server_raw(&raw, ANY_CPU);
    server_roped(&roped, bench->binary, bench->backend, bench_flags, ANY_CPU);
    report_title(&bench->report, "Operators over HTTP, with their stages");
    rope_of_4(bench, &raw, &roped);
    rope_of(bench, &roped, MIB);
    rope_of(bench, &roped, 64 * MIB);
    rope_of(bench, &roped, 1024 * MIB);
    norms(bench, &roped);
    small_beside_nginx(bench, &roped);
    server_stop(&roped);
    server_stop(&raw);
}
