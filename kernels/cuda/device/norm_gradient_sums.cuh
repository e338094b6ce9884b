// norm_gradient_sums.cuh - gradients of norms of rows: the sums of a row, and what is made of them.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/norm_gradient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// ------------------------------------------------------------------------------------ sums

// Of squares, and of grad_y * w times what is squared; where that is a distance from the mean, also
// of the distances, and of grad_y * w.
template <typename C, typename Acc>
using gradient_sums = std::conditional_t<C::kCentres, two_sums<two_sums<Acc>>, two_sums<Acc>>;

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
    gradient_sums<C, double> exact[2][C::kWarps];
    gradient_sums<C, float> sums[2][C::kWarps];
    double exact_x[2][C::kWarps];
    float x[2][C::kWarps];

    __device__ __forceinline__ void clear()
    {
        static_assert(sizeof *this % 4 == 0, "words");
        for (int i = threadIdx.x; i < (int)sizeof *this / 4; i += blockDim.x)
            reinterpret_cast<uint32_t *>(this)[i] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ auto *of(float, int turn)
    {
        return sums[turn];
    }
    __device__ __forceinline__ auto *of(double, int turn)
    {
        return exact[turn];
    }
    __device__ __forceinline__ float *of_x(float, int turn)
    {
        return x[turn];
    }
    __device__ __forceinline__ double *of_x(double, int turn)
    {
        return exact_x[turn];
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

template <typename C, typename Acc, typename Row>
__device__ __forceinline__ Acc share_of_x(const Row &row)
{
    Acc sum = 0;
    row.for_each([&](int, int64_t, int, const auto &x, const auto &, const auto &) {
        Acc part = 0;
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            part += (Acc)x[i];
        sum += part;
    });
    return sum;
}

template <typename C, typename Acc, typename Row>
__device__ __forceinline__ gradient_sums<C, Acc> share_of_sums(const Row &row, float mean)
{
    gradient_sums<C, Acc> sums = {};
    row.for_each([&](int, int64_t, int n, const auto &x, const auto &g, const auto &w) {
        gradient_sums<C, Acc> part = {};
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            Acc gw = (Acc)rounded<C>(g[i] * w[i]);
            if constexpr (C::kCentres) {
                Acc off = i < n ? (Acc)x[i] - (Acc)mean : (Acc)0;
                part.first.first += off;
                part.first.second = fma(off, off, part.first.second);
                part.second.first += gw;
                part.second.second = fma(gw, off, part.second.second);
            } else {
                part.first = fma((Acc)x[i], (Acc)x[i], part.first);
                part.second = fma(gw, (Acc)x[i], part.second);
            }
        }
        sums += part;
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

__device__ __forceinline__ row_factors factors_of(const norm_gradient_args &args, float,
                                                  const two_sums<double> &sums,
                                                  bool &is_good_square)
{
    double s = 1.0 / sqrt(sums.first / (double)args.hidden + (double)args.eps);
    is_good_square = true;
    return {0.0f, 0.0f, (float)s, 0.0f, (float)(sums.second / (double)args.hidden * s)};
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

__device__ __forceinline__ row_factors factors_of(const norm_gradient_args &args, float mean,
                                                  const two_sums<two_sums<double>> &sums,
                                                  bool &is_good_square)
{
    double inverse = 1.0 / (double)args.hidden, rest = sums.first.first * inverse;
    double variance = fma(sums.first.second, inverse, -(rest * rest));
    double s = 1.0 / sqrt((variance < 0 ? 0.0 : variance) + (double)args.eps);
    double dot = fma(-rest, sums.second.first, sums.second.second);
    is_good_square = true;
    return {mean, (float)rest, (float)s, (float)(sums.second.first * inverse),
            (float)(dot * inverse * s)};
}

__device__ __forceinline__ float dot_of(const two_sums<float> &sums)
{
    return sums.second;
}
__device__ __forceinline__ float dot_of(const two_sums<two_sums<float>> &sums)
{
    return sums.second.second;
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
template <typename C, typename Acc, typename Sum, typename Row, typename F>
__device__ __forceinline__ Sum sum_of_row(const Row &row, gradient_exchange<C> &exchange,
                                          Sum *shared, const F &share_of)
{
    if constexpr (C::kIsPart && sizeof(Acc) == 8) {
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
        return n_shares > row.threads ? sum_in_group(share, shared, row.threads)
                                      : sum_in_group(share[1], shared, row.threads);
    }
}

template <typename C, typename Acc, typename Row>
__device__ __forceinline__ gradient_sums<C, Acc>
sums_of(const norm_gradient_args &args, const Row &row, gradient_exchange<C> &shared, int parity,
        float &mean)
{
    mean = 0.0f;
    if constexpr (C::kCentres) {
        const Acc sum =
            sum_of_row<C, Acc>(row, shared, shared.of_x(Acc(), parity),
                               [](const auto &part) { return share_of_x<C, Acc>(part); });
        mean = (float)(sum * (sizeof(Acc) == 8 ? (Acc)(1.0 / (double)args.hidden)
                                               : (Acc)args.inverse_hidden));
    }
    return sum_of_row<C, Acc>(row, shared, shared.of(Acc(), parity),
                              [&](const auto &part) { return share_of_sums<C, Acc>(part, mean); });
}

// What float32 found of a row: factors, unless its products had no sum that they could be made of.
struct found_factors {
    row_factors of;
    bool is_good, is_zero; // the squares; the sum of products
};

// Is that because every product is 0? Rows without a gradient are common.
template <typename C>
__device__ __forceinline__ bool is_orthogonal(const row_in_memory<C> &row, float mean)
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

// Of grad_y * w times n. Where the sum of one is Inf, what was summed about another mean is NaN;
// and where s is Inf as a float, n is Inf or NaN, of which the sums before know nothing.
template <typename C>
__device__ __forceinline__ double share_of_dot(const row_in_memory<C> &row, const row_factors &of)
{
    double sum = 0;
    row.for_each([&](int, int64_t, int n, const auto &x, const auto &g, const auto &w) {
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            const double normal = (((double)x[i] - of.mean) - of.rest) * of.s;
            sum += i < n ? (double)rounded<C>(g[i] * w[i]) * normal : 0.0;
        }
    });
    return sum;
}

// Out of line, and of x and grad_y from memory, so that the common rows have its instructions and
// registers for themselves.
template <typename C>
__device__ __forceinline__ row_factors settle(const row_in_memory<C> row,
                                              gradient_exchange<C> &shared, int parity,
                                              const found_factors found)
{
    float mean;
    bool is_known = found.is_good && found.is_zero;
    if (C::kThreads <= 32 ? __any_sync(0xFFFFFFFFu, is_known) : is_known)
        is_known = is_orthogonal<C>(row, found.of.mean) && is_known;
    if (C::kThreads <= 32 ? __all_sync(0xFFFFFFFFu, is_known) : is_known)
        return found.of;
    const auto exact = sums_of<C, double>(row.args, row, shared, parity, mean);
    bool is_good;
    row_factors again = factors_of(row.args, mean, exact, is_good);
    const double dot =
        sum_of_row<C, double>(row, shared, shared.of_x(0.0, parity),
                              [&](const auto &part) { return share_of_dot<C>(part, again); });
    again.k = (float)(dot / (double)row.args.hidden);
    return is_known ? found.of : again;
}

// The same in every thread of the row. again: the same row in memory.
template <typename C, typename Row>
__device__ __forceinline__ row_factors find_factors(const Row &row, const row_in_memory<C> &again,
                                                    gradient_exchange<C> &shared, int parity)
{
    const norm_gradient_args &args = again.args;
    found_factors found = {};
    bool is_done = false;
    if (!C::kIsAny || args.hidden <= kMostFloatSum) {
        float mean;
        const auto sums = sums_of<C, float>(args, row, shared, parity, mean);
        found.of = factors_of(args, mean, sums, found.is_good);
        found.is_zero = dot_of(sums) == 0.0f;
        is_done = found.is_good && is_tame(dot_of(sums));
    }
    if (C::kThreads <= 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return found.of;
    const row_factors settled = settle<C>(again, shared, parity, found);
    return is_done ? found.of : settled;
}

// n of a row, of which grad_weight has a product.
template <typename C>
__device__ __forceinline__ float normal_of(float x, float mean, float rest, float s)
{
    return (C::kCentres ? x - mean - rest : x) * s;
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
