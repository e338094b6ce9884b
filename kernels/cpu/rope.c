/*
 * rope.c - rope on the CPU: runs of tokens over threads. A token's angles are
 * found once and serve all its heads, and those of the tokens that have the
 * same position in other sequences of implicit positions.
 */
#include "cpu/heads.h"

enum { RUN_PAIRS = 8 * CPU_PAIRS };

/* What one turn of the loop rotates: a run of up to 'run' tokens, whose angles
 * are found together, in each of up to 'sequences' sequences. */
struct rope_turns {
    int64_t n_tokens,
        n_sequences; /* of a sequence; without them, all are one */
    int64_t run, sequences;
};

struct rope_loop {
    struct cpu_angles angles;
    const struct rope_plan *plan;
    const struct roped_call *call;
    bool is_large;
    struct rope_turns turns;
};

/* q, or k. */
struct rope_heads {
    void *from, *to;
    struct cpu_heads heads;
};

static struct rope_heads heads_of(const struct rope_loop *loop, int input,
                                  int output, int64_t n_heads)
{
    const struct rope_plan *plan = loop->plan;
    const struct roped_tensor *in = &loop->call->in[input];
    const struct roped_tensor *out = &loop->call->out[output];
    return (struct rope_heads){
        .from = in->data,
        .to = out->data,
        .heads = {.from = in->dtype,
                  .to = out->dtype,
                  .is_gptj = plan->rotary.style == ROPE_GPTJ,
                  .is_streamed = loop->is_large && in->data != out->data,
                  .n_heads = n_heads,
                  .width = plan->head_dim,
                  .from_pitch = plan->head_dim,
                  .to_pitch = plan->head_dim,
                  .first = plan->rotary_offset,
                  .n_pairs = plan->rotary.n_pairs,
                  .more_from = cpu_step(in, n_heads * plan->head_dim),
                  .more_to = cpu_step(out, n_heads * plan->head_dim)}};
}

/* Tokens are taken together while they are small, sequences while enough turns
 * are left for many threads. */
static struct rope_turns turns_of(const struct rope_plan *plan,
                                  size_t element_bytes)
{
    enum { SMALL_BYTES = 4 << 10, RUN_BYTES = 32 << 10, ENOUGH_TURNS = 256 };
    const struct rope_rotary *rotary = &plan->rotary;
    struct rope_turns turns = {rotary->n_tokens, 1, 1, 1};
    int64_t token_bytes = (plan->q_heads + plan->k_heads) * plan->head_dim *
                          (int64_t)element_bytes;
    if (rotary->positions == ROPE_POSITIONS_IMPLICIT &&
        rotary->tokens_per_sequence > 0) {
        turns.n_tokens = rotary->tokens_per_sequence;
        turns.n_sequences = rotary->n_tokens / rotary->tokens_per_sequence;
    }
    if (rotary->n_pairs > 0 && token_bytes > 0 && token_bytes <= SMALL_BYTES &&
        !rotary->has_padding)
        turns.run =
            cpu_smaller(RUN_BYTES / token_bytes, RUN_PAIRS / rotary->n_pairs);
    if (turns.run < 1)
        turns.run = 1;
    turns.sequences = turns.n_sequences *
                      cpu_ceil_div(turns.n_tokens, turns.run) / ENOUGH_TURNS;
    turns.sequences = turns.sequences < 1
                          ? 1
                          : cpu_smaller(turns.sequences, turns.n_sequences);
    return turns;
}

/* Some pairs of a run that begins with token; NULL: all of it as it is. */
static void write_heads(const struct cpu_rows *rows,
                        const struct rope_heads *part, int64_t token,
                        const struct cpu_pairs *pairs)
{
    const struct cpu_heads *heads = &part->heads;
    const size_t bytes = roped_dtype_bytes(heads->from);
    if (heads->n_heads == 0)
        return;
    void *from = cpu_at(part->from, token * heads->more_from, bytes);
    void *to = cpu_at(part->to, token * heads->more_to, bytes);
    if (pairs)
        rows->rotate(heads, to, from, pairs);
    else
        cpu_heads_copy(rows, heads, to, from);
}

/* A run of n tokens. */
static void fill_run(const struct cpu_angles *angles, int64_t token, int64_t n,
                     struct cpu_pairs pairs)
{
    for (int64_t i = 0; i < n; i++) {
        cpu_angles_fill(angles, token + i, &pairs);
        pairs.c += pairs.n;
        pairs.s += pairs.n;
    }
}

/* A run of tokens, as many as heads have, of some sequences. */
static void rotate_run(const struct rope_loop *loop,
                       const struct rope_heads part[2], int64_t token,
                       int64_t sequence, int64_t n_sequences)
{
    const int64_t n_pairs = loop->plan->rotary.n_pairs;
    const int64_t length = loop->turns.n_tokens;
    float c[RUN_PAIRS], s[RUN_PAIRS];
    for (int64_t first = 0; first < n_pairs; first += CPU_PAIRS) {
        const struct cpu_pairs pairs = {
            first, cpu_smaller(n_pairs - first, CPU_PAIRS), c, s};
        fill_run(&loop->angles, token, 1 + part[0].heads.n_more, pairs);
        for (int64_t j = sequence; j < sequence + n_sequences; j++) {
            const int64_t begin = j * length + token;
            write_heads(loop->angles.rows, &part[0], begin, &pairs);
            write_heads(loop->angles.rows, &part[1], begin, &pairs);
        }
    }
}

static int64_t groups_of(const struct rope_turns *turns)
{
    return cpu_ceil_div(turns->n_sequences, turns->sequences);
}

static void rotate_tokens(void *context, int64_t begin, int64_t end)
{
    const struct rope_loop *loop = context;
    const struct rope_turns *turns = &loop->turns;
    const int64_t n_groups = groups_of(turns);
    struct rope_heads part[2] = {
        heads_of(loop, ROPE_Q, ROPE_Q_OUT, loop->plan->q_heads),
        heads_of(loop, ROPE_K, ROPE_K_OUT, loop->plan->k_heads)};
    for (int64_t turn = begin; turn < end; turn++) {
        const int64_t token = turn / n_groups * turns->run;
        const int64_t sequence = turn % n_groups * turns->sequences;
        part[0].heads.n_more = part[1].heads.n_more =
            cpu_smaller(turns->n_tokens - token, turns->run) - 1;
        if (!cpu_is_padding(&loop->angles, token)) {
            rotate_run(
                loop, part, token, sequence,
                cpu_smaller(turns->n_sequences - sequence, turns->sequences));
            continue;
        }
        for (int i = 0; i < 2; i++) /* a run of its own */
            write_heads(loop->angles.rows, &part[i], token, NULL);
    }
}

enum roped_status roped_cpu_rope(const struct roped_call *call,
                                 struct roped_queue *queue,
                                 struct roped_error *err)
{
    const struct rope_plan *plan = (const void *)call->plan;
    int64_t bytes = roped_call_bytes(call);
    struct rope_loop loop = {
        cpu_angles_of(call, &plan->rotary, ROPE_POSITIONS, queue), plan, call,
        cpu_is_large(queue, bytes),
        turns_of(plan, roped_dtype_bytes(call->in[ROPE_Q].dtype))};
    (void)err;
    cpu_for(queue, bytes,
            cpu_ceil_div(loop.turns.n_tokens, loop.turns.run) *
                groups_of(&loop.turns),
            rotate_tokens, &loop);
    return ROPED_OK;
}
