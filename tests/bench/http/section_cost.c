/*
 * section_cost.c - what a request costs the server: its CPU time, user and
 * kernel. Servers and client are on one CPU, one connection asks one request
 * after another: nobody wakes another processor, so that the figures hardly
 * move where other programs run. Beside another daemon (--before), or beside
 * the raw server, which echoes as many bytes.
 */
#include "bench/http/bench.h"

#include <stdio.h>

enum { NOTHING, RMSNORM, ECHO_1K, ECHO_40K, ROPE, ECHO_1M, N_KINDS };

static const char *const names[N_KINDS] = {
    "GET /v2/health/live", "POST 1 KiB rmsnorm", "POST 1 KiB echo",
    "POST 40 KiB echo",    "rope 4 tokens",      "POST 1 MiB echo"};

static void make_calls(struct call calls[N_KINDS])
{
    call_get(&calls[NOTHING], "/v2/health/live");
    call_rmsnorm(&calls[RMSNORM], KIB);
    call_echo(&calls[ECHO_1K], KIB);
    call_echo(&calls[ECHO_40K], 40 * KIB);
    call_rope(&calls[ROPE], 4);
    call_echo(&calls[ECHO_1M], MIB);
}

/* other: another daemon, or the raw server. */
static void compare(struct bench *bench, const struct server *roped,
                    const struct server *other, int kind, struct call *call)
{
    bool is_raw = !bench->before;
    struct call plain = *call;
    struct row row = {.unit = is_raw ? "x raw" : "x before"};
    if (is_raw && kind != NOTHING)
        call_plain(&plain, call->request.body_bytes);
    struct contender side[2] = {
        {.port = roped->port, .server = roped, .request = &call->request},
        {.port = other->port, .server = other, .request = &plain.request}};
    duel_latency(side, 2, &bench->plan);
    double us = duel_cpu_us(&side[1]);
    if (us > 0)
        row.value = duel_cpu_us(&side[0]) / us;
    snprintf(row.name, sizeof row.name, "%s, one CPU", names[kind]);
    snprintf(row.note, sizeof row.note, "%s: %.1f us of CPU",
             is_raw ? "raw server" : "before", us);
    bench_report(bench, &row, &side[0], 2.0 * (double)call->request.body_bytes);
    duel_free(&side[0]);
    duel_free(&side[1]);
    if (is_raw && kind != NOTHING)
        call_free(&plain);
}

void section_cost(struct bench *bench)
{
    static const char *const flags[] = {"--http-threads", "1", "--demo-models",
                                        "true", NULL};
    struct server roped, other;
    struct call calls[N_KINDS];
    int cpu, unused;
    pick_cpus(&cpu, &unused);
    server_roped(&roped, bench->binary, bench->backend, flags, cpu);
    if (bench->before)
        server_roped(&other, bench->before, bench->backend, flags, cpu);
    else
        server_raw(&other, cpu);
    report_title(&bench->report,
                 "CPU time of a request, servers and client on one CPU");
    make_calls(calls);
    pin_self(cpu);
    for (int i = 0; i < N_KINDS; i++)
        compare(bench, &roped, &other, i, &calls[i]);
    pin_self(ANY_CPU);
    for (int i = 0; i < N_KINDS; i++)
        call_free(&calls[i]);
    server_stop(&other);
    server_stop(&roped);
}
