/*
 * norm_pair.c - RMS norms with a gate for each row on the CPU, and those of
 * heads: a row is read once for its sum, and again, a block at a time through
 * float32, for its result. What a gate makes of a row is kept in between.
 */
#include "cpu/norm_pair.h"
#include "cpu/activation_rows.h"

#include <math.h>

struct pair_loop {
    struct cpu_norm_pair of;
    const struct cpu_rows *rows;
    enum roped_dtype dtype;      /* of the rows */
    struct act_and_mul_plan act; /* what a gate goes through */
    int64_t n_segments, room;    /* floats of a group, in whole lanes */
    float *gain;                 /* weight_bias + weight, of a whole row */
    float *gated; /* [n_segments][room]; where it is normalised */
    bool rounds, is_streamed;
};

/* Column i of a group, which is a row of the plan. */
static void *column_at(const struct pair_loop *loop,
                       const struct roped_tensor *tensor, int64_t group,
                       int64_t i)
{
    const int64_t n_groups = loop->of.plan->n_groups;
    const int64_t size = loop->of.plan->norm.hidden;
    const int64_t stride = cpu_stride(tensor, n_groups * size);
    return cpu_at(tensor->data,
                  group / n_groups * stride + group % n_groups * size + i,
                  roped_dtype_bytes(tensor->dtype));
}

/* of->to = of->up * act(gate), of columns [i, i + n) of a group */
static void gate(const struct pair_loop *loop, int64_t group, int64_t i,
                 int64_t n, struct cpu_gated of)
{
    of.dtype = loop->dtype;
    of.ahead = CPU_AHEAD;
    of.gate = column_at(loop, loop->of.second, group, i);
    loop->rows->activation->gate(&loop->act, &of, n);
}

/* From x of columns [i, i + n) of a group, at most a block, to their result. */
static void finish_block(const struct pair_loop *loop, int64_t group, int64_t i,
                         int64_t n, const struct cpu_normal *normal,
                         const void *x)
{
    const struct norm_pair_plan *plan = loop->of.plan;
    const int64_t first = group % plan->n_groups * plan->norm.hidden;
    void *out = column_at(loop, loop->of.out, group, i);
    float z[CPU_BLOCK];
    loop->rows->normal(normal, z, x, loop->gain + first + i, n);
    if (plan->pair == NORM_THEN_GATE) {
        const struct cpu_gated of = {.up_dtype = ROPED_F32,
                                     .to_dtype = loop->dtype,
                                     .up = z,
                                     .to = out,
                                     .is_streamed = loop->is_streamed};
        gate(loop, group, i, n, of);
    } else {
        const struct cpu_conversion store = {.from = ROPED_F32,
                                             .to = loop->dtype,
                                             .is_streamed = loop->is_streamed};
        loop->rows->convert(&store, out, z, n);
    }
}

/* gated: memory for what is normalised where that is not x, else NULL. */
static void finish_group(const struct pair_loop *loop, int64_t group,
                         float *gated)
{
    const struct norm_pair_plan *plan = loop->of.plan;
    const struct rmsnorm_plan *norm = &plan->norm;
    const enum roped_dtype dtype = gated ? ROPED_F32 : loop->dtype;
    const void *x = column_at(loop, loop->of.x, group, 0);
    struct cpu_normal normal = {dtype,
                                loop->rounds || plan->rounds_norm ? loop->dtype
                                                                  : ROPED_F32,
                                loop->rounds,
                                plan->rounds_norm,
                                0,
                                CPU_AHEAD};
    for (int64_t i = 0; gated && i < norm->hidden; i += CPU_BLOCK) {
        const struct cpu_gated of = {.up_dtype = loop->dtype,
                                     .to_dtype = ROPED_F32,
                                     .up =
                                         column_at(loop, loop->of.x, group, i),
                                     .to = gated + i};
        gate(loop, group, i, cpu_smaller(norm->hidden - i, CPU_BLOCK), of);
    }
    if (gated)
        x = gated;
    const struct cpu_norm_rows one = {.n = 1, .x = x};
    loop->rows->inverse_rms(dtype, norm->hidden, &one, norm->eps, &normal.s);
    if (plan->rounds_scale)
        loop->rows->round(loop->dtype, &normal.s, 1);
    for (int64_t i = 0; i < norm->hidden; i += CPU_BLOCK)
        finish_block(loop, group, i, cpu_smaller(norm->hidden - i, CPU_BLOCK),
                     &normal,
                     cpu_at((void *)(uintptr_t)x, i, roped_dtype_bytes(dtype)));
}

static void finish_segments(void *context, int64_t begin, int64_t end)
{
    const struct pair_loop *loop = context;
    const int64_t n = loop->of.plan->norm.n_rows;
    const int64_t size = cpu_ceil_div(n, loop->n_segments);
    for (int64_t segment = begin; segment < end; segment++) {
        const int64_t last = cpu_smaller(n, (segment + 1) * size);
        float *gated = loop->gated ? loop->gated + segment * loop->room : NULL;
        for (int64_t group = segment * size; group < last; group++)
            finish_group(loop, group, gated);
    }
}

/* Memory for gains, and the gains in it, and for gated rows. */
static enum roped_status take_scratch(struct pair_loop *loop,
                                      struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct norm_pair_plan *plan = loop->of.plan;
    const int64_t width = plan->n_groups * plan->norm.hidden;
    const int64_t room = cpu_ceil_div(width, CPU_LANES) * CPU_LANES;
    const bool keeps = plan->pair == GATE_THEN_NORM;
    const int64_t kept = keeps ? loop->n_segments * loop->room : 0;
    void *scratch;
    enum roped_status status = cpu_scratch(
        queue, (size_t)(room + kept) * sizeof(float), &scratch, err);
    if (status)
        return status;
    loop->gain = scratch;
    loop->gated = keeps ? loop->gain + room : NULL;
    loop->rows->fill_weight(
        ROPED_F32, (enum roped_dtype)plan->norm.weight_dtype, loop->gain,
        loop->of.weight->data, plan->norm.weight_bias, width);
    return ROPED_OK;
}

enum roped_status cpu_norm_pair(const struct cpu_norm_pair *of,
                                const struct roped_call *call,
                                struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct norm_pair_plan *plan = of->plan;
    const int64_t bytes = roped_call_bytes(call);
    const bool is_in_place = of->out->data == of->x->data ||
                             (of->second && of->out->data == of->second->data);
    struct pair_loop loop = {
        .of = *of,
        .rows = queue->backend->rows,
        .dtype = of->x->dtype,
        .act = {.activation = plan->activation, .limit = INFINITY},
        .n_segments = cpu_segments(queue, plan->norm.n_rows),
        .room = cpu_ceil_div(plan->norm.hidden, CPU_LANES) * CPU_LANES,
        .rounds = plan->norm.rounding != RMSNORM_ROUND_ONCE &&
                  of->x->dtype != ROPED_F32,
        .is_streamed = cpu_is_large(queue, bytes) && !is_in_place};
    if (plan->norm.n_rows == 0)
        return ROPED_OK;
    enum roped_status status = take_scratch(&loop, queue, err);
    if (status)
        return status;
    cpu_for(queue, bytes, loop.n_segments, finish_segments, &loop);
    return ROPED_OK;
}
