/*
 * bench_ops.c - how fast each operator runs at model shapes, as a share of a
 * one-pass copy of the same bytes measured in the same run.
 *
 *     bench_ops [--backend cpu|cuda] [--filter TEXT] [--json FILE]
 *               [--threads N] [--cpu-time] [--no-check] [--list]
 *               [--sizes] [--sweep [--random N] [--sample N] [--seed N]]
 *               [--rows FILE]
 *     bench_ops compare OLD.jsonl NEW.jsonl    see compare.h
 *
 * --list: what the rows are, in FILE, and nothing is measured.
 * --sizes: three operators from 16 KiB to 1 GiB, instead of model shapes.
 * --sweep: the shapes of sweep.h instead, or N of them, by the seed; with
 * --random N random ones alone, a quarter of them gradients of binary
 * functions. Beside PyTorch: sweep.py.
 * --rows: those of a file (rows_file.h), for shapes of your own.
 * Buffers rotate past the last-level cache for large work. Every output is
 * compared with the CPU backend's in the same run.
 */
#include "bench/compare.h"
#include "bench/rows_file.h"
#include "bench/sweep.h"
#include "bench/timing.h"
#include "kernel/case.h"
#include "kernel/random.h"
#include "kernel/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 64 };

struct options {
    const char *backend, *filter, *rows;
    FILE *json;
    int n_threads;
    uint64_t seed;
    int random; /* shapes of a sweep; 0: those of models, too */
    int sample; /* of these to measure; 0: all */
    bool is_checked, is_cpu_time, is_sizes, is_sweep, is_list;
};

/* One row's calls, a device copy per buffer set. */
struct bench {
    struct timing *timing;
    struct roped_call host;
    struct roped_call set[MAX_SETS];
    int n_sets;
    void *memory[MAX_SETS];
    float *table;
    int64_t bytes;  /* one pass over inputs and outputs */
    int64_t stride; /* of inputs that may have one, in the sets; 0: packed */
};

static void must(enum roped_status status, const char *what,
                 const struct roped_error *err)
{
    if (status == ROPED_OK)
        return;
    fprintf(stderr, "bench_ops: %s: %s\n", what, err->text);
    exit(EXIT_FAILURE);
}

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + 255) / 256 * 256;
}

/* The updated input that this output is, or -1. */
static int updated_by(const struct roped_op *op, int output)
{
    int input = roped_op_input(op, op->out[output].name);
    return input >= 0 && roped_op_updates(op, input) == output ? input : -1;
}

/* Of every tensor, and room for the copy's second half to start aligned. */
static size_t call_bytes(const struct roped_call *call)
{
    size_t bytes = 256 + aligned((int64_t)roped_call_aux_bytes(call));
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        if (roped_tensor_given(&call->in[i]))
            bytes += aligned(roped_tensor_span(&call->in[i]));
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        if (roped_tensor_given(&call->out[i]))
            bytes += aligned(roped_tensor_bytes(&call->out[i]));
    return bytes;
}

/* Room behind a set's tensors: copies between calls must not change inputs. */
static size_t copy_room(const struct bench *bench)
{
    return timing_in_pairs(bench->timing) ? aligned(bench->bytes / 2) : 0;
}

/* The tensor's values as its stride lays them out: malloc. */
static void *spread(const struct roped_tensor *tensor)
{
    size_t element = roped_dtype_bytes(tensor->dtype);
    size_t token = (size_t)roped_tensor_token(tensor) * element;
    size_t stride = tensor->stride ? (size_t)tensor->stride * element : token;
    unsigned char *image = calloc(1, (size_t)roped_tensor_span(tensor));
    for (int64_t i = 0; image && i < roped_tensor_tokens(tensor); i++)
        memcpy(image + (size_t)i * stride,
               (unsigned char *)tensor->data + (size_t)i * token, token);
    return image;
}

static void place_input(struct bench *bench, struct roped_tensor *tensor,
                        unsigned char *at)
{
    struct roped_error err = {.text = ""};
    void *image = tensor->stride ? spread(tensor) : NULL;
    must(timing_api(bench->timing)
             ->upload(timing_queue(bench->timing), at,
                      image ? image : tensor->data,
                      (size_t)roped_tensor_span(tensor), &err),
         "upload", &err);
    must(timing_api(bench->timing)->wait(timing_queue(bench->timing), &err),
         "upload", &err);
    free(image);
    tensor->data = at;
}

/* Puts one copy of the host call's tensors into device memory. */
static void place_set(struct bench *bench, int set)
{
    struct roped_error err = {.text = ""};
    const struct roped_backend_api *api = timing_api(bench->timing);
    struct roped_queue *queue = timing_queue(bench->timing);
    struct roped_call *call = &bench->set[set];
    *call = bench->host;
    for (int i = 0; i < call->n_in; i++)
        if (call->op->in[i].flags & ROPED_STRIDED)
            call->in[i].stride = bench->stride;
    must(api->device_alloc(timing_backend(bench->timing),
                           call_bytes(call) + copy_room(bench),
                           &bench->memory[set], &err),
         "device memory", &err);
    unsigned char *at = bench->memory[set];
    for (int i = 0; i < ROPED_MAX_INPUTS; i++) {
        struct roped_tensor *tensor = &call->in[i];
        if (!roped_tensor_given(tensor))
            continue;
        place_input(bench, tensor, at);
        at += aligned(roped_tensor_span(tensor));
    }
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++) {
        if (!roped_tensor_given(&call->out[i]))
            continue;
        int updated = updated_by(call->op, i);
        if (updated >= 0) {
            call->out[i].data = call->in[updated].data;
            continue;
        }
        call->out[i].data = at;
        at += aligned(roped_tensor_bytes(&call->out[i]));
    }
    size_t aux_bytes = roped_call_aux_bytes(call);
    if (aux_bytes) {
        must(api->upload(queue, at, call->aux, aux_bytes, &err), "upload",
             &err);
        call->aux = at;
    }
    call->table.data = bench->table;
    must(api->wait(queue, &err), "upload", &err);
}

static void build_table(struct bench *bench)
{
    struct roped_error err = {.text = ""};
    const struct roped_backend_api *api = timing_api(bench->timing);
    const struct roped_table_use *use = &bench->host.table;
    void *memory;
    if (!use->wanted)
        return;
    must(api->device_alloc(timing_backend(bench->timing),
                           (size_t)(use->rows * 2 * use->angles.n_pairs) *
                               sizeof(float),
                           &memory, &err),
         "table", &err);
    bench->table = memory;
    must(api->build_table(timing_queue(bench->timing), &use->angles, 0,
                          use->rows, bench->table, &err),
         "table", &err);
    must(api->wait(timing_queue(bench->timing), &err), "table", &err);
}

static void prepare(struct bench *bench, const struct bench_row *row)
{
    struct roped_error err = {.text = ""};
    bench_build(&bench->host, row);
    size_t aux_bytes = roped_call_aux_bytes(&bench->host);
    bench->host.aux =
        aux_bytes ? aligned_alloc(64, (aux_bytes + 63) / 64 * 64) : NULL;
    must(roped_call_plan(&bench->host, &err), row->name, &err);
    build_table(bench);
    bench->bytes = bench_bytes(&bench->host);
    bench->stride = row->of;
    size_t cache = timing_cache_bytes(bench->timing);
    size_t one = (size_t)bench->bytes;
    /* work that fits the cache is measured where the daemon meets it: warm */
    bench->n_sets = one < cache / 8 ? 4 : (int)(3 * cache / one) + 2;
    if (bench->n_sets > MAX_SETS)
        bench->n_sets = MAX_SETS;
    for (int i = 0; i < bench->n_sets; i++)
        place_set(bench, i);
}

static void finish(struct bench *bench)
{
    const struct roped_backend_api *api = timing_api(bench->timing);
    for (int i = 0; i < bench->n_sets; i++)
        api->device_free(timing_backend(bench->timing), bench->memory[i]);
    api->device_free(timing_backend(bench->timing), bench->table);
    case_free(&bench->host);
    free(bench->host.aux);
    struct timing *timing = bench->timing;
    memset(bench, 0, sizeof *bench);
    bench->timing = timing;
}

static enum roped_status run_op(void *context, int set,
                                struct roped_queue *queue,
                                struct roped_error *err)
{
    struct bench *bench = context;
    return timing_api(bench->timing)->launch(queue, &bench->set[set], err);
}

/* Elements of the outputs that differ from the CPU backend's, in bits. */
static double share_of_different_bits(struct bench *bench)
{
    static struct runner cpu;
    struct roped_error err = {.text = ""};
    struct runner_options options = {.use_table = bench->table != NULL};
    const struct roped_backend_api *api = timing_api(bench->timing);
    static struct roped_call expected;
    int64_t n = 0, n_different = 0;
    if (!cpu.api && !runner_open(&cpu, "cpu"))
        exit(EXIT_FAILURE);
    expected = bench->host;
    must(runner_run(&cpu, &expected, &options, &err), "check", &err);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++) {
        const struct roped_tensor *tensor = &expected.out[i];
        if (!roped_tensor_given(tensor))
            continue;
        size_t bytes = (size_t)roped_tensor_bytes(tensor);
        size_t step = roped_dtype_bytes(tensor->dtype);
        unsigned char *found = runner_alloc(bytes);
        must(api->download(timing_queue(bench->timing), found,
                           bench->set[0].out[i].data, bytes, &err),
             "check", &err);
        must(api->wait(timing_queue(bench->timing), &err), "check", &err);
        for (size_t at = 0; at < bytes; at += step, n++)
            n_different +=
                memcmp(found + at, (unsigned char *)tensor->data + at, step) !=
                0;
        free(found);
    }
    runner_free_outputs(&expected);
    return n ? (double)n_different / (double)n : 0;
}

/* Copies read half of the bytes and write half: into their room, if any. */
static void aim_copy(struct bench *bench, struct timing_copy *copy,
                     const void **from, void **to)
{
    size_t half = aligned(bench->bytes / 2 - 127);
    size_t at = copy_room(bench) ? call_bytes(&bench->set[0]) : half;
    for (int i = 0; i < bench->n_sets; i++) {
        from[i] = bench->memory[i];
        to[i] = (unsigned char *)bench->memory[i] + at;
    }
    *copy =
        (struct timing_copy){bench->timing, from, to, (size_t)bench->bytes / 2};
}

static void measure_copy(struct bench *bench, int n_launches, double *seconds,
                         double *spread)
{
    struct roped_error err = {.text = ""};
    const void *from[MAX_SETS];
    void *to[MAX_SETS];
    struct timing_copy copy;
    aim_copy(bench, &copy, from, to);
    must(timing_measure(bench->timing, timing_copy, &copy, bench->n_sets,
                        n_launches, seconds, spread, &err),
         "copy", &err);
}

static struct timing_pair measure_pair(struct bench *bench, int n_launches)
{
    struct roped_error err = {.text = ""};
    const void *from[MAX_SETS];
    void *to[MAX_SETS];
    struct timing_copy copy;
    struct timing_pair pair;
    aim_copy(bench, &copy, from, to);
    must(timing_measure_pair(bench->timing, run_op, bench, &copy, bench->n_sets,
                             n_launches, &pair, &err),
         "measurement", &err);
    return pair;
}

/* The goals of rows are a GPU's; a CPU's is 0.8 beyond its cache. */
static double goal_of(const struct bench *bench, const struct bench_row *row)
{
    if (!timing_in_pairs(bench->timing))
        return row->goal;
    return (size_t)bench->bytes > timing_cache_bytes(bench->timing) ? 0.8 : 0;
}

/* Of a row, as a share of the copy. */
struct result {
    char name[240];
    double share;
    bool is_missed;
};

static struct result run_row(struct bench *bench, const struct bench_row *row,
                             const struct options *options)
{
    struct roped_error err = {.text = ""};
    struct result result = {.share = 0};
    if (options->is_list) {
        if (options->json) {
            rows_file_write_row(options->json, row);
            fputs("}\n", options->json);
        }
        return result;
    }
    double seconds, spread, copy_seconds, copy_spread, share;
    prepare(bench, row);
    double goal = goal_of(bench, row);
    /* of large rows each set once: a CPU is slower, and leaves no gaps */
    int64_t large = timing_in_pairs(bench->timing) ? 4 << 20 : 64 << 20;
    int n_launches = bench->bytes < large ? 64 : bench->n_sets;
    double different = -1;
    if (timing_in_pairs(bench->timing)) {
        struct timing_pair pair = measure_pair(bench, n_launches);
        seconds = pair.seconds, spread = pair.spread;
        copy_seconds = pair.copy_seconds, copy_spread = pair.copy_spread;
        share = pair.share;
        if (options->is_checked)
            different = share_of_different_bits(bench);
    } else {
        must(timing_measure(bench->timing, run_op, bench, bench->n_sets,
                            n_launches, &seconds, &spread, &err),
             row->name, &err);
        if (options->is_checked)
            different = share_of_different_bits(bench);
        measure_copy(bench, n_launches, &copy_seconds, &copy_spread);
        share = copy_seconds / seconds;
    }
    double gigabytes = (double)bench->bytes / seconds * 1e-9;
    printf("%-42s %9.2f us %8.2f us %7.0f GB/s  %5.3f  %s  +-%.1f%%", row->name,
           seconds * 1e6, copy_seconds * 1e6, gigabytes, share,
           goal == 0       ? "    "
           : share >= goal ? "met "
                           : "MISS",
           spread * 100);
    if (options->is_checked)
        printf("  bits differ %.2g", different);
    putchar('\n');
    fflush(stdout);
    if (options->json) {
        rows_file_write_row(options->json, row);
        fprintf(options->json,
                ",\"backend\":\"%s\",\"us\":%.4f,\"copy_us\":%.4f,"
                "\"share\":%.4f,\"goal\":%.2f,\"spread\":%.4f,"
                "\"copy_spread\":%.4f,\"bytes\":%lld,\"sets\":%d,"
                "\"bits_differ\":%.3g}\n",
                options->backend, seconds * 1e6, copy_seconds * 1e6, share,
                goal, spread, copy_spread, (long long)bench->bytes,
                bench->n_sets, different);
    }
    finish(bench);
    snprintf(result.name, sizeof result.name, "%s", row->name);
    result.share = share;
    result.is_missed = goal > 0 && share < goal;
    return result;
}

static bool is_wanted(const struct options *options, const char *name)
{
    return !options->filter || strstr(name, options->filter);
}

static int run_rows(struct bench *bench, const struct options *options)
{
    int n_missed = 0;
    for (int i = 0; i < bench_n_rows; i++)
        if (is_wanted(options, bench_rows[i].name))
            n_missed += run_row(bench, &bench_rows[i], options).is_missed;
    return n_missed;
}

/* Each with the bytes that a row of it reads and writes. */
static int run_sizes(struct bench *bench, const struct options *options)
{
    static const struct {
        const char *op, *rows, *sizes, *inputs;
        int64_t bytes;
    } op[] = {
        {"rmsnorm", "rows", "h=4096", "weight", 4 * 4096},
        {"add_rmsnorm", "rows", "h=4096", "weight", 8 * 4096},
        {"rope", "n", "hq=32 hk=8 d=128", "k positions", 4 * 40 * 128},
    };
    int n_missed = 0;
    for (size_t i = 0; i < sizeof op / sizeof *op; i++) {
        for (int64_t kib = 16; kib <= 1 << 20; kib *= 4) {
            char name[64], sizes[64];
            int64_t n = (kib << 10) / op[i].bytes;
            snprintf(name, sizeof name, "%s bf16, %lld KiB", op[i].op,
                     (long long)kib);
            snprintf(sizes, sizeof sizes, "%s=%lld %s", op[i].rows,
                     (long long)n, op[i].sizes);
            const struct bench_row row = {name,  op[i].op,     ROPED_BF16,
                                          sizes, op[i].inputs, NULL};
            if (n > 0 && is_wanted(options, name))
                n_missed += run_row(bench, &row, options).is_missed;
        }
    }
    return n_missed;
}

struct sweep_run {
    struct bench *bench;
    const struct options *options;
    struct result *results;
    int n, n_missed;
    struct random_source source;
    int n_ahead, n_to_take; /* rows to come, and how many of them to measure */
};

static void count_row(void *context, const struct bench_row *row)
{
    struct sweep_run *run = context;
    run->n_ahead += is_wanted(run->options, row->name);
}

static void run_swept(void *context, const struct bench_row *row)
{
    struct sweep_run *run = context;
    if (!is_wanted(run->options, row->name) ||
        random_int(&run->source, 1, run->n_ahead--) > run->n_to_take)
        return;
    run->n_to_take--;
    run->results =
        realloc(run->results, (size_t)(run->n + 1) * sizeof *run->results);
    if (!run->results)
        exit(EXIT_FAILURE);
    run->results[run->n] = run_row(run->bench, row, run->options);
    run->n_missed += run->results[run->n++].is_missed;
}

static int by_share(const void *a, const void *b)
{
    double x = ((const struct result *)a)->share;
    double y = ((const struct result *)b)->share;
    return x < y ? -1 : x > y;
}

/* How many rows have which share of the copy, and those with the least. */
static void print_shares(const struct sweep_run *run)
{
    static const double bounds[] = {1.0, 0.97, 0.9, 0.8};
    printf("%d rows, share of a copy:", run->n);
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
        int n = 0;
        for (int i = 0; i < run->n; i++)
            n += run->results[i].share >= bounds[b];
        printf("%s %.2f or more %d", b ? "," : "", bounds[b], n);
    }
    puts(run->n ? "; the least:" : "");
    for (int i = 0; i < run->n && i < 10; i++)
        printf("  %.3f  %s\n", run->results[i].share, run->results[i].name);
}

static void sweep(const struct options *options, sweep_visit_fn *visit,
                  struct sweep_run *run)
{
    const int of_binary = options->random / 4;
    sweep_models(options->seed, options->random - of_binary, visit, run);
    if (of_binary || !options->random)
        sweep_backward(options->seed, of_binary, visit, run);
}

static int run_sweep(struct bench *bench, const struct options *options)
{
    struct sweep_run run = {
        .bench = bench, .options = options, .source = {options->seed}};
    sweep(options, count_row, &run);
    run.n_to_take = options->sample ? options->sample : run.n_ahead;
    sweep(options, run_swept, &run);
    if (run.n)
        qsort(run.results, (size_t)run.n, sizeof *run.results, by_share);
    if (!run.options->is_list)
        print_shares(&run);
    free(run.results);
    return run.n_missed;
}

static void run_row_of_file(void *context, const struct bench_row *row)
{
    struct sweep_run *run = context;
    if (is_wanted(run->options, row->name))
        run->n_missed += run_row(run->bench, row, run->options).is_missed;
}

static int run_file(struct bench *bench, const struct options *options)
{
    struct sweep_run run = {.bench = bench, .options = options};
    if (!rows_file_read(options->rows, run_row_of_file, &run, stderr))
        exit(EXIT_FAILURE);
    return run.n_missed;
}

static void usage(void)
{
    fprintf(stderr, "usage: bench_ops [--backend cpu|cuda] [--filter TEXT] "
                    "[--json FILE] [--threads N] [--cpu-time] "
                    "[--no-check] [--list] [--sizes] "
                    "[--sweep [--random N] [--sample N] [--seed N]] "
                    "[--rows FILE]\n"
                    "       bench_ops compare OLD.jsonl NEW.jsonl\n");
    exit(2);
}

static struct options read_options(int argc, char **argv)
{
    struct options options = {.backend = "cpu", .seed = 1, .is_checked = true};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--no-check") == 0) {
            options.is_checked = false;
            continue;
        }
        if (strcmp(argv[i], "--cpu-time") == 0) {
            options.is_cpu_time = true;
            continue;
        }
        if (strcmp(argv[i], "--sizes") == 0) {
            options.is_sizes = true;
            continue;
        }
        if (strcmp(argv[i], "--sweep") == 0) {
            options.is_sweep = true;
            continue;
        }
        if (strcmp(argv[i], "--list") == 0) {
            options.is_list = true;
            continue;
        }
        if (i + 1 >= argc)
            usage();
        const char *value = argv[++i];
        if (strcmp(argv[i - 1], "--backend") == 0)
            options.backend = value;
        else if (strcmp(argv[i - 1], "--filter") == 0)
            options.filter = value;
        else if (strcmp(argv[i - 1], "--rows") == 0)
            options.rows = value;
        else if (strcmp(argv[i - 1], "--threads") == 0)
            options.n_threads = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--seed") == 0)
            options.seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--random") == 0)
            options.random = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--sample") == 0)
            options.sample = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--json") == 0)
            options.json = fopen(value, "w");
        else
            usage();
    }
    return options;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    if (argc > 1 && strcmp(argv[1], "compare") == 0) {
        if (argc != 4)
            usage();
        return compare_files(argv[2], argv[3], stdout, stderr);
    }
    struct options options = read_options(argc, argv);
    bench.timing = timing_open(options.backend, options.n_threads);
    if (options.is_cpu_time)
        timing_use_cpu_time(bench.timing);
    if (!options.is_list)
        printf("%-42s %12s %11s %12s  %5s  goal\n", "row", "operator", "copy",
               "rate", "share");
    int n_missed = options.rows       ? run_file(&bench, &options)
                   : options.is_sizes ? run_sizes(&bench, &options)
                   : options.is_sweep ? run_sweep(&bench, &options)
                                      : run_rows(&bench, &options);
    if (!options.is_list)
        printf("%d goals missed\n", n_missed);
    if (options.json)
        fclose(options.json);
    timing_close(bench.timing);
    return EXIT_SUCCESS;
}
