/*
 * rmsnorm.c - rmsnorm on the CPU: rows over threads; a row is read once from
 * memory for its sum and again, from the cache, for its result.
 */
#include "ops/rmsnorm.h"
#include "cpu/cpu_internal.h"

struct norm_loop {
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    const struct roped_call *call;
    struct cpu_norm norm;
};

/*
 * Rows are read for their sums and again, from the second-level cache, to be
 * written: several at a time, because the weights are prepared once for all of
 * them. Four at least, while that cache has room for them.
 */
static int64_t rows_per_batch(int64_t row_bytes)
{
    enum { FIRST_LEVEL = 32 << 10, SECOND_LEVEL = 128 << 10, FEW = 4 };
    int64_t n = FIRST_LEVEL / row_bytes;
    if (n < FEW)
        n = SECOND_LEVEL / row_bytes < FEW ? SECOND_LEVEL / row_bytes : FEW;
    return n < 1 ? 1 : n < CPU_ROWS ? n : CPU_ROWS;
}

static void normalize_rows(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    const struct cpu_norm *norm = &loop->norm;
    const struct roped_tensor *x = &loop->call->in[RMSNORM_X];
    const struct roped_tensor *y = &loop->call->out[RMSNORM_Y];
    size_t bytes = roped_dtype_bytes(x->dtype);
    int64_t batch = rows_per_batch(norm->width * (int64_t)bytes);
    float s[CPU_ROWS];
    for (int64_t row = begin; row < end; row += batch) {
        int64_t n = end - row < batch ? end - row : batch;
        int64_t at = row * norm->width;
        const void *from = cpu_at(x->data, at, bytes);
        loop->rows->inverse_rms(x->dtype, from, n, norm->width, loop->plan->eps,
                                s);
        loop->rows->normalize(norm, cpu_at(y->data, at, bytes), from, s, n);
    }
}

static struct cpu_norm norm_of(const struct roped_call *call,
                               const struct roped_queue *queue)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    const struct roped_tensor *y = &call->out[RMSNORM_Y];
    return (struct cpu_norm){
        .width = plan->hidden,
        .from = x->dtype,
        .to = y->dtype,
        .weight_dtype = (enum roped_dtype)plan->weight_dtype,
        .weight = call->in[RMSNORM_WEIGHT].data,
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
