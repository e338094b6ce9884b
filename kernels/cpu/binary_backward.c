/*
 * binary_backward.c - gradients of binary functions on the CPU.
 *
 * DESIGN. The two innermost dims of the collapsed shape are cut into tiles.
 * Loops over tiles are of two kinds: those in which the summed operand has
 * elements of its own make a task each, which no other task shares a sum with;
 * those in which it was broadcast are the steps of a task. Where there are too
 * few tasks for the threads, steps are cut into segments, whose sums are added
 * in a second pass. Tasks, tiles and segments follow from the shape alone, so
 * the bits do not depend on the number of threads. Sums are doubles, of at
 * most CPU_BLOCK columns or rows at a time: they stay in the first-level cache.
 *
 * Where one operand is not broadcast at all, one loop over a tile writes its
 * gradient and sums the other's terms: grad_output and the operands are read
 * once. Where both are, each gradient has a pass of its own. Rows of WIDE
 * columns and more are read as such: eight rows are added to one, or a row to a
 * number. Other tiles are runs of at most CPU_BLOCK elements of grad_output, of
 * as many dims as that takes, over which the other operand is spread; terms are
 * added one beside the other, and what a task has of them is summed over the
 * tile's dims at its end.
 */
#include "ops/binary_backward.h"
#include "cpu/binary_rows.h"
#include "cpu/cpu_internal.h"

#include <string.h>

enum {
    TARGET_TASKS = 64, /* keeps the threads of a large machine about equal */
    MIN_SEGMENT_ELEMENTS = 32 << 10,
    SWEEP_BLOCK = 16 << 10, /* elements per call of a loop over memory */
    FOLDED = 1024,          /* elements of narrow rows that are added as one */
    FOLDS_PER_TILE = 16,
    WIDE = 64,        /* columns that are worth a loop of their own */
    WIDE_APART = 256, /* where their rows do not follow each other */
    WIDE_TILE = 4096,
    STEPS_PER_DOUBLE = 8 /* whose terms are added in float32 */
};

/* A loop over tiles: a dim of the collapsed shape, or its blocks. */
struct tile_loop {
    int64_t count;
    int64_t g, a, b, out; /* elements to the next iteration */
};

struct binary_work {
    const struct cpu_rows *rows;
    const struct cpu_binary_rows *loops;
    const struct cpu_binary_sum_rows *sums;
    struct cpu_binary binary;
    bool needs_values;
    const struct roped_tensor *g, *a, *b;
    const struct roped_tensor *full; /* gradient to write as well, or NULL */
    const struct roped_tensor *sum;  /* gradient that is summed */
    int32_t sum_side;

    struct tile_loop task[ROPED_MAX_RANK], step[ROPED_MAX_RANK];
    int n_task_loops, n_step_loops;
    int64_t n_tasks, n_steps;
    int64_t n_segments, steps_per_segment;
    double *partial; /* [n_segments][elements of sum], or NULL: one segment */

    /* the tile: rows x columns, fewer at the ends of their dims */
    struct tile_loop row, column; /* the two innermost dims */
    int64_t tile_rows, tile_columns;
    int64_t folded_rows; /* rows whose columns have sums of their own */
    bool sums_rows, sums_columns;
    int row_loop, column_loop; /* places in task or step of the blocks' loops */

    /* where both are broadcast: rows or columns are summed as such, or the dims
     * of a tile, rows first; of more than two, columns are all but the first */
    bool is_wide;
    const struct binary_dim *tile_dim;
    int n_tile_dims;
};

/* Where a tile is. */
struct tile {
    int64_t g, a, b, out; /* element offsets */
    int64_t rows, columns;
};

static void *element(const struct binary_work *work,
                     const struct roped_tensor *tensor, int64_t at)
{
    return cpu_at(tensor->data, at, roped_dtype_bytes(work->binary.dtype));
}

/* ------------------------------------------------------------------ tiles */

/* Adds the offsets of iteration index of nested loops; the last is fastest. */
static void enter_loops(struct tile *tile, const struct tile_loop *loop, int n,
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
    enter_loops(&tile, work->task, work->n_task_loops, task, task_place);
    enter_loops(&tile, work->step, work->n_step_loops, step, step_place);
    int64_t row = (work->sums_rows ? step_place : task_place)[work->row_loop];
    int64_t column =
        (work->sums_columns ? step_place : task_place)[work->column_loop];
    tile.rows =
        cpu_smaller(work->tile_rows, work->row.count - row * work->tile_rows);
    tile.columns = cpu_smaller(
        work->tile_columns, work->column.count - column * work->tile_columns);
    return tile;
}

/* Values of the summed operand that every tile of a task has. */
static const float *task_values(const struct binary_work *work,
                                const struct tile *first, float *buffer)
{
    bool sums_a = work->binary.sums_a;
    const struct roped_tensor *tensor = sums_a ? work->a : work->b;
    int64_t at = sums_a ? first->a : first->b;
    if (!work->needs_values)
        return NULL;
    work->rows->widen(work->binary.dtype, buffer, element(work, tensor, at),
                      work->sums_columns ? first->rows : first->columns);
    if (!work->sums_columns)
        work->sums->repeat(buffer, buffer, 1, work->folded_rows,
                           first->columns);
    return buffer;
}

/* Writes the full gradient of a tile and adds the other's terms to sum. */
static void sweep_tile(const struct binary_work *work, const struct tile *tile,
                       const float *y, double *sum)
{
    const struct roped_tensor *full = work->binary.sums_a ? work->b : work->a;
    struct cpu_sweep sweep = {
        .g = element(work, work->g, tile->g),
        .x = work->needs_values ? element(work, full, tile->g) : NULL,
        .grad_x = element(work, work->full, tile->g),
        .y = y,
        .sum = sum,
        .rows = tile->rows,
        .width = tile->columns};
    if (work->sums_columns) {
        work->loops->sweep_rows(&work->binary, &sweep);
        return;
    }
    int64_t rest = tile->rows % work->folded_rows;
    sweep.rows = tile->rows / work->folded_rows;
    sweep.width = work->folded_rows * tile->columns;
    sweep.stride = work->folded_rows * work->row.g;
    work->loops->sweep_columns(&work->binary, &sweep);
    if (rest == 0)
        return;
    int64_t at = tile->g + sweep.rows * sweep.stride;
    sweep.g = element(work, work->g, at);
    sweep.x = work->needs_values ? element(work, full, at) : NULL;
    sweep.grad_x = element(work, work->full, at);
    sweep.rows = 1;
    sweep.width = rest * tile->columns;
    work->loops->sweep_columns(&work->binary, &sweep);
}

/* An operand's values over a tile, of which the next one often has the same. */
struct spread {
    int64_t at, n; /* of the operand, and elements of the tile; 0: none yet */
    bool is_inverse;
    const float *x;
    float room[2][CPU_BLOCK + CPU_LANES];
};

/* Elements of dim i of a tile. */
static int64_t tile_count(const struct binary_work *work, int i, int64_t rows,
                          int64_t columns)
{
    if (i == 0)
        return rows;
    return work->n_tile_dims == 2 ? columns : work->tile_dim[i].size;
}

/* Its own dims follow each other in memory; from the innermost on, runs of
 * elements are repeated for each dim that it has not. */
static const float *spread_over(const struct binary_work *work,
                                const struct tile *tile, int32_t side,
                                struct spread *spread)
{
    const bool is_a = side == BINARY_IN_A;
    const int64_t at = is_a ? tile->a : tile->b;
    int64_t n = tile->rows * tile->columns, run = 1, own = 1;
    if (spread->n == n && spread->at == at)
        return spread->x;
    for (int i = 0; i < work->n_tile_dims; i++)
        if (work->tile_dim[i].in & side)
            own *= tile_count(work, i, tile->rows, tile->columns);
    float *x = spread->room[0], *next = spread->room[1];
    work->rows->widen(work->binary.dtype, x,
                      element(work, is_a ? work->a : work->b, at), own);
    spread->is_inverse = work->binary.function == BINARY_DIV && !is_a &&
                         (own < n || !work->binary.sums_a) &&
                         work->sums->invert(x, own, !work->binary.sums_a);
    for (int i = work->n_tile_dims - 1; i >= 0; i--) {
        const int64_t count = tile_count(work, i, tile->rows, tile->columns);
        if (work->tile_dim[i].in & side) {
            own /= count;
        } else if (count > 1) {
            work->sums->repeat(next, x, own, count, run);
            float *const last = x;
            x = next;
            next = last;
        }
        run *= count;
    }
    spread->at = at;
    spread->n = n;
    spread->x = x;
    return x;
}

/* Adds the terms of a tile in which both operands are broadcast. */
static void add_tile(const struct binary_work *work, const struct tile *tile,
                     float *term, bool is_begun, struct spread spread[2])
{
    struct cpu_binary binary = work->binary;
    const float *a = NULL, *b = NULL;
    const bool sums_a = work->binary.sums_a; /* whose terms have no a */
    if (work->needs_values && !sums_a)
        a = spread_over(work, tile, BINARY_IN_A, &spread[0]);
    if (work->needs_values && (sums_a || binary.function == BINARY_DIV)) {
        b = spread_over(work, tile, BINARY_IN_B, &spread[1]);
        binary.is_inverse = spread[1].is_inverse;
    }
    work->sums->add_terms(&binary, term, is_begun,
                          element(work, work->g, tile->g), a, b,
                          tile->rows * tile->columns);
}

/* n values of a or b, so far apart, or the inverses of a divisor's. */
static const float *values_at(const struct binary_work *work, bool is_b,
                              int64_t at, int64_t n, int64_t apart,
                              struct spread *spread)
{
    const struct roped_tensor *of = is_b ? work->b : work->a;
    float *x = spread->room[0];
    if (spread->n == n && spread->at == at)
        return x;
    const int64_t run = apart == 1 ? n : 1;
    for (int64_t i = 0; i < n; i += run)
        work->rows->widen(work->binary.dtype, x + i,
                          element(work, of, at + i * apart), run);
    spread->is_inverse = work->binary.function == BINARY_DIV && is_b &&
                         work->sums->invert(x, n, !work->binary.sums_a);
    spread->at = at;
    spread->n = n;
    return x;
}

/* Adds the terms of a tile of wide rows to the sums of rows or columns. */
static void add_wide(const struct binary_work *work, const struct tile *tile,
                     double *sum, bool is_begun, struct spread spread[2])
{
    struct cpu_binary binary = work->binary;
    const bool sums_a = binary.sums_a, divides = binary.function == BINARY_DIV;
    const int64_t at = sums_a ? tile->b : tile->a;
    struct cpu_wide wide = {
        .g = element(work, work->g, tile->g),
        .rows = tile->rows,
        .width = tile->columns,
        .stride = work->row.g,
        .x_stride = sums_a ? work->row.b : work->row.a,
        .sum = sum,
        .is_begun = is_begun,
    };
    if (work->needs_values) {
        const bool has_columns = (sums_a ? work->column.b : work->column.a) > 0;
        if (!has_columns)
            wide.values = values_at(work, sums_a, at, tile->rows, wide.x_stride,
                                    &spread[sums_a]);
        else if (divides && sums_a && wide.x_stride == 0)
            wide.values =
                values_at(work, sums_a, at, tile->columns, 1, &spread[sums_a]);
        else
            wide.x = element(work, sums_a ? work->b : work->a, at);
        if (divides && !sums_a)
            wide.y = values_at(work, true, tile->b,
                               work->sums_columns ? tile->rows : tile->columns,
                               1, &spread[1]);
        binary.is_inverse =
            (wide.y || (sums_a && wide.values)) && spread[1].is_inverse;
    }
    if (work->sums_columns)
        work->sums->wide_rows(&binary, &wide);
    else
        work->sums->wide_columns(&binary, &wide);
}

/* Adds the terms of a few steps, and of n_sums sums. */
static void add_steps(const struct binary_work *work, int64_t task,
                      int64_t begin, int64_t end, float *term, int64_t n_sums,
                      struct spread spread[2])
{
    bool is_begun = false;
    for (int64_t step = begin; step < end; step++) {
        const struct tile tile = tile_at(work, task, step);
        if (!is_begun && tile.rows * tile.columns < n_sums) {
            memset(term, 0, (size_t)n_sums * sizeof *term);
            is_begun = true;
        }
        add_tile(work, &tile, term, is_begun, spread);
        is_begun = true;
    }
}

/* ------------------------------------------------------------------ tasks */

/* How many sums a task makes: one per row, or one per element of a tile, whose
 * summed dims are folded at the end; the first tile may have fewer than later
 * ones. */
static int64_t sums_of_task(const struct binary_work *work,
                            const struct tile *first)
{
    const int64_t rows = work->sums_rows ? work->folded_rows : first->rows;
    if (work->sums_columns)
        return work->full || work->is_wide ? first->rows
                                           : rows * work->tile_columns;
    return rows * first->columns;
}

/* Adds up those that are of one element of the gradient; returns of how many
 * they are. Where there is term, the sums are there as yet. */
static int64_t fold_sums(const struct binary_work *work,
                         const struct tile *first, double *sum,
                         const float *term)
{
    const int64_t rows = work->sums_rows ? work->folded_rows : first->rows;
    int64_t n = sums_of_task(work, first), inner = 1;
    if (work->full && work->sums_rows) {
        work->sums->fold(sum, 1, rows, first->columns);
        return first->columns;
    }
    for (int i = work->n_tile_dims - 1; i >= 0; i--) {
        const int64_t count = tile_count(work, i, rows,
                                         work->sums_columns ? work->tile_columns
                                                            : first->columns);
        if (work->tile_dim[i].in & work->sum_side) {
            inner *= count;
        } else if (count > 1) {
            const int64_t outer = n / inner / count;
            if (term)
                work->sums->fold_floats(sum, term, outer, count, inner);
            else
                work->sums->fold(sum, outer, count, inner);
            term = NULL;
            n /= count;
        }
    }
    if (term)
        work->sums->add_floats(sum, false, term, n);
    return n;
}

/* Rounds n sums into the gradient. */
static void store_sums(const struct binary_work *work, int64_t at,
                       const double *sum, int64_t n)
{
    float values[CPU_BINARY_SUMS];
    work->sums->round_sums(values, sum, n);
    const struct cpu_conversion how = {ROPED_F32, work->binary.dtype, 1, false};
    work->rows->convert(&how, element(work, work->sum, at), values, n);
}

static void run_task(const struct binary_work *work, int64_t task,
                     int64_t segment, struct spread spread[2])
{
    double sum[CPU_BINARY_SUMS];
    float buffer[CPU_BINARY_SUMS + CPU_LANES];
    const float *term = NULL;
    int64_t begin = segment * work->steps_per_segment;
    int64_t end = cpu_smaller(begin + work->steps_per_segment, work->n_steps);
    struct tile first = tile_at(work, task, begin);
    const int64_t n_sums = sums_of_task(work, &first);
    if (work->full) {
        const float *y = task_values(work, &first, buffer);
        memset(sum, 0, (size_t)n_sums * sizeof *sum);
        for (int64_t step = begin; step < end; step++) {
            struct tile tile = tile_at(work, task, step);
            sweep_tile(work, &tile, y, sum);
        }
    } else if (work->is_wide) {
        for (int64_t step = begin; step < end; step++) {
            struct tile tile = tile_at(work, task, step);
            add_wide(work, &tile, sum, step > begin, spread);
        }
    } else if (end - begin <= STEPS_PER_DOUBLE) {
        add_steps(work, task, begin, end, buffer, n_sums, spread);
        term = buffer;
    } else {
        for (int64_t step = begin; step < end; step += STEPS_PER_DOUBLE) {
            add_steps(work, task, step,
                      cpu_smaller(step + STEPS_PER_DOUBLE, end), buffer, n_sums,
                      spread);
            work->sums->add_floats(sum, step > begin, buffer, n_sums);
        }
    }
    int64_t n = fold_sums(work, &first, sum, term);
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
    struct spread spread[2];
    spread[0].n = spread[1].n = 0;
    for (int64_t i = begin; i < end; i++)
        run_task(work, i % work->n_tasks, i / work->n_tasks, spread);
}

/* Blocks of the gradient: the sums of all segments, in their order. */
static void add_segments(void *context, int64_t begin, int64_t end)
{
    const struct binary_work *work = context;
    int64_t n_sums = roped_tensor_elements(work->sum);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * CPU_BLOCK;
        int64_t n = cpu_smaller(CPU_BLOCK, n_sums - at);
        double *sum = work->partial + at;
        for (int64_t segment = 1; segment < work->n_segments; segment++)
            for (int64_t i = 0; i < n; i++)
                sum[i] += sum[segment * n_sums + i];
        store_sums(work, at, sum, n);
    }
}

/* ----------------------------------------------------------------- layout */

/* Each dim of the collapsed shape as a loop over its elements. */
static void dim_loops(const struct binary_plan *plan, int32_t sum_side,
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
    return (struct tile_loop){.count = cpu_ceil_div(dim->count, block),
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

/*
 * Columns first, then as many rows as there is room for. Room is CPU_BLOCK
 * where values are widened into buffers. The loops of a sweep have no buffers:
 * rows whose columns are summed are folded until they fill the sums, or, where
 * they are narrow, a part of the first-level cache; and many such folds make a
 * tile.
 */
static void size_tiles(struct binary_work *work)
{
    int64_t columns = work->column.count, rows = work->row.count;
    int64_t room = !work->full          ? CPU_BLOCK
                   : work->sums_columns ? SWEEP_BLOCK
                                        : CPU_BINARY_SUMS;
    int64_t most_rows = work->sums_columns ? CPU_BLOCK : room;
    work->tile_columns = cpu_smaller(columns, room);
    work->tile_rows = cpu_smaller(rows, room / work->tile_columns);
    work->tile_rows = cpu_smaller(work->tile_rows, most_rows);
    if (work->is_wide) {
        const int64_t most = WIDE_TILE / work->tile_columns / 8 * 8;
        work->tile_rows = cpu_smaller(rows, most > 8 ? most : 8);
    }
    work->folded_rows = work->is_wide ? 1 : work->tile_rows;
    if (work->full && work->sums_rows && columns < FOLDED / 2)
        work->folded_rows = cpu_smaller(work->tile_rows, FOLDED / columns);
    if (work->full && work->sums_rows)
        work->tile_rows = cpu_smaller(rows, work->folded_rows * FOLDS_PER_TILE);
}

/* Columns are as many dims as a tile has room for; returns that of the rows,
 * outer or one before it. */
static int join_columns(struct binary_work *work,
                        const struct binary_plan *plan, int outer)
{
    int64_t columns = work->column.count;
    int row = outer;
    while (row > 0 && columns * plan->dim[row].size <= CPU_BLOCK)
        columns *= plan->dim[row--].size;
    if (row < outer) {
        work->column = (struct tile_loop){.count = columns};
        work->sums_columns = false; /* no steps: a tile has all of them */
    }
    work->tile_dim = &plan->dim[row];
    work->n_tile_dims = plan->rank - row;
    return row;
}

/* Is a loop over each row of the innermost dim worth while? Where columns have
 * sums of their own, rows become those of a dim that is summed. */
static bool has_wide_rows(const struct binary_work *work,
                          const struct binary_plan *plan, int *row)
{
    int summed = *row;
    if (work->sums_columns)
        return work->column.count >= WIDE;
    while (plan->dim[summed].in & work->sum_side)
        summed--;
    if (work->column.count < (summed == *row ? WIDE : WIDE_APART))
        return false;
    *row = summed;
    return true;
}

static void cut_tasks(struct binary_work *work, const struct binary_plan *plan)
{
    struct tile_loop dim[ROPED_MAX_RANK] = {{0}};
    const struct tile_loop one = {.count = 1};
    const int inner = plan->rank - 1;
    dim_loops(plan, work->sum_side, dim);
    work->column = inner >= 0 ? dim[inner] : one;
    work->sums_columns = inner >= 0 && !(plan->dim[inner].in & work->sum_side);
    work->n_tile_dims = 0;
    int row = inner - 1, end = row; /* of dims that are loops over tiles */
    work->is_wide = !work->full && has_wide_rows(work, plan, &row);
    if (!work->full && !work->is_wide)
        end = row = join_columns(work, plan, row);
    work->row = row >= 0 ? dim[row] : one;
    work->sums_rows = row >= 0 && !(plan->dim[row].in & work->sum_side);
    size_tiles(work);
    work->n_task_loops = work->n_step_loops = 0;
    work->n_tasks = work->n_steps = 1;
    for (int i = 0; i <= end; i++)
        if (i != row)
            add_loop(work, dim[i], !(plan->dim[i].in & work->sum_side));
    work->row_loop =
        add_loop(work, blocks_of(&work->row, work->tile_rows), work->sums_rows);
    work->column_loop = add_loop(
        work, blocks_of(&work->column, work->tile_columns), work->sums_columns);
}

static void cut_segments(struct binary_work *work, int64_t n)
{
    int64_t most = cpu_smaller(TARGET_TASKS / work->n_tasks,
                               n / work->n_tasks / MIN_SEGMENT_ELEMENTS);
    int64_t n_segments = most > 1 ? cpu_smaller(most, work->n_steps) : 1;
    work->steps_per_segment = cpu_ceil_div(work->n_steps, n_segments);
    work->n_segments = cpu_ceil_div(work->n_steps, work->steps_per_segment);
}

/* --------------------------------------------------------------- launches */

/* Sums one operand's gradient; writes the other's where work->full is set. */
static enum roped_status sum_gradient(struct binary_work *work,
                                      const struct binary_plan *plan,
                                      int64_t bytes, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int64_t n_sums = roped_tensor_elements(work->sum);
    void *scratch = NULL;
    cut_tasks(work, plan);
    cut_segments(work, plan->n);
    int64_t partial_bytes =
        work->n_segments * n_sums * (int64_t)sizeof *work->partial;
    if (work->n_segments > 1) {
        enum roped_status status =
            cpu_scratch(queue, (size_t)partial_bytes, &scratch, err);
        if (status)
            return status;
    }
    work->partial = scratch;
    cpu_for(queue, bytes, work->n_tasks * work->n_segments, run_tasks, work);
    if (work->partial)
        cpu_for(queue, partial_bytes, cpu_ceil_div(n_sums, CPU_BLOCK),
                add_segments, work);
    return ROPED_OK;
}

/* Blocks of a call without broadcasting. */
static void write_blocks(void *context, int64_t begin, int64_t end)
{
    const struct binary_work *work = context;
    int64_t at = begin * SWEEP_BLOCK;
    int64_t n =
        cpu_smaller(end * SWEEP_BLOCK, roped_tensor_elements(work->g)) - at;
    const struct cpu_elements elements = {
        .g = element(work, work->g, at),
        .a = work->needs_values ? element(work, work->a, at) : NULL,
        .b = work->needs_values ? element(work, work->b, at) : NULL,
        .grad_a = element(work, work->full, at),
        .grad_b = element(work, work->sum, at),
        .n = n};
    work->loops->elementwise(&work->binary, &elements);
}

static void clear(const struct roped_tensor *gradient)
{
    if (roped_tensor_bytes(gradient) > 0)
        memset(gradient->data, 0, (size_t)roped_tensor_bytes(gradient));
}

/* Is there a dim that the operand of this side is not in? */
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
    bool sums_a = is_broadcast(plan, BINARY_IN_A);
    bool sums_b = is_broadcast(plan, BINARY_IN_B);
    int64_t bytes = roped_call_bytes(call);
    struct binary_work work = {
        .rows = queue->backend->rows,
        .loops = queue->backend->rows->binary,
        .sums = queue->backend->rows->binary->sums,
        .binary = {.function = plan->function,
                   .dtype = call->in[BINARY_GRAD_OUTPUT].dtype,
                   .is_streamed = cpu_is_large(queue, bytes)},
        .needs_values = binary_needs_values(plan->function),
        .g = &call->in[BINARY_GRAD_OUTPUT],
        .a = &call->in[BINARY_A],
        .b = &call->in[BINARY_B],
        .full = sums_a ? NULL : grad_a,
        .sum = grad_b,
        .sum_side = BINARY_IN_B,
    };
    if (plan->n == 0) {
        clear(grad_a);
        clear(grad_b);
        return ROPED_OK;
    }
    if (!sums_a && !sums_b) {
        cpu_for(queue, bytes, cpu_ceil_div(plan->n, SWEEP_BLOCK), write_blocks,
                &work);
        return ROPED_OK;
    }
    if (sums_b) {
        enum roped_status status = sum_gradient(&work, plan, bytes, queue, err);
        if (status || !sums_a)
            return status;
    }
    work.binary.sums_a = true;
    work.full = sums_b ? NULL : grad_b;
    work.sum = grad_a;
    work.sum_side = BINARY_IN_A;
    return sum_gradient(&work, plan, bytes, queue, err);
}
