/*
 * rope_quantize.c - rope_quantize on the CPU: tokens over threads; rotate or
 * take as it is, scale, round to FP8.
 */
#include "ops/rope_quantize.h"
#include "cpu/cpu_internal.h"

struct quantize_loop {
    struct cpu_angles angles;
    const struct rope_quantize_plan *plan;
    const struct roped_call *call;
    bool is_large;
};

/* Every output's port is its input's. */
static struct cpu_heads heads_of(const struct quantize_loop *loop, int port,
                                 int64_t n_heads, float scale)
{
    const struct rope_quantize_plan *plan = loop->plan;
    return (struct cpu_heads){
        .from = loop->call->in[port].dtype,
        .to = loop->call->out[port].dtype,
        .is_gptj = plan->rotary.style == ROPE_GPTJ,
        .is_streamed = loop->is_large,
        .scale = scale,
        .n_heads = n_heads,
        .width = plan->rope_dim,
        .from_pitch = plan->rope_dim,
        .to_pitch = plan->rope_dim,
        .first = plan->rotary_offset,
        .n_pairs = plan->rotary.n_pairs,
    };
}

/* A token of n elements. */
static void *token_at(const struct roped_tensor *tensor, int64_t token,
                      int64_t n)
{
    return cpu_at(tensor->data, token * cpu_step(tensor, n),
                  roped_dtype_bytes(tensor->dtype));
}

static void rotate_heads(const struct quantize_loop *loop,
                         const struct cpu_heads *heads, int port, int64_t token,
                         const struct cpu_pairs *pairs)
{
    int64_t n = heads->n_heads * heads->width;
    if (n == 0)
        return;
    loop->angles.rows->rotate(heads, token_at(&loop->call->out[port], token, n),
                              token_at(&loop->call->in[port], token, n), pairs);
}

/* The part of a token that does not rotate. */
static void quantize(const struct quantize_loop *loop, int port, int64_t token,
                     int64_t n, float scale)
{
    const struct roped_tensor *in = &loop->call->in[port];
    const struct roped_tensor *out = &loop->call->out[port];
    if (n == 0)
        return;
    const struct cpu_conversion how = {in->dtype, out->dtype, scale,
                                       loop->is_large};
    loop->angles.rows->convert(&how, token_at(out, token, n),
                               token_at(in, token, n), n);
}

static void rotate_token(const struct quantize_loop *loop,
                         const struct cpu_heads *q, const struct cpu_heads *k,
                         int64_t token)
{
    float c[CPU_PAIRS], s[CPU_PAIRS];
    for (int64_t first = 0; first < q->n_pairs; first += CPU_PAIRS) {
        const struct cpu_pairs pairs = {
            first, cpu_smaller(q->n_pairs - first, CPU_PAIRS), c, s};
        cpu_angles_fill(&loop->angles, token, &pairs);
        rotate_heads(loop, q, ROPE_QUANTIZE_Q_ROPE, token, &pairs);
        rotate_heads(loop, k, ROPE_QUANTIZE_K_ROPE, token, &pairs);
    }
}

static void quantize_tokens(void *context, int64_t begin, int64_t end)
{
    const struct quantize_loop *loop = context;
    const struct rope_quantize_plan *plan = loop->plan;
    const struct cpu_heads q =
        heads_of(loop, ROPE_QUANTIZE_Q_ROPE, plan->q_heads, plan->scale_q);
    const struct cpu_heads k =
        heads_of(loop, ROPE_QUANTIZE_K_ROPE, plan->k_heads, plan->scale_k);
    for (int64_t token = begin; token < end; token++) {
        if (cpu_is_padding(&loop->angles, token)) {
            quantize(loop, ROPE_QUANTIZE_Q_ROPE, token, q.n_heads * q.width,
                     plan->scale_q);
            quantize(loop, ROPE_QUANTIZE_K_ROPE, token, k.n_heads * k.width,
                     plan->scale_k);
        } else {
            rotate_token(loop, &q, &k, token);
        }
        quantize(loop, ROPE_QUANTIZE_Q_NOPE, token,
                 plan->q_heads * plan->nope_dim, plan->scale_q);
        quantize(loop, ROPE_QUANTIZE_K_NOPE, token,
                 plan->k_heads * plan->nope_dim, plan->scale_k);
    }
}

enum roped_status roped_cpu_rope_quantize(const struct roped_call *call,
                                          struct roped_queue *queue,
                                          struct roped_error *err)
{
    const struct rope_quantize_plan *plan = (const void *)call->plan;
    struct quantize_loop loop = {
        cpu_angles_of(call, &plan->rotary, ROPE_QUANTIZE_POSITIONS, queue),
        plan, call, cpu_is_large(queue, roped_call_bytes(call))};
    (void)err;
    cpu_for(queue, roped_call_bytes(call), plan->rotary.n_tokens,
            quantize_tokens, &loop);
    return ROPED_OK;
}
