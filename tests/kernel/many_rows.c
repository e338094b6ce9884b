/*
 * many_rows.c - thousands of narrow rows, hundreds of wide ones; rows of any
 * width.
 */
#include "kernel/many_rows.h"

#include <stdio.h>
#include <string.h>

enum { ELEMENTS = 1 << 19 };

static bool is_of_columns(const struct roped_op *op, int input)
{
    return strcmp(op->in[input].name, "weight") == 0 ||
           strcmp(op->in[input].name, "bias") == 0;
}

static enum roped_dtype random_type(struct random_source *source)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    return types[random_int(source, 0, 2)];
}

/* Rows, or what all of them have. */
static void give(struct random_call *made, int input, enum roped_dtype dtype,
                 int64_t rows, int64_t width)
{
    made->in[input] =
        is_of_columns(made->op, input)
            ? (struct roped_tensor){.dtype = dtype, .rank = 1, .dims = {width}}
            : (struct roped_tensor){
                  .dtype = dtype, .rank = 2, .dims = {rows, width}};
}

void many_rows_shapes(struct random_call *made, struct random_source *source)
{
    const enum roped_dtype dtype = random_type(source);
    const bool is_whole = random_once_in(source, 2); /* packets of 16 bytes */
    const bool is_wide = random_once_in(source, 4);
    /* rows or columns, of elements that take half as much */
    const int64_t more = is_wide && dtype != ROPED_F32 ? 2 : 1;
    const int64_t wider = random_once_in(source, 2) ? more : 1;
    const int64_t times = more / wider;
    const int64_t any = is_wide ? wider * random_int(source, 2000, 13000)
                                : 8 + random_magnitude(source, 11);
    int64_t width = is_whole ? any / 8 * 8 : any;
    int64_t rows = times * (140 + random_int(source, 0, 2 * ELEMENTS / width));
    /* there is no room for one beside two sums, nor often for two */
    const bool is_widest = is_wide && random_once_in(source, 4);
    const bool is_largest = is_widest && dtype == ROPED_F32 && is_whole;
    if (is_largest) {
        rows = random_int(source, 265, 285);
        width = 4 * random_int(source, 4096, 4400);
    } else if (is_widest && dtype == ROPED_F32) {
        rows = random_int(source, 50, 180);
        width = random_int(source, 16384, 21000); /* beside its gains or not */
    } else if (is_widest) {
        rows = random_int(source, 265, 285);
        width = random_int(source, 16384, 24600);
    } else if (random_once_in(source, is_wide ? 3 : 6)) {
        rows = random_int(source, 25, 132); /* multiprocessors have one */
    }
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        if (made->op->in[i].flags & ROPED_OPTIONAL &&
            ((is_largest && !is_of_columns(made->op, i)) ||
             random_once_in(source, 3)))
            continue;
        give(made, i, dtype, rows, width);
    }
}

static void set_param(struct random_call *made, const char *name,
                      const char *value)
{
    const int param = roped_op_param(made->op, name);
    if (param < 0)
        return;
    made->has_param[param] = true;
    snprintf(made->param[param], RANDOM_CALL_TEXT, "%s", value);
}

/* A choice, for one call in so many. */
static void may_choose(struct random_call *made, const char *name, int one_in,
                       struct random_source *source)
{
    const int param = roped_op_param(made->op, name);
    if (random_once_in(source, one_in) && param >= 0)
        random_call_param(made, param, source);
}

/* A scale that is given, of rows, as int8 or FP8 have it, or of groups. Is it
 * that of groups? */
static bool choose_scale(struct random_call *made, struct random_source *source)
{
    static const char *const of_groups[] = {"mxfp8", "mxfp4", "nvfp4"};
    const int kind = (int)random_int(source, 0, 3);
    if (kind == 0)
        set_param(made, "dequant_scale", "0.05");
    else
        set_param(made, "dynamic", "true");
    if (kind == 2)
        set_param(made, "group_size", "128");
    if (kind == 3)
        set_param(made, "output_dtype", of_groups[random_int(source, 0, 2)]);
    if (kind == 1 && random_once_in(source, 2))
        set_param(made, "output_dtype", "int8");
    return kind >= 2;
}

/* Of so many rows of 17 packets or more. */
static void norm_shapes(struct random_call *made, enum roped_dtype dtype,
                        int64_t rows, int64_t most_packets,
                        struct random_source *source)
{
    const int64_t packet = 16 / (int64_t)roped_dtype_bytes(dtype);
    int64_t width = packet * random_int(source, 17, most_packets);
    if (random_once_in(source, 2))
        width -= random_int(source, 0, packet - 1);
    may_choose(made, "rounding", 4, source);
    may_choose(made, "gate_first", 1, source);
    if (roped_op_param(made->op, "dynamic") >= 0 && choose_scale(made, source))
        width = (width + 127) / 128 * 128;
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        if (made->op->in[i].flags & ROPED_OPTIONAL &&
            (!is_of_columns(made->op, i) || random_once_in(source, 3)))
            continue;
        give(made, i, dtype, rows, width);
    }
}

void any_width_shapes(struct random_call *made, struct random_source *source)
{
    const enum roped_dtype dtype = random_type(source);
    const int64_t rows = random_int(source, 2, 6);
    /* a few rows of float32 have kernels of their own beyond 4,096 packets */
    const int64_t wide = dtype == ROPED_F32 ? 7168 : 4224;
    const int64_t most = random_once_in(source, 2) ? wide : 400;
    norm_shapes(made, dtype, rows, most, source);
}

void rows_of_warps_shapes(struct random_call *made,
                          struct random_source *source)
{
    const enum roped_dtype dtype = random_type(source);
    norm_shapes(made, dtype, random_int(source, 264, 2400), 128, source);
}

void many_heads_shapes(struct random_call *made, struct random_source *source)
{
    enum { HEADS = 16 };
    const enum roped_dtype dtype = random_type(source);
    const int64_t rows = random_int(source, 17, 80);
    const int64_t width = HEADS * random_int(source, 385, 2048);
    set_param(made, "heads", "16");
    for (int i = 0; i < roped_op_inputs(made->op); i++)
        if (is_of_columns(made->op, i) ||
            !(made->op->in[i].flags & ROPED_OPTIONAL))
            give(made, i, dtype, rows, width);
}

void many_terms_shapes(struct random_call *made, struct random_source *source)
{
    const enum roped_dtype dtype = random_type(source);
    const int64_t packet = 16 / (int64_t)roped_dtype_bytes(dtype);
    const int64_t rows = random_int(source, 140, 180);
    const int64_t width = 128 * packet * random_int(source, 9, 10);
    set_param(made, "x_scale", "0.22");
    may_choose(made, "rounding", 2, source);
    choose_scale(made, source);
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        const bool is_term = strcmp(made->op->in[i].name, "addend") == 0 ||
                             is_of_columns(made->op, i);
        if (!(made->op->in[i].flags & ROPED_OPTIONAL) ||
            (is_term && random_once_in(source, 2)))
            give(made, i, dtype, rows, width);
    }
}
