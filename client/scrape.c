/*
 * scrape.c - reads Prometheus' text format: a name with labels, a space, a
 * value on each line; '#' starts comments.
 */
#include "scrape.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Cuts text into lines, and each line into name and value. */
static void split(struct metrics *metrics)
{
    char *rest = metrics->text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *space = strrchr(line, ' ');
        if (line[0] == '#' || !space)
            continue;
        *space = '\0';
        metrics->metric[metrics->n++] =
            (struct metric){line, strtod(space + 1, NULL)};
    }
}

enum roped_status metrics_fetch(struct roped_client *client,
                                struct metrics *metrics,
                                struct roped_error *err)
{
    size_t n_lines = 1;
    *metrics = (struct metrics){.n = 0};
    enum roped_status status = roped_client_request(
        client, "GET", "/metrics", NULL, 0, &metrics->text, err);
    if (status)
        return status;
    for (const char *at = metrics->text; *at; at++)
        n_lines += *at == '\n';
    metrics->metric = must_have(malloc(n_lines * sizeof *metrics->metric));
    split(metrics);
    return ROPED_OK;
}

void metrics_free(struct metrics *metrics)
{
    free(metrics->metric);
    free(metrics->text);
    *metrics = (struct metrics){.n = 0};
}

const struct metric *metrics_find(const struct metrics *metrics,
                                  const char *start)
{
    size_t bytes = strlen(start);
    for (int i = 0; i < metrics->n; i++)
        if (strncmp(metrics->metric[i].name, start, bytes) == 0)
            return &metrics->metric[i];
    return NULL;
}

double metrics_value(const struct metrics *metrics, const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (int i = 0; i < metrics->n; i++)
        if (strcmp(metrics->metric[i].name, name) == 0)
            return metrics->metric[i].value;
    return 0;
}

void add_labels(cJSON *object, const struct metric *metric)
{
    char name[64], value[128];
    int taken = 0;
    const char *at = metric ? strchr(metric->name, '{') : NULL;
    while (at && sscanf(++at, "%63[a-z_]=\"%127[^\"]\"%n", name, value,
                        &taken) == 2) {
        cJSON_AddStringToObject(object, name, value);
        at += taken;
        if (*at != ',')
            return;
    }
}
