/*
 * rope_append.c - rope_append on the CPU: tokens over threads. A token's key
 * heads are rotated straight into its slot, its value heads copied there.
 */
#include "ops/rope_append.h"
#include "cpu/cpu_internal.h"

#include <string.h>

/* Pairs per block: both halves of a block fit the scratch. */
enum { PAIRS = CPU_BLOCK / 2 };

struct append_loop {
    struct cpu_angles angles;
    const struct rope_append_plan *plan;
    const struct roped_call *call;
    struct append_map map;
};

/* Pairs [first, first + n) of a token and their angles. */
struct pair_block {
    int64_t first, n;
    float c[PAIRS], s[PAIRS];
};

/* Rotates a block of pairs of one head, whose rotated part is at from. */
static void rotate_block(const struct append_loop *loop, enum roped_dtype dtype,
                         void *to, void *from, const struct pair_block *block)
{
    const struct cpu_rows *rows = loop->angles.rows;
    size_t bytes = roped_dtype_bytes(dtype);
    int64_t n = block->n, at = block->first;
    float x[CPU_BLOCK];
    if (loop->angles.rotary.style == ROPE_GPTJ) {
        rows->widen(dtype, x, cpu_at(from, 2 * at, bytes), 2 * n);
        rows->rotate_gptj(x, x, block->c, block->s, n);
        rows->narrow(dtype, cpu_at(to, 2 * at, bytes), x, 2 * n);
        return;
    }
    int64_t second = loop->angles.rotary.n_pairs + at;
    rows->widen(dtype, x, cpu_at(from, at, bytes), n);
    rows->widen(dtype, x + n, cpu_at(from, second, bytes), n);
    rows->rotate_neox(x, x, block->c, block->s, n);
    rows->narrow(dtype, cpu_at(to, at, bytes), x, n);
    rows->narrow(dtype, cpu_at(to, second, bytes), x + n, n);
}

/* What does not rotate is copied bit for bit. */
static void copy_rest(const struct rope_plan *plan, size_t bytes, void *to,
                      void *from)
{
    int64_t first = plan->rotary_offset;
    int64_t end = first + 2 * plan->rotary.n_pairs;
    if (to == from)
        return;
    memcpy(to, from, (size_t)first * bytes);
    memcpy(cpu_at(to, end, bytes), cpu_at(from, end, bytes),
           (size_t)(plan->head_dim - end) * bytes);
}

/* Rotates a block of every head of a token; heads are d apart on both sides. */
static void rotate_heads(const struct append_loop *loop, enum roped_dtype dtype,
                         int64_t heads, void *to, void *from,
                         const struct pair_block *block)
{
    const struct rope_plan *rope = &loop->plan->rope;
    size_t bytes = roped_dtype_bytes(dtype);
    for (int64_t head = 0; head < heads; head++) {
        int64_t at = head * rope->head_dim;
        if (block->first == 0)
            copy_rest(rope, bytes, cpu_at(to, at, bytes),
                      cpu_at(from, at, bytes));
        at += rope->rotary_offset;
        rotate_block(loop, dtype, cpu_at(to, at, bytes),
                     cpu_at(from, at, bytes), block);
    }
}

/* A token's heads, or NULL where the tensor is not given. */
static void *token_row(const struct append_loop *loop,
                       const struct roped_tensor *tensor, int64_t heads,
                       int64_t token)
{
    int64_t row = heads * loop->plan->rope.head_dim;
    if (!roped_tensor_given(tensor))
        return NULL;
    return cpu_at(tensor->data, token * row, roped_dtype_bytes(tensor->dtype));
}

/* A token's place in a cache, or NULL without one. */
static void *cache_row(const struct append_loop *loop, int output, int64_t cell)
{
    const struct roped_tensor *cache = &loop->call->out[output];
    if (cell < 0)
        return NULL;
    return cpu_at(cache->data, cell * loop->plan->rope.head_dim,
                  roped_dtype_bytes(cache->dtype));
}

static void rotate_token(const struct append_loop *loop, int64_t token,
                         void *k_cache, const struct pair_block *block)
{
    const struct roped_call *call = loop->call;
    const struct rope_plan *rope = &loop->plan->rope;
    enum roped_dtype dtype = call->in[ROPE_APPEND_Q].dtype;
    void *q = token_row(loop, &call->in[ROPE_APPEND_Q], rope->q_heads, token);
    void *k = token_row(loop, &call->in[ROPE_APPEND_K], rope->k_heads, token);
    void *q_out =
        token_row(loop, &call->out[ROPE_APPEND_Q_OUT], rope->q_heads, token);
    void *k_out =
        token_row(loop, &call->out[ROPE_APPEND_K_OUT], rope->k_heads, token);
    rotate_heads(loop, dtype, rope->q_heads, q_out, q, block);
    if (k_cache) /* first: k_out may be k */
        rotate_heads(loop, dtype, rope->k_heads, k_cache, k, block);
    if (k_out)
        rotate_heads(loop, dtype, rope->k_heads, k_out, k, block);
}

static void append_tokens(void *context, int64_t begin, int64_t end)
{
    const struct append_loop *loop = context;
    const struct rope_plan *rope = &loop->plan->rope;
    const struct roped_tensor *v = &loop->call->in[ROPE_APPEND_V];
    size_t row_bytes =
        (size_t)(rope->k_heads * rope->head_dim) * roped_dtype_bytes(v->dtype);
    struct pair_block block;
    for (int64_t token = begin; token < end; token++) {
        int64_t cell = append_cell(&loop->map, token);
        void *k_cache = cache_row(loop, ROPE_APPEND_K_CACHE_OUT, cell);
        void *v_cache = cache_row(loop, ROPE_APPEND_V_CACHE_OUT, cell);
        for (int64_t at = 0; at < rope->rotary.n_pairs; at += PAIRS) {
            int64_t left = rope->rotary.n_pairs - at;
            block.first = at;
            block.n = left < PAIRS ? left : PAIRS;
            cpu_angles_fill(&loop->angles, token, at, block.n, block.c,
                            block.s);
            rotate_token(loop, token, k_cache, &block);
        }
        if (v_cache && row_bytes)
            memcpy(v_cache, token_row(loop, v, rope->k_heads, token),
                   row_bytes);
    }
}

enum roped_status roped_cpu_rope_append(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const struct rope_append_plan *plan = (const void *)call->plan;
    int64_t n_tokens = plan->rope.rotary.n_tokens;
    int64_t token_elements =
        (plan->rope.q_heads + 2 * plan->rope.k_heads) * plan->rope.head_dim;
    struct append_loop loop = {
        cpu_angles_of(call, &plan->rope.rotary, ROPE_APPEND_POSITIONS, queue),
        plan, call, rope_append_map(call, plan)};
    (void)err;
    pool_for(queue->backend->pool, n_tokens,
             2 * n_tokens * token_elements *
                 (int64_t)roped_dtype_bytes(call->in[ROPE_APPEND_Q].dtype),
             append_tokens, &loop);
    return ROPED_OK;
}
