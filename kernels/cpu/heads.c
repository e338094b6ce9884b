/*
 * heads.c - the rotary operators on the CPU: one loop over tokens and over the
 * parts of the plan. Threads take runs of tokens. A token's angles are found
 * once and serve all its heads, and those of the tokens that have the same
 * position in other sequences of implicit positions.
 */
#include "cpu/cpu_internal.h"
#include "ops/heads_plan.h"

enum { RUN_PAIRS = 8 * CPU_PAIRS };

/* What one turn of the loop writes: a run of up to 'run' tokens, whose angles
 * are found together, in each of up to 'sequences' sequences. */
struct turns {
    int64_t n_tokens,
        n_sequences; /* of a sequence; without them, all are one */
    int64_t run, sequences;
};

/* A part of the plan with the tensors of the call. */
struct part {
    const struct roped_tensor *in, *out, *cache; /* NULL: goes not there */
    struct cpu_heads returned, cached;           /* on their way to these */
    int64_t stride;                              /* of in, elements */
    int64_t cell_width, cell_first;
    bool rotates;
};

struct heads_loop {
    struct cpu_angles angles;
    const struct heads_plan *plan;
    const struct roped_call *call;
    struct append_map map;
    struct turns turns;
    const float *weight[HEADS_PARTS]; /* of a part's elements; NULL: no norm */
    bool appends, is_large;
};

/* The tokens that a thread is at, and the pairs whose cos and sin are at hand:
 * heads of up to one block of pairs find them once. */
struct run {
    const struct cpu_angles *angles;
    int64_t token, n;
    int64_t first; /* pair; -1: none yet */
    float c[RUN_PAIRS], s[RUN_PAIRS];
};

/* ------------------------------------------------------------------- parts */

static size_t bytes_in(const struct roped_tensor *tensor)
{
    return roped_dtype_bytes(tensor->dtype);
}

/* Heads of a part on their way to elements of this type. */
static void set_heads(const struct heads_loop *loop, int index,
                      enum roped_dtype to, struct cpu_heads *heads)
{
    const struct heads_part *of = &loop->plan->part[index];
    *heads =
        (struct cpu_heads){.from = loop->call->in[of->from].dtype,
                           .to = to,
                           .style = (enum rope_style)loop->plan->rotary.style,
                           .is_streamed = loop->is_large,
                           .scale = of->scale,
                           .n_heads = of->heads,
                           .width = of->width,
                           .from_pitch = of->width,
                           .to_pitch = of->width,
                           .first = loop->plan->first,
                           .n_pairs = loop->plan->rotary.n_pairs,
                           .weight = loop->weight[index],
                           .rounds_product = loop->plan->norm.rounds_product};
}

static void bind_part(const struct heads_loop *loop, int index,
                      struct part *part)
{
    const struct heads_part *of = &loop->plan->part[index];
    const struct roped_tensor *out = loop->call->out;
    part->in = &loop->call->in[of->from];
    part->out = of->to == HEADS_NO_PORT ? NULL : &out[of->to];
    part->cache = of->cache == HEADS_NO_PORT ? NULL : &out[of->cache];
    part->rotates = of->rotates;
    part->stride = cpu_stride(part->in, of->heads * of->width);
    if (part->out) {
        set_heads(loop, index, part->out->dtype, &part->returned);
        part->returned.more_from = part->stride;
        part->returned.more_to = cpu_stride(part->out, of->heads * of->width);
        part->returned.is_streamed &= part->in->data != part->out->data;
    }
    if (part->cache) {
        part->cell_width = part->cache->dims[part->cache->rank - 1];
        part->cell_first = of->cell_first;
        set_heads(loop, index, (enum roped_dtype)of->cell_dtype, &part->cached);
        part->cached.to_pitch = loop->map.head_stride * part->cell_width;
    }
}

/* Those that have elements; how many. */
static int bind_parts(const struct heads_loop *loop,
                      struct part part[HEADS_PARTS])
{
    int n = 0;
    for (int i = 0; i < loop->plan->n_parts; i++)
        if (loop->plan->part[i].heads * loop->plan->part[i].width > 0)
            bind_part(loop, i, &part[n++]);
    return n;
}

/* Gains, bias inside, as row loops want them, in the queue's scratch. */
static enum roped_status fill_weights(struct heads_loop *loop,
                                      struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct heads_plan *plan = loop->plan;
    int64_t room = cpu_ceil_div(plan->part[0].width, CPU_WEIGHTS) * CPU_WEIGHTS;
    void *scratch;
    if (plan->part[0].weight == HEADS_NO_PORT)
        return ROPED_OK;
    enum roped_status status =
        cpu_scratch(queue, (size_t)(2 * room) * sizeof(float), &scratch, err);
    for (int i = 0; !status && i < plan->n_parts; i++) {
        const struct heads_part *part = &plan->part[i];
        if (part->weight == HEADS_NO_PORT)
            continue;
        float *weight = (float *)scratch + i * room;
        queue->backend->rows->fill_weight(
            ROPED_F32, (enum roped_dtype)plan->norm.weight_dtype, weight,
            loop->call->in[part->weight].data, plan->norm.weight_bias,
            part->width);
        loop->weight[i] = weight;
    }
    return status;
}

/* ------------------------------------------------------------------- heads */

static void fill_angles(struct run *run, int64_t first, int64_t n_pairs)
{
    struct cpu_pairs pairs = {first, n_pairs, run->c, run->s};
    for (int64_t i = 0; i < run->n; i++) {
        cpu_angles_fill(run->angles, run->token + i, &pairs);
        pairs.c += n_pairs;
        pairs.s += n_pairs;
    }
    run->first = first;
}

static void rotate(struct run *run, const struct cpu_heads *heads, void *to,
                   const void *from)
{
    for (int64_t first = 0; first < heads->n_pairs; first += CPU_PAIRS) {
        const struct cpu_pairs pairs = {
            first, cpu_smaller(heads->n_pairs - first, CPU_PAIRS), run->c,
            run->s};
        if (run->first != first)
            fill_angles(run, first, pairs.n);
        run->angles->rows->rotate(heads, to, from, &pairs);
    }
}

/* Up to CPU_ROWS heads are read for their sums before any is written. */
static void normalize(struct run *run, const struct cpu_heads *heads, float eps,
                      void *to, const void *from)
{
    size_t from_bytes = roped_dtype_bytes(heads->from);
    size_t to_bytes = roped_dtype_bytes(heads->to);
    struct cpu_heads some = *heads;
    float s[CPU_ROWS];
    some.s = s;
    for (int64_t head = 0; head < heads->n_heads; head += some.n_heads) {
        void *x = cpu_at((void *)from, head * heads->from_pitch, from_bytes);
        void *y = cpu_at(to, head * heads->to_pitch, to_bytes);
        some.n_heads = cpu_smaller(heads->n_heads - head, CPU_ROWS);
        const struct cpu_norm_rows rows = {.n = some.n_heads, .x = x};
        run->angles->rows->inverse_rms(heads->from, heads->width, &rows, eps,
                                       s);
        rotate(run, &some, y, x);
    }
}

/* Heads as they are, or scaled and rounded. */
static void copy(const struct cpu_rows *rows, const struct cpu_heads *heads,
                 void *to, const void *from)
{
    const struct cpu_conversion how = {heads->from, heads->to, heads->scale,
                                       heads->is_streamed};
    bool is_one =
        heads->from_pitch == heads->width && heads->to_pitch == heads->width;
    int64_t n_rows = is_one ? 1 : heads->n_heads;
    int64_t width = is_one ? heads->n_heads * heads->width : heads->width;
    for (int64_t i = 0; i < n_rows; i++)
        rows->convert(
            &how, cpu_at(to, i * heads->to_pitch, roped_dtype_bytes(how.to)),
            cpu_at((void *)from, i * heads->from_pitch,
                   roped_dtype_bytes(how.from)),
            width);
}

/* -------------------------------------------------------------------- loop */

static void write_heads(const struct heads_loop *loop, struct run *run,
                        const struct cpu_heads *heads, bool rotates, void *to,
                        const void *from)
{
    if (!rotates)
        copy(loop->angles.rows, heads, to, from);
    else if (heads->weight)
        normalize(run, heads, loop->plan->norm.eps, to, from);
    else
        rotate(run, heads, to, from);
}

/* The parts of a run that begins with this token of all sequences. */
static void write_parts(const struct heads_loop *loop, struct run *run,
                        const struct part *parts, int n_parts, int64_t token)
{
    bool is_padding = cpu_is_padding(&loop->angles, token);
    int64_t cell = loop->appends ? append_cell(&loop->map, token) : -1;
    for (int i = 0; i < n_parts; i++) {
        const struct part *part = &parts[i];
        bool rotates = part->rotates && !is_padding;
        const void *from =
            cpu_at(part->in->data, token * part->stride, bytes_in(part->in));
        if (part->cache && cell >= 0) { /* before they are returned, in their
                                           own place perhaps */
            int64_t at = cell * part->cell_width + part->cell_first;
            write_heads(loop, run, &part->cached, rotates,
                        cpu_at(part->cache->data, at, bytes_in(part->cache)),
                        from);
        }
        if (part->out)
            write_heads(loop, run, &part->returned, rotates,
                        cpu_at(part->out->data, token * part->returned.more_to,
                               bytes_in(part->out)),
                        from);
    }
}

static int64_t groups_of(const struct turns *turns)
{
    return cpu_ceil_div(turns->n_sequences, turns->sequences);
}

static void write_turns(void *context, int64_t begin, int64_t end)
{
    const struct heads_loop *loop = context;
    const struct turns *turns = &loop->turns;
    const int64_t n_groups = groups_of(turns);
    struct part parts[HEADS_PARTS];
    struct run run;
    int n_parts = bind_parts(loop, parts);
    run.angles = &loop->angles;
    for (int64_t turn = begin; turn < end; turn++) {
        run.token = turn / n_groups * turns->run;
        run.n = cpu_smaller(turns->n_tokens - run.token, turns->run);
        run.first = -1;
        for (int i = 0; i < n_parts; i++)
            parts[i].returned.n_more = run.n - 1;
        int64_t sequence = turn % n_groups * turns->sequences;
        int64_t last =
            cpu_smaller(turns->n_sequences, sequence + turns->sequences);
        for (; sequence < last; sequence++)
            write_parts(loop, &run, parts, n_parts,
                        sequence * turns->n_tokens + run.token);
    }
}

/* Can tokens be taken together? All that is done to them is a rotation. */
static bool has_runs(const struct heads_plan *plan)
{
    for (int i = 0; i < plan->n_parts; i++) {
        const struct heads_part *part = &plan->part[i];
        if (!part->rotates || part->cache != HEADS_NO_PORT ||
            part->weight != HEADS_NO_PORT)
            return false;
    }
    return !plan->rotary.has_padding;
}

/* Tokens are taken together while they are small, sequences while enough turns
 * are left for many threads. */
static struct turns turns_of(const struct heads_plan *plan, int64_t token_bytes)
{
    enum { SMALL_BYTES = 8 << 10, RUN_BYTES = 64 << 10, ENOUGH_TURNS = 256 };
    const struct rope_rotary *rotary = &plan->rotary;
    struct turns turns = {rotary->n_tokens, 1, 1, 1};
    if (!has_runs(plan))
        return turns;
    if (rotary->positions == ROPE_POSITIONS_IMPLICIT &&
        rotary->tokens_per_sequence > 0) {
        turns.n_tokens = rotary->tokens_per_sequence;
        turns.n_sequences = rotary->n_tokens / rotary->tokens_per_sequence;
    }
    if (token_bytes > 0 && token_bytes <= SMALL_BYTES)
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

/* What a token's parts read and write. */
static int64_t token_bytes_of(const struct roped_call *call,
                              const struct heads_plan *plan)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->n_parts; i++) {
        const struct heads_part *part = &plan->part[i];
        size_t element = bytes_in(&call->in[part->from]);
        if (part->to != HEADS_NO_PORT)
            element += bytes_in(&call->out[part->to]);
        if (part->cache != HEADS_NO_PORT)
            element += bytes_in(&call->out[part->cache]);
        bytes += part->heads * part->width * (int64_t)element;
    }
    return bytes;
}

static enum roped_status launch(const struct roped_call *call,
                                struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct heads_plan *plan = (const void *)call->plan;
    int64_t token_bytes = token_bytes_of(call, plan);
    int64_t bytes = plan->rotary.n_tokens * token_bytes;
    struct heads_loop loop = {.angles =
                                  cpu_angles_of(call, &plan->rotary, queue),
                              .plan = plan,
                              .call = call,
                              .turns = turns_of(plan, token_bytes),
                              .is_large = cpu_is_large(queue, bytes)};
    for (int i = 0; i < plan->n_parts; i++)
        loop.appends |= plan->part[i].cache != HEADS_NO_PORT;
    if (loop.appends)
        loop.map = append_map_of(call, &plan->append);
    enum roped_status status = fill_weights(&loop, queue, err);
    if (!status)
        cpu_for(queue, bytes,
                cpu_ceil_div(loop.turns.n_tokens, loop.turns.run) *
                    groups_of(&loop.turns),
                write_turns, &loop);
    return status;
}

/* Every operator whose plan is a struct heads_plan. */
#define HEADS_OPERATOR(id)                                                     \
    enum roped_status roped_cpu_##id(const struct roped_call *call,            \
                                     struct roped_queue *queue,                \
                                     struct roped_error *err)                  \
    {                                                                          \
        return launch(call, queue, err);                                       \
    }
HEADS_OPERATOR(rope)
HEADS_OPERATOR(rope_quantize)
HEADS_OPERATOR(qk_rmsnorm_rope)
HEADS_OPERATOR(rope_append)
HEADS_OPERATOR(qk_rmsnorm_rope_append)
HEADS_OPERATOR(rope_quantize_append)
