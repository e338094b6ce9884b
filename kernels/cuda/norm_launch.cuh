// norm_launch.cuh - launch shapes of the norm operators: how many threads take a row, how many
// rows they take, which kernel. Host code but for the constants that a kernel is compiled with.
#pragma once

#include "cuda/device/norm_reread.cuh"
#include "cuda/dispatch.cuh"
#include "ops/rmsnorm.h"

constexpr int kNormThreads = 256; // per block where groups are smaller

// kThreads threads per row, kVectors vectors per thread. Registers decide what is loaded ahead:
// weights, but not beside four vectors or a wide sum; the next row, where a group takes several,
// but not beside those either. Narrow rows fill the machine with groups that take one row each:
// loading ahead gains nothing.
template <typename K, int kRowThreads, int kRowVectors, weight_class kClass, bool kTakesRows>
struct norm_config {
    static constexpr weight_class kWeight = kClass;
    static constexpr int kThreads = kRowThreads;
    static constexpr int kVectors = kRowVectors;
    static constexpr bool kIsBlock = kThreads > 32;
    static constexpr bool kIsLarge = kVectors > 2 || (K::kAdds && kThreads >= 512);
    static constexpr int kBlock = kIsBlock ? kThreads : kNormThreads;
    static constexpr int kGroups = kBlock / kThreads;
    static constexpr bool kStartsWeight = !kIsBlock || !kIsLarge;
    static constexpr int kMinBlocks = kThreads == 512 ? 2 : 1;
    // rows that a group takes in turn at most; 64 registers hold no next row beside FP8's scales
    static constexpr bool kIsFull = kThreads == 512 && K::kSink != kToFloats;
    static constexpr int kMostRows = kIsBlock && !kIsLarge && !kIsFull ? 4 : 1;
    // 1: the kernel has no such loop, and half the instructions to fetch
    static constexpr int kMaxRows = kTakesRows ? kMostRows : 1;
};

static int64_t blocks_of(int64_t n_rows, int64_t rows_per_block)
{
    return (n_rows + rows_per_block - 1) / rows_per_block;
}

template <typename K>
static enum roped_status launch_reread(struct norm_args *args, bool is_aligned, int threads,
                                       struct roped_queue *queue, struct roped_error *err)
{
    int block = threads < kNormThreads ? kNormThreads : threads;
    kernel_fn<norm_args> *kernel =
        is_aligned ? norm_reread_kernel<K, true> : norm_reread_kernel<K, false>;
    if (threads > 32)
        block = threads;
    args->threads_per_row = threads;
    return start(queue, kernel, dim3(block), blocks_of(args->n_rows, block / threads), dim3(),
                 *args, err);
}

// Many rows: a group takes up to four neighbours, so that weights are read less often and all but
// the first load overlap a sum; but every multiprocessor keeps 16 blocks to take in turn. Few rows:
// each its own group.
template <typename K, int kThreads, int kVectors, weight_class kClass>
static enum roped_status launch_config(struct norm_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    using one = norm_config<K, kThreads, kVectors, kClass, false>;
    using many = norm_config<K, kThreads, kVectors, kClass, (one::kMostRows > 1)>;
    int64_t n_blocks = blocks_of(args->n_rows, one::kGroups);
    int64_t enough = (int64_t)queue->n_multiprocessors * 16;
    int64_t rows = (n_blocks + enough / 2) / enough;
    rows = rows < 1 ? 1 : rows > one::kMostRows ? one::kMostRows : rows;
    args->rows_per_group = (int32_t)rows;
    args->n_vectors = (int32_t)(args->hidden / K::kVec);
    return start(queue, rows > 1 ? norm_kernel<K, many> : norm_kernel<K, one>, dim3(one::kBlock),
                 blocks_of(n_blocks, rows), dim3(), *args, err);
}

// Weights of another type than x have kernels of their own for the plain norm; elsewhere they take
// the kernel that knows every type, whose second reading of the row comes from a cache.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_rows(struct norm_args *args, bool is_aligned,
                                     struct roped_queue *queue, struct roped_error *err)
{
    bool is_in_kind = args->weight_kind <= kWeightSame;
    if (is_aligned && is_in_kind)
        return launch_config<K, kThreads, kVectors, kWeightInKind>(args, queue, err);
    if constexpr (K::kSink == kToFloats && !K::kAdds)
        if (is_aligned)
            return launch_config<K, kThreads, kVectors, kWeightOther>(args, queue, err);
    return launch_reread<K>(args, is_aligned, kThreads, queue, err);
}

// Threads and vectors per row, by the row's vectors of 16 bytes: two to four loads in flight per
// thread, and a block as small as that allows, for its barrier is what a single row waits for.
// 4,096 of bfloat16 are 512 vectors: 256 threads with two each.
template <typename K>
static enum roped_status launch_norm(struct norm_args *args, bool is_aligned,
                                     struct roped_queue *queue, struct roped_error *err)
{
    int64_t vectors = (args->hidden + K::kVec - 1) / K::kVec;
    if (vectors <= 8)
        return launch_rows<K, 4, 2>(args, is_aligned, queue, err);
    if (vectors <= 16)
        return launch_rows<K, 8, 2>(args, is_aligned, queue, err);
    if (vectors <= 32)
        return launch_rows<K, 16, 2>(args, is_aligned, queue, err);
    if (vectors <= 64)
        return launch_rows<K, 32, 2>(args, is_aligned, queue, err);
    if (vectors <= 128)
        return launch_rows<K, 32, 4>(args, is_aligned, queue, err);
    if (vectors <= 256)
        return launch_rows<K, 128, 2>(args, is_aligned, queue, err);
    if (vectors <= 512)
        return launch_rows<K, 256, 2>(args, is_aligned, queue, err);
    if (vectors <= 1024)
        return launch_rows<K, 512, 2>(args, is_aligned, queue, err);
    if (vectors <= 2048)
        return launch_rows<K, 512, 4>(args, is_aligned, queue, err);
    if (vectors <= 4096)
        return launch_rows<K, 1024, 4>(args, is_aligned, queue, err);
    args->sums_in_double = true;
    return launch_reread<K>(args, is_aligned, 1024, queue, err);
}

static inline int weight_kind_of(int weight, int x)
{
    if (weight == ROPED_NO_DTYPE)
        return kWeightNone;
    if (weight == x)
        return kWeightSame;
    if (weight == ROPED_F32)
        return kWeightFloat;
    return weight == ROPED_F16 ? kWeightHalf : kWeightBf16;
}

// What every norm operator's arguments have; x's pointers and those of further results are left to
// the operator.
static inline struct norm_args norm_args_of(const struct rmsnorm_plan *plan,
                                            const struct roped_tensor *x,
                                            const struct roped_tensor *weight,
                                            const struct roped_tensor *y)
{
    struct norm_args args = {};
    args.x = x->data;
    args.weight = weight->data;
    args.y = y->data;
    args.n_rows = plan->n_rows;
    args.hidden = plan->hidden;
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.exact_inverse_hidden = 1.0 / (double)plan->hidden;
    args.inverse_hidden = (float)args.exact_inverse_hidden;
    args.weight_kind = weight_kind_of(plan->weight_dtype, x->dtype);
    args.rounds_product = plan->rounding == RMSNORM_ROUND_HF && x->dtype != ROPED_F32;
    return args;
}

// Can rows be moved in vectors of 16 bytes? y_bytes is what such a vector becomes in y. Pointers
// that an operator does not have are NULL, and aligned.
template <typename T>
static bool has_vectors(const struct norm_args *args, uintptr_t y_bytes)
{
    return args->hidden % kVecOf<T> == 0 && is_aligned(args->x, 16) &&
           is_aligned(args->weight, 16) && is_aligned(args->y, y_bytes) &&
           is_aligned(args->residual, 16) && is_aligned(args->residual_out, 16);
}
