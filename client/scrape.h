/*
 * scrape.h - what GET /metrics answers, by name. A name has its labels:
 * 'roped_lanes{device="0",state="busy"}'.
 */
#ifndef ROPED_CLIENT_SCRAPE_H
#define ROPED_CLIENT_SCRAPE_H

#include "ropectl.h"

struct metric {
    const char *name;
    double value;
};
struct metrics {
    char *text;
    struct metric *metric;        /* in the server's order */
    const struct metric **sorted; /* the same by name */
    int n;
};

/* Asks for them. metrics_free, also after a failure. */
ROPED_MUST_CHECK enum roped_status metrics_fetch(struct roped_client *client,
                                                 struct metrics *metrics,
                                                 struct roped_error *err);
void metrics_free(struct metrics *metrics);

/* A metric whose name begins so, the first by name, or NULL. */
const struct metric *metrics_find(const struct metrics *metrics,
                                  const char *start);

/* Value of the metric of this name, or 0. */
double metrics_value(const struct metrics *metrics, const char *format, ...)
    ROPED_PRINTF(2, 3);

/* The labels of a metric as members of an object. */
void add_labels(cJSON *object, const struct metric *metric);

#endif
