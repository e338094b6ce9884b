// rope_quantize.cu - rope_quantize on a CUDA device: rotate the rotary parts, multiply all parts
// by their scale, round to FP8, in one launch.
//
// The grid has two kinds of blocks. The first columns rotate, as in rope (device/rotate.cuh). The
// others convert q_nope and k_nope, which are nothing but two streams of elements
// (device/fp8_stream.cuh); those with a step take a launch of their own (fp8_parts.cuh). Every byte
// is read once and written once: 3 bytes per element from 16-bit types, 5 from float32.
#include "cuda/fp8_parts.cuh"
#include "ops/rope_quantize.h"

struct quantize_args {
    uint32_t rotate_columns; // blocks of grid.x that rotate
    int32_t is_e5m2;
    float scale[2];
    int32_t tile_vectors; // vectors per thread of a stream tile, at most kTileVectors
    struct fp8_stream nope[2];
    char *to[2]; // as rotate.from
    uint32_t token_bytes[2];
    int32_t head_bytes; // of the output
    struct rotate_args rotate;
};

enum { QUANTIZE_THREADS = 128 };

// Writes FP8; what does not rotate is scaled and rounded all the same.
struct fp8_sink {
    static constexpr bool kMaySkip = false;
    const quantize_args &args;

    __device__ __forceinline__ char *head(const char *, uint32_t token, int head) const
    {
        bool is_k = head >= args.rotate.q_heads;
        uint32_t token_bytes = is_k ? args.token_bytes[1] : args.token_bytes[0];
        return (is_k ? args.to[1] : args.to[0]) + (uint64_t)token * token_bytes +
               (int64_t)head * args.head_bytes;
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *to, int head, int at, const float (&x)[n]) const
    {
        store_fp8(reinterpret_cast<uint8_t *>(to) + at, x,
                  head < args.rotate.q_heads ? args.scale[0] : args.scale[1], args.is_e5m2);
    }
    template <typename T, typename Word>
    __device__ __forceinline__ void rest(char *to, int head, int at, const Word &word) const
    {
        float x[kElementsOf<T, Word>];
        unpack<T>(word, x);
        rotated(to, head, at, x);
    }
};

// ------------------------------------------------------------------------------------ kernels

// The blocks that do not rotate.
template <typename T>
__device__ __forceinline__ void quantize_nope(const quantize_args &args)
{
    stream_place place(args.rotate_columns);
    int64_t tile = place.tile;
    bool is_k = tile >= args.nope[0].n_tiles;
    tile -= is_k ? args.nope[0].n_tiles : 0;
    const fp8_stream &stream = is_k ? args.nope[1] : args.nope[0];
    if (tile < stream.n_tiles)
        quantize_tile<T>(stream, args.tile_vectors, args.is_e5m2, tile, place.thread,
                         place.threads);
}

template <typename T, int kUnit, int kAngles, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS)
    rope_quantize_kernel(const __grid_constant__ struct quantize_args args)
{
    let_next_start();
    if (blockIdx.x >= args.rotate_columns) {
        quantize_nope<T>(args);
        return;
    }
    fp8_sink sink = {args};
    rotate_block<T, kUnit, kAngles, kRows>(args.rotate, sink, blockIdx.x);
}

struct quantize_family {
    template <typename T, int kUnit, int kAngles, int kRows>
    static constexpr kernel_fn<quantize_args> *kernel =
        rope_quantize_kernel<T, kUnit, kAngles, kRows>;
};

// ------------------------------------------------------------------------------------ launchers

// Both shares of the work decide how small a block is: one decode token of MLA, 148 KB in and
// 74 KB out, is 9,300 vectors, and must reach every multiprocessor. Large work takes four units or
// vectors per thread and blocks of 128 threads: with both kinds of blocks in one grid, 256 are as
// fast for MLA and 3 % slower for the shorter GQA calls.
static struct rotate_shape choose_shape(struct quantize_args *args, int vector, bool is_scalar,
                                        int n_multiprocessors)
{
    struct rotate_args *rotate = &args->rotate;
    int64_t n_units = units_of(rotate);
    int64_t vectors =
        ceil_div(args->nope[0].n_elements, vector) + ceil_div(args->nope[1].n_elements, vector);
    bool is_many = rotate_rows(n_units + vectors, ROTATE_WAVES, n_multiprocessors) > 1;
    int rows = is_many && !is_scalar && rotate->n_heads >= ROTATE_ROWS ? ROTATE_ROWS : 1;
    args->tile_vectors = is_many ? kTileVectors : 1;
    int64_t n_threads = ceil_div(n_units, rows) + ceil_div(vectors, args->tile_vectors);
    int threads = is_many ? QUANTIZE_THREADS : block_threads(n_threads, n_multiprocessors);
    return shape_with_streams(rotate, rows, threads);
}

static int64_t set_tiles(struct fp8_stream *stream, int64_t tile_vectors, int vector)
{
    stream->n_tiles = ceil_div(ceil_div(stream->n_elements, vector), tile_vectors);
    return stream->n_tiles;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct quantize_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
    bool is_scalar = kUnit == kUnitScalar || kind == kAnglesAny;
    struct rotate_shape shape = choose_shape(args, kVecOf<T>, is_scalar, queue->n_multiprocessors);
    int64_t tile = (int64_t)shape.block.x * shape.block.y * shape.block.z * args->tile_vectors;
    int64_t n_tiles = set_tiles(&args->nope[0], tile, kVecOf<T>);
    n_tiles += set_tiles(&args->nope[1], tile, kVecOf<T>);
    int64_t tile_columns = ceil_div(n_tiles, (int64_t)shape.grid.y * shape.grid.z);
    args->rotate_columns = (uint32_t)shape.n_columns;
    return launch_heads(args, rotate_kernel_of<quantize_family, T, kUnit>(kind, shape.rows), &shape,
                        tile_columns, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct quantize_args *args, int64_t rope_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    bool has_vectors = can_use_vectors(&args->rotate, rope_dim, kVec) &&
                       is_aligned(args->to[0], kVec) && is_aligned(args->to[1], kVec) &&
                       args->token_bytes[0] % kVec == 0 && args->token_bytes[1] % kVec == 0;
    for (struct fp8_stream &stream : args->nope)
        stream.has_vectors = is_aligned(stream.from, 16) && is_aligned(stream.to, kVec);
    return with_units(&args->rotate, has_vectors, kVec, [&](auto unit) {
        return launch_units<T, decltype(unit)::value>(args, queue, err);
    });
}

static struct quantize_args args_of(const struct roped_call *call)
{
    const struct rope_quantize_plan *plan =
        reinterpret_cast<const struct rope_quantize_plan *>(call->plan);
    const int64_t heads[2] = {plan->q_heads, plan->k_heads};
    const struct roped_tensor *in = &call->in[ROPE_QUANTIZE_Q_ROPE];
    const struct roped_tensor *out = &call->out[ROPE_QUANTIZE_Q_ROPE_OUT];
    struct quantize_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &plan->rotary, ROPE_QUANTIZE_POSITIONS);
    set_rotate_tensors(rotate, in, heads, plan->rope_dim);
    rotate->rotary_offset = (int32_t)plan->rotary_offset;
    args.head_bytes = (int32_t)plan->rope_dim;
    args.to[0] = static_cast<char *>(out[0].data);
    args.to[1] = reinterpret_cast<char *>((uintptr_t)out[1].data -
                                          (uintptr_t)heads[0] * (uintptr_t)args.head_bytes);
    args.scale[0] = plan->scale_q;
    args.scale[1] = plan->scale_k;
    args.is_e5m2 = out->dtype == ROPED_F8_E5M2;
    for (int i = 0; i < 2; i++) { // q, k
        const struct roped_tensor *nope = &call->in[ROPE_QUANTIZE_Q_NOPE + i];
        const struct roped_tensor *to = &call->out[ROPE_QUANTIZE_Q_NOPE_OUT + i];
        args.token_bytes[i] = token_bytes_of(&out[i], heads[i] * plan->rope_dim);
        args.nope[i].from = nope->data;
        args.nope[i].to = static_cast<uint8_t *>(to->data);
        if (!has_step(nope, to))
            args.nope[i].n_elements = plan->rotary.n_tokens * heads[i] * plan->nope_dim;
        args.nope[i].scale = args.scale[i];
    }
    return args;
}

// Those of q_nope and k_nope that are no streams.
template <typename T>
static enum roped_status launch_nope(const struct roped_call *call, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct rope_quantize_plan *plan =
        reinterpret_cast<const struct rope_quantize_plan *>(call->plan);
    const int64_t heads[2] = {plan->q_heads, plan->k_heads};
    const float scale[2] = {plan->scale_q, plan->scale_k};
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < 2 && !status; i++) {
        const struct roped_tensor *in = &call->in[ROPE_QUANTIZE_Q_NOPE + i];
        const struct roped_tensor *out = &call->out[ROPE_QUANTIZE_Q_NOPE_OUT + i];
        if (has_step(in, out))
            status = launch_parts<T>(in, out, plan->rotary.n_tokens, heads[i] * plan->nope_dim,
                                     scale[i], queue, err);
    }
    return status;
}

extern "C" enum roped_status roped_cuda_rope_quantize(const struct roped_call *call,
                                                      struct roped_queue *queue,
                                                      struct roped_error *err)
{
    const struct rope_quantize_plan *plan =
        reinterpret_cast<const struct rope_quantize_plan *>(call->plan);
    int64_t n_heads = plan->q_heads + plan->k_heads;
    enum roped_status status =
        check_rotate_limits(call, "q_rope", plan->rotary.n_tokens, n_heads, plan->rope_dim, err);
    if (status || plan->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    struct quantize_args args = args_of(call);
    return with_float_type(call->in[ROPE_QUANTIZE_Q_ROPE].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        enum roped_status launched = launch_type<T>(&args, plan->rope_dim, queue, err);
        return launched ? launched : launch_nope<T>(call, queue, err);
    });
}
