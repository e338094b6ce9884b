/*
 * binary_backward.c - gradients of binary functions on the CPU.
 *
 * DESIGN. The two innermost dims of the collapsed shape are cut into tiles of
 * at most CPU_BLOCK elements; a tile of every tensor is widened to float32,
 * worked on and rounded back without leaving the first-level cache. Loops over
 * tiles are of two kinds: those in which the summed operand has elements of
 * its own make a task each, which no other task shares a sum with; those in
 * which it was broadcast are the steps of a task. Where there are too few
 * tasks for the threads, steps are cut into segments, whose sums are added in
 * a second pass. Tasks, tiles and segments follow from the shape alone, so
 * the bits do not depend on the number of threads. Sums are doubles.
 *
 * Where one operand is not broadcast at all, its gradient is written by the
 * tile that the other's terms are summed from: grad_output and the operands
 * are read once. Where both are, each has a pass of its own.
 */
#include "ops/binary_backward.h"
#include "cpu/binary_rows.h"
#include "cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    TARGET_TASKS = 64, /* keeps the threads of a large machine about equal */
    MIN_SEGMENT_ELEMENTS = 32 << 10,
    /* outputs above this do not fit a cache anyway: no use pushing others out
     */
    MIN_STREAM_BYTES = 4 << 20
};

/* A loop over tiles: a dim of the collapsed shape, or its blocks. */
struct tile_loop {
    int64_t count;
    int64_t g, a, b, out; /* elements to the next iteration */
};

struct binary_work {
    const struct cpu_rows *rows;
    const struct cpu_binary_rows *binary;
    enum roped_dtype dtype;
    int32_t function;
    bool needs_values, is_streamed;
    const struct roped_tensor *g, *a, *b;
    const struct roped_tensor *full; /* gradient to write as well, or NULL */
    const struct roped_tensor *sum;  /* gradient that is summed */
    int32_t full_side, sum_side;

    struct tile_loop task[ROPED_MAX_RANK], step[ROPED_MAX_RANK];
    int n_task_loops, n_step_loops;
    int64_t n_tasks, n_steps;
    int64_t n_segments, steps_per_segment;
    double *partial; /* [n_segments][elements of sum], or NULL: one segment */

    /* the tile: rows x columns, fewer at the ends of their dims */
    int64_t rows_of_dim, columns_of_dim;
    int64_t tile_rows, tile_columns;
    struct tile_loop row, column; /* steps of one element inside the tile */
    bool sums_rows, sums_columns;
    int row_loop, column_loop; /* places in task or step of the blocks' loops */
};

/* Where a tile is. */
struct tile {
    int64_t g, a, b, out; /* element offsets */
    int64_t rows, columns;
};

/* ------------------------------------------------------------------ tiles */

/* Values of an operand's tile as float32: in buffer, or where they are. */
static const float *load_tile(const struct binary_work *work,
                              const struct roped_tensor *tensor, int64_t at,
                              int64_t row_step, int64_t column_step,
                              const struct tile *tile, float *buffer)
{
    size_t bytes = roped_dtype_bytes(work->dtype);
    int64_t n = tile->rows * tile->columns;
    const void *from = cpu_at(tensor->data, at, bytes);
    bool is_packed = (column_step == 1 || tile->columns == 1) &&
                     (row_step == tile->columns || tile->rows == 1);
    if (is_packed && work->dtype == ROPED_F32)
        return from;
    if (is_packed) {
        work->rows->widen(work->dtype, buffer, from, n);
        return buffer;
    }
    for (int64_t row = 0; row < tile->rows; row++) {
        float *to = buffer + row * tile->columns;
        from = cpu_at(tensor->data, at + row * row_step, bytes);
        if (row > 0 && row_step == 0) {
            memcpy(to, buffer, (size_t)tile->columns * sizeof *to);
        } else if (column_step == 1) {
            work->rows->widen(work->dtype, to, from, tile->columns);
        } else {
            work->rows->widen(work->dtype, to, from, 1);
            for (int64_t i = 1; i < tile->columns; i++)
                to[i] = to[0];
        }
    }
    return buffer;
}

/* Rounds n values into a packed part of a gradient. */
static void store(const struct binary_work *work,
                  const struct roped_tensor *tensor, int64_t at,
                  const float *values, int64_t n)
{
    uint16_t narrow[CPU_BLOCK];
    size_t bytes = roped_dtype_bytes(work->dtype);
    void *to = cpu_at(tensor->data, at, bytes);
    const void *from = values;
    if (!work->is_streamed) {
        work->rows->narrow(work->dtype, to, values, n);
        return;
    }
    if (work->dtype != ROPED_F32) {
        work->rows->narrow(work->dtype, narrow, values, n);
        from = narrow;
    }
    work->binary->stream(to, from, (size_t)n * bytes);
}

/* Writes the full gradient of a tile and adds the other's terms to sum. */
static void work_on_tile(const struct binary_work *work,
                         const struct tile *tile, double *sum)
{
    float g_block[CPU_BLOCK], a_block[CPU_BLOCK], b_block[CPU_BLOCK];
    float terms[CPU_BLOCK];
    const struct tile_loop *row = &work->row, *column = &work->column;
    int64_t n = tile->rows * tile->columns;
    const float *a = NULL, *b = NULL;
    const float *g =
        load_tile(work, work->g, tile->g, row->g, column->g, tile, g_block);
    if (work->needs_values) {
        a = load_tile(work, work->a, tile->a, row->a, column->a, tile, a_block);
        b = load_tile(work, work->b, tile->b, row->b, column->b, tile, b_block);
    }
    if (work->full) {
        work->binary->terms(work->function, work->full_side, terms, g, a, b, n);
        store(work, work->full, tile->g, terms, n);
    }
    work->binary->terms(work->function, work->sum_side, terms, g, a, b, n);
    if (work->sums_columns)
        work->binary->add_row_sums(sum, terms, tile->rows, tile->columns);
    else
        work->binary->add(sum, terms, n);
}

/* ------------------------------------------------------------------ tasks */

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Adds the offsets of iteration index of nested loops; the last is fastest. */
static void advance(struct tile *tile, const struct tile_loop *loop, int n,
                    int64_t index, int64_t place[ROPED_MAX_RANK])
{
    for (int i = n - 1; i >= 0; i--) {
        place[i] = index % loop[i].count;
        index /= loop[i].count;
        tile->g += place[i] * loop[i].g;
        tile->a += place[i] * loop[i].a;
        tile->b += place[i] * loop[i].b;
        tile->out += place[i] * loop[i].out;
    }
}

static struct tile tile_at(const struct binary_work *work, int64_t task,
                           int64_t step)
{
    int64_t task_place[ROPED_MAX_RANK] = {0}, step_place[ROPED_MAX_RANK] = {0};
    struct tile tile = {0};
    advance(&tile, work->task, work->n_task_loops, task, task_place);
    advance(&tile, work->step, work->n_step_loops, step, step_place);
    int64_t row = (work->sums_rows ? step_place : task_place)[work->row_loop];
    int64_t column =
        (work->sums_columns ? step_place : task_place)[work->column_loop];
    tile.rows =
        smaller(work->tile_rows, work->rows_of_dim - row * work->tile_rows);
    tile.columns = smaller(work->tile_columns,
                           work->columns_of_dim - column * work->tile_columns);
    return tile;
}

/*
 * How many of a task's sums are its results, once the rows of a tile of column
 * sums are added up. Neighbouring dims are never both summed: they would have
 * been one. A first tile may be shorter than later ones where rows are steps.
 */
static int64_t fold_rows(const struct binary_work *work,
                         const struct tile *first, double *sum)
{
    if (work->sums_columns)
        return first->rows;
    if (!work->sums_rows)
        return first->rows * first->columns;
    for (int64_t row = 1; row < work->tile_rows; row++)
        for (int64_t i = 0; i < first->columns; i++)
            sum[i] += sum[row * first->columns + i];
    return first->columns;
}

static void store_sums(const struct binary_work *work, int64_t at,
                       const double *sum, int64_t n)
{
    float values[CPU_BLOCK];
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)sum[i];
    store(work, work->sum, at, values, n);
}

static void run_task(const struct binary_work *work, int64_t task,
                     int64_t segment)
{
    double sum[CPU_BLOCK];
    int64_t begin = segment * work->steps_per_segment;
    int64_t end = smaller(begin + work->steps_per_segment, work->n_steps);
    struct tile first = tile_at(work, task, begin);
    memset(sum, 0, sizeof sum);
    for (int64_t step = begin; step < end; step++) {
        struct tile tile = tile_at(work, task, step);
        work_on_tile(work, &tile, sum);
    }
    int64_t n = fold_rows(work, &first, sum);
    if (work->partial)
        memcpy(work->partial + segment * roped_tensor_elements(work->sum) +
                   first.out,
               sum, (size_t)n * sizeof *sum);
    else
        store_sums(work, first.out, sum, n);
}

static void run_tasks(void *context, int64_t begin, int64_t end)
{
    const struct binary_work *work = context;
    for (int64_t i = begin; i < end; i++)
        run_task(work, i % work->n_tasks, i / work->n_tasks);
    if (work->is_streamed)
        work->binary->stream_end();
}

/* Blocks of the gradient: the sums of all segments, in their order. */
static void add_segments(void *context, int64_t begin, int64_t end)
{
    const struct binary_work *work = context;
    int64_t n_sums = roped_tensor_elements(work->sum);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * CPU_BLOCK;
        int64_t n = smaller(CPU_BLOCK, n_sums - at);
        double *sum = work->partial + at;
        for (int64_t segment = 1; segment < work->n_segments; segment++)
            for (int64_t i = 0; i < n; i++)
                sum[i] += sum[segment * n_sums + i];
        store_sums(work, at, sum, n);
    }
}

/* ------------------------------------------------------------------ plans */

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

/* One element's step in each dim of the collapsed shape, per tensor. */
static void strides_of(const struct binary_plan *plan, int32_t sum_side,
                       struct tile_loop loop[ROPED_MAX_RANK])
{
    struct tile_loop next = {.g = 1, .a = 1, .b = 1, .out = 1};
    for (int i = plan->rank - 1; i >= 0; i--) {
        const struct binary_dim *dim = &plan->dim[i];
        loop[i] = (struct tile_loop){
            .count = dim->size,
            .g = next.g,
            .a = dim->in & BINARY_IN_A ? next.a : 0,
            .b = dim->in & BINARY_IN_B ? next.b : 0,
            .out = dim->in & sum_side ? next.out : 0,
        };
        next.g *= dim->size;
        next.a *= dim->in & BINARY_IN_A ? dim->size : 1;
        next.b *= dim->in & BINARY_IN_B ? dim->size : 1;
        next.out *= dim->in & sum_side ? dim->size : 1;
    }
}

/* The loop over blocks of a dim. */
static struct tile_loop blocks_of(const struct tile_loop *dim, int64_t block)
{
    return (struct tile_loop){.count = ceil_div(dim->count, block),
                              .g = dim->g * block,
                              .a = dim->a * block,
                              .b = dim->b * block,
                              .out = dim->out * block};
}

/* Adds a loop to the steps or the tasks and returns its place there. */
static int add_loop(struct binary_work *work, struct tile_loop loop,
                    bool is_step)
{
    if (is_step) {
        work->step[work->n_step_loops] = loop;
        work->n_steps *= loop.count;
        return work->n_step_loops++;
    }
    work->task[work->n_task_loops] = loop;
    work->n_tasks *= loop.count;
    return work->n_task_loops++;
}

static void cut_tiles(struct binary_work *work, const struct binary_plan *plan)
{
    struct tile_loop dim[ROPED_MAX_RANK];
    const struct tile_loop one = {.count = 1};
    int rank = plan->rank, inner = rank - 1, outer = rank - 2;
    strides_of(plan, work->sum_side, dim);
    work->row = outer >= 0 ? dim[outer] : one;
    work->column = inner >= 0 ? dim[inner] : one;
    work->sums_rows = outer >= 0 && !(plan->dim[outer].in & work->sum_side);
    work->sums_columns = inner >= 0 && !(plan->dim[inner].in & work->sum_side);
    work->rows_of_dim = work->row.count;
    work->columns_of_dim = work->column.count;
    work->tile_columns = smaller(work->columns_of_dim, CPU_BLOCK);
    work->tile_rows =
        smaller(work->rows_of_dim, CPU_BLOCK / work->tile_columns);
    if (work->tile_columns < work->columns_of_dim)
        work->tile_rows = 1;
    work->n_tasks = work->n_steps = 1;
    for (int i = 0; i < outer; i++)
        add_loop(work, dim[i], !(plan->dim[i].in & work->sum_side));
    work->row_loop =
        add_loop(work, blocks_of(&work->row, work->tile_rows), work->sums_rows);
    work->column_loop = add_loop(
        work, blocks_of(&work->column, work->tile_columns), work->sums_columns);
}

static void cut_segments(struct binary_work *work, int64_t n)
{
    int64_t most = smaller(TARGET_TASKS / work->n_tasks,
                           n / work->n_tasks / MIN_SEGMENT_ELEMENTS);
    int64_t n_segments = most > 1 ? smaller(most, work->n_steps) : 1;
    work->steps_per_segment = ceil_div(work->n_steps, n_segments);
    work->n_segments = ceil_div(work->n_steps, work->steps_per_segment);
}

/* --------------------------------------------------------------- launches */

/* Sums one operand's gradient; writes the other's where it is full. */
static enum roped_status sum_side(struct binary_work *work,
                                  const struct binary_plan *plan, int64_t bytes,
                                  struct roped_queue *queue,
                                  struct roped_error *err)
{
    struct pool *pool = queue->backend->pool;
    work->n_task_loops = work->n_step_loops = 0;
    cut_tiles(work, plan);
    cut_segments(work, plan->n);
    work->partial = NULL;
    if (work->n_segments > 1) {
        int64_t n_sums = roped_tensor_elements(work->sum);
        void *scratch;
        enum roped_status status = cpu_scratch(
            queue, (size_t)(work->n_segments * n_sums) * sizeof *work->partial,
            &scratch, err);
        if (status)
            return status;
        work->partial = scratch;
    }
    pool_for(pool, work->n_tasks * work->n_segments, bytes, run_tasks, work);
    if (work->partial) {
        int64_t n_sums = roped_tensor_elements(work->sum);
        pool_for(pool, ceil_div(n_sums, CPU_BLOCK),
                 work->n_segments * n_sums * (int64_t)sizeof *work->partial,
                 add_segments, work);
    }
    return ROPED_OK;
}

/* Blocks of a call without broadcasting. */
static void write_blocks(void *context, int64_t begin, int64_t end)
{
    const struct binary_work *work = context;
    float g_block[CPU_BLOCK], a_block[CPU_BLOCK], b_block[CPU_BLOCK];
    float terms[CPU_BLOCK];
    int64_t n = roped_tensor_elements(work->g);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * CPU_BLOCK;
        struct tile tile = {.rows = 1, .columns = smaller(CPU_BLOCK, n - at)};
        const float *a = NULL, *b = NULL;
        const float *g = load_tile(work, work->g, at, 0, 1, &tile, g_block);
        if (work->needs_values) {
            a = load_tile(work, work->a, at, 0, 1, &tile, a_block);
            b = load_tile(work, work->b, at, 0, 1, &tile, b_block);
        }
        work->binary->terms(work->function, BINARY_IN_A, terms, g, a, b,
                            tile.columns);
        store(work, work->full, at, terms, tile.columns);
        work->binary->terms(work->function, BINARY_IN_B, terms, g, a, b,
                            tile.columns);
        store(work, work->sum, at, terms, tile.columns);
    }
    if (work->is_streamed)
        work->binary->stream_end();
}

static void clear(const struct roped_tensor *gradient)
{
    if (roped_tensor_bytes(gradient) > 0)
        memset(gradient->data, 0, (size_t)roped_tensor_bytes(gradient));
}

/* Dims that the operand of this side is not in. */
static bool is_broadcast(const struct binary_plan *plan, int32_t side)
{
    for (int i = 0; i < plan->rank; i++)
        if (!(plan->dim[i].in & side))
            return true;
    return false;
}

enum roped_status roped_cpu_binary_backward(const struct roped_call *call,
                                            struct roped_queue *queue,
                                            struct roped_error *err)
{
    const struct binary_plan *plan = (const void *)call->plan;
    const struct roped_tensor *grad_a = &call->out[BINARY_GRAD_A];
    const struct roped_tensor *grad_b = &call->out[BINARY_GRAD_B];
    int64_t bytes = roped_call_bytes(call);
    struct binary_work work = {
        .rows = queue->backend->rows,
        .binary = cpu_binary_rows_select(),
        .dtype = call->in[BINARY_GRAD_OUTPUT].dtype,
        .function = plan->function,
        .needs_values = binary_needs_values(plan->function),
        .is_streamed = bytes >= MIN_STREAM_BYTES,
        .g = &call->in[BINARY_GRAD_OUTPUT],
        .a = &call->in[BINARY_A],
        .b = &call->in[BINARY_B],
        .full = grad_a,
        .full_side = BINARY_IN_A,
        .sum = grad_b,
        .sum_side = BINARY_IN_B,
    };
    bool sums_a = is_broadcast(plan, BINARY_IN_A);
    bool sums_b = is_broadcast(plan, BINARY_IN_B);
    if (plan->n == 0) {
        clear(grad_a);
        clear(grad_b);
        return ROPED_OK;
    }
    if (!sums_a && !sums_b) {
        pool_for(queue->backend->pool, ceil_div(plan->n, CPU_BLOCK), bytes,
                 write_blocks, &work);
        return ROPED_OK;
    }
    if (sums_b) {
        work.full = sums_a ? NULL : grad_a;
        enum roped_status status = sum_side(&work, plan, bytes, queue, err);
        if (status || !sums_a)
            return status;
    }
    work.full = sums_b ? NULL : grad_b;
    work.full_side = BINARY_IN_B;
    work.sum = grad_a;
    work.sum_side = BINARY_IN_A;
    return sum_side(&work, plan, bytes, queue, err);
}
