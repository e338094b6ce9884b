/*
 * rmsnorm.c - rmsnorm on the CPU: rows over threads; a row is read once from
 * memory for its sum and again, from the cache, for its result.
 */
#include "ops/rmsnorm.h"
#include "cpu/cpu_internal.h"

#include <math.h>

struct norm_loop {
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    const struct roped_call *call;
    struct cpu_norm norm;
};

static void normalize_rows(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    const struct roped_tensor *x = &loop->call->in[RMSNORM_X];
    const struct roped_tensor *y = &loop->call->out[RMSNORM_Y];
    int64_t h = loop->plan->hidden;
    size_t bytes = roped_dtype_bytes(x->dtype);
    for (int64_t row = begin; row < end; row++) {
        const void *from = cpu_at(x->data, row * h, bytes);
        double mean = loop->rows->sum_of_squares(x->dtype, from, h) / (double)h;
        double s = 1 / sqrt(mean + (double)loop->plan->eps);
        loop->rows->normalize(&loop->norm, cpu_at(y->data, row * h, bytes),
                              from, loop->call->in[RMSNORM_WEIGHT].data,
                              (float)s, h);
    }
}

static struct cpu_norm norm_of(const struct roped_call *call,
                               const struct roped_queue *queue)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    const struct roped_tensor *y = &call->out[RMSNORM_Y];
    return (struct cpu_norm){
        .from = x->dtype,
        .to = y->dtype,
        .weight = (enum roped_dtype)plan->weight_dtype,
        /* Hugging Face's order: x * s in the type of x, then the weight */
        .round_first =
            plan->rounding == RMSNORM_ROUND_HF ? x->dtype : ROPED_NO_DTYPE,
        .is_streamed = cpu_is_large(queue, call) && x->data != y->data,
        .bias = plan->weight_bias,
    };
}

enum roped_status roped_cpu_rmsnorm(const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    struct norm_loop loop = {queue->backend->rows, plan, call,
                             norm_of(call, queue)};
    (void)err;
    cpu_for(queue, call, plan->n_rows, normalize_rows, &loop);
    return ROPED_OK;
}
