/*
 * rmsnorm.c - rmsnorm on the CPU: rows over threads; a row is read once from
 * memory for its sum and again, from the cache, for its result. Squares are
 * summed in double, so values up to the largest float32 normalise.
 */
#include "ops/rmsnorm.h"
#include "cpu/cpu_internal.h"

#include <math.h>

struct norm_loop {
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    const struct roped_call *call;
};

static double row_sum(const struct norm_loop *loop, int64_t at)
{
    const struct roped_tensor *x = &loop->call->in[RMSNORM_X];
    size_t bytes = roped_dtype_bytes(x->dtype);
    float block[CPU_BLOCK];
    double sum = 0;
    for (int64_t j = 0; j < loop->plan->hidden; j += CPU_BLOCK) {
        int64_t n = loop->plan->hidden - j;
        n = n < CPU_BLOCK ? n : CPU_BLOCK;
        loop->rows->widen(x->dtype, block, cpu_at(x->data, at + j, bytes), n);
        sum += loop->rows->sum_of_squares(block, n);
    }
    return sum;
}

/* Hugging Face's order: x * s is rounded to the type of x first. */
static void round_product(const struct norm_loop *loop, float *block, float s,
                          int64_t n)
{
    enum roped_dtype dtype = loop->call->in[RMSNORM_X].dtype;
    uint16_t rounded[CPU_BLOCK];
    loop->rows->scale(block, s, n);
    if (dtype == ROPED_F32)
        return;
    loop->rows->narrow(dtype, rounded, block, n);
    loop->rows->widen(dtype, block, rounded, n);
}

static void write_row(const struct norm_loop *loop, int64_t at, float s)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const struct roped_tensor *x = &loop->call->in[RMSNORM_X];
    const struct roped_tensor *w = &loop->call->in[RMSNORM_WEIGHT];
    const struct roped_tensor *y = &loop->call->out[RMSNORM_Y];
    size_t bytes = roped_dtype_bytes(x->dtype);
    float block[CPU_BLOCK], weight[CPU_BLOCK], result[CPU_BLOCK];
    for (int64_t j = 0; j < plan->hidden; j += CPU_BLOCK) {
        int64_t n = plan->hidden - j;
        n = n < CPU_BLOCK ? n : CPU_BLOCK;
        loop->rows->widen(x->dtype, block, cpu_at(x->data, at + j, bytes), n);
        if (plan->weight_dtype)
            loop->rows->widen(w->dtype, weight,
                              cpu_at(w->data, j, roped_dtype_bytes(w->dtype)),
                              n);
        if (plan->rounding == RMSNORM_ROUND_HF)
            round_product(loop, block, s, n);
        loop->rows->normalize(
            result, block, plan->rounding == RMSNORM_ROUND_HF ? 1 : s,
            plan->weight_dtype ? weight : NULL, plan->weight_bias, n);
        loop->rows->narrow(y->dtype, cpu_at(y->data, at + j, bytes), result, n);
    }
}

static void normalize_rows(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    int64_t h = loop->plan->hidden;
    for (int64_t row = begin; row < end; row++) {
        double mean = row_sum(loop, row * h) / (double)h;
        double s = 1 / sqrt(mean + (double)loop->plan->eps);
        write_row(loop, row * h, (float)s);
    }
}

enum roped_status roped_cpu_rmsnorm(const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    struct norm_loop loop = {queue->backend->rows, plan, call};
    (void)err;
    pool_for(queue->backend->pool, plan->n_rows, roped_call_bytes(call),
             normalize_rows, &loop);
    return ROPED_OK;
}
