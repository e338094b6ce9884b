/*
 * section_echo.c - what the HTTP path costs beside the reference server. The
 * echo is the demo model identity_fp32; its own copy, which the daemon reports
 * as the kernel's time, is no part of HTTP and is taken off.
 */
#include "bench/http/bench.h"

#include <stdio.h>

static const size_t sizes[] = {KIB,      64 * KIB,  MIB,       16 * MIB,
                               64 * MIB, 256 * MIB, 1024 * MIB};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static const char *const flags[] = {"--demo-models",
                                    "true",
                                    "--max-body-bytes",
                                    "2g",
                                    "--host-bytes",
                                    "8g",
                                    "--pool-bytes",
                                    "256m",
                                    NULL};

/* 1 MiB at least as fast, larger ones almost. */
static void set_goals(struct row *row, size_t bytes)
{
    row->must = bytes >= MIB ? 0.8 : 0;
    row->stretch = bytes > MIB ? 0.95 : bytes == MIB ? 1 : 0;
}

static void echo_alone(struct bench *bench, const struct server *raw,
                       const struct server *roped, size_t bytes)
{
    char size[32];
    struct call plain, echo;
    struct row row = {.unit = "of raw"};
    if (!bench_has_room(bench, bytes, 5))
        return;
    call_plain(&plain, bytes);
    call_echo(&echo, bytes);
    struct contender side[2] = {
        {.port = raw->port, .server = raw, .request = &plain.request},
        {.port = roped->port, .server = roped, .request = &echo.request}};
    duel_latency(side, 2, &bench->plan);
    double raw_us = duel_median_us(&side[0]), us = duel_median_us(&side[1]);
    double copy_us = duel_stages(&side[1]).kernel;
    struct row reference = {.unit = NULL};
    snprintf(reference.name, sizeof reference.name, "raw echo %s, c=1",
             bench_size_text(bytes, size));
    bench_report(bench, &reference, &side[0], 2.0 * (double)bytes);
    snprintf(row.name, sizeof row.name, "echo %s, c=1", size);
    if (us > copy_us && raw_us > 0) {
        row.value = raw_us / (us - copy_us);
        row.best = duel_best_us(&side[0]) / (duel_best_us(&side[1]) - copy_us);
        snprintf(row.note, sizeof row.note, "with the model's copy %.2f",
                 raw_us / us);
    }
    set_goals(&row, bytes);
    bench_report(bench, &row, &side[1], 2.0 * (double)bytes);
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
    char size[32];
    struct call call;
    struct row reference = {.unit = NULL}, row = {.unit = "of raw"};
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
    double copy_us = duel_stages(&copy).kernel;
    double raw_us = duel_median_us(&side[0]), us = duel_median_us(&side[1]);
    bench_size_text(bytes, size);
    snprintf(reference.name, sizeof reference.name,
             "raw echo %s by libcurl, c=1", size);
    bench_report(bench, &reference, &side[0], 2.0 * (double)bytes);
    snprintf(row.name, sizeof row.name, "echo %s by libcurl, c=1", size);
    if (us > copy_us && raw_us > 0) {
        row.value = raw_us / (us - copy_us);
        row.best = duel_best_us(&side[0]) / (duel_best_us(&side[1]) - copy_us);
        snprintf(row.note, sizeof row.note, "with the model's copy %.2f",
                 raw_us / us);
    }
    row.must = bytes >= 64 * MIB ? 0.85 : 0;
    row.stretch = 0.95;
    bench_report(bench, &row, &side[1], 2.0 * (double)bytes);
    for (int i = 0; i < 2; i++) {
        curl_client_close(side[i].curl);
        duel_free(&side[i]);
    }
    duel_free(&copy);
    call_free(&call);
}

void section_echo(struct bench *bench)
{
    static const struct {
        size_t bytes;
        int c;
    } together[] = {{KIB, 8},  {64 * KIB, 8},  {MIB, 8}, {16 * MIB, 8},
                    {KIB, 64}, {64 * KIB, 64}, {MIB, 64}};
    struct server raw, roped;
    server_raw(&raw, ANY_CPU);
    server_roped(&roped, bench->binary, bench->backend, flags, ANY_CPU);
    report_title(&bench->report,
                 "Echo (v2 identity_fp32, raw tensor) beside the raw server");
    for (int i = 0; i < N_SIZES; i++)
        echo_alone(bench, &raw, &roped, sizes[i]);
    for (size_t i = 0; i < sizeof together / sizeof *together; i++)
        echo_together(bench, &raw, &roped, together[i].bytes, together[i].c);
    echo_by_curl(bench, &raw, &roped, bench->is_quick ? MIB : 64 * MIB);
    server_stop(&roped);
    server_stop(&raw);
}
