/*
 * dequantize.c - dequantize on the CPU: rows over threads, each a block at a
 * time.
 */
#include "ops/dequantize.h"
#include "cpu/codes.h"

#include <string.h>

struct dequantize_loop {
    const struct cpu_rows *rows;
    const struct dequantize_plan *plan;
    const struct roped_tensor *x, *y;
    const void *scales; /* NULL: dequant_scale */
    bool is_streamed;
};

static void scale_values(const struct dequantize_loop *loop,
                         const struct code_tiles *tiles, const void *scales,
                         int64_t strip, int64_t tile, int64_t n, float *scale)
{
    const struct dequantize_plan *plan = loop->plan;
    code_scale_values(loop->rows, (enum code_scale)plan->scale, tiles, scales,
                      strip, tile, n, scale);
    for (int64_t i = 0; plan->scale == CODE_SCALE_E4M3 && i < n; i++)
        scale[i] /= plan->global_scale;
}

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
    scale_values(loop, tiles, loop->scales,
                 row / tiles->tile_rows + first / tiles->width,
                 first % tiles->width / tiles->tile_width, n, scale);
}

/* n columns of a row from column first on, and of those that lie behind it. */
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

/* The values of all codes by the scales that are not known yet. */
static void know_scales(const struct dequantize_loop *loop,
                        const uint8_t *scale, int64_t n,
                        struct cpu_nibble_values *table)
{
    static const uint8_t codes[] = {0x10, 0x32, 0x54, 0x76,
                                    0x98, 0xBA, 0xDC, 0xFE};
    const struct code_tiles one = {.scale_tile = 1};
    const struct cpu_expansion how = {CODE_E2M1, loop->y->dtype, false};
    for (int64_t i = 0; (i += loop->rows->quantize->first_unknown(
                             table->is_known, scale + i, n - i)) < n;) {
        float value;
        scale_values(loop, &one, scale + i, 0, 0, 1, &value);
        loop->rows->quantize->expand(&how, table->value[scale[i]], codes,
                                     2 * sizeof codes, 2 * sizeof codes,
                                     &value);
        table->is_known[scale[i]] = true;
    }
}

/* The same, by values that are known. */
static void expand_groups(const struct dequantize_loop *loop, int64_t row,
                          int64_t first, int64_t n,
                          struct cpu_nibble_values *table)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const struct roped_tensor *x = loop->x, *y = loop->y;
    const int64_t width = tiles->width;
    const int64_t n_tiles = n / tiles->tile_width;
    uint8_t scale[CPU_MOST_TILES];
    code_scale_bytes(tiles, loop->scales, row + first / width,
                     first % width / tiles->tile_width, n_tiles, scale);
    know_scales(loop, scale, n_tiles, table);
    loop->rows->quantize->expand_nibbles(
        cpu_at(y->data, row * cpu_stride(y, width) + first, sizeof(uint16_t)),
        cpu_at(x->data, row * cpu_stride(x, width / 2) + first / 2, 1), n,
        tiles->tile_width, scale, loop->is_streamed, table);
}

/* Rows that lie one behind the other are one, where its tiles are as wide as
 * theirs. */
static bool is_one_row(const struct dequantize_loop *loop)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const int64_t bytes =
        code_bytes((enum code_element)loop->plan->element, tiles->width);
    return cpu_stride(loop->y, tiles->width) == tiles->width &&
           cpu_stride(loop->x, bytes) == bytes && tiles->tile_rows == 1 &&
           tiles->tile_width % 16 == 0 && CPU_BLOCK % tiles->tile_width == 0 &&
           tiles->width % tiles->tile_width == 0;
}

/* A table takes as long as some hundred codes. */
static bool has_groups(const struct dequantize_loop *loop)
{
    enum { FEWEST = 512 };
    const struct code_tiles *tiles = &loop->plan->tiles;
    return tiles->n_rows * tiles->width >= FEWEST &&
           loop->rows->quantize->expand_nibbles && loop->scales &&
           loop->plan->element == CODE_E2M1 && loop->y->dtype != ROPED_F32;
}

static void expand_rows(void *context, int64_t begin, int64_t end)
{
    const struct dequantize_loop *loop = context;
    const bool by_table = has_groups(loop);
    const int64_t n_rows = is_one_row(loop) ? end - begin : 1;
    const int64_t width = loop->plan->tiles.width * n_rows;
    struct cpu_nibble_values table;
    memset(table.is_known, 0, sizeof table.is_known);
    for (int64_t row = begin; row < end; row += n_rows)
        for (int64_t i = 0; i < width; i += CPU_BLOCK) {
            const int64_t n = cpu_smaller(width - i, CPU_BLOCK);
            if (by_table)
                expand_groups(loop, row, i, n, &table);
            else
                expand_block(loop, row, i, n);
        }
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
