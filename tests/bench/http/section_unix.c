/*
 * section_unix.c - small calls over a Unix socket and over loopback, to one
 * daemon on a CPU of its own.
 */
#include "bench/http/bench.h"

#include <stdio.h>
#include <unistd.h>

enum { TCP, UNIX, N_WAYS };

static void measure(struct bench *bench, const struct server *server,
                    const char *path, const char *name,
                    struct http_request (*call)(size_t bytes))
{
    static const char *const ways[] = {"TCP", "Unix socket"};
    struct contender side[N_WAYS] = {{0}};
    for (int i = 0; i < N_WAYS; i++) {
        side[i].server = server;
        side[i].request = call(KIB);
        side[i].socket = i == UNIX ? path : NULL;
    }
    duel_latency(side, N_WAYS, &bench->plan);
    for (int i = 0; i < N_WAYS; i++) {
        struct row row = {.unit = NULL};
        snprintf(row.name, sizeof row.name, "%s, %s, c=1", name, ways[i]);
        if (i == UNIX) {
            row.unit = "x TCP";
            row.value =
                duel_median_us(&side[UNIX]) / duel_median_us(&side[TCP]);
            row.best = duel_best_us(&side[UNIX]) / duel_best_us(&side[TCP]);
            row.must = 0.85;
            row.is_ceiling = true;
        }
        bench_report(bench, &row, &side[i]);
    }
    duel_free(side, N_WAYS);
}

void section_unix(struct bench *bench)
{
    char path[64], place[80];
    const char *const flags[] = {"--listen", "127.0.0.1:0",    "--listen",
                                 place,      "--http-threads", "1",
                                 NULL};
    struct server server;
    int cpu, clients;
    report_title(&bench->report, "A Unix socket beside loopback");
    snprintf(path, sizeof path, "/tmp/roped_bench_%d.sock", (int)getpid());
    snprintf(place, sizeof place, "unix:%s", path);
    pick_cpus(&cpu, &clients);
    server_roped(&server, bench->binary, bench->backend, flags, cpu);
    pin_self(clients);
    measure(bench, &server, path, "GET live", call_live);
    measure(bench, &server, path, "rmsnorm 1 KiB", call_rmsnorm);
    pin_self(ANY_CPU);
    server_stop(&server);
}
