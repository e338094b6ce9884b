/*
 * section_echo.c - what the HTTP path costs beside the reference server. The
 * echo is the demo model identity_fp32; its own copy, which the daemon reports
 * as the kernel's time, is no part of HTTP and is taken off.
 */
#include "bench/http/bench.h"

#include <stdio.h>

/* Both rows at c = 1: times, since a rate would be one of both sides. row has
 * its goals. by: who asked, or "". */
static void report_alone(struct bench *bench, struct contender side[2],
                         struct row *row, size_t bytes, double copy_us,
                         const char *by)
{
    char size[32];
    struct row reference = {.unit = NULL};
    double raw_us = duel_median_us(&side[0]), us = duel_median_us(&side[1]);
    bench_size_text(bytes, size);
    snprintf(reference.name, sizeof reference.name, "raw echo %s%s, c=1", size,
             by);
    bench_report(bench, &reference, &side[0], 2.0 * (double)bytes);
    snprintf(row->name, sizeof row->name, "echo %s%s, c=1", size, by);
    row->unit = "of raw";
    if (us > copy_us && raw_us > 0) {
        row->value = raw_us / (us - copy_us);
        row->best = duel_best_us(&side[0]) / (duel_best_us(&side[1]) - copy_us);
        snprintf(row->note, sizeof row->note, "with the model's copy %.2f",
                 raw_us / us);
    }
    bench_report(bench, row, &side[1], 2.0 * (double)bytes);
}

/* 1 MiB at least as fast, larger ones almost. */
static void echo_alone(struct bench *bench, const struct server *raw,
                       const struct server *roped, size_t bytes)
{
    struct call plain, echo;
    struct row row = {.must = bytes >= MIB ? 0.8 : 0,
                      .stretch = bytes > MIB    ? 0.95
                                 : bytes == MIB ? 1
                                                : 0};
    if (!bench_has_room(bench, bytes, 5))
        return;
    call_plain(&plain, bytes);
    call_echo(&echo, bytes);
    struct contender side[2] = {
        {.port = raw->port, .server = raw, .request = &plain.request},
        {.port = roped->port, .server = roped, .request = &echo.request}};
    duel_latency(side, 2, &bench->plan);
    report_alone(bench, side, &row, bytes, duel_stages(&side[1]).kernel, "");
    duel_free(&side[0]);
    duel_free(&side[1]);
    call_free(&plain);
    call_free(&echo);
}

/* Throughput with several connections: the reference has one thread. */
static void echo_together(struct bench *bench, const struct server *raw,
                          const struct server *roped, size_t bytes, int c)
{
    char size[32];
    struct call plain, echo;
    struct row reference = {.unit = NULL}, row = {.unit = "of raw"};
    if (!bench_has_room(bench, bytes, 3 * c + 2))
        return;
    call_plain(&plain, bytes);
    call_echo(&echo, bytes);
    struct contender side[2] = {
        {.port = raw->port, .server = raw, .request = &plain.request},
        {.port = roped->port, .server = roped, .request = &echo.request}};
    duel_rate(side, 2, &bench->plan, c);
    bench_size_text(bytes, size);
    snprintf(reference.name, sizeof reference.name, "raw echo %s, c=%d", size,
             c);
    bench_report(bench, &reference, &side[0], 2.0 * (double)bytes);
    snprintf(row.name, sizeof row.name, "echo %s, c=%d", size, c);
    if (duel_rate_of(&side[0]) > 0)
        row.value = duel_rate_of(&side[1]) / duel_rate_of(&side[0]);
    bench_report(bench, &row, &side[1], 2.0 * (double)bytes);
    duel_free(&side[0]);
    duel_free(&side[1]);
    call_free(&plain);
    call_free(&echo);
}

/* 64 MiB as an application sends them. */
static void echo_by_curl(struct bench *bench, const struct server *raw,
                         const struct server *roped, size_t bytes)
{
    struct call call;
    struct row row = {.must = bytes >= 64 * MIB ? 0.85 : 0, .stretch = 0.95};
    if (!bench_has_room(bench, bytes, 5))
        return;
    call_echo(&call, bytes);
    const void *body = call.request.body;
    struct contender side[2] = {
        {.port = raw->port,
         .server = raw,
         .request = &call.request,
         .curl = curl_client_open(raw->port, "/", NULL, body, bytes)},
        {.port = roped->port,
         .server = roped,
         .request = &call.request,
         .curl = curl_client_open(roped->port, "/v2/models/identity_fp32/infer",
                                  "Inference-Header-Content-Length: 0", body,
                                  bytes)}};
    struct contender copy = {.port = roped->port, .request = &call.request};
    struct duel_plan once = {1, 0};
    if (side[0].curl && side[1].curl)
        duel_latency(side, 2, &bench->plan);
    duel_latency(&copy, 1, &once); /* libcurl's answers name no stages here */
    report_alone(bench, side, &row, bytes, duel_stages(&copy).kernel,
                 " by libcurl");
    for (int i = 0; i < 2; i++) {
        curl_client_close(side[i].curl);
        duel_free(&side[i]);
    }
    duel_free(&copy);
    call_free(&call);
}

void section_echo(struct bench *bench)
{
    struct server raw, roped;
    server_raw(&raw, ANY_CPU);
    server_roped(&roped, bench->binary, bench->backend, bench_flags, ANY_CPU);
    report_title(&bench->report,
                 "Echo (v2 identity_fp32, raw tensor) beside the raw server");
    for (int i = 0; i < N_BODY_LOADS; i++) {
        const struct body_load *load = &bench_loads[i];
        if (load->c == 1)
            echo_alone(bench, &raw, &roped, load->bytes);
        else
            echo_together(bench, &raw, &roped, load->bytes, load->c);
    }
    echo_by_curl(bench, &raw, &roped, bench->is_quick ? MIB : 64 * MIB);
    server_stop(&roped);
    server_stop(&raw);
}
