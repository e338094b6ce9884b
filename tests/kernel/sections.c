/*
 * sections.c - positions on several axes.
 */
#include "kernel/sections.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(struct random_call *made, const char *name, const char *value)
{
    int param = roped_op_param(made->op, name);
    made->has_param[param] = value != NULL;
    snprintf(made->param[param], RANDOM_CALL_TEXT, "%s", value ? value : "");
}

/* n_axes integers: each, and what equal ones leave in the first or the last. */
static const char *list_of(char *text, int n_axes, int64_t each, int64_t first,
                           int64_t last)
{
    int at = 0;
    for (int i = 0; i < n_axes; i++)
        at += snprintf(text + at, RANDOM_CALL_TEXT - (size_t)at, "%s%lld",
                       i ? "," : "",
                       (long long)(each + (i == 0 ? first : 0) +
                                   (i == n_axes - 1 ? last : 0)));
    return text;
}

static void set_axes(struct random_call *made, int n_axes,
                     struct random_source *source)
{
    char text[RANDOM_CALL_TEXT];
    int at = snprintf(text, sizeof text, "%d", n_axes - 1);
    for (int i = 1; i < n_axes; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, ",%d",
                       (int)random_int(source, 0, n_axes - 1));
    set(made, "mrope_axes", text);
}

/* The first section, or behind those that take turns the last, has what the
 * others leave; axial_dealt has sections of one size. */
static void set_sections(struct random_call *made, int64_t n_pairs, int n_axes,
                         struct random_source *source)
{
    static const char *const scalings[] = {NULL, NULL, "axial", "axial_dealt"};
    char text[RANDOM_CALL_TEXT];
    int64_t each = n_pairs / n_axes, left = n_pairs - n_axes * each;
    const char *scaling = scalings[random_int(source, 0, 3)];
    int how = (int)random_int(source, 0, 2);
    int turns = how == 1 ? (int)random_int(source, 2, n_axes) : 0;
    if (turns == n_axes && left)
        turns = 0;
    set(made, "mrope_section",
        list_of(text, n_axes, each, turns ? 0 : left, turns ? left : 0));
    set(made, "mrope_interleaved", how == 2 ? "true" : NULL);
    snprintf(text, sizeof text, "%d", turns);
    set(made, "mrope_turns", turns ? text : NULL);
    set(made, "mrope_axes", NULL);
    if (random_once_in(source, 2))
        set_axes(made, n_axes, source);
    if (!scaling)
        return;
    /* nothing that another scaling has goes with it */
    for (int i = roped_op_param(made->op, "scaling");
         i < roped_op_params(made->op); i++)
        if (strncmp(made->op->param[i].name, "mrope_", 6) != 0)
            made->has_param[i] = false;
    set(made, "scaling", scaling);
}

/* A row for each axis: the one there is, and others of other tokens. */
static struct roped_tensor rows_of(const struct roped_tensor *from, int n_axes)
{
    int64_t n = from->dims[0];
    struct roped_tensor rows = {
        .dtype = from->dtype, .rank = 2, .dims = {n_axes, n}};
    rows.data = malloc((size_t)roped_tensor_bytes(&rows) + 1);
    if (!rows.data)
        abort();
    for (int64_t i = 0; i < n_axes * n; i++) {
        int64_t own = random_call_value(from, i % n);
        int64_t other = random_call_value(from, (i % n + i / n) % n);
        random_call_set(&rows, i, own < 0 || other < 0 ? own : other);
    }
    return rows;
}

void sections_add(struct random_call *made, struct random_source *source)
{
    static struct random_call before;
    const int64_t n_pairs = made->call.table.angles.n_pairs;
    struct roped_tensor *positions =
        &made->in[roped_op_input(made->op, "positions")];
    int n_axes = (int)random_int(source, 2, ROPED_MAX_AXES);
    if (!roped_tensor_given(positions) || positions->rank != 1 ||
        n_pairs < n_axes)
        return;
    before = *made;
    set_sections(made, n_pairs, n_axes, source);
    struct roped_tensor from = *positions;
    *positions = rows_of(&from, n_axes);
    random_call_judge(made);
    if (made->status) {
        free(positions->data);
        *made = before;
    } else {
        free(from.data);
    }
}
