/*
 * stats.h - samples of seconds, and what is said about them.
 */
#ifndef ROPED_TESTS_LOAD_STATS_H
#define ROPED_TESTS_LOAD_STATS_H

#include <stddef.h>

enum { STATS_MOST_SAMPLES = 1 << 22 }; /* what comes after is not kept */

/* Zeros are an empty list; stats_free gives its memory back. */
struct samples {
    double *value;
    size_t n, room;
};

void stats_add(struct samples *samples, double value);
void stats_free(struct samples *samples);

/* The value that a share of the samples does not exceed; sorts them. 0 where
 * there are none. */
double stats_quantile(struct samples *samples, double share);

#endif
