/*
 * rmsnorm_backward.c - gradients of rmsnorm on the CPU.
 *
 * Rows are cut into segments, whose number follows from theirs. A segment is a
 * task: it writes grad_x, and sums grad_weight in doubles of its own, which a
 * second pass adds in the order of the segments. So the bits do not depend on
 * the number of threads.
 */
#include "ops/rmsnorm_backward.h"
#include "cpu/cpu_internal.h"
#include "cpu/norm_gradient_rows.h"

#include <string.h>

enum { MOST_SEGMENTS = 64 };

struct gradient_loop {
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    const struct roped_tensor *grad_y, *x, *weight, *grad_residual;
    const struct roped_tensor *grad_x, *grad_weight;
    int64_t n_segments;
    double *partial; /* [n_segments][width], or NULL: no weight */
    bool rounds;
};

/* Blocks of a row in hand, and zeros up to a multiple of CPU_LANES. */
struct blocks {
    int64_t n, whole;
    float g[CPU_BLOCK];      /* grad_y */
    float gw[CPU_BLOCK];     /* grad_y * w */
    float normal[CPU_BLOCK]; /* x * s */
};

static const void *element_at(const struct gradient_loop *loop,
                              const struct roped_tensor *tensor, int64_t row,
                              int64_t i)
{
    return cpu_at(tensor->data,
                  row * cpu_stride(tensor, loop->plan->hidden) + i,
                  roped_dtype_bytes(tensor->dtype));
}

static void load(const struct gradient_loop *loop,
                 const struct roped_tensor *tensor, int64_t row, int64_t i,
                 int64_t n, float *to)
{
    loop->rows->widen(tensor->dtype, to, element_at(loop, tensor, row, i), n);
    cpu_pad(to, n);
}

static void load_blocks(const struct gradient_loop *loop, int64_t row,
                        int64_t i, float s, struct blocks *to)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const enum roped_dtype weight = (enum roped_dtype)plan->weight_dtype;
    float gain[CPU_BLOCK];
    to->n = cpu_smaller(plan->hidden - i, CPU_BLOCK);
    to->whole = cpu_ceil_div(to->n, CPU_LANES) * CPU_LANES;
    load(loop, loop->grad_y, row, i, to->n, to->g);
    load(loop, loop->x, row, i, to->n, to->normal);
    loop->rows->scale(to->normal, s, to->n);
    memcpy(to->gw, to->g, (size_t)to->whole * sizeof *to->g);
    if (weight == ROPED_NO_DTYPE)
        return;
    loop->rows->fill_weight(
        weight, gain, cpu_at(loop->weight->data, i, roped_dtype_bytes(weight)),
        plan->weight_bias, to->n);
    loop->rows->norm_gradient->multiply(to->gw, gain, to->n);
    if (loop->rounds)
        cpu_round(loop->rows, loop->x->dtype, to->gw, to->n);
}

static void write_blocks(const struct gradient_loop *loop, int64_t row,
                         int64_t i, float s, float k, double *sum,
                         struct blocks *of)
{
    const struct cpu_norm_gradient_rows *rows = loop->rows->norm_gradient;
    const struct cpu_conversion narrow = {.from = ROPED_F32,
                                          .to = loop->grad_x->dtype};
    const bool adds = roped_tensor_given(loop->grad_residual);
    float residual[CPU_BLOCK];
    if (adds)
        load(loop, loop->grad_residual, row, i, of->n, residual);
    rows->descend(of->gw, of->normal, adds ? residual : NULL, s, k, of->n);
    loop->rows->convert(
        &narrow, (void *)(uintptr_t)element_at(loop, loop->grad_x, row, i),
        of->gw, of->n);
    if (!sum)
        return;
    if (loop->rounds)
        cpu_round(loop->rows, loop->x->dtype, of->normal, of->n);
    rows->add_products(sum + i, of->g, of->normal, of->n);
}

static void gradient_row(const struct gradient_loop *loop, int64_t row,
                         double *sum)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const struct cpu_norm_rows one = {.n = 1,
                                      .x = element_at(loop, loop->x, row, 0)};
    struct blocks blocks;
    double dot = 0;
    float s;
    loop->rows->inverse_rms(loop->x->dtype, plan->hidden, &one, plan->eps, &s);
    for (int64_t i = 0; i < plan->hidden; i += CPU_BLOCK) {
        load_blocks(loop, row, i, s, &blocks);
        dot += loop->rows->norm_gradient->dot(blocks.gw, blocks.normal,
                                              blocks.whole);
    }
    for (int64_t i = 0; i < plan->hidden; i += CPU_BLOCK) {
        if (plan->hidden > CPU_BLOCK)
            load_blocks(loop, row, i, s, &blocks);
        write_blocks(loop, row, i, s, (float)(dot / (double)plan->hidden), sum,
                     &blocks);
    }
}

static void gradient_segments(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t n_rows = loop->plan->n_rows, width = loop->plan->hidden;
    for (int64_t segment = begin; segment < end; segment++) {
        double *sum = loop->partial ? loop->partial + segment * width : NULL;
        const int64_t rows = cpu_ceil_div(n_rows, loop->n_segments);
        const int64_t last = cpu_smaller(n_rows, (segment + 1) * rows);
        if (sum)
            memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t row = segment * rows; row < last; row++)
            gradient_row(loop, row, sum);
    }
}

static void sum_columns(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const struct roped_tensor *to = loop->grad_weight;
    const struct cpu_conversion narrow = {.from = ROPED_F32, .to = to->dtype};
    const int64_t width = loop->plan->hidden;
    for (int64_t block = begin; block < end; block++) {
        const int64_t i = block * CPU_BLOCK;
        const int64_t n = cpu_smaller(width - i, CPU_BLOCK);
        float result[CPU_BLOCK];
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t segment = 0; segment < loop->n_segments; segment++)
                sum += loop->partial[segment * width + i + j];
            result[j] = (float)sum;
        }
        loop->rows->convert(&narrow,
                            cpu_at(to->data, i, roped_dtype_bytes(to->dtype)),
                            result, n);
    }
}

enum roped_status roped_cpu_rmsnorm_backward(const struct roped_call *call,
                                             struct roped_queue *queue,
                                             struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    const int64_t bytes = roped_call_bytes(call), width = plan->hidden;
    struct gradient_loop loop = {
        .rows = queue->backend->rows,
        .plan = plan,
        .grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y],
        .x = &call->in[RMSNORM_BACKWARD_X],
        .weight = &call->in[RMSNORM_BACKWARD_WEIGHT],
        .grad_residual = &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL],
        .grad_x = &call->out[RMSNORM_BACKWARD_GRAD_X],
        .grad_weight = &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT],
        .n_segments = cpu_smaller(plan->n_rows, MOST_SEGMENTS),
        .rounds = plan->rounding != RMSNORM_ROUND_ONCE &&
                  call->in[RMSNORM_BACKWARD_X].dtype != ROPED_F32};
    const bool sums = roped_tensor_given(loop.weight);
    if (sums) {
        void *scratch;
        enum roped_status status = cpu_scratch(
            queue, (size_t)(loop.n_segments * width) * sizeof *loop.partial,
            &scratch, err);
        if (status)
            return status;
        loop.partial = scratch;
    }
    cpu_for(queue, bytes, loop.n_segments, gradient_segments, &loop);
    if (sums)
        cpu_for(queue, loop.n_segments * width * 8,
                cpu_ceil_div(width, CPU_BLOCK), sum_columns, &loop);
    return ROPED_OK;
}
