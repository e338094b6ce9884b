/*
 * bench_http.c - what the HTTP path costs, beside reference programs that run
 * in the same run, with goals. Everything is on 127.0.0.1.
 *
 *     bench_http [--binary roped] [--backend cpu|cuda] [--quick]
 *                [--before OTHER_ROPED] [--devices 0,1] [--strict]
 *                [--section echo|calls|regions|small|cost|crowd|stage|scale
 *                           |versions|tls|unix|proxy|cores|programs]
 *                [--max-bytes N] [--runs N] [--seconds S] [--json FILE]
 *
 * --strict: a goal that is missed is a failure.
 *     bench_http raw-server       the reference server alone, see raw_server.h
 */
#include "bench/http/bench.h"
#include "bench/http/raw_server.h"

#include <curl/curl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    void (*run)(struct bench *bench);
} sections[] = {{"echo", section_echo},         {"calls", section_calls},
                {"regions", section_regions},   {"small", section_small},
                {"cost", section_cost},         {"crowd", section_crowd},
                {"stage", section_stage},       {"scale", section_scale},
                {"versions", section_versions}, {"tls", section_tls},
                {"unix", section_unix},         {"proxy", section_proxy},
                {"cores", section_cores},       {"programs", section_programs}};
enum { N_SECTIONS = sizeof sections / sizeof *sections };

const struct body_load bench_loads[N_BODY_LOADS] = {
    {KIB, 1},       {64 * KIB, 1},  {MIB, 1},        {16 * MIB, 1},
    {64 * MIB, 1},  {256 * MIB, 1}, {1024 * MIB, 1}, {KIB, 8},
    {64 * KIB, 8},  {MIB, 8},       {16 * MIB, 8},   {KIB, 64},
    {64 * KIB, 64}, {MIB, 64}};

const char *const bench_flags[] = {"--demo-models",
                                   "true",
                                   "--max-body-bytes",
                                   "2g",
                                   "--host-bytes",
                                   "8g",
                                   "--pool-bytes",
                                   "256m",
                                   NULL};

static void usage(void)
{
    fprintf(
        stderr,
        "usage: bench_http [--binary roped] [--backend cpu|cuda] "
        "[--quick]\n"
        "                  [--before OTHER_ROPED] [--devices 0,1] [--strict]\n"
        "                  [--section echo|calls|regions|small|cost|crowd|"
        "stage|scale|versions|tls|unix|proxy|cores|programs]\n"
        "                  [--max-bytes N] [--runs N] [--seconds S] "
        "[--json FILE]\n"
        "       bench_http raw-server\n");
    exit(2);
}

const char *bench_size_text(uint64_t bytes, char text[32])
{
    bool is_mib = bytes >= MIB;
    snprintf(text, 32, "%llu %s",
             (unsigned long long)(bytes / (is_mib ? MIB : KIB)),
             is_mib ? "MiB" : "KiB");
    return text;
}

static uint64_t available_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (uint64_t)kib * 1024;
}

bool bench_has_room(const struct bench *bench, uint64_t bytes, int copies)
{
    char text[32];
    uint64_t wanted = bytes * (uint64_t)copies, free_bytes = available_bytes();
    if (bytes > bench->most_bytes) {
        printf("%s: left out (--max-bytes)\n", bench_size_text(bytes, text));
        return false;
    }
    if (wanted > free_bytes / 10 * 9) {
        printf("%s: left out: %llu MiB wanted, %llu free\n",
               bench_size_text(bytes, text), (unsigned long long)(wanted >> 20),
               (unsigned long long)(free_bytes >> 20));
        return false;
    }
    return true;
}

void bench_report(struct bench *bench, struct row *row,
                  struct contender *contender)
{
    double bytes = 2.0 * (double)contender->request.body_bytes;
    row->p50_us = stats_quantile(&contender->calls, 0.5) * 1e6;
    row->p99_us = stats_quantile(&contender->calls, 0.99) * 1e6;
    row->p999_us = stats_quantile(&contender->calls, 0.999) * 1e6;
    row->calls_per_s = contender->rates.n > 0 ? duel_rate_of(contender)
                       : row->p50_us > 0      ? 1e6 / row->p50_us
                                              : 0;
    row->gb_per_s = row->calls_per_s * bytes * 1e-9;
    row->cpu_us = duel_cpu_us(contender);
    row->phases = duel_phases(contender);
    if (contender->n_failed > 0) {
        bench->n_failed++;
        snprintf(row->note, sizeof row->note, "%llu exchanges failed",
                 (unsigned long long)contender->n_failed);
    }
    report_row(&bench->report, row);
}

void bench_must_ask(const struct server *server,
                    const struct http_request *request, char *into, size_t room)
{
    struct http_answer answer = {0};
    int fd = client_open(server->port);
    if (fd < 0 ||
        !client_exchange(fd, request, (unsigned char *)into, room, &answer) ||
        answer.code / 100 != 2) {
        fprintf(stderr, "bench_http: %.*s was answered with %d\n",
                (int)strcspn(request->head, "\r"), request->head, answer.code);
        exit(EXIT_FAILURE);
    }
    close(fd);
}

void bench_must(const struct server *server, const char *method,
                const char *path, const char *body, char *into, size_t room)
{
    struct http_request request =
        request_make(method, path, "", body, body ? strlen(body) : 0);
    bench_must_ask(server, &request, into, room);
}

/* Beside this program, where builds put it. */
static const char *default_binary(void)
{
    static char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
    if (!slash)
        return "roped";
    memcpy(slash, "/roped", sizeof "/roped");
    return path;
}

struct options {
    const char *section, *json;
    double seconds;
    int n_runs;
};

static void read_options(struct bench *bench, struct options *options, int argc,
                         char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool is_quick = strcmp(argv[i], "--quick") == 0;
        if (is_quick || strcmp(argv[i], "--strict") == 0) {
            *(is_quick ? &bench->is_quick : &bench->is_strict) = true;
            continue;
        }
        if (i + 1 >= argc)
            usage();
        const char *name = argv[i], *value = argv[++i];
        if (strcmp(name, "--binary") == 0)
            bench->binary = value;
        else if (strcmp(name, "--before") == 0)
            bench->before = value;
        else if (strcmp(name, "--devices") == 0)
            bench->devices = value;
        else if (strcmp(name, "--backend") == 0)
            bench->backend = value;
        else if (strcmp(name, "--section") == 0)
            options->section = value;
        else if (strcmp(name, "--json") == 0)
            options->json = value;
        else if (strcmp(name, "--max-bytes") == 0)
            bench->most_bytes = strtoull(value, NULL, 10);
        else if (strcmp(name, "--runs") == 0)
            options->n_runs = (int)strtol(value, NULL, 10);
        else if (strcmp(name, "--seconds") == 0)
            options->seconds = strtod(value, NULL);
        else
            usage();
    }
}

static void prepare(struct bench *bench, const struct options *options)
{
    bench->report.backend = bench->backend;
    if (bench->is_quick && bench->most_bytes > 4 * MIB)
        bench->most_bytes = 4 * MIB;
    bench->plan.n_runs = bench->is_quick ? 2 : 5;
    bench->plan.seconds = bench->is_quick ? 0.05 : 0.5;
    if (options->n_runs > 0)
        bench->plan.n_runs = options->n_runs;
    if (options->seconds > 0)
        bench->plan.seconds = options->seconds;
    if (options->json) {
        bench->report.json = fopen(options->json, "w");
        if (!bench->report.json) {
            perror(options->json);
            exit(EXIT_FAILURE);
        }
    }
    curl_global_init(CURL_GLOBAL_ALL);
    signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct options options = {0};
    bool has_run = false;
    if (argc == 2 && strcmp(argv[1], "raw-server") == 0)
        return raw_server_main();
    bench.binary = default_binary();
    bench.backend = "cpu";
    bench.most_bytes = UINT64_MAX;
    read_options(&bench, &options, argc, argv);
    for (int i = 0; options.section && i < N_SECTIONS; i++)
        has_run |= strcmp(options.section, sections[i].name) == 0;
    if (options.section && !has_run)
        usage();
    prepare(&bench, &options);
    printf("%s, backend %s, %d runs of %g s in turns\n", bench.binary,
           bench.backend, bench.plan.n_runs, bench.plan.seconds);
    for (int i = 0; i < N_SECTIONS; i++)
        if (!options.section || strcmp(options.section, sections[i].name) == 0)
            sections[i].run(&bench);
    report_end(&bench.report);
    if (bench.report.json)
        fclose(bench.report.json);
    if (bench.is_strict && bench.report.n_must < bench.report.n_goals)
        return EXIT_FAILURE;
    if (bench.n_failed == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "bench_http: %d rows with requests that failed\n",
            bench.n_failed);
    return EXIT_FAILURE;
}
