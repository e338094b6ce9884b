/*
 * norm.c - rows over threads; a row is read once from memory for its sum and
 * again, from the cache, for its result. Squares are summed in double, so
 * values up to the largest float32 normalise.
 */
#include "cpu/norm.h"

#include <assert.h>
#include <math.h>

struct norm_loop {
    const struct cpu_rows *rows;
    const struct cpu_norm *norm;
};

/* Elements [at, at + n) of what is normalised: x, or x + residual. */
static void read_block(const struct norm_loop *loop, int64_t at, int64_t n,
                       float *z)
{
    const struct cpu_norm *norm = loop->norm;
    enum roped_dtype dtype = norm->x->dtype;
    size_t bytes = roped_dtype_bytes(dtype);
    float residual[CPU_BLOCK];
    loop->rows->widen(dtype, z, cpu_at(norm->x->data, at, bytes), n);
    if (!norm->residual)
        return;
    loop->rows->widen(dtype, residual, cpu_at(norm->residual->data, at, bytes),
                      n);
    loop->rows->add(z, residual, n);
}

static double row_sum(const struct norm_loop *loop, int64_t at)
{
    int64_t hidden = loop->norm->plan->hidden;
    float z[CPU_BLOCK];
    double sum = 0;
    for (int64_t j = 0; j < hidden; j += CPU_BLOCK) {
        int64_t n = hidden - j < CPU_BLOCK ? hidden - j : CPU_BLOCK;
        read_block(loop, at + j, n, z);
        sum += loop->rows->sum_of_squares(z, n);
    }
    return sum;
}

/* Hugging Face's order: z * s is rounded to the type of x first. */
static void round_product(const struct norm_loop *loop, float *z, float s,
                          int64_t n)
{
    enum roped_dtype dtype = loop->norm->x->dtype;
    uint16_t rounded[CPU_BLOCK];
    loop->rows->scale(z, s, n);
    if (dtype == ROPED_F32)
        return;
    loop->rows->narrow(dtype, rounded, z, n);
    loop->rows->widen(dtype, z, rounded, n);
}

/* y of columns [j, j + n) of a row in float32; z is used up. */
static void normalize_block(const struct norm_loop *loop, int64_t j, int64_t n,
                            float s, float *z, float *y)
{
    const struct rmsnorm_plan *plan = loop->norm->plan;
    const struct roped_tensor *w = loop->norm->weight;
    float weight[CPU_BLOCK];
    if (plan->weight_dtype)
        loop->rows->widen(w->dtype, weight,
                          cpu_at(w->data, j, roped_dtype_bytes(w->dtype)), n);
    if (plan->rounding == RMSNORM_ROUND_HF) {
        round_product(loop, z, s, n);
        s = 1;
    }
    loop->rows->normalize(y, z, s, plan->weight_dtype ? weight : NULL,
                          plan->weight_bias, n);
}

/* ----------------------------------------------------------------- scales */

/* FP8 scale of values up to largest in magnitude. */
static float scale_of(const struct rmsnorm_quantize_plan *plan, float largest)
{
    float scale = fminf(largest, plan->scale_ub) / plan->largest;
    return fmaxf(scale, plan->smallest_scale);
}

static float largest_of_row(const struct norm_loop *loop, int64_t at, float s)
{
    int64_t hidden = loop->norm->plan->hidden;
    float z[CPU_BLOCK], y[CPU_BLOCK], largest = 0;
    for (int64_t j = 0; j < hidden; j += CPU_BLOCK) {
        int64_t n = hidden - j < CPU_BLOCK ? hidden - j : CPU_BLOCK;
        read_block(loop, at + j, n, z);
        normalize_block(loop, j, n, s, z, y);
        largest = fmaxf(largest, loop->rows->largest(y, n));
    }
    return largest;
}

static bool has_groups(const struct rmsnorm_quantize_plan *plan)
{
    return plan->group_size && plan->group_size != plan->norm.hidden;
}

/* Divides n values by the scales of their groups, and keeps the scales. */
static void divide_groups(const struct norm_loop *loop, int64_t first_group,
                          float *y, int64_t n)
{
    const struct rmsnorm_quantize_plan *plan = loop->norm->quantize;
    int64_t size = plan->group_size;
    for (int64_t group = 0; group * size < n; group++) {
        float *values = y + group * size;
        float scale = scale_of(plan, loop->rows->largest(values, size));
        loop->norm->scales[first_group + group] = scale;
        loop->rows->divide(values, scale, size);
    }
}

static_assert(CPU_BLOCK % 128 == 0, "a block holds whole groups");

/* Divides y of a block, which starts at element at, on its way to FP8. */
static void divide_block(const struct norm_loop *loop, int64_t at, float *y,
                         int64_t n, float row_scale)
{
    const struct rmsnorm_quantize_plan *plan = loop->norm->quantize;
    if (has_groups(plan))
        divide_groups(loop, at / plan->group_size, y, n);
    else
        loop->rows->divide(y, row_scale, n);
}

/* The scale of a whole row, given or dynamic; 1 where it has none. */
static float row_scale(const struct norm_loop *loop, int64_t row, float s)
{
    const struct rmsnorm_quantize_plan *plan = loop->norm->quantize;
    if (!plan || has_groups(plan))
        return 1;
    if (!plan->group_size)
        return plan->dequant_scale;
    float largest = largest_of_row(loop, row * plan->norm.hidden, s);
    return loop->norm->scales[row] = scale_of(plan, largest);
}

/* ------------------------------------------------------------------- rows */

static void write_row(const struct norm_loop *loop, int64_t row, float s)
{
    const struct cpu_norm *norm = loop->norm;
    const struct roped_tensor *sum = norm->residual_out;
    int64_t hidden = norm->plan->hidden, at = row * hidden;
    size_t bytes = roped_dtype_bytes(norm->y->dtype);
    float z[CPU_BLOCK], y[CPU_BLOCK], scale = row_scale(loop, row, s);
    for (int64_t j = 0; j < hidden; j += CPU_BLOCK) {
        int64_t n = hidden - j < CPU_BLOCK ? hidden - j : CPU_BLOCK;
        read_block(loop, at + j, n, z);
        if (sum)
            loop->rows->narrow(sum->dtype, cpu_at(sum->data, at + j, bytes), z,
                               n);
        normalize_block(loop, j, n, s, z, y);
        if (norm->quantize)
            divide_block(loop, at + j, y, n, scale);
        loop->rows->narrow(norm->y->dtype, cpu_at(norm->y->data, at + j, bytes),
                           y, n);
    }
}

static void normalize_rows(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    const struct rmsnorm_plan *plan = loop->norm->plan;
    int64_t h = plan->hidden;
    for (int64_t row = begin; row < end; row++) {
        double mean = row_sum(loop, row * h) / (double)h;
        double s = 1 / sqrt(mean + (double)plan->eps);
        write_row(loop, row, (float)s);
    }
}

void cpu_norm_rows(const struct cpu_norm *norm, const struct roped_call *call,
                   struct roped_queue *queue)
{
    struct norm_loop loop = {queue->backend->rows, norm};
    pool_for(queue->backend->pool, norm->plan->n_rows, roped_call_bytes(call),
             normalize_rows, &loop);
}
