/*
 * rope_quantize_append.c - rope_quantize_append on the CPU: tokens over
 * threads; rotate or take as it is, scale, round to FP8, straight into the
 * output or the cell of a cache.
 */
#include "ops/rope_quantize_append.h"
#include "cpu/cpu_internal.h"

/* Pairs per block: both halves of a block fit the scratch. */
enum { PAIRS = CPU_BLOCK / 2 };

struct quantize_loop {
    struct cpu_angles angles;
    const struct rope_quantize_append_plan *plan;
    const struct roped_call *call;
    struct append_map map;
    enum roped_dtype in, out;
};

/* Pairs [first, first + n) of a token and their angles. */
struct pair_block {
    int64_t first, n;
    float c[PAIRS], s[PAIRS];
};

/* Elements [at, at + n) of a row to FP8. */
static void quantize(const struct quantize_loop *loop, uint8_t *to, void *from,
                     int64_t at, int64_t n, float scale)
{
    const struct cpu_rows *rows = loop->angles.rows;
    size_t bytes = roped_dtype_bytes(loop->in);
    float x[CPU_BLOCK];
    for (int64_t end = at + n; at < end; at += CPU_BLOCK) {
        int64_t part = end - at < CPU_BLOCK ? end - at : CPU_BLOCK;
        rows->widen(loop->in, x, cpu_at(from, at, bytes), part);
        rows->scale(x, scale, part);
        rows->narrow(loop->out, to + at, x, part);
    }
}

/* A block of pairs of the row whose rotated part is at from. */
static void rotate_block(const struct quantize_loop *loop, uint8_t *to,
                         void *from, const struct pair_block *block,
                         float scale)
{
    const struct cpu_rows *rows = loop->angles.rows;
    size_t bytes = roped_dtype_bytes(loop->in);
    int64_t n = block->n, at = block->first;
    float x[CPU_BLOCK];
    if (loop->angles.rotary.style == ROPE_GPTJ) {
        rows->widen(loop->in, x, cpu_at(from, 2 * at, bytes), 2 * n);
        rows->rotate_gptj(x, x, block->c, block->s, n);
        rows->scale(x, scale, 2 * n);
        rows->narrow(loop->out, to + 2 * at, x, 2 * n);
        return;
    }
    int64_t second = loop->angles.rotary.n_pairs + at;
    rows->widen(loop->in, x, cpu_at(from, at, bytes), n);
    rows->widen(loop->in, x + n, cpu_at(from, second, bytes), n);
    rows->rotate_neox(x, x, block->c, block->s, n);
    rows->scale(x, scale, 2 * n);
    rows->narrow(loop->out, to + at, x, n);
    rows->narrow(loop->out, to + second, x + n, n);
}

static void rotate_row(const struct quantize_loop *loop, uint8_t *to,
                       void *from, const struct pair_block *block, float scale)
{
    const struct rope_quantize_plan *parts = &loop->plan->parts;
    int64_t begin = parts->rotary_offset;
    int64_t end = begin + 2 * parts->rotary.n_pairs;
    if (block->first == 0) {
        quantize(loop, to, from, 0, begin, scale);
        quantize(loop, to, from, end, parts->rope_dim - end, scale);
    }
    rotate_block(loop, to + begin,
                 cpu_at(from, begin, roped_dtype_bytes(loop->in)), block,
                 scale);
}

/* Head of a token in an input of rows of width. */
static void *row_of(const struct quantize_loop *loop, int port, int64_t row,
                    int64_t width)
{
    return cpu_at(loop->call->in[port].data, row * width,
                  roped_dtype_bytes(loop->in));
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

/* A block of pairs of all of a token's heads; cell -1: k goes nowhere. */
static void rotate_token(const struct quantize_loop *loop, int64_t token,
                         int64_t cell, const struct pair_block *block)
{
    const struct rope_quantize_plan *parts = &loop->plan->parts;
    int64_t r = parts->rope_dim;
    uint8_t *q_out = loop->call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].data;
    for (int64_t head = 0; head < parts->q_heads; head++) {
        int64_t row = token * parts->q_heads + head;
        rotate_row(loop, q_out + row * r,
                   row_of(loop, ROPE_QUANTIZE_APPEND_Q_ROPE, row, r), block,
                   parts->scale_q);
    }
    for (int64_t head = 0; head < parts->k_heads && cell >= 0; head++)
        rotate_row(loop, cell_of(loop, &loop->plan->rope, cell, head),
                   row_of(loop, ROPE_QUANTIZE_APPEND_K_ROPE,
                          token * parts->k_heads + head, r),
                   block, parts->scale_k);
}

/* The parts of a token that do not rotate. */
static void quantize_token(const struct quantize_loop *loop, int64_t token,
                           int64_t cell)
{
    const struct rope_quantize_append_plan *plan = loop->plan;
    const struct rope_quantize_plan *parts = &plan->parts;
    int64_t p = parts->nope_dim, q_width = parts->q_heads * p;
    uint8_t *q_out = loop->call->out[ROPE_QUANTIZE_APPEND_Q_NOPE_OUT].data;
    if (q_width)
        quantize(loop, q_out + token * q_width,
                 row_of(loop, ROPE_QUANTIZE_APPEND_Q_NOPE, token, q_width), 0,
                 q_width, parts->scale_q);
    for (int64_t head = 0; head < parts->k_heads && cell >= 0; head++) {
        int64_t row = token * parts->k_heads + head;
        if (p)
            quantize(loop, cell_of(loop, &plan->nope, cell, head),
                     row_of(loop, ROPE_QUANTIZE_APPEND_K_NOPE, row, p), 0, p,
                     parts->scale_k);
        if (plan->value_dim)
            quantize(loop, cell_of(loop, &plan->value, cell, head),
                     row_of(loop, ROPE_QUANTIZE_APPEND_V, row, plan->value_dim),
                     0, plan->value_dim, parts->scale_k);
    }
}

static void append_tokens(void *context, int64_t begin, int64_t end)
{
    const struct quantize_loop *loop = context;
    int64_t n_pairs = loop->plan->parts.rotary.n_pairs;
    struct pair_block block;
    for (int64_t token = begin; token < end; token++) {
        int64_t cell = append_cell(&loop->map, token);
        for (int64_t at = 0; at < n_pairs; at += PAIRS) {
            block.first = at;
            block.n = n_pairs - at < PAIRS ? n_pairs - at : PAIRS;
            cpu_angles_fill(&loop->angles, token, at, block.n, block.c,
                            block.s);
            rotate_token(loop, token, cell, &block);
        }
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
        rope_quantize_append_map(call, plan),
        call->in[ROPE_QUANTIZE_APPEND_Q_ROPE].dtype,
        call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].dtype};
    (void)err;
    pool_for(queue->backend->pool, plan->parts.rotary.n_tokens, bytes_of(&loop),
             append_tokens, &loop);
    return ROPED_OK;
}
