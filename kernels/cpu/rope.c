/*
 * rope.c - rope on the CPU: tokens over threads; a token's angles are found
 * once and serve all its heads.
 */
#include "cpu/cpu_internal.h"

#include <string.h>

struct rope_loop {
    struct cpu_angles angles;
    const struct rope_plan *plan;
    const struct roped_call *call;
};

/* Pairs per block: both halves of a block fit the scratch. */
enum { PAIRS = CPU_BLOCK / 2 };

/* Rotates pairs [first, first + n) of one head. */
static void rotate_block(const struct rope_loop *loop, enum roped_dtype dtype,
                         void *to, void *from, int64_t first, int64_t n,
                         const float *c, const float *s)
{
    const struct cpu_rows *rows = loop->angles.rows;
    int64_t n_pairs = loop->plan->rotary.n_pairs;
    size_t bytes = roped_dtype_bytes(dtype);
    float scratch[CPU_BLOCK];
    if (loop->plan->rotary.style == ROPE_GPTJ) {
        float *x = dtype == ROPED_F32 ? from : scratch;
        float *y = dtype == ROPED_F32 ? to : scratch;
        if (dtype == ROPED_F32) {
            rows->rotate_gptj(y + 2 * first, x + 2 * first, c, s, n);
            return;
        }
        rows->widen(dtype, x, cpu_at(from, 2 * first, bytes), 2 * n);
        rows->rotate_gptj(y, x, c, s, n);
        rows->narrow(dtype, cpu_at(to, 2 * first, bytes), y, 2 * n);
        return;
    }
    if (dtype == ROPED_F32 && n == n_pairs) {
        rows->rotate_neox(to, from, c, s, n);
        return;
    }
    rows->widen(dtype, scratch, cpu_at(from, first, bytes), n);
    rows->widen(dtype, scratch + n, cpu_at(from, n_pairs + first, bytes), n);
    rows->rotate_neox(scratch, scratch, c, s, n);
    rows->narrow(dtype, cpu_at(to, first, bytes), scratch, n);
    rows->narrow(dtype, cpu_at(to, n_pairs + first, bytes), scratch + n, n);
}

/* What does not rotate is copied bit for bit. */
static void copy_rest(const struct rope_plan *plan, size_t bytes, void *to,
                      void *from)
{
    int64_t first = plan->rotary_offset;
    int64_t end = first + 2 * plan->rotary.n_pairs;
    if (to == from)
        return;
    if (first > 0)
        memcpy(to, from, (size_t)first * bytes);
    if (end < plan->head_dim)
        memcpy(cpu_at(to, end, bytes), cpu_at(from, end, bytes),
               (size_t)(plan->head_dim - end) * bytes);
}

static void rotate_heads(const struct rope_loop *loop, int input, int output,
                         int64_t heads, int64_t token, int64_t first, int64_t n,
                         const float *c, const float *s)
{
    const struct rope_plan *plan = loop->plan;
    const struct roped_tensor *in = &loop->call->in[input];
    size_t bytes = roped_dtype_bytes(in->dtype);
    for (int64_t head = 0; head < heads; head++) {
        int64_t at = (token * heads + head) * plan->head_dim;
        void *from = cpu_at(in->data, at, bytes);
        void *to = cpu_at(loop->call->out[output].data, at, bytes);
        if (first == 0)
            copy_rest(plan, bytes, to, from);
        rotate_block(loop, in->dtype, cpu_at(to, plan->rotary_offset, bytes),
                     cpu_at(from, plan->rotary_offset, bytes), first, n, c, s);
    }
}

static void rotate_tokens(void *context, int64_t begin, int64_t end)
{
    const struct rope_loop *loop = context;
    const struct rope_plan *plan = loop->plan;
    float c[PAIRS], s[PAIRS];
    for (int64_t token = begin; token < end; token++)
        for (int64_t first = 0; first < plan->rotary.n_pairs; first += PAIRS) {
            int64_t n = plan->rotary.n_pairs - first;
            n = n < PAIRS ? n : PAIRS;
            cpu_angles_fill(&loop->angles, token, first, n, c, s);
            rotate_heads(loop, ROPE_Q, ROPE_Q_OUT, plan->q_heads, token, first,
                         n, c, s);
            rotate_heads(loop, ROPE_K, ROPE_K_OUT, plan->k_heads, token, first,
                         n, c, s);
        }
}

enum roped_status roped_cpu_rope(const struct roped_call *call,
                                 struct roped_queue *queue,
                                 struct roped_error *err)
{
    const struct rope_plan *plan = (const void *)call->plan;
    struct rope_loop loop = {
        cpu_angles_of(call, &plan->rotary, ROPE_POSITIONS, queue), plan, call};
    (void)err;
    pool_for(queue->backend->pool, plan->rotary.n_tokens,
             roped_call_bytes(call), rotate_tokens, &loop);
    return ROPED_OK;
}
