// narrow_launch.cuh - launch shapes of norms of narrow rows (device/norm_narrow.cuh, and
// norm_narrow_lanes.cuh). Host code.
#pragma once

#include "cuda/device/norm_narrow_lanes.cuh"
#include "cuda/dispatch.cuh"

#include <numeric>

constexpr int64_t kOwnShared = 2 << 10; // bytes of shared memory that a block has besides

// Do rows lie beside each other, in every tensor?
static inline bool is_packed(const struct norm_args *args)
{
    const int64_t width = args->hidden * args->heads;
    return args->x_pitch == width && args->y_pitch == width && args->residual_pitch == width &&
           args->residual_out_pitch == width && (!args->addend || args->addend_pitch == width);
}

// Blocks that take n in turn, as many as there are places for, or fewer that all have as many
// turns: those without a place would begin when the others have ended. A multiple of step, if some
// of them take more than one.
static inline int64_t blocks_in_turn(int64_t n, int64_t places, int64_t step)
{
    const int64_t turns = blocks_of(n, places);
    const int64_t blocks = turns > 1 ? blocks_of(blocks_of(n, turns), step) * step : n;
    return blocks < n ? blocks : n;
}

// Blocks of so many threads for each row, of which a warp has several, or one.
template <typename K, typename C>
static enum roped_status launch_narrow_rows(kernel_fn<norm_args> *kernel,
                                            const struct norm_args &args, int threads,
                                            struct roped_queue *queue, struct roped_error *err)
{
    const int64_t enough = args.n_rows / (2 * queue->n_multiprocessors);
    const int of_warp = 32 / threads;
    const int64_t span = packets_of_span(of_warp * args.hidden * (int64_t)sizeof(typename K::T));
    const int64_t bytes = 16 * C::kTensors * span; // of a warp
    int warps = 1;
    while (warps < C::kMostWarps && warps * of_warp < enough &&
           2 * warps * bytes + kOwnShared <= queue->shared_bytes)
        warps *= 2;
    const int rows = warps * of_warp;
    const int64_t places = (int64_t)queue->n_multiprocessors * C::kMinBlocks * 8 / warps;
    const int64_t apart = std::lcm(args.heads, (int64_t)8); // rows of a turn are a multiple of it
    const int64_t blocks = blocks_in_turn(blocks_of(args.n_rows, rows), places,
                                          apart / std::gcd(apart, (int64_t)rows));
    return start(queue, kernel, dim3((unsigned)threads, (unsigned)rows), blocks, dim3(), args, err,
                 warps * bytes);
}

// Vectors of a row at most, half as many of a sum without a mean: where registers hold two rows of
// more, too few warps find room. Those of float32 are half as many floats. Wider centred rows have
// several warps.
template <typename K, bool kCentre>
constexpr int kNarrowVectors = kCentre                      ? 96
                               : K::kAdds                   ? 64
                               : sizeof(typename K::T) == 4 ? 256
                                                            : 128;
// Vectors of those: of more, memory has too few rows on their way.
constexpr int kMostOfBlocks = 384;

// Rows of up to so many vectors, beside each other, with weights of their type.
template <typename K>
static bool has_rows_beside(const struct norm_args *args, int most_vectors)
{
    return args->hidden <= most_vectors * K::kVec && is_packed(args) &&
           args->weight_kind <= (int)kWeightSame && args->n_rows <= INT_MAX / 2 &&
           args->heads * args->hidden <= INT_MAX / 2;
}
// Those that a warp takes, or a part of one.
template <typename K, bool kCentre>
static bool has_narrow_rows(const struct norm_args *args)
{
    return has_rows_beside<K>(args, kNarrowVectors<K, kCentre>);
}

// Centred rows that several warps take.
template <typename K>
static bool has_rows_of_blocks(const struct norm_args *args)
{
    return args->hidden > kNarrowVectors<K, true> * K::kVec &&
           has_rows_beside<K>(args, kMostOfBlocks);
}

// Heads are rows with weights of their own, which all kernels below know.
template <typename K>
using of_rows = std::conditional_t<K::kHasHeads, norm_kind<typename K::T, kFromX, kToFloats>, K>;

// Rows of up to so many slots of eight vectors, by as few as they have: a power of two, or three
// quarters of one.
template <typename K, bool kCentre, int kSlots>
static enum roped_status launch_lanes(const struct norm_args &args, int64_t vectors,
                                      struct roped_queue *queue, struct roped_error *err)
{
    constexpr bool kIsPower = (kSlots & (kSlots - 1)) == 0;
    constexpr int kFewer = kSlots > 16 ? 16 : kIsPower ? kSlots * 3 / 4 : kSlots * 2 / 3;
    if constexpr (kFewer >= 3)
        if (vectors <= 8 * kFewer)
            return launch_lanes<K, kCentre, kFewer>(args, vectors, queue, err);
    using C = lanes_config<K, kSlots, kCentre>;
    return launch_narrow_rows<K, C>(norm_lanes_kernel<K, C>, args, 32, queue, err);
}

// A block for each of so many rows, of threads with a share of the sum each, which are whole warps,
// and two vectors for each share.
template <typename K, bool kCentre>
static enum roped_status launch_lanes_of_blocks(const struct norm_args &args, int64_t threads,
                                                struct roped_queue *queue, struct roped_error *err)
{
    using L = of_rows<K>;
    using C = lanes_config<L, 8, kCentre, true>;
    const int64_t bytes =
        16 * C::kSpans * packets_of_span(args.hidden * (int64_t)sizeof(typename K::T));
    const int64_t of_registers = 256 * C::kMinBlocks / threads;
    const int64_t of_shared = queue->shared_bytes / (bytes + kOwnShared);
    const int64_t places = queue->n_multiprocessors * std::min(of_registers, of_shared);
    const int64_t blocks = blocks_in_turn(args.n_rows, places, std::lcm(args.heads, (int64_t)8));
    return start(queue, norm_lanes_kernel<L, C>, dim3((unsigned)threads), blocks, dim3(), args, err,
                 bytes);
}

template <typename K, bool kCentre>
static enum roped_status launch_narrow(const struct norm_args &args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    const int64_t vectors = blocks_of(args.hidden, K::kVec);
    if (vectors > 16)
        return launch_lanes<of_rows<K>, kCentre, kNarrowVectors<K, kCentre> / 8>(args, vectors,
                                                                                 queue, err);
    using C = narrow_config<K, kCentre>;
    return launch_narrow_rows<K, C>(norm_narrow_kernel<K, C>, args, vectors > 8 ? 8 : 4, queue,
                                    err);
}
