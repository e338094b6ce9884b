/*
 * section_cost.c - what a request costs the server: its CPU time, user and
 * kernel. Servers and client are on one CPU, one connection asks one request
 * after another: nobody wakes another processor, so that the figures hardly
 * move where other programs run. Beside another daemon (--before), or beside
 * the raw server, which echoes what it gets.
 */
#include "bench/http/bench.h"

#include <stdio.h>

static const struct {
    const char *name;
    struct http_request (*make)(size_t size);
    size_t size;
} kinds[] = {{"GET /v2/health/live", call_live, 0},
             {"POST 1 KiB rmsnorm", call_rmsnorm, KIB},
             {"POST 1 KiB echo", call_echo, KIB},
             {"POST 40 KiB echo", call_echo, 40 * KIB},
             {"rope 4 tokens", call_rope, 4},
             {"POST 1 MiB echo", call_echo, MIB}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* other: another daemon, or the raw server. */
static void compare(struct bench *bench, const struct server *roped,
                    const struct server *other, int kind)
{
    bool is_raw = !bench->before;
    struct row row = {.unit = is_raw ? "x raw" : "x before"};
    struct contender side[2] = {
        {.server = roped, .request = kinds[kind].make(kinds[kind].size)},
        {.server = other, .request = kinds[kind].make(kinds[kind].size)}};
    duel_latency(side, 2, &bench->plan);
    double us = duel_cpu_us(&side[1]);
    if (us > 0)
        row.value = duel_cpu_us(&side[0]) / us;
    snprintf(row.name, sizeof row.name, "%s, one CPU", kinds[kind].name);
    snprintf(row.note, sizeof row.note, "%s: %.1f us of CPU",
             is_raw ? "raw server" : "before", us);
    bench_report(bench, &row, &side[0]);
    duel_free(side, 2);
}

void section_cost(struct bench *bench)
{
    static const char *const flags[] = {"--http-threads", "1", "--demo-models",
                                        "true", NULL};
    struct server roped, other;
    int cpu, unused;
    pick_cpus(&cpu, &unused);
    server_roped(&roped, bench->binary, bench->backend, flags, cpu);
    if (bench->before)
        server_roped(&other, bench->before, bench->backend, flags, cpu);
    else
        server_raw(&other, cpu);
    report_title(&bench->report,
                 "CPU time of a request, servers and client on one CPU");
    pin_self(cpu);
    for (int i = 0; i < N_KINDS; i++)
        compare(bench, &roped, &other, i);
    pin_self(ANY_CPU);
    server_stop(&other);
    server_stop(&roped);
}
