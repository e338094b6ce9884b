// rope_quantize.cu - rope_quantize on a CUDA device: rotate the rotary parts, multiply all parts
// by their scale, round to FP8, in one launch.
//
// The grid has two kinds of blocks. The first columns rotate, as in rope (device/rotate.cuh). The
// others convert q_nope and k_nope, which are nothing but two streams of elements
// (device/fp8_stream.cuh); those with a stride take a launch of their own (fp8_parts.cuh). Every
// byte is read once and written once: 3 bytes per element from 16-bit types, 5 from float32.
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

// Large work takes blocks of 128 threads: with both kinds of blocks in one grid, 256 are as fast
// for MLA and 3 % slower for the shorter GQA calls.
struct quantize_form : rotary_form {
    using args = quantize_args;
    static constexpr int kLargeThreads = 128;
    static constexpr bool kHasStreams = true;
    static constexpr int kTileFrom = 2048 * ROTATE_WAVES;

    template <typename T, int kUnit, int kAngles, int kRows>
    static __device__ __forceinline__ void rotate(const quantize_args &args)
    {
        fp8_sink sink = {args};
        rotate_block<T, kUnit, kAngles, kRows>(args.rotate, sink, blockIdx.x);
    }
    template <typename T>
    static __device__ __forceinline__ void write_streams(const quantize_args &args)
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

    static void set(quantize_args *args, const struct roped_call *call)
    {
        const struct heads_part *part = heads_plan_of(call)->part;
        args->is_e5m2 = call->out[part[0].to].dtype == ROPED_F8_E5M2;
        args->head_bytes = (int32_t)part[0].width;
        for (int i = 0; i < 2; i++) { // q, k
            const struct roped_tensor *out = &call->out[part[i].to];
            args->to[i] = static_cast<char *>(out->data);
            args->scale[i] = part[i].scale;
            args->token_bytes[i] = token_bytes_of(out, part[i].heads * part[i].width);
            args->nope[i] = part_stream_of(call, ROPE_QUANTIZE_Q_NOPE + i);
        }
        args->to[1] = less_bytes(args->to[1], part[0].heads * part[0].width);
    }
    template <typename T>
    static bool use_vectors(quantize_args *args, const struct roped_queue *)
    {
        constexpr int kVec = kVecOf<T>;
        for (struct fp8_stream &stream : args->nope)
            ::use_vectors(&stream, kVec);
        return is_aligned(args->to[0], kVec) && is_aligned(args->to[1], kVec) &&
               args->token_bytes[0] % kVec == 0 && args->token_bytes[1] % kVec == 0;
    }
    static int64_t vectors(const quantize_args *args, int vector)
    {
        return ceil_div(args->nope[0].n_elements, vector) +
               ceil_div(args->nope[1].n_elements, vector);
    }
    static int64_t cut(quantize_args *args, int64_t threads, int vector)
    {
        int64_t tile = threads * args->tile_vectors;
        int64_t n_tiles = cut_stream(&args->nope[0], tile, vector);
        return n_tiles + cut_stream(&args->nope[1], tile, vector);
    }
    template <typename T, int kUnit, int kMany>
    static kernel_fn<quantize_args> *kernel(const quantize_args *, int kind, int rows)
    {
        return rotary_kernel_of<quantize_form, T, kUnit, kMany>(kind, rows);
    }
    template <typename T>
    static enum roped_status finish(const struct roped_call *call, struct roped_queue *queue,
                                    struct roped_error *err)
    {
        return launch_parts<T>(call, queue, err);
    }
};

extern "C" enum roped_status roped_cuda_rope_quantize(const struct roped_call *call,
                                                      struct roped_queue *queue,
                                                      struct roped_error *err)
{
    return launch_rotary<quantize_form>(call, queue, err);
}
