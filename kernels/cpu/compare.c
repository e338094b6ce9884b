/*
 * compare.c - compare on the CPU: segments of elements over threads, a block at
 * a time through float32. Segments and blocks follow from the number of
 * elements alone, and so do the bits of the sums.
 */
#include "ops/compare.h"
#include "cpu/compare_rows.h"
#include "cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

enum { MOST_SEGMENTS = 64 };

struct compare_loop {
    const struct cpu_rows *rows;
    const struct compare_plan *plan;
    const struct roped_tensor *a, *b;
    int64_t of_segment; /* elements */
    struct compare_part part[MOST_SEGMENTS];
};

/* A block of both, with zeros up to a multiple of CPU_COMPARED. */
struct blocks {
    const void *a, *b;
    int64_t n, padded;
    _Alignas(64) float room[2][CPU_BLOCK], wide[2][CPU_BLOCK];
};

/* Elements [at, at + n) in their order: where they are, or in room, if they are
 * in several rows or zeros must follow. */
static const void *elements(const struct compare_loop *loop,
                            const struct roped_tensor *x, int64_t at,
                            const struct blocks *blocks, void *room)
{
    const int64_t width = x->stride ? loop->plan->width : loop->plan->n;
    const size_t bytes = roped_dtype_bytes(x->dtype);
    const int64_t n = blocks->n;
    for (int64_t i = 0, here; i < n; i += here) {
        const int64_t row = (at + i) / width, column = at + i - row * width;
        const void *from =
            cpu_at(x->data, row * cpu_stride(x, width) + column, bytes);
        here = cpu_smaller(width - column, n - i);
        if (here == blocks->padded)
            return from;
        memcpy(cpu_at(room, i, bytes), from, (size_t)here * bytes);
    }
    memset(cpu_at(room, n, bytes), 0, (size_t)(blocks->padded - n) * bytes);
    return room;
}

/* How many numbers of the coarser type are the most between two elements. */
static uint32_t steps_of(const struct compare_loop *loop, struct blocks *of)
{
    const struct cpu_compare_rows *rows = loop->rows->compare;
    const enum roped_dtype type = (enum roped_dtype)loop->plan->coarser;
    const struct cpu_conversion round = {.from = ROPED_F32, .to = type};
    const void *a = of->a, *b = of->b;
    if (type == ROPED_F32)
        return rows->steps_32(a, b, of->n);
    if (loop->a->dtype != loop->b->dtype) {
        loop->rows->convert(&round, of->room[0], of->wide[0], of->n);
        loop->rows->convert(&round, of->room[1], of->wide[1], of->n);
        a = of->room[0];
        b = of->room[1];
    }
    return rows->steps_16(a, b, of->n, type == ROPED_F16 ? 0x7C00 : 0x7F80);
}

static void compare_blocks(const struct compare_loop *loop, int64_t at,
                           int64_t n, struct compare_part *part)
{
    const struct cpu_compare_rows *rows = loop->rows->compare;
    const enum roped_dtype type = loop->a->dtype;
    const bool is_alike = loop->b->dtype == type;
    struct blocks of;
    of.n = n;
    of.padded = cpu_ceil_div(n, CPU_COMPARED) * CPU_COMPARED;
    of.a = elements(loop, loop->a, at, &of, of.room[0]);
    of.b = elements(loop, loop->b, at, &of, of.room[1]);
    if (!is_alike || !rows->finite(type, of.a, of.b, n, at, loop->plan, part)) {
        loop->rows->widen(type, of.wide[0], of.a, of.padded);
        loop->rows->widen(loop->b->dtype, of.wide[1], of.b, of.padded);
        if (is_alike || !rows->finite(ROPED_F32, of.wide[0], of.wide[1], n, at,
                                      loop->plan, part))
            rows->differences(of.wide[0], of.wide[1], n, at, loop->plan, part);
    }
    const uint32_t steps = steps_of(loop, &of);
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
