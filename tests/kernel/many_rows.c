/*
 * many_rows.c - thousands of narrow rows, hundreds of wide ones.
 */
#include "kernel/many_rows.h"

#include <string.h>

enum { ELEMENTS = 1 << 19 };

static bool is_of_columns(const struct roped_op *op, int input)
{
    return strcmp(op->in[input].name, "weight") == 0 ||
           strcmp(op->in[input].name, "bias") == 0;
}

void many_rows_shapes(struct random_call *made, struct random_source *source)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    const enum roped_dtype dtype = types[random_int(source, 0, 2)];
    const bool is_whole = random_once_in(source, 4); /* packets of 16 bytes */
    const bool is_wide = random_once_in(source, 6);
    const int64_t any = is_wide ? random_int(source, 4000, 13000)
                                : 8 + random_magnitude(source, 11);
    const int64_t width = is_whole ? any / 8 * 8 : any;
    const int64_t times = is_wide && dtype != ROPED_F32 ? 2 : 1;
    const int64_t rows =
        times * (140 + random_int(source, 0, 2 * ELEMENTS / width));
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        if (made->op->in[i].flags & ROPED_OPTIONAL && random_once_in(source, 3))
            continue;
        made->in[i] = is_of_columns(made->op, i)
                          ? (struct roped_tensor){.dtype = dtype,
                                                  .rank = 1,
                                                  .dims = {width}}
                          : (struct roped_tensor){.dtype = dtype,
                                                  .rank = 2,
                                                  .dims = {rows, width}};
    }
}
