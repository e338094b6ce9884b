/*
 * rope_append.c - rope_append on the CPU: tokens over threads. A token's key
 * heads are rotated straight into their cells, its value heads copied there.
 */
#include "cpu/append.h"

enum { Q, K, V, RETURNED_K, PARTS };

struct append_loop {
    struct cpu_angles angles;
    const struct rope_append_plan *plan;
    const struct roped_call *call;
    struct append_map map;
    float eps;
    struct cpu_heads part[PARTS];
};

/* ------------------------------------------------------------------- parts */

/* Heads of d elements that stay next to each other in the type of q. */
static struct cpu_heads heads_of(const struct append_loop *loop,
                                 int64_t n_heads, bool is_streamed)
{
    const struct rope_plan *rope = &loop->plan->rope;
    enum roped_dtype dtype = loop->call->in[ROPE_APPEND_Q].dtype;
    return (struct cpu_heads){
        .from = dtype,
        .to = dtype,
        .is_gptj = rope->rotary.style == ROPE_GPTJ,
        .is_streamed = is_streamed,
        .scale = 1,
        .n_heads = n_heads,
        .width = rope->head_dim,
        .from_pitch = rope->head_dim,
        .to_pitch = rope->head_dim,
        .first = rope->rotary_offset,
        .n_pairs = rope->rotary.n_pairs,
    };
}

/* The same on their way to a cache. */
static struct cpu_heads cached(const struct append_loop *loop,
                               struct cpu_heads heads,
                               const struct append_part *part, float scale)
{
    heads.to = (enum roped_dtype)loop->plan->cache_dtype;
    heads.scale = scale;
    heads.to_pitch = loop->map.head_step * part->cell_width;
    return heads;
}

static void set_norm(struct cpu_heads *heads, const struct cpu_head_norm *norm,
                     int which)
{
    heads->weight = norm->weight[which];
    heads->rounds_product = norm->rounds_product;
}

static void set_parts(struct append_loop *loop,
                      const struct cpu_head_norm *norm, bool is_large)
{
    const struct rope_append_plan *plan = loop->plan;
    const struct roped_tensor *in = loop->call->in, *out = loop->call->out;
    bool keeps_q = in[ROPE_APPEND_Q].data == out[ROPE_APPEND_Q_OUT].data;
    bool keeps_k = in[ROPE_APPEND_K].data == out[ROPE_APPEND_K_OUT].data;
    struct cpu_heads *part = loop->part;
    part[Q] = heads_of(loop, plan->rope.q_heads, is_large && !keeps_q);
    part[RETURNED_K] = heads_of(loop, plan->rope.k_heads, is_large && !keeps_k);
    set_norm(&part[Q], norm, 0);
    set_norm(&part[RETURNED_K], norm, 1);
    part[K] = heads_of(loop, plan->rope.k_heads, is_large);
    part[V] = part[K];
    set_norm(&part[K], norm, 1);
    part[V].width = part[V].from_pitch = plan->v_dim;
    part[K] = cached(loop, part[K], &plan->k, plan->scale_k);
    part[V] = cached(loop, part[V], &plan->v, plan->scale_v);
}

/* -------------------------------------------------------------------- loop */

/* A token's heads in a tensor, or NULL where that is not given. */
static void *token_row(const struct roped_tensor *tensor,
                       const struct cpu_heads *heads, int64_t token)
{
    int64_t step = cpu_step(tensor, heads->n_heads * heads->width);
    if (!roped_tensor_given(tensor))
        return NULL;
    return cpu_at(tensor->data, token * step, roped_dtype_bytes(tensor->dtype));
}

/* A token's place in a cache. */
static void *cache_row(const struct append_loop *loop,
                       const struct append_part *part, int64_t cell)
{
    const struct roped_tensor *cache = &loop->call->out[part->output];
    return cpu_at(cache->data, cell * part->cell_width + part->first,
                  roped_dtype_bytes(cache->dtype));
}

/* Heads of q, or of k where that is returned, to their output. */
static void write_output(const struct append_loop *loop, int which,
                         const void *from, const struct roped_tensor *out,
                         struct cpu_token *token)
{
    const struct cpu_heads *heads = &loop->part[which];
    void *to = token_row(out, heads, token->index);
    if (to && cpu_is_padding(&loop->angles, token->index))
        cpu_heads_copy(loop->angles.rows, heads, to, from);
    else if (to)
        cpu_heads_rotate(token, heads, loop->eps, to, from);
}

static void append_tokens(void *context, int64_t begin, int64_t end)
{
    const struct append_loop *loop = context;
    const struct roped_call *call = loop->call;
    const struct roped_tensor *in = call->in;
    struct cpu_token token = {.angles = &loop->angles};
    for (int64_t i = begin; i < end; i++) {
        int64_t cell = append_cell(&loop->map, i);
        const struct cpu_heads *part = loop->part;
        void *q = token_row(&in[ROPE_APPEND_Q], &part[Q], i);
        void *k = token_row(&in[ROPE_APPEND_K], &part[K], i);
        void *v = token_row(&in[ROPE_APPEND_V], &part[V], i);
        cpu_token_set(&token, i);
        write_output(loop, Q, q, &call->out[ROPE_APPEND_Q_OUT], &token);
        if (cell >= 0) { /* before k is returned, in its own place perhaps */
            cpu_heads_rotate(&token, &part[K], loop->eps,
                             cache_row(loop, &loop->plan->k, cell), k);
            cpu_heads_copy(loop->angles.rows, &part[V],
                           cache_row(loop, &loop->plan->v, cell), v);
        }
        write_output(loop, RETURNED_K, k, &call->out[ROPE_APPEND_K_OUT],
                     &token);
    }
}

/* Bytes that a call reads and writes. */
static int64_t bytes_of(const struct roped_call *call,
                        const struct rope_append_plan *plan)
{
    const struct rope_plan *rope = &plan->rope;
    int64_t width = (rope->q_heads + rope->k_heads) * rope->head_dim +
                    rope->k_heads * plan->v_dim;
    return 2 * rope->rotary.n_tokens * width *
           (int64_t)roped_dtype_bytes(call->in[ROPE_APPEND_Q].dtype);
}

void cpu_append(const struct roped_call *call, struct roped_queue *queue,
                const struct rope_append_plan *plan,
                const struct cpu_head_norm *norm)
{
    int64_t bytes = bytes_of(call, plan);
    struct append_loop loop = {
        .angles = cpu_angles_of(call, &plan->rope.rotary,
                                plan->append.positions_port, queue),
        .plan = plan,
        .call = call,
        .map = append_map_of(call, &plan->append),
        .eps = norm->eps};
    set_parts(&loop, norm, cpu_is_large(queue, bytes));
    cpu_for(queue, bytes, plan->rope.rotary.n_tokens, append_tokens, &loop);
}

enum roped_status roped_cpu_rope_append(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    static const struct cpu_head_norm none;
    (void)err;
    cpu_append(call, queue, (const void *)call->plan, &none);
    return ROPED_OK;
}
