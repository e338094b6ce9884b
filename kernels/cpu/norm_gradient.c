/*
 * norm_gradient.c - gradients of norms on the CPU.
 *
 * Rows are cut into segments, whose number follows from theirs. A segment is a
 * task: it writes grad_x, and sums grad_weight and grad_bias, of a few rows as
 * floats, of all of them in doubles of its own, which a second pass adds in the
 * order of the segments. So the bits do not depend on the number of threads.
 */
#include "cpu/norm_gradient.h"
#include "cpu/norm_gradient_rows.h"

#include <string.h>

enum { MOST_SEGMENTS = 64, FEW_ROWS = 8 };

struct gradient_loop {
    struct cpu_norm_gradient of;
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    int64_t n_segments, segment_rows;
    int n_sums;
    const struct roped_tensor *sum_to[2];
    int64_t room;    /* elements of a row of sums, which a block may pass */
    double *partial; /* [n_segments][n_sums][room] */
    float *few;      /* the same, of FEW_ROWS of a segment at most */
    float *gain;
    bool rounds, is_streamed;
};

static void *element_at(const struct gradient_loop *loop,
                        const struct roped_tensor *tensor, int64_t row)
{
    return cpu_at(tensor->data, row * cpu_stride(tensor, loop->plan->hidden),
                  roped_dtype_bytes(tensor->dtype));
}

/* Of the rows of a segment so far. */
struct segment_sums {
    double *total;
    float *few;
    bool has_few;
};

static struct cpu_gradient_row row_of(const struct gradient_loop *loop,
                                      int64_t i,
                                      const struct segment_sums *sums)
{
    const bool has_weight = roped_tensor_given(loop->of.weight);
    struct cpu_gradient_row row = {
        .type = loop->of.x->dtype,
        .n = loop->plan->hidden,
        .grad_y = element_at(loop, loop->of.grad_y, i),
        .x = element_at(loop, loop->of.x, i),
        .gain = loop->gain,
        .rounds = loop->rounds,
        .is_centred = loop->of.is_centred,
        .grad_x = element_at(loop, loop->of.grad_x, i),
        .gain_sum = has_weight ? sums->few : NULL,
        .gain_total = has_weight ? sums->total : NULL,
        .is_streamed = loop->is_streamed,
    };
    if (roped_tensor_given(loop->of.grad_residual))
        row.residual = element_at(loop, loop->of.grad_residual, i);
    if (loop->n_sums > has_weight) {
        row.shift_sum = sums->few + has_weight * loop->room;
        row.shift_total = sums->total + has_weight * loop->room;
    }
    return row;
}

/* A row's gradient, and what it adds to the segment's sums. */
static void descend(const struct gradient_loop *loop,
                    struct cpu_gradient_row *row, bool is_tame,
                    struct segment_sums *sums)
{
    if (is_tame) {
        row->begins = !sums->has_few;
        sums->has_few = true;
    } else {
        loop->rows->norm_gradient->add_widely(row);
        row->gain_sum = row->shift_sum = NULL;
    }
    loop->rows->norm_gradient->descend(row);
}

/* Rows [begin, begin + n), at most FEW_ROWS. One step of all of them comes
 * before the next one, so that a row need not wait for the end of another's:
 * square roots, and sums over lanes. */
static void gradient_rows(const struct gradient_loop *loop, int64_t begin,
                          int64_t n, struct segment_sums *sums)
{
    const enum roped_dtype dtype = loop->of.x->dtype;
    const int64_t width = loop->plan->hidden;
    const struct cpu_norm_rows all = {
        .n = n,
        .stride = {.x = cpu_stride(loop->of.x, width)},
        .x = element_at(loop, loop->of.x, begin)};
    struct cpu_gradient_row row[FEW_ROWS];
    struct cpu_mean mean[FEW_ROWS] = {{0, 0}};
    float s[FEW_ROWS];
    bool is_tame[FEW_ROWS];
    if (loop->of.is_centred)
        loop->rows->inverse_deviation(dtype, width, &all, loop->plan->eps, s,
                                      mean);
    else
        loop->rows->inverse_rms(dtype, width, &all, loop->plan->eps, s);
    for (int64_t i = 0; i < n; i++) {
        double of_all, of_normal;
        row[i] = row_of(loop, begin + i, sums);
        row[i].s = s[i];
        row[i].mean = mean[i];
        is_tame[i] =
            loop->rows->norm_gradient->sums(&row[i], &of_all, &of_normal);
        row[i].shift =
            loop->of.is_centred ? (float)(of_all / (double)width) : 0;
        row[i].k = (float)(of_normal / (double)width);
    }
    for (int64_t i = 0; i < n; i++)
        descend(loop, &row[i], is_tame[i], sums);
}

/* So many that they are still in the first-level cache for the next step. */
static int64_t rows_per_step(const struct gradient_loop *loop)
{
    enum { ENOUGH = 8 << 10 };
    const int64_t bytes =
        2 * loop->plan->hidden * (int64_t)roped_dtype_bytes(loop->of.x->dtype);
    const int64_t n = cpu_smaller(ENOUGH / bytes, FEW_ROWS);
    return n > 1 ? n : 1;
}

static void gradient_segments(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t n_rows = loop->plan->n_rows;
    const int64_t n = loop->n_sums * loop->room, step = rows_per_step(loop);
    float *const few = loop->few + begin * n; /* of one after the other */
    for (int64_t segment = begin; segment < end; segment++) {
        struct segment_sums sums = {.total = loop->partial + segment * n,
                                    .few = few};
        const int64_t first = segment * loop->segment_rows;
        const int64_t last = cpu_smaller(n_rows, first + loop->segment_rows);
        memset(sums.total, 0, (size_t)n * sizeof *sums.total);
        for (int64_t run = first; run < last; run += FEW_ROWS) {
            const int64_t to = cpu_smaller(last, run + FEW_ROWS);
            sums.has_few = false;
            for (int64_t row = run; row < to; row += step)
                gradient_rows(loop, row, cpu_smaller(to - row, step), &sums);
            if (sums.has_few)
                loop->rows->norm_gradient->fold(sums.total, sums.few, n);
        }
    }
}

/* Of blocks of columns, those of the second sum behind those of the first. */
static void sum_columns(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t width = loop->plan->hidden;
    const int64_t n_blocks = cpu_ceil_div(width, CPU_BLOCK);
    for (int64_t block = begin; block < end; block++) {
        const struct roped_tensor *to = loop->sum_to[block / n_blocks];
        const struct cpu_conversion narrow = {.from = ROPED_F32,
                                              .to = to->dtype};
        const int64_t i = block % n_blocks * CPU_BLOCK;
        const int64_t n = cpu_smaller(width - i, CPU_BLOCK);
        float sum[CPU_BLOCK];
        loop->rows->norm_gradient->total(
            sum, loop->partial + block / n_blocks * loop->room + i,
            loop->n_sums * loop->room, loop->n_segments, n);
        loop->rows->convert(
            &narrow, cpu_at(to->data, i, roped_dtype_bytes(to->dtype)), sum, n);
    }
}

/* Memory for sums and gains, and the gains in it. */
static enum roped_status take_scratch(struct gradient_loop *loop,
                                      struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct rmsnorm_plan *plan = loop->plan;
    const bool has_weight = roped_tensor_given(loop->of.weight);
    const int64_t n_sums = loop->n_segments * loop->n_sums * loop->room;
    void *scratch;
    enum roped_status status =
        cpu_scratch(queue,
                    (size_t)n_sums * sizeof *loop->partial +
                        (size_t)(n_sums + loop->room) * sizeof *loop->gain,
                    &scratch, err);
    if (status)
        return status;
    loop->partial = scratch;
    loop->few = (float *)(loop->partial + n_sums);
    loop->gain = loop->few + n_sums;
    loop->rows->fill_weight(
        ROPED_F32,
        has_weight ? (enum roped_dtype)plan->weight_dtype : ROPED_NO_DTYPE,
        loop->gain, has_weight ? loop->of.weight->data : NULL,
        has_weight ? plan->weight_bias : 0, plan->hidden);
    return ROPED_OK;
}

/* Even shares, of which none is empty. */
static int64_t rows_per_segment(int64_t n_rows)
{
    const int64_t n =
        cpu_smaller(cpu_ceil_div(n_rows, FEW_ROWS), MOST_SEGMENTS);
    return n ? cpu_ceil_div(n_rows, n) : 1;
}

static bool is_in_place(const struct cpu_norm_gradient *of)
{
    const void *to = of->grad_x->data;
    return to == of->grad_y->data || to == of->x->data ||
           to == of->grad_residual->data;
}

enum roped_status cpu_norm_gradient(const struct cpu_norm_gradient *of,
                                    const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const void *)call->plan;
    const int64_t bytes = roped_call_bytes(call);
    struct gradient_loop loop = {
        .of = *of,
        .rows = queue->backend->rows,
        .plan = plan,
        .segment_rows = rows_per_segment(plan->n_rows),
        .room = cpu_ceil_div(plan->hidden, CPU_LANES) * CPU_LANES + CPU_LANES,
        .rounds =
            plan->rounding != RMSNORM_ROUND_ONCE && of->x->dtype != ROPED_F32,
        .is_streamed = cpu_is_large(queue, bytes) && !is_in_place(of)};
    loop.n_segments = cpu_ceil_div(plan->n_rows, loop.segment_rows);
    if (roped_tensor_given(of->weight))
        loop.sum_to[loop.n_sums++] = of->grad_weight;
    if (of->bias && roped_tensor_given(of->bias))
        loop.sum_to[loop.n_sums++] = of->grad_bias;
    enum roped_status status = take_scratch(&loop, queue, err);
    if (status)
        return status;
    cpu_for(queue, bytes, loop.n_segments, gradient_segments, &loop);
    if (loop.n_sums)
        cpu_for(queue, loop.n_segments * loop.n_sums * loop.room * 8,
                loop.n_sums * cpu_ceil_div(plan->hidden, CPU_BLOCK),
                sum_columns, &loop);
    return ROPED_OK;
}
