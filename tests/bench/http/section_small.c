/*
 * section_small.c - rates and tails of small requests, servers on one CPU and
 * clients on another: beside nginx with one worker, which drops the body and
 * returns 200, and beside the raw server, which echoes it.
 */
#include "bench/http/bench.h"

#include <stdio.h>

enum { RAW, NGINX, LIVE, RMSNORM, ECHO, SUSPENDED, N_SIDES };

struct small {
    struct server raw, nginx, roped, suspended;
    bool has_nginx;
    int clients_cpu;
};

static void start(struct bench *bench, struct small *small)
{
    static const char *const inline_flags[] = {"--http-threads", "1",
                                               "--demo-models", "true", NULL};
    static const char *const suspended_flags[] = {"--http-threads", "1",
                                                  "--inline-bytes", "0", NULL};
    int cpu;
    pick_cpus(&cpu, &small->clients_cpu);
    server_raw(&small->raw, cpu);
    small->has_nginx = server_nginx(&small->nginx, NULL, cpu);
    server_roped(&small->roped, bench->binary, bench->backend, inline_flags,
                 cpu);
    server_roped(&small->suspended, bench->binary, bench->backend,
                 suspended_flags, cpu);
}

static void stop(struct small *small)
{
    server_stop(&small->suspended);
    server_stop(&small->roped);
    if (small->has_nginx)
        server_stop(&small->nginx);
    server_stop(&small->raw);
}

/* Goals: at c=1 the time beside the raw server's, at c=64 the rate beside
 * nginx's. */
static void judge(struct row *row, struct contender *side, int i, int c,
                  bool has_nginx)
{
    bool is_suspended = i == SUSPENDED;
    if (i == RAW || i == NGINX)
        return;
    if (c == 1) {
        row->unit = "x raw";
        row->value = duel_median_us(&side[i]) / duel_median_us(&side[RAW]);
        row->is_ceiling = true;
        row->must = is_suspended ? 0 : 1.15;
        row->stretch = is_suspended ? 0 : 1.05;
        return;
    }
    struct contender *reference = &side[has_nginx ? NGINX : RAW];
    double base = duel_rate_of(reference), cpu_us = duel_cpu_us(&side[i]);
    row->unit = has_nginx ? "of nginx" : "of raw";
    row->value = base > 0 ? duel_rate_of(&side[i]) / base : 0;
    if (cpu_us > 0)
        snprintf(row->note, sizeof row->note, "by the server's CPU time %.2f",
                 duel_cpu_us(reference) / cpu_us);
    if (c < 64 || !has_nginx)
        return;
    row->must = is_suspended ? 0.40 : 0.75;
    row->stretch = is_suspended ? 0.60 : 0.85;
}

static void measure(struct bench *bench, struct small *small, int c)
{
    static const char *const names[N_SIDES] = {
        "raw server, POST 1 KiB",  "nginx, POST 1 KiB",
        "GET /v2/health/live",     "POST 1 KiB rmsnorm, inline",
        "POST 1 KiB echo, inline", "POST 1 KiB rmsnorm, by a lane"};
    struct contender side[N_SIDES] = {
        {.server = &small->raw, .request = call_plain(KIB)},
        {.server = small->has_nginx ? &small->nginx : &small->raw,
         .request = call_plain(KIB)},
        {.server = &small->roped, .request = call_live(0)},
        {.server = &small->roped, .request = call_rmsnorm(KIB)},
        {.server = &small->roped, .request = call_echo(KIB)},
        {.server = &small->suspended, .request = call_rmsnorm(KIB)}};
    pin_self(small->clients_cpu);
    duel_rate(side, N_SIDES, &bench->plan, c);
    pin_self(ANY_CPU);
    for (int i = 0; i < N_SIDES; i++) {
        struct row row = {.unit = NULL};
        snprintf(row.name, sizeof row.name, "%s, c=%d", names[i], c);
        judge(&row, side, i, c, small->has_nginx);
        if (i != NGINX || small->has_nginx)
            bench_report(bench, &row, &side[i]);
    }
    duel_free(side, N_SIDES);
}

void section_small(struct bench *bench)
{
    struct small small;
    start(bench, &small);
    report_title(&bench->report,
                 small.clients_cpu == ANY_CPU
                     ? "Small requests (one CPU: servers and clients share it)"
                     : "Small requests, servers on one CPU, clients on "
                       "another, one HTTP thread");
    if (!small.has_nginx)
        printf("nginx is not installed: rates are compared with the raw "
               "server's and have no goals\n");
    measure(bench, &small, 1);
    measure(bench, &small, 8);
    measure(bench, &small, 64);
    stop(&small);
}
