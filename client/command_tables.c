/*
 * command_tables.c - tables: rotary tables of the server; status: its state.
 */
#include "ropectl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One request whose answer is printed as it comes. */
static int print_answer(const struct ropectl *ctl, const char *method,
                        const char *path, const void *body, size_t bytes)
{
    struct roped_error err;
    char *text;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status =
        roped_client_request(client, method, path, body, bytes, &text, &err);
    roped_client_close(client);
    if (status)
        return fail(&err);
    puts(text);
    free(text);
    return EXIT_SUCCESS;
}

int command_tables(const struct ropectl *ctl, int argc, char **argv)
{
    char path[128];
    size_t bytes;
    const char *verb = argc > 1 ? argv[1] : "list";
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, "GET", "/v1/tables", NULL, 0);
    if (argc >= 3)
        snprintf(path, sizeof path, "/v1/tables/%.63s", argv[2]);
    if (argc == 3 && strcmp(verb, "get") == 0)
        return print_answer(ctl, "GET", path, NULL, 0);
    if (argc == 3 && strcmp(verb, "delete") == 0)
        return print_answer(ctl, "DELETE", path, NULL, 0);
    if (argc != 4 || strcmp(verb, "put") != 0)
        return usage("tables [list | put NAME FILE | get NAME | delete NAME]");
    unsigned char *body = read_input(argv[3], &bytes);
    if (!body)
        return EXIT_FAILURE;
    int code = print_answer(ctl, "PUT", path, body, bytes);
    free(body);
    return code;
}

/* Value of a sample whose line starts with name, or 0. */
static double sample(const char *metrics, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = metrics; line && *line;) {
        if (strncmp(line, name, length) == 0)
            return strtod(line + length, NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return 0;
}

static void print_build(const char *metrics)
{
    const char *at = strstr(metrics, "\nroped_build_info{");
    if (at)
        printf("%.*s\n", (int)strcspn(at + 18, "}"), at + 18);
}

/* A line for each device. */
static void print_devices(const char *metrics)
{
    char busy[64], idle[64], jobs[64];
    for (int i = 0;; i++) {
        snprintf(busy, sizeof busy,
                 "\nroped_lanes{device=\"%d\",state=\"busy\"}", i);
        if (!strstr(metrics, busy))
            return;
        snprintf(idle, sizeof idle, "roped_lanes{device=\"%d\",state=\"idle\"}",
                 i);
        snprintf(jobs, sizeof jobs, "roped_device_jobs_total{device=\"%d\"}",
                 i);
        printf("device %-2d %.0f lanes busy, %.0f idle; %.0f jobs so far\n", i,
               sample(metrics, busy + 1), sample(metrics, idle),
               sample(metrics, jobs));
    }
}

static void print_ops(const char *metrics)
{
    char name[160];
    printf("%-15s %10s %12s %12s\n", "operator", "calls", "mean ms",
           "kernel ms");
    for (int i = 0; i < roped_op_count(); i++) {
        const char *op = roped_op_at(i)->name;
        snprintf(name, sizeof name,
                 "roped_request_duration_seconds_count{op=\"%s\"}", op);
        double n = sample(metrics, name);
        snprintf(name, sizeof name,
                 "roped_request_duration_seconds_sum{op=\"%s\"}", op);
        double total = sample(metrics, name);
        snprintf(name, sizeof name,
                 "roped_stage_duration_seconds_sum{op=\"%s\",stage=\"kernel\"}",
                 op);
        double kernel = sample(metrics, name);
        printf("%-15s %10.0f %12.4f %12.4f\n", op, n,
               n > 0 ? total / n * 1e3 : 0, n > 0 ? kernel / n * 1e3 : 0);
    }
}

int command_status(const struct ropectl *ctl, int argc, char **argv)
{
    struct roped_error err;
    char *text;
    (void)argv;
    if (argc != 1)
        return usage("status");
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_request(
        client, "GET", "/v2/health/ready", NULL, 0, &text, &err);
    if (!status) {
        printf("ready     %s\n", text);
        free(text);
        status = roped_client_request(client, "GET", "/metrics", NULL, 0, &text,
                                      &err);
    }
    roped_client_close(client);
    if (status)
        return fail(&err);
    print_build(text);
    print_devices(text);
    printf("queue     %.0f calls wait\n", sample(text, "roped_queue_depth"));
    printf("memory    pool %.1f MiB used of %.1f; tables %.1f MiB\n",
           sample(text, "roped_pool_bytes{state=\"used\"}") / 1048576,
           (sample(text, "roped_pool_bytes{state=\"used\"}") +
            sample(text, "roped_pool_bytes{state=\"free\"}")) /
               1048576,
           sample(text, "roped_tables_resident_bytes") / 1048576);
    print_ops(text);
    free(text);
    return EXIT_SUCCESS;
}
