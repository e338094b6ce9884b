/*
 * section_echo.c - what the HTTP path costs beside the reference server. The
 * echo is the demo model identity_fp32; its own copy, which the daemon reports
 * as the kernel's time, is no part of HTTP and is taken off.
 */
#include "bench/http/bench.h"

#include <stdio.h>

/* Who asks how: how many connections of the reference client, or libcurl. */
struct way {
    int c;
    bool by_curl;
};

/* At c = 1 times, since a rate would be one of both sides; else rates: the
 * reference has one thread. */
static void judge(struct row *row, struct contender side[2], int c,
                  double copy_us)
{
    double raw_us = duel_median_us(&side[0]), us = duel_median_us(&side[1]);
    if (c > 1) {
        double raw_rate = duel_rate_of(&side[0]);
        row->value = raw_rate > 0 ? duel_rate_of(&side[1]) / raw_rate : 0;
    } else if (us > copy_us && raw_us > 0) {
        row->value = raw_us / (us - copy_us);
        row->best = duel_best_us(&side[0]) / (duel_best_us(&side[1]) - copy_us);
        snprintf(row->note, sizeof row->note, "with the model's copy %.2f",
                 raw_us / us);
    }
}

/* libcurl's answers name no phases here: one of the reference client does. */
static double copy_of(struct contender side[2])
{
    struct contender one = {.server = side[1].server,
                            .request = side[1].request};
    if (side[1].by_curl)
        duel_latency(&one, 1, &(struct duel_plan){1, 0});
    double us = duel_phases(side[1].by_curl ? &one : &side[1]).us[PHASE_KERNEL];
    one.request.body = NULL; /* it is that of side[1] */
    duel_free(&one, 1);
    return us;
}

/* row: its goals. */
static void echo(struct bench *bench, const struct server server[2],
                 size_t bytes, struct way way, struct row row)
{
    char size[32];
    struct row reference = {.unit = NULL};
    const char *by = way.by_curl ? " by libcurl" : "";
    if (!bench_has_room(bench, bytes, 3 * way.c + 2))
        return;
    struct contender side[2] = {{.server = &server[0],
                                 .request = call_echo(bytes),
                                 .by_curl = way.by_curl},
                                {.server = &server[1],
                                 .request = call_echo(bytes),
                                 .by_curl = way.by_curl}};
    if (way.c > 1)
        duel_rate(side, 2, &bench->plan, way.c);
    else
        duel_latency(side, 2, &bench->plan);
    bench_size_text(bytes, size);
    snprintf(reference.name, sizeof reference.name, "raw echo %s%s, c=%d", size,
             by, way.c);
    bench_report(bench, &reference, &side[0]);
    snprintf(row.name, sizeof row.name, "echo %s%s, c=%d", size, by, way.c);
    row.unit = "of raw";
    judge(&row, side, way.c, copy_of(side));
    bench_report(bench, &row, &side[1]);
    duel_free(side, 2);
}

void section_echo(struct bench *bench)
{
    struct server server[2];
    size_t bytes = bench->is_quick ? MIB : 64 * MIB;
    server_raw(&server[0], ANY_CPU);
    server_roped(&server[1], bench->binary, bench->backend, bench_flags,
                 ANY_CPU);
    report_title(&bench->report,
                 "Echo (v2 identity_fp32, raw tensor) beside the raw server");
    for (int i = 0; i < N_BODY_LOADS; i++) {
        const struct body_load *load = &bench_loads[i];
        struct row goals = {.must = 0}; /* large ones almost as fast */
        if (load->c == 1 && load->bytes >= MIB)
            goals = (struct row){.must = 0.8,
                                 .stretch = load->bytes > MIB ? 0.95 : 1};
        echo(bench, server, load->bytes, (struct way){load->c, false}, goals);
    }
    echo(bench, server, bytes, (struct way){1, true},
         (struct row){.must = bytes >= 64 * MIB ? 0.85 : 0, .stretch = 0.95});
    server_stop(&server[1]);
    server_stop(&server[0]);
}
