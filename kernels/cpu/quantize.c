/*
 * quantize.c - quantize on the CPU: strips of tiles over threads. A strip is
 * read once for its scales and again, from the cache, for its codes; a block at
 * a time through float32.
 */
#include "ops/quantize.h"
#include "cpu/codes.h"

#include <stdatomic.h>

struct quantize_loop {
    const struct cpu_rows *rows;
    const struct quantize_plan *plan;
    const struct roped_tensor *x, *y;
    void *scales;
    struct cpu_quotient divisor; /* of every element, where has_divisor */
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
    const struct code_rule *rule = &loop->plan->rule;
    const enum code_element element = (enum code_element)rule->element;
    const int64_t width = code_bytes(element, loop->plan->tiles.width);
    const int64_t at =
        row * cpu_stride(y, width) + code_bytes(element, part->first);
    code_store(loop->rows, rule, cpu_at(y->data, at, 1), x, part->n,
               loop->is_streamed);
}

static void find_largest(const struct quantize_loop *loop,
                         const struct part *part, int32_t *most)
{
    const int32_t bound = code_bound(&loop->plan->rule);
    float x[CPU_BLOCK];
    for (int64_t row = part->row; row < part->row + part->n_rows; row++) {
        load(loop, part, row, x);
        for (int64_t i = 0; i < part->n; i += part->tile) {
            const int64_t n = cpu_smaller(part->n - i, part->tile);
            int32_t *of_tile = most + i / part->tile;
            *of_tile = loop->rows->quantize->largest(x + i, n, bound, *of_tile);
        }
    }
}

static void write_codes(const struct quantize_loop *loop,
                        const struct part *part,
                        const struct cpu_quotient *divisor)
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
    const struct code_tiles *tiles = &loop->plan->tiles;
    int64_t tile = 0;
    part.tile = tiles->tile_width;
    while (next_part(loop, &part)) {
        int32_t most[CPU_MOST_TILES] = {0};
        struct cpu_quotient divisor[CPU_MOST_TILES];
        find_largest(loop, &part, most);
        for (int64_t i = 0; i * part.tile < part.n; i++)
            divisor[i] =
                code_scale_store(&loop->plan->rule, most[i], loop->scales,
                                 code_scale_at(tiles, strip, tile++));
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
    const struct code_tiles *tiles = &plan->tiles;
    for (int64_t strip = begin; strip < end; strip++) {
        const int64_t row = strip * tiles->tile_rows;
        struct part part = {row,
                            cpu_smaller(tiles->n_rows - row, tiles->tile_rows),
                            0, 0, CPU_BLOCK};
        struct cpu_quotient divisor = loop->divisor;
        if (!loop->has_divisor && tiles->n_tiles > 1) {
            quantize_tiles(loop, strip, part);
            continue;
        }
        if (!loop->has_divisor)
            divisor =
                code_scale_store(&plan->rule, largest_of(loop, part),
                                 loop->scales, code_scale_at(tiles, strip, 0));
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

enum roped_status roped_cpu_quantize(const struct roped_call *call,
                                     struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct quantize_plan *plan = (const void *)call->plan;
    const struct code_tiles *tiles = &plan->tiles;
    const struct roped_tensor *scales = &call->out[QUANTIZE_SCALES];
    const int64_t bytes = roped_call_bytes(call);
    struct quantize_loop loop = {.rows = queue->backend->rows,
                                 .plan = plan,
                                 .x = &call->in[QUANTIZE_X],
                                 .y = &call->out[QUANTIZE_Y],
                                 .scales = scales->data,
                                 .divisor = {1, plan->dequant_scale},
                                 .has_divisor = !plan->dynamic,
                                 .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    if (plan->is_tensor) {
        cpu_for(queue, bytes, tiles->n_rows, find_in_rows, &loop);
        loop.divisor =
            code_scale_store(&plan->rule, loop.largest, loop.scales, 0);
        loop.has_divisor = true;
    }
    if (plan->dynamic)
        code_clear_padding(tiles, scales);
    cpu_for(queue, bytes, cpu_ceil_div(tiles->n_rows, tiles->tile_rows),
            quantize_strips, &loop);
    return ROPED_OK;
}
