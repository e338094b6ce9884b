/*
 * rope_quantize_append.c - rope_quantize_append on the CPU: tokens over
 * threads; rotate or take as it is, scale, round to FP8, straight into the
 * output or the cell of a cache.
 */
#include "ops/rope_quantize_append.h"
#include "cpu/cpu_internal.h"

struct quantize_loop {
    struct cpu_angles angles;
    const struct rope_quantize_append_plan *plan;
    const struct roped_call *call;
    struct append_map map;
    enum roped_dtype in, out;
    bool is_large;
};

static void quantize(const struct quantize_loop *loop, void *to,
                     const void *from, int64_t n, float scale)
{
    const struct cpu_conversion how = {loop->in, loop->out, scale,
                                       loop->is_large};
    loop->angles.rows->convert(&how, to, from, n);
}

/* Heads that are to_pitch apart where they go. */
static struct cpu_heads heads_of(const struct quantize_loop *loop,
                                 int64_t n_heads, int64_t to_pitch, float scale)
{
    const struct rope_quantize_plan *parts = &loop->plan->parts;
    return (struct cpu_heads){
        .from = loop->in,
        .to = loop->out,
        .is_gptj = parts->rotary.style == ROPE_GPTJ,
        .is_streamed = loop->is_large,
        .scale = scale,
        .n_heads = n_heads,
        .width = parts->rope_dim,
        .from_pitch = parts->rope_dim,
        .to_pitch = to_pitch,
        .first = parts->rotary_offset,
        .n_pairs = parts->rotary.n_pairs,
    };
}

/* A token of n elements. */
static void *token_at(const struct roped_tensor *tensor, int64_t token,
                      int64_t n)
{
    return cpu_at(tensor->data, token * cpu_step(tensor, n),
                  roped_dtype_bytes(tensor->dtype));
}

/* Where a part of a head goes. */
static uint8_t *cell_of(const struct quantize_loop *loop,
                        const struct append_part *part, int64_t cell,
                        int64_t head)
{
    uint8_t *cache = loop->call->out[part->output].data;
    cell += head * loop->map.head_step;
    return cache + cell * part->cell_width + part->first;
}

/* Elements from a head's part of a cache to the next head's. */
static int64_t pitch_of(const struct quantize_loop *loop,
                        const struct append_part *part)
{
    return loop->map.head_step * part->cell_width;
}

/* A part of q, as it is: n elements of each token. */
static void quantize_q(const struct quantize_loop *loop, int input, int output,
                       int64_t token, int64_t n)
{
    if (n > 0)
        quantize(loop, token_at(&loop->call->out[output], token, n),
                 token_at(&loop->call->in[input], token, n), n,
                 loop->plan->parts.scale_q);
}

/* Some pairs of all of a token's heads; cell -1: k goes nowhere. */
static void rotate_pairs(const struct quantize_loop *loop, int64_t token,
                         int64_t cell, const struct cpu_pairs *pairs)
{
    const struct rope_quantize_append_plan *plan = loop->plan;
    const struct rope_quantize_plan *parts = &plan->parts;
    const struct cpu_rows *rows = loop->angles.rows;
    const struct roped_tensor *in = loop->call->in;
    int64_t r = parts->rope_dim;
    const struct cpu_heads q =
        heads_of(loop, parts->q_heads, r, parts->scale_q);
    const struct cpu_heads k = heads_of(
        loop, parts->k_heads, pitch_of(loop, &plan->rope), parts->scale_k);
    if (q.n_heads > 0)
        rows->rotate(
            &q,
            token_at(&loop->call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT], token,
                     q.n_heads * r),
            token_at(&in[ROPE_QUANTIZE_APPEND_Q_ROPE], token, q.n_heads * r),
            pairs);
    if (cell >= 0 && k.n_heads > 0)
        rows->rotate(
            &k, cell_of(loop, &plan->rope, cell, 0),
            token_at(&in[ROPE_QUANTIZE_APPEND_K_ROPE], token, k.n_heads * r),
            pairs);
}

static void rotate_token(const struct quantize_loop *loop, int64_t token,
                         int64_t cell)
{
    const int64_t n_pairs = loop->plan->parts.rotary.n_pairs;
    float c[CPU_PAIRS], s[CPU_PAIRS];
    for (int64_t first = 0; first < n_pairs; first += CPU_PAIRS) {
        const struct cpu_pairs pairs = {
            first, cpu_smaller(n_pairs - first, CPU_PAIRS), c, s};
        cpu_angles_fill(&loop->angles, token, &pairs);
        rotate_pairs(loop, token, cell, &pairs);
    }
}

/* Heads of width elements of a token, each to its part of a cell. */
static void quantize_heads(const struct quantize_loop *loop, int port,
                           const struct append_part *part, int64_t token,
                           int64_t cell, int64_t width, float scale)
{
    int64_t n_heads = loop->plan->parts.k_heads;
    if (width == 0)
        return;
    void *from = token_at(&loop->call->in[port], token, n_heads * width);
    for (int64_t head = 0; head < n_heads; head++)
        quantize(loop, cell_of(loop, part, cell, head),
                 cpu_at(from, head * width, roped_dtype_bytes(loop->in)), width,
                 scale);
}

/* The parts of a token that do not rotate. */
static void quantize_token(const struct quantize_loop *loop, int64_t token,
                           int64_t cell)
{
    const struct rope_quantize_append_plan *plan = loop->plan;
    const struct rope_quantize_plan *parts = &plan->parts;
    int64_t p = parts->nope_dim;
    quantize_q(loop, ROPE_QUANTIZE_APPEND_Q_NOPE,
               ROPE_QUANTIZE_APPEND_Q_NOPE_OUT, token, parts->q_heads * p);
    if (cell < 0)
        return;
    quantize_heads(loop, ROPE_QUANTIZE_APPEND_K_NOPE, &plan->nope, token, cell,
                   p, parts->scale_k);
    quantize_heads(loop, ROPE_QUANTIZE_APPEND_V, &plan->value, token, cell,
                   plan->value_dim, plan->scale_v);
}

static void append_tokens(void *context, int64_t begin, int64_t end)
{
    const struct quantize_loop *loop = context;
    const struct rope_quantize_plan *parts = &loop->plan->parts;
    int64_t q_width = parts->q_heads * parts->rope_dim;
    for (int64_t token = begin; token < end; token++) {
        bool is_padding = cpu_is_padding(&loop->angles, token);
        int64_t cell = is_padding ? -1 : append_cell(&loop->map, token);
        if (is_padding)
            quantize_q(loop, ROPE_QUANTIZE_APPEND_Q_ROPE,
                       ROPE_QUANTIZE_APPEND_Q_ROPE_OUT, token, q_width);
        else
            rotate_token(loop, token, cell);
        quantize_token(loop, token, cell);
    }
}

/* Bytes that a call reads and writes. */
static int64_t bytes_of(const struct quantize_loop *loop)
{
    const struct rope_quantize_append_plan *plan = loop->plan;
    const struct rope_quantize_plan *parts = &plan->parts;
    int64_t heads = parts->q_heads + parts->k_heads;
    int64_t elements = heads * (parts->rope_dim + parts->nope_dim) +
                       parts->k_heads * plan->value_dim;
    return parts->rotary.n_tokens * elements *
           (int64_t)(roped_dtype_bytes(loop->in) + 1);
}

enum roped_status roped_cpu_rope_quantize_append(const struct roped_call *call,
                                                 struct roped_queue *queue,
                                                 struct roped_error *err)
{
    const struct rope_quantize_append_plan *plan = (const void *)call->plan;
    struct quantize_loop loop = {
        cpu_angles_of(call, &plan->parts.rotary, ROPE_QUANTIZE_APPEND_POSITIONS,
                      queue),
        plan,
        call,
        append_map_of(call, &plan->append),
        call->in[ROPE_QUANTIZE_APPEND_Q_ROPE].dtype,
        call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].dtype,
        false};
    int64_t bytes = bytes_of(&loop);
    (void)err;
    loop.is_large = cpu_is_large(queue, bytes);
    cpu_for(queue, bytes, plan->parts.rotary.n_tokens, append_tokens, &loop);
    return ROPED_OK;
}
