/*
 * command_bench.c - bench: the same call again and again, from one or more
 * connections, with tensors made from the operator's descriptor.
 */
#include "bench_tensors.h"
#include "progress.h"
#include "ropectl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_CONNECTIONS = 256, MAX_SAMPLES = 1 << 20 };

struct bench {
    const struct ropectl *ctl;
    const struct roped_op *op;
    struct roped_call call; /* its parameters */
    enum roped_dtype dtype;
    double seconds;
    int n_connections;
    char *query;
    struct bench_sizes sizes;
    void *body;
    size_t bytes;
    double end_seconds;
    atomic_int n_failed;
};

/* One connection's measurements. */
struct worker {
    struct bench *bench;
    pthread_t thread;
    double *sample; /* wall seconds of each call */
    int n;
    size_t answer_bytes;
    struct roped_client_timing sum;
    bool has_failed;
    struct roped_error error;
};

static void add_timing(struct roped_client_timing *sum,
                       const struct roped_client_timing *t)
{
    sum->receive += t->receive;
    sum->queue += t->queue;
    sum->plan += t->plan;
    sum->h2d += t->h2d;
    sum->kernel += t->kernel;
    sum->d2h += t->d2h;
    sum->wall += t->wall;
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct bench *bench = worker->bench;
    struct roped_client_result result;
    struct roped_client *client;
    if (roped_client_open(&bench->ctl->options, &client, &worker->error)) {
        worker->has_failed = true;
        atomic_fetch_add(&bench->n_failed, 1);
        return NULL;
    }
    for (int i = -3; progress_now_seconds() < bench->end_seconds || i < 1;
         i++) {
        if (roped_client_call_bytes(client, bench->op->name, bench->query,
                                    bench->body, bench->bytes, &result,
                                    &worker->error)) {
            worker->has_failed = true;
            atomic_fetch_add(&bench->n_failed, 1);
            break;
        }
        if (i >= 0 && worker->n < MAX_SAMPLES) { /* the first three warm up */
            worker->sample[worker->n++] = result.timing.wall;
            add_timing(&worker->sum, &result.timing);
            worker->answer_bytes = result.bytes;
        }
        roped_client_result_free(&result);
    }
    roped_client_close(client);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What all connections together saw; n calls. */
struct summary {
    int n;
    double p50, p90, p99; /* seconds */
    double calls_per_second, bytes_per_second;
    size_t answer_bytes;
    struct roped_client_timing sum;
};

static void report_json(const struct bench *bench, const struct summary *s)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "operator", bench->op->name);
    cJSON_AddNumberToObject(document, "calls", s->n);
    cJSON_AddNumberToObject(document, "connections", bench->n_connections);
    cJSON_AddNumberToObject(document, "bytes_in", (double)bench->bytes);
    cJSON_AddNumberToObject(document, "bytes_out", (double)s->answer_bytes);
    cJSON *latency = cJSON_AddObjectToObject(document, "latency_ms");
    cJSON_AddNumberToObject(latency, "p50", s->p50 * 1e3);
    cJSON_AddNumberToObject(latency, "p90", s->p90 * 1e3);
    cJSON_AddNumberToObject(latency, "p99", s->p99 * 1e3);
    cJSON_AddNumberToObject(document, "calls_per_second", s->calls_per_second);
    cJSON_AddNumberToObject(document, "bytes_per_second", s->bytes_per_second);
    add_timing_json(document, "mean_ms", &s->sum, s->n);
    print_json(stdout, document);
}

static void report_text(const struct bench *bench, const struct summary *s)
{
    const struct roped_client_timing *sum = &s->sum;
    printf("%d calls, %d connections, %zu bytes in, %zu out\n", s->n,
           bench->n_connections, bench->bytes, s->answer_bytes);
    printf("latency   p50 %.4f, p90 %.4f, p99 %.4f ms\n", s->p50 * 1e3,
           s->p90 * 1e3, s->p99 * 1e3);
    printf("rate      %.0f calls/s, %.3f GB/s both ways\n", s->calls_per_second,
           s->bytes_per_second * 1e-9);
    printf("phases    receive %.4f, queue %.4f, plan %.4f, h2d %.4f, kernel "
           "%.4f, d2h %.4f ms (means)\n",
           sum->receive / s->n * 1e3, sum->queue / s->n * 1e3,
           sum->plan / s->n * 1e3, sum->h2d / s->n * 1e3,
           sum->kernel / s->n * 1e3, sum->d2h / s->n * 1e3);
}

static int report(const struct bench *bench, const struct worker *workers)
{
    struct summary s = {.answer_bytes = workers[0].answer_bytes};
    double *all = malloc(sizeof *all * MAX_SAMPLES);
    if (!all)
        return fail_text("no memory for %d samples", MAX_SAMPLES);
    for (int i = 0; i < bench->n_connections; i++) {
        for (int j = 0; j < workers[i].n && s.n < MAX_SAMPLES; j++)
            all[s.n++] = workers[i].sample[j];
        add_timing(&s.sum, &workers[i].sum);
    }
    qsort(all, (size_t)s.n, sizeof *all, compare);
    s.p50 = all[s.n / 2];
    s.p90 = all[s.n * 9 / 10];
    s.p99 = all[s.n * 99 / 100];
    s.calls_per_second = s.n / (s.sum.wall / bench->n_connections);
    s.bytes_per_second =
        s.calls_per_second * (double)(bench->bytes + s.answer_bytes);
    if (bench->ctl->is_json)
        report_json(bench, &s);
    else
        report_text(bench, &s);
    free(all);
    return EXIT_SUCCESS;
}

/* Starts a thread for each connection: how many were. */
static int start_workers(struct bench *bench, struct worker *workers)
{
    for (int i = 0; i < bench->n_connections; i++) {
        struct worker *worker = &workers[i];
        worker->bench = bench;
        worker->sample = malloc(sizeof(double) * MAX_SAMPLES);
        if (!worker->sample ||
            pthread_create(&worker->thread, NULL, work, worker)) {
            free(worker->sample);
            fail_text("cannot start connection %d of %d: no memory or no "
                      "thread",
                      i + 1, bench->n_connections);
            atomic_fetch_add(&bench->n_failed, 1);
            return i;
        }
    }
    return bench->n_connections;
}

static void wait_for_end(struct bench *bench)
{
    struct progress progress;
    double left;
    progress_start(&progress);
    while ((left = bench->end_seconds - progress_now_seconds()) > 0 &&
           atomic_load(&bench->n_failed) == 0) {
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        progress_show(&progress, "measuring", bench->seconds - left,
                      bench->seconds);
    }
    progress_end(&progress);
}

static int run_workers(struct bench *bench)
{
    struct worker *workers =
        must_have(calloc((size_t)bench->n_connections, sizeof *workers));
    bench->end_seconds = progress_now_seconds() + bench->seconds;
    int n_started = start_workers(bench, workers), code = EXIT_SUCCESS;
    wait_for_end(bench);
    for (int i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    if (n_started < bench->n_connections)
        code = EXIT_FAILURE;
    for (int i = 0; i < n_started && code == EXIT_SUCCESS; i++)
        if (workers[i].has_failed)
            code = fail(&workers[i].error);
    if (code == EXIT_SUCCESS)
        code = report(bench, workers);
    for (int i = 0; i < n_started; i++)
        free(workers[i].sample);
    free(workers);
    return code;
}

static bool set_dtype(struct bench *bench, const char *text)
{
    static const struct {
        const char *name;
        enum roped_dtype dtype;
    } names[] = {{"f32", ROPED_F32}, {"f16", ROPED_F16}, {"bf16", ROPED_BF16}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(text, names[i].name) == 0) {
            bench->dtype = names[i].dtype;
            return true;
        }
    return false;
}

static bool set_seconds(struct bench *bench, const char *text)
{
    char *end;
    bench->seconds = strtod(text, &end);
    return end != text && *end == '\0' && bench->seconds > 0 &&
           bench->seconds <= 1e6;
}

static bool set_connections(struct bench *bench, const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);
    bench->n_connections = (int)n;
    return end != text && *end == '\0' && n >= 1 && n <= MAX_CONNECTIONS;
}

static const struct {
    const char *name;
    bool (*set)(struct bench *bench, const char *text);
    const char *expected;
} options[] = {{"dtype", set_dtype, "f32, f16 or bf16"},
               {"seconds", set_seconds, "a time above 0"},
               {"connections", set_connections, "1 to 256"}};

/* One of the options above, or a parameter of the operator. */
static int take_option(struct bench *bench, const struct option *option)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strcmp(option->name, options[i].name) != 0)
            continue;
        if (option->value && options[i].set(bench, option->value))
            return EXIT_SUCCESS;
        return usage("bench", "option '--%s': '%s', expected %s", option->name,
                     option->value ? option->value : "", options[i].expected);
    }
    return add_parameter("bench", &bench->call, option, &bench->query);
}

/* EXIT_SUCCESS, or the exit code after saying what is wrong. */
static int read_arguments(struct bench *bench, int argc, char **argv)
{
    struct option option;
    int code = EXIT_SUCCESS;
    if (argc < 2 || argv[1][0] == '-')
        return usage("bench", "no operator: 'ropectl ops' lists them");
    bench->op = find_op(argv[1]);
    if (!bench->op)
        return EXIT_USAGE;
    roped_call_init(&bench->call, bench->op);
    for (int at = 2; at < argc && !code; at++)
        code = read_option(argc, argv, &at, &option)
                   ? take_option(bench, &option)
                   : bench_size_add(&bench->sizes, bench->op, argv[at]);
    return code;
}

int command_bench(const struct ropectl *ctl, int argc, char **argv)
{
    static struct bench bench;
    struct roped_error err;
    bench.ctl = ctl;
    bench.dtype = ROPED_BF16;
    bench.seconds = 3;
    bench.n_connections = 1;
    int code = read_arguments(&bench, argc, argv);
    if (!code && bench_tensors_make(&bench.call, bench.dtype, &bench.sizes,
                                    &bench.body, &bench.bytes, &err))
        code = usage("bench", "%s", err.text);
    if (!code)
        code = run_workers(&bench);
    free(bench.body);
    free(bench.query);
    return code;
}
