/*
 * metrics.c - counters, histograms and their exposition.
 */
#include "metrics.h"

#include "gpu.h"
#include "log.h"

#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Upper bounds of the buckets in nanoseconds and as they are printed: always
 * with the same text, or a series would change its name. */
static const struct {
    uint64_t ns;
    const char *le;
} buckets[] = {{5000, "5e-06"},    {10000, "1e-05"},   {25000, "2.5e-05"},
               {50000, "5e-05"},   {100000, "0.0001"}, {250000, "0.00025"},
               {500000, "0.0005"}, {1000000, "0.001"}, {2500000, "0.0025"},
               {5000000, "0.005"}, {10000000, "0.01"}, {25000000, "0.025"},
               {50000000, "0.05"}, {100000000, "0.1"}, {250000000, "0.25"},
               {500000000, "0.5"}, {1000000000, "1"},  {2500000000, "2.5"},
               {5000000000, "5"},  {10000000000, "10"}};
enum { N_BUCKETS = sizeof buckets / sizeof *buckets };

/* Buckets are not cumulative here; the one past the last is +Inf. */
struct histogram {
    atomic_uint_least64_t bucket[N_BUCKETS + 1];
    atomic_uint_least64_t sum_ns;
};

static const char *const phase_names[N_PHASES] = {
#define BODY_PHASE(id, name, meaning)       #name,
#define PHASE(id, name, statistic, meaning) #name,
#include "phase.def"
};
static const char *const transport_names[METRICS_TRANSPORTS] = {"v1", "v2"};
static const int http_codes[] = {200, 201, 204, 400, 401, 403, 404, 405,
                                 410, 412, 413, 415, 421, 500, 501, 503};
enum { N_CODES = sizeof http_codes / sizeof *http_codes };

struct op_metrics {
    atomic_bool is_called; /* its series are there from then on */
    atomic_uint_least64_t calls[ROPED_STATUS_COUNT][METRICS_TRANSPORTS];
    struct histogram duration;
    struct histogram phase[N_PHASES];
    atomic_uint_least64_t request_bytes, response_bytes;
    /* of successful calls, for the v2 statistics */
    atomic_uint_least64_t success_ns, fail_ns, last_ms;
    atomic_uint_least64_t success_phase_ns[N_PHASES];
};

struct metrics {
    const struct models *models;
    struct gpu_monitor *gpus;
    struct op_metrics op[MODELS_MAX + 1];         /* the last: of programs */
    atomic_uint_least64_t responses[N_CODES + 1]; /* the last: any other */
};

enum roped_status metrics_new(const struct models *models, struct metrics **out,
                              struct roped_error *err)
{
    *out = calloc(1, sizeof **out);
    if (*out)
        (*out)->gpus = gpu_monitor_new();
    if (!*out || !(*out)->gpus) {
        free(*out);
        *out = NULL;
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the metrics");
    }
    (*out)->models = models;
    return ROPED_OK;
}

void metrics_free(struct metrics *metrics)
{
    if (metrics)
        gpu_monitor_free(metrics->gpus);
    free(metrics);
}

static void add(atomic_uint_least64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static uint64_t get(atomic_uint_least64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void observe(struct histogram *histogram, uint64_t ns)
{
    int i = 0;
    while (i < N_BUCKETS && ns > buckets[i].ns)
        i++;
    add(&histogram->bucket[i], 1);
    add(&histogram->sum_ns, ns);
}

void metrics_count_call(struct metrics *metrics,
                        const struct metrics_call *call)
{
    struct op_metrics *op = &metrics->op[call->op];
    struct timespec now;
    atomic_store_explicit(&op->is_called, true, memory_order_relaxed);
    add(&op->calls[call->status][call->transport], 1);
    add(&op->request_bytes, call->request_bytes);
    add(&op->response_bytes, call->response_bytes);
    observe(&op->duration, call->total_ns);
    if (call->status != ROPED_OK) {
        add(&op->fail_ns, call->total_ns);
        return;
    }
    add(&op->success_ns, call->total_ns);
    for (int i = 0; i < N_PHASES; i++) {
        observe(&op->phase[i], call->phase_ns[i]);
        add(&op->success_phase_ns[i], call->phase_ns[i]);
    }
    clock_gettime(CLOCK_REALTIME_COARSE, &now); /* milliseconds are told */
    atomic_store_explicit(&op->last_ms,
                          (uint64_t)now.tv_sec * 1000 +
                              (uint64_t)now.tv_nsec / 1000000,
                          memory_order_relaxed);
}

void metrics_count_response(struct metrics *metrics, int http_code)
{
    int i = 0;
    while (i < N_CODES && http_codes[i] != http_code)
        i++;
    add(&metrics->responses[i], 1);
}

void metrics_statistics(struct metrics *metrics, int index,
                        struct kserve_statistics *out)
{
    struct op_metrics *op = &metrics->op[index];
    memset(out, 0, sizeof *out);
    for (int status = 0; status < ROPED_STATUS_COUNT; status++)
        for (int t = 0; t < METRICS_TRANSPORTS; t++)
            *(status == ROPED_OK ? &out->success_count : &out->fail_count) +=
                get(&op->calls[status][t]);
    out->execution_count = out->success_count;
    out->last_inference_ms = get(&op->last_ms);
    out->success_ns = get(&op->success_ns);
    out->fail_ns = get(&op->fail_ns);
#define PHASE(id, name, statistic, meaning)                                    \
    out->statistic += get(&op->success_phase_ns[PHASE_##id]);
#include "phase.def"
}

/* ------------------------------------------------------------ the process */

struct process_memory {
    double virtual_bytes, resident_bytes;
    double file_bytes; /* of resident_bytes: of files and shared memory */
};

static struct process_memory process_memory(void)
{
    unsigned long pages[3] = {0};
    const double page = (double)sysconf(_SC_PAGE_SIZE);
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%lu %lu %lu", &pages[0], &pages[1], &pages[2]) != 3)
            memset(pages, 0, sizeof pages);
        fclose(file);
    }
    return (struct process_memory){(double)pages[0] * page,
                                   (double)pages[1] * page,
                                   (double)pages[2] * page};
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.arena + info.hblkhd;
}

static double cpu_seconds(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int count_open_files(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n > 3 ? n - 3 : 0; /* '.', '..' and the folder itself */
}

static rlim_t most_open_files(void)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

/* -------------------------------------------------------------- one scrape */

enum label {
    BY_NOTHING, /* ends the labels of a row */
#define LABEL(id, name, n, text) id,
#include "metric.def"
    N_LABELS
};

enum { MOST_LABELS = 4 };

/* What a scrape reads, and the series where it is. */
struct scrape {
    struct metrics *metrics;
    const struct metrics_gauges *gauges;
    const struct metrics_names *names;
    struct exec_usage calls;
    struct tables_usage tables;
    struct programs_usage programs;
    struct regions_usage regions;
    struct process_memory process;
    struct exec_device_usage device; /* the last one, of device_of */
    struct roped_device_info info;   /* the last one, of info_of */
    struct gpu_reading gpu;          /* the last one, of gpu_of */
    int at[N_LABELS];
    char labels[1024]; /* of the series, with commas between */
    char text[256];    /* of a label */
};
#define AT(label) s->at[label]

static const char *op_name(const struct scrape *s, int op)
{
    const struct models *models = s->metrics->models;
    return op < models->n ? models->op[op]->name : "program";
}

static struct op_metrics *op_of(struct scrape *s)
{
    return &s->metrics->op[AT(BY_OP)];
}

static const struct exec_device_usage *device_of(struct scrape *s)
{
    exec_device_usage(s->gauges->exec, AT(BY_DEVICE), &s->device);
    return &s->device;
}

static const struct roped_device_info *info_of(struct scrape *s, int device)
{
    exec_device_info(s->gauges->exec, device, &s->info);
    return &s->info;
}

static const struct gpu_reading *gpu_of(struct scrape *s)
{
    s->gpu =
        gpu_monitor_read(s->metrics->gpus, info_of(s, AT(BY_DEVICE))->uuid);
    return &s->gpu;
}

/* All but the one without a name. */
static struct tenant *tenant_of(struct scrape *s)
{
    return tenants_at(exec_tenants(s->gauges->exec), AT(BY_TOKEN) + 1);
}

/* A label's value: backslash, quote and newline are escaped, and what is not
 * printable ASCII is left out. */
static const char *quoted(struct scrape *s, const char *text)
{
    size_t at = 0;
    for (; *text && at + 3 <= sizeof s->text; text++) {
        bool is_printable = *text >= 0x20 && *text < 0x7F;
        if (*text == '"' || *text == '\\')
            s->text[at++] = '\\';
        if (is_printable)
            s->text[at++] = *text;
    }
    s->text[at] = '\0';
    return s->text;
}

static const char *integer(struct scrape *s, int value)
{
    snprintf(s->text, sizeof s->text, "%d", value);
    return s->text;
}

static const char *code_text(struct scrape *s, int i)
{
    return i < N_CODES ? integer(s, http_codes[i]) : "other";
}

static const char *label_name(enum label label)
{
    static const char *const names[N_LABELS] = {
#define LABEL(id, name, n, text) [id] = #name,
#include "metric.def"
    };
    return names[label];
}

static int label_values(const struct scrape *s, enum label label)
{
    switch (label) {
#define LABEL(id, name, n, text)                                               \
    case id:                                                                   \
        return n;
#include "metric.def"
    case BY_NOTHING:
    case N_LABELS:
        break;
    }
    return 0;
}

static const char *label_text(struct scrape *s, enum label label)
{
    switch (label) {
#define LABEL(id, name, n, text)                                               \
    case id:                                                                   \
        return text;
#include "metric.def"
    case BY_NOTHING:
    case N_LABELS:
        break;
    }
    return "";
}

/* Has the label's value AT(label) series? An operator that nobody calls would
 * have 200 of nothing. */
static bool is_shown(const struct scrape *s, enum label label)
{
    return label != BY_OP ||
           atomic_load_explicit(&s->metrics->op[AT(BY_OP)].is_called,
                                memory_order_relaxed);
}

/* Was a series asked for whose name are these two together? */
static bool is_asked(const struct scrape *s, const char *name,
                     const char *ending)
{
    size_t bytes = strlen(name);
    for (int i = 0; i < s->names->n; i++)
        if (strncmp(s->names->name[i], name, bytes) == 0 &&
            strcmp(s->names->name[i] + bytes, ending) == 0)
            return true;
    return s->names->n == 0;
}

/* ------------------------------------------------------------- exposition */

#define VALUE(name, value)                                                     \
    static double name##_value(struct scrape *s)                               \
    {                                                                          \
        (void)s;                                                               \
        return (double)(value);                                                \
    }
#define METRIC(name, type, labels, value, help) VALUE(name, value)
#define SERIES(name, suffix, labels, value)     VALUE(name##_##suffix, value)
#define HISTOGRAM(name, labels, value, help)                                   \
    static struct histogram *name##_value(struct scrape *s)                    \
    {                                                                          \
        return value;                                                          \
    }
#include "metric.def"

static const struct row {
    const char *name, *type, *help; /* help NULL: more of the row before */
    enum label label[MOST_LABELS + 1];
    double (*value)(struct scrape *s);
    struct histogram *(*histogram)(struct scrape *s); /* instead of value */
} rows[] = {
#define LABELS(...)                                                            \
    {                                                                          \
        __VA_ARGS__                                                            \
    }
#define METRIC(name, type, labels, value, help)                                \
    {#name, #type, help, labels, name##_value, NULL},
#define SERIES(name, suffix, labels, value)                                    \
    {#name, NULL, NULL, labels, name##_##suffix##_value, NULL},
#define HISTOGRAM(name, labels, value, help)                                   \
    {#name, "histogram", help, labels, NULL, name##_value},
#include "metric.def"
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* The count is the sum of the buckets as read, so no bucket exceeds it. */
static void write_histogram(const struct scrape *s, struct histogram *histogram,
                            const char *name, struct buffer *buffer)
{
    uint64_t count = 0;
    bool has_buckets = is_asked(s, name, "_bucket");
    for (int i = 0; i <= N_BUCKETS; i++) {
        count += get(&histogram->bucket[i]);
        if (has_buckets)
            buffer_printf(buffer, "%s_bucket{%s,le=\"%s\"} %llu\n", name,
                          s->labels, i < N_BUCKETS ? buckets[i].le : "+Inf",
                          (unsigned long long)count);
    }
    if (is_asked(s, name, "_sum")) {
        buffer_printf(buffer, "%s_sum{%s} ", name, s->labels);
        buffer_double(buffer, (double)get(&histogram->sum_ns) * 1e-9);
        buffer_append(buffer, "\n", 1);
    }
    if (is_asked(s, name, "_count"))
        buffer_printf(buffer, "%s_count{%s} %llu\n", name, s->labels,
                      (unsigned long long)count);
}

/* What is not known has no series. */
static void write_value(struct buffer *buffer, const char *name,
                        const char *labels, double value)
{
    if (isnan(value))
        return;
    buffer_text(buffer, name);
    if (*labels)
        buffer_printf(buffer, "{%s}", labels);
    buffer_append(buffer, " ", 1);
    if (value >= 0 && value <= 0x1p53 && value == (double)(uint64_t)value)
        buffer_unsigned(buffer, (uint64_t)value);
    else
        buffer_double(buffer, value);
    buffer_append(buffer, "\n", 1);
}

/* Every series of the row that has the first n labels in s->labels. */
static void write_series(struct scrape *s, const struct row *row, int n,
                         struct buffer *buffer)
{
    enum label label = row->label[n];
    size_t end = strlen(s->labels);
    if (label == BY_NOTHING && row->histogram)
        write_histogram(s, row->histogram(s), row->name, buffer);
    else if (label == BY_NOTHING)
        write_value(buffer, row->name, s->labels, row->value(s));
    for (int i = 0; i < label_values(s, label); i++) {
        AT(label) = i;
        if (!is_shown(s, label))
            continue;
        snprintf(s->labels + end, sizeof s->labels - end, "%s%s=\"%s\"",
                 end ? "," : "", label_name(label), label_text(s, label));
        write_series(s, row, n + 1, buffer);
    }
    s->labels[end] = '\0';
}

static bool is_row_asked(const struct scrape *s, const struct row *row)
{
    return row->histogram ? is_asked(s, row->name, "_bucket") ||
                                is_asked(s, row->name, "_sum") ||
                                is_asked(s, row->name, "_count")
                          : is_asked(s, row->name, "");
}

void metrics_write(struct metrics *metrics, const struct metrics_gauges *gauges,
                   const struct metrics_names *names, struct buffer *buffer)
{
    struct scrape scrape = {.metrics = metrics,
                            .gauges = gauges,
                            .names = names,
                            .process = process_memory()};
    exec_usage(gauges->exec, &scrape.calls);
    tables_usage(exec_tables(gauges->exec), &scrape.tables);
    programs_usage(exec_programs(gauges->exec), &scrape.programs);
    regions_usage(exec_regions(gauges->exec), &scrape.regions);
    for (int i = 0; i < N_ROWS; i++) {
        const struct row *row = &rows[i];
        if (!is_row_asked(&scrape, row))
            continue;
        if (row->help)
            buffer_printf(buffer, "# HELP %s %s\n# TYPE %s %s\n", row->name,
                          row->help, row->name, row->type);
        write_series(&scrape, row, 0, buffer);
    }
}
