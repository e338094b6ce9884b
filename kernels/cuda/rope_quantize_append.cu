// rope_quantize_append.cu - rope_quantize_append on a CUDA device: rotate the rotary parts,
// multiply all parts by their scale, round to FP8; q to its outputs, k and v to their cells of the
// paged caches, in one launch.
//
// The grid has two kinds of blocks, as that of rope_quantize. The first columns rotate
// (device/append.cuh). The others convert what does not rotate (device/fp8_stream.cuh): q_nope as
// one stream, k_nope and v as rows of the caches. Every byte is read once and written once.
#include "cuda/fp8_parts.cuh"
#include "ops/rope_quantize_append.h"

enum { ROWS_K_NOPE, ROWS_V, ROW_STREAMS };

struct quantize_args {
    uint32_t rotate_columns; // blocks of grid.x that rotate
    int32_t is_e5m2;
    float scale[2];
    int32_t tile_vectors; // vectors, or tokens, per thread of a tile, at most kTileVectors
    uint32_t cell_width;  // of the cache of k_rope
    uint32_t token_bytes; // of q_rope's output
    uint8_t *to[2];       // q_rope; the cache of k_rope, less q_heads heads
    struct append_map map;
    struct rotate_args rotate;
    struct fp8_stream q_nope;
    struct row_stream rows[ROW_STREAMS];
};

enum {
    QUANTIZE_THREADS = 192,
    QUANTIZE_MIN_BLOCKS = 6, // as those of rope_append
    QUANTIZE_WIDE_ROWS = 2   // heads that a thread walks where units are wide
};

// ------------------------------------------------------------------------------------ rotation

// Writes FP8; what does not rotate is scaled and rounded all the same.
struct fp8_sink {
    static constexpr bool kMaySkip = true;
    uint8_t *to; // of the head; NULL: nowhere
    float scale;
    bool is_e5m2;

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return reinterpret_cast<char *>(to);
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *, int, int at, const float (&x)[n]) const
    {
        store_fp8(to + at, x, scale, is_e5m2);
    }
    template <typename T, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
        float x[kElementsOf<T, Word>];
        unpack<T>(word, x);
        store_fp8(to + at, x, scale, is_e5m2);
    }
};

// The heads of q_rope and k_rope.
template <typename T, int kUnit>
struct quantize_rows {
    struct row {
        const char *from;
        int head;
    };
    const quantize_args &args;

    __device__ __forceinline__ row row_of(uint32_t token, int head) const
    {
        bool is_k = head >= args.rotate.q_heads;
        uint32_t token_bytes = is_k ? args.rotate.token_bytes[1] : args.rotate.token_bytes[0];
        const char *from = is_k ? args.rotate.from[1] : args.rotate.from[0];
        return {from + (uint64_t)token * token_bytes + (int64_t)head * args.rotate.head_bytes,
                head};
    }
    __device__ __forceinline__ unit_place place_of(const row &, const unit_place &place, int) const
    {
        return place;
    }
    __device__ __forceinline__ void finish(const row &row, uint32_t token, int64_t cell,
                                           const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_words<T, kUnit> &words, bool is_kept) const
    {
        fp8_sink sink = {args.to[0], args.scale[0], args.is_e5m2 != 0};
        if (row.head < args.rotate.q_heads) { // a row of FP8 is as many elements as one of T
            sink.to += (uint64_t)token * args.token_bytes +
                       (int64_t)row.head * (args.rotate.head_bytes / (int)sizeof(T));
        } else {
            int64_t index = cell + row.head * args.map.head_step;
            sink.to = cell < 0 ? nullptr : args.to[1] + index * args.cell_width;
            sink.scale = args.scale[1];
        }
        if (is_kept)
            keep_unit<T, kUnit>(sink, row.from, token, row.head, place, words);
        else
            finish_unit<T, kUnit>(sink, row.from, token, row.head, place, angle, words);
    }
};

// ------------------------------------------------------------------------------------ kernels

// The blocks that do not rotate.
template <typename T>
__device__ __forceinline__ void quantize_streams(const quantize_args &args)
{
    stream_place place(args.rotate_columns);
    int64_t tile = place.tile;
    if (tile < args.q_nope.n_tiles) {
        quantize_tile<T>(args.q_nope, args.tile_vectors, args.is_e5m2, tile, place.thread,
                         place.threads);
        return;
    }
    tile -= args.q_nope.n_tiles;
    bool is_v = tile >= args.rows[ROWS_K_NOPE].n_tiles;
    tile -= is_v ? args.rows[ROWS_K_NOPE].n_tiles : 0;
    write_rows<T, false, kCellsAny>(is_v ? args.rows[ROWS_V] : args.rows[ROWS_K_NOPE], args.map,
                                    args.tile_vectors, fp8_format{args.is_e5m2 != 0}, tile, place);
}

template <typename T, int kUnit, int kAngles, int kRows, cell_class kCells>
__global__ void __launch_bounds__(QUANTIZE_THREADS, QUANTIZE_MIN_BLOCKS)
    rope_quantize_append_kernel(const __grid_constant__ struct quantize_args args)
{
    let_next_start();
    if (blockIdx.x >= args.rotate_columns) {
        quantize_streams<T>(args);
        return;
    }
    quantize_rows<T, kUnit> rows = {args};
    append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
}

template <cell_class kCells>
struct quantize_family {
    template <typename T, int kUnit, int kAngles, int kRows>
    static constexpr kernel_fn<quantize_args> *kernel =
        rope_quantize_append_kernel<T, kUnit, kAngles, kRows, kCells>;
};

// ------------------------------------------------------------------------------------ launchers

// Of the streams.
static int64_t vectors_of(const struct quantize_args *args, int vector)
{
    int64_t vectors = ceil_div(args->q_nope.n_elements, vector);
    for (const struct row_stream &rows : args->rows)
        vectors += (int64_t)rows.n_tokens * rows.token_units.by;
    return vectors;
}

// Cut as rope_quantize is: both shares of the work decide how small a block is. Streams take four
// vectors per thread from half a machine's threads on. most_rows: heads that a thread walks in
// large work.
static struct rotate_shape choose_shape(struct quantize_args *args, int vector, int most_rows,
                                        int n_multiprocessors)
{
    struct rotate_args *rotate = &args->rotate;
    int64_t n_units = units_of(rotate), vectors = vectors_of(args, vector);
    bool is_many = rotate_rows(n_units + vectors, ROTATE_WAVES, n_multiprocessors) > 1;
    bool has_tiles = n_units + vectors > (int64_t)n_multiprocessors * 1024;
    int rows = is_many && rotate->n_heads >= most_rows ? most_rows : 1;
    args->tile_vectors = has_tiles ? kTileVectors : 1;
    int64_t n_threads = ceil_div(n_units, rows) + ceil_div(vectors, args->tile_vectors);
    int threads =
        is_many ? QUANTIZE_THREADS : block_threads(n_threads, n_multiprocessors, QUANTIZE_THREADS);
    return shape_with_streams(rotate, rows, threads, QUANTIZE_THREADS);
}

// Gives every stream its tiles of a block's threads; returns how many there are.
static int64_t set_tiles(struct quantize_args *args, int64_t threads, int vector)
{
    struct fp8_stream *q = &args->q_nope;
    q->n_tiles = ceil_div(ceil_div(q->n_elements, vector), threads * args->tile_vectors);
    int64_t n_tiles = q->n_tiles;
    for (struct row_stream &rows : args->rows)
        n_tiles += cut_rows(&rows, args->tile_vectors, threads);
    return n_tiles;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct quantize_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
    constexpr int kMany = kUnit == kUnitNeoxWide ? (int)QUANTIZE_WIDE_ROWS : (int)ROTATE_ROWS;
    int most_rows = kUnit == kUnitScalar || kind == kAnglesAny ? 1 : kMany;
    struct rotate_shape shape = choose_shape(args, kVecOf<T>, most_rows, queue->n_multiprocessors);
    int64_t threads = (int64_t)shape.block.x * shape.block.y * shape.block.z;
    int64_t n_tiles = set_tiles(args, threads, kVecOf<T>);
    int64_t tile_columns = ceil_div(n_tiles, (int64_t)shape.grid.y * shape.grid.z);
    args->rotate_columns = (uint32_t)shape.n_columns;
    auto *kernel = rotate_kernel_of<quantize_family<kCellsAny>, T, kUnit, kMany>(kind, shape.rows);
    if constexpr (kUnit != kUnitScalar)
        if (is_common_rotation(&args->rotate, kind) && args->map.kind == APPEND_CELLS)
            kernel =
                fast_kernel_of<quantize_family<kCellsFound>, T, kUnit, kMany>(kind, shape.rows);
    return launch_heads(args, kernel, &shape, tile_columns, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct quantize_args *args, int64_t rope_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    bool has_vectors = can_use_vectors(rotate, rope_dim, kVec) && is_aligned(args->to[0], kVec) &&
                       is_aligned(args->to[1], kVec) && args->token_bytes % kVec == 0 &&
                       args->cell_width % kVec == 0;
    args->q_nope.has_vectors =
        is_aligned(args->q_nope.from, 16) && is_aligned(args->q_nope.to, kVec);
    for (struct row_stream &rows : args->rows)
        use_vectors(&rows, kVec, 1);
    return with_units(rotate, has_vectors, kVec, [&](auto unit) {
        constexpr int kUnit = decltype(unit)::value;
        // large work writes FP8 by 8 bytes instead of 4: 3 to 6 % less time
        if constexpr (kUnit == kUnitNeox)
            if (rotate->angles.n_pairs % kVec == 0 &&
                rotate_rows(units_of(rotate) + vectors_of(args, kVec), ROTATE_WAVES,
                            queue->n_multiprocessors) > 1) {
                rotate->rotating_units /= 2;
                return launch_units<T, kUnitNeoxWide>(args, queue, err);
            }
        return launch_units<T, kUnit>(args, queue, err);
    });
}

// The rows of k_nope or v.
static struct row_stream rows_of(const struct roped_call *call, int port,
                                 const struct append_part *part,
                                 const struct rope_quantize_plan *parts, int64_t width, float scale)
{
    uint8_t *cache = static_cast<uint8_t *>(call->out[part->output].data);
    return row_stream_of(&call->in[port], cache + part->first, parts->rotary.n_tokens,
                         parts->k_heads, width, part->cell_width, scale);
}

static void set_streams(struct quantize_args *args, const struct roped_call *call,
                        const struct rope_quantize_append_plan *plan)
{
    const struct rope_quantize_plan *parts = &plan->parts;
    const struct roped_tensor *q_nope = &call->in[ROPE_QUANTIZE_APPEND_Q_NOPE];
    const struct roped_tensor *q_nope_out = &call->out[ROPE_QUANTIZE_APPEND_Q_NOPE_OUT];
    args->q_nope.from = q_nope->data;
    args->q_nope.to = static_cast<uint8_t *>(q_nope_out->data);
    if (!has_step(q_nope, q_nope_out))
        args->q_nope.n_elements = parts->rotary.n_tokens * parts->q_heads * parts->nope_dim;
    args->q_nope.scale = parts->scale_q;
    args->rows[ROWS_K_NOPE] = rows_of(call, ROPE_QUANTIZE_APPEND_K_NOPE, &plan->nope, parts,
                                      parts->nope_dim, parts->scale_k);
    args->rows[ROWS_V] =
        rows_of(call, ROPE_QUANTIZE_APPEND_V, &plan->value, parts, plan->value_dim, plan->scale_v);
}

static struct quantize_args args_of(const struct roped_call *call)
{
    const struct rope_quantize_append_plan *plan =
        reinterpret_cast<const struct rope_quantize_append_plan *>(call->plan);
    const struct rope_quantize_plan *parts = &plan->parts;
    const int64_t heads[2] = {parts->q_heads, parts->k_heads};
    const struct roped_tensor *in = &call->in[ROPE_QUANTIZE_APPEND_Q_ROPE];
    const struct roped_tensor *q_out = &call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT];
    struct quantize_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &parts->rotary, ROPE_QUANTIZE_APPEND_POSITIONS);
    set_rotate_tensors(rotate, in, heads, parts->rope_dim);
    rotate->rotary_offset = (int32_t)parts->rotary_offset;
    args.map = append_map_of(call, &plan->append);
    args.cell_width = (uint32_t)plan->rope.cell_width;
    args.token_bytes = token_bytes_of(q_out, parts->q_heads * parts->rope_dim);
    args.to[0] = static_cast<uint8_t *>(q_out->data);
    uintptr_t k_cache = (uintptr_t)call->out[plan->rope.output].data;
    int64_t q_cells = heads[0] * args.map.head_step * plan->rope.cell_width;
    args.to[1] = reinterpret_cast<uint8_t *>(k_cache - (uintptr_t)q_cells);
    args.scale[0] = parts->scale_q;
    args.scale[1] = parts->scale_k;
    args.is_e5m2 = q_out->dtype == ROPED_F8_E5M2;
    set_streams(&args, call, plan);
    return args;
}

// q_nope where it is no stream.
template <typename T>
static enum roped_status launch_q_nope(const struct roped_call *call, struct roped_queue *queue,
                                       struct roped_error *err)
{
    const struct rope_quantize_append_plan *plan =
        reinterpret_cast<const struct rope_quantize_append_plan *>(call->plan);
    const struct rope_quantize_plan *parts = &plan->parts;
    const struct roped_tensor *in = &call->in[ROPE_QUANTIZE_APPEND_Q_NOPE];
    const struct roped_tensor *out = &call->out[ROPE_QUANTIZE_APPEND_Q_NOPE_OUT];
    if (!has_step(in, out))
        return ROPED_OK;
    return launch_parts<T>(in, out, parts->rotary.n_tokens, parts->q_heads * parts->nope_dim,
                           parts->scale_q, queue, err);
}

extern "C" enum roped_status roped_cuda_rope_quantize_append(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct rope_quantize_append_plan *plan =
        reinterpret_cast<const struct rope_quantize_append_plan *>(call->plan);
    const struct rope_quantize_plan *parts = &plan->parts;
    int64_t n_heads = parts->q_heads + parts->k_heads;
    int64_t width = parts->rope_dim + parts->nope_dim;
    enum roped_status status =
        check_rotate_limits(call, "q_rope", parts->rotary.n_tokens, n_heads, width, err);
    if (status || parts->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    struct quantize_args args = args_of(call);
    return with_float_type(call->in[ROPE_QUANTIZE_APPEND_Q_ROPE].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        enum roped_status launched = launch_type<T>(&args, parts->rope_dim, queue, err);
        return launched ? launched : launch_q_nope<T>(call, queue, err);
    });
}
