/*
 * command_status.c - status: is the server ready, and what its metrics say in
 * a few lines.
 */
#include "ropectl.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The line behind a sample's name, or NULL. */
static const char *find_sample(const char *metrics, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = metrics; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0)
            return line + length;
    }
    return NULL;
}

/* Value of the sample with this name and these labels, or 0. */
static double ROPED_PRINTF(2, 3)
    sample(const char *metrics, const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const char *at = find_sample(metrics, name);
    return at ? strtod(at, NULL) : 0;
}

/* name="value",... as members of an object */
static void add_labels(cJSON *object, const char *at)
{
    char name[64], value[128];
    int taken = 0;
    while (sscanf(at, "%63[a-z_]=\"%127[^\"]\"%n", name, value, &taken) == 2) {
        cJSON_AddStringToObject(object, name, value);
        at += taken;
        if (*at++ != ',')
            return;
    }
}

static void add_devices(cJSON *document, const char *metrics)
{
    char busy[64];
    cJSON *devices = cJSON_AddArrayToObject(document, "devices");
    for (int i = 0;; i++) {
        snprintf(busy, sizeof busy, "roped_lanes{device=\"%d\",state=\"busy\"}",
                 i);
        if (!find_sample(metrics, busy))
            return;
        cJSON *device = add_row(devices);
        cJSON_AddNumberToObject(device, "device", i);
        cJSON_AddNumberToObject(device, "lanes_busy",
                                sample(metrics, "%s", busy));
        cJSON_AddNumberToObject(
            device, "lanes_idle",
            sample(metrics, "roped_lanes{device=\"%d\",state=\"idle\"}", i));
        cJSON_AddNumberToObject(
            device, "jobs",
            sample(metrics, "roped_device_jobs_total{device=\"%d\"}", i));
    }
}

static void add_operators(cJSON *document, const char *metrics)
{
    cJSON *operators = cJSON_AddArrayToObject(document, "operators");
    for (int i = 0; i < roped_op_count(); i++) {
        const char *name = roped_op_at(i)->name;
        cJSON *op = add_row(operators);
        double n = sample(
            metrics, "roped_request_duration_seconds_count{op=\"%s\"}", name);
        double total = sample(
            metrics, "roped_request_duration_seconds_sum{op=\"%s\"}", name);
        double kernel = sample(
            metrics,
            "roped_stage_duration_seconds_sum{op=\"%s\",stage=\"kernel\"}",
            name);
        cJSON_AddStringToObject(op, "name", name);
        cJSON_AddNumberToObject(op, "calls", n);
        cJSON_AddNumberToObject(op, "mean_ms", n > 0 ? total / n * 1e3 : 0);
        cJSON_AddNumberToObject(op, "mean_kernel_ms",
                                n > 0 ? kernel / n * 1e3 : 0);
    }
}

static cJSON *status_document(const char *metrics)
{
    cJSON *document = cJSON_CreateObject();
    const char *build = find_sample(metrics, "roped_build_info{");
    double used = sample(metrics, "roped_pool_bytes{state=\"used\"}"),
           idle = sample(metrics, "roped_pool_bytes{state=\"free\"}");
    cJSON_AddBoolToObject(document, "ready", true);
    add_labels(cJSON_AddObjectToObject(document, "build"), build ? build : "");
    add_devices(document, metrics);
    cJSON_AddNumberToObject(document, "waiting_calls",
                            sample(metrics, "roped_queue_depth"));
    cJSON_AddNumberToObject(document, "pool_used_bytes", used);
    cJSON_AddNumberToObject(document, "pool_bytes", used + idle);
    cJSON_AddNumberToObject(document, "table_bytes",
                            sample(metrics, "roped_tables_resident_bytes"));
    cJSON_AddNumberToObject(
        document, "region_bytes",
        sample(metrics, "roped_region_bytes{kind=\"resident\"}"));
    add_operators(document, metrics);
    return document;
}

/* A server that is not ready says why: that is an answer too. */
static int print_not_ready(const struct ropectl *ctl, const char *reason)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddBoolToObject(document, "ready", false);
    cJSON_AddStringToObject(document, "reason", reason);
    print_document(ctl, document);
    return EXIT_FAILURE;
}

int command_status(const struct ropectl *ctl, int argc, char **argv)
{
    struct roped_error err;
    char *answer;
    if (argc != 1)
        return usage("status", "no arguments, found '%s'", argv[1]);
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_request(
        client, "GET", "/v2/health/ready", NULL, 0, &answer, &err);
    bool is_ready = !status || roped_client_http_status(client) != 503;
    if (!status) {
        free(answer);
        status = roped_client_request(client, "GET", "/metrics", NULL, 0,
                                      &answer, &err);
    }
    int code = status && is_ready ? failed_request(client, &err) : EXIT_SUCCESS;
    roped_client_close(client);
    if (!is_ready)
        return print_not_ready(ctl, err.text);
    if (code)
        return code;
    cJSON *document = status_document(answer);
    free(answer);
    return print_document(ctl, document);
}
