/*
 * command_status.c - status: is the server ready, and what its metrics say in
 * a few lines.
 */
#include "scrape.h"

#include <stdlib.h>

static void add_devices(cJSON *document, const struct metrics *metrics)
{
    char busy[64];
    cJSON *devices = cJSON_AddArrayToObject(document, "devices");
    for (int i = 0;; i++) {
        snprintf(busy, sizeof busy, "roped_lanes{device=\"%d\",state=\"busy\"}",
                 i);
        if (!metrics_find(metrics, busy))
            return;
        cJSON *device = add_row(devices);
        cJSON_AddNumberToObject(device, "device", i);
        cJSON_AddNumberToObject(device, "lanes_busy",
                                metrics_value(metrics, "%s", busy));
        cJSON_AddNumberToObject(
            device, "lanes_idle",
            metrics_value(metrics, "roped_lanes{device=\"%d\",state=\"idle\"}",
                          i));
        cJSON_AddNumberToObject(
            device, "jobs",
            metrics_value(metrics, "roped_device_jobs_total{device=\"%d\"}",
                          i));
    }
}

static void add_operators(cJSON *document, const struct metrics *metrics)
{
    cJSON *operators = cJSON_AddArrayToObject(document, "operators");
    for (int i = 0; i < roped_op_count(); i++) {
        const char *name = roped_op_at(i)->name;
        cJSON *op = add_row(operators);
        double n = metrics_value(
            metrics, "roped_request_duration_seconds_count{op=\"%s\"}", name);
        double total = metrics_value(
            metrics, "roped_request_duration_seconds_sum{op=\"%s\"}", name);
        double kernel = metrics_value(
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

static cJSON *status_document(const struct metrics *metrics)
{
    cJSON *document = cJSON_CreateObject();
    double used = metrics_value(metrics, "roped_pool_bytes{state=\"used\"}"),
           idle = metrics_value(metrics, "roped_pool_bytes{state=\"free\"}");
    cJSON_AddBoolToObject(document, "ready", true);
    add_labels(cJSON_AddObjectToObject(document, "build"),
               metrics_find(metrics, "roped_build_info{"));
    add_devices(document, metrics);
    cJSON_AddNumberToObject(document, "waiting_calls",
                            metrics_value(metrics, "roped_queue_depth"));
    cJSON_AddNumberToObject(document, "pool_used_bytes", used);
    cJSON_AddNumberToObject(document, "pool_bytes", used + idle);
    cJSON_AddNumberToObject(
        document, "table_bytes",
        metrics_value(metrics, "roped_tables_resident_bytes"));
    cJSON_AddNumberToObject(
        document, "region_bytes",
        metrics_value(metrics, "roped_region_bytes{kind=\"resident\"}"));
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
    struct metrics metrics = {.n = 0};
    char *answer = NULL;
    int code;
    if (argc != 1)
        return usage("status", "no arguments, found '%s'", argv[1]);
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_request(
        client, "GET", "/v2/health/ready", NULL, 0, &answer, &err);
    bool is_ready = !status || roped_client_http_status(client) != 503;
    free(answer);
    if (!status)
        status = metrics_fetch(client, &metrics, &err);
    if (!is_ready)
        code = print_not_ready(ctl, err.text);
    else if (status)
        code = failed_request(client, &err);
    else
        code = print_document(ctl, status_document(&metrics));
    roped_client_close(client);
    metrics_free(&metrics);
    return code;
}
