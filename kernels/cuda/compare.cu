// compare.cu - compare on CUDA. A thread takes packets of 8 elements, the same ones whatever
// addresses and strides are, and threads and blocks add up in an order that follows from n: the
// same bits from run to run and from device to device. The last block to end adds those of all.
//
// The cosine's sums of a packet are of float32, what a thread adds of them is of float64. A packet
// where they overflow, as NaN and Inf make them, is looked at element by element, and so is one
// that has a difference above all that the warp has found. The kernel has one copy of all this, and
// its loops are loops: what one row waits for is code.

extern "C" {
#include "ops/compare.h"
}

#include "cuda/device/activation.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

#include <math_constants.h>

#include <type_traits>

constexpr int kThreads = 256, kBlocksAtOnce = 3;
constexpr int kMostThreads = kThreads * kBlocksAtOnce; // of a block by itself
constexpr int kPacket = 8;
constexpr int kBatch = 2; // packets of a thread, at least
constexpr int64_t kMostBlocks = kMultiprocessors * kBlocksAtOnce;

// Packets that threads take in turn: the first so many have one more than the others.
struct turns {
    int32_t least, first;

    __device__ __forceinline__ int of(int thread) const
    {
        return least + (thread < first);
    }
};

struct compare_args {
    const void *a, *b;
    int64_t n, width, a_stride, b_stride;
    float atol, rtol;
    int32_t is_flat;   // bool: rows follow each other in both, so all is one row
    int32_t is_packed; // bool: packets are in one row, at multiples of 16 bytes
    // Of all packets those that are whole and lie a step from each other in memory, in most calls
    // all: what finds a place would be a fifth of their instructions.
    turns packets, plain;
    int64_t step;                 // elements
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

__device__ __forceinline__ uint32_t bits_of(float x)
{
    return __float_as_uint(x);
}
__device__ __forceinline__ uint32_t bits_of(__half x)
{
    return __half_as_ushort(x);
}
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat16 x)
{
    return __bfloat16_as_ushort(x);
}

template <typename T>
__device__ __forceinline__ void load_whole(const T *from, words<T> &to)
{
#pragma unroll
    for (int i = 0; i < kPacket; i += kVecOf<T>)
        to.raw[i / kVecOf<T>] = load_16(from + i);
}

// Elements from place on; zeros behind the last.
template <typename T>
__device__ __forceinline__ void load(const compare_args &args, const void *base, int64_t stride,
                                     place from, int64_t left, words<T> &to)
{
    constexpr int kWords = kPacket * (int)sizeof(T) / 4;
    const T *row = static_cast<const T *>(base) + from.row * stride;
    if (args.is_packed && left >= kPacket)
        return load_whole(row + from.column, to);
    uint32_t word[kWords] = {};
#pragma unroll 1
    for (int j = 0; j < kPacket; j++) { // the others move on by one
        const uint32_t next = j < left ? bits_of(row[from.column]) : 0;
#pragma unroll
        for (int i = 0; i < kWords; i++)
            word[i] =
                __funnelshift_rc(word[i], i + 1 < kWords ? word[i + 1] : next, 8 * (int)sizeof(T));
        if (++from.column == args.width && !args.is_flat) {
            from.column = 0;
            row += stride;
        }
    }
    memcpy(to.raw, word, sizeof word);
}

// Packets of both at element at; zeros where there is none.
template <typename A, typename B>
__device__ __forceinline__ void load_both(const compare_args &args, int64_t at, words<A> &a,
                                          words<B> &b)
{
    const int64_t left = args.n - at;
    a = {};
    b = {};
    if (left <= 0)
        return;
    const place from = place_of(args, at);
    load<A>(args, args.a, args.a_stride, from, left, a);
    load<B>(args, args.b, args.b_stride, from, left, b);
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

// What some elements of a packet have, those of mask: the largest differences, and all that they
// add where nothing else has looked at them.
template <typename Coarser>
__device__ __forceinline__ void add_elements(const compare_args &args, int64_t at, uint32_t mask,
                                             bool is_new, const float (&a)[kPacket],
                                             const float (&b)[kPacket], struct compare_part &part)
{
#pragma unroll 1
    for (; mask; mask &= mask - 1) {
        const int i = __ffs((int)mask) - 1;
        float x = a[0], y = b[0];
#pragma unroll
        for (int j = 1; j < kPacket; j++) { // a choice, as an index would be in memory
            x = i == j ? a[j] : x;
            y = i == j ? b[j] : y;
        }
        bool is_nan = x != x || y != y;
        float d = is_nan || x == y ? 0.0f : fabsf(x - y), size = fabsf(y);
        if (d > part.largest) {
            part.largest = d;
            part.at = at + i;
        }
        add_share(d, size, part);
        if (!is_new)
            continue;
        if ((x != x) != (y != y)) {
            part.nan_alone++;
            part.nan_at = part.nan_at < 0 ? at + i : part.nan_at;
        }
        part.beyond += d > __fadd_rn(args.atol, __fmul_rn(args.rtol, size)) || d == CUDART_INF_F;
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

// Is x negative: a sign, for a sum.
__device__ __forceinline__ uint32_t sign_of(float x)
{
    return __float_as_uint(x) >> 31;
}

constexpr float kNearly = 1 - 0x1p-20f; // more than products with the chip's reciprocals are off

// The largest differences of a packet to part, where they are above what the warp has found, bar
// and part.relative. Of the warp's packets hardly any element is the largest: only those are
// divided.
template <typename Coarser>
__device__ __forceinline__ void add_largest(const compare_args &args, int64_t at, bool is_odd,
                                            float largest, const float (&x)[kPacket],
                                            const float (&y)[kPacket], float &bar,
                                            struct compare_part &part)
{
    float ratio[kPacket], most = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        ratio[i] = fabsf(x[i] - y[i]) * reciprocal_of(fabsf(y[i]));
        most = is_odd ? 0.0f : fmaxf(most, ratio[i]);
    }
    const float all = largest_in_warp<32>(largest);
    most = largest_in_warp<32>(most);
    float least = fmaxf(part.relative, most < CUDART_INF_F ? most : 0.0f) * kNearly;
    least = least < 0x1p-100f ? 0.0f : least; // where products may have lost bits to underflow
    uint32_t mask = is_odd ? 0xFFu : 0;
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        const float d = fabsf(x[i] - y[i]);
        const bool is_first = d == all && all > bar, is_near = !(ratio[i] < least);
        mask |= !is_odd && (is_first || is_near) && d > 0.0f ? 1u << i : 0;
    }
    add_elements<Coarser>(args, at, mask, is_odd, x, y, part);
    bar = largest_in_warp<32>(part.largest);
    part.relative = largest_in_warp<32>(part.relative);
}

// bar: no difference that is not above it is the first of the largest, one that the warp found
// before. All lanes of the warp take part.
template <typename A, typename B>
__device__ __forceinline__ void add_packet(const compare_args &args, int64_t at, const words<A> &a,
                                           const words<B> &b, float &bar, struct compare_part &part,
                                           uint32_t &pair_steps)
{
    float x[kPacket], y[kPacket], largest = 0.0f, dot = 0.0f, aa = 0.0f, bb = 0.0f;
    a.unpack_all(x);
    b.unpack_all(y);
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        dot = fmaf(x[i], y[i], dot);
        aa = fmaf(x[i], x[i], aa);
        bb = fmaf(y[i], y[i], bb);
    }
    const bool is_odd = !(aa + bb <= 0x1p100f);
    bool is_above = is_odd;
    if (!is_odd) {
        const float share = part.relative * (1 - 0x1p-21f);
        uint32_t beyond = 0, shares = 0;
#pragma unroll
        for (int i = 0; i < kPacket; i++) { // signs of differences, as comparisons take more
            const float size = fabsf(y[i]), d = fabsf(x[i] - y[i]);
            largest = fmaxf(largest, d);
            beyond += sign_of(__fadd_rn(args.atol, __fmul_rn(args.rtol, size)) - d);
            shares |= __float_as_uint(fmaf(share, size, -d));
        }
        part.beyond += beyond;
        add_steps(a, b, x, y, part, pair_steps);
        if (fminf(aa, bb) >= 0x1p-90f) { // nothing that matters was lost to underflow
            part.dot += (double)dot;
            part.aa += (double)aa;
            part.bb += (double)bb;
        } else {
            add_products(x, y, part);
        }
        is_above = largest > bar || shares >> 31;
    }
    if (__any_sync(0xFFFFFFFFu, is_above))
        add_largest<coarser_of<A, B>>(args, at, is_odd, largest, x, y, bar, part);
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

// The sum over a warp, to all of its lanes.
__device__ __forceinline__ int64_t count_in_warp(int64_t x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint64_t count = (uint64_t)x;
    const uint64_t low = __reduce_add_sync(0xFFFFFFFFu, (uint32_t)count & 0xFFFFu),
                   middle = __reduce_add_sync(0xFFFFFFFFu, (uint32_t)count >> 16),
                   high = __reduce_add_sync(0xFFFFFFFFu, (uint32_t)(count >> 32));
    return (int64_t)(low + (middle << 16) + (high << 32));
#else
    return sum_in_warp<32>(x);
#endif
}

// The least index, of which -1, none, is the most.
__device__ __forceinline__ int64_t first_in_warp(int64_t x)
{
    uint64_t at = (uint64_t)x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t high = __reduce_min_sync(0xFFFFFFFFu, (uint32_t)(at >> 32));
    const uint32_t mine = (uint32_t)(at >> 32) == high ? (uint32_t)at : UINT32_MAX;
    at = (uint64_t)high << 32 | __reduce_min_sync(0xFFFFFFFFu, mine);
#else
    for (int distance = 16; distance > 0; distance /= 2)
        at = min(at, exchange(at, distance));
#endif
    return (int64_t)at;
}

__device__ __forceinline__ uint32_t most_in_warp(uint32_t x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xFFFFFFFFu, x);
#else
    for (int distance = 16; distance > 0; distance /= 2)
        x = max(x, exchange(x, distance));
    return x;
#endif
}

// The sums over a warp, to all of its lanes: a quarter of the lanes adds one of them.
__device__ __forceinline__ void sum_products_in_warp(struct compare_part &part)
{
    const bool is_upper = threadIdx.x & 16, is_odd = threadIdx.x & 8;
    double one = is_upper ? part.bb : part.dot, other = is_upper ? 0.0 : part.aa;
    one += exchange(is_upper ? part.dot : part.bb, 16);
    other += exchange(is_upper ? part.aa : 0.0, 16);
    double sum = (is_odd ? other : one) + exchange(is_odd ? one : other, 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2)
        sum += exchange(sum, distance);
    part.dot = __shfl_sync(0xFFFFFFFFu, sum, 0);
    part.aa = __shfl_sync(0xFFFFFFFFu, sum, 8);
    part.bb = __shfl_sync(0xFFFFFFFFu, sum, 16);
}

// What the lanes of a warp have, to all of them.
__device__ __forceinline__ void merge_lanes(struct compare_part &part)
{
    const float largest = largest_in_warp<32>(part.largest);
    sum_products_in_warp(part);
    part.at = first_in_warp(part.largest == largest ? part.at : -1);
    part.largest = largest;
    part.relative = largest_in_warp<32>(part.relative);
    part.beyond = count_in_warp(part.beyond);
    part.steps = most_in_warp(part.steps);
    if (__any_sync(0xFFFFFFFFu, part.nan_alone != 0)) {
        part.nan_alone = count_in_warp(part.nan_alone);
        part.nan_at = first_in_warp(part.nan_at);
    }
}

__device__ __forceinline__ struct compare_part nothing()
{
    struct compare_part part = {};
    part.nan_at = part.at = -1;
    return part;
}

// What all threads of the block have, to its first warp.
__device__ __forceinline__ void merge_block(struct compare_part &part, struct compare_part *shared)
{
    merge_lanes(part);
    __syncthreads(); // shared may be of before
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x < 32) {
        part = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : nothing();
        merge_lanes(part);
    }
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
static __global__ void __launch_bounds__(kMostThreads, 1)
    compare_kernel(const __grid_constant__ compare_args args)
{
    __shared__ struct compare_part shared[kMostThreads / 32];
    __shared__ bool is_last;
    const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int64_t first = (int64_t)thread * kPacket;
    const int turns = args.packets.of(thread - (int)threadIdx.x % 32); // all lanes have as many
    const int plain = compute_now(args.plain.of(thread));              // or each turn would find it
    const A *from_a = static_cast<const A *>(args.a) + first;
    const B *from_b = static_cast<const B *>(args.b) + first;
    finish_before_wait(from_a, from_b, turns, plain);
    wait_for_previous();
    let_next_start();
    struct compare_part part = nothing();
    uint32_t pair_steps = 0;
    float bar = 0.0f;
    words<A> a = {}, next_a;
    words<B> b = {}, next_b;
#pragma unroll 1
    for (int turn = -1; turn < turns; turn++) { // the next packet is on its way
        if (turn + 1 < plain) {
            load_whole(from_a, next_a);
            load_whole(from_b, next_b);
            from_a += args.step;
            from_b += args.step;
        } else {
            load_both(args, first + (turn + 1) * args.step, next_a, next_b);
        }
        if (turn >= 0)
            add_packet(args, first + turn * args.step, a, b, bar, part, pair_steps);
        a = next_a;
        b = next_b;
    }
    part.steps = max(part.steps, max(pair_steps & 0xFFFFu, pair_steps >> 16));
#pragma unroll 1
    for (bool is_all = gridDim.x == 1;; is_all = true) {
        merge_block(part, shared);
        if (is_all)
            break;
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
        for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
            merge(part, load_part(args.partial + i));
    }
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
    const int64_t packets = blocks_of(plan->n, kPacket);
    int64_t blocks = blocks_of(packets, kThreads * kBatch), threads = kThreads;
    if (packets <= kMostThreads) { // a block by itself, whose threads have one each
        blocks = 1;
        threads = blocks_of(packets < 1 ? 1 : packets, 32) * 32;
    }
    blocks = blocks < kMostBlocks ? blocks : kMostBlocks;
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
    const auto in_turn = [&](int64_t n) {
        return turns{(int32_t)(n / (blocks * threads)), (int32_t)(n % (blocks * threads))};
    };
    args.step = blocks * threads * kPacket;
    args.packets = in_turn(packets);
    args.plain = in_turn(args.is_flat && args.is_packed ? plan->n / kPacket : 0);
    args.partial = reinterpret_cast<struct compare_part *>(partial);
    args.index = static_cast<int64_t *>(call->out[COMPARE_INDEX].data);
    args.counts = static_cast<int64_t *>(call->out[COMPARE_COUNTS].data);
    args.stats = static_cast<float *>(call->out[COMPARE_STATS].data);
    return with_float_type(a->dtype, [&](auto of_a) {
        return with_float_type(b->dtype, [&](auto of_b) {
            using A = typename decltype(of_a)::type;
            using B = typename decltype(of_b)::type;
            return start(queue, compare_kernel<A, B>, dim3((unsigned)threads), blocks, dim3(1),
                         args, err);
        });
    });
}
