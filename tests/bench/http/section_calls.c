/*
 * section_calls.c - operators over HTTP: where the time goes, beside the echo
 * and beside an empty request of the same daemon.
 */
#include "bench/http/bench.h"

#include <stdio.h>

/* One operator at c = 1 or more, without a goal: rate and phases. */
static void call_row(struct bench *bench, const struct server *roped,
                     const char *name, struct http_request request, int c)
{
    struct row row = {.unit = NULL};
    struct contender side = {.server = roped, .request = request};
    if (c == 1)
        duel_latency(&side, 1, &bench->plan);
    else
        duel_rate(&side, 1, &bench->plan, c);
    snprintf(row.name, sizeof row.name, "%s, c=%d", name, c);
    bench_report(bench, &row, &side);
    duel_free(&side, 1);
}

static void norms(struct bench *bench, const struct server *roped)
{
    for (int i = 0; i < N_BODY_LOADS; i++) {
        const struct body_load *load = &bench_loads[i];
        char name[64], size[32];
        if (!bench_has_room(bench, load->bytes, 2 * load->c + 2))
            continue;
        snprintf(name, sizeof name, "rmsnorm %s",
                 bench_size_text(load->bytes, size));
        call_row(bench, roped, name, call_rmsnorm(load->bytes), load->c);
    }
}

/* A 4-token rope beside a request that asks for nothing; how much more the same
 * bytes cost the raw server is how much of that is the wire. */
static void rope_of_4(struct bench *bench, const struct server *raw,
                      const struct server *roped)
{
    enum { EMPTY, NORM, ROPE, RAW_EMPTY, RAW, N };
    struct row row[RAW_EMPTY] = {
        {.name = "empty request (GET /v2/health/live), c=1"},
        {.name = "rmsnorm 128 B, c=1"},
        {.name = "rope 4 tokens, c=1",
         .unit = "us more",
         .must = 15,
         .is_ceiling = true}};
    struct contender side[N] = {{.server = roped, .request = call_live(0)},
                                {.server = roped, .request = call_rmsnorm(128)},
                                {.server = roped, .request = call_rope(4)},
                                {.server = raw, .request = call_live(0)},
                                {.server = raw, .request = call_rope(4)}};
    duel_latency(side, N, &bench->plan);
    row[ROPE].value =
        duel_median_us(&side[ROPE]) - duel_median_us(&side[EMPTY]);
    snprintf(row[ROPE].note, sizeof row->note,
             "than an empty request; raw server, same bytes: %.1f us more",
             duel_median_us(&side[RAW]) - duel_median_us(&side[RAW_EMPTY]));
    for (int i = EMPTY; i <= ROPE; i++)
        bench_report(bench, &row[i], &side[i]);
    duel_free(side, N);
    call_row(bench, roped, "rope 4 tokens", call_rope(4), 8);
    call_row(bench, roped, "rope 4 tokens", call_rope(4), 64);
}

/* A large rope: no more than the echo of its bytes and what the device does. */
static void rope_of(struct bench *bench, const struct server *roped,
                    size_t bytes)
{
    char size[32];
    struct row reference = {.unit = NULL};
    struct row row = {.unit = "of the sum",
                      .must = 1.15,
                      .stretch = 1.05,
                      .is_ceiling = true};
    if (!bench_has_room(bench, bytes, 5))
        return;
    bench_size_text(bytes, size);
    struct contender side[2] = {
        {.server = roped},
        {.server = roped, .request = call_rope(bytes / CALL_ROPE_TOKEN_BYTES)}};
    side[0].request = call_echo(side[1].request.body_bytes / 4 * 4);
    duel_latency(side, 2, &bench->plan);
    struct phases by = duel_phases(&side[1]), echo = duel_phases(&side[0]);
    double sum = duel_median_us(&side[0]) - echo.us[PHASE_KERNEL] +
                 by.us[PHASE_KERNEL] + by.us[PHASE_H2D] + by.us[PHASE_D2H];
    snprintf(reference.name, sizeof reference.name, "echo %s, c=1", size);
    bench_report(bench, &reference, &side[0]);
    snprintf(row.name, sizeof row.name, "rope %s, c=1", size);
    snprintf(row.note, sizeof row.note,
             "echo without its copy, h2d, kernel, d2h: %.0f us", sum);
    row.value = sum > 0 ? duel_median_us(&side[1]) / sum : 0;
    bench_report(bench, &row, &side[1]);
    duel_free(side, 2);
}

/* Small calls as the daemon is by default, beside nginx with one worker, which
 * drops the body. Nobody is pinned. */
static void small_beside_nginx(struct bench *bench, const struct server *roped)
{
    struct server nginx;
    struct row reference = {.name = "nginx, POST 1 KiB, c=64"};
    struct row row = {.name = "rmsnorm 1 KiB beside nginx, c=64",
                      .unit = "of nginx",
                      .must = 0.60};
    if (!server_nginx(&nginx, NULL, ANY_CPU)) {
        printf("nginx is not installed: small calls are not compared\n");
        return;
    }
    struct contender side[2] = {
        {.server = &nginx, .request = call_plain(KIB)},
        {.server = roped, .request = call_rmsnorm(KIB)}};
    duel_rate(side, 2, &bench->plan, 64);
    double base = duel_rate_of(&side[0]);
    row.value = base > 0 ? duel_rate_of(&side[1]) / base : 0;
    bench_report(bench, &reference, &side[0]);
    bench_report(bench, &row, &side[1]);
    duel_free(side, 2);
    server_stop(&nginx);
}

void section_calls(struct bench *bench)
{
    struct server raw, roped;
    server_raw(&raw, ANY_CPU);
    server_roped(&roped, bench->binary, bench->backend, bench_flags, ANY_CPU);
    report_title(&bench->report, "Operators over HTTP, with their phases");
    rope_of_4(bench, &raw, &roped);
    rope_of(bench, &roped, MIB);
    rope_of(bench, &roped, 64 * MIB);
    rope_of(bench, &roped, 1024 * MIB);
    norms(bench, &roped);
    small_beside_nginx(bench, &roped);
    server_stop(&roped);
    server_stop(&raw);
}
