/*
 * scrape.c - reads Prometheus' text format: a name with labels, a space, a
 * value on each line; '#' starts comments.
 */
#include "scrape.h"

#include "number.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A daemon has some thousands. */
enum { MAX_METRICS = 1 << 16, MAX_LABELS = 16 };

/* Cuts text into lines, and each line into name and value: how many there
 * would be with room for max. */
static int split(char *text, struct metric *metric, int max)
{
    char *rest = text, *line;
    int n = 0;
    while (n <= max && (line = strsep(&rest, "\n"))) {
        char *space = strrchr(line, ' ');
        if (line[0] == '#' || !space)
            continue;
        *space = '\0';
        if (n < max)
            metric[n] = (struct metric){line, number_read(space + 1, NULL)};
        n++;
    }
    return n;
}

static int compare_names(const void *a, const void *b)
{
    const struct metric *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

enum roped_status metrics_fetch(struct roped_client *client,
                                struct metrics *metrics,
                                struct roped_error *err)
{
    *metrics = (struct metrics){.n = 0};
    enum roped_status status = roped_client_request(
        client, "GET", "/metrics", NULL, 0, &metrics->text, err);
    if (status)
        return status;
    metrics->metric = must_have(malloc(MAX_METRICS * sizeof *metrics->metric));
    int n = split(metrics->text, metrics->metric, MAX_METRICS);
    if (n > MAX_METRICS)
        return roped_fail(err, ROPED_INTERNAL,
                          "the answer to GET /metrics has over %d metrics",
                          MAX_METRICS);
    metrics->n = n;
    metrics->sorted =
        must_have(malloc(((size_t)n + 1) * sizeof *metrics->sorted));
    for (int i = 0; i < n; i++)
        metrics->sorted[i] = &metrics->metric[i];
    qsort(metrics->sorted, (size_t)n, sizeof *metrics->sorted, compare_names);
    return ROPED_OK;
}

void metrics_free(struct metrics *metrics)
{
    free(metrics->metric);
    free(metrics->sorted);
    free(metrics->text);
    *metrics = (struct metrics){.n = 0};
}

/* The first of the sorted whose name is not below this one. */
static int lower_bound(const struct metrics *metrics, const char *name)
{
    int from = 0, to = metrics->n;
    while (from < to) {
        int middle = from + (to - from) / 2;
        if (strcmp(metrics->sorted[middle]->name, name) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct metric *metrics_find(const struct metrics *metrics,
                                  const char *start)
{
    int i = lower_bound(metrics, start);
    return i < metrics->n &&
                   strncmp(metrics->sorted[i]->name, start, strlen(start)) == 0
               ? metrics->sorted[i]
               : NULL;
}

double metrics_value(const struct metrics *metrics, const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    int i = lower_bound(metrics, name);
    return i < metrics->n && strcmp(metrics->sorted[i]->name, name) == 0
               ? metrics->sorted[i]->value
               : 0;
}

void add_labels(cJSON *object, const struct metric *metric)
{
    char name[64], value[128];
    int taken = 0, left = MAX_LABELS;
    const char *at = metric ? strchr(metric->name, '{') : NULL;
    while (at && left-- > 0 &&
           sscanf(++at, "%63[a-z_]=\"%127[^\"]\"%n", name, value, &taken) ==
               2) {
        cJSON_AddStringToObject(object, name, value);
        at += taken;
        if (*at != ',')
            return;
    }
}
