/*
 * command_tables.c - tables: rotary tables of the server; status: its state.
 */
#include "query.h"
#include "ropectl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int command_tables(const struct ropectl *ctl, int argc, char **argv)
{
    struct buffer path;
    const char *verb = argc > 1 ? argv[1] : "list";
    int code;
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, "GET", "/v1/tables", NULL, 0);
    buffer_init(&path);
    buffer_text(&path, "/v1/tables/");
    if (argc > 2)
        query_encode(&path, argv[2], NULL);
    if (argc == 3 && strcmp(verb, "get") == 0)
        code = print_answer(ctl, "GET", path.text, NULL, 0);
    else if (argc == 3 && strcmp(verb, "delete") == 0)
        code = print_answer(ctl, "DELETE", path.text, NULL, 0);
    else if (argc == 4 && strcmp(verb, "put") == 0)
        code = put_file(ctl, path.text, argv[3]);
    else
        code = usage("tables", "'%s' is no verb with %d arguments", verb,
                     argc > 2 ? argc - 2 : 0);
    buffer_fini(&path);
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

static void print_ops(const char *metrics)
{
    char name[160];
    printf("%-20s %10s %12s %12s\n", "operator", "calls", "mean ms",
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
        printf("%-20s %10.0f %12.4f %12.4f\n", op, n,
               n > 0 ? total / n * 1e3 : 0, n > 0 ? kernel / n * 1e3 : 0);
    }
}

int command_status(const struct ropectl *ctl, int argc, char **argv)
{
    struct roped_error err;
    char *text;
    if (argc != 1)
        return usage("status", "no arguments, found '%s'", argv[1]);
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
    printf("lanes     %.0f busy, %.0f idle; %.0f calls wait\n",
           sample(text, "roped_lanes{state=\"busy\"}"),
           sample(text, "roped_lanes{state=\"idle\"}"),
           sample(text, "roped_queue_depth"));
    printf("memory    pool %.1f MiB used of %.1f; tables %.1f MiB\n",
           sample(text, "roped_pool_bytes{state=\"used\"}") / 1048576,
           (sample(text, "roped_pool_bytes{state=\"used\"}") +
            sample(text, "roped_pool_bytes{state=\"free\"}")) /
               1048576,
           sample(text, "roped_tables_resident_bytes") / 1048576);
    printf("regions   %.1f MiB\n",
           sample(text, "roped_region_bytes{kind=\"resident\"}") / 1048576);
    print_ops(text);
    free(text);
    return EXIT_SUCCESS;
}
