/*
 * qk_rmsnorm_rope.c - qk_rmsnorm_rope on the CPU: tokens over threads. A head
 * is read once for its sum of squares and again, from the cache, to be scaled,
 * weighted and rotated. Squares are summed in double, as in rmsnorm.
 */
#include "ops/qk_rmsnorm_rope.h"
#include "cpu/cpu_internal.h"

#include <math.h>

/* Pairs per block: both halves of a block fit the scratch. */
enum { PAIRS = CPU_BLOCK / 2 };

struct norm_loop {
    struct cpu_angles angles;
    const struct qk_rmsnorm_rope_plan *plan;
    const struct roped_call *call;
};

/* The pairs whose cos and sin are at hand: heads of up to one block of
 * pairs find them once per token. */
struct angle_block {
    int64_t token, first; /* token -1: none yet */
    float c[PAIRS], s[PAIRS];
};

struct head {
    const struct roped_tensor *weight; /* or NULL */
    enum roped_dtype dtype;
    void *from, *to;
    float scale; /* 1 / sqrt(mean(x^2) + eps) */
};

static float scale_of(const struct norm_loop *loop, const struct head *head)
{
    int64_t d = loop->plan->rope.head_dim;
    size_t bytes = roped_dtype_bytes(head->dtype);
    float block[CPU_BLOCK];
    double sum = 0;
    for (int64_t j = 0; j < d; j += CPU_BLOCK) {
        int64_t n = d - j < CPU_BLOCK ? d - j : CPU_BLOCK;
        loop->angles.rows->widen(head->dtype, block,
                                 cpu_at(head->from, j, bytes), n);
        sum += loop->angles.rows->sum_of_squares(block, n);
    }
    return (float)(1 / sqrt(sum / (double)d + (double)loop->plan->eps));
}

/* Weights [at, at + n), in scratch unless they are float32; NULL: all 1. */
static const float *weights_at(const struct norm_loop *loop,
                               const struct head *head, int64_t at, int64_t n,
                               float *scratch)
{
    const struct roped_tensor *weight = head->weight;
    if (!weight)
        return NULL;
    const void *from =
        cpu_at(weight->data, at, roped_dtype_bytes(weight->dtype));
    if (weight->dtype == ROPED_F32)
        return from;
    loop->angles.rows->widen(weight->dtype, scratch, from, n);
    return scratch;
}

/* Hugging Face's order: x * s is rounded to the type of x first. */
static void round_product(const struct norm_loop *loop, const struct head *head,
                          float *x, int64_t n)
{
    uint16_t rounded[CPU_BLOCK];
    loop->angles.rows->scale(x, head->scale, n);
    if (head->dtype == ROPED_F32)
        return;
    loop->angles.rows->narrow(head->dtype, rounded, x, n);
    loop->angles.rows->widen(head->dtype, x, rounded, n);
}

/* y = elements [at, at + n) of the head, normalised and weighted. */
static void normalize(const struct norm_loop *loop, const struct head *head,
                      int64_t at, int64_t n, float *y)
{
    const struct cpu_rows *rows = loop->angles.rows;
    float x[CPU_BLOCK], scratch[CPU_BLOCK], scale = head->scale;
    const float *weight = weights_at(loop, head, at, n, scratch);
    rows->widen(head->dtype, x,
                cpu_at(head->from, at, roped_dtype_bytes(head->dtype)), n);
    if (loop->plan->rounding == RMSNORM_ROUND_HF) {
        round_product(loop, head, x, n);
        scale = 1;
    }
    rows->normalize(y, x, scale, weight, loop->plan->weight_bias, n);
}

static void write_part(const struct norm_loop *loop, const struct head *head,
                       int64_t at, int64_t n, const float *x)
{
    size_t bytes = roped_dtype_bytes(head->dtype);
    loop->angles.rows->narrow(head->dtype, cpu_at(head->to, at, bytes), x, n);
}

/* Elements [begin, end), which do not rotate. */
static void write_rest(const struct norm_loop *loop, const struct head *head,
                       int64_t begin, int64_t end)
{
    float x[CPU_BLOCK];
    for (int64_t at = begin; at < end; at += CPU_BLOCK) {
        int64_t n = end - at < CPU_BLOCK ? end - at : CPU_BLOCK;
        normalize(loop, head, at, n, x);
        write_part(loop, head, at, n, x);
    }
}

static void write_pairs(const struct norm_loop *loop, const struct head *head,
                        const struct angle_block *angle, int64_t n)
{
    const struct cpu_rows *rows = loop->angles.rows;
    const struct rope_plan *rope = &loop->plan->rope;
    float x[CPU_BLOCK];
    if (rope->rotary.style == ROPE_GPTJ) {
        int64_t at = rope->rotary_offset + 2 * angle->first;
        normalize(loop, head, at, 2 * n, x);
        rows->rotate_gptj(x, x, angle->c, angle->s, n);
        write_part(loop, head, at, 2 * n, x);
        return;
    }
    int64_t at = rope->rotary_offset + angle->first;
    int64_t second = at + rope->rotary.n_pairs;
    normalize(loop, head, at, n, x);
    normalize(loop, head, second, n, x + n);
    rows->rotate_neox(x, x, angle->c, angle->s, n);
    write_part(loop, head, at, n, x);
    write_part(loop, head, second, n, x + n);
}

static void write_head(const struct norm_loop *loop, const struct head *head,
                       int64_t token, struct angle_block *angle)
{
    const struct rope_plan *rope = &loop->plan->rope;
    int64_t n_pairs = rope->rotary.n_pairs;
    write_rest(loop, head, 0, rope->rotary_offset);
    write_rest(loop, head, rope->rotary_offset + 2 * n_pairs, rope->head_dim);
    for (int64_t first = 0; first < n_pairs; first += PAIRS) {
        int64_t n = n_pairs - first < PAIRS ? n_pairs - first : PAIRS;
        if (angle->token != token || angle->first != first)
            cpu_angles_fill(&loop->angles, token, first, n, angle->c, angle->s);
        angle->token = token;
        angle->first = first;
        write_pairs(loop, head, angle, n);
    }
}

/* All heads of a token in q (which 0) or k (1). */
static void write_heads(const struct norm_loop *loop, int which, int64_t token,
                        struct angle_block *angle)
{
    const struct rope_plan *rope = &loop->plan->rope;
    const struct roped_tensor *in = &loop->call->in[QK_RMSNORM_ROPE_Q + which];
    int64_t heads = which ? rope->k_heads : rope->q_heads;
    size_t bytes = roped_dtype_bytes(in->dtype);
    struct head head = {.dtype = in->dtype};
    if (loop->plan->weight_dtype)
        head.weight = &loop->call->in[QK_RMSNORM_ROPE_Q_WEIGHT + which];
    for (int64_t i = 0; i < heads; i++) {
        int64_t at = (token * heads + i) * rope->head_dim;
        head.from = cpu_at(in->data, at, bytes);
        head.to = cpu_at(loop->call->out[QK_RMSNORM_ROPE_Q_OUT + which].data,
                         at, bytes);
        head.scale = scale_of(loop, &head);
        write_head(loop, &head, token, angle);
    }
}

static void write_tokens(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    struct angle_block angle = {.token = -1};
    for (int64_t token = begin; token < end; token++) {
        write_heads(loop, 0, token, &angle);
        write_heads(loop, 1, token, &angle);
    }
}

enum roped_status roped_cpu_qk_rmsnorm_rope(const struct roped_call *call,
                                            struct roped_queue *queue,
                                            struct roped_error *err)
{
    const struct qk_rmsnorm_rope_plan *plan = (const void *)call->plan;
    struct norm_loop loop = {cpu_angles_of(call, &plan->rope.rotary,
                                           QK_RMSNORM_ROPE_POSITIONS, queue),
                             plan, call};
    (void)err;
    pool_for(queue->backend->pool, plan->rope.rotary.n_tokens,
             roped_call_bytes(call), write_tokens, &loop);
    return ROPED_OK;
}
