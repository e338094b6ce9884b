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
#include <time.h>

enum { MAX_CONNECTIONS = 256, MAX_SAMPLES = 1 << 20 };

struct bench {
    const struct ropectl *ctl;
    struct bench_load load;
    const struct roped_op *op;
    struct roped_call call; /* its parameters */
    enum roped_dtype dtype;
    char *query;
    struct bench_sizes sizes;
    void *body;
    size_t bytes;
    double end_seconds;
    atomic_bool has_failed;
    atomic_int n_calls; /* measured */
    double *sample;     /* wall seconds of the first MAX_SAMPLES of them */
};

/* One connection. */
struct worker {
    struct bench *bench;
    pthread_t thread;
    struct roped_client *client; /* NULL: it could not be opened */
    size_t answer_bytes;
    struct roped_client_timing sum;
    enum roped_status status;
    struct roped_error error;
};

static void sum_timing(struct roped_client_timing *sum,
                       const struct roped_client_timing *timing)
{
#define PHASE(id, name, ...) sum->name += timing->name;
#define BODY_PHASE(...)      PHASE(__VA_ARGS__)
#include "phase.def"
    sum->wall += timing->wall;
}

static void add_call(struct worker *worker,
                     const struct roped_client_result *result)
{
    struct bench *bench = worker->bench;
    int i = atomic_fetch_add(&bench->n_calls, 1);
    if (i < MAX_SAMPLES)
        bench->sample[i] = result->timing.wall;
    sum_timing(&worker->sum, &result->timing);
    worker->answer_bytes = result->bytes;
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct bench *bench = worker->bench;
    struct roped_client_result result;
    worker->status = roped_client_open(&bench->ctl->options, &worker->client,
                                       &worker->error);
    for (int i = -3; !worker->status; i++) { /* the first three warm up */
        if (i > 0 && progress_now_seconds() >= bench->end_seconds)
            break;
        worker->status = roped_client_call_bytes(
            worker->client, bench->load.op, bench->load.query, bench->load.body,
            bench->load.bytes, &result, &worker->error);
        if (worker->status)
            break;
        if (i >= 0)
            add_call(worker, &result);
        roped_client_result_free(&result);
    }
    if (worker->status)
        atomic_store(&bench->has_failed, true);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What all connections together saw. */
struct summary {
    int n;                /* calls */
    double p50, p90, p99; /* seconds */
    double calls_per_second, bytes_per_second;
    size_t answer_bytes;
    struct roped_client_timing sum;
};

static int print_summary(const struct bench *bench, const struct summary *s)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, bench->load.kind, bench->load.name);
    cJSON_AddNumberToObject(document, "calls", s->n);
    cJSON_AddNumberToObject(document, "connections", bench->load.n_connections);
    cJSON_AddNumberToObject(document, "bytes_in", (double)bench->load.bytes);
    cJSON_AddNumberToObject(document, "bytes_out", (double)s->answer_bytes);
    cJSON *latency = cJSON_AddObjectToObject(document, "latency_ms");
    cJSON_AddNumberToObject(latency, "p50", s->p50 * 1e3);
    cJSON_AddNumberToObject(latency, "p90", s->p90 * 1e3);
    cJSON_AddNumberToObject(latency, "p99", s->p99 * 1e3);
    cJSON_AddNumberToObject(document, "calls_per_second", s->calls_per_second);
    cJSON_AddNumberToObject(document, "bytes_per_second", s->bytes_per_second);
    add_timing(document, "mean_ms", &s->sum, s->n);
    return print_document(bench->ctl, document);
}

static int report(struct bench *bench, const struct worker *workers)
{
    struct summary s = {.n = atomic_load(&bench->n_calls),
                        .answer_bytes = workers[0].answer_bytes};
    size_t n = (size_t)(s.n < MAX_SAMPLES ? s.n : MAX_SAMPLES);
    for (int i = 0; i < bench->load.n_connections; i++)
        sum_timing(&s.sum, &workers[i].sum);
    qsort(bench->sample, n, sizeof *bench->sample, compare);
    s.p50 = bench->sample[n / 2];
    s.p90 = bench->sample[n * 9 / 10];
    s.p99 = bench->sample[n * 99 / 100];
    s.calls_per_second = s.n / (s.sum.wall / bench->load.n_connections);
    s.bytes_per_second =
        s.calls_per_second * (double)(bench->load.bytes + s.answer_bytes);
    return print_summary(bench, &s);
}

static void wait_for_end(struct bench *bench)
{
    double left;
    progress_start();
    while ((left = bench->end_seconds - progress_now_seconds()) > 0 &&
           !atomic_load(&bench->has_failed)) {
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        progress_show("measuring", bench->load.seconds - left,
                      bench->load.seconds);
    }
    progress_end();
}

/* A thread for each connection. */
static int run_workers(struct bench *bench)
{
    int n = 0, code = EXIT_SUCCESS;
    struct worker *workers =
        must_have(calloc((size_t)bench->load.n_connections, sizeof *workers));
    bench->sample = must_have(malloc(MAX_SAMPLES * sizeof *bench->sample));
    bench->end_seconds = progress_now_seconds() + bench->load.seconds;
    while (n < bench->load.n_connections && !code) {
        workers[n].bench = bench;
        if (!pthread_create(&workers[n].thread, NULL, work, &workers[n])) {
            n++;
            continue;
        }
        code = fail_text("cannot start connection %d of %d: no thread", n + 1,
                         bench->load.n_connections);
        atomic_store(&bench->has_failed, true);
    }
    wait_for_end(bench);
    for (int i = 0; i < n; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].status && !code)
            code = workers[i].client
                       ? failed_request(workers[i].client, &workers[i].error)
                       : fail(&workers[i].error);
        roped_client_close(workers[i].client);
    }
    if (!code)
        code = report(bench, workers);
    free(bench->sample);
    free(workers);
    return code;
}

int bench_run(const struct ropectl *ctl, const struct bench_load *load)
{
    static struct bench bench;
    bench.ctl = ctl;
    bench.load = *load;
    return run_workers(&bench);
}

bool bench_set_seconds(void *target, const char *text)
{
    return read_number(text, 1e6, &((struct bench_load *)target)->seconds);
}

bool bench_set_connections(void *target, const char *text)
{
    struct bench_load *load = target;
    char *end;
    long n = strtol(text, &end, 10);
    load->n_connections = (int)n;
    return end != text && *end == '\0' && n >= 1 && n <= MAX_CONNECTIONS;
}

static bool set_dtype(void *target, const char *text)
{
    return bench_dtype_read(text, &((struct bench *)target)->dtype);
}

static bool set_seconds(void *target, const char *text)
{
    return bench_set_seconds(&((struct bench *)target)->load, text);
}

static bool set_connections(void *target, const char *text)
{
    return bench_set_connections(&((struct bench *)target)->load, text);
}

static const struct option_row options[] = {
    {"dtype", set_dtype, "f32, f16 or bf16"},
    {"seconds", set_seconds, "a time above 0"},
    {"connections", set_connections, "1 to 256"},
    {NULL}};

/* One of the options above, or a parameter of the operator. */
static int take_argument(struct bench *bench, const struct option *option)
{
    int code = take_option("bench", options, option, bench);
    return code >= 0 ? code
                     : add_parameter("bench", options, &bench->call, option,
                                     &bench->query);
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
        code =
            read_option(argc, argv, &at, &option)
                ? take_argument(bench, &option)
                : bench_size_add("bench", &bench->sizes, bench->op, argv[at]);
    return code;
}

int command_bench(const struct ropectl *ctl, int argc, char **argv)
{
    static struct bench bench;
    struct roped_error err;
    bench.ctl = ctl;
    bench.dtype = ROPED_BF16;
    bench.load = (struct bench_load){
        .kind = "operator", .seconds = 3, .n_connections = 1};
    int code = read_arguments(&bench, argc, argv);
    if (!code && bench_tensors_make(&bench.call, bench.dtype, &bench.sizes,
                                    &bench.body, &bench.bytes, &err))
        code = usage("bench", "%s", err.text);
    if (!code) {
        bench.load.op = bench.load.name = bench.op->name;
        bench.load.query = bench.query;
        bench.load.body = bench.body;
        bench.load.bytes = bench.bytes;
        code = run_workers(&bench);
    }
    free(bench.body);
    free(bench.query);
    return code;
}
