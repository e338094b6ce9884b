/*
 * rope_append.c - rope_append on the CPU: tokens over threads. A token's key
 * heads are rotated straight into its slot, its value heads copied there.
 */
#include "ops/rope_append.h"
#include "cpu/cpu_internal.h"

struct append_loop {
    struct cpu_angles angles;
    const struct rope_append_plan *plan;
    const struct roped_call *call;
    struct append_map map;
    bool is_large;
};

/* Pairs [first, first + n) of a token and their angles. */
struct pair_block {
    int64_t first, n;
    float c[CPU_PAIRS], s[CPU_PAIRS];
};

/* Rotates a block of every head of a token; heads are d apart on both sides. */
static void rotate_heads(const struct append_loop *loop, enum roped_dtype dtype,
                         int64_t n_heads, void *to, const void *from,
                         const struct pair_block *block)
{
    const struct rope_plan *rope = &loop->plan->rope;
    const struct cpu_heads heads = {
        .from = dtype,
        .to = dtype,
        .is_gptj = rope->rotary.style == ROPE_GPTJ,
        .is_streamed = loop->is_large && to != from,
        .n_heads = n_heads,
        .width = rope->head_dim,
        .from_pitch = rope->head_dim,
        .to_pitch = rope->head_dim,
        .first = rope->rotary_offset,
        .n_pairs = rope->rotary.n_pairs,
    };
    if (n_heads > 0)
        loop->angles.rows->rotate(&heads, to, from, block->first, block->n,
                                  block->c, block->s);
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

/* A token's heads, as they are; to NULL: nowhere. */
static void copy_heads(const struct append_loop *loop, int input, void *to,
                       int64_t n_heads, int64_t token)
{
    const struct roped_tensor *in = &loop->call->in[input];
    int64_t n = n_heads * loop->plan->rope.head_dim;
    if (to && n > 0)
        loop->angles.rows->convert(in->dtype, to, in->dtype,
                                   token_row(loop, in, n_heads, token), 1, n,
                                   loop->is_large);
}

static void copy_token(const struct append_loop *loop, int64_t token)
{
    const struct roped_tensor *out = loop->call->out;
    int64_t q = loop->plan->rope.q_heads, k = loop->plan->rope.k_heads;
    copy_heads(loop, ROPE_APPEND_Q,
               token_row(loop, &out[ROPE_APPEND_Q_OUT], q, token), q, token);
    copy_heads(loop, ROPE_APPEND_K,
               token_row(loop, &out[ROPE_APPEND_K_OUT], k, token), k, token);
}

static void append_tokens(void *context, int64_t begin, int64_t end)
{
    const struct append_loop *loop = context;
    const struct rope_plan *rope = &loop->plan->rope;
    int64_t n_pairs = rope->rotary.n_pairs;
    struct pair_block block;
    for (int64_t token = begin; token < end; token++) {
        if (cpu_is_padding(&loop->angles, token)) {
            copy_token(loop, token);
            continue;
        }
        int64_t cell = append_cell(&loop->map, token);
        void *k_cache = cache_row(loop, ROPE_APPEND_K_CACHE_OUT, cell);
        for (int64_t at = 0; at < n_pairs; at += CPU_PAIRS) {
            block.first = at;
            block.n = n_pairs - at < CPU_PAIRS ? n_pairs - at : CPU_PAIRS;
            cpu_angles_fill(&loop->angles, token, at, block.n, block.c,
                            block.s);
            rotate_token(loop, token, k_cache, &block);
        }
        copy_heads(loop, ROPE_APPEND_V,
                   cache_row(loop, ROPE_APPEND_V_CACHE_OUT, cell),
                   rope->k_heads, token);
    }
}

/* Bytes that a call reads and writes. */
static int64_t bytes_of(const struct roped_call *call,
                        const struct rope_append_plan *plan)
{
    const struct rope_plan *rope = &plan->rope;
    int64_t heads = rope->q_heads + 2 * rope->k_heads;
    return 2 * rope->rotary.n_tokens * heads * rope->head_dim *
           (int64_t)roped_dtype_bytes(call->in[ROPE_APPEND_Q].dtype);
}

enum roped_status roped_cpu_rope_append(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const struct rope_append_plan *plan = (const void *)call->plan;
    int64_t bytes = bytes_of(call, plan);
    struct append_loop loop = {
        cpu_angles_of(call, &plan->rope.rotary, ROPE_APPEND_POSITIONS, queue),
        plan, call, append_map_of(call, &plan->append),
        cpu_is_large(queue, bytes)};
    (void)err;
    cpu_for(queue, bytes, plan->rope.rotary.n_tokens, append_tokens, &loop);
    return ROPED_OK;
}
