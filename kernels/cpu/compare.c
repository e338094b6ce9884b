/*
 * compare.c - compare on the CPU: segments of elements over threads, a block at
 * a time through float32. Segments and blocks follow from the number of
 * elements alone, and so do the bits of the sums.
 */
#include "ops/compare.h"
#include "cpu/compare_rows.h"
#include "cpu/cpu_internal.h"

#include <math.h>

enum { MOST_SEGMENTS = 64 };

struct compare_loop {
    const struct cpu_rows *rows;
    const struct compare_plan *plan;
    const struct roped_tensor *a, *b;
    int64_t of_segment; /* elements */
    struct compare_part part[MOST_SEGMENTS];
};

/* Elements [at, at + n) in their order, from as many rows as they are in, and
 * zeros. */
static void load(const struct compare_loop *loop, const struct roped_tensor *x,
                 int64_t at, int64_t n, float *to)
{
    const int64_t width = x->stride ? loop->plan->width : loop->plan->n;
    for (int64_t i = 0, here; i < n; i += here) {
        const int64_t row = (at + i) / width, column = at + i - row * width;
        here = cpu_smaller(width - column, n - i);
        loop->rows->widen(x->dtype, to + i,
                          cpu_at(x->data, row * cpu_stride(x, width) + column,
                                 roped_dtype_bytes(x->dtype)),
                          here);
    }
    cpu_pad(to, n);
}

/* How many numbers of the coarser type are the most between two elements, from
 * how many of float32 are. */
static uint32_t steps_of(const struct compare_loop *loop, const float *a,
                         const float *b, int64_t n, uint32_t steps)
{
    const enum roped_dtype type = (enum roped_dtype)loop->plan->coarser;
    const struct cpu_conversion round = {.from = ROPED_F32, .to = type};
    uint16_t x[CPU_BLOCK], y[CPU_BLOCK];
    if (type == ROPED_F32)
        return steps;
    if (loop->a->dtype == ROPED_BF16 && loop->b->dtype == ROPED_BF16)
        return steps >> 16;
    loop->rows->convert(&round, x, a, n);
    loop->rows->convert(&round, y, b, n);
    return loop->rows->compare->steps_16(x, y, n,
                                         type == ROPED_F16 ? 0x7C00 : 0x7F80);
}

static void compare_blocks(const struct compare_loop *loop, int64_t at,
                           int64_t n, struct compare_part *part)
{
    float a[CPU_BLOCK], b[CPU_BLOCK];
    load(loop, loop->a, at, n, a);
    load(loop, loop->b, at, n, b);
    const uint32_t steps = steps_of(
        loop, a, b, n,
        loop->rows->compare->differences(a, b, n, at, loop->plan, part));
    if (steps > part->steps)
        part->steps = steps;
}

static void compare_segments(void *context, int64_t begin, int64_t end)
{
    struct compare_loop *loop = context;
    for (int64_t s = begin; s < end; s++) {
        struct compare_part *part = &loop->part[s];
        const int64_t last =
            cpu_smaller((s + 1) * loop->of_segment, loop->plan->n);
        *part = (struct compare_part){.nan_at = -1, .at = -1};
        for (int64_t at = s * loop->of_segment; at < last; at += CPU_BLOCK)
            compare_blocks(loop, at, cpu_smaller(last - at, CPU_BLOCK), part);
    }
}

/* Adds the part behind it to part. */
static void merge(struct compare_part *part, const struct compare_part *next)
{
    part->dot += next->dot;
    part->aa += next->aa;
    part->bb += next->bb;
    part->beyond += next->beyond;
    part->nan_alone += next->nan_alone;
    if (part->nan_at < 0)
        part->nan_at = next->nan_at;
    if (next->largest > part->largest) {
        part->largest = next->largest;
        part->at = next->at;
    }
    if (next->relative > part->relative)
        part->relative = next->relative;
    if (next->steps > part->steps)
        part->steps = next->steps;
}

static void write_result(const struct compare_part *all,
                         const struct roped_tensor *out)
{
    int64_t *index = out[COMPARE_INDEX].data,
            *counts = out[COMPARE_COUNTS].data;
    float *stats = out[COMPARE_STATS].data;
    const double lengths = all->aa * all->bb;
    *index = all->nan_at < 0 ? all->at : all->nan_at;
    counts[0] = all->beyond;
    counts[1] = all->nan_alone;
    stats[0] = all->largest;
    stats[1] = all->relative;
    stats[2] = (float)all->steps;
    stats[3] =
        lengths > 0 ? (float)(all->dot / sqrt(lengths)) : all->aa == all->bb;
}

enum roped_status roped_cpu_compare(const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct compare_plan *plan = (const void *)call->plan;
    struct compare_loop loop = {.rows = queue->backend->rows,
                                .plan = plan,
                                .a = &call->in[COMPARE_A],
                                .b = &call->in[COMPARE_B]};
    struct compare_part all = {.nan_at = -1, .at = -1};
    const int64_t blocks = cpu_ceil_div(plan->n, CPU_BLOCK);
    (void)err;
    loop.of_segment = cpu_ceil_div(blocks, MOST_SEGMENTS) * CPU_BLOCK;
    const int64_t n = plan->n ? cpu_ceil_div(plan->n, loop.of_segment) : 0;
    cpu_for(queue, roped_call_bytes(call), n, compare_segments, &loop);
    for (int64_t i = 0; i < n; i++)
        merge(&all, &loop.part[i]);
    write_result(&all, call->out);
    return ROPED_OK;
}
