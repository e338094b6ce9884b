/*
 * command_status.c - status: is the server ready, and what its metrics say in
 * a few lines.
 */
#include "ropectl.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1 << 20;

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
        cJSON *device = cJSON_CreateObject();
        cJSON_AddItemToArray(devices, device);
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
        cJSON *op = cJSON_CreateObject();
        cJSON_AddItemToArray(operators, op);
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

static double number(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

static const char *text(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

static void print_status(const cJSON *document)
{
    const cJSON *item;
    puts("ready     yes");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(document, "build"))
        printf("%-9s %s\n", item->string, item->valuestring);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(document, "devices"))
        printf("device %-2.0f %.0f lanes busy, %.0f idle; %.0f jobs so far\n",
               number(item, "device"), number(item, "lanes_busy"),
               number(item, "lanes_idle"), number(item, "jobs"));
    printf("queue     %.0f calls wait\n", number(document, "waiting_calls"));
    printf("memory    pool %.1f MiB used of %.1f; tables %.1f MiB\n",
           number(document, "pool_used_bytes") / mib,
           number(document, "pool_bytes") / mib,
           number(document, "table_bytes") / mib);
    printf("regions   %.1f MiB\n", number(document, "region_bytes") / mib);
    printf("%-20s %10s %12s %12s\n", "operator", "calls", "mean ms",
           "kernel ms");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(document, "operators"))
        printf("%-20s %10.0f %12.4f %12.4f\n", text(item, "name"),
               number(item, "calls"), number(item, "mean_ms"),
               number(item, "mean_kernel_ms"));
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
    if (!status) {
        free(answer);
        status = roped_client_request(client, "GET", "/metrics", NULL, 0,
                                      &answer, &err);
    }
    roped_client_close(client);
    if (status)
        return fail(&err);
    cJSON *document = status_document(answer);
    free(answer);
    if (ctl->is_json)
        return print_json(stdout, document);
    print_status(document);
    cJSON_Delete(document);
    return EXIT_SUCCESS;
}
