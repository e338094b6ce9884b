// norm_gradient.cuh - gradients of norms of rows: what a thread has of a row, and the sums of it.
//
//     n = (x - mean) * s, w = weight_bias + weight
//     grad_x = s * (grad_y * w - mean(grad_y * w) - n * mean(grad_y * w * n)) + grad_residual
//     grad_weight = sum of grad_y * n over the rows, grad_bias = sum of grad_y
//
// where a norm that is not centred has neither mean.
#pragma once

#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"
#include "cuda/device/stage.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"

#include <roped/op.h>

#include <type_traits>

struct norm_gradient_args {
    const void *grad_y, *x, *weight, *grad_residual; // weight, grad_residual: or NULL
    void *grad_x;
    float *partial; // [blocks][n_sums][sum_pitch], or NULL: one block has all rows
    float4 *scales; // [n_rows], what columns_kernel needs of each: mean, rest, s; or NULL
    void *sum_to[2];
    int64_t n_rows, hidden, sum_pitch;
    int64_t grad_y_pitch, x_pitch, grad_residual_pitch, grad_x_pitch; // elements to the next row
    float eps, weight_bias, inverse_hidden;
    int32_t weight_dtype; // enum roped_dtype
    int32_t sum_dtype;
    int32_t sum_place[2]; // of grad_weight and grad_bias among the sums, or -1
    int32_t n_sums, n_partial;
    int32_t n_stages;       // rows that are on their way to shared memory
    int32_t sums_in_shared; // bool
    int32_t keeps;          // bool: lines that are read leave L2 last (device/vector.cuh)
};

template <typename T>
constexpr int kDtypeOf = std::is_same<T, float>::value    ? ROPED_F32
                         : std::is_same<T, __half>::value ? ROPED_F16
                                                          : ROPED_BF16;

// Threads of a row, or where kGroups is 1 at most so many, and the vectors of each. A block of
// narrow rows has several; kIsAlone: each row has a block of its own.
template <typename Element, bool kIsCentred, bool kDoesRound, bool kIsAligned, int kOfRow,
          int kOfThread, bool kIsAlone = false>
struct gradient_config {
    using T = Element;
    static constexpr bool kCentres = kIsCentred, kRounds = kDoesRound, kAligned = kIsAligned;
    static constexpr int kVec = kVecOf<T>, kThreads = kOfRow, kVectors = kOfThread;
    static constexpr int kSums = kCentres ? 2 : 1;
    static constexpr int kGroups = kIsAlone || kThreads > 32 ? 1 : 256 / kThreads;
    static constexpr int kBlock = kThreads * kGroups;
    static constexpr int kMinBlocks = kGroups == 1 ? 1 : kCentres ? 2 : 3;
    static constexpr bool kHolds = kVectors <= 2; // rows and gains, in registers
    static constexpr int kWarps = kThreads > 32 ? kThreads / 32 : 1;
};

// ------------------------------------------------------------------------------------ vectors

template <typename C>
__device__ __forceinline__ float rounded(float x)
{
    using T = typename C::T;
    return C::kRounds ? element<T>::to_float(element<T>::from_float(x)) : x;
}

// n elements of a row, zeros behind them.
template <typename C>
__device__ __forceinline__ uint4 load_raw(const typename C::T *from, int n)
{
    using T = typename C::T;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if constexpr (C::kAligned) {
        if (n > 0)
            raw = load_16(from);
    } else {
        float x[C::kVec];
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            x[i] = i < n ? element<T>::to_float(from[i]) : 0.0f;
        raw = pack<T>(x); // the same values
    }
    return raw;
}

template <typename C>
__device__ __forceinline__ void store_row(typename C::T *to, int n, const float (&x)[C::kVec])
{
    using T = typename C::T;
    if constexpr (C::kAligned) {
        if (n > 0)
            store_floats<T>(to, x);
    } else {
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            if (i < n)
                to[i] = element<T>::from_float(x[i]);
    }
}

// Weights of type W. Without a branch between the loads of vectors, which then share one wait.
template <typename C, typename W>
__device__ __forceinline__ void gains_of(const W *from, float bias, int n, float (&w)[C::kVec])
{
    constexpr int kVec = C::kVec;
    if constexpr (C::kAligned) {
        constexpr int kOfLoad = kVecOf<W> < kVec ? kVecOf<W> : kVec;
#pragma unroll
        for (int i = 0; i < kVec; i += kOfLoad) {
            float some[kOfLoad] = {};
            if (n > 0) {
                if constexpr (kOfLoad == kVecOf<W>)
                    unpack<W>(load_16(from + i), some);
                else
                    unpack<W>(load_8(from + i), some);
            }
#pragma unroll
            for (int j = 0; j < kOfLoad; j++)
                w[i + j] = bias + some[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            w[i] = i < n ? bias + element<W>::to_float(from[i]) : 0.0f;
    }
}

// function(W{}, weights of it), or of float and NULL where there are none.
template <typename F>
__device__ __forceinline__ void with_weight(const norm_gradient_args &args, const F &function)
{
    if (args.weight_dtype == ROPED_F16)
        function(static_cast<const __half *>(args.weight));
    else if (args.weight_dtype == ROPED_BF16)
        function(static_cast<const __nv_bfloat16 *>(args.weight));
    else
        function(static_cast<const float *>(args.weight));
}

template <typename C, typename W>
__device__ __forceinline__ void load_gains(const norm_gradient_args &args, const W *weight,
                                           int64_t column, int n, float (&w)[C::kVec])
{
    if (weight) {
        gains_of<C>(weight + column, args.weight_bias, n, w);
    } else {
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            w[i] = 1.0f;
    }
}

// ------------------------------------------------------------------------------------ rows

// Which vectors of which rows a thread has.
template <typename C>
struct gradient_place {
    int lane, threads, group;

    __device__ __forceinline__ gradient_place()
    {
        lane = C::kGroups > 1 ? threadIdx.x % C::kThreads : threadIdx.x;
        threads = C::kGroups > 1 ? C::kThreads : blockDim.x;
        group = C::kGroups > 1 ? threadIdx.x / C::kThreads : 0;
    }
    __device__ __forceinline__ int column(int v) const
    {
        return (v * threads + lane) * C::kVec;
    }
    __device__ __forceinline__ int64_t row(int64_t turn) const
    {
        return (turn * gridDim.x + blockIdx.x) * C::kGroups + group;
    }
};

// Elements of a vector that are in the row.
template <typename C>
__device__ __forceinline__ int counted(const norm_gradient_args &args, int64_t row, int64_t column)
{
    int64_t left = row < args.n_rows ? args.hidden - column : 0;
    return left <= 0 ? 0 : left < C::kVec ? (int)left : C::kVec;
}

template <typename C>
struct gradient_row {
    const typename C::T *x, *g;

    __device__ __forceinline__ gradient_row(const norm_gradient_args &args, int64_t row)
    {
        x = static_cast<const typename C::T *>(args.x) + row * args.x_pitch;
        g = static_cast<const typename C::T *>(args.grad_y) + row * args.grad_y_pitch;
    }
};

// Rows on their way to shared memory, several at a time. A thread copies the vectors that it will
// use itself, so nobody waits for another thread's.
template <typename C>
struct row_ring {
    const norm_gradient_args &args;
    const gradient_place<C> &place;
    uint4 *first;
    uint64_t policy;

    __device__ __forceinline__ uint4 *slot(int stage, int which, int v) const
    {
        return first + ((stage * 2 + which) * C::kVectors + v) * (int)blockDim.x + threadIdx.x;
    }
    __device__ __forceinline__ void copy(uint4 *to, const typename C::T *from, int n) const
    {
        copy_16<(C::kThreads < 1024)>(to, from, n > 0, policy);
    }
    __device__ __forceinline__ void fetch(int64_t row, int stage) const
    {
        const gradient_row<C> of(args, row);
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            int column = place.column(v);
            int n = counted<C>(args, row, column);
            copy(slot(stage, 0, v), of.x + column, n);
            copy(slot(stage, 1, v), of.g + column, n);
        }
        end_stage();
    }
};

// A thread's vectors of a row: in registers, or in a stage of the ring, or in memory.
template <typename C>
struct row_in_hand {
    const row_ring<C> &ring;
    const float (&w)[C::kHolds ? C::kVectors : 1][C::kVec];
    int64_t row;
    int stage;
    uint4 x[C::kHolds ? C::kVectors : 1], g[C::kHolds ? C::kVectors : 1];

    __device__ __forceinline__ void load(int v, uint4 &of_x, uint4 &of_g) const
    {
        if (ring.args.n_stages) {
            of_x = *ring.slot(stage, 0, v);
            of_g = *ring.slot(stage, 1, v);
        } else {
            int column = ring.place.column(v);
            int n = counted<C>(ring.args, row, column);
            const gradient_row<C> of(ring.args, row);
            of_x = load_raw<C>(of.x + column, n);
            of_g = load_raw<C>(of.g + column, n);
        }
    }
    __device__ __forceinline__ void hold()
    {
        if constexpr (C::kHolds)
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                load(v, x[v], g[v]);
    }
    // Else the compiler would keep what it unpacked, in twice the registers.
    __device__ __forceinline__ void forget()
    {
        if constexpr (C::kHolds)
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                asm volatile(""
                             : "+r"(x[v].x), "+r"(x[v].y), "+r"(x[v].z), "+r"(x[v].w), "+r"(g[v].x),
                               "+r"(g[v].y), "+r"(g[v].z), "+r"(g[v].w));
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            int column = ring.place.column(v);
            int n = counted<C>(ring.args, row, column);
            float of_x[C::kVec], of_g[C::kVec];
            if constexpr (C::kHolds) {
                unpack<typename C::T>(x[v], of_x);
                unpack<typename C::T>(g[v], of_g);
                f(v, column, n, of_x, of_g, w[v]);
            } else {
                float gain[C::kVec];
                uint4 raw_x, raw_g;
                load(v, raw_x, raw_g);
                with_weight(ring.args, [&](auto *weight) {
                    load_gains<C>(ring.args, weight, column, n, gain);
                });
                unpack<typename C::T>(raw_x, of_x);
                unpack<typename C::T>(raw_g, of_g);
                f(v, column, n, of_x, of_g, gain);
            }
        }
    }
};

// The same of the only row of a block, in registers. All of its loads begin at once, and those that
// the sums do not need last. What no thread of a warp has is passed over: an instruction that is
// executed once waits for its own code.
template <typename C>
struct only_row {
    using T = typename C::T;
    const norm_gradient_args &args;
    const int64_t row;
    uint4 x[C::kVectors], g[C::kVectors];
    float w[C::kVectors][C::kVec];

    __device__ __forceinline__ explicit only_row(const norm_gradient_args &norm)
        : args(norm), row(blockIdx.x)
    {
        const gradient_row<C> of(args, row);
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            x[v] = load_raw<C>(of.x + column(v), left(v));
            g[v] = load_raw<C>(of.g + column(v), left(v));
        }
        with_weight(args, [&](auto *weight) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                load_gains<C>(args, weight, column(v), left(v), w[v]);
        });
    }
    __device__ __forceinline__ int column(int v) const
    {
        return (v * (int)blockDim.x + (int)threadIdx.x) * C::kVec;
    }
    __device__ __forceinline__ int left(int v) const
    {
        return column(v) < (int)args.hidden ? C::kVec : 0;
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            if (!left(v))
                continue;
            float of_x[C::kVec], of_g[C::kVec];
            unpack<T>(x[v], of_x);
            unpack<T>(g[v], of_g);
            f(v, column(v), C::kVec, of_x, of_g, w[v]);
        }
    }
};

// The same of a row of any width: in memory, or in shared memory, each vector of x and of grad_y
// where the thread that uses it has put it.
template <typename C>
struct row_in_memory {
    const norm_gradient_args &args;
    int64_t row;
    int lane, threads;
    uint4 *staged; // x, then grad_y, or NULL

    __device__ __forceinline__ uint4 *slot_of(int64_t column) const
    {
        return staged + column / C::kVec;
    }
    __device__ __forceinline__ int64_t to_grad_y() const
    {
        return args.sum_pitch / C::kVec;
    }
    // A vector of another row, in whose place this one's is no longer needed.
    __device__ __forceinline__ void fetch(int64_t from_row, int64_t column) const
    {
        const gradient_row<C> of(args, from_row);
        const int n = counted<C>(args, from_row, column);
        uint4 *x = slot_of(column), *g = x + to_grad_y();
        if constexpr (C::kAligned) {
            copy_16<false>(x, of.x + column, n > 0, 0);
            copy_16<false>(g, of.g + column, n > 0, 0);
        } else {
            *x = load_raw<C>(of.x + column, n);
            *g = load_raw<C>(of.g + column, n);
        }
    }
    template <typename F>
    __device__ __forceinline__ void for_each_column(const F &f) const
    {
#pragma unroll 1
        for (int64_t column = lane * C::kVec; column < args.hidden; column += threads * C::kVec)
            f(column);
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        const gradient_row<C> of(args, row);
        for_each_column([&](int64_t column) {
            float x[C::kVec], g[C::kVec], w[C::kVec];
            const int n = counted<C>(args, row, column);
            uint4 raw_x, raw_g;
            if (staged) {
                raw_x = *slot_of(column);
                raw_g = slot_of(column)[to_grad_y()];
            } else {
                raw_x = load_raw<C>(of.x + column, n);
                raw_g = load_raw<C>(of.g + column, n);
            }
            with_weight(args, [&](auto *weight) { load_gains<C>(args, weight, column, n, w); });
            unpack<typename C::T>(raw_x, x);
            unpack<typename C::T>(raw_g, g);
            f(0, column, n, x, g, w);
        });
    }
};

// ------------------------------------------------------------------------------------ sums

// Of squares, and of grad_y * w times what is squared; where that is a distance from the mean, also
// of the distances, and of grad_y * w.
template <typename C, typename Acc>
using gradient_sums = std::conditional_t<C::kCentres, two_sums<two_sums<Acc>>, two_sums<Acc>>;

// What the warps of a row tell each other, for rows in turn. That of warps which a block does not
// have stays 0.
template <typename C>
struct gradient_exchange {
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

template <typename C, typename Acc, typename Row>
__device__ __forceinline__ gradient_sums<C, Acc>
sums_of(const norm_gradient_args &args, const Row &row, gradient_exchange<C> &shared, int parity,
        float &mean)
{
    mean = 0.0f;
    if constexpr (C::kCentres) {
        Acc sum = sum_over_row<C>(share_of_x<C, Acc>(row), shared.of_x(Acc(), parity));
        mean = (float)(sum * (sizeof(Acc) == 8 ? (Acc)(1.0 / (double)args.hidden)
                                               : (Acc)args.inverse_hidden));
    }
    return sum_over_row<C>(share_of_sums<C, Acc>(row, mean), shared.of(Acc(), parity));
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

// Of grad_y * w times n: where the sum of one is Inf, what was summed about another mean is NaN.
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
    if constexpr (C::kCentres) {
        const double dot = sum_over_row<C>(share_of_dot<C>(row, again), shared.of_x(0.0, parity));
        again.k = (float)(dot / (double)row.args.hidden);
    }
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
    if (C::kThreads < 1024 || args.hidden <= kMostFloatSum) {
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
        to[i] = of.s * fmaf(-normal, of.k, C::kCentres ? gw - of.shift : gw) + to[i];
        x[i] = rounded<C>(normal);
    }
}
