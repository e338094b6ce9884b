/*
 * norm.c - rows over threads; a row is read once from memory for its sum and
 * again, from the cache, for its result.
 */
#include "cpu/norm.h"

#include "cpu/codes.h"

struct norm_loop {
    const struct cpu_rows *rows;
    const struct cpu_norm_call *call;
    struct cpu_norm norm;
    struct cpu_fp8_scale scale; /* dynamic */
    struct code_target codes;   /* where y has other codes than FP8 */

    /* Where sums are more than x + residual, or become codes: rows in segments,
     * each with room for the sums of a batch where those that are stored are
     * not read again. */
    bool has_terms;
    struct cpu_sum sum;
    int64_t n_segments;
    void *kept;   /* or NULL */
    void *stored; /* or NULL: norms that are rounded as if they were stored,
                     room for those of a batch */
    float *gain;  /* weights, where has_codes or is_scaled, or NULL */
};

/*
 * Rows are read for their sums and again, from the second-level cache, to be
 * written: several at a time, because the weights are prepared once for all of
 * them. Four at least, while that cache has room for them.
 */
static int64_t rows_per_batch(int64_t row_bytes)
{
    enum { ENOUGH = 64 << 10, SECOND_LEVEL = 128 << 10, FEW = 4 };
    int64_t n = ENOUGH / row_bytes;
    if (n < FEW)
        n = SECOND_LEVEL / row_bytes < FEW ? SECOND_LEVEL / row_bytes : FEW;
    return n < 1 ? 1 : n < CPU_ROWS ? n : CPU_ROWS;
}

static bool has_groups(const struct rmsnorm_quantize_plan *plan)
{
    return plan && plan->quantize.dynamic && plan->quantize.tiles.n_tiles > 1;
}

/* Are codes those of rounded norms? */
static bool is_stored(const struct cpu_norm_call *call)
{
    return call->quantize && call->plan->rounding == RMSNORM_ROUND_TYPE &&
           call->x->dtype != ROPED_F32;
}

/* Are rows scaled by their largest norms, which are kept for their codes?
 * Floats are read again as fast as they would be kept, and a single row has no
 * weights that others share. */
static bool is_scaled(const struct cpu_norm_call *call, enum roped_dtype from)
{
    return from != ROPED_F32 && call->quantize && call->quantize->is_fp8 &&
           call->quantize->quantize.dynamic && !is_stored(call) &&
           call->quantize->quantize.tiles.n_tiles == 1 &&
           call->plan->n_rows > 1 && call->plan->hidden <= CPU_KEPT;
}

/* Of codes that no loop of the norm's own makes. */
static bool has_codes(const struct cpu_norm_call *call)
{
    return call->quantize && !call->quantize->is_fp8 && !is_stored(call);
}

/* Of codes that may be made of words, in groups that divide rows: the weights
 * have the order of rows then. */
static bool has_words(const struct cpu_norm_call *call)
{
    return has_codes(call) &&
           call->quantize->quantize.rule.scale == CODE_SCALE_E8M0;
}

/* The scales of whole rows, given or dynamic. */
static void scale_rows(const struct norm_loop *loop,
                       const struct cpu_norm_rows *rows, float *scales,
                       float *divisor)
{
    const struct rmsnorm_quantize_plan *plan = loop->call->quantize;
    if (!plan->quantize.dynamic) {
        for (int64_t i = 0; i < rows->n; i++)
            divisor[i] = plan->quantize.dequant_scale;
        return;
    }
    loop->rows->largest(&loop->norm, rows, divisor);
    for (int64_t i = 0; i < rows->n; i++)
        divisor[i] = scales[i] = cpu_fp8_scale_of(&loop->scale, divisor[i]);
}

/* Rows whose s is known, as a source of codes. */
struct normal_rows {
    const struct norm_loop *loop;
    const struct cpu_norm_rows *rows;
    int64_t row; /* of the first one */
    enum roped_dtype from;
};

static const void *element_of(enum roped_dtype dtype, const void *row,
                              int64_t i)
{
    return (const unsigned char *)row + (size_t)i * roped_dtype_bytes(dtype);
}

static struct cpu_normal normal_of(const struct normal_rows *from, int64_t row)
{
    const struct cpu_norm *norm = &from->loop->norm;
    return (struct cpu_normal){.from = from->from,
                               .type = norm->rounds_product ? norm->type
                                                            : ROPED_F32,
                               .rounds_product = norm->rounds_product,
                               .s = from->rows->s[row - from->row],
                               .in_order = has_words(from->loop->call),
                               /* of the next batch */
                               .ahead = from->rows->n * from->rows->stride.x *
                                        (int64_t)roped_dtype_bytes(from->from)};
}

static const void *normal_at(const struct normal_rows *from, int64_t row,
                             int64_t first)
{
    return element_of(from->from, from->rows->x,
                      (row - from->row) * from->rows->stride.x + first);
}

static void load_normal(const void *of, int64_t row, int64_t first, int64_t n,
                        float *to)
{
    const struct normal_rows *from = of;
    const struct cpu_normal how = normal_of(from, row);
    from->loop->rows->normal(&how, to, normal_at(from, row, first),
                             from->loop->gain + first, n);
}

static void load_normal_words(const void *of, int64_t row, int64_t first,
                              int64_t n, uint16_t *to)
{
    const struct normal_rows *from = of;
    const struct cpu_normal how = normal_of(from, row);
    from->loop->rows->normal_words(&how, to, normal_at(from, row, first),
                                   from->loop->gain + first, n);
}

static void code_batch(const struct norm_loop *loop, int64_t row,
                       const struct cpu_norm_rows *rows,
                       struct cpu_nibble_tables *tables)
{
    const struct normal_rows from = {
        loop, rows, row, loop->kept ? loop->sum.kept_dtype : loop->norm.type};
    const struct code_source source = {
        .load = load_normal, .of = &from, .load_words = load_normal_words};
    code_quantize_rows(loop->rows, &loop->codes, &source, row, row + rows->n,
                       tables);
}

/* Rounded norms of a batch, as a source of codes. */
struct stored_rows {
    const struct cpu_rows *rows;
    const struct roped_tensor *x;
    int64_t row, width;
};

static void load_stored(const void *of, int64_t row, int64_t first, int64_t n,
                        float *to)
{
    const struct stored_rows *from = of;
    const enum roped_dtype dtype = from->x->dtype;
    from->rows->widen(dtype, to,
                      element_of(dtype, from->x->data,
                                 (row - from->row) * from->width + first),
                      n);
}

static void store_batch(const struct norm_loop *loop, int64_t row,
                        const struct cpu_norm_rows *rows, void *stored,
                        struct cpu_nibble_tables *tables)
{
    const int64_t width = loop->norm.width;
    const struct roped_tensor x = {.dtype = loop->norm.type, .data = stored};
    const struct stored_rows from = {loop->rows, &x, row, width};
    const struct code_source source = {load_stored, &from, &x, row};
    struct cpu_norm norm = loop->norm;
    struct cpu_norm_rows own = *rows;
    norm.to = norm.type;
    norm.is_streamed = false;
    own.y = stored;
    own.stride.y = width;
    loop->rows->normalize(&norm, &own);
    code_quantize_rows(loop->rows, &loop->codes, &source, row, row + rows->n,
                       tables);
}

static void normalize_batch(const struct norm_loop *loop, int64_t row,
                            const struct cpu_norm_rows *rows, void *stored,
                            struct cpu_nibble_tables *tables)
{
    const struct cpu_norm_call *call = loop->call;
    const struct rmsnorm_quantize_plan *plan = call->quantize;
    struct cpu_norm_rows divided = *rows;
    float divisor[CPU_ROWS];
    if (stored) {
        store_batch(loop, row, rows, stored, tables);
        return;
    }
    if (has_codes(call)) {
        code_batch(loop, row, rows, tables);
        return;
    }
    float *const scales = plan ? call->scales->data : NULL;
    if (has_groups(plan)) {
        const struct code_tiles *tiles = &plan->quantize.tiles;
        struct cpu_scales of_rows = {scales + row * tiles->scale_row,
                                     tiles->scale_row, tiles->scale_tile};
        loop->rows->normalize_groups(&loop->norm, rows, tiles->tile_width,
                                     &loop->scale, &of_rows);
        return;
    }
    if (loop->gain) {
        loop->rows->normalize_scaled(&loop->norm, rows, loop->gain,
                                     &loop->scale, scales + row);
        return;
    }
    if (plan) {
        scale_rows(loop, rows, scales ? scales + row : NULL, divisor);
        divided.divisor = divisor;
    }
    loop->rows->normalize(&loop->norm, &divided);
}

static int64_t stride_of(const struct norm_loop *loop,
                         const struct roped_tensor *tensor)
{
    return tensor ? cpu_stride(tensor, loop->norm.width) : 0;
}

/* Row of a tensor like x, or NULL where there is none. */
static void *row_of(const struct norm_loop *loop,
                    const struct roped_tensor *tensor, int64_t row)
{
    if (!tensor)
        return NULL;
    return cpu_at(tensor->data, row * stride_of(loop, tensor),
                  roped_dtype_bytes(tensor->dtype));
}

/* The norm of a rounded sum is that of what is stored of it. */
static void store_sums(const struct norm_loop *loop, struct cpu_norm_rows *rows)
{
    loop->rows->add(loop->norm.from, loop->norm.width, rows, false);
    rows->x = rows->sum;
    rows->stride.x = rows->stride.sum;
    rows->residual = NULL;
}

/* The same of sums that are more than x + residual, and of what kept has room
 * for where that is not what is stored. */
static void add_terms(const struct norm_loop *loop, int64_t row, void *kept,
                      struct cpu_norm_rows *rows)
{
    const struct cpu_norm_call *call = loop->call;
    const int64_t width = loop->norm.width;
    const size_t bytes = kept ? roped_dtype_bytes(loop->sum.kept_dtype) : 0;
    for (int64_t i = 0; i < rows->n; i++) {
        const struct cpu_terms terms = {
            .x = row_of(loop, call->x, row + i),
            .residual = row_of(loop, call->residual, row + i),
            .addend = row_of(loop, call->addend, row + i),
            .sum = row_of(loop, call->residual_out, row + i),
            .kept = kept ? cpu_at(kept, i * width, bytes) : NULL};
        loop->rows->sum(&loop->sum, &terms, width);
    }
    rows->x = kept ? kept : rows->sum;
    rows->stride.x = kept ? width : rows->stride.sum;
    rows->residual = NULL;
}

static int64_t batch_of(const struct norm_loop *loop)
{
    int64_t bytes =
        loop->norm.width * (int64_t)roped_dtype_bytes(loop->norm.from);
    return rows_per_batch(loop->call->residual ? 2 * bytes : bytes);
}

static void normalize_batches(const struct norm_loop *loop, int64_t begin,
                              int64_t end, void *kept, void *stored,
                              struct cpu_nibble_tables *tables)
{
    const struct cpu_norm_call *call = loop->call;
    const struct cpu_norm *norm = &loop->norm;
    const int64_t batch = batch_of(loop);
    struct cpu_mean mean[CPU_ROWS];
    float s[CPU_ROWS];
    for (int64_t row = begin; row < end; row += batch) {
        struct cpu_norm_rows rows = {
            .n = cpu_smaller(end - row, batch),
            .head = norm->n_heads ? row % norm->n_heads : 0,
            .stride = {.x = stride_of(loop, call->x),
                       .residual = stride_of(loop, call->residual),
                       .sum = stride_of(loop, call->residual_out),
                       .y = stride_of(loop, call->y)},
            .x = row_of(loop, call->x, row),
            .residual = row_of(loop, call->residual, row),
            .sum = row_of(loop, call->residual_out, row),
            .y = row_of(loop, call->y, row),
            .mean = call->is_centred ? mean : NULL,
            .s = s,
        };
        if (loop->has_terms)
            add_terms(loop, row, kept, &rows);
        else if (call->residual && call->plan->rounds_sum)
            store_sums(loop, &rows);
        if (call->is_centred)
            loop->rows->inverse_deviation(norm->from, norm->width, &rows,
                                          call->plan->eps, s, mean);
        else
            loop->rows->inverse_rms(norm->from, norm->width, &rows,
                                    call->plan->eps, s);
        if (call->added) {
            rows.residual = row_of(loop, call->added, row);
            rows.stride.residual = stride_of(loop, call->added);
        }
        normalize_batch(loop, row, &rows, stored, tables);
    }
}

static void normalize_rows(void *context, int64_t begin, int64_t end)
{
    normalize_batches(context, begin, end, NULL, NULL, NULL);
}

static void normalize_segments(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    const int64_t n_rows = loop->call->plan->n_rows;
    const int64_t rows = cpu_ceil_div(n_rows, loop->n_segments);
    const int64_t room = batch_of(loop) * loop->norm.width;
    const size_t bytes = roped_dtype_bytes(loop->sum.kept_dtype),
                 stored = roped_dtype_bytes(loop->norm.type);
    struct cpu_nibble_tables tables;
    code_forget_scales(&tables);
    for (int64_t i = begin; i < end; i++)
        normalize_batches(
            loop, i * rows, cpu_smaller(n_rows, (i + 1) * rows),
            loop->kept ? cpu_at(loop->kept, i * room, bytes) : NULL,
            loop->stored ? cpu_at(loop->stored, i * room, stored) : NULL,
            &tables);
}

static bool is_in_place(const struct cpu_norm_call *call)
{
    const struct roped_tensor *outs[] = {call->y, call->residual_out};
    const struct roped_tensor *ins[] = {call->x, call->residual, call->added};
    for (int out = 0; out < 2; out++)
        for (int in = 0; in < 3; in++)
            if (outs[out] && ins[in] && outs[out]->data == ins[in]->data)
                return true;
    return false;
}

static struct cpu_norm norm_of(const struct cpu_norm_call *call, bool is_large)
{
    const struct rmsnorm_plan *plan = call->plan;
    return (struct cpu_norm){
        .width = plan->hidden,
        .from = call->x->dtype,
        .type = call->x->dtype,
        .to = call->y->dtype,
        .weight_dtype = (enum roped_dtype)plan->weight_dtype,
        .weight = call->weight->data,
        .bias = plan->weight_bias,
        .shift_dtype = call->bias ? call->bias->dtype : ROPED_NO_DTYPE,
        .shift = call->bias ? call->bias->data : NULL,
        .rounds_product = plan->rounding != RMSNORM_ROUND_ONCE,
        .is_added = call->added != NULL,
        .rounds_norm = call->rounds_norm,
        .is_streamed = is_large && !is_in_place(call),
        .n_heads = call->n_heads,
    };
}

static struct norm_loop loop_of(const struct cpu_norm_call *norm,
                                const struct roped_call *call,
                                const struct roped_queue *queue)
{
    bool is_large = cpu_is_large(queue, roped_call_bytes(call));
    struct norm_loop loop = {.rows = queue->backend->rows,
                             .call = norm,
                             .norm = norm_of(norm, is_large)};
    const struct quantize_plan *codes =
        norm->quantize ? &norm->quantize->quantize : NULL;
    if (!codes)
        return loop;
    if (codes->dynamic)
        code_clear_padding(&codes->tiles, norm->scales);
    loop.scale = (struct cpu_fp8_scale){
        codes->rule.scale_ub, codes->rule.largest, codes->rule.least_scale};
    loop.codes = (struct code_target){codes, norm->y, norm->scales, is_large};
    return loop;
}

void cpu_norm_rows(const struct cpu_norm_call *norm,
                   const struct roped_call *call, struct roped_queue *queue)
{
    struct norm_loop loop = loop_of(norm, call, queue);
    cpu_for(queue, roped_call_bytes(call), norm->plan->n_rows, normalize_rows,
            &loop);
}

/* Weights and shifts of all heads: of rows each needs others than the one
 * before. */
static void fill_heads(struct norm_loop *loop, float *weight)
{
    const struct cpu_rows *rows = loop->rows;
    struct cpu_norm *norm = &loop->norm;
    float *const shift =
        loop->call->is_centred ? weight + norm->n_heads * norm->room : NULL;
    const enum roped_dtype dtype = norm->shift_dtype;
    for (int64_t head = 0; head < norm->n_heads; head++) {
        const int64_t to = head * norm->room, from = head * norm->width;
        rows->fill_weight(norm->from, norm->weight_dtype, weight + to,
                          cpu_at((void *)(uintptr_t)norm->weight, from,
                                 roped_dtype_bytes(norm->weight_dtype)),
                          norm->bias, norm->width);
        if (shift) /* none is a weight of 1, less 1 */
            rows->fill_weight(norm->from, dtype, shift + to,
                              cpu_at((void *)(uintptr_t)norm->shift, from,
                                     roped_dtype_bytes(dtype)),
                              dtype ? 0 : -1, norm->width);
    }
    norm->head_weight = weight;
    norm->head_shift = shift;
}

/* Weights of codes and heads, and sums that nothing else keeps: exact ones are
 * floats, and one that is returned in F32 may be normalised in the type of x.
 */
static enum roped_status take_scratch(struct norm_loop *loop, bool keeps,
                                      struct roped_queue *queue,
                                      struct roped_error *err)
{
    struct cpu_norm *norm = &loop->norm;
    const enum roped_dtype dtype =
        loop->call->plan->rounds_sum ? loop->sum.dtype : ROPED_F32;
    norm->room = cpu_ceil_div(norm->width, CPU_LANES) * CPU_LANES;
    const int64_t gains =
        norm->n_heads ? norm->n_heads * 2 * norm->room : norm->room;
    loop->sum.kept_dtype = dtype;
    if (keeps && loop->has_terms)
        loop->norm.from = dtype;
    const size_t n = (size_t)(loop->n_segments * batch_of(loop) * norm->width);
    const size_t kept = keeps ? n * roped_dtype_bytes(dtype) : 0;
    const bool stores = is_stored(loop->call);
    void *scratch;
    enum roped_status status =
        cpu_scratch(queue,
                    (size_t)gains * sizeof(float) + kept +
                        (stores ? n * roped_dtype_bytes(norm->type) : 0),
                    &scratch, err);
    if (status)
        return status;
    loop->gain = scratch;
    loop->kept = keeps ? loop->gain + gains : NULL;
    loop->stored = stores ? cpu_at(loop->gain + gains, (int64_t)kept, 1) : NULL;
    const bool is_ordered =
        has_words(loop->call) || is_scaled(loop->call, norm->from);
    if (norm->n_heads)
        fill_heads(loop, loop->gain);
    if (has_codes(loop->call) || is_ordered)
        loop->rows->fill_weight(is_ordered ? norm->from : ROPED_F32,
                                norm->weight_dtype, loop->gain, norm->weight,
                                norm->bias, norm->width);
    else
        loop->gain = NULL;
    return ROPED_OK;
}

enum roped_status cpu_norm_sums(const struct cpu_norm_call *norm,
                                const struct roped_call *call,
                                struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct rmsnorm_plan *plan = norm->plan;
    const bool is_sum = norm->residual != NULL;
    const enum roped_dtype dtype = norm->x->dtype,
                           residual_dtype =
                               is_sum ? norm->residual->dtype : dtype;
    const bool has_terms =
        is_sum && (plan->has_scales || residual_dtype != dtype ||
                   norm->quantize || roped_tensor_given(norm->addend));
    if (!has_terms && !has_codes(norm) && !is_stored(norm) &&
        !is_scaled(norm, dtype) && !norm->n_heads) {
        cpu_norm_rows(norm, call, queue);
        return ROPED_OK;
    }
    struct norm_loop loop = loop_of(norm, call, queue);
    /* a streamed sum is not read again */
    const bool keeps =
        has_terms && (residual_dtype != dtype || loop.norm.is_streamed ||
                      (dtype != ROPED_F32 && !plan->rounds_sum));
    loop.has_terms = has_terms;
    loop.sum = (struct cpu_sum){.dtype = dtype,
                                .residual_dtype = residual_dtype,
                                .x_scale = plan->x_scale,
                                .residual_scale = plan->residual_scale,
                                .addend_scale = plan->addend_scale,
                                .sum_scale = plan->sum_scale,
                                .rounds = plan->rounds_sum,
                                .residual_first =
                                    plan->sum_order == RMSNORM_RESIDUAL_FIRST,
                                .is_streamed = loop.norm.is_streamed && keeps};
    loop.n_segments = cpu_segments(queue, plan->n_rows);
    enum roped_status status = take_scratch(&loop, keeps, queue, err);
    if (status)
        return status;
    cpu_for(queue, roped_call_bytes(call), loop.n_segments, normalize_segments,
            &loop);
    return ROPED_OK;
}

/* Rows of heads that lie one behind the other are rows of their own. */
static bool are_rows(const struct roped_tensor *tensor)
{
    return !tensor || !roped_tensor_given(tensor) || tensor->stride == 0 ||
           tensor->stride == tensor->dims[tensor->rank - 1];
}

enum roped_status cpu_norm_heads(const struct cpu_norm_call *norm,
                                 const struct heads_norm_plan *plan,
                                 const struct roped_call *call,
                                 struct roped_queue *queue,
                                 struct roped_error *err)
{
    struct rmsnorm_plan rows = plan->norm;
    struct cpu_norm_call one = *norm;
    const struct roped_tensor **const of[] = {
        &one.x,      &one.y,      &one.residual, &one.residual_out,
        &one.addend, &one.weight, &one.bias};
    enum { N = sizeof of / sizeof *of, N_ROWS = N - 2 };
    struct roped_tensor part[N];
    enum roped_status status = ROPED_OK;
    bool is_packed = plan->heads > 1 && rows.hidden <= CPU_BLOCK;
    for (int i = 0; i < N_ROWS; i++)
        is_packed = is_packed && are_rows(*of[i]);
    if (is_packed) {
        one.plan = &rows;
        one.n_heads = plan->heads;
        for (int i = 0; i < N_ROWS; i++)
            if (*of[i]) {
                part[i] = **of[i];
                part[i].stride = 0;
                *of[i] = &part[i];
            }
        return cpu_norm_sums(&one, call, queue, err);
    }
    rows.n_rows /= plan->heads;
    for (int64_t head = 0; head < plan->heads && !status; head++) {
        one = *norm;
        one.plan = &rows;
        for (int i = 0; i < N; i++) {
            if (!*of[i])
                continue;
            part[i] = norm_head_of(*of[i], head, plan->heads);
            *of[i] = &part[i];
        }
        if (one.residual)
            status = cpu_norm_sums(&one, call, queue, err);
        else
            cpu_norm_rows(&one, call, queue);
    }
    return status;
}
