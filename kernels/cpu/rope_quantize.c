/*
 * rope_quantize.c - rope_quantize on the CPU: tokens over threads; rotate or
 * take as it is, scale, round to FP8.
 */
#include "ops/rope_quantize.h"
#include "cpu/cpu_internal.h"

enum { PAIRS = CPU_BLOCK / 2 };

struct quantize_loop {
    struct cpu_angles angles;
    const struct rope_quantize_plan *plan;
    const struct roped_call *call;
};

/* n elements from a float or narrow tensor to FP8. */
static void quantize(const struct quantize_loop *loop, int port, int64_t at,
                     int64_t n, float scale)
{
    const struct cpu_rows *rows = loop->angles.rows;
    const struct roped_tensor *in = &loop->call->in[port];
    const struct roped_tensor *out = &loop->call->out[port];
    float x[CPU_BLOCK];
    for (int64_t first = 0; first < n; first += CPU_BLOCK) {
        int64_t part = n - first < CPU_BLOCK ? n - first : CPU_BLOCK;
        rows->widen(in->dtype, x,
                    cpu_at(in->data, at + first, roped_dtype_bytes(in->dtype)),
                    part);
        rows->scale(x, scale, part);
        rows->narrow(out->dtype, cpu_at(out->data, at + first, 1), x, part);
    }
}

/* Pairs [first, first + n) of the head at element at. */
static void rotate_block(const struct quantize_loop *loop, int port, int64_t at,
                         int64_t first, int64_t n, const float *c,
                         const float *s, float scale)
{
    const struct cpu_rows *rows = loop->angles.rows;
    const struct roped_tensor *in = &loop->call->in[port];
    const struct roped_tensor *out = &loop->call->out[port];
    size_t bytes = roped_dtype_bytes(in->dtype);
    float x[CPU_BLOCK];
    if (loop->plan->rotary.style == ROPE_GPTJ) {
        rows->widen(in->dtype, x, cpu_at(in->data, at + 2 * first, bytes),
                    2 * n);
        rows->rotate_gptj(x, x, c, s, n);
        rows->scale(x, scale, 2 * n);
        rows->narrow(out->dtype, cpu_at(out->data, at + 2 * first, 1), x,
                     2 * n);
        return;
    }
    int64_t second = at + loop->plan->rotary.n_pairs + first;
    rows->widen(in->dtype, x, cpu_at(in->data, at + first, bytes), n);
    rows->widen(in->dtype, x + n, cpu_at(in->data, second, bytes), n);
    rows->rotate_neox(x, x, c, s, n);
    rows->scale(x, scale, 2 * n);
    rows->narrow(out->dtype, cpu_at(out->data, at + first, 1), x, n);
    rows->narrow(out->dtype, cpu_at(out->data, second, 1), x + n, n);
}

static void rotate_heads(const struct quantize_loop *loop, int port,
                         int64_t heads, int64_t token, int64_t first, int64_t n,
                         const float *c, const float *s, float scale)
{
    const struct rope_quantize_plan *plan = loop->plan;
    int64_t begin = plan->rotary_offset;
    int64_t end = begin + 2 * plan->rotary.n_pairs;
    for (int64_t head = 0; head < heads; head++) {
        int64_t at = (token * heads + head) * plan->rope_dim;
        if (first == 0) {
            quantize(loop, port, at, begin, scale);
            quantize(loop, port, at + end, plan->rope_dim - end, scale);
        }
        rotate_block(loop, port, at + begin, first, n, c, s, scale);
    }
}

static void quantize_tokens(void *context, int64_t begin, int64_t end)
{
    const struct quantize_loop *loop = context;
    const struct rope_quantize_plan *plan = loop->plan;
    float c[PAIRS], s[PAIRS];
    for (int64_t token = begin; token < end; token++) {
        for (int64_t first = 0; first < plan->rotary.n_pairs; first += PAIRS) {
            int64_t n = plan->rotary.n_pairs - first;
            n = n < PAIRS ? n : PAIRS;
            cpu_angles_fill(&loop->angles, token, first, n, c, s);
            rotate_heads(loop, ROPE_QUANTIZE_Q_ROPE, plan->q_heads, token,
                         first, n, c, s, plan->scale_q);
            rotate_heads(loop, ROPE_QUANTIZE_K_ROPE, plan->k_heads, token,
                         first, n, c, s, plan->scale_k);
        }
        int64_t q = plan->q_heads * plan->nope_dim;
        int64_t k = plan->k_heads * plan->nope_dim;
        quantize(loop, ROPE_QUANTIZE_Q_NOPE, token * q, q, plan->scale_q);
        quantize(loop, ROPE_QUANTIZE_K_NOPE, token * k, k, plan->scale_k);
    }
}

enum roped_status roped_cpu_rope_quantize(const struct roped_call *call,
                                          struct roped_queue *queue,
                                          struct roped_error *err)
{
    const struct rope_quantize_plan *plan = (const void *)call->plan;
    struct quantize_loop loop = {
        cpu_angles_of(call, &plan->rotary, ROPE_QUANTIZE_POSITIONS, queue),
        plan, call};
    (void)err;
    pool_for(queue->backend->pool, plan->rotary.n_tokens,
             roped_call_bytes(call), quantize_tokens, &loop);
    return ROPED_OK;
}
