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

// Blocks that take n in turn, as many as there are places for, and of two turns a few more: the
// last ones of more turns would begin when the others have ended. A multiple of step, if some of
// them take more than one.
static inline int64_t blocks_in_turn(int64_t n, int64_t places, int64_t step)
{
    int64_t turns = n / places;
    if (turns > 2)
        turns = blocks_of(n, places);
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
    while (warps < 8 && warps * of_warp < enough &&
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

// Vectors of a row at most, half as many of a sum: where registers hold two rows of more, too few
// warps find room. Those of float32 are half as many floats.
template <typename K, bool kCentre>
constexpr int kNarrowVectors = kCentre                                   ? 96
                               : sizeof(typename K::T) == 4 && !K::kAdds ? 256
                                                                         : 128;

// Rows beside each other that a warp takes, or a part of one, with weights of their type.
template <typename K, bool kCentre>
static bool has_narrow_rows(const struct norm_args *args)
{
    constexpr int kMost = kNarrowVectors<K, kCentre> / (K::kAdds ? 2 : 1);
    return args->hidden <= kMost * K::kVec && is_packed(args) &&
           args->weight_kind <= (int)kWeightSame && args->n_rows <= INT_MAX / 2 &&
           args->heads * args->hidden <= INT_MAX / 2;
}

template <typename K, bool kCentre>
static enum roped_status launch_narrow(const struct norm_args &args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    constexpr int kMost = kNarrowVectors<K, kCentre> / (K::kAdds ? 2 : 1);
    constexpr int kMostSlots = (kMost < 128 ? kMost : 128) / 8; // of rows of up to 128 vectors
    const int64_t vectors = blocks_of(args.hidden, K::kVec);
    const auto launch_slots = [&](auto slots) {
        using C = lanes_config<K, slots.value, kCentre>;
        return launch_narrow_rows<K, C>(norm_lanes_kernel<K, C>, args, 32, queue, err);
    };
    if constexpr (kMost > 128)
        if (vectors > 128)
            return launch_slots(std::integral_constant<int, kMost / 8>{});
    if constexpr (kMost > 64)
        if (vectors > 64)
            return launch_slots(std::integral_constant<int, kMostSlots>{});
    if (vectors > 32)
        return launch_slots(std::integral_constant<int, 8>{});
    if (vectors > 16)
        return launch_slots(std::integral_constant<int, 4>{});
    using C = narrow_config<K, kCentre>;
    return launch_narrow_rows<K, C>(norm_narrow_kernel<K, C>, args, vectors > 8 ? 8 : 4, queue,
                                    err);
}
