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
    int64_t n_segments;
    int64_t n_together; /* groups */
    int64_t room;       /* floats of them, in whole lanes */
    float *gain;        /* weight_bias + weight, of a whole row */
    float *gated;       /* [n_segments][room]; where it is normalised */
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

/* of->to = of->up * act(gate), of n elements from column i of a group on */
static void gate(const struct pair_loop *loop, int64_t group, int64_t i,
                 int64_t n, struct cpu_gated of)
{
    of.dtype = loop->dtype;
    of.ahead = CPU_AHEAD;
    of.gate = column_at(loop, loop->of.second, group, i);
    loop->rows->activation->gate(&loop->act, &of, n);
}

/* From the n values of z to the result, from column i of a group on. */
static void store(const struct pair_loop *loop, int64_t group, int64_t i,
                  int64_t n, const float *z)
{
    void *out = column_at(loop, loop->of.out, group, i);
    if (loop->of.plan->pair == NORM_THEN_GATE) {
        const struct cpu_gated of = {.up_dtype = ROPED_F32,
                                     .to_dtype = loop->dtype,
                                     .up = z,
                                     .to = out,
                                     .is_streamed = loop->is_streamed};
        gate(loop, group, i, n, of);
    } else {
        const struct cpu_conversion conversion = {.from = ROPED_F32,
                                                  .to = loop->dtype,
                                                  .is_streamed =
                                                      loop->is_streamed};
        loop->rows->convert(&conversion, out, z, n);
    }
}

/* x * act(gate) of n groups as floats. */
static void gate_groups(const struct pair_loop *loop, int64_t group, int64_t n,
                        float *gated)
{
    const int64_t width = n * loop->of.plan->norm.hidden;
    for (int64_t i = 0; i < width; i += CPU_BLOCK) {
        const struct cpu_gated of = {.up_dtype = loop->dtype,
                                     .to_dtype = ROPED_F32,
                                     .up =
                                         column_at(loop, loop->of.x, group, i),
                                     .to = gated + i};
        gate(loop, group, i, cpu_smaller(width - i, CPU_BLOCK), of);
    }
}

/*
 * n groups that lie one behind the other: one, or as many as a block holds.
 * gated: memory for what is normalised where that is not x, else NULL.
 */
static void finish_groups(const struct pair_loop *loop, int64_t group,
                          int64_t n, float *gated)
{
    const struct norm_pair_plan *plan = loop->of.plan;
    const int64_t size = plan->norm.hidden;
    const enum roped_dtype dtype = gated ? ROPED_F32 : loop->dtype;
    const size_t bytes = roped_dtype_bytes(dtype);
    void *const x = gated ? gated : column_at(loop, loop->of.x, group, 0);
    const struct cpu_norm_rows rows = {.n = n, .x = x};
    struct cpu_normal normal = {dtype,
                                loop->rounds || plan->rounds_norm ? loop->dtype
                                                                  : ROPED_F32,
                                loop->rounds,
                                plan->rounds_norm,
                                0,
                                CPU_AHEAD};
    float s[CPU_ROWS], z[CPU_BLOCK];
    if (gated)
        gate_groups(loop, group, n, gated);
    loop->rows->inverse_rms(dtype, size, &rows, plan->norm.eps, s);
    if (plan->rounds_scale)
        loop->rows->round(loop->dtype, s, n);
    for (int64_t i = 0; i < size; i += CPU_BLOCK) {
        const int64_t part = cpu_smaller(size - i, CPU_BLOCK);
        for (int64_t j = 0; j < n; j++) {
            const int64_t first = (group + j) % plan->n_groups * size;
            normal.s = s[j];
            loop->rows->normal(&normal, z + j * part,
                               cpu_at(x, j * size + i, bytes),
                               loop->gain + first + i, part);
        }
        store(loop, group, i, n * part, z);
    }
}

static void finish_segments(void *context, int64_t begin, int64_t end)
{
    const struct pair_loop *loop = context;
    const int64_t n = loop->of.plan->norm.n_rows;
    const int64_t size = cpu_ceil_div(n, loop->n_segments);
    for (int64_t segment = begin; segment < end; segment++) {
        const int64_t last = cpu_smaller(n, (segment + 1) * size);
        float *gated = loop->gated ? loop->gated + segment * loop->room : NULL;
        for (int64_t group = segment * size; group < last;
             group += loop->n_together)
            finish_groups(loop, group,
                          cpu_smaller(last - group, loop->n_together), gated);
    }
}

/* Groups that are worked on together: of narrow ones a block, where they lie
 * one behind the other in every tensor. */
static int64_t together(const struct cpu_norm_pair *of)
{
    const struct roped_tensor *const all[] = {of->x, of->second, of->out};
    const int64_t size = of->plan->norm.hidden;
    const int64_t width = of->plan->n_groups * size;
    for (int i = 0; i < 3; i++)
        if (all[i] && cpu_stride(all[i], width) != width)
            return 1;
    return cpu_smaller(CPU_ROWS, size < CPU_BLOCK ? CPU_BLOCK / size : 1);
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
        .n_together = together(of),
        .rounds = plan->norm.rounding != RMSNORM_ROUND_ONCE &&
                  of->x->dtype != ROPED_F32,
        .is_streamed = cpu_is_large(queue, bytes) && !is_in_place};
    if (plan->norm.n_rows == 0)
        return ROPED_OK;
    loop.room = cpu_ceil_div(loop.n_together * plan->norm.hidden, CPU_LANES) *
                CPU_LANES;
    enum roped_status status = take_scratch(&loop, queue, err);
    if (status)
        return status;
    cpu_for(queue, bytes, loop.n_segments, finish_segments, &loop);
    return ROPED_OK;
}
