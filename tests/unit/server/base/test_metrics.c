/*
 * test_metrics.c - the exposition: families, labels, buckets, and that a
 * scrape under load does not contradict itself.
 */
#include "check.h"
#include "fake_nvml.h"
#include "metrics.h"
#include "unit/server/exec/fake_backend.h"
#include "wire/buffer.h"

#include <pthread.h>
#include <unistd.h>

static struct roped_error err;
static struct executor *exec;
static struct models models;
static struct metrics *metrics;
static char *text; /* the last scrape */

static void open_all(void)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct exec_options options = {.n_lanes = 2,
                                   .queue_depth = 2,
                                   .pool_bytes = 1 << 20,
                                   .host_bytes = 1 << 20,
                                   .device_bytes = 1 << 20};
    fake_reset();
    CHECK_OK(exec_open(&fake_api, &backend, &options, &exec, &err), &err);
    models_init(&models, false);
    CHECK_OK(metrics_new(&models, &metrics, &err), &err);
}

static void close_all(void)
{
    free(text);
    text = NULL;
    metrics_free(metrics);
    exec_drain(exec, 0);
    exec_close(exec);
}

static void scrape_names(const struct metrics_names *names)
{
    struct buffer buffer;
    struct metrics_gauges gauges = {.exec = exec,
                                    .version = "1.2.3",
                                    .n_connections = 5,
                                    .start_time_seconds = 1000};
    memory_usage(exec_memory(exec), &gauges.memory);
    buffer_init(&buffer);
    metrics_write(metrics, &gauges, names, &buffer);
    const char *written = buffer.bytes ? buffer.text : "";
    CHECK(!buffer.has_failed && strlen(written) == buffer.bytes);
    free(text);
    text = strdup(written);
    buffer_fini(&buffer);
    CHECK(text != NULL);
}

static void scrape(void)
{
    scrape_names(&(struct metrics_names){.n = 0});
}

static int count_series(void)
{
    int n = 0;
    for (const char *line = text; line && *line;) {
        n += *line != '#';
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return n;
}

/* The value of a series, named as it is written, or -1. */
static double value_of(const char *series)
{
    size_t n = strlen(series);
    for (const char *line = text; line && *line;) {
        if (strncmp(line, series, n) == 0 && line[n] == ' ')
            return strtod(line + n, NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return -1;
}

static struct metrics_call one_call(uint64_t total_ns)
{
    struct metrics_call call = {.op = roped_op_index(roped_op_find("rmsnorm")),
                                .status = ROPED_OK,
                                .transport = METRICS_V1,
                                .total_ns = total_ns,
                                .request_bytes = 100,
                                .response_bytes = 50};
    for (int i = 0; i < N_PHASES; i++)
        call.phase_ns[i] = total_ns / 10;
    return call;
}

TEST(known_series_are_there_before_the_first_call)
{
    static const char *const zero[] = {
        "roped_http_responses_total{code=\"503\"}",
        "roped_inflight_requests",
        "roped_queue_depth",
        "roped_lanes{device=\"0\",state=\"busy\"}",
        "roped_pool_bytes{state=\"used\"}",
        "roped_mapped_bytes",
        "roped_kept_bytes",
        "roped_device_scratch_bytes{device=\"0\"}",
        "roped_device_arena_bytes{device=\"0\"}",
        "roped_device_errors_total{device=\"0\"}",
        "roped_log_dropped_total",
        "roped_table_hits_total"};
    open_all();
    scrape();
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        if (value_of(zero[i]) != 0)
            CHECK_FAIL("%s is %g", zero[i], value_of(zero[i]));
    CHECK_INT(value_of("roped_lanes{device=\"0\",state=\"idle\"}"), 2);
    CHECK_INT(value_of("roped_pool_bytes{state=\"free\"}"), 1 << 20);
    CHECK_INT(value_of("roped_device_healthy{device=\"0\"}"), 1);
    CHECK_INT(value_of("roped_connections"), 5);
    CHECK_INT(value_of("process_start_time_seconds"), 1000);
    CHECK(value_of("process_resident_memory_bytes") > 1 << 20);
    CHECK(value_of("process_virtual_memory_bytes") >
          value_of("process_resident_memory_bytes"));
    CHECK(value_of("process_resident_memory_bytes") >
          value_of("roped_resident_file_bytes"));
    CHECK(value_of("roped_resident_file_bytes") > 0);
    CHECK(value_of("process_open_fds") >= 3);
    CHECK_CONTAINS(text, "roped_build_info{version=\"1.2.3\",backend=\"fake\"");
    atomic_store(&fake_is_dead, true);
    scrape();
    CHECK_INT(value_of("roped_device_healthy{device=\"0\"}"), 0);
    close_all();
}

TEST(a_gpu_has_what_its_driver_says)
{
    fake_uuid = "GPU-fake-0";
    open_all();
    scrape();
    for (int i = 0;
         i < 50 &&
         value_of("roped_device_temperature_celsius{device=\"0\"}") < 0;
         i++) { /* the first may come too early */
        usleep(20000);
        scrape();
    }
    fake_uuid = "";
    CHECK_INT(value_of("roped_device_temperature_celsius{device=\"0\"}"), 61);
    CHECK(value_of("roped_device_power_watts{device=\"0\"}") == 350.5);
    CHECK(value_of("roped_device_utilization_ratio{device=\"0\"}") == 0.75);
    CHECK_INT(value_of("roped_device_memory_used_bytes{device=\"0\"}"),
              20ll << 30);
    CHECK_INT(value_of("roped_device_memory_bytes{device=\"0\"}"), 80ll << 30);
    close_all();
    CHECK_INT(atomic_load(&fake_nvml_starts), 0);
}

/* It does not know this one. */
TEST(what_is_not_known_of_a_gpu_has_no_series)
{
    fake_uuid = "GPU-of-nobody";
    open_all();
    scrape();
    fake_uuid = "";
    CHECK_CONTAINS(text, "# TYPE roped_device_temperature_celsius gauge");
    CHECK(!strstr(text, "\nroped_device_temperature_celsius"));
    CHECK(!strstr(text, "\nroped_device_memory_used_bytes"));
    CHECK(!strstr(text, "nan"));
    close_all();
}

/* A family without a series is announced all the same. */
TEST(an_operator_has_series_from_its_first_call_on)
{
    struct metrics_call call = one_call(30000);
    open_all();
    scrape();
    CHECK(count_series() <= 100);
    CHECK(strstr(text, "op=\"") == NULL);
    CHECK_CONTAINS(text, "# TYPE roped_requests_total counter\n");
    call.status = ROPED_INVALID;
    metrics_count_call(metrics, &call);
    scrape();
    CHECK(strstr(text, "op=\"rope\"") == NULL);
    CHECK_INT(value_of("roped_requests_total{op=\"rmsnorm\",status=\"invalid\","
                       "transport=\"v1\"}"),
              1);
    CHECK_INT(
        value_of("roped_requests_total{op=\"rmsnorm\",status=\"deadline\","
                 "transport=\"v2\"}"),
        0);
    CHECK_INT(value_of("roped_stage_duration_seconds_count{op=\"rmsnorm\","
                       "stage=\"h2d\"}"),
              0);
    CHECK_INT(value_of("roped_request_bytes_total{op=\"rmsnorm\"}"), 100);
    close_all();
}

/* By the names of series, not of families. */
TEST(those_that_are_asked_for_are_there_alone)
{
    struct metrics_call call = one_call(30000);
    struct metrics_names names = {3,
                                  {"roped_request_duration_seconds_sum",
                                   "roped_queue_depth", "roped_queue"}};
    open_all();
    metrics_count_call(metrics, &call);
    scrape_names(&names);
    CHECK_INT(count_series(), 2);
    CHECK_INT(value_of("roped_queue_depth"), 0);
    CHECK_DOUBLE(value_of("roped_request_duration_seconds_sum{op=\"rmsnorm\"}"),
                 3e-5, 1e-12);
    CHECK_CONTAINS(text, "# TYPE roped_request_duration_seconds histogram\n");
    names.name[0] = "roped_request_duration_seconds_bucket";
    scrape_names(&names);
    CHECK_INT(count_series(), 22);
    names = (struct metrics_names){1, {"roped_none"}};
    scrape_names(&names);
    CHECK_TEXT(text, "");
    close_all();
}

TEST(calls_are_counted_by_how_they_end)
{
    struct metrics_call call = one_call(30000); /* 30 us, stages 3 us */
    open_all();
    metrics_count_call(metrics, &call);
    metrics_count_call(metrics, &call);
    call.status = ROPED_BUSY;
    call.transport = METRICS_V2;
    metrics_count_call(metrics, &call);
    metrics_count_response(metrics, 200);
    metrics_count_response(metrics, 599);
    scrape();
    CHECK_INT(value_of("roped_requests_total{op=\"rmsnorm\",status=\"ok\","
                       "transport=\"v1\"}"),
              2);
    CHECK_INT(value_of("roped_requests_total{op=\"rmsnorm\",status=\"busy\","
                       "transport=\"v2\"}"),
              1);
    CHECK_INT(value_of("roped_request_duration_seconds_count{op=\"rmsnorm\"}"),
              3);
    CHECK_DOUBLE(value_of("roped_request_duration_seconds_sum{op=\"rmsnorm\"}"),
                 9e-5, 1e-12);
    /* stages are those of calls that ran */
    CHECK_INT(value_of("roped_stage_duration_seconds_count{op=\"rmsnorm\","
                       "stage=\"kernel\"}"),
              2);
    CHECK_INT(value_of("roped_request_bytes_total{op=\"rmsnorm\"}"), 300);
    CHECK_INT(value_of("roped_response_bytes_total{op=\"rmsnorm\"}"), 150);
    CHECK_INT(value_of("roped_http_responses_total{code=\"200\"}"), 1);
    CHECK_INT(value_of("roped_http_responses_total{code=\"other\"}"), 1);
    close_all();
}

/* A bound belongs to its bucket, and one nanosecond more to the next. */
TEST(buckets_are_cumulative_and_closed_above)
{
    static const uint64_t ns[] = {5000, 5001, 10000, 10000000000, 10000000001};
    open_all();
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        struct metrics_call call = one_call(ns[i]);
        metrics_count_call(metrics, &call);
    }
    scrape();
#define BUCKET(le)                                                             \
    value_of("roped_request_duration_seconds_bucket{op=\"rmsnorm\",le=\"" le   \
             "\"}")
    CHECK_INT(BUCKET("5e-06"), 1);
    CHECK_INT(BUCKET("1e-05"), 3);
    CHECK_INT(BUCKET("0.001"), 3);
    CHECK_INT(BUCKET("10"), 4);
    CHECK_INT(BUCKET("+Inf"), 5);
#undef BUCKET
    close_all();
}

TEST(statistics_are_totals_of_an_operator)
{
    struct kserve_statistics totals;
    struct metrics_call call = one_call(1000);
    open_all();
    metrics_count_call(metrics, &call);
    call.transport = METRICS_V2;
    metrics_count_call(metrics, &call);
    call.status = ROPED_INVALID;
    metrics_count_call(metrics, &call);
    metrics_statistics(metrics, call.op, &totals);
    CHECK_INT(totals.success_count, 2);
    CHECK_INT(totals.fail_count, 1);
    CHECK_INT(totals.success_ns, 2000);
    CHECK_INT(totals.fail_ns, 1000);
    CHECK_INT(totals.queue_ns, 200);
    CHECK_INT(totals.compute_input_ns, 400); /* plan and upload */
    CHECK_INT(totals.compute_infer_ns, 200);
    CHECK_INT(totals.compute_output_ns, 200);
    CHECK(totals.last_inference_ms > 1000000000000);
    metrics_statistics(metrics, call.op == 0 ? 1 : 0, &totals);
    CHECK_INT(totals.success_count + totals.fail_count, 0);
    close_all();
}

/* ------------------------------------------------------------ text format */

/* The family that a line belongs to: "x" of x_bucket{...}, x_sum, x_count. */
static void family_of(const char *line, bool is_histogram, char *out)
{
    static const char *const endings[] = {"_bucket", "_sum", "_count"};
    size_t n = strcspn(line, "{ ");
    snprintf(out, 128, "%.*s", (int)n, line);
    for (int i = 0; i < 3 && is_histogram; i++) {
        size_t m = strlen(endings[i]);
        if (n > m && strcmp(out + n - m, endings[i]) == 0) {
            out[n - m] = '\0';
            return;
        }
    }
}

TEST(every_family_is_announced_once_before_its_series)
{
    char family[128] = "", name[128], type[32];
    char seen[128][128];
    int n_seen = 0;
    open_all();
    scrape();
    CHECK(text[strlen(text) - 1] == '\n');
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (strncmp(line, "# HELP ", 7) == 0) {
            sscanf(line + 7, "%127s", family);
            for (int i = 0; i < n_seen; i++)
                CHECK(strcmp(seen[i], family) != 0);
            if (n_seen < 128)
                snprintf(seen[n_seen++], sizeof *seen, "%s", family);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            CHECK_INT(sscanf(line + 7, "%127s %31s", name, type), 2);
            CHECK_TEXT(name, family);
        } else {
            family_of(line, strcmp(type, "histogram") == 0, name);
            CHECK_TEXT(name, family);
            CHECK(strrchr(line, ' ') && strtod(strrchr(line, ' '), NULL) >= 0);
        }
    }
    CHECK(n_seen > 20);
    close_all();
}

TEST(promtool_has_nothing_to_say)
{
    struct metrics_call call = one_call(12345);
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        printf("promtool is not installed: its check is skipped\n");
        return;
    }
    open_all();
    metrics_count_call(metrics, &call);
    scrape();
    FILE *tool = popen("promtool check metrics >&2", "w");
    CHECK(tool != NULL);
    if (tool) {
        fputs(text, tool);
        CHECK_INT(pclose(tool), 0);
    }
    close_all();
}

/* -------------------------------------------------------------- under load */

static atomic_bool is_over;

static void *count_calls(void *context)
{
    uint64_t ns = 1;
    (void)context;
    while (!atomic_load(&is_over)) {
        struct metrics_call call = one_call(ns = ns * 7 % 20000000003);
        metrics_count_call(metrics, &call);
    }
    return NULL;
}

TEST(a_scrape_under_load_agrees_with_itself)
{
    enum { N_THREADS = 3 };
    static const char *const prefix =
        "roped_request_duration_seconds_bucket{op=\"rmsnorm\",";
    pthread_t thread[N_THREADS];
    struct metrics_call first = one_call(1); /* from then on there are series */
    open_all();
    metrics_count_call(metrics, &first);
    atomic_store(&is_over, false);
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&thread[i], NULL, count_calls, NULL);
    for (int round = 0; round < 50; round++) {
        double last = 0;
        scrape();
        for (const char *at = strstr(text, prefix); at;
             at = strstr(at + 1, prefix)) {
            double value = strtod(strchr(at, ' '), NULL);
            CHECK(value >= last);
            last = value;
        }
        CHECK_DOUBLE(
            value_of("roped_request_duration_seconds_count{op=\"rmsnorm\"}"),
            last, 0);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
    close_all();
}

TEST(demos_are_counted_where_they_are_served)
{
    struct metrics_call call = {
        .op = ROPED_OP_COUNT, .transport = METRICS_V2, .total_ns = 5};
    struct kserve_statistics statistics;
    open_all();
    metrics_count_call(metrics, &call);
    scrape();
    CHECK(strstr(text, "op=\"simple\"") == NULL);
    metrics_free(metrics);
    models_init(&models, true);
    CHECK_OK(metrics_new(&models, &metrics, &err), &err);
    metrics_count_call(metrics, &call);
    metrics_statistics(metrics, ROPED_OP_COUNT, &statistics);
    CHECK_INT(statistics.success_count, 1);
    CHECK_INT(statistics.success_ns, 5);
    scrape();
    CHECK_CONTAINS(text, "{op=\"simple\",status=\"ok\",transport=\"v2\"} 1\n");
    close_all();
}
