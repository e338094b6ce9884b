// norm_gradient_tiny.cuh - gradients of norms of a few narrow rows that 16 bytes do not divide, by
// one block; for norm_gradient.cuh.
//
// Such a call waits for launches: here a warp has each row, a vector of single elements for each
// lane, and the block adds the columns itself.
#pragma once

#include "cuda/norm_gradient_only.cuh"

constexpr int kMostTinyRows = 16, kMostTinyVectors = 32;
constexpr int64_t kMostTinyElements = 2048;

template <typename C>
static __global__ void __launch_bounds__(32 * kMostTinyRows, 1)
    tiny_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    constexpr int kWidth = kMostTinyVectors * C::kVec;
    __shared__ float products[C::kSums][kMostTinyRows][kWidth];
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    const int64_t number = threadIdx.x / 32;
    const int column = (int)threadIdx.x % 32 * C::kVec, n = counted<C>(args, number, column);
    const gradient_row<C> from(args, number);
    const T *residual = static_cast<const T *>(args.grad_residual);
    float w[C::kVec];
    lane_row<C> row{args, column, w, n};
    uint4 before = {};
    float made[C::kVec];
    wait_for_previous();
    row.x = load_any<C>(from.x + column, n, nullptr);
    row.g = load_any<C>(from.g + column, n, nullptr);
    if (residual)
        before = load_any<C>(residual + number * args.grad_residual_pitch + column, n, nullptr);
    with_weight(args, args.weight,
                [&](auto *weight) { load_gains<C>(args, weight, column, n, w); });
    const row_factors of = find_factors<C>(row, row, exchange, 0);
    unpack<T>(before, made);
    row.for_each([&](int, int, int, auto &x, auto &g, auto &w) {
        descend<C>(of, x, g, w, made);
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            products[0][number][column + i] = x[i] * g[i];
            if constexpr (C::kCentres)
                products[1][number][column + i] = g[i];
        }
    });
    store_vector<T, false>(static_cast<T *>(args.grad_x) + number * args.grad_x_pitch + column, n,
                           made);
    __syncthreads();
    for (int i = threadIdx.x; i < C::kSums * kWidth; i += blockDim.x) {
        const int sum = i / kWidth, at = i % kWidth;
        double of_column = 0.0;
        if (args.sum_place[sum] < 0 || at >= (int)args.hidden)
            continue;
        for (int j = 0; j < (int)args.n_rows; j++)
            of_column += (double)products[sum][j][at];
        store_as(args.sum_dtype, args.sum_to[args.sum_place[sum]], at, (float)of_column);
    }
}

// ------------------------------------------------------------------------------------ launch

static inline bool is_tiny(const struct norm_gradient_args &args, int64_t vectors)
{
    return args.n_rows > 1 && args.n_rows <= kMostTinyRows && vectors <= kMostTinyVectors &&
           args.n_rows * args.hidden <= kMostTinyElements && args.hidden != args.sum_pitch;
}

template <typename T, bool kCentres>
static enum roped_status launch_tiny(const struct norm_gradient_args &args,
                                     struct roped_queue *queue, struct roped_error *err)
{
    using C = gradient_config<T, kCentres, false, false, 32, 1, true, false, true>;
    return start(queue, tiny_norm_gradient_kernel<C>, dim3(32 * (unsigned)args.n_rows), 1, dim3(1),
                 args, err);
}
