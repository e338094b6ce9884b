/*
 * stats.c - lists of doubles.
 */
#include "load/stats.h"

#include <stdio.h>
#include <stdlib.h>

void stats_add(struct samples *samples, double value)
{
    if (samples->n == STATS_MOST_SAMPLES)
        return;
    if (samples->n == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 1024;
        samples->value =
            realloc(samples->value, samples->room * sizeof *samples->value);
        if (!samples->value) {
            fprintf(stderr, "no memory for samples\n");
            exit(EXIT_FAILURE);
        }
    }
    samples->value[samples->n++] = value;
}

void stats_free(struct samples *samples)
{
    free(samples->value);
    *samples = (struct samples){0};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_quantile(struct samples *samples, double share)
{
    if (samples->n == 0)
        return 0;
    qsort(samples->value, samples->n, sizeof *samples->value, compare);
    size_t i = (size_t)(share * (double)samples->n);
    return samples->value[i < samples->n ? i : samples->n - 1];
}
