/*
 * norm_gradient.c - gradients of norms on the CPU.
 *
 * Rows are cut into segments, whose number follows from theirs. A segment is a
 * task: it writes grad_x, and sums grad_weight and grad_bias in doubles of its
 * own, which a second pass adds in the order of the segments. So the bits do
 * not depend on the number of threads.
 */
#include "cpu/norm_gradient.h"
#include "cpu/norm_gradient_rows.h"

#include <string.h>

enum { MOST_SEGMENTS = 64 };

struct gradient_loop {
    struct cpu_norm_gradient of;
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    int64_t n_segments;
    int n_sums;
    const struct roped_tensor *sum_to[2];
    double *partial; /* [n_segments][n_sums][width] */
    bool rounds;
};

/* Blocks of a row in hand, and zeros up to a multiple of CPU_LANES. */
struct blocks {
    int64_t n, whole;
    float g[CPU_BLOCK];      /* grad_y */
    float gw[CPU_BLOCK];     /* grad_y * w */
    float normal[CPU_BLOCK]; /* (x - mean) * s */
};

/* A row's norm, and what is added up of it. */
struct row_norm {
    int64_t row;
    float s;
    struct cpu_mean mean;
    double sum, dot; /* of grad_y * w, and of it times normal */
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

static void load_blocks(const struct gradient_loop *loop,
                        const struct row_norm *norm, int64_t i,
                        struct blocks *to)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const struct cpu_norm_gradient_rows *rows = loop->rows->norm_gradient;
    const enum roped_dtype weight = (enum roped_dtype)plan->weight_dtype;
    float gain[CPU_BLOCK];
    to->n = cpu_smaller(plan->hidden - i, CPU_BLOCK);
    to->whole = cpu_ceil_div(to->n, CPU_LANES) * CPU_LANES;
    load(loop, loop->of.grad_y, norm->row, i, to->n, to->g);
    load(loop, loop->of.x, norm->row, i, to->n, to->normal);
    if (loop->of.is_centred)
        rows->centre(to->normal, norm->mean.high, norm->mean.low, norm->s,
                     to->n);
    else
        loop->rows->scale(to->normal, norm->s, to->n);
    memcpy(to->gw, to->g, (size_t)to->whole * sizeof *to->g);
    if (!roped_tensor_given(loop->of.weight))
        return;
    loop->rows->fill_weight(
        weight, gain,
        cpu_at(loop->of.weight->data, i, roped_dtype_bytes(weight)),
        plan->weight_bias, to->n);
    rows->multiply(to->gw, gain, to->n);
    if (loop->rounds)
        cpu_round(loop->rows, loop->of.x->dtype, to->gw, to->n);
}

static void add_to_sums(const struct gradient_loop *loop, int64_t i,
                        double *sum, struct blocks *of)
{
    const struct cpu_norm_gradient_rows *rows = loop->rows->norm_gradient;
    if (roped_tensor_given(loop->of.weight)) {
        if (loop->rounds)
            cpu_round(loop->rows, loop->of.x->dtype, of->normal, of->n);
        rows->add_products(sum + i, of->g, of->normal, of->n);
        sum += loop->plan->hidden;
    }
    if (loop->of.bias && roped_tensor_given(loop->of.bias))
        rows->add(sum + i, of->g, of->n);
}

static void write_blocks(const struct gradient_loop *loop,
                         const struct row_norm *norm, int64_t i, double *sum,
                         struct blocks *of)
{
    const struct cpu_norm_gradient_rows *rows = loop->rows->norm_gradient;
    const struct cpu_conversion narrow = {.from = ROPED_F32,
                                          .to = loop->of.grad_x->dtype};
    const bool adds = roped_tensor_given(loop->of.grad_residual);
    const double width = (double)loop->plan->hidden;
    float residual[CPU_BLOCK];
    if (adds)
        load(loop, loop->of.grad_residual, norm->row, i, of->n, residual);
    rows->descend(of->gw, of->normal, adds ? residual : NULL, norm->s,
                  (float)(norm->sum / width), (float)(norm->dot / width),
                  of->n);
    loop->rows->convert(
        &narrow,
        (void *)(uintptr_t)element_at(loop, loop->of.grad_x, norm->row, i),
        of->gw, of->n);
    if (sum)
        add_to_sums(loop, i, sum, of);
}

static void gradient_row(const struct gradient_loop *loop, int64_t row,
                         double *sum)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const struct cpu_norm_gradient_rows *rows = loop->rows->norm_gradient;
    const struct cpu_norm_rows one = {
        .n = 1, .x = element_at(loop, loop->of.x, row, 0)};
    const enum roped_dtype dtype = loop->of.x->dtype;
    struct row_norm norm = {.row = row};
    struct blocks blocks;
    if (loop->of.is_centred)
        loop->rows->inverse_deviation(dtype, plan->hidden, &one, plan->eps,
                                      &norm.s, &norm.mean);
    else
        loop->rows->inverse_rms(dtype, plan->hidden, &one, plan->eps, &norm.s);
    for (int64_t i = 0; i < plan->hidden; i += CPU_BLOCK) {
        load_blocks(loop, &norm, i, &blocks);
        norm.dot += rows->dot(blocks.gw, blocks.normal, blocks.whole);
        if (loop->of.is_centred)
            norm.sum += rows->sum(blocks.gw, blocks.n);
    }
    for (int64_t i = 0; i < plan->hidden; i += CPU_BLOCK) {
        if (plan->hidden > CPU_BLOCK)
            load_blocks(loop, &norm, i, &blocks);
        write_blocks(loop, &norm, i, sum, &blocks);
    }
}

static void gradient_segments(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t n_rows = loop->plan->n_rows;
    const int64_t n = loop->n_sums * loop->plan->hidden;
    for (int64_t segment = begin; segment < end; segment++) {
        double *sum = n ? loop->partial + segment * n : NULL;
        const int64_t rows = cpu_ceil_div(n_rows, loop->n_segments);
        const int64_t last = cpu_smaller(n_rows, (segment + 1) * rows);
        if (sum)
            memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t row = segment * rows; row < last; row++)
            gradient_row(loop, row, sum);
    }
}

/* Of blocks of columns, those of the second sum behind those of the first. */
static void sum_columns(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t width = loop->plan->hidden, n = loop->n_sums * width;
    const int64_t n_blocks = cpu_ceil_div(width, CPU_BLOCK);
    for (int64_t block = begin; block < end; block++) {
        const struct roped_tensor *to = loop->sum_to[block / n_blocks];
        const struct cpu_conversion narrow = {.from = ROPED_F32,
                                              .to = to->dtype};
        const double *from = loop->partial + block / n_blocks * width;
        const int64_t i = block % n_blocks * CPU_BLOCK;
        const int64_t part = cpu_smaller(width - i, CPU_BLOCK);
        float result[CPU_BLOCK];
        for (int64_t j = 0; j < part; j++) {
            double sum = 0;
            for (int64_t segment = 0; segment < loop->n_segments; segment++)
                sum += from[segment * n + i + j];
            result[j] = (float)sum;
        }
        loop->rows->convert(&narrow,
                            cpu_at(to->data, i, roped_dtype_bytes(to->dtype)),
                            result, part);
    }
}

enum roped_status cpu_norm_gradient(const struct cpu_norm_gradient *of,
                                    const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    struct gradient_loop loop = {
        .of = *of,
        .rows = queue->backend->rows,
        .plan = plan,
        .n_segments = cpu_smaller(plan->n_rows, MOST_SEGMENTS),
        .rounds =
            plan->rounding != RMSNORM_ROUND_ONCE && of->x->dtype != ROPED_F32};
    if (roped_tensor_given(of->weight))
        loop.sum_to[loop.n_sums++] = of->grad_weight;
    if (of->bias && roped_tensor_given(of->bias))
        loop.sum_to[loop.n_sums++] = of->grad_bias;
    const int64_t n = loop.n_sums * plan->hidden;
    if (n) {
        void *scratch;
        enum roped_status status = cpu_scratch(
            queue, (size_t)(loop.n_segments * n) * sizeof *loop.partial,
            &scratch, err);
        if (status)
            return status;
        loop.partial = scratch;
    }
    cpu_for(queue, roped_call_bytes(call), loop.n_segments, gradient_segments,
            &loop);
    if (n)
        cpu_for(queue, loop.n_segments * n * 8,
                loop.n_sums * cpu_ceil_div(plan->hidden, CPU_BLOCK),
                sum_columns, &loop);
    return ROPED_OK;
}
