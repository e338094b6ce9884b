/*
 * section_daemons.c - two daemons in turns: one that uploads a body while it
 * arrives beside one that waits for all of it, and one with several devices
 * beside one with a single device.
 */
#include "bench/http/bench.h"
#include "load/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- stage */

/* In all, to its first device. */
static double staged_bytes(const struct server *server)
{
    static const char name[] =
        "\nroped_device_staged_bytes_total{device=\"0\"} ";
    static char page[256 * KIB];
    bench_must(server, "GET", "/metrics", NULL, page, sizeof page - 1);
    const char *at = strstr(page, name);
    return at ? strtod(at + sizeof name - 1, NULL) : 0;
}

void section_stage(struct bench *bench)
{
    static const char *const flags[2][5] = {
        {"--devices", "0", "--stage-bytes", "0"}, {"--devices", "0"}};
    static const char *const when[2] = {"when it is whole", "while it arrives"};
    size_t bytes = bench->is_quick ? 4 * MIB : 64 * MIB;
    struct server server[2];
    struct contender side[2] = {{0}};
    char size[32];
    if (!bench_has_room(bench, bytes, 8))
        return;
    report_title(&bench->report, "A large body, uploaded");
    for (int i = 0; i < 2; i++) {
        server_roped(&server[i], bench->binary, bench->backend, flags[i],
                     ANY_CPU);
        side[i].server = &server[i];
        side[i].request = call_rope(bytes / CALL_ROPE_TOKEN_BYTES);
    }
    duel_latency(side, 2, &bench->plan);
    for (int i = 0; i < 2; i++) {
        struct row row = {.unit = i ? "x whole" : NULL};
        snprintf(row.name, sizeof row.name, "rope %s, %s",
                 bench_size_text(bytes, size), when[i]);
        snprintf(row.note, sizeof row.note, "%.0f MiB uploaded early",
                 staged_bytes(&server[i]) / MIB);
        if (i)
            row.value = duel_median_us(&side[1]) / duel_median_us(&side[0]);
        bench_report(bench, &row, &side[i]);
        server_stop(&server[i]);
    }
    duel_free(side, 2);
}

/* ------------------------------------------------------------------- scale */

enum { PER_DEVICE = 4 /* connections */, MOST_CALLS = 64 * PER_DEVICE };

/* A daemon, its connections and a region for each, which its calls rotate in
 * place. */
struct side {
    struct server server;
    int n; /* connections */
    struct http_request request[MOST_CALLS];
    struct samples rates;
};

static void start(const struct bench *bench, struct side *side,
                  const char *devices, int64_t tokens)
{
    const char *const flags[] = {"--devices", devices, NULL};
    char text[160];
    side->n = PER_DEVICE;
    for (const char *at = devices; (at = strchr(at, ',')); at++)
        side->n += PER_DEVICE;
    if (side->n > MOST_CALLS)
        side->n = MOST_CALLS;
    server_roped(&side->server, bench->binary, bench->backend, flags, ANY_CPU);
    for (int i = 0; i < side->n; i++) {
        snprintf(text, sizeof text,
                 "/v1/regions/r%d?dtype=BF16&shape=%lld,32,128&device=%d", i,
                 (long long)tokens, i / PER_DEVICE);
        bench_must(&side->server, "PUT", text, "", NULL, 0);
        snprintf(text, sizeof text, "from.q=r%d&into.q=r%d", i, i);
        side->request[i] = call_rope_at(text);
    }
}

static bool run(struct side *side, double seconds)
{
    struct load_result result = {.n_sent = 0};
    struct load load = {.port = side->server.port,
                        .n_clients = side->n,
                        .request = side->request,
                        .n_requests = side->n,
                        .keeps_request = true,
                        .warm_up_seconds = seconds / 10,
                        .seconds = seconds,
                        .patience_seconds = 20,
                        .ends_refused = true};
    load_run(&load, &result);
    stats_add(&side->rates, (double)result.n_timed / result.seconds);
    stats_free(&result.latency);
    return result.n_ok > 0 && result.n_ok == result.n_sent;
}

static void stop(struct side *side)
{
    for (int i = 0; i < side->n; i++)
        request_free(&side->request[i]);
    stats_free(&side->rates);
    server_stop(&side->server);
}

static void report(struct bench *bench, struct side side[2], int64_t tokens,
                   bool is_answered)
{
    double one = stats_quantile(&side[0].rates, 0.5);
    for (int i = 0; i < 2; i++) {
        struct row row = {.unit = i ? "x one" : NULL};
        snprintf(row.name, sizeof row.name,
                 "rope %lld tokens in regions, %d devices, c=%d",
                 (long long)tokens, side[i].n / PER_DEVICE, side[i].n);
        row.calls_per_s = stats_quantile(&side[i].rates, 0.5);
        row.gb_per_s = row.calls_per_s * (double)tokens * 32 * 128 * 4 * 1e-9;
        snprintf(row.note, sizeof row.note, "of device memory%s",
                 is_answered ? "" : "; exchanges failed");
        if (i && one > 0) {
            row.value = row.calls_per_s / one;
            row.must = 0.95 * side[i].n / side[0].n;
        }
        report_row(&bench->report, &row);
    }
    bench->n_failed += !is_answered;
}

void section_scale(struct bench *bench)
{
    static struct side side[2];
    int64_t tokens = bench->is_quick ? 1024 : 65536;
    char first[16];
    bool is_answered = true;
    report_title(&bench->report, "Tensors that stay on their devices");
    if (!bench->devices) {
        printf("left out: --devices names several\n");
        return;
    }
    snprintf(first, sizeof first, "%.*s", (int)strcspn(bench->devices, ","),
             bench->devices);
    start(bench, &side[0], first, tokens);
    start(bench, &side[1], bench->devices, tokens);
    for (int i = 0; i < 2 * bench->plan.n_runs; i++)
        is_answered &= run(&side[i % 2], bench->plan.seconds);
    report(bench, side, tokens, is_answered);
    stop(&side[0]);
    stop(&side[1]);
}
