/*
 * report.h - the rows of a run: a table for people, a line of JSON each for
 * programs, goals beside what was measured.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_REPORT_H
#define ROPED_TESTS_BENCH_HTTP_REPORT_H

#include "load/client.h"

#include <stdio.h>

enum { ROW_TEXT = 128 };

/* 0 in a field: not measured, or no such goal. */
struct row {
    char name[ROW_TEXT];
    double p50_us, p99_us, p999_us;
    double calls_per_s, gb_per_s; /* bytes both ways */
    double cpu_us;                /* of the server per call */

    double value; /* what the goals are about */
    const char *unit;
    double best; /* value of the best runs; 0: none */
    double must, stretch;
    bool is_ceiling; /* value is to be at most that; else at least */

    struct phases phases;
    char note[ROW_TEXT];
};

struct report {
    FILE *json; /* or NULL */
    const char *backend;
    int n_rows, n_goals, n_must, n_stretch; /* reached */
};

/* Prints a row; a title starts a group of them. */
void report_title(struct report *report, const char *text);
void report_row(struct report *report, const struct row *row);
void report_end(const struct report *report);

#endif
