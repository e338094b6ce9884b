// norm_gradient.cuh - gradients of norms of rows: what a thread has of a row;
// norm_gradient_sums.cuh has its sums.
//
//     n = (x - mean) * s, w = weight_bias + weight
//     grad_x = s * (grad_y * w - mean(grad_y * w) - n * mean(grad_y * w * n)) + grad_residual
//     grad_weight = sum of grad_y * n over the rows, grad_bias = sum of grad_y
//
// where a norm that is not centred has neither mean.
#pragma once

#include "cuda/device/shifted.cuh"
#include "cuda/device/stage.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"

#include <roped/op.h>

#include <type_traits>

struct norm_gradient_args {
    const void *grad_y, *x, *weight, *grad_residual; // weight, grad_residual: or NULL
    void *grad_x;
    float *partial;    // [blocks][n_sums][sum_pitch], or NULL: one block has all rows
    float4 *scales;    // of a row what columns_kernel needs: mean, rest, s; or NULL
    uint32_t *counter; // of columns_kernel's blocks
    void *sum_to[2];
    int64_t n_rows, hidden, sum_pitch;
    int64_t grad_y_pitch, x_pitch, grad_residual_pitch, grad_x_pitch; // elements to the next row
    float eps, weight_bias, inverse_hidden;
    int32_t weight_dtype; // enum roped_dtype
    int32_t sum_dtype;
    int32_t sum_place[2]; // of grad_weight and grad_bias among the sums, or -1
    int32_t n_sums, n_partial;
    int32_t n_stages;       // rows that are on their way to shared memory
    int32_t n_staged;       // tensors of which a row waits there: x and grad_y, then weight
    int32_t n_shares;       // whose sum a row's is: as many as its threads, or more
    int32_t n_parts;        // blocks of a row, a cluster
    int32_t n_packets;      // of a tensor that a part has in shared memory
    int32_t sums_in_shared; // bool
    int32_t sums_behind;    // so many packets of a row, in any_norm_gradient_kernel
    int32_t keeps;          // bool: lines that are read leave L2 last (device/vector.cuh)
    int32_t first_segment;  // of columns_kernel's blocks
    int64_t first_row, rows_of_segment;
    const char *x_end, *grad_y_end, *grad_residual_end; // device/shifted.cuh
    int32_t n_lanes; // of a row, a power of two, in narrow_norm_gradient_kernel
    int32_t n_turns; // vectors of each share at most, of which there is one in each turn
    // where the first block's sums begin among others in partial, the next one's so many further on
    int32_t first_column, column_step, column_mask;
    // from a block's row to its next one, in bytes, of x, grad_y, grad_residual and grad_x
    int64_t steps[4];
};

template <typename T>
constexpr int kDtypeOf = std::is_same<T, float>::value    ? ROPED_F32
                         : std::is_same<T, __half>::value ? ROPED_F16
                                                          : ROPED_BF16;

// Threads of a row, or where kGroups is 1 at most so many, and the vectors of each. A block of
// narrow rows has several; kIsAlone: each row has a block of its own, or kIsPart: also a cluster of
// blocks, of which each thread has a share of the row's sum, or kIsOfElements: a quarter of the
// threads. kIsAny: of one row of any width, a vector at a time. kIsPackets: a share of the row's
// sum for each vector, or kIsWide: for several.
template <typename Element, bool kIsCentred, bool kDoesRound, bool kIsAligned, int kOfRow,
          int kOfThread, bool kIsAlone = false, bool kIsOfCluster = false,
          bool kIsOfElements = false>
struct gradient_config {
    using T = Element;
    static constexpr bool kCentres = kIsCentred, kRounds = kDoesRound, kAligned = kIsAligned;
    static constexpr int kVec = kVecOf<T>, kThreads = kOfRow, kVectors = kOfThread;
    static constexpr int kSums = kCentres ? 2 : 1;
    static constexpr int kGroups = kIsAlone || kThreads > 32 ? 1 : 256 / kThreads;
    static constexpr bool kIsPart = kIsOfCluster;
    static constexpr int kOfVector = kIsOfElements ? 4 : 1; // threads
    static constexpr int kBlock = kIsPart ? 512 : kThreads * kGroups;
    static constexpr bool kIsAny = kThreads == 1024 && kVectors == 1;
    static constexpr int kMinBlocks = kThreads == 128         ? 5
                                      : kGroups == 1          ? 1
                                      : kCentres || !kAligned ? 2
                                                              : 3;
    static constexpr bool kIsNarrow = !kAligned && kGroups > 1; // lanes of a row: args.n_lanes
    static constexpr bool kIsPackets = !kAligned && !kIsAlone && !kIsNarrow;
    static constexpr bool kIsWide = kIsPackets && kThreads * kVectors > 1024;
    // the second sum of a column has no registers, or what is added to grad_x later
    static constexpr bool kSumsApart = kIsWide && kCentres && kVectors == 6;
    static constexpr bool kIsTight = kSumsApart || (kIsWide && (kVectors == 5 || kVectors > 8));
    static constexpr bool kHasShortGains = false, kHasFarGains = false; // norm_gradient_wide.cuh
    static constexpr bool kHolds = kVectors <= 2 && !kIsWide; // rows and gains, in registers
    static constexpr bool kLeavesPartial = false; // sums, never results: norm_gradient_turns.cuh
    // a thread has two shares of a row, and no registers for what is added to grad_x later
    static constexpr bool kHasHalves = kAligned && kVectors == 6;
    static constexpr int kWarps = kIsPackets || kHasHalves ? 32 : kThreads > 32 ? kThreads / 32 : 1;
};

// ------------------------------------------------------------------------------------ vectors

template <typename C>
__device__ __forceinline__ float rounded(float x)
{
    using T = typename C::T;
    return C::kRounds ? element<T>::to_float(element<T>::from_float(x)) : x;
}

// A whole vector of a row, or zeros.
template <typename C>
__device__ __forceinline__ uint4 load_raw(const typename C::T *from, int n)
{
    return n > 0 ? load_16(from) : make_uint4(0, 0, 0, 0);
}

template <typename C>
__device__ __forceinline__ void store_row(typename C::T *to, int n, const float (&x)[C::kVec])
{
    if (n > 0)
        store_floats<typename C::T>(to, x);
}

// An element, as volatile as load_16.
template <typename T>
__device__ __forceinline__ T load_one(const T *from)
{
    T x;
    if constexpr (sizeof(T) == 4) {
        x = load_float(from);
    } else {
        uint16_t raw;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(raw) : "l"(__cvta_generic_to_global(from)));
        memcpy(&x, &raw, sizeof x);
    }
    return x;
}

// n elements at any address, of a tensor whose packets end there; zeros behind them.
template <typename C>
__device__ __forceinline__ uint4 load_any(const typename C::T *from, int n, const char *end)
{
    using T = typename C::T;
    if constexpr (C::kAligned)
        return load_raw<C>(from, n);
    if constexpr (C::kOfVector > 1) { // rarely, and without a call, which would cap registers
        T vector[C::kVec] = {};
        uint4 raw;
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            if (i < n)
                vector[i] = load_one(from + i);
        memcpy(&raw, vector, sizeof raw);
        return raw;
    }
    shifted_vector<(int)sizeof(T)> vector;
    vector.start(from, n * (int)sizeof(T), end);
    return vector.finish();
}

// Weights of type W, in global memory or anywhere. Without a branch between the loads of vectors,
// which then share one wait.
template <typename C, bool kIsGlobal, typename W>
__device__ __forceinline__ void gains_of(const W *from, float bias, int n, float (&w)[C::kVec])
{
    constexpr int kVec = C::kVec;
    if (C::kAligned || (n >= kVec && (uintptr_t)from % 16 == 0)) {
        constexpr int kOfLoad = kVecOf<W> < kVec ? kVecOf<W> : kVec;
#pragma unroll
        for (int i = 0; i < kVec; i += kOfLoad) {
            float some[kOfLoad] = {};
            if (n > 0) {
                if constexpr (kOfLoad == kVecOf<W>)
                    unpack<W>(kIsGlobal ? load_16(from + i)
                                        : *reinterpret_cast<const uint4 *>(from + i),
                              some);
                else
                    unpack<W>(kIsGlobal ? load_8(from + i)
                                        : *reinterpret_cast<const uint2 *>(from + i),
                              some);
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

// function(weights), of their type, or of float and NULL where there are none.
template <typename F>
__device__ __forceinline__ void with_weight(const norm_gradient_args &args, const void *weight,
                                            const F &function)
{
    if (args.weight_dtype == ROPED_F16)
        function(static_cast<const __half *>(weight));
    else if (args.weight_dtype == ROPED_BF16)
        function(static_cast<const __nv_bfloat16 *>(weight));
    else
        function(static_cast<const float *>(weight));
}

template <typename C, bool kIsGlobal = true, typename W>
__device__ __forceinline__ void load_gains(const norm_gradient_args &args, const W *weight,
                                           int64_t column, int n, float (&w)[C::kVec])
{
    if (weight) {
        gains_of<C, kIsGlobal>(weight + column, args.weight_bias, n, w);
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

// A vector of a column's sum, where one block has all of it.
template <typename C>
__device__ __forceinline__ void store_result(const norm_gradient_args &args, int place,
                                             int64_t column, int n, const float (&x)[C::kVec])
{
    using T = typename C::T;
    if (C::kAligned && args.sum_dtype == kDtypeOf<T>) {
        store_floats<T>(static_cast<T *>(args.sum_to[place]) + column, x);
    } else {
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            if (i < n)
                store_as(args.sum_dtype, args.sum_to[place], column + i, x[i]);
    }
}

// What a block leaves of it: that, or one of the partial sums.
template <typename C>
__device__ __forceinline__ void store_sums(const norm_gradient_args &args, int place,
                                           int64_t column, int n, const float (&x)[C::kVec])
{
    if (!C::kIsPackets && !C::kHasHalves && !C::kLeavesPartial && !args.partial) {
        store_result<C>(args, place, column, n, x);
        return;
    }
    int64_t at = ((int64_t)blockIdx.x * args.n_sums + place) * args.sum_pitch + column;
#pragma unroll
    for (int i = 0; i < C::kVec; i += 4)
        *reinterpret_cast<float4 *>(args.partial + at + i) =
            make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

// add(i, before) is what a vector of a column's sum becomes that a block has in memory; the last
// time it is the result.
template <typename C, typename F>
__device__ __forceinline__ void put_down_vector(const norm_gradient_args &args, float *all, int sum,
                                                int64_t column, bool is_first, bool is_result,
                                                const F &add)
{
    float4 *at = reinterpret_cast<float4 *>(all + sum * args.sum_pitch + column);
    float x[C::kVec] = {};
#pragma unroll
    for (int i = 0; i < C::kVec && !is_first; i += 4) {
        float4 before = at[i / 4];
        x[i] = before.x, x[i + 1] = before.y, x[i + 2] = before.z, x[i + 3] = before.w;
    }
#pragma unroll
    for (int i = 0; i < C::kVec; i++)
        x[i] = add(i, x[i]);
    if (is_result)
        store_sums<C>(args, sum, column, (int)min(args.hidden - column, (int64_t)C::kVec), x);
#pragma unroll
    for (int i = 0; i < C::kVec && !is_result; i += 4)
        at[i / 4] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

// The columns' sums of an only row: x has the normalised values.
template <typename C>
__device__ __forceinline__ void store_products(const norm_gradient_args &args, int64_t column,
                                               int n, float (&x)[C::kVec],
                                               const float (&g)[C::kVec])
{
    if (C::kCentres && args.sum_place[C::kSums - 1] >= 0)
        store_result<C>(args, args.sum_place[C::kSums - 1], column, n, g);
#pragma unroll
    for (int i = 0; i < C::kVec; i++)
        x[i] *= g[i];
    if (args.sum_place[0] >= 0)
        store_result<C>(args, args.sum_place[0], column, n, x);
}

// ------------------------------------------------------------------------------------ rows

// So many bytes, 16 at most, on their way to shared memory (stage.cuh), and zeros behind them; of a
// part of a packet whole words alone, for copies that read less than they name are errors to
// compute-sanitizer. copy_half has what may be left.
__device__ __forceinline__ void copy_cut(uint4 *to, const char *from, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (bytes <= 0 || bytes >= 16) {
        copy_16<false>(to, from, bytes > 0, 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (bytes - 4 * i != 2)
            asm volatile(
                "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to) + 4 * i),
                "l"(__cvta_generic_to_global(from + 4 * i)), "r"(bytes > 4 * i ? 4 : 0)
                : "memory");
#else
    *to = load_pieces(from, bytes);
#endif
}

// The two bytes behind the last word of what copy_cut copies from packet to packet, if there are
// any, and zeros. It waits for them, so that it should come behind all copies.
__device__ __forceinline__ void copy_half(uint4 *to, const char *from, int bytes)
{
    if (!(bytes & 2))
        return;
    uint16_t half;
    asm volatile("ld.global.u16 %0, [%1];"
                 : "=h"(half)
                 : "l"(__cvta_generic_to_global(from + bytes - 2)));
    reinterpret_cast<uint32_t *>(to)[bytes / 4] = half;
}

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
    __device__ __forceinline__ explicit gradient_place(int lanes)
        : lane((int)threadIdx.x & (lanes - 1)), threads(lanes), group((int)threadIdx.x / lanes)
    {
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
    static constexpr bool kHints = C::kHolds || C::kVec > 4; // ptxas: stage.cuh
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
        copy_16<kHints>(to, from, n > 0, policy);
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
    float4 *gains; // not kHolds: in shared memory, a thread's own
    int64_t row;
    int stage;
    uint4 x[C::kHolds ? C::kVectors : 1], g[C::kHolds ? C::kVectors : 1];

    __device__ __forceinline__ void load(int v, uint4 &of_x, uint4 &of_g) const
    {
        if (!C::kHolds || ring.args.n_stages) {
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
    // Four floats of a vector's gains, those of all threads beside each other.
    __device__ __forceinline__ float4 &gain(int v, int i) const
    {
        return gains[(v * C::kVec + i) / 4 * (int)blockDim.x + threadIdx.x];
    }
    template <typename F>
    __device__ __forceinline__ void visit(int v, const F &f) const
    {
        int column = ring.place.column(v);
        int n = counted<C>(ring.args, row, column);
        float of_x[C::kVec], of_g[C::kVec];
        if constexpr (C::kHolds) {
            unpack<typename C::T>(x[v], of_x);
            unpack<typename C::T>(g[v], of_g);
            f(v, column, n, of_x, of_g, w[v]);
        } else {
            float of_w[C::kVec];
            uint4 raw_x, raw_g;
            load(v, raw_x, raw_g);
#pragma unroll
            for (int i = 0; i < C::kVec; i += 4) {
                const float4 some = gain(v, i);
                of_w[i] = some.x, of_w[i + 1] = some.y;
                of_w[i + 2] = some.z, of_w[i + 3] = some.w;
            }
            unpack<typename C::T>(raw_x, of_x);
            unpack<typename C::T>(raw_g, of_g);
            f(v, column, n, of_x, of_g, of_w);
        }
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            visit(v, f);
    }

    // Every second vector: those of a share, where a thread has two.
    struct row_half {
        const row_in_hand &of;
        int first;

        template <typename F>
        __device__ __forceinline__ void for_each(const F &f) const
        {
#pragma unroll
            for (int v = 0; v < C::kVectors; v += 2)
                of.visit(first + v, f);
        }
    };
    __device__ __forceinline__ row_half half(int i) const
    {
        return {*this, i};
    }

    // The same row for rare sums: in less code, or of memory where registers hold it.
    struct row_again {
        const row_in_hand &of;
        const norm_gradient_args &args;
        int first = 0, step = 1;

        template <typename F>
        __device__ __forceinline__ void for_each(const F &f) const
        {
#pragma unroll 1
            for (int v = first; v < C::kVectors; v += step)
                of.visit(v, f);
        }
        __device__ __forceinline__ row_again half(int i) const
        {
            return {of, args, i, 2};
        }
    };
    __device__ __forceinline__ auto again() const;
};

// Which share of a row's sum a thread of a cluster has: warps behind the last one have no vectors.
static __device__ __forceinline__ int share_of_part(const norm_gradient_args &args, int kVec)
{
    const int share = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    return share < args.n_shares ? share : share + ((int)args.sum_pitch / kVec + 31) / 32 * 32;
}

// The same of a row of any width, at any address: in memory, or in shared memory, in the packets of
// 16 bytes that cover it. A part of a row has there only the vectors of its threads.
template <typename C>
struct row_in_memory {
    using T = typename C::T;
    static constexpr int kSize = (int)sizeof(T);
    const norm_gradient_args &args;
    int64_t row;
    int lane, threads;
    uint4 *staged; // packets of x, of grad_y, and of weight; or NULL

    // The vectors that a thread would have if there were as many as shares.
    __device__ __forceinline__ row_in_memory share(int i) const
    {
        return {args, row, i, args.n_shares, staged};
    }
    __device__ __forceinline__ row_in_memory nth(int v) const
    {
        return share(lane + v * threads);
    }
    __device__ __forceinline__ int n_packets() const
    {
        if constexpr (C::kIsPart)
            return args.n_packets;
        return (int)args.sum_pitch / C::kVec + (C::kAligned ? 0 : 1);
    }
    // Where a vector is among them; of each turn's vectors a part has one more than threads.
    __device__ __forceinline__ int place(int64_t column) const
    {
        const int vector = (int)column / C::kVec;
        if constexpr (C::kIsPart)
            return vector / args.n_shares * ((int)blockDim.x + 1) + (int)threadIdx.x;
        return vector;
    }
    // The packets of a part's vectors, and the gains of those to the first-level cache.
    __device__ __forceinline__ void fetch_part(uint4 *to, const void *from) const
    {
        const int off = (int)((uintptr_t)from & 15), end = off + (int)args.hidden * kSize;
        const char *first = static_cast<const char *>(from) - off;
#pragma unroll 1
        for (int v = blockIdx.y * blockDim.x; v < (int)args.sum_pitch / C::kVec;
             v += args.n_shares) {
#pragma unroll 1
            for (int i = threadIdx.x; i <= (int)blockDim.x; i += blockDim.x)
                copy_cut(to + i, first + 16 * (v + i), end - 16 * (v + i));
            to += blockDim.x + 1;
        }
    }
    __device__ __forceinline__ void prefetch(const void *from, int of_element) const
    {
#pragma unroll 1
        for (int column = lane * C::kVec; from && column < args.hidden; column += threads * C::kVec)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(
                __cvta_generic_to_global(static_cast<const char *>(from) + column * of_element)));
    }
    // Of so many bytes, all packets that have any, and so many in all. Behind the row are zeros.
    __device__ __forceinline__ void fetch(uint4 *to, const void *from, int bytes, int packets) const
    {
        const int off = C::kAligned ? 0 : (int)((uintptr_t)from & 15);
        const char *first = static_cast<const char *>(from) - off;
#pragma unroll 1
        for (int i = lane; i < packets; i += threads)
            copy_cut(to + i, first + i * 16, off + bytes - i * 16);
    }
    // The end of what the first threads each have a tensor of, behind all copies.
    __device__ __forceinline__ void fetch_half(const gradient_row<C> &of, int packets) const
    {
        const int which = lane;
        if (which >= args.n_staged)
            return;
        const void *from = which == 0 ? of.x : which == 1 ? (const void *)of.g : args.weight;
        const int size = which < 2 ? kSize : args.weight_dtype == ROPED_F32 ? 4 : 2;
        const int off = (int)((uintptr_t)from & 15);
        copy_half(staged + which * packets, static_cast<const char *>(from) - off,
                  off + (int)args.hidden * size);
    }
    // Once for a block.
    __device__ __forceinline__ void fetch() const
    {
        const gradient_row<C> of(args, row);
        const int packets = n_packets(), hidden = (int)args.hidden;
        if constexpr (C::kIsPart) {
            fetch_part(staged, of.x);
            fetch_part(staged + packets, of.g);
            end_stage();
            prefetch(args.weight, args.weight_dtype == ROPED_F32 ? 4 : 2);
            wait_for_stage(1);
            __syncthreads();
            return;
        }
        fetch(staged, of.x, hidden * kSize, packets);
        fetch(staged + packets, of.g, hidden * kSize, packets);
        if (args.n_staged == 3) {
            const int bytes = hidden * (args.weight_dtype == ROPED_F32 ? 4 : 2);
            fetch(staged + 2 * packets, args.weight, bytes, (bytes + 15) / 16);
        }
        end_stage();
        if constexpr (!C::kAligned)
            fetch_half(of, packets);
        wait_for_stage(1);
        __syncthreads();
    }
    // A vector of another row, in whose place this one's is no longer needed.
    __device__ __forceinline__ void fetch_vector(int64_t from_row, int64_t column) const
    {
        const gradient_row<C> of(args, from_row);
        uint4 *at = staged + (int)column / C::kVec;
        copy_16<false>(at, of.x + column, true, 0);
        copy_16<false>(at + n_packets(), of.g + column, true, 0);
    }
    __device__ __forceinline__ uint4 load(int which, const T *of_row, const char *end,
                                          int64_t column, int n) const
    {
        if (!staged)
            return load_any<C>(of_row + column, n, end);
        const uint4 *at = staged + which * n_packets() + place(column);
        if constexpr (C::kAligned)
            return at[0];
        return n > 0 ? shift_packets<kSize>(at[0], at[1], (int)((uintptr_t)of_row & 15))
                     : make_uint4(0, 0, 0, 0);
    }
    // All lanes of a warp take part, as long as one has a vector.
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        const gradient_row<C> of(args, row);
        const void *gains = args.weight;
        if (staged && args.n_staged == 3)
            gains = staged + 2 * n_packets();
        const int64_t end = args.hidden + (C::kAligned ? 0 : lane % 32 * C::kVec);
#pragma unroll 1
        for (int64_t column = lane * C::kVec; column < end; column += threads * C::kVec) {
            float x[C::kVec], g[C::kVec], w[C::kVec];
            const int n = counted<C>(args, row, column);
            const uint4 raw_x = load(0, of.x, args.x_end, column, n);
            const uint4 raw_g = load(1, of.g, args.grad_y_end, column, n);
            with_weight(args, gains,
                        [&](auto *weight) { load_gains<C, false>(args, weight, column, n, w); });
            unpack<T>(raw_x, x);
            unpack<T>(raw_g, g);
            f(0, column, n, x, g, w);
        }
    }
};

template <typename C>
__device__ __forceinline__ auto row_in_hand<C>::again() const
{
    const norm_gradient_args &args = ring.args;
    if constexpr (C::kHolds)
        return row_in_memory<C>{args, row, ring.place.lane, ring.place.threads, nullptr};
    else
        return row_again{*this, args};
}
