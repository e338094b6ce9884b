// rope_quantize.cu - rope_quantize on a CUDA device: rotate the rotary parts, multiply all parts
// by their scale, round to FP8, in one launch.
//
// The grid has two kinds of blocks. The first columns rotate, as in rope (device/rotate.cuh). The
// others convert q_nope and k_nope, which are nothing but two streams of elements: tiles of
// 16-byte loads, consecutive lanes at consecutive vectors, so that loads (512 bytes a warp) and
// stores (256, or 128 from float32) are both whole sectors. Every byte is read once and written
// once: 3 bytes per element from 16-bit types, 5 from float32.
#include "cuda/device/stream.cuh"
#include "cuda/device/fp8.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/rope_quantize.h"

struct stream_args {
    const void *from;
    uint8_t *to;
    int64_t n_elements;
    int64_t n_tiles;
};

struct quantize_args {
    struct rotate_args rotate;
    uint8_t *to[2];
    float scale[2];
    struct stream_args nope[2];
    int64_t rotate_columns; // blocks of grid.x that rotate
    int32_t tile_vectors;   // vectors per thread of a stream tile, at most kTileVectors
    int32_t nope_aligned;   // bool: streams can use vectors
    int32_t is_e5m2;
    int32_t reserved;
};

constexpr int kTileVectors = 4; // loads in flight per thread of a stream

// Writes FP8; what does not rotate is scaled and rounded all the same.
template <typename T, int kUnit>
struct fp8_sink {
    using unit = rotate_unit<T, kUnit>;
    const quantize_args &args;

    __device__ __forceinline__ void rotated(bool is_k, int64_t at,
                                            const float (&x)[unit::kVec]) const
    {
        uint8_t *to = is_k ? args.to[1] : args.to[0];
        store_fp8(to + at, x, is_k ? args.scale[1] : args.scale[0], args.is_e5m2);
    }
    __device__ __forceinline__ void rest(bool is_k, int64_t at,
                                         const typename unit::word &word) const
    {
        float x[unit::kVec];
        widen_word<T, kUnit>(word, x);
        rotated(is_k, at, x);
    }
};

// ------------------------------------------------------------------------------------ kernels

template <typename T>
__device__ __forceinline__ void quantize_element(const quantize_args &args,
                                                 const stream_args &stream, float scale, int64_t i)
{
    float x[1] = {element<T>::to_float(static_cast<const T *>(stream.from)[i])};
    store_fp8(stream.to + i, x, scale, args.is_e5m2);
}

// One tile: tile_vectors vectors per thread. The elements after the last whole vector belong to
// the last tile; without alignment every element goes alone.
template <typename T>
__device__ __forceinline__ void quantize_tile(const quantize_args &args, const stream_args &stream,
                                              float scale, int64_t tile, int thread, int threads)
{
    constexpr int kVec = kVecOf<T>;
    int64_t first = tile * threads * args.tile_vectors; // vectors
    if (!args.nope_aligned) {
        int64_t end = min((first + threads * args.tile_vectors) * kVec, stream.n_elements);
        for (int64_t i = first * kVec + thread; i < end; i += threads)
            quantize_element<T>(args, stream, scale, i);
        return;
    }
    int64_t n_vectors = stream.n_elements / kVec;
    uint4 raw[kTileVectors];
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        int64_t vector = first + i * threads + thread;
        if (i < args.tile_vectors && vector < n_vectors)
            raw[i] = load_once(static_cast<const T *>(stream.from) + vector * kVec);
    }
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        int64_t vector = first + i * threads + thread;
        if (i >= args.tile_vectors || vector >= n_vectors)
            continue;
        float x[kVec];
        unpack<T>(raw[i], x);
        store_fp8(stream.to + vector * kVec, x, scale, args.is_e5m2);
    }
    int64_t left = n_vectors * kVec + thread;
    if (tile == stream.n_tiles - 1 && left < stream.n_elements)
        quantize_element<T>(args, stream, scale, left);
}

// A block has more threads than a vector has elements: each of a last part has its own.
template <typename T>
__device__ __forceinline__ void quantize_nope(const quantize_args &args)
{
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    int64_t tile = blockIdx.x - args.rotate_columns;
    tile = (tile * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z;
    if (tile < args.nope[0].n_tiles)
        quantize_tile<T>(args, args.nope[0], args.scale[0], tile, thread, threads);
    else if (tile - args.nope[0].n_tiles < args.nope[1].n_tiles)
        quantize_tile<T>(args, args.nope[1], args.scale[1], tile - args.nope[0].n_tiles, thread,
                         threads);
}

template <typename T, int kUnit, int kAngles, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS, ROTATE_MIN_BLOCKS)
    rope_quantize_kernel(const __grid_constant__ struct quantize_args args)
{
    enter_stream();
    if (blockIdx.x >= args.rotate_columns) {
        quantize_nope<T>(args);
        return;
    }
    fp8_sink<T, kUnit> sink = {args};
    rotate_block<T, kUnit, kAngles, kRows, false>(args.rotate, sink, blockIdx.x);
}

// ------------------------------------------------------------------------------------ launchers

// Both shares of the work decide how small a block is: one decode token of MLA, 148 KB in and
// 74 KB out, is 9,300 vectors, and must reach every multiprocessor.
template <typename T, int kUnit>
static struct rotate_shape choose_shape(struct quantize_args *args, const struct roped_queue *queue)
{
    struct rotate_args *rotate = &args->rotate;
    int n_multiprocessors = queue->n_multiprocessors;
    int64_t n_heads = rotate->heads[0] + rotate->heads[1];
    int64_t n_tokens = rotate->angles.rotary.n_tokens;
    int units = rotate->rotating_units +
                (int)ceil_div(rotate->rest_vectors, rotate_unit<T, kUnit>::kVectors);
    int64_t vectors = ceil_div(args->nope[0].n_elements, kVecOf<T>) +
                      ceil_div(args->nope[1].n_elements, kVecOf<T>);
    int rows = rows_per_thread(n_tokens, units, n_heads, kRotateRows<kUnit>, n_multiprocessors);
    args->tile_vectors = rows_per_thread(1, 1, vectors, kTileVectors, n_multiprocessors);
    int64_t n_threads =
        units * ceil_div(n_tokens * n_heads, rows) + ceil_div(vectors, args->tile_vectors);
    int threads = block_threads(n_threads, n_multiprocessors);
    struct rotate_shape shape = shape_heads(n_tokens, units, n_heads, rows, threads);
    // few heads and tokens: the threads beyond them work on the streams only
    unsigned lanes = shape.block.x * shape.block.y;
    if (lanes * shape.block.z < ROTATE_MIN_THREADS)
        shape.block.z = (ROTATE_MIN_THREADS + lanes - 1) / lanes;
    return shape;
}

static int64_t set_tiles(struct stream_args *stream, int64_t tile_vectors, int vector)
{
    stream->n_tiles = ceil_div(ceil_div(stream->n_elements, vector), tile_vectors);
    return stream->n_tiles;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct quantize_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    constexpr int kRows = kRotateRows<kUnit>;
    struct rotate_shape shape = choose_shape<T, kUnit>(args, queue);
    int64_t tile = (int64_t)shape.block.x * shape.block.y * shape.block.z * args->tile_vectors;
    int64_t n_tiles = set_tiles(&args->nope[0], tile, kVecOf<T>);
    n_tiles += set_tiles(&args->nope[1], tile, kVecOf<T>);
    int64_t columns = ceil_div(n_tiles, (int64_t)shape.grid.y * shape.grid.z);
    kernel_fn<quantize_args> *kernel = rope_quantize_kernel<T, kUnit, kAnglesAny, kRows>;
    args->rotate_columns = shape.n_columns;
    if constexpr (kUnit != kUnitScalar) {
        int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
        if (kind == kAnglesTable)
            kernel = rope_quantize_kernel<T, kUnit, kAnglesTable, kRows>;
        else if (kind == kAnglesComputed)
            kernel = rope_quantize_kernel<T, kUnit, kAnglesComputed, kRows>;
    }
    return start(queue, kernel, shape.block, shape.n_columns + columns, shape.grid, *args, err);
}

template <typename T>
static enum roped_status launch_type(struct quantize_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    bool has_vectors = can_use_vectors(rotary, rotate->head_dim, rotate->rotary_offset, kVec) &&
                       is_aligned(rotate->from[0], 16) && is_aligned(rotate->from[1], 16) &&
                       is_aligned(args->to[0], kVec) && is_aligned(args->to[1], kVec);
    args->nope_aligned = is_aligned(args->nope[0].from, 16) && is_aligned(args->nope[1].from, 16) &&
                         is_aligned(args->nope[0].to, kVec) && is_aligned(args->nope[1].to, kVec);
    if (!has_vectors) {
        rotate->rotating_units = (int32_t)rotary->n_pairs;
        return launch_units<T, kUnitScalar>(args, queue, err);
    }
    rotate->rest_vectors /= kVec;
    if (rotary->style == ROPE_GPTJ) {
        rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVec);
        return launch_units<T, kUnitGptj>(args, queue, err);
    }
    rotate->rotating_units = (int32_t)(rotary->n_pairs / kVec);
    return launch_units<T, kUnitNeox>(args, queue, err);
}

// rest_vectors starts as a count of elements; launch_type knows the width of a vector.
static struct quantize_args args_of(const struct roped_call *call)
{
    const struct rope_quantize_plan *plan =
        reinterpret_cast<const struct rope_quantize_plan *>(call->plan);
    struct quantize_args args = {};
    args.rotate.angles = angle_args_of(call, &plan->rotary, ROPE_QUANTIZE_POSITIONS);
    args.rotate.head_dim = (int32_t)plan->rope_dim;
    args.rotate.rotary_offset = (int32_t)plan->rotary_offset;
    args.rotate.rest_vectors = (int32_t)(plan->rope_dim - 2 * plan->rotary.n_pairs);
    args.rotate.heads[0] = plan->q_heads;
    args.rotate.heads[1] = plan->k_heads;
    args.scale[0] = plan->scale_q;
    args.scale[1] = plan->scale_k;
    args.is_e5m2 = call->out[ROPE_QUANTIZE_Q_ROPE_OUT].dtype == ROPED_F8_E5M2;
    for (int i = 0; i < 2; i++) { // q, k
        args.rotate.from[i] = call->in[ROPE_QUANTIZE_Q_ROPE + i].data;
        args.to[i] = static_cast<uint8_t *>(call->out[ROPE_QUANTIZE_Q_ROPE_OUT + i].data);
        args.nope[i].from = call->in[ROPE_QUANTIZE_Q_NOPE + i].data;
        args.nope[i].to = static_cast<uint8_t *>(call->out[ROPE_QUANTIZE_Q_NOPE_OUT + i].data);
        args.nope[i].n_elements = plan->rotary.n_tokens * args.rotate.heads[i] * plan->nope_dim;
    }
    return args;
}

extern "C" enum roped_status roped_cuda_rope_quantize(const struct roped_call *call,
                                                      struct roped_queue *queue,
                                                      struct roped_error *err)
{
    const struct rope_quantize_plan *plan =
        reinterpret_cast<const struct rope_quantize_plan *>(call->plan);
    enum roped_status status = check_head_width("q_rope", plan->rope_dim, err);
    if (status || plan->rotary.n_tokens == 0 || plan->q_heads + plan->k_heads == 0)
        return status;
    struct quantize_args args = args_of(call);
    return with_float_type(call->in[ROPE_QUANTIZE_Q_ROPE].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, queue, err);
    });
}
