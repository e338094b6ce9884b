/*
 * metrics.c - counters, histograms and their exposition.
 */
#include "metrics.h"

#include "log.h"

#include <dirent.h>
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
static const int http_codes[] = {200, 201, 400, 401, 404, 405, 408,
                                 411, 413, 415, 500, 501, 503};
enum { N_CODES = sizeof http_codes / sizeof *http_codes };

struct op_metrics {
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
    struct op_metrics op[MODELS_MAX];
    atomic_uint_least64_t responses[N_CODES + 1]; /* the last: any other */
};

enum roped_status metrics_new(const struct models *models, struct metrics **out,
                              struct roped_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the metrics");
    (*out)->models = models;
    return ROPED_OK;
}

void metrics_free(struct metrics *metrics)
{
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

/* ------------------------------------------------------------- exposition */

static void family(struct buffer *buffer, const char *name, const char *type,
                   const char *help)
{
    buffer_printf(buffer, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                  type);
}

static void gauge(struct buffer *buffer, const char *name, const char *type,
                  const char *help, double value)
{
    family(buffer, name, type, help);
    buffer_printf(buffer, "%s ", name);
    buffer_double(buffer, value);
    buffer_text(buffer, "\n");
}

/* The count is the sum of the buckets as read, so no bucket exceeds it. */
static void write_histogram(struct buffer *buffer, struct histogram *histogram,
                            const char *name, const char *labels)
{
    uint64_t count = 0;
    for (int i = 0; i < N_BUCKETS; i++) {
        count += get(&histogram->bucket[i]);
        buffer_printf(buffer, "%s_bucket{%s,le=\"%s\"} %llu\n", name, labels,
                      buckets[i].le, (unsigned long long)count);
    }
    count += get(&histogram->bucket[N_BUCKETS]);
    buffer_printf(buffer, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels,
                  (unsigned long long)count);
    buffer_printf(buffer, "%s_sum{%s} ", name, labels);
    buffer_double(buffer, (double)get(&histogram->sum_ns) * 1e-9);
    buffer_printf(buffer, "\n%s_count{%s} %llu\n", name, labels,
                  (unsigned long long)count);
}

static void write_calls(struct metrics *metrics, struct buffer *buffer)
{
    family(buffer, "roped_requests_total", "counter",
           "Calls of an operator, by how they ended.");
    for (int op = 0; op < metrics->models->n; op++)
        for (int s = 0; s < ROPED_STATUS_COUNT; s++)
            for (int t = 0; t < METRICS_TRANSPORTS; t++)
                buffer_printf(
                    buffer,
                    "roped_requests_total{op=\"%s\",status=\"%s\",transport="
                    "\"%s\"} %llu\n",
                    metrics->models->op[op]->name,
                    roped_status_token((enum roped_status)s),
                    transport_names[t],
                    (unsigned long long)get(&metrics->op[op].calls[s][t]));
}

static void write_histograms(struct metrics *metrics, struct buffer *buffer)
{
    char labels[96];
    family(buffer, "roped_request_duration_seconds", "histogram",
           "From the headers of a call to its answer.");
    for (int op = 0; op < metrics->models->n; op++) {
        snprintf(labels, sizeof labels, "op=\"%s\"",
                 metrics->models->op[op]->name);
        write_histogram(buffer, &metrics->op[op].duration,
                        "roped_request_duration_seconds", labels);
    }
    family(buffer, "roped_stage_duration_seconds", "histogram",
           "Stages of successful calls.");
    for (int op = 0; op < metrics->models->n; op++)
        for (int i = 0; i < N_PHASES; i++) {
            snprintf(labels, sizeof labels, "op=\"%s\",stage=\"%s\"",
                     metrics->models->op[op]->name, phase_names[i]);
            write_histogram(buffer, &metrics->op[op].phase[i],
                            "roped_stage_duration_seconds", labels);
        }
}

static void write_bytes(struct metrics *metrics, struct buffer *buffer)
{
    family(buffer, "roped_request_bytes_total", "counter",
           "Bodies of calls received.");
    for (int op = 0; op < metrics->models->n; op++)
        buffer_printf(buffer, "roped_request_bytes_total{op=\"%s\"} %llu\n",
                      metrics->models->op[op]->name,
                      (unsigned long long)get(&metrics->op[op].request_bytes));
    family(buffer, "roped_response_bytes_total", "counter",
           "Bodies of answers to calls.");
    for (int op = 0; op < metrics->models->n; op++)
        buffer_printf(buffer, "roped_response_bytes_total{op=\"%s\"} %llu\n",
                      metrics->models->op[op]->name,
                      (unsigned long long)get(&metrics->op[op].response_bytes));
    family(buffer, "roped_http_responses_total", "counter",
           "HTTP answers of every route, by status code.");
    for (int i = 0; i < N_CODES; i++)
        buffer_printf(buffer, "roped_http_responses_total{code=\"%d\"} %llu\n",
                      http_codes[i],
                      (unsigned long long)get(&metrics->responses[i]));
    buffer_printf(buffer, "roped_http_responses_total{code=\"other\"} %llu\n",
                  (unsigned long long)get(&metrics->responses[N_CODES]));
}

static void write_regions(const struct metrics_gauges *gauges,
                          struct buffer *buffer)
{
    struct regions_usage usage;
    regions_usage(exec_regions(gauges->exec), &usage);
    family(buffer, "roped_regions", "gauge",
           "Named regions, by who owns their memory.");
    for (int kind = 0; kind < REGION_KINDS; kind++)
        buffer_printf(buffer, "roped_regions{kind=\"%s\"} %d\n",
                      region_kind_name((enum region_kind)kind), usage.n[kind]);
    family(buffer, "roped_region_bytes", "gauge",
           "Memory of regions, that of forgotten ones still in use included.");
    for (int kind = 0; kind < REGION_KINDS; kind++)
        buffer_printf(buffer, "roped_region_bytes{kind=\"%s\"} %llu\n",
                      region_kind_name((enum region_kind)kind),
                      (unsigned long long)usage.bytes[kind]);
    gauge(buffer, "roped_region_memory_bytes", "gauge",
          "Most that resident regions may take together.",
          (double)usage.budget_bytes);
}

static void write_executor(const struct metrics_gauges *gauges,
                           struct buffer *buffer)
{
    struct exec_usage usage;
    const struct memory_usage *memory = &gauges->memory;
    struct tables_usage tables;
    exec_usage(gauges->exec, &usage);
    tables_usage(exec_tables(gauges->exec), &tables);
    gauge(buffer, "roped_inflight_requests", "gauge",
          "Calls waiting for a lane or running on one.",
          usage.n_queued + usage.n_busy_lanes);
    gauge(buffer, "roped_queue_depth", "gauge", "Calls waiting for a lane.",
          usage.n_queued);
    family(buffer, "roped_pool_bytes", "gauge",
           "Host memory pool for bodies and answers.");
    buffer_printf(
        buffer,
        "roped_pool_bytes{state=\"used\"} %llu\n"
        "roped_pool_bytes{state=\"free\"} %llu\n",
        (unsigned long long)memory->pool_used_bytes,
        (unsigned long long)(memory->pool_bytes - memory->pool_used_bytes));
    gauge(buffer, "roped_mapped_bytes", "gauge",
          "Host memory of calls outside the pool.",
          (double)memory->mapped_bytes);
    gauge(buffer, "roped_lent_bytes", "gauge",
          "Host memory of bodies that have begun to arrive, ahead of them.",
          (double)memory->lent_bytes);
    gauge(buffer, "roped_tables_named", "gauge", "Named rotary tables.",
          tables.n_named);
    gauge(buffer, "roped_tables_resident", "gauge",
          "Rotary tables in device memory.", tables.n_resident);
    gauge(buffer, "roped_tables_resident_bytes", "gauge",
          "Device memory of rotary tables.", (double)tables.resident_bytes);
    gauge(buffer, "roped_table_hits_total", "counter",
          "Calls that found their rotary table resident.", (double)tables.hits);
    gauge(buffer, "roped_table_builds_total", "counter", "Rotary tables built.",
          (double)tables.builds);
    gauge(buffer, "roped_table_evictions_total", "counter",
          "Rotary tables evicted to make room.", (double)tables.evictions);
}

static double lanes_busy(const struct exec_device_usage *usage)
{
    return usage->n_busy_lanes;
}

static double lanes_idle(const struct exec_device_usage *usage)
{
    return usage->n_lanes - usage->n_busy_lanes;
}

static double arena_bytes(const struct exec_device_usage *usage)
{
    return (double)usage->arena_bytes;
}

static double region_bytes(const struct exec_device_usage *usage)
{
    return (double)usage->region_bytes;
}

static double jobs(const struct exec_device_usage *usage)
{
    return (double)usage->jobs;
}

static double busy_seconds(const struct exec_device_usage *usage)
{
    return usage->busy_seconds;
}

static double staged_bytes(const struct exec_device_usage *usage)
{
    return (double)usage->staged_bytes;
}

static double errors(const struct exec_device_usage *usage)
{
    return (double)usage->errors;
}

static double is_healthy(const struct exec_device_usage *usage)
{
    return usage->is_healthy;
}

/* One series per device and row; rows of one family stand together. */
static const struct device_series {
    const char *name, *type, *help; /* help NULL: of the row before */
    const char *label;              /* besides device */
    double (*value)(const struct exec_device_usage *usage);
} device_series[] = {
    {"roped_lanes", "gauge", "Lanes by device and state.", ",state=\"busy\"",
     lanes_busy},
    {"roped_lanes", "gauge", NULL, ",state=\"idle\"", lanes_idle},
    {"roped_device_arena_bytes", "gauge",
     "Device memory held for tensors of calls.", "", arena_bytes},
    {"roped_device_region_bytes", "gauge", "Device memory of resident regions.",
     "", region_bytes},
    {"roped_device_jobs_total", "counter",
     "Calls and transfers that a device has run.", "", jobs},
    {"roped_device_busy_seconds_total", "counter",
     "Time that lanes were busy, all lanes of a device together.", "",
     busy_seconds},
    {"roped_device_staged_bytes_total", "counter",
     "Bytes of bodies that were uploaded while they arrived.", "",
     staged_bytes},
    {"roped_device_errors_total", "counter",
     "Calls that failed in the device or its driver.", "", errors},
    {"roped_device_healthy", "gauge",
     "0 after an error that only a new process can clear.", "", is_healthy}};
enum { N_DEVICE_SERIES = sizeof device_series / sizeof *device_series };

static void write_devices(const struct metrics_gauges *gauges,
                          struct buffer *buffer)
{
    struct exec_device_usage usage;
    for (int i = 0; i < N_DEVICE_SERIES; i++) {
        const struct device_series *row = &device_series[i];
        if (row->help)
            family(buffer, row->name, row->type, row->help);
        for (int j = 0; j < exec_n_devices(gauges->exec); j++) {
            exec_device_usage(gauges->exec, j, &usage);
            buffer_printf(buffer, "%s{device=\"%d\"%s} ", row->name, j,
                          row->label);
            buffer_double(buffer, row->value(&usage));
            buffer_text(buffer, "\n");
        }
    }
}

/* A label's value: backslash, quote and newline are escaped, and what is not
 * printable ASCII is left out. */
static const char *quote_label(const char *text, char *out, size_t out_bytes)
{
    size_t at = 0;
    for (; *text && at + 3 <= out_bytes; text++) {
        bool is_printable = *text >= 0x20 && *text < 0x7F;
        if (*text == '"' || *text == '\\')
            out[at++] = '\\';
        if (is_printable)
            out[at++] = *text;
    }
    out[at] = '\0';
    return out;
}

static void write_device_info(const struct metrics_gauges *gauges,
                              struct buffer *buffer)
{
    struct roped_device_info device;
    struct exec_device_usage usage;
    char quoted[2 * sizeof device.name];
    family(buffer, "roped_device_info", "gauge",
           "What each device is; index is the driver's number; always 1.");
    for (int i = 0; i < exec_n_devices(gauges->exec); i++) {
        exec_device_info(gauges->exec, i, &device);
        exec_device_usage(gauges->exec, i, &usage);
        buffer_printf(buffer,
                      "roped_device_info{device=\"%d\",index=\"%d\",name="
                      "\"%s\",uuid=\"%s\"} 1\n",
                      i, usage.index,
                      quote_label(device.name, quoted, sizeof quoted),
                      device.uuid);
    }
}

static void write_build(const struct metrics_gauges *gauges,
                        struct buffer *buffer)
{
    struct roped_device_info device;
    char quoted[128];
    exec_device_info(gauges->exec, 0, &device);
    family(buffer, "roped_build_info", "gauge",
           "Version, backend and first device; always 1.");
    buffer_printf(buffer,
                  "roped_build_info{version=\"%s\",backend=\"%s\",device="
                  "\"%s\"} 1\n",
                  gauges->version, exec_backend(gauges->exec)->name,
                  quote_label(device.name, quoted, sizeof quoted));
    gauge(buffer, "roped_connections", "gauge", "Open connections.",
          gauges->n_connections);
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

static void write_process(const struct metrics_gauges *gauges,
                          struct buffer *buffer)
{
    struct rusage usage;
    struct rlimit limit;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    gauge(buffer, "process_start_time_seconds", "gauge",
          "Start of the process, Unix time.",
          (double)gauges->start_time_seconds);
    gauge(buffer, "process_resident_memory_bytes", "gauge",
          "Resident memory of the process.",
          (double)pages * (double)sysconf(_SC_PAGE_SIZE));
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        gauge(buffer, "process_cpu_seconds_total", "counter",
              "Processor time used, user and system.",
              (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) *
                      1e-6);
    gauge(buffer, "process_open_fds", "gauge", "Open file descriptors.",
          count_open_files());
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        gauge(buffer, "process_max_fds", "gauge",
              "Most file descriptors allowed.", (double)limit.rlim_cur);
    gauge(buffer, "roped_log_dropped_total", "counter",
          "Log lines that standard error did not take.", (double)log_dropped());
}

void metrics_write(struct metrics *metrics, const struct metrics_gauges *gauges,
                   struct buffer *buffer)
{
    write_build(gauges, buffer);
    write_calls(metrics, buffer);
    write_histograms(metrics, buffer);
    write_bytes(metrics, buffer);
    write_executor(gauges, buffer);
    write_devices(gauges, buffer);
    write_device_info(gauges, buffer);
    write_regions(gauges, buffer);
    write_process(gauges, buffer);
}
