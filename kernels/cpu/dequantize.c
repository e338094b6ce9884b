/*
 * dequantize.c - dequantize on the CPU: rows over threads, each a block at a
 * time.
 */
#include "ops/dequantize.h"
#include "cpu/codes.h"

struct dequantize_loop {
    const struct cpu_rows *rows;
    const struct dequantize_plan *plan;
    const struct roped_tensor *x, *y;
    const void *scales; /* NULL: dequant_scale */
    bool is_streamed;
};

/* What n tiles of a row's columns from first on are multiplied by. */
static void find_scales(const struct dequantize_loop *loop, int64_t row,
                        int64_t first, int64_t n, float *scale)
{
    const struct dequantize_plan *plan = loop->plan;
    const struct code_tiles *tiles = &plan->tiles;
    for (int64_t i = 0; !loop->scales && i < n; i++)
        scale[i] = plan->dequant_scale;
    if (!loop->scales)
        return;
    code_scale_values(loop->rows, (enum code_scale)plan->scale, tiles,
                      loop->scales, row / tiles->tile_rows,
                      first / tiles->tile_width, n, scale);
    for (int64_t i = 0; plan->scale == CODE_SCALE_E4M3 && i < n; i++)
        scale[i] /= plan->global_scale;
}

static void expand_block(const struct dequantize_loop *loop, int64_t row,
                         int64_t first, int64_t n)
{
    const int64_t width = loop->plan->tiles.width,
                  tile = loop->plan->tiles.tile_width;
    const enum code_element element = (enum code_element)loop->plan->element;
    const struct roped_tensor *x = loop->x, *y = loop->y;
    const struct cpu_expansion how = {element, y->dtype, loop->is_streamed};
    const int64_t from = row * cpu_stride(x, code_bytes(element, width)) +
                         code_bytes(element, first);
    const int64_t to = row * cpu_stride(y, width) + first;
    float scale[CPU_MOST_TILES];
    find_scales(loop, row, first, cpu_ceil_div(n, tile), scale);
    loop->rows->quantize->expand(
        &how, cpu_at(y->data, to, roped_dtype_bytes(y->dtype)),
        cpu_at(x->data, from, 1), n, tile, scale);
}

static void expand_rows(void *context, int64_t begin, int64_t end)
{
    const struct dequantize_loop *loop = context;
    const int64_t width = loop->plan->tiles.width;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < width; i += CPU_BLOCK)
            expand_block(loop, row, i, cpu_smaller(width - i, CPU_BLOCK));
}

enum roped_status roped_cpu_dequantize(const struct roped_call *call,
                                       struct roped_queue *queue,
                                       struct roped_error *err)
{
    const int64_t bytes = roped_call_bytes(call);
    struct dequantize_loop loop = {.rows = queue->backend->rows,
                                   .plan = (const void *)call->plan,
                                   .x = &call->in[DEQUANTIZE_X],
                                   .y = &call->out[DEQUANTIZE_Y],
                                   .scales = call->in[DEQUANTIZE_SCALES].data,
                                   .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    cpu_for(queue, bytes, loop.plan->tiles.n_rows, expand_rows, &loop);
    return ROPED_OK;
}
