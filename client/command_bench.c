/*
 * command_bench.c - bench: the same call again and again, from one or more
 * connections, with random tensors made from the operator's descriptor.
 */
#include "progress.h"
#include "query.h"
#include "ropectl.h"
#include "wire/safetensors.h"

#include <roped/numeric.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DIMS = 16, MAX_CONNECTIONS = 256, MAX_SAMPLES = 1 << 20 };

/* Sizes of dim symbols where none is given: a small decode step. */
static const struct {
    const char *symbol;
    int64_t size;
} defaults[] = {{"n", 4},     {"hq", 32},  {"hk", 8},   {"d", 128}, {"r", 64},
                {"p", 64},    {"h", 4096}, {"rows", 4}, {"bs", 1},  {"s", 128},
                {"half", 64}, {"b", 1},    {"b1", 2}};

struct bench {
    const struct ropectl *ctl;
    const struct roped_op *op;
    enum roped_dtype dtype;
    double seconds;
    int n_connections;
    struct buffer query;
    int n_dims;
    char symbol[MAX_DIMS][16];
    int64_t size[MAX_DIMS];
    unsigned char *body;
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
    uint64_t answer_bytes;
    struct roped_client_timing sum;
    struct roped_error error;
};

static int64_t size_of(const struct bench *bench, const char *symbol)
{
    for (int i = 0; i < bench->n_dims; i++)
        if (strcmp(bench->symbol[i], symbol) == 0)
            return bench->size[i];
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (strcmp(defaults[i].symbol, symbol) == 0)
            return defaults[i].size;
    return 4;
}

/* Optional inputs that a real call would have. */
static bool is_wanted(const struct roped_port *port)
{
    static const char *const names[] = {"k", "positions", "weight", "q_nope",
                                        "k_nope"};
    if (!(port->flags & ROPED_OPTIONAL))
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(port->name, names[i]) == 0)
            return true;
    return false;
}

static void fill(const struct roped_tensor *tensor, unsigned char *to)
{
    int64_t n = roped_tensor_elements(tensor);
    uint32_t state = 12345;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-23f - 1;
        int64_t position = i % 4096;
        if (tensor->dtype == ROPED_F32)
            memcpy(to + 4 * i, &value, 4);
        else if (tensor->dtype == ROPED_I64)
            memcpy(to + 8 * i, &position, 8);
        else {
            uint16_t code = tensor->dtype == ROPED_F16
                                ? roped_float_to_f16(value)
                                : roped_float_to_bf16(value);
            memcpy(to + 2 * i, &code, 2);
        }
    }
}

static enum roped_status build_body(struct bench *bench,
                                    struct roped_error *err)
{
    struct safetensors_output outputs[ROPED_MAX_INPUTS];
    struct roped_tensor tensor[ROPED_MAX_INPUTS];
    struct roped_shape_pattern pattern;
    struct buffer header;
    uint64_t data_bytes;
    int n = 0;
    for (int i = 0; i < roped_op_inputs(bench->op); i++) {
        const struct roped_port *port = &bench->op->in[i];
        uint32_t types = roped_op_types(bench->op, port);
        if (!is_wanted(port))
            continue;
        enum roped_status status = roped_port_pattern(port, 0, &pattern, err);
        if (status)
            return status;
        tensor[n] = (struct roped_tensor){
            .dtype =
                types & ROPED_SET(bench->dtype) ? bench->dtype : ROPED_I64};
        for (int j = 0; j < pattern.count; j++) {
            bool is_rows = strcmp(pattern.dim[j].name, "rows") == 0;
            if (!pattern.dim[j].is_pack || is_rows)
                tensor[n].dims[tensor[n].rank++] =
                    size_of(bench, pattern.dim[j].name);
        }
        outputs[n] = (struct safetensors_output){port->name, &tensor[n], 0};
        n++;
    }
    buffer_init(&header);
    enum roped_status status = safetensors_write_header(
        &header, outputs, n, NULL, 0, false, &data_bytes, err);
    if (status)
        return status;
    bench->bytes = header.bytes + data_bytes;
    bench->body = malloc(bench->bytes);
    if (!bench->body)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tensors");
    memcpy(bench->body, header.text, header.bytes);
    for (int i = 0; i < n; i++)
        fill(&tensor[i], bench->body + header.bytes + outputs[i].offset);
    buffer_fini(&header);
    return ROPED_OK;
}

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
        atomic_fetch_add(&bench->n_failed, 1);
        return NULL;
    }
    for (int i = -3; progress_now_seconds() < bench->end_seconds || i < 1;
         i++) {
        if (roped_client_call_bytes(client, bench->op->name, bench->query.text,
                                    bench->body, bench->bytes, &result,
                                    &worker->error)) {
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

static void report(const struct bench *bench, struct worker *workers)
{
    struct roped_client_timing sum = {0};
    double *all = malloc(sizeof *all * MAX_SAMPLES);
    int n = 0;
    for (int i = 0; i < bench->n_connections && all; i++) {
        for (int j = 0; j < workers[i].n && n < MAX_SAMPLES; j++)
            all[n++] = workers[i].sample[j];
        add_timing(&sum, &workers[i].sum);
    }
    if (n == 0) {
        free(all);
        return;
    }
    qsort(all, (size_t)n, sizeof *all, compare);
    double rate = n / (sum.wall / bench->n_connections);
    double bytes = (double)(bench->bytes + workers[0].answer_bytes);
    printf("%d calls, %d connections, %zu bytes in, %llu out\n", n,
           bench->n_connections, bench->bytes,
           (unsigned long long)workers[0].answer_bytes);
    printf("latency   p50 %.4f, p90 %.4f, p99 %.4f ms\n", all[n / 2] * 1e3,
           all[n * 9 / 10] * 1e3, all[n * 99 / 100] * 1e3);
    printf("rate      %.0f calls/s, %.3f GB/s both ways\n", rate,
           rate * bytes * 1e-9);
    printf("stages    receive %.4f, queue %.4f, plan %.4f, h2d %.4f, kernel "
           "%.4f, d2h %.4f ms (means)\n",
           sum.receive / n * 1e3, sum.queue / n * 1e3, sum.plan / n * 1e3,
           sum.h2d / n * 1e3, sum.kernel / n * 1e3, sum.d2h / n * 1e3);
    free(all);
}

static int run_workers(struct bench *bench)
{
    struct worker *workers =
        calloc((size_t)bench->n_connections, sizeof *workers);
    struct progress progress;
    int code = EXIT_SUCCESS, n_started = 0;
    if (!workers)
        return EXIT_FAILURE;
    progress_start(&progress);
    bench->end_seconds = progress_now_seconds() + bench->seconds;
    for (; n_started < bench->n_connections; n_started++) {
        struct worker *worker = &workers[n_started];
        worker->bench = bench;
        worker->sample = malloc(sizeof(double) * MAX_SAMPLES);
        if (!worker->sample ||
            pthread_create(&worker->thread, NULL, work, worker))
            break;
    }
    while (progress_now_seconds() < bench->end_seconds &&
           atomic_load(&bench->n_failed) == 0) {
        struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
        progress_show(&progress, "measuring",
                      bench->seconds -
                          (bench->end_seconds - progress_now_seconds()),
                      bench->seconds);
    }
    for (int i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    progress_end(&progress);
    for (int i = 0; i < n_started && code == EXIT_SUCCESS; i++)
        if (workers[i].error.status)
            code = fail(&workers[i].error);
    if (code == EXIT_SUCCESS)
        report(bench, workers);
    for (int i = 0; i < n_started; i++)
        free(workers[i].sample);
    free(workers);
    return code;
}

/* "hq=32" */
static bool read_dim(struct bench *bench, const char *argument)
{
    const char *equals = strchr(argument, '=');
    size_t length = equals ? (size_t)(equals - argument) : 0;
    if (argument[0] == '-' || length == 0 || length > 15 ||
        bench->n_dims == MAX_DIMS)
        return false;
    memcpy(bench->symbol[bench->n_dims], argument, length);
    bench->size[bench->n_dims++] = strtoll(equals + 1, NULL, 10);
    return true;
}

static bool read_dtype(struct bench *bench, const char *text)
{
    char name[16];
    size_t i = 0;
    for (; text[i] && i + 1 < sizeof name; i++)
        name[i] =
            (char)(text[i] >= 'a' && text[i] <= 'z' ? text[i] - 32 : text[i]);
    bench->dtype = roped_dtype_from_name(name, i);
    return (ROPED_SET(bench->dtype) & ROPED_FLOATS) != 0;
}

/* NULL, or the first argument that says nothing to it. */
static const char *read_arguments(struct bench *bench, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--dtype") == 0 && has_value) {
            if (!read_dtype(bench, argv[++i]))
                return argv[i];
        } else if (strcmp(argv[i], "--seconds") == 0 && has_value) {
            bench->seconds = strtod(argv[++i], NULL);
            if (!(bench->seconds > 0))
                return argv[i];
        } else if (strcmp(argv[i], "--connections") == 0 && has_value) {
            bench->n_connections = (int)strtol(argv[++i], NULL, 10);
            if (bench->n_connections < 1 ||
                bench->n_connections > MAX_CONNECTIONS)
                return argv[i];
        } else if (!query_add(&bench->query, argv[i]) &&
                   !read_dim(bench, argv[i])) {
            return argv[i];
        }
    }
    return NULL;
}

int command_bench(const struct ropectl *ctl, int argc, char **argv)
{
    static struct bench bench;
    struct roped_error err;
    bench.ctl = ctl;
    bench.dtype = ROPED_BF16;
    bench.seconds = 3;
    bench.n_connections = 1;
    if (argc < 2)
        return usage("bench", "no operator: 'ropectl ops' lists them");
    const char *bad = read_arguments(&bench, argc, argv);
    if (bad)
        return usage("bench", "'%s' is not understood", bad);
    bench.op = find_op(argv[1]);
    if (!bench.op)
        return EXIT_FAILURE;
    if (build_body(&bench, &err))
        return fail(&err);
    int code = run_workers(&bench);
    free(bench.body);
    buffer_fini(&bench.query);
    return code;
}
