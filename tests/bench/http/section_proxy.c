/*
 * section_proxy.c - a call of 40 KiB straight to a daemon, and to three daemons
 * behind HAProxy, nginx and Envoy with the files of deploy/proxy, in turns.
 */
#include "bench/http/bench.h"
#include "load/proxy.h"

#include <stdio.h>

enum { DIRECT, HAPROXY, NGINX, ENVOY, N_WAYS, CALL_BYTES = 40 * KIB };
static const char *const way_name[N_WAYS] = {"direct", "behind HAProxy",
                                             "behind nginx", "behind Envoy"};
static const double most_us_more = 500;

/* The proxies and, to ask them as if they were daemons, their ports. Which of
 * them are there is what it returns. */
static unsigned start_proxies(struct proxy proxy[N_WAYS],
                              struct server place[N_WAYS],
                              const uint16_t ports[PROXY_DAEMONS])
{
    static const struct proxy_kind *const kinds[N_WAYS] = {
        [HAPROXY] = &proxy_haproxy,
        [NGINX] = &proxy_nginx,
        [ENVOY] = &proxy_envoy};
    unsigned there = 1 << DIRECT;
    for (int i = HAPROXY; i < N_WAYS; i++)
        if (proxy_start(&proxy[i], kinds[i], ports)) {
            place[i] =
                (struct server){.pid = proxy[i].pid, .port = proxy[i].port};
            there |= 1U << i;
        }
    return there;
}

static void measure(struct bench *bench, const struct server place[N_WAYS],
                    unsigned there)
{
    struct contender side[N_WAYS] = {{0}};
    int way[N_WAYS], n = 0;
    for (int i = 0; i < N_WAYS; i++)
        if (there & (1U << i)) {
            side[n].server = &place[i];
            side[n].request = call_rmsnorm(CALL_BYTES);
            way[n++] = i;
        }
    duel_latency(side, n, &bench->plan);
    for (int i = 0; i < n; i++) {
        struct row row = {.unit = NULL};
        snprintf(row.name, sizeof row.name, "rmsnorm 40 KiB %s, c=1",
                 way_name[way[i]]);
        if (i > 0) {
            row.unit = "us more";
            row.value = duel_median_us(&side[i]) - duel_median_us(&side[0]);
            row.must = most_us_more;
            row.is_ceiling = true;
        }
        bench_report(bench, &row, &side[i]);
    }
    duel_free(side, n);
}

void section_proxy(struct bench *bench)
{
    struct server daemon[PROXY_DAEMONS], place[N_WAYS] = {{0}};
    struct proxy proxy[N_WAYS];
    uint16_t ports[PROXY_DAEMONS];
    for (int i = 0; i < PROXY_DAEMONS; i++) {
        server_roped(&daemon[i], bench->binary, bench->backend, NULL, ANY_CPU);
        ports[i] = daemon[i].port;
    }
    place[DIRECT] = daemon[0];
    unsigned there = start_proxies(proxy, place, ports);
    report_title(&bench->report, "Three daemons behind a proxy");
    measure(bench, place, there);
    for (int i = HAPROXY; i < N_WAYS; i++)
        if (there & (1U << i))
            proxy_stop(&proxy[i]);
    for (int i = 0; i < PROXY_DAEMONS; i++)
        server_stop(&daemon[i]);
}
