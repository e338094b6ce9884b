// compare.cu - compare on CUDA. A thread takes packets of 8 elements, the same ones whatever
// addresses and strides are, and threads and blocks add up in an order that follows from n: the
// same bits from run to run and from device to device. The last block to end adds those of all.
//
// The cosine's sums of a packet are of float32, what a thread adds of them is of float64. A packet
// where they overflow, as NaN and Inf make them, is looked at element by element.

extern "C" {
#include "ops/compare.h"
}

#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

#include <math_constants.h>

#include <type_traits>

constexpr int kThreads = 256, kBlocksAtOnce = 3;
constexpr int kPacket = 8;
constexpr int kBatch = 2; // packets of a thread whose loads are one wait
constexpr int64_t kMostBlocks = kMultiprocessors * kBlocksAtOnce;

struct compare_args {
    const void *a, *b;
    int64_t n, width, a_stride, b_stride;
    float atol, rtol;
    int32_t is_flat;              // bool: rows follow each other in both, so all is one row
    int32_t is_packed;            // bool: packets are in one row, at multiples of 16 bytes
    struct compare_part *partial; // of blocks
    uint32_t *counter;
    int64_t *index, *counts;
    float *stats;
};

struct place {
    int64_t row, column;
};

__device__ __forceinline__ place place_of(const compare_args &args, int64_t at)
{
    if (args.is_flat)
        return {0, at};
    int64_t row = at / args.width;
    return {row, at - row * args.width};
}

template <typename T>
struct words {
    uint4 raw[kPacket / kVecOf<T>];

    __device__ __forceinline__ void unpack_all(float (&x)[kPacket]) const
    {
#pragma unroll
        for (int i = 0; i < kPacket; i += kVecOf<T>) {
            float some[kVecOf<T>];
            unpack<T>(raw[i / kVecOf<T>], some);
#pragma unroll
            for (int j = 0; j < kVecOf<T>; j++)
                x[i + j] = some[j];
        }
    }
};

// Elements from place on; zeros behind the last.
template <typename T>
__device__ __forceinline__ void load(const compare_args &args, const void *base, int64_t stride,
                                     place from, int64_t left, words<T> &to)
{
    constexpr int kVec = kVecOf<T>;
    const T *row = static_cast<const T *>(base) + from.row * stride;
    const bool is_whole = args.is_packed && left >= kPacket;
#pragma unroll
    for (int i = 0; i < kPacket; i += kVec) {
        if (is_whole) {
            to.raw[i / kVec] = load_16(row + from.column + i);
            continue;
        }
        float some[kVec];
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            some[j] = i + j < left ? element<T>::to_float(row[from.column]) : 0.0f;
            if (++from.column == args.width && !args.is_flat) {
                from.column = 0;
                row += stride;
            }
        }
        to.raw[i / kVec] = pack<T>(some); // the same values
    }
}

// A number's place among those of its type; 0 and -0 are one.
__device__ __forceinline__ int32_t ordered(uint32_t bits)
{
    return bits >> 31 ? (int32_t)(0x80000000u - bits) : (int32_t)bits;
}

template <typename T>
__device__ __forceinline__ uint32_t steps_between(float a, float b)
{
    if constexpr (sizeof(T) == 2) {
        a = element<T>::to_float(element<T>::from_float(a));
        b = element<T>::to_float(element<T>::from_float(b));
    }
    int32_t p = ordered(__float_as_uint(a)), q = ordered(__float_as_uint(b));
    if constexpr (std::is_same<T, __nv_bfloat16>::value) { // the upper half of a float
        p /= 65536, q /= 65536;
    } else if constexpr (std::is_same<T, __half>::value) {
        p = ordered((uint32_t)__half_as_ushort(__float2half_rn(a)) << 16) / 65536;
        q = ordered((uint32_t)__half_as_ushort(__float2half_rn(b)) << 16) / 65536;
    }
    return p > q ? (uint32_t)p - (uint32_t)q : (uint32_t)q - (uint32_t)p;
}

template <typename A, typename B>
using coarser_of = std::conditional_t<std::is_same<A, __nv_bfloat16>::value ||
                                          std::is_same<B, __nv_bfloat16>::value,
                                      __nv_bfloat16, std::conditional_t<sizeof(A) == 2, A, B>>;

// d / |b| where that may be above what was found: a quotient takes more than all the rest.
__device__ __forceinline__ void add_share(float d, float b, struct compare_part &part)
{
    if (d == 0.0f)
        return;
    if (d == CUDART_INF_F)
        part.relative = CUDART_INF_F;
    else if (d >= part.relative * (1 - 0x1p-21f) * b)
        part.relative = fmaxf(part.relative, __fdiv_rn(d, b));
}

// The same for a packet of which nothing is known.
template <typename Coarser>
__device__ __forceinline__ void add_elements(const compare_args &args, int64_t at,
                                             const float (&a)[kPacket], const float (&b)[kPacket],
                                             struct compare_part &part)
{
#pragma unroll 1
    for (int i = 0; i < kPacket; i++) {
        float x = a[0], y = b[0];
#pragma unroll
        for (int j = 1; j < kPacket; j++) { // a choice, as an index would be in memory
            x = i == j ? a[j] : x;
            y = i == j ? b[j] : y;
        }
        bool is_nan = x != x || y != y;
        float d = is_nan || x == y ? 0.0f : fabsf(x - y), size = fabsf(y);
        if ((x != x) != (y != y)) {
            part.nan_alone++;
            part.nan_at = part.nan_at < 0 ? at + i : part.nan_at;
        }
        if (d > part.largest) {
            part.largest = d;
            part.at = at + i;
        }
        part.beyond += d > __fadd_rn(args.atol, __fmul_rn(args.rtol, size)) || d == CUDART_INF_F;
        add_share(d, size, part);
        if (d > 0.0f)
            part.steps = max(part.steps, steps_between<Coarser>(x, y));
        if (fabsf(x) < CUDART_INF_F && size < CUDART_INF_F) {
            double u = x, v = y;
            part.dot += u * v;
            part.aa += u * u;
            part.bb += v * v;
        }
    }
}

// The signs of both halves of a word, each 16 times. __byte_perm repeats none.
__device__ __forceinline__ uint32_t signs_of(uint32_t pair)
{
    uint32_t signs;
    asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(signs) : "r"(pair));
    return signs;
}

// Of halves of a word, which are of one 16-bit type: 0x8000 + m, or 0x7FFF - m with a sign.
__device__ __forceinline__ uint32_t ordered_pair(uint32_t pair, uint32_t signs)
{
    return (pair | 0x80008000u) ^ signs;
}

// The most of steps between halves of a and b, and of what was found; two at a time. -0 has a place
// of its own there, which counts as none.
__device__ __forceinline__ uint32_t most_steps(uint32_t a, uint32_t b, uint32_t found)
{
    uint32_t of_a = signs_of(a), of_b = signs_of(b);
    uint32_t p = ordered_pair(a, of_a), q = ordered_pair(b, of_b);
    uint32_t steps = __vmaxu2(p, q) - __vminu2(p, q) - ((of_a ^ of_b) & 0x00010001u);
    return __vmaxu2(found, steps);
}

// pair_steps: of both halves, where a and b are of one 16-bit type; else part has them.
template <typename A, typename B>
__device__ __forceinline__ void add_steps(const words<A> &a, const words<B> &b,
                                          const float (&x)[kPacket], const float (&y)[kPacket],
                                          struct compare_part &part, uint32_t &pair_steps)
{
    if constexpr (std::is_same<A, B>::value && sizeof(A) == 2) {
        pair_steps = most_steps(a.raw[0].x, b.raw[0].x, pair_steps);
        pair_steps = most_steps(a.raw[0].y, b.raw[0].y, pair_steps);
        pair_steps = most_steps(a.raw[0].z, b.raw[0].z, pair_steps);
        pair_steps = most_steps(a.raw[0].w, b.raw[0].w, pair_steps);
    } else {
#pragma unroll
        for (int i = 0; i < kPacket; i++)
            part.steps = max(part.steps, steps_between<coarser_of<A, B>>(x[i], y[i]));
    }
}

// Sums of float32 that have neither overflowed nor lost what matters to underflow.
__device__ __forceinline__ bool are_tame(float aa, float bb)
{
    return fminf(aa, bb) >= 0x1p-90f && fmaxf(aa, bb) <= 0x1p100f && aa == aa && bb == bb;
}

__device__ __forceinline__ void add_products(const float (&a)[kPacket], const float (&b)[kPacket],
                                             struct compare_part &part)
{
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        double u = a[i], v = b[i];
        part.dot += u * v;
        part.aa += u * u;
        part.bb += v * v;
    }
}

template <typename A, typename B>
__device__ __forceinline__ void add_packet(const compare_args &args, int64_t at, const words<A> &a,
                                           const words<B> &b, struct compare_part &part,
                                           uint32_t &pair_steps)
{
    float x[kPacket], y[kPacket], d[kPacket], largest = 0.0f, dot = 0.0f, aa = 0.0f, bb = 0.0f;
    a.unpack_all(x);
    b.unpack_all(y);
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        dot = fmaf(x[i], y[i], dot);
        aa = fmaf(x[i], x[i], aa);
        bb = fmaf(y[i], y[i], bb);
    }
    if (!(aa + bb <= 0x1p100f))
        return add_elements<coarser_of<A, B>>(args, at, x, y, part);
    const float share = part.relative * (1 - 0x1p-21f);
    uint32_t beyond = 0;
    bool is_larger_share = false;
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        float size = fabsf(y[i]);
        d[i] = fabsf(x[i] - y[i]);
        largest = fmaxf(largest, d[i]);
        beyond += d[i] > __fadd_rn(args.atol, __fmul_rn(args.rtol, size));
        is_larger_share |= d[i] > share * size;
    }
    part.beyond += beyond;
    add_steps(a, b, x, y, part, pair_steps);
    if (are_tame(aa, bb)) {
        part.dot += (double)dot;
        part.aa += (double)aa;
        part.bb += (double)bb;
    } else {
        add_products(x, y, part);
    }
    if (is_larger_share)
#pragma unroll
        for (int i = 0; i < kPacket; i++)
            add_share(d[i], fabsf(y[i]), part);
    if (largest > part.largest) {
        part.largest = largest;
#pragma unroll
        for (int i = kPacket - 1; i >= 0; i--)
            if (d[i] == largest)
                part.at = at + i;
    }
}

// Elements of next need not come behind those of part.
__device__ __forceinline__ void merge(struct compare_part &part, const struct compare_part &next)
{
    part.dot += next.dot;
    part.aa += next.aa;
    part.bb += next.bb;
    part.beyond += next.beyond;
    part.nan_alone += next.nan_alone;
    part.nan_at = (int64_t)min((uint64_t)part.nan_at, (uint64_t)next.nan_at); // -1 is the most
    if (next.largest > part.largest || (next.largest == part.largest && next.at < part.at))
        part.at = next.at;
    part.largest = fmaxf(part.largest, next.largest);
    part.relative = fmaxf(part.relative, next.relative);
    part.steps = max(part.steps, next.steps);
}

constexpr int kPartWords = sizeof(struct compare_part) / 4;
static_assert(sizeof(struct compare_part) % 8 == 0, "words");

union part_words {
    uint32_t word[kPartWords];
    unsigned long long two_words[kPartWords / 2];
    struct compare_part part;
};

// What n lanes of a warp have, to all of them.
template <int n>
__device__ __forceinline__ void merge_lanes(struct compare_part &part)
{
#pragma unroll
    for (int distance = n / 2; distance > 0; distance /= 2) {
        part_words other;
        other.part = part;
#pragma unroll
        for (int i = 0; i < kPartWords; i++)
            other.word[i] = __shfl_xor_sync(0xFFFFFFFFu, other.word[i], distance);
        merge(part, other.part);
    }
}

// What all threads of the block have, to its first warp.
__device__ __forceinline__ void merge_block(struct compare_part &part, struct compare_part *shared)
{
    constexpr int kWarps = kThreads / 32;
    merge_lanes<32>(part);
    __syncthreads(); // shared may be of before
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x < 32) {
        part = shared[threadIdx.x % kWarps];
        merge_lanes<kWarps>(part);
    }
}

__device__ __forceinline__ struct compare_part nothing()
{
    struct compare_part part = {};
    part.nan_at = part.at = -1;
    return part;
}

// Past L1, which may have lines from before they were written.
__device__ __forceinline__ struct compare_part load_part(const struct compare_part *from)
{
    part_words words;
#pragma unroll
    for (int i = 0; i < kPartWords / 2; i++)
        words.two_words[i] = __ldcg(reinterpret_cast<const unsigned long long *>(from) + i);
    return words.part;
}

__device__ __forceinline__ void write_result(const compare_args &args,
                                             const struct compare_part &all)
{
    double lengths = all.aa * all.bb;
    *args.index = all.nan_at < 0 ? all.at : all.nan_at;
    args.counts[0] = all.beyond;
    args.counts[1] = all.nan_alone;
    args.stats[0] = all.largest;
    args.stats[1] = all.relative;
    args.stats[2] = (float)all.steps;
    args.stats[3] = lengths > 0 ? (float)(all.dot * rsqrt(lengths)) : (float)(all.aa == all.bb);
}

template <typename A, typename B>
static __global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    compare_kernel(const __grid_constant__ compare_args args)
{
    __shared__ struct compare_part shared[kThreads / 32];
    __shared__ bool is_last;
    let_next_start();
    wait_for_previous();
    const int64_t step = (int64_t)gridDim.x * kThreads * kPacket;
    struct compare_part part = nothing();
    uint32_t pair_steps = 0;
    for (int64_t at = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * kPacket; at < args.n;
         at += kBatch * step) {
        words<A> a[kBatch] = {};
        words<B> b[kBatch] = {};
#pragma unroll
        for (int i = 0; i < kBatch; i++) {
            int64_t first = at + i * step;
            if (first >= args.n)
                continue;
            place from = place_of(args, first);
            load<A>(args, args.a, args.a_stride, from, args.n - first, a[i]);
            load<B>(args, args.b, args.b_stride, from, args.n - first, b[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            add_packet(args, at + i * step, a[i], b[i], part, pair_steps);
    }
    part.steps = max(part.steps, max(pair_steps & 0xFFFFu, pair_steps >> 16));
    merge_block(part, shared);
    if (gridDim.x == 1) {
        if (threadIdx.x == 0)
            write_result(args, part);
        return;
    }
    if (threadIdx.x == 0) {
        args.partial[blockIdx.x] = part;
        __threadfence();
        is_last = atomicInc(args.counter, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    part = nothing();
    for (int i = threadIdx.x; i < gridDim.x; i += kThreads)
        merge(part, load_part(args.partial + i));
    merge_block(part, shared);
    if (threadIdx.x == 0)
        write_result(args, part);
}

static bool has_packets(const struct roped_tensor *x, int64_t stride, bool is_flat)
{
    return is_aligned(x->data, 16) &&
           (is_flat || stride * (int64_t)roped_dtype_bytes(x->dtype) % 16 == 0);
}

extern "C" enum roped_status roped_cuda_compare(const struct roped_call *call,
                                                struct roped_queue *queue, struct roped_error *err)
{
    const struct compare_plan *plan = (const struct compare_plan *)call->plan;
    const struct roped_tensor *a = &call->in[COMPARE_A], *b = &call->in[COMPARE_B];
    const int64_t per_block = kThreads * kPacket * kBatch;
    int64_t blocks = (plan->n + per_block - 1) / per_block;
    blocks = blocks < 1 ? 1 : blocks < kMostBlocks ? blocks : kMostBlocks;
    float *partial;
    compare_args args = {};
    enum roped_status status = roped_cuda_scratch(
        queue, kMostBlocks * (int64_t)sizeof(struct compare_part), 1, &partial, &args.counter, err);
    if (status)
        return status;
    args.a = a->data;
    args.b = b->data;
    args.n = plan->n;
    args.width = plan->width;
    args.a_stride = row_stride(a, plan->width);
    args.b_stride = row_stride(b, plan->width);
    args.atol = plan->atol;
    args.rtol = plan->rtol;
    args.is_flat =
        plan->n == plan->width || (args.a_stride == plan->width && args.b_stride == plan->width);
    args.is_packed = has_packets(a, args.a_stride, args.is_flat) &&
                     has_packets(b, args.b_stride, args.is_flat) &&
                     (args.is_flat || plan->width % kPacket == 0);
    args.partial = reinterpret_cast<struct compare_part *>(partial);
    args.index = static_cast<int64_t *>(call->out[COMPARE_INDEX].data);
    args.counts = static_cast<int64_t *>(call->out[COMPARE_COUNTS].data);
    args.stats = static_cast<float *>(call->out[COMPARE_STATS].data);
    return with_float_type(a->dtype, [&](auto of_a) {
        return with_float_type(b->dtype, [&](auto of_b) {
            using A = typename decltype(of_a)::type;
            using B = typename decltype(of_b)::type;
            return start(queue, compare_kernel<A, B>, dim3(kThreads), blocks, dim3(1), args, err);
        });
    });
}
