// norm_gradient.cuh - gradients of norms of rows: what a thread has of a row;
// norm_gradient_sums.cuh has its sums.
//
//     n = (x - mean) * s, w = weight_bias + weight
//     grad_x = s * (grad_y * w - mean(grad_y * w) - n * mean(grad_y * w * n)) + grad_residual
//     grad_weight = sum of grad_y * n over the rows, grad_bias = sum of grad_y
//
// where a norm that is not centred has neither mean.
#pragma once

#include "cuda/device/stage.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"

#include <roped/op.h>

#include <type_traits>

struct norm_gradient_args {
    const void *grad_y, *x, *weight, *grad_residual; // weight, grad_residual: or NULL
    void *grad_x;
    float *partial;    // [blocks][n_sums][sum_pitch], or NULL: one block has all rows
    float4 *scales;    // [n_rows], what columns_kernel needs of each: mean, rest, s; or NULL
    uint32_t *counter; // of columns_kernel's blocks
    void *sum_to[2];
    int64_t n_rows, hidden, sum_pitch;
    int64_t grad_y_pitch, x_pitch, grad_residual_pitch, grad_x_pitch; // elements to the next row
    float eps, weight_bias, inverse_hidden;
    int32_t weight_dtype; // enum roped_dtype
    int32_t sum_dtype;
    int32_t sum_place[2]; // of grad_weight and grad_bias among the sums, or -1
    int32_t n_sums, n_partial;
    int32_t n_stages;        // rows that are on their way to shared memory
    int32_t sums_in_shared;  // bool
    int32_t keeps;           // bool: lines that are read leave L2 last (device/vector.cuh)
    int32_t rows_of_segment; // of columns_kernel's blocks
    const char *x_end, *grad_y_end, *grad_residual_end; // device/shifted.cuh
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

// ------------------------------------------------------------------------------------ results

__device__ __forceinline__ void store_as(int dtype, void *to, int64_t i, float x)
{
    if (dtype == ROPED_F16)
        static_cast<__half *>(to)[i] = __float2half_rn(x);
    else if (dtype == ROPED_BF16)
        static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(x);
    else
        static_cast<float *>(to)[i] = x;
}

// What a block leaves of a sum: the result, or one of the partial ones.
template <typename C>
__device__ __forceinline__ void store_sums(const norm_gradient_args &args, int place,
                                           int64_t column, int n, const float (&x)[C::kVec])
{
    using T = typename C::T;
    if (args.partial) {
        int64_t at = ((int64_t)blockIdx.x * args.n_sums + place) * args.sum_pitch + column;
#pragma unroll
        for (int i = 0; i < C::kVec; i += 4)
            *reinterpret_cast<float4 *>(args.partial + at + i) =
                make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else if (C::kAligned && args.sum_dtype == kDtypeOf<T>) {
        store_floats<T>(static_cast<T *>(args.sum_to[place]) + column, x);
    } else {
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            if (i < n)
                store_as(args.sum_dtype, args.sum_to[place], column + i, x[i]);
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
