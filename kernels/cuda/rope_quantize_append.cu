// rope_quantize_append.cu - rope_quantize_append on a CUDA device: rotate the rotary parts,
// multiply all parts by their scale, round to FP8; q to its outputs, k and v to their cells of the
// paged caches, in one launch.
//
// The grid has two kinds of blocks, as that of rope_quantize. The first columns rotate
// (device/append.cuh). The others convert what does not rotate: q_nope is one stream of elements;
// k_nope and v are streams, too, as they are read, of which every row of a head goes to a cell. A
// vector of 16 bytes finds its row by a division, and the row's cell by one load, which the load
// of the vector hides. Every byte is read once and written once.
#include "cuda/device/append.cuh"
#include "cuda/device/fp8.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/rope_quantize_append.h"

struct divisor {
    uint32_t by;
    int32_t shift; // log2 of it; -1: it is no power of two
    double inverse;
};

// Elements that do not rotate: of q_nope, or rows of k_nope or v.
struct stream_args {
    const void *from;
    uint8_t *to; // of rows: the first element of a row in cell 0
    int64_t n_elements;
    int64_t n_tiles;
    struct divisor row_width; // elements; by 0: no rows, written as read
    struct divisor heads;     // rows per token
    uint32_t cell_width;
    float scale;
    int32_t has_vectors; // bool: whole vectors, aligned in both places
    int32_t reserved;
};
enum { STREAM_Q_NOPE, STREAM_K_NOPE, STREAM_V, STREAMS };

struct quantize_args {
    uint32_t rotate_columns; // blocks of grid.x that rotate
    int32_t is_e5m2;
    float scale[2];
    int32_t tile_vectors; // vectors per thread of a stream tile, at most kTileVectors
    uint32_t cell_width;  // of the cache of k_rope
    uint8_t *to[2];       // q_rope; the cache of k_rope, less q_heads heads
    struct append_map map;
    struct stream_args stream[STREAMS];
    struct rotate_args rotate;
};

constexpr int kTileVectors = 4; // loads in flight per thread of a stream
enum { QUANTIZE_THREADS = 128 };

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
    template <typename T>
    __device__ __forceinline__ void rest(char *, int, int at, const uint4 &word) const
    {
        float x[kVecOf<T>];
        unpack<T>(word, x);
        store_fp8(to + at, x, scale, is_e5m2);
    }
    template <typename T>
    __device__ __forceinline__ void rest(char *, int, int at, const T &value) const
    {
        float x[1] = {element<T>::to_float(value)};
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
                                           const unit_words<T, kUnit> &words) const
    {
        fp8_sink sink = {args.to[0], args.scale[0], args.is_e5m2 != 0};
        if (row.head < args.rotate.q_heads) { // a row of FP8 is as many elements as one of T
            int64_t index = (int64_t)token * args.rotate.q_heads + row.head;
            sink.to += index * (args.rotate.head_bytes / (int)sizeof(T));
        } else {
            int64_t index = cell + row.head * args.map.head_step;
            sink.to = cell < 0 ? nullptr : args.to[1] + index * args.cell_width;
            sink.scale = args.scale[1];
        }
        finish_unit<T, kUnit>(sink, row.from, token, row.head, place, angle, words);
    }
};

// ------------------------------------------------------------------------------------ streams

// a / b. Widths and numbers of heads are nearly always powers of two; for others twenty
// instructions below 2^32; beyond, the quotient from a product in double is off by one at most,
// where a 64-bit division would be a call.
__device__ __forceinline__ int64_t quotient(int64_t a, const divisor &b)
{
    if (b.shift >= 0)
        return a >> b.shift;
    if (a >> 32 == 0)
        return (uint32_t)a / b.by;
    int64_t q = (int64_t)((double)a * b.inverse), rest = a - q * b.by;
    return rest < 0 ? q - 1 : rest >= b.by ? q + 1 : q;
}

// Where element i of a stream goes; NULL: nowhere.
__device__ __forceinline__ uint8_t *stream_place(const quantize_args &args,
                                                 const stream_args &stream, int64_t i)
{
    if (stream.row_width.by == 0)
        return stream.to + i;
    int64_t row = quotient(i, stream.row_width);
    int64_t token = quotient(row, stream.heads);
    int64_t cell = cell_of(args.map, (uint32_t)token);
    int64_t head = row - token * stream.heads.by;
    if (cell < 0)
        return nullptr;
    return stream.to + (cell + head * args.map.head_step) * stream.cell_width +
           (i - row * stream.row_width.by);
}

template <typename T>
__device__ __forceinline__ void quantize_element(const quantize_args &args,
                                                 const stream_args &stream, int64_t i)
{
    uint8_t *to = stream_place(args, stream, i);
    float x[1] = {element<T>::to_float(static_cast<const T *>(stream.from)[i])};
    if (to)
        store_fp8(to, x, stream.scale, args.is_e5m2);
}

// One tile: tile_vectors vectors per thread. The elements after the last whole vector belong to
// the last tile; without alignment every element goes alone.
template <typename T>
__device__ __forceinline__ void quantize_tile(const quantize_args &args, const stream_args &stream,
                                              int64_t tile, int thread, int threads)
{
    constexpr int kVec = kVecOf<T>;
    int64_t first = tile * threads * args.tile_vectors; // vectors
    if (!stream.has_vectors) {
        int64_t end = min((first + threads * args.tile_vectors) * kVec, stream.n_elements);
        for (int64_t i = first * kVec + thread; i < end; i += threads)
            quantize_element<T>(args, stream, i);
        return;
    }
    int64_t n_vectors = stream.n_elements / kVec;
    uint4 raw[kTileVectors];
    uint8_t *to[kTileVectors];
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        int64_t vector = first + i * threads + thread;
        if (i < args.tile_vectors && vector < n_vectors)
            raw[i] = load_once(static_cast<const T *>(stream.from) + vector * kVec);
    }
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        int64_t vector = first + i * threads + thread;
        to[i] = nullptr;
        if (i < args.tile_vectors && vector < n_vectors)
            to[i] = stream_place(args, stream, vector * kVec);
    }
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        if (!to[i])
            continue;
        float x[kVec];
        unpack<T>(raw[i], x);
        store_fp8(to[i], x, stream.scale, args.is_e5m2);
    }
    int64_t left = n_vectors * kVec + thread;
    if (tile == stream.n_tiles - 1 && left < stream.n_elements)
        quantize_element<T>(args, stream, left);
}

// A block has more threads than a vector has elements: each of a last part has its own.
template <typename T>
__device__ __forceinline__ void quantize_streams(const quantize_args &args)
{
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    int64_t tile = blockIdx.x - args.rotate_columns;
    tile = (tile * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z;
    wait_for_previous();
    for (const stream_args &stream : args.stream) {
        if (tile < stream.n_tiles) {
            quantize_tile<T>(args, stream, tile, thread, threads);
            return;
        }
        tile -= stream.n_tiles;
    }
}

// ------------------------------------------------------------------------------------ kernels

template <typename T, int kUnit, int kAngles, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS)
    rope_quantize_append_kernel(const __grid_constant__ struct quantize_args args)
{
    let_next_start();
    if (blockIdx.x >= args.rotate_columns) {
        quantize_streams<T>(args);
        return;
    }
    quantize_rows<T, kUnit> rows = {args};
    append_block<T, kUnit, kAngles, kRows>(args.rotate, args.map, rows, blockIdx.x);
}

// ------------------------------------------------------------------------------------ launchers

// Cut as rope_quantize is: both shares of the work decide how small a block is. Streams, whose
// vectors each find a cell, take four per thread from half a machine's threads on.
static struct rotate_shape choose_shape(struct quantize_args *args, int vector, bool is_scalar,
                                        int n_multiprocessors)
{
    struct rotate_args *rotate = &args->rotate;
    int64_t n_units =
        (int64_t)rotate->n_tokens * rotate->n_heads * (rotate->rotating_units + rotate->rest_units);
    int64_t vectors = 0;
    for (const struct stream_args &stream : args->stream)
        vectors += ceil_div(stream.n_elements, vector);
    bool is_many = rotate_rows(n_units + vectors, ROTATE_WAVES, n_multiprocessors) > 1;
    bool has_tiles = n_units + vectors > (int64_t)n_multiprocessors * 1024;
    int rows = is_many && !is_scalar && rotate->n_heads >= ROTATE_ROWS ? ROTATE_ROWS : 1;
    args->tile_vectors = has_tiles ? kTileVectors : 1;
    int64_t n_threads = ceil_div(n_units, rows) + ceil_div(vectors, args->tile_vectors);
    int threads = is_many ? QUANTIZE_THREADS : block_threads(n_threads, n_multiprocessors);
    struct rotate_shape shape = rotate_shape_of(rotate, rows, threads);
    // few heads and tokens: the threads beyond them work on the streams only
    unsigned lanes = shape.block.x * shape.block.y;
    if (lanes * shape.block.z < ROTATE_MIN_THREADS)
        shape.block.z = (ROTATE_MIN_THREADS + lanes - 1) / lanes;
    return shape;
}

// Gives every stream its tiles of tile_vectors; returns how many there are.
static int64_t set_tiles(struct quantize_args *args, int64_t tile_vectors, int vector)
{
    int64_t n_tiles = 0;
    for (struct stream_args &stream : args->stream) {
        stream.n_tiles = ceil_div(ceil_div(stream.n_elements, vector), tile_vectors);
        n_tiles += stream.n_tiles;
    }
    return n_tiles;
}

// Heads beyond a grid's height take more launches, which rotate only.
static enum roped_status launch_shape(struct quantize_args *args, kernel_fn<quantize_args> *kernel,
                                      const struct rotate_shape *shape, int64_t tile_columns,
                                      struct roped_queue *queue, struct roped_error *err)
{
    int64_t heads = (int64_t)shape->grid.y * shape->block.y * shape->rows;
    enum roped_status status = ROPED_OK;
    for (int64_t head = 0; head < args->rotate.n_heads && !status; head += heads) {
        int64_t columns = shape->n_columns + (head == 0 ? tile_columns : 0);
        args->rotate.first_head = (int32_t)head;
        status = start(queue, kernel, shape->block, columns, shape->grid, *args, err);
    }
    return status;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct quantize_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
    bool is_scalar = kUnit == kUnitScalar || kind == kAnglesAny;
    struct rotate_shape shape = choose_shape(args, kVecOf<T>, is_scalar, queue->n_multiprocessors);
    int64_t tile = (int64_t)shape.block.x * shape.block.y * shape.block.z * args->tile_vectors;
    int64_t n_tiles = set_tiles(args, tile, kVecOf<T>);
    int64_t tile_columns = ceil_div(n_tiles, (int64_t)shape.grid.y * shape.grid.z);
    kernel_fn<quantize_args> *kernel = rope_quantize_append_kernel<T, kUnit, kAnglesAny, 1>;
    args->rotate_columns = (uint32_t)shape.n_columns;
    if constexpr (kUnit != kUnitScalar) {
        if (kind == kAnglesTable)
            kernel = shape.rows == 1
                         ? rope_quantize_append_kernel<T, kUnit, kAnglesTable, 1>
                         : rope_quantize_append_kernel<T, kUnit, kAnglesTable, ROTATE_ROWS>;
        else if (kind == kAnglesComputed)
            kernel = shape.rows == 1
                         ? rope_quantize_append_kernel<T, kUnit, kAnglesComputed, 1>
                         : rope_quantize_append_kernel<T, kUnit, kAnglesComputed, ROTATE_ROWS>;
    }
    return launch_shape(args, kernel, &shape, tile_columns, queue, err);
}

// Rows need every cell of theirs aligned; the last vector of a stream without rows may be part.
static bool stream_has_vectors(const struct stream_args *stream, int vector)
{
    return is_aligned(stream->from, 16) && is_aligned(stream->to, (uintptr_t)vector) &&
           stream->row_width.by % (uint32_t)vector == 0 &&
           stream->cell_width % (uint32_t)vector == 0;
}

// rest_units starts as a count of elements.
template <typename T>
static enum roped_status launch_type(struct quantize_args *args, int64_t rope_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    bool has_vectors = can_use_vectors(rotary, rope_dim, rotate->rotary_offset, kVec) &&
                       is_aligned(rotate->from[0], 16) && is_aligned(rotate->from[1], 16) &&
                       is_aligned(args->to[0], kVec) && is_aligned(args->to[1], kVec) &&
                       args->cell_width % kVec == 0;
    for (struct stream_args &stream : args->stream)
        stream.has_vectors = stream_has_vectors(&stream, kVec);
    rotate->rotating_units = (int32_t)rotary->n_pairs;
    if (!has_vectors)
        return launch_units<T, kUnitScalar>(args, queue, err);
    rotate->rest_units /= kVec;
    rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVec);
    if (rotary->style == ROPE_GPTJ)
        return launch_units<T, kUnitGptj>(args, queue, err);
    return launch_units<T, kUnitNeox>(args, queue, err);
}

static struct divisor divisor_by(int64_t by)
{
    int shift = 0;
    while ((int64_t)1 << shift < by)
        shift++;
    return {(uint32_t)by, (int64_t)1 << shift == by ? shift : -1, 1.0 / (double)by};
}

// The rows of k_nope or v, and where a row of cell 0 begins.
static void set_rows(struct stream_args *stream, const struct roped_call *call, int port,
                     const struct append_part *part, int64_t n_rows, int64_t heads, int64_t width)
{
    if (width == 0 || n_rows == 0)
        return;
    stream->from = call->in[port].data;
    stream->to = static_cast<uint8_t *>(call->out[part->output].data) + part->first;
    stream->n_elements = n_rows * width;
    stream->row_width = divisor_by(width);
    stream->heads = divisor_by(heads);
    stream->cell_width = (uint32_t)part->cell_width;
}

static void set_streams(struct quantize_args *args, const struct roped_call *call,
                        const struct rope_quantize_append_plan *plan)
{
    const struct rope_quantize_plan *parts = &plan->parts;
    int64_t n_tokens = parts->rotary.n_tokens, k_rows = n_tokens * parts->k_heads;
    struct stream_args *q = &args->stream[STREAM_Q_NOPE];
    q->from = call->in[ROPE_QUANTIZE_APPEND_Q_NOPE].data;
    q->to = static_cast<uint8_t *>(call->out[ROPE_QUANTIZE_APPEND_Q_NOPE_OUT].data);
    q->n_elements = n_tokens * parts->q_heads * parts->nope_dim;
    set_rows(&args->stream[STREAM_K_NOPE], call, ROPE_QUANTIZE_APPEND_K_NOPE, &plan->nope, k_rows,
             parts->k_heads, parts->nope_dim);
    set_rows(&args->stream[STREAM_V], call, ROPE_QUANTIZE_APPEND_V, &plan->value, k_rows,
             parts->k_heads, plan->value_dim);
    for (int i = 0; i < STREAMS; i++)
        args->stream[i].scale = i == STREAM_Q_NOPE ? parts->scale_q : parts->scale_k;
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
    set_rotate_tensors(rotate, in[0].data, in[1].data, heads, parts->rope_dim,
                       roped_dtype_bytes(in->dtype));
    rotate->rotary_offset = (int32_t)parts->rotary_offset;
    rotate->rest_units = (int32_t)(parts->rope_dim - 2 * parts->rotary.n_pairs);
    args.map = rope_quantize_append_map(call, plan);
    args.cell_width = (uint32_t)plan->rope.cell_width;
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
        check_rotate_limits("q_rope", parts->rotary.n_tokens, n_heads, width, err);
    if (status || parts->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    struct quantize_args args = args_of(call);
    return with_float_type(call->in[ROPE_QUANTIZE_APPEND_Q_ROPE].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, parts->rope_dim, queue, err);
    });
}
