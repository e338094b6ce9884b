/*
 * command_top.c - top: what the server did since the last look, from two reads
 * of its metrics. On a terminal each look replaces the one before on the
 * alternate screen; elsewhere each is a document of its own.
 *
 * A server that is started again counts from 0: its start time tells. One that
 * does not answer is asked again, because whoever watches wants to see it come
 * back; only the first look must succeed.
 */
#include "number.h"
#include "progress.h"
#include "scrape.h"
#include "top_screen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_LOOKS = 1 << 30 };
static const double patience_seconds = 5; /* for one answer */

struct top {
    struct ropectl ctl;
    double interval_seconds;
    int n_looks; /* 0: until it is stopped */
    bool is_screen, is_over;
    int sorted_by; /* of columns */
    cJSON *shown;  /* on the screen */
    struct metrics before, now;
    double before_seconds, now_seconds;
    bool is_restarted;
};

/* ------------------------------------------------------------------- screen */

/* Columns of the operators: by which key they are sorted, and what they are
 * called on a screen, which is narrow. */
static const struct column {
    char key;
    const char *name, *short_name;
} columns[] = {{'n', "name", "operator"},
               {'c', "calls_per_second", "calls/s"},
               {'e', "errors_per_second", "errors/s"},
               {'5', "p50_ms", "p50_ms"},
               {'9', "p90_ms", "p90_ms"},
               {'p', "p99_ms", "p99_ms"},
               {'k', "kernel_ms", "kernel_ms"}};
enum { N_COLUMNS = sizeof columns / sizeof *columns, BY_CALLS = 1 };

static const struct column device_columns[] = {
    {.name = "lanes_busy", .short_name = "busy"},
    {.name = "busy_percent", .short_name = "busy_%"},
    {.name = "jobs_per_second", .short_name = "jobs/s"},
    {.name = "healthy", .short_name = "ok"}};
enum { N_DEVICE_COLUMNS = sizeof device_columns / sizeof *device_columns };

static void rename_columns(cJSON *rows, const struct column *column, int n)
{
    for (cJSON *row = rows ? rows->child : NULL; row; row = row->next)
        for (int i = 0; i < n; i++) {
            cJSON *cell = cJSON_GetObjectItem(row, column[i].name);
            if (!cell)
                continue;
            cJSON_free(cell->string);
            cell->string = must_have(strdup(column[i].short_name));
        }
}

/* Does a come before b? Names from A, numbers from the largest; what is not
 * there is last. */
static bool is_before(const cJSON *a, const cJSON *b)
{
    if (cJSON_IsString(a) && cJSON_IsString(b))
        return strcmp(a->valuestring, b->valuestring) < 0;
    if (!cJSON_IsNumber(a) || !cJSON_IsNumber(b))
        return cJSON_IsNumber(a) && !cJSON_IsNumber(b);
    return a->valuedouble > b->valuedouble;
}

/* Rows with equal cells stay in their order. */
static void sort_rows(cJSON *rows, const char *name)
{
    cJSON *sorted = cJSON_CreateArray(), *row, *best;
    while ((best = rows->child)) {
        for (row = best->next; row; row = row->next)
            if (is_before(cJSON_GetObjectItem(row, name),
                          cJSON_GetObjectItem(best, name)))
                best = row;
        cJSON_AddItemToArray(sorted, cJSON_DetachItemViaPointer(rows, best));
    }
    rows->child = sorted->child;
    sorted->child = NULL;
    cJSON_Delete(sorted);
}

static void draw(const struct top *top)
{
    const struct column *by = &columns[top->sorted_by];
    char last[128];
    cJSON *document = must_have(cJSON_Duplicate(top->shown, true));
    cJSON *operators = cJSON_GetObjectItem(document, "operators");
    if (operators)
        sort_rows(operators, by->name);
    rename_columns(operators, columns, N_COLUMNS);
    rename_columns(cJSON_GetObjectItem(document, "devices"), device_columns,
                   N_DEVICE_COLUMNS);
    snprintf(last, sizeof last,
             "q quit; sorted by %s: arrows, or c e n 5 9 p k", by->short_name);
    screen_draw(document, last);
    cJSON_Delete(document);
}

static void take_key(struct top *top, int key)
{
    top->is_over |= key == 'q' || key == 'Q';
    if (key == KEY_LEFT || key == KEY_RIGHT)
        top->sorted_by =
            (top->sorted_by + (key == KEY_RIGHT ? 1 : N_COLUMNS - 1)) %
            N_COLUMNS;
    for (int i = 0; i < N_COLUMNS; i++)
        if (key == columns[i].key)
            top->sorted_by = i;
    if (key != KEY_NONE && !top->is_over && top->shown)
        draw(top);
}

static int show(struct top *top, cJSON *document)
{
    if (!top->is_screen)
        return print_document(&top->ctl, document);
    cJSON_Delete(top->shown);
    top->shown = document;
    draw(top);
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------ numbers */

static double seconds_between(const struct top *top)
{
    return top->now_seconds - top->before_seconds;
}

/* How much a counter has grown since the last look. */
static double growth(const struct top *top, const char *name)
{
    return metrics_value(&top->now, "%s", name) -
           metrics_value(&top->before, "%s", name);
}

/* The sum of that over every metric whose name begins and goes on so. */
static double total_growth(const struct top *top, const char *start,
                           const char *part)
{
    double sum = 0;
    for (int i = 0; i < top->now.n; i++) {
        const char *name = top->now.metric[i].name;
        if (strncmp(name, start, strlen(start)) == 0 && strstr(name, part))
            sum += growth(top, name);
    }
    return sum;
}

/*
 * Where a share of an operator's calls was done, by linear interpolation in
 * its bucket, which is what Prometheus' histogram_quantile does; NAN without
 * calls.
 */
static double quantile(const struct top *top, const char *op, double share)
{
    char start[128], le[32];
    double below = 0, bound_below = 0;
    snprintf(start, sizeof start,
             "roped_request_duration_seconds_count{op=\"%s\"}", op);
    double wanted = share * growth(top, start);
    snprintf(start, sizeof start,
             "roped_request_duration_seconds_bucket{op=\"%s\",le=\"", op);
    for (int i = 0; i < top->now.n && wanted > 0; i++) {
        const char *name = top->now.metric[i].name;
        if (strncmp(name, start, strlen(start)) != 0)
            continue;
        snprintf(le, sizeof le, "%s", name + strlen(start));
        double bound = number_read(le, NULL), reached = growth(top, name);
        if (reached >= wanted && strncmp(le, "+Inf", 4) == 0)
            return bound_below;
        if (reached >= wanted)
            return bound_below +
                   (bound - bound_below) * (wanted - below) / (reached - below);
        below = reached;
        bound_below = bound;
    }
    return NAN;
}

/* ---------------------------------------------------------------- documents */

/* A number of milliseconds, or null where there is none. */
static void add_ms(cJSON *object, const char *name, double seconds)
{
    if (isnan(seconds))
        cJSON_AddNullToObject(object, name);
    else
        cJSON_AddNumberToObject(object, name, seconds * 1e3);
}

/* Mean seconds in the kernel; NAN without calls. */
static double kernel_seconds(const struct top *top, const char *op)
{
    char sum[128], count[128];
    snprintf(sum, sizeof sum,
             "roped_stage_duration_seconds_sum{op=\"%s\",stage=\"kernel\"}",
             op);
    snprintf(count, sizeof count,
             "roped_stage_duration_seconds_count{op=\"%s\",stage=\"kernel\"}",
             op);
    double n = growth(top, count);
    return n > 0 ? growth(top, sum) / n : NAN;
}

/* Calls are counted by the metric that the total is made from: histograms are
 * another, which may have one more or less. */
static void add_operator(cJSON *array, const struct top *top, const char *op)
{
    char name[128];
    double seconds = seconds_between(top);
    cJSON *row = add_row(array);
    snprintf(name, sizeof name, "roped_requests_total{op=\"%s\"", op);
    double calls = total_growth(top, name, ""),
           good = total_growth(top, name, "status=\"ok\"");
    cJSON_AddStringToObject(row, "name", op);
    cJSON_AddNumberToObject(row, "calls_per_second", calls / seconds);
    cJSON_AddNumberToObject(row, "errors_per_second", (calls - good) / seconds);
    add_ms(row, "p50_ms", quantile(top, op, 0.5));
    add_ms(row, "p90_ms", quantile(top, op, 0.9));
    add_ms(row, "p99_ms", quantile(top, op, 0.99));
    add_ms(row, "kernel_ms", kernel_seconds(top, op));
}

/* Busy ones first, so that a small screen has them. */
static void add_operators(cJSON *document, const struct top *top)
{
    cJSON *operators = cJSON_AddArrayToObject(document, "operators"),
          *idle = cJSON_CreateArray(), *row;
    for (int i = 0; i < roped_op_count(); i++)
        add_operator(idle, top, roped_op_at(i)->name);
    while ((row = idle->child)) {
        cJSON *best = row;
        for (; row; row = row->next)
            if (cJSON_GetObjectItem(row, "calls_per_second")->valuedouble >
                cJSON_GetObjectItem(best, "calls_per_second")->valuedouble)
                best = row;
        cJSON_AddItemToArray(operators, cJSON_DetachItemViaPointer(idle, best));
    }
    cJSON_Delete(idle);
}

/* The value of name{device="i"...}. */
#define OF_DEVICE(i, name, ...)                                                \
    metrics_value(&top->now, name "{device=\"%d\"" __VA_ARGS__ "}", i)

static void add_devices(cJSON *document, const struct top *top)
{
    char name[96];
    cJSON *devices = cJSON_AddArrayToObject(document, "devices");
    for (int i = 0;; i++) {
        snprintf(name, sizeof name,
                 "roped_device_busy_seconds_total{"
                 "device=\"%d\"}",
                 i);
        if (!metrics_find(&top->now, name))
            return;
        double busy = OF_DEVICE(i, "roped_lanes", ",state=\"busy\"");
        cJSON *row = add_row(devices);
        cJSON_AddNumberToObject(row, "device", i);
        cJSON_AddNumberToObject(row, "lanes_busy", busy);
        cJSON_AddNumberToObject(
            row, "lanes",
            busy + OF_DEVICE(i, "roped_lanes", ",state=\"idle\""));
        cJSON_AddNumberToObject(row, "busy_percent",
                                100 * growth(top, name) / seconds_between(top));
        snprintf(name, sizeof name, "roped_device_jobs_total{device=\"%d\"}",
                 i);
        cJSON_AddNumberToObject(row, "jobs_per_second",
                                growth(top, name) / seconds_between(top));
        cJSON_AddNumberToObject(row, "arena_bytes",
                                OF_DEVICE(i, "roped_device_arena_bytes"));
        cJSON_AddNumberToObject(row, "region_bytes",
                                OF_DEVICE(i, "roped_device_region_bytes"));
        cJSON_AddNumberToObject(row, "errors",
                                OF_DEVICE(i, "roped_device_errors_total"));
        cJSON_AddBoolToObject(row, "healthy",
                              OF_DEVICE(i, "roped_device_healthy") != 0);
    }
}

/* What is true now, as members of an object: row, metric. */
struct gauge {
    const char *name, *metric;
};

static void add_gauges(cJSON *document, const char *name,
                       const struct metrics *metrics,
                       const struct gauge *gauges)
{
    cJSON *object = cJSON_AddObjectToObject(document, name);
    for (; gauges->name; gauges++)
        cJSON_AddNumberToObject(object, gauges->name,
                                metrics_value(metrics, "%s", gauges->metric));
}

static void add_rates(cJSON *document, const struct top *top)
{
    static const struct {
        const char *name, *start, *part;
    } rates[] = {
        {"calls", "roped_requests_total{", ""},
        {"good", "roped_requests_total{", "status=\"ok\""},
        {"bytes_in", "roped_request_bytes_total{", ""},
        {"bytes_out", "roped_response_bytes_total{", ""},
        {"cpu_seconds", "process_cpu_seconds_total", ""},
    };
    cJSON *object = cJSON_AddObjectToObject(document, "per_second");
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        cJSON_AddNumberToObject(
            object, rates[i].name,
            total_growth(top, rates[i].start, rates[i].part) /
                seconds_between(top));
}

/* What every document begins with. */
static cJSON *new_document(const char *state)
{
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    cJSON *document = cJSON_CreateObject();
    cJSON *look = cJSON_AddObjectToObject(document, "look");
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    cJSON_AddStringToObject(look, "time", text);
    cJSON_AddStringToObject(look, "state", state);
    return document;
}

static cJSON *look_document(const struct top *top)
{
    static const struct gauge load[] = {
        {"in_flight", "roped_inflight_requests"},
        {"waiting", "roped_queue_depth"},
        {"connections", "roped_connections"},
        {NULL}};
    static const struct gauge memory[] = {
        {"resident_bytes", "process_resident_memory_bytes"},
        {"pool_used_bytes", "roped_pool_bytes{state=\"used\"}"},
        {"pool_free_bytes", "roped_pool_bytes{state=\"free\"}"},
        {"mapped_bytes", "roped_mapped_bytes"},
        {"kept_bytes", "roped_kept_bytes"},
        {"table_bytes", "roped_tables_resident_bytes"},
        {NULL}};
    static const struct gauge regions[] = {
        {"resident", "roped_regions{kind=\"resident\"}"},
        {"bytes", "roped_region_bytes{kind=\"resident\"}"},
        {"limit_bytes", "roped_region_memory_bytes"},
        {"system", "roped_regions{kind=\"system\"}"},
        {"cuda", "roped_regions{kind=\"cuda\"}"},
        {NULL}};
    cJSON *document = new_document(top->is_restarted ? "restarted" : "up");
    cJSON *look = cJSON_GetObjectItem(document, "look");
    cJSON_AddNumberToObject(look, "interval_seconds", seconds_between(top));
    add_labels(cJSON_AddObjectToObject(document, "server"),
               metrics_find(&top->now, "roped_build_info{"));
    add_rates(document, top);
    add_gauges(document, "load", &top->now, load);
    add_gauges(document, "memory", &top->now, memory);
    add_gauges(document, "regions", &top->now, regions);
    add_devices(document, top);
    add_operators(document, top);
    return document;
}

/* -------------------------------------------------------------------- looks */

static bool has_restarted(const struct top *top)
{
    return growth(top, "process_start_time_seconds") != 0;
}

/* What is known now is what was before. */
static void keep_now(struct top *top)
{
    metrics_free(&top->before);
    top->before = top->now;
    top->before_seconds = top->now_seconds;
    top->now = (struct metrics){.n = 0};
}

static int look(struct top *top, struct roped_client *client)
{
    struct roped_error err;
    enum roped_status status = metrics_fetch(client, &top->now, &err);
    top->now_seconds = progress_now_seconds();
    if (status) {
        cJSON *document = new_document("unreachable");
        cJSON_AddStringToObject(document, "reason", err.text);
        return show(top, document);
    }
    top->is_restarted = has_restarted(top);
    if (top->is_restarted)
        metrics_free(&top->before);
    int code = show(top, look_document(top));
    keep_now(top);
    return code;
}

/* On a screen keys are taken meanwhile. */
static void wait_until(struct top *top, double end_seconds)
{
    double left;
    while (!top->is_over && (left = end_seconds - progress_now_seconds()) > 0) {
        if (top->is_screen) {
            take_key(top, screen_read_key(left));
            continue;
        }
        double whole = floor(left);
        nanosleep(
            &(struct timespec){(time_t)whole, (long)((left - whole) * 1e9)},
            NULL);
    }
}

static void wait_for_next(struct top *top, double *next_seconds)
{
    double late = progress_now_seconds() - *next_seconds;
    wait_until(top, *next_seconds);
    if (late > 0)
        *next_seconds += late; /* no hurry to catch up */
    *next_seconds += top->interval_seconds;
}

static int look_on(struct top *top, struct roped_client *client)
{
    struct roped_error err;
    int code = EXIT_SUCCESS;
    if (metrics_fetch(client, &top->now, &err))
        return failed_request(client, &err);
    top->now_seconds = progress_now_seconds();
    double next_seconds = top->now_seconds + top->interval_seconds;
    keep_now(top);
    if (top->is_screen)
        screen_enter();
    for (int i = 0; !code && (top->n_looks == 0 || i < top->n_looks); i++) {
        wait_for_next(top, &next_seconds);
        if (top->is_over)
            break;
        code = look(top, client);
    }
    return code;
}

/* ------------------------------------------------------------------ command */

static bool set_interval(void *target, const char *text)
{
    return read_number(text, 86400, &((struct top *)target)->interval_seconds);
}

static bool set_count(void *target, const char *text)
{
    double n;
    bool is_count = read_number(text, MOST_LOOKS, &n) && n == floor(n);
    ((struct top *)target)->n_looks = is_count ? (int)n : 0;
    return is_count;
}

static const struct option_row options[] = {
    {"interval", set_interval, "seconds above 0"},
    {"count", set_count, "a number above 0"},
    {NULL}};

int command_top(const struct ropectl *ctl, int argc, char **argv)
{
    struct top top = {
        .ctl = *ctl, .interval_seconds = 1, .sorted_by = BY_CALLS};
    int code = take_options("top", options, argc - 1, argv + 1, &top);
    if (code)
        return code;
    top.is_screen = !ctl->is_json && is_terminal(stdout);
    if (top.ctl.options.timeout_seconds == 0)
        top.ctl.options.timeout_seconds = patience_seconds;
    struct roped_client *client = connect_to(&top.ctl);
    if (!client)
        return EXIT_FAILURE;
    code = look_on(&top, client);
    roped_client_close(client);
    cJSON_Delete(top.shown);
    metrics_free(&top.before);
    metrics_free(&top.now);
    return code;
}
