/*
 * qk_rmsnorm_rope.c - qk_rmsnorm_rope on the CPU: tokens over threads. Heads
 * are read once for their sums of squares and again, from the cache, to be
 * scaled, weighted and rotated.
 */
#include "ops/qk_rmsnorm_rope.h"
#include "cpu/cpu_internal.h"

/* q, or k. */
struct norm_heads {
    const struct roped_tensor *in, *out;
    struct cpu_heads heads; /* n_heads and s: not yet */
    int64_t n_heads;
};

struct norm_loop {
    struct cpu_angles angles;
    const struct qk_rmsnorm_rope_plan *plan;
    struct norm_heads part[2];
};

/* The pairs whose cos and sin are at hand: heads of up to one block of
 * pairs find them once per token. */
struct pair_block {
    int64_t token, first; /* token -1: none yet */
    float c[CPU_PAIRS], s[CPU_PAIRS];
};

static void rotate_block(const struct norm_loop *loop,
                         const struct cpu_heads *heads, void *to,
                         const void *from, int64_t token, int64_t first,
                         struct pair_block *block)
{
    int64_t n = heads->n_pairs - first;
    n = n < CPU_PAIRS ? n : CPU_PAIRS;
    if (block->token != token || block->first != first)
        cpu_angles_fill(&loop->angles, token, first, n, block->c, block->s);
    block->token = token;
    block->first = first;
    loop->angles.rows->rotate(heads, to, from, first, n, block->c, block->s);
}

/* Up to CPU_ROWS heads at a time: all sums before anything is written. */
static void write_heads(const struct norm_loop *loop,
                        const struct norm_heads *part, int64_t token,
                        struct pair_block *block)
{
    const struct cpu_rows *rows = loop->angles.rows;
    size_t bytes = roped_dtype_bytes(part->in->dtype);
    float s[CPU_ROWS];
    struct cpu_heads heads = part->heads;
    heads.s = s;
    for (int64_t head = 0; head < part->n_heads; head += CPU_ROWS) {
        int64_t left = part->n_heads - head;
        int64_t at = (token * part->n_heads + head) * heads.width;
        void *from = cpu_at(part->in->data, at, bytes);
        void *to = cpu_at(part->out->data, at, bytes);
        heads.n_heads = left < CPU_ROWS ? left : CPU_ROWS;
        rows->inverse_rms(heads.from, from, NULL, heads.n_heads, heads.width,
                          loop->plan->eps, s);
        for (int64_t first = 0; first < heads.n_pairs; first += CPU_PAIRS)
            rotate_block(loop, &heads, to, from, token, first, block);
    }
}

/* A token's heads, as they are. */
static void copy_heads(const struct norm_loop *loop,
                       const struct norm_heads *part, int64_t token)
{
    int64_t n = part->n_heads * part->heads.width;
    size_t bytes = roped_dtype_bytes(part->in->dtype);
    if (n > 0)
        loop->angles.rows->convert(
            part->heads.to, cpu_at(part->out->data, token * n, bytes),
            part->heads.from, cpu_at(part->in->data, token * n, bytes), 1, n,
            part->heads.is_streamed);
}

static void write_tokens(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    struct pair_block block = {.token = -1};
    for (int64_t token = begin; token < end; token++) {
        bool is_padding = cpu_is_padding(&loop->angles, token);
        for (int i = 0; i < 2; i++)
            if (is_padding)
                copy_heads(loop, &loop->part[i], token);
            else
                write_heads(loop, &loop->part[i], token, &block);
    }
}

/* Of q (which 0) or k (1); weight has room for the weights of a head. */
static struct norm_heads heads_of(const struct norm_loop *loop,
                                  const struct roped_call *call, int which,
                                  bool is_large, float *weight)
{
    const struct qk_rmsnorm_rope_plan *plan = loop->plan;
    const struct rope_plan *rope = &plan->rope;
    const struct roped_tensor *in = &call->in[QK_RMSNORM_ROPE_Q + which];
    const struct roped_tensor *out = &call->out[QK_RMSNORM_ROPE_Q_OUT + which];
    int64_t n_heads = which ? rope->k_heads : rope->q_heads;
    if (n_heads > 0)
        loop->angles.rows->fill_weight(
            (enum roped_dtype)plan->weight_dtype, weight,
            call->in[QK_RMSNORM_ROPE_Q_WEIGHT + which].data, plan->weight_bias,
            rope->head_dim);
    return (struct norm_heads){
        .in = in,
        .out = out,
        .n_heads = n_heads,
        .heads = {.from = in->dtype,
                  .to = in->dtype,
                  .is_gptj = rope->rotary.style == ROPE_GPTJ,
                  .is_streamed = is_large && in->data != out->data,
                  .width = rope->head_dim,
                  .from_pitch = rope->head_dim,
                  .to_pitch = rope->head_dim,
                  .first = rope->rotary_offset,
                  .n_pairs = rope->rotary.n_pairs,
                  .weight = weight,
                  .rounds_product = plan->rounding == RMSNORM_ROUND_HF}};
}

enum roped_status roped_cpu_qk_rmsnorm_rope(const struct roped_call *call,
                                            struct roped_queue *queue,
                                            struct roped_error *err)
{
    const struct qk_rmsnorm_rope_plan *plan = (const void *)call->plan;
    int64_t bytes = roped_call_bytes(call);
    int64_t d = cpu_ceil_div(plan->rope.head_dim, CPU_WEIGHTS) *
                CPU_WEIGHTS; /* room for a head's weights */
    struct norm_loop loop = {.angles = cpu_angles_of(call, &plan->rope.rotary,
                                                     QK_RMSNORM_ROPE_POSITIONS,
                                                     queue),
                             .plan = plan};
    void *weights;
    enum roped_status status =
        cpu_scratch(queue, (size_t)(2 * d) * sizeof(float), &weights, err);
    if (status)
        return status;
    for (int which = 0; which < 2; which++)
        loop.part[which] =
            heads_of(&loop, call, which, cpu_is_large(queue, bytes),
                     (float *)weights + which * d);
    cpu_for(queue, bytes, plan->rope.rotary.n_tokens, write_tokens, &loop);
    return ROPED_OK;
}
