// norm_gradient_sums.cuh - gradients of norms of rows: the sums of a row, and what is made of them.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/norm_gradient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// ------------------------------------------------------------------------------------ sums

// One of two, by value: where the compiler chooses between addresses of two structs, both go
// through local memory.
template <typename Acc>
__device__ __forceinline__ Acc either(bool is_second, const Acc &first, const Acc &second)
{
    return is_second ? second : first;
}
template <typename Acc>
__device__ __forceinline__ two_sums<Acc> either(bool is_second, const two_sums<Acc> &first,
                                                const two_sums<Acc> &second)
{
    return {either(is_second, first.first, second.first),
            either(is_second, first.second, second.second)};
}

// sum_in_group of half of the threads. may_be_warp: often they are a single one, which has both
// leaves: to a sum of 0 the tree adds the zeros of others, so that it is never -0.
template <typename Acc>
__device__ __forceinline__ Acc sum_of_halves(const Acc (&x)[2], Acc *shared, int threads,
                                             bool may_be_warp = false)
{
    const bool is_upper = threadIdx.x & 16;
    const int n_warps = threads / 32;
    Acc sum = either(is_upper, x[0], x[1]) + exchange(either(is_upper, x[1], x[0]), 16);
    sum = sum_in_warp<16>(sum);
    if (may_be_warp && n_warps == 1) {
        __syncwarp(); // as the barrier is for the other kernels
        return sum + exchange(sum, 16) + Acc{};
    }
    if (threadIdx.x % 16 == 0)
        shared[threadIdx.x / 32 + (is_upper ? n_warps : 0)] = sum;
    __syncthreads();
    return sum_leaves(shared, 2 * n_warps);
}

// Of squares, and of grad_y * w times what is squared; where that is a distance from the mean, also
// of the distances, and of grad_y * w.
template <typename C>
using gradient_sums = std::conditional_t<C::kCentres, two_sums<two_sums<float>>, two_sums<float>>;

// What the blocks of a row tell each other, once. Two floats are sent as the bits of a double. Of
// the threads the first ones have shares, one for so many threads.
template <int kSums, int kOfVector>
struct parts_exchange {
    cluster_values<float, 32> of_x;
    cluster_values<double, 32> of_sums[kSums];

    // Warps of a block that have shares.
    static __device__ __forceinline__ unsigned n_warps()
    {
        return blockDim.x / (32 * kOfVector);
    }
    static __device__ __forceinline__ bool has_share()
    {
        return kOfVector == 1 || threadIdx.x < blockDim.x / kOfVector;
    }
    __device__ __forceinline__ void begin()
    {
        if constexpr (kSums > 1) {
            of_x.prepare(n_warps());
            of_sums[1].prepare(n_warps());
        }
        of_sums[0].begin(n_warps());
    }
    __device__ __forceinline__ void send(int i, const two_sums<float> &x)
    {
        if (has_share())
            of_sums[i].send_of_warp(
                __hiloint2double(__float_as_int(x.second), __float_as_int(x.first)), n_warps());
    }
    __device__ __forceinline__ two_sums<float> receive(int i)
    {
        of_sums[i].wait();
        return sum_leaves(reinterpret_cast<const two_sums<float> *>(of_sums[i].of_warp),
                          (int)(gridDim.y * n_warps()));
    }
    __device__ __forceinline__ float sum_of(float x)
    {
        x = sum_in_warp<32>(x);
        if (has_share())
            of_x.send_of_warp(x, n_warps());
        of_x.wait();
        return sum_leaves(of_x.of_warp, (int)(gridDim.y * n_warps()));
    }
    __device__ __forceinline__ two_sums<float> sum_of(const two_sums<float> &x)
    {
        send(0, sum_in_warp<32>(x));
        return receive(0);
    }
    __device__ __forceinline__ two_sums<two_sums<float>> sum_of(two_sums<two_sums<float>> x)
    {
        x = sum_in_warp<32>(x);
        send(0, x.first);
        send(kSums - 1, x.second);
        const two_sums<float> first = receive(0);
        return {first, receive(kSums - 1)};
    }
};
struct no_parts {
};

// What the warps of a row tell each other, for rows in turn. That of warps which a block does not
// have stays 0.
template <typename C>
struct gradient_exchange
    : std::conditional_t<C::kIsPart, parts_exchange<C::kSums, C::kOfVector>, no_parts> {
    gradient_sums<C> sums[2][C::kWarps];
    float x[2][(C::kLeavesPartial ? 4 : 1) * C::kWarps];
    two_sums<double> exact[3][C::kWarps]; // of settle's passes

    __device__ __forceinline__ void clear()
    {
        static_assert(sizeof *this % 4 == 0, "words");
        for (int i = threadIdx.x; i < (int)sizeof *this / 4; i += blockDim.x)
            reinterpret_cast<uint32_t *>(this)[i] = 0;
        __syncthreads();
    }
};

constexpr int64_t kMostFloatSum = 1 << 18; // columns

// grad_x = s * (grad_y * w - shift - n * k), n = (x - mean - rest) * s.
struct row_factors {
    float mean, rest, s, shift, k;
};

// Does float32 hold the sum, and has it lost nothing that matters?
__device__ __forceinline__ bool is_tame(float sum)
{
    return fabsf(sum) >= 0x1p-90f && fabsf(sum) <= 0x1p120f;
}

__device__ __forceinline__ void add_product(two_sums<float> &sums, float x, float gw)
{
    sums.first = fma(x, x, sums.first);
    sums.second = fma(gw, x, sums.second);
}
__device__ __forceinline__ void add_product(two_sums<two_sums<float>> &sums, float off, float gw)
{
    sums.first.first += off;
    sums.first.second = fma(off, off, sums.first.second);
    sums.second.first += gw;
    sums.second.second = fma(gw, off, sums.second.second);
}

template <typename C, typename Row>
__device__ __forceinline__ float share_of_x(const Row &row)
{
    float sum = 0;
    row.for_each([&](int, int64_t, int, const auto &x, const auto &, const auto &) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            part += x[i];
        sum += part;
    });
    return sum;
}

template <typename C, typename Row>
__device__ __forceinline__ gradient_sums<C> share_of_sums(const Row &row, float mean)
{
    gradient_sums<C> sums = {};
    row.for_each([&](int, int64_t, int n, const auto &x, const auto &g, const auto &w) {
        gradient_sums<C> part = {};
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            const float gw = rounded<C>(g[i] * w[i]);
            if constexpr (C::kCentres)
                add_product(part, i < n ? x[i] - mean : 0.0f, gw);
            else
                add_product(part, x[i], gw);
        }
        sums += part;
    });
    return sums;
}

// n of a row, of which grad_weight has a product.
template <typename C, typename X>
__device__ __forceinline__ X normal_of(X x, float mean, float rest, float s)
{
    return (C::kCentres ? x - mean - rest : x) * s;
}

// In double, of a row that is normalised by factors: its sum and its squares', or the sum of what
// grad_y has of it, and of their products.
template <typename C, typename Row>
__device__ __forceinline__ two_sums<double> share_of_exact(const Row &row, const row_factors &of,
                                                           bool is_of_products)
{
    two_sums<double> sums = {};
    row.for_each([&](int, int64_t, int n, const auto &x, const auto &g, const auto &w) {
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            const double normal = i < n ? normal_of<C>((double)x[i], of.mean, of.rest, of.s) : 0.0;
            const double other = is_of_products ? (double)rounded<C>(g[i] * w[i]) : normal;
            if constexpr (C::kCentres)
                sums.first += other;
            sums.second = fma(other, normal, sums.second);
        }
    });
    return sums;
}

__device__ __forceinline__ row_factors factors_of(const norm_gradient_args &args, float,
                                                  const two_sums<float> &sums, bool &is_good_square)
{
    float spread = fmaf(sums.first, args.inverse_hidden, args.eps), s = inverse_root(spread);
    is_good_square = is_good(sums.first, spread);
    return {0.0f, 0.0f, s, 0.0f, sums.second * args.inverse_hidden * s};
}

__device__ __forceinline__ row_factors factors_of(const norm_gradient_args &args, float mean,
                                                  const two_sums<two_sums<float>> &sums,
                                                  bool &is_good_square)
{
    float rest = sums.first.first * args.inverse_hidden, square = rest * rest;
    float variance = fmaf(sums.first.second, args.inverse_hidden, -square);
    float spread = (variance < 0 ? 0.0f : variance) + args.eps, s = inverse_root(spread);
    float dot = fmaf(-rest, sums.second.first, sums.second.second);
    is_good_square = is_good(sums.first.second, spread) && square <= spread &&
                     fabsf(sums.second.first) <= 0x1p120f;
    return {mean, rest, s, sums.second.first * args.inverse_hidden, dot * args.inverse_hidden * s};
}

__device__ __forceinline__ float dot_of(const two_sums<float> &sums)
{
    return sums.second;
}
__device__ __forceinline__ float dot_of(const two_sums<two_sums<float>> &sums)
{
    return sums.second.second;
}

// Over so many lanes, a power of two.
template <typename Sum>
__device__ __forceinline__ Sum sum_in_lanes(Sum x, int lanes)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        if (distance < lanes)
            x = x + exchange(x, distance);
    return x;
}

// Over the threads of a row. What the warps have takes registers of every thread, unless these are
// many: then the threads exchange it once more.
template <typename C, typename Sum>
__device__ __forceinline__ Sum sum_over_row(const Sum &share, Sum *shared)
{
    if constexpr (C::kWarps * sizeof(Sum) > 128)
        return sum_in_group(share, shared, C::kThreads);
    else
        return sum_in_group<C::kThreads>(share, shared);
}

// The sum of a whole row in a part of it: of any number of shares.
template <typename C, typename Sum, typename F>
__device__ __forceinline__ Sum sum_of_shares(const row_in_memory<C> &row, Sum *shared,
                                             const F &share_of)
{
#pragma unroll 1
    for (int i = row.lane; i < row.args.n_shares; i += row.threads) {
        const Sum sum = sum_in_warp<32>(share_of(row.share(i)));
        if (i % 32 == 0)
            shared[i / 32] = sum;
    }
    __syncthreads();
    return sum_leaves(shared, row.args.n_shares / 32);
}

// The same of what share_of(row) says of a thread's vectors, or of each of its two shares. In
// double each part of a row sums all of it.
template <typename C, typename Sum, typename Row, typename F>
__device__ __forceinline__ Sum sum_of_row(const Row &row, gradient_exchange<C> &exchange,
                                          Sum *shared, const F &share_of)
{
    if constexpr (C::kIsPart && std::is_same<Sum, two_sums<double>>::value) {
        return sum_of_shares<C>(row, shared, share_of);
    } else if constexpr (C::kIsPart) {
        Sum sum = share_of(row);
        if (C::kIsAny || gridDim.y > 1)
            return exchange.sum_of(sum);
        sum = sum_in_warp<32>(sum);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32] = sum;
        __syncthreads();
        return sum_leaves(shared, (int)blockDim.x / 32);
    } else if constexpr (C::kIsWide) {
        const int n_shares = row.args.n_shares, threads = (int)blockDim.x;
        Sum share[2] = {};
#pragma unroll 1
        for (int i = threadIdx.x; i < n_shares; i += threads) {
            const Sum one = share_of(row.share(i));
            share[0] = either(i < threads, share[0], one);
            share[1] = either(i < threads, one, share[1]);
        }
        if constexpr (C::kThreads == 1024)
            return sum_in_group(share[0], shared, threads);
        return sum_of_halves(share, shared, threads);
    } else if constexpr (C::kIsPackets) {
        const Sum share[2] = {share_of(row.nth(0)), share_of(row.nth(1))};
        return sum_of_halves(share, shared, (int)blockDim.x, true);
    } else if constexpr (C::kIsNarrow) {
        return sum_in_lanes(share_of(row), row.args.n_lanes);
    } else if constexpr (C::kHasHalves) {
        const Sum share[2] = {share_of(row.half(0)), share_of(row.half(1))};
        return sum_of_halves(share, shared, (int)blockDim.x);
    } else if constexpr (!C::kIsAny) {
        return sum_over_row<C>(share_of(row), shared);
    } else {
        const int n_shares = row.args.n_shares;
        Sum share[2] = {};
#pragma unroll 1
        for (int i = row.lane; i < n_shares; i += row.threads) {
            share[0] = share[1];
            share[1] = share_of(row.share(i));
        }
        return n_shares > row.threads ? sum_of_halves(share, shared, row.threads)
                                      : sum_in_group(share[1], shared, row.threads);
    }
}

// 0 where the norm has no mean.
template <typename C, typename Row>
__device__ __forceinline__ float mean_of(const norm_gradient_args &args, const Row &row,
                                         gradient_exchange<C> &shared, int parity)
{
    if constexpr (C::kCentres)
        return args.inverse_hidden *
               sum_of_row<C>(row, shared, shared.x[parity],
                             [](const auto &part) { return share_of_x<C>(part); });
    else
        return 0.0f;
}

// What float32 found of a row: factors, unless its products had no sum that they could be made of.
struct found_factors {
    row_factors of;
    bool is_good, is_zero; // the squares; the sum of products
};

// Is that because every product is 0? Rows without a gradient are common.
template <typename C, typename Row>
__device__ __forceinline__ bool is_orthogonal(const Row &row, float mean)
{
    bool has_product = false;
    row.for_each([&](int, int64_t, int n, const auto &x, const auto &g, const auto &w) {
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            has_product |= i < n && g[i] * w[i] != 0.0f && x[i] != mean;
    });
    if constexpr (C::kThreads <= 32)
        return !__any_sync(0xFFFFFFFFu, has_product);
    else
        return !__syncthreads_or(has_product);
}

// What follows from the sums of passes over the row: its mean; then 1 / sqrt(variance), or of the
// squares; then of grad_y and of products, about these factors as floats: where s is Inf, so are
// the products, or NaN, of which sums about a mean know nothing.
template <typename C>
__device__ __forceinline__ void use_sums(const norm_gradient_args &args, int pass,
                                         const two_sums<double> &sums, row_factors &of)
{
    const double inverse = 1.0 / (double)args.hidden;
    const double first = C::kCentres ? sums.first * inverse : 0.0, second = sums.second * inverse;
    if (pass == 0) {
        of.mean = (float)first;
    } else if (pass == 1) {
        const double variance = fma(-first, first, second);
        of.rest = (float)first;
        of.s = (float)(1.0 / sqrt((variance < 0 ? 0.0 : variance) + (double)args.eps));
    } else {
        of.shift = (float)first;
        of.k = (float)second;
    }
}

// Of x and grad_y from memory, or from shared memory, so that the common rows have its instructions
// and registers for themselves.
template <typename C, typename Row>
__device__ __forceinline__ row_factors settle(const Row row, gradient_exchange<C> &shared,
                                              const found_factors found)
{
    bool is_known = found.is_good && found.is_zero;
    if (C::kThreads <= 32 ? __any_sync(0xFFFFFFFFu, is_known) : is_known)
        is_known = is_orthogonal<C>(row, found.of.mean) && is_known;
    if (C::kThreads <= 32 ? __all_sync(0xFFFFFFFFu, is_known) : is_known)
        return found.of;
    row_factors again = {0.0f, 0.0f, 1.0f, 0.0f, 0.0f};
#pragma unroll(C::kCentres ? 1 : 2)
    for (int pass = C::kCentres ? 0 : 1; pass < 3; pass++)
        use_sums<C>(row.args, pass,
                    sum_of_row<C>(row, shared, shared.exact[pass],
                                  [&](const auto &part) {
                                      return share_of_exact<C>(part, again, pass == 2);
                                  }),
                    again);
    return is_known ? found.of : again;
}

// The same in every thread of the row. again: the same row in memory, or in shared memory.
template <typename C, typename Row, typename Again>
__device__ __forceinline__ row_factors find_factors(const Row &row, const Again &again,
                                                    gradient_exchange<C> &shared, int parity)
{
    const norm_gradient_args &args = again.args;
    found_factors found = {};
    bool is_done = false;
    if (!C::kIsAny || args.hidden <= kMostFloatSum) {
        const float mean = mean_of<C>(args, row, shared, parity);
        const auto sums = sum_of_row<C>(row, shared, shared.sums[parity], [&](const auto &part) {
            return share_of_sums<C>(part, mean);
        });
        found.of = factors_of(args, mean, sums, found.is_good);
        found.is_zero = dot_of(sums) == 0.0f;
        is_done = found.is_good && is_tame(dot_of(sums));
    }
    if (C::kThreads <= 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return found.of;
    const row_factors settled = settle<C>(again, shared, found);
    return is_done ? found.of : settled;
}

// A vector of grad_x, to which to's values are added; x becomes what grad_weight has of it.
template <typename C>
__device__ __forceinline__ void descend(const row_factors &of, float (&x)[C::kVec],
                                        const float (&g)[C::kVec], const float (&w)[C::kVec],
                                        float (&to)[C::kVec])
{
#pragma unroll
    for (int i = 0; i < C::kVec; i++) {
        const float normal = normal_of<C>(x[i], of.mean, of.rest, of.s);
        float gw = rounded<C>(g[i] * w[i]);
        if constexpr (C::kCentres) // fused in every kernel, or in none
            gw = C::kRounds ? gw - of.shift : fmaf(g[i], w[i], -of.shift);
        to[i] = of.s * fmaf(-normal, of.k, gw) + to[i];
        x[i] = rounded<C>(normal);
    }
}
