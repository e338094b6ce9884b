/*
 * compare.c - two files of measurements, row by row.
 */
#include "bench/compare.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { IS_FINE, IS_SLOWER, IS_UNREADABLE };
enum { NAME_BYTES = 96, BACKEND_BYTES = 16 };

/* One line of a file. */
struct run {
    char row[NAME_BYTES], backend[BACKEND_BYTES];
    double us, copy_us, share, spread, copy_spread;
};

struct side {
    const char *path;
    struct run *run;
    int n_runs;
};

/* What all runs of one row say together. */
struct figure {
    double relative; /* time / time of the copy */
    double share, noise;
    int n_runs;
};

/* --------------------------------------------------------------- reading */

static bool read_text(const cJSON *line, const char *name, char *out,
                      size_t n_bytes)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(line, name));
    return text && *text && snprintf(out, n_bytes, "%s", text) < (int)n_bytes;
}

/* Member by member what bench_ops prints of what it has measured; the first
 * that is not there, or NULL. */
static const char *parse_members(const cJSON *line, struct run *run)
{
    double unused;
    const struct {
        const char *name, *missing;
        double *to;
    } number[] = {
        {"us", "\"us\", a number", &run->us},
        {"copy_us", "\"copy_us\", a number", &run->copy_us},
        {"share", "\"share\", a number", &run->share},
        {"goal", "\"goal\", a number", &unused},
        {"spread", "\"spread\", a number", &run->spread},
        {"copy_spread", "\"copy_spread\", a number", &run->copy_spread},
        {"bytes", "\"bytes\", a number", &unused},
        {"bits_differ", "\"bits_differ\", a number", &unused}};
    if (!read_text(line, "row", run->row, sizeof run->row))
        return "\"row\", text";
    if (!read_text(line, "backend", run->backend, sizeof run->backend))
        return "\"backend\", text";
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        const cJSON *item = cJSON_GetObjectItem(line, number[i].name);
        if (!cJSON_IsNumber(item))
            return number[i].missing;
        *number[i].to = item->valuedouble;
    }
    if (!(run->us > 0 && isfinite(run->us)))
        return "\"us\" above 0";
    if (!(run->copy_us > 0 && isfinite(run->copy_us)))
        return "\"copy_us\" above 0";
    if (!(run->spread >= 0 && isfinite(run->spread) && run->copy_spread >= 0 &&
          isfinite(run->copy_spread)))
        return "\"spread\" and \"copy_spread\" of 0 or more";
    return NULL;
}

/* A line that is no JSON has no member, and one that was cut has no end. */
static const char *parse_run(const char *text, struct run *run)
{
    cJSON *line = cJSON_ParseWithOpts(text, NULL, true);
    const char *missing = parse_members(line, run);
    cJSON_Delete(line);
    if (!missing && text[strlen(text) - 1] != '\n')
        return "\"bits_differ\" to end the line";
    return missing;
}

static void append_run(struct side *side, const struct run *run)
{
    struct run *grown =
        realloc(side->run, (size_t)(side->n_runs + 1) * sizeof *grown);
    if (!grown)
        abort();
    side->run = grown;
    side->run[side->n_runs++] = *run;
}

static bool read_lines(FILE *file, struct side *side, FILE *errors)
{
    char *line = NULL;
    size_t line_bytes = 0;
    const char *missing = NULL;
    struct run run;
    for (int number = 1; getline(&line, &line_bytes, file) >= 0; number++) {
        missing = parse_run(line, &run);
        if (missing) {
            fprintf(errors, "bench_ops: %s: line %d: expected %s\n", side->path,
                    number, missing);
            break;
        }
        append_run(side, &run);
    }
    free(line);
    if (!missing && side->n_runs == 0)
        fprintf(errors,
                "bench_ops: %s: line 1: expected \"row\", found no line\n",
                side->path);
    return !missing && side->n_runs > 0;
}

static bool read_side(const char *path, struct side *side, FILE *errors)
{
    side->path = path;
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(errors, "bench_ops: %s: %s\n", path, strerror(errno));
        return false;
    }
    bool is_read = read_lines(file, side, errors);
    fclose(file);
    return is_read;
}

/* --------------------------------------------------------------- judging */

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Sorts value. */
static double median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, by_size);
    return (value[(n - 1) / 2] + value[n / 2]) / 2;
}

static bool is_same_row(const struct run *a, const struct run *b)
{
    return strcmp(a->row, b->row) == 0 && strcmp(a->backend, b->backend) == 0;
}

/* The figure of a row on one side; n_runs 0 where it is not there. */
static struct figure figure_of(const struct side *side, const struct run *row)
{
    struct figure figure = {.n_runs = 0};
    double *relative = malloc((size_t)side->n_runs * sizeof *relative);
    double *share = malloc((size_t)side->n_runs * sizeof *share);
    if (!relative || !share)
        abort();
    for (int i = 0; i < side->n_runs; i++) {
        const struct run *run = &side->run[i];
        if (!is_same_row(run, row))
            continue;
        relative[figure.n_runs] = run->us / run->copy_us;
        share[figure.n_runs++] = run->share;
        figure.noise = hypot(run->spread, run->copy_spread);
    }
    if (figure.n_runs > 0) {
        figure.relative = median(relative, figure.n_runs);
        figure.share = median(share, figure.n_runs);
    }
    if (figure.n_runs > 1)
        figure.noise =
            (relative[figure.n_runs - 1] - relative[0]) / figure.relative;
    free(relative);
    free(share);
    return figure;
}

/* Is this the first run of its row? Rows are listed in the file's order. */
static bool is_first(const struct side *side, int at)
{
    for (int i = 0; i < at; i++)
        if (is_same_row(&side->run[i], &side->run[at]))
            return false;
    return true;
}

struct tally {
    int n_matched, n_slower, n_vanished, n_new;
};

static void compare_row(const struct run *row, const struct side *old,
                        const struct side *new, FILE *table,
                        struct tally *tally)
{
    struct figure before = figure_of(old, row), after = figure_of(new, row);
    if (after.n_runs == 0) {
        fprintf(table, "%-42s %-5s %6.3f   gone\n", row->row, row->backend,
                before.share);
        tally->n_vanished++;
        return;
    }
    double noise = hypot(before.noise, after.noise);
    double ratio = after.relative / before.relative;
    bool is_slower = ratio > 1 + 3 * noise + 0.02;
    fprintf(table, "%-42s %-5s %6.3f %6.3f %6.3f  +-%.1f%%%s\n", row->row,
            row->backend, before.share, after.share, ratio, noise * 100,
            is_slower ? "  SLOWER" : "");
    tally->n_matched++;
    tally->n_slower += is_slower;
}

static int compare_sides(const struct side *old, const struct side *new,
                         FILE *table, FILE *errors)
{
    struct tally tally = {0};
    fprintf(table, "%-42s %-5s %6s %6s %6s  noise\n", "row", "on", "old", "new",
            "time");
    for (int i = 0; i < old->n_runs; i++)
        if (is_first(old, i))
            compare_row(&old->run[i], old, new, table, &tally);
    for (int i = 0; i < new->n_runs; i++) {
        const struct run *row = &new->run[i];
        if (!is_first(new, i) || figure_of(old, row).n_runs > 0)
            continue;
        fprintf(table, "%-42s %-5s    new %6.3f\n", row->row, row->backend,
                figure_of(new, row).share);
        tally.n_new++;
    }
    fprintf(table, "%d rows compared, %d slower, %d gone, %d new\n",
            tally.n_matched, tally.n_slower, tally.n_vanished, tally.n_new);
    if (tally.n_matched == 0) {
        fprintf(errors, "bench_ops: no row is in both %s and %s\n", old->path,
                new->path);
        return IS_UNREADABLE;
    }
    return tally.n_slower ? IS_SLOWER : IS_FINE;
}

int compare_files(const char *old_path, const char *new_path, FILE *table,
                  FILE *errors)
{
    struct side old = {.n_runs = 0}, new = {.n_runs = 0};
    int verdict = IS_UNREADABLE;
    if (read_side(old_path, &old, errors) && read_side(new_path, &new, errors))
        verdict = compare_sides(&old, &new, table, errors);
    free(old.run);
    free(new.run);
    return verdict;
}
