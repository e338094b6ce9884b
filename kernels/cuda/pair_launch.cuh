// pair_launch.cuh - launch shapes of the norms beside a second tensor (device/norm_pair.cuh). Host
// code but for what a kernel is compiled with.
#pragma once

#include "cuda/device/norm_pair.cuh"
#include "cuda/norm_launch.cuh"

// As a norm has them, but for what has no place in its kernel.
template <typename K, int kRowThreads, int kRowVectors, bool kKeep, int kRowShares = 1>
struct pair_config : norm_config<K, kRowThreads, kRowVectors, kWeightInKind, false, kRowShares,
                                 false, (kRowThreads * kRowShares >= 512)> {
    static constexpr bool kKeeps = kKeep;
    static constexpr bool kIsSmall = kRowVectors == 2 || sizeof(typename K::T) == 4;
    // 64 registers, where a row's vectors and their weights need no more; 80 for twice as many
    static constexpr int kMinBlocks =
        kRowShares == 2 && kRowThreads <= 256                     ? 768 / pair_config::kBlock
        : pair_config::kIsBlock && kIsSmall && kRowThreads <= 512 ? 1024 / kRowThreads
                                                                  : 1;
};

template <typename K>
static enum roped_status launch_pair_reread(struct pair_args *args, bool is_aligned, int threads,
                                            struct roped_queue *queue, struct roped_error *err)
{
    const dim3 block = block_of_rows(threads);
    kernel_fn<pair_args> *kernel =
        is_aligned ? pair_reread_kernel<K, true> : pair_reread_kernel<K, false>;
    return start(queue, kernel, block, blocks_of(args->norm.n_rows, block.y), dim3(), *args, err);
}

// Many rows beside a gate of 16 bits are bound by instructions: half of the threads share out what
// a row costs beside its elements. What a call reads and writes must not be found in L2 for its
// loads to be kept there; rows of less than a block are too narrow for that to be worth kernels of
// their own.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_pair_rows(struct pair_args *args, struct roped_queue *queue,
                                          struct roped_error *err)
{
    constexpr bool kHasGate = K::kPair == GATE_THEN_NORM || K::kPair == NORM_THEN_GATE;
    constexpr bool kHalves =
        kVectors == 2 &&
        (kThreads == 1024 || (kHasGate && kThreads >= 32 && sizeof(typename K::T) == 2));
    constexpr bool kMayKeep = kThreads >= 128;
    using few = pair_config<K, kThreads, kVectors, false>;
    constexpr int kShares = kHalves ? 2 : 1;
    using many = pair_config<K, kThreads / kShares, kVectors * kShares, false, kShares>;
    using kept = pair_config<K, kThreads / kShares, kVectors * kShares, kMayKeep, kShares>;
    struct norm_args *norm = &args->norm;
    const int64_t bytes =
        (K::kAdds ? 3 : 2) * norm->n_rows * norm->hidden * (int64_t)sizeof(typename K::T);
    norm->n_vectors = (int32_t)(norm->hidden / K::kVec);
    if (kMayKeep && passes_l2(bytes, queue))
        return start(queue, pair_kernel<K, kept>, block_of<kept>(norm),
                     blocks_of(norm->n_rows, kept::kGroups), dim3(), *args, err);
    if (has_many_rows(norm, queue))
        return start(queue, pair_kernel<K, many>, block_of<many>(norm),
                     blocks_of(norm->n_rows, many::kGroups), dim3(), *args, err);
    const int64_t n_blocks = blocks_of(norm->n_rows, few::kGroups);
    int parts = few::kMayPart ? parts_of_row<K>(norm, (int)block_of<few>(norm).x) : 1;
    return start(queue, pair_kernel<K, few>, block_of<few>(norm), n_blocks, dim3(1, parts), *args,
                 err);
}

template <typename K>
static enum roped_status launch_pair_kind(struct pair_args *args, struct roped_queue *queue,
                                          struct roped_error *err)
{
    struct norm_args *norm = &args->norm;
    const bool is_aligned = has_vectors<typename K::T>(norm, 16);
    const int64_t vectors = vectors_of<K>(norm);
    if (vectors > kMostVectors) {
        norm->sums_in_double = vectors > kMostFloatVectors;
        return launch_pair_reread<K>(args, is_aligned, wide_threads(vectors), queue, err);
    }
    return with_row_shape(vectors, [&](auto shape) {
        if (is_aligned && norm->weight_kind <= kWeightSame)
            return launch_pair_rows<K, shape.kThreads, shape.kVectors>(args, queue, err);
        const int threads = staged_threads<K, shape.kThreads, shape.kVectors>(norm);
        return launch_pair_reread<K>(args, is_aligned, threads, queue, err);
    });
}

static inline int64_t pair_pitch(const struct norm_pair_plan *plan,
                                 const struct roped_tensor *tensor)
{
    int64_t width = plan->n_groups * plan->norm.hidden;
    return plan->norm.n_rows > plan->n_groups ? row_stride(tensor, width) : width;
}

static inline int weight_bytes_of(const struct norm_pair_plan *plan)
{
    return plan->norm.weight_dtype == ROPED_NO_DTYPE
               ? 0
               : (int)roped_dtype_bytes((enum roped_dtype)plan->norm.weight_dtype);
}

// So many rows of the tensors at a time that their groups can be counted in a register.
template <norm_pair kPair>
static enum roped_status
launch_pair(const struct norm_pair_plan *plan, const struct roped_tensor *x,
            const struct roped_tensor *second, const struct roped_tensor *weight,
            const struct roped_tensor *out, struct roped_queue *queue, struct roped_error *err)
{
    const int64_t most = kMostPackets / plan->n_groups;
    struct pair_args args = {};
    if (most == 0)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "call: %lld groups in a row, expected at most %lld on this device",
                          (long long)plan->n_groups, (long long)kMostPackets);
    args.norm = norm_args_of(&plan->norm, x, weight, out);
    args.norm.x_pitch = pair_pitch(plan, x);
    args.norm.y_pitch = pair_pitch(plan, out);
    args.norm.residual_pitch = args.norm.x_pitch;
    if (kPair != NORM_ALONE) {
        args.norm.residual = second->data;
        args.norm.residual_pitch = pair_pitch(plan, second);
    }
    args.norm.residual_out_pitch = args.norm.y_pitch; // no such tensor
    args.n_groups = (uint32_t)plan->n_groups;
    args.to_row = index_divisor(plan->n_groups);
    args.weight_bytes = weight_bytes_of(plan);
    args.activation = plan->activation;
    args.rounds_norm = plan->rounds_norm;
    args.rounds_scale = plan->rounds_scale;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        enum roped_status status = ROPED_OK;
        const int64_t n_rows = plan->norm.n_rows / plan->n_groups;
        for (int64_t row = 0; row < n_rows && !status; row += most) {
            struct pair_args part = args;
            part.norm.n_rows = (n_rows - row < most ? n_rows - row : most) * plan->n_groups;
            part.norm.x = static_cast<const T *>(args.norm.x) + row * args.norm.x_pitch;
            part.norm.y = static_cast<T *>(args.norm.y) + row * args.norm.y_pitch;
            if (kPair != NORM_ALONE)
                part.norm.residual =
                    static_cast<const T *>(args.norm.residual) + row * args.norm.residual_pitch;
            status = launch_pair_kind<pair_kind<T, kPair>>(&part, queue, err);
        }
        return status;
    });
}
