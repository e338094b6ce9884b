/*
 * quantize.c - quantize on the CPU: strips of tiles over threads. A strip is
 * read once for its scales and again, from the cache, for its codes; a block at
 * a time through float32.
 */
#include "ops/quantize.h"
#include "cpu/cpu_internal.h"
#include "cpu/quantize_rows.h"

#include <roped/numeric.h>

#include <stdatomic.h>
#include <string.h>

enum { MOST_TILES = CPU_BLOCK / 16 }; /* of a block */

struct quantize_loop {
    const struct cpu_rows *rows;
    const struct quantize_plan *plan;
    const struct roped_tensor *x, *y;
    float *scales;
    float divisor; /* of every element, where has_divisor */
    bool has_divisor, is_streamed;
    _Atomic int32_t largest; /* of the tensor */
};

/* Columns [first, first + n) of rows [row, row + n_rows), and in how many
 * columns each divisor serves. */
struct part {
    int64_t row, n_rows, first, n, tile;
};

static void load(const struct quantize_loop *loop, const struct part *part,
                 int64_t row, float *to)
{
    const struct roped_tensor *x = loop->x;
    const int64_t at =
        row * cpu_stride(x, loop->plan->tiles.width) + part->first;
    loop->rows->widen(x->dtype, to,
                      cpu_at(x->data, at, roped_dtype_bytes(x->dtype)),
                      part->n);
}

static void store(const struct quantize_loop *loop, const struct part *part,
                  int64_t row, const float *x)
{
    const struct roped_tensor *y = loop->y;
    const struct cpu_conversion how = {ROPED_F32, y->dtype, 1,
                                       loop->is_streamed};
    void *to = cpu_at(
        y->data, row * cpu_stride(y, loop->plan->tiles.width) + part->first, 1);
    if (y->dtype == ROPED_I8)
        loop->rows->quantize->to_i8(to, x, part->n, loop->plan->least_code);
    else
        loop->rows->convert(&how, to, x, part->n);
}

static void find_largest(const struct quantize_loop *loop,
                         const struct part *part, int32_t *most)
{
    float x[CPU_BLOCK];
    for (int64_t row = part->row; row < part->row + part->n_rows; row++) {
        load(loop, part, row, x);
        for (int64_t i = 0; i < part->n; i += part->tile) {
            const int64_t n = cpu_smaller(part->n - i, part->tile);
            int32_t *of_tile = most + i / part->tile;
            *of_tile = loop->rows->quantize->largest(x + i, n, *of_tile);
        }
    }
}

static void write_codes(const struct quantize_loop *loop,
                        const struct part *part, const float *divisor)
{
    float x[CPU_BLOCK];
    for (int64_t row = part->row; row < part->row + part->n_rows; row++) {
        load(loop, part, row, x);
        for (int64_t i = 0; i < part->n; i += part->tile)
            loop->rows->quantize->divide(x + i,
                                         cpu_smaller(part->n - i, part->tile),
                                         divisor[i / part->tile]);
        store(loop, part, row, x);
    }
}

static float scale_of(const struct quantize_plan *plan, int32_t largest)
{
    const struct cpu_fp8_scale how = {plan->scale_ub, plan->largest,
                                      plan->least_scale};
    float scale = cpu_fp8_scale_of(&how, roped_bits_float((uint32_t)largest));
    if (scale == 0)
        scale = 1;
    if (plan->power_of_two)
        scale = roped_bits_float((roped_float_bits(scale) + 0x7FFFFFu) &
                                 0x7F800000u);
    return scale;
}

/* A block of columns, as wide as there are. */
static bool next_part(const struct quantize_loop *loop, struct part *part)
{
    part->first += part->n;
    part->n = cpu_smaller(loop->plan->tiles.width - part->first, CPU_BLOCK);
    return part->n > 0;
}

/* Tiles beside each other that are narrower than a block. */
static void quantize_tiles(const struct quantize_loop *loop, int64_t strip,
                           struct part part)
{
    const struct quantize_plan *plan = loop->plan;
    float *scale = loop->scales + strip * plan->tiles.scale_row;
    part.tile = plan->tiles.tile_width;
    while (next_part(loop, &part)) {
        int32_t most[MOST_TILES] = {0};
        float divisor[MOST_TILES];
        find_largest(loop, &part, most);
        for (int64_t i = 0; i * part.tile < part.n; i++) {
            divisor[i] = *scale = scale_of(plan, most[i]);
            scale += plan->tiles.scale_tile;
        }
        write_codes(loop, &part, divisor);
    }
}

static int32_t largest_of(const struct quantize_loop *loop, struct part part)
{
    int32_t most = 0;
    while (next_part(loop, &part))
        find_largest(loop, &part, &most);
    return most;
}

static void quantize_strips(void *context, int64_t begin, int64_t end)
{
    const struct quantize_loop *loop = context;
    const struct quantize_plan *plan = loop->plan;
    const int64_t rows = loop->has_divisor ? 1 : plan->tiles.tile_rows;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t row = strip * rows;
        struct part part = {row, cpu_smaller(plan->tiles.n_rows - row, rows), 0,
                            0, CPU_BLOCK};
        float divisor = loop->divisor;
        if (!loop->has_divisor && plan->tiles.n_tiles > 1) {
            quantize_tiles(loop, strip, part);
            continue;
        }
        if (!loop->has_divisor)
            divisor = loop->scales[strip * plan->tiles.scale_row] =
                scale_of(plan, largest_of(loop, part));
        while (next_part(loop, &part))
            write_codes(loop, &part, &divisor);
    }
}

static void find_in_rows(void *context, int64_t begin, int64_t end)
{
    struct quantize_loop *loop = context;
    const struct part part = {begin, end - begin, 0, 0, CPU_BLOCK};
    int32_t most = largest_of(loop, part), known = atomic_load(&loop->largest);
    while (known < most &&
           !atomic_compare_exchange_weak(&loop->largest, &known, most))
        continue;
}

/* What is behind the last row's scale of each column. */
static void clear_padding(const struct quantize_loop *loop)
{
    const struct quantize_plan *plan = loop->plan;
    float *end = loop->scales + plan->tiles.n_rows;
    for (int64_t i = 0; i < plan->tiles.n_tiles && plan->tiles.n_padding; i++)
        memset(end + i * plan->tiles.scale_tile, 0,
               (size_t)plan->tiles.n_padding * sizeof *end);
}

enum roped_status roped_cpu_quantize(const struct roped_call *call,
                                     struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct quantize_plan *plan = (const void *)call->plan;
    const int64_t bytes = roped_call_bytes(call);
    struct quantize_loop loop = {.rows = queue->backend->rows,
                                 .plan = plan,
                                 .x = &call->in[QUANTIZE_X],
                                 .y = &call->out[QUANTIZE_Y],
                                 .scales = call->out[QUANTIZE_SCALES].data,
                                 .divisor = plan->dequant_scale,
                                 .has_divisor = !plan->dynamic,
                                 .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    if (plan->is_tensor) {
        cpu_for(queue, bytes, plan->tiles.n_rows, find_in_rows, &loop);
        loop.divisor = *loop.scales = scale_of(plan, loop.largest);
        loop.has_divisor = true;
    }
    if (plan->dynamic)
        clear_padding(&loop);
    cpu_for(queue, bytes,
            loop.has_divisor
                ? plan->tiles.n_rows
                : cpu_ceil_div(plan->tiles.n_rows, plan->tiles.tile_rows),
            quantize_strips, &loop);
    return ROPED_OK;
}
