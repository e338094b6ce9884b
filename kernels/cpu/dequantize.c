/*
 * dequantize.c - dequantize on the CPU: rows over threads, each a block at a
 * time through float32.
 */
#include "ops/dequantize.h"
#include "cpu/cpu_internal.h"
#include "cpu/quantize_rows.h"

enum { MOST_TILES = CPU_BLOCK / 16 }; /* of a block */

struct dequantize_loop {
    const struct cpu_rows *rows;
    const struct dequantize_plan *plan;
    const struct roped_tensor *x, *y;
    const float *scales; /* NULL: dequant_scale */
    bool is_streamed;
};

/* The scales of the elements from first on, which begins a block. */
static void find_scales(const struct dequantize_loop *loop, int64_t row,
                        int64_t first, int64_t n, float *scale)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const int64_t tile = first / tiles->tile_width;
    const int64_t at = row / tiles->tile_rows * tiles->scale_row;
    for (int64_t i = 0; i == 0 || i * tiles->tile_width < n; i++)
        scale[i] = loop->scales
                       ? loop->scales[at + (tile + i) * tiles->scale_tile]
                       : loop->plan->dequant_scale;
}

static void expand_block(const struct dequantize_loop *loop, int64_t row,
                         int64_t first, int64_t n)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const struct roped_tensor *x = loop->x, *y = loop->y;
    const struct cpu_conversion how = {
        .from = ROPED_F32, .to = y->dtype, .is_streamed = loop->is_streamed};
    const int64_t from = row * cpu_stride(x, tiles->width) + first;
    const int64_t to = row * cpu_stride(y, tiles->width) + first;
    float block[CPU_BLOCK], scale[MOST_TILES];
    loop->rows->quantize->expand((enum code_format)loop->plan->format, block,
                                 cpu_at(x->data, from, 1), n);
    find_scales(loop, row, first, n, scale);
    loop->rows->quantize->multiply(block, n, tiles->tile_width, scale);
    loop->rows->convert(&how, cpu_at(y->data, to, roped_dtype_bytes(y->dtype)),
                        block, n);
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
