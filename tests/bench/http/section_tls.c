/*
 * section_tls.c - TLS beside nginx, which has one worker and the same
 * certificate: small requests, and 64 MiB each way. libcurl asks both, servers
 * on one CPU, the client on another. Both drop what they are sent, roped
 * because there is no such route; nginx sends a file, roped a region.
 */
#include "bench/http/bench.h"
#include "load/certificates.h"

#include <stdio.h>

enum { NGINX, ROPED, N_SIDES };

struct tls_bench {
    struct certificates certificates;
    char ca[64];
    struct server server[N_SIDES];
    int clients_cpu;
};

static void start(const struct bench *bench, struct tls_bench *tls)
{
    const char *folder = tls->certificates.folder;
    char pair[2][64];
    const char *const flags[] = {"--http-threads",
                                 "1",
                                 "--tls-cert-file",
                                 pair[0],
                                 "--tls-key-file",
                                 pair[1],
                                 "--host-bytes",
                                 "2g",
                                 NULL};
    int cpu;
    pick_cpus(&cpu, &tls->clients_cpu);
    snprintf(pair[0], sizeof pair[0], "%s/server.pem", folder);
    snprintf(pair[1], sizeof pair[1], "%s/server.key", folder);
    snprintf(tls->ca, sizeof tls->ca, "%s/ca.pem", folder);
    server_roped(&tls->server[ROPED], bench->binary, bench->backend, flags,
                 cpu);
}

/* The i-th side's request of a row. */
typedef struct http_request ask_fn(int side, size_t bytes);

static struct http_request ask_live(int side, size_t bytes)
{
    (void)side, (void)bytes;
    return call_live(0);
}

static struct http_request ask_put(int side, size_t bytes)
{
    struct http_request call = call_rmsnorm(bytes);
    (void)side;
    return request_make("PUT", "/v1/regions/r", "", call.body, call.body_bytes);
}

static struct http_request ask_drop(int side, size_t bytes)
{
    struct http_request call = call_plain(bytes);
    (void)side;
    return request_make("PUT", "/nowhere", "", call.body, call.body_bytes);
}

static struct http_request ask_get(int side, size_t bytes)
{
    (void)bytes;
    return request_make("GET", side == ROPED ? "/v1/regions/r" : "/files/body",
                        "", NULL, 0);
}

static void measure(struct bench *bench, const struct tls_bench *tls,
                    const char *name, ask_fn *ask, size_t bytes)
{
    static const char *const sides[] = {"nginx", "roped"};
    struct contender side[N_SIDES] = {{0}};
    for (int i = 0; i < N_SIDES; i++) {
        side[i].server = &tls->server[i];
        side[i].request = ask(i, bytes);
        side[i].by_curl = true;
        side[i].ca_file = tls->ca;
        side[i].answer_bytes = bytes;
        side[i].refusal = 404; /* of ask_drop */
    }
    pin_self(tls->clients_cpu);
    duel_latency(side, N_SIDES, &bench->plan);
    pin_self(ANY_CPU);
    for (int i = 0; i < N_SIDES; i++) {
        struct row row = {.unit = NULL};
        snprintf(row.name, sizeof row.name, "TLS, %s, %s", name, sides[i]);
        if (i == ROPED) {
            row.unit = "of nginx";
            row.value = duel_median_us(&side[NGINX]) / duel_median_us(&side[i]);
            row.best = duel_best_us(&side[NGINX]) / duel_best_us(&side[i]);
            row.must = ask == ask_put ? 0 : 0.85;
            snprintf(row.note, sizeof row.note, "by CPU time %.2f",
                     duel_cpu_us(&side[NGINX]) / duel_cpu_us(&side[i]));
        }
        bench_report(bench, &row, &side[i]);
    }
    duel_free(side, N_SIDES);
}

/* What nginx sends as /files/body. */
static bool write_body(const struct tls_bench *tls, size_t bytes)
{
    char path[64];
    struct http_request body = call_plain(bytes);
    snprintf(path, sizeof path, "%s/body", tls->certificates.folder);
    FILE *file = fopen(path, "wb");
    bool is_written = file && fwrite(body.body, 1, bytes, file) == bytes;
    is_written = file && fclose(file) == 0 && is_written;
    request_free(&body);
    return is_written;
}

static void measure_all(struct bench *bench, struct tls_bench *tls)
{
    size_t bytes = bench->is_quick ? 4 * MIB : 64 * MIB;
    char size[32], name[64];
    start(bench, tls);
    measure(bench, tls, "GET live", ask_live, 0);
    bench_size_text(bytes, size);
    snprintf(name, sizeof name, "%s in", size);
    if (bench_has_room(bench, bytes, 6)) {
        measure(bench, tls, name, ask_drop, bytes);
        snprintf(name, sizeof name, "%s in, kept by roped", size);
        measure(bench, tls, name, ask_put, bytes);
        snprintf(name, sizeof name, "%s out", size);
        measure(bench, tls, name, ask_get, bytes);
    }
    server_stop(&tls->server[ROPED]);
    server_stop(&tls->server[NGINX]);
}

void section_tls(struct bench *bench)
{
    struct tls_bench tls = {.clients_cpu = ANY_CPU};
    int cpu;
    report_title(&bench->report, "TLS, servers on one CPU, client on another");
    pick_cpus(&cpu, &tls.clients_cpu);
    if (!certificates_make(&tls.certificates) ||
        !write_body(&tls, bench->is_quick ? 4 * MIB : 64 * MIB))
        printf("left out: no openssl\n");
    else if (!server_nginx(&tls.server[NGINX], tls.certificates.folder, cpu))
        printf("left out: nginx is not installed\n");
    else
        measure_all(bench, &tls);
    certificates_remove(&tls.certificates);
}
