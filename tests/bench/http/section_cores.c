/*
 * section_cores.c - rates as HTTP threads and cores grow: one daemon with 4
 * HTTP threads and lanes, one with 16, one as it is by default, on the CPU
 * backend; and one on the backend and the --devices of the run. Clients are
 * processes, one for every two cores.
 */
#include "bench/http/bench.h"
#include "load/load.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FOUR, SIXTEEN, DEFAULT, DEVICE, N_SIDES };
enum { LIVE, NORM, ROPE, ROPE_256, ROPE_1024, NORM_MIB, N_KINDS };

static const struct {
    const char *name;
    struct http_request (*make)(size_t size);
    size_t size; /* bytes, or tokens */
    int c;
} kinds[N_KINDS] = {
    [LIVE] = {"GET /v2/health/live", call_live, 0, 64},
    [NORM] = {"rmsnorm 1 KiB", call_rmsnorm, KIB, 64},
    [ROPE] = {"rope 4 tokens", call_rope, 4, 64},
    [ROPE_256] = {"rope 4 tokens", call_rope, 4, 256},
    [ROPE_1024] = {"rope 4 tokens", call_rope, 4, 1024},
    [NORM_MIB] = {"rmsnorm 1 MiB", call_rmsnorm, MIB, 64},
};

static const char *const four[] = {"--http-threads", "4", "--lanes", "4", NULL};
static const char *const sixteen[] = {"--http-threads", "16", "--lanes", "16",
                                      NULL};
static const struct {
    const char *name;
    const char *const *flags;
} sides[DEVICE] = {{"cpu, 4 threads", four},
                   {"cpu, 16 threads", sixteen},
                   {"cpu, default", NULL}};

struct cores {
    struct server server[N_SIDES];
    int n_sides;
    struct samples rates[N_KINDS][N_SIDES];
    char why[N_KINDS][N_SIDES][ROW_TEXT]; /* exchanges failed; or "" */
};

static void start(const struct bench *bench, struct cores *cores)
{
    const char *const devices[] = {"--devices", bench->devices, NULL};
    cores->n_sides = strcmp(bench->backend, "cpu") == 0 ? DEVICE : N_SIDES;
    for (int side = 0; side < DEVICE; side++)
        server_roped(&cores->server[side], bench->binary, "cpu",
                     sides[side].flags, ANY_CPU);
    if (cores->n_sides > DEVICE)
        server_roped(&cores->server[DEVICE], bench->binary, bench->backend,
                     bench->devices ? devices : NULL, ANY_CPU);
}

/* One turn. */
static void run(const struct bench *bench, struct cores *cores, int kind,
                int side)
{
    struct http_request request = kinds[kind].make(kinds[kind].size);
    struct load load = {.port = cores->server[side].port,
                        .n_clients = kinds[kind].c,
                        .request = &request,
                        .n_requests = 1,
                        .warm_up_seconds = bench->plan.seconds / 5,
                        .seconds = bench->plan.seconds,
                        .patience_seconds = 20};
    struct load_result result = {.n_sent = 0};
    load_run_spread(&load, &result);
    if (result.n_ok == 0 || result.n_ok != result.n_sent)
        snprintf(cores->why[kind][side], ROW_TEXT,
                 "%lld of %lld answered, %lld refused: %.60s",
                 (long long)result.n_ok, (long long)result.n_sent,
                 (long long)result.n_refused, result.why);
    stats_add(&cores->rates[kind][side],
              result.n_timed > 0 ? (double)result.n_timed / result.seconds : 0);
    stats_free(&result.latency);
    request_free(&request);
}

static double rate_of(struct cores *cores, int kind, int side)
{
    return stats_quantile(&cores->rates[kind][side], 0.5);
}

static void report_rates(struct bench *bench, struct cores *cores)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int side = 0; side < cores->n_sides; side++) {
            struct row row = {.calls_per_s = rate_of(cores, kind, side)};
            snprintf(row.name, sizeof row.name, "%s, c=%d: %s",
                     kinds[kind].name, kinds[kind].c,
                     side == DEVICE ? bench->backend : sides[side].name);
            if (side == DEVICE && kind == NORM_MIB) {
                row.unit = "calls/s";
                row.value = row.calls_per_s;
                row.must = 20000;
            }
            bench->n_failed += cores->why[kind][side][0] != '\0';
            snprintf(row.note, sizeof row.note, "%s", cores->why[kind][side]);
            report_row(&bench->report, &row);
        }
}

/* One rate by another. */
struct share {
    const char *name;
    int kind, side, of_kind, of_side;
    double must;
};

static void report_share(struct bench *bench, struct cores *cores,
                         const struct share *share)
{
    double base = rate_of(cores, share->of_kind, share->of_side);
    struct row row = {.unit = "x", .must = share->must};
    if (share->side >= cores->n_sides || base <= 0)
        return;
    snprintf(row.name, sizeof row.name, "%s", share->name);
    row.value = rate_of(cores, share->kind, share->side) / base;
    report_row(&bench->report, &row);
}

static void report_shares(struct bench *bench, struct cores *cores)
{
    static const struct share shares[] = {
        {"16 threads by 4: GET", LIVE, SIXTEEN, LIVE, FOUR, 0},
        {"16 threads by 4: rmsnorm 1 KiB", NORM, SIXTEEN, NORM, FOUR, 3},
        {"16 threads by 4: rope 4 tokens", ROPE, SIXTEEN, ROPE, FOUR, 3},
        {"rmsnorm 1 KiB by GET, 16 threads", NORM, SIXTEEN, LIVE, SIXTEEN, 0.5},
        {"rope c=256 by c=64, 16 threads", ROPE_256, SIXTEEN, ROPE, SIXTEEN,
         0.9},
        {"rope c=1024 by c=64, 16 threads", ROPE_1024, SIXTEEN, ROPE, SIXTEEN,
         0.8},
        {"default by 4 threads: rmsnorm 1 KiB", NORM, DEFAULT, NORM, FOUR, 0.9},
        {"default by 16: rmsnorm 1 KiB", NORM, DEFAULT, NORM, SIXTEEN, 0.9},
        {"default by 4 threads: rmsnorm 1 MiB", NORM_MIB, DEFAULT, NORM_MIB,
         FOUR, 0.9},
        {"default by 16: rmsnorm 1 MiB", NORM_MIB, DEFAULT, NORM_MIB, SIXTEEN,
         0.9},
        {"device by cpu: rmsnorm 1 KiB", NORM, DEVICE, NORM, DEFAULT, 0.6},
    };
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        report_share(bench, cores, &shares[i]);
}

void section_cores(struct bench *bench)
{
    static struct cores cores;
    start(bench, &cores);
    report_title(&bench->report, "Rates by HTTP threads");
    printf("%ld cores\n", sysconf(_SC_NPROCESSORS_ONLN));
    for (int turn = 0; turn < bench->plan.n_runs; turn++)
        for (int kind = 0; kind < N_KINDS; kind++)
            for (int side = 0; side < cores.n_sides; side++)
                run(bench, &cores, kind, side);
    report_rates(bench, &cores);
    report_shares(bench, &cores);
    for (int side = 0; side < cores.n_sides; side++)
        server_stop(&cores.server[side]);
    for (int i = 0; i < N_KINDS * N_SIDES; i++)
        stats_free(&cores.rates[i / N_SIDES][i % N_SIDES]);
}
