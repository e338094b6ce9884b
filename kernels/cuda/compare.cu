// compare.cu - compare on CUDA. A thread takes packets of 8 elements, the same ones whatever
// addresses and strides are, and threads and blocks add up in an order that follows from n: the
// same bits from run to run and from device to device. The last block to end adds those of all.

extern "C" {
#include "ops/compare.h"
}

#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

#include <math_constants.h>

#include <type_traits>

constexpr int kThreads = 256;
constexpr int kPacket = 8;
constexpr int kBatch = 2;                // packets of a thread whose loads are one wait
constexpr int64_t kMostBlocks = 132 * 6; // a constant: the order of sums is that of blocks

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

// Elements from place on; zeros behind the last.
template <typename T>
__device__ __forceinline__ void load(const compare_args &args, const void *base, int64_t stride,
                                     place from, int64_t left, float (&x)[kPacket])
{
    const T *row = static_cast<const T *>(base) + from.row * stride;
    if (args.is_packed && left >= kPacket) {
        constexpr int kVec = kVecOf<T>;
#pragma unroll
        for (int i = 0; i < kPacket; i += kVec) {
            float part[kVec];
            unpack<T>(load_16(row + from.column + i), part);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                x[i + j] = part[j];
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        x[i] = 0.0f;
        if (i < left)
            x[i] = element<T>::to_float(row[from.column]);
        if (++from.column == args.width && !args.is_flat) {
            from.column = 0;
            row += stride;
        }
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

template <typename Coarser>
__device__ __forceinline__ void add_packet(const compare_args &args, int64_t at,
                                           const float (&a)[kPacket], const float (&b)[kPacket],
                                           struct compare_part &part)
{
    float d[kPacket], largest = 0.0f;
    uint32_t alone = 0, beyond = 0;
#pragma unroll
    for (int i = 0; i < kPacket; i++) {
        float x = a[i], y = b[i], size = fabsf(y);
        bool is_nan = x != x || y != y;
        alone |= (uint32_t)((x != x) != (y != y)) << i;
        d[i] = is_nan || x == y ? 0.0f : fabsf(x - y);
        largest = fmaxf(largest, d[i]);
        beyond += d[i] > __fadd_rn(args.atol, __fmul_rn(args.rtol, size)) || d[i] == CUDART_INF_F;
        add_share(d[i], size, part);
        if (d[i] > 0.0f)
            part.steps = max(part.steps, steps_between<Coarser>(x, y));
        bool is_finite = fabsf(x) < CUDART_INF_F && size < CUDART_INF_F;
        double u = is_finite ? x : 0.0f, v = is_finite ? y : 0.0f;
        part.dot += u * v;
        part.aa += u * u;
        part.bb += v * v;
    }
    part.beyond += beyond;
    if (alone) {
        part.nan_alone += __popc(alone);
        if (part.nan_at < 0)
            part.nan_at = at + __ffs((int)alone) - 1;
    }
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

// What all threads of the block have, to thread 0.
__device__ __forceinline__ void merge_block(struct compare_part &part, struct compare_part *shared)
{
    shared[threadIdx.x] = part;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            merge(part, shared[threadIdx.x + half]);
            shared[threadIdx.x] = part;
        }
    }
    __syncthreads();
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
    constexpr int kWords = sizeof(struct compare_part) / 8;
    static_assert(sizeof(struct compare_part) % 8 == 0, "words");
    union {
        unsigned long long word[kWords];
        struct compare_part part;
    };
#pragma unroll
    for (int i = 0; i < kWords; i++)
        word[i] = __ldcg(reinterpret_cast<const unsigned long long *>(from) + i);
    return part;
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
    args.stats[3] = lengths > 0 ? (float)(all.dot / sqrt(lengths)) : (float)(all.aa == all.bb);
}

template <typename A, typename B>
using coarser_of = std::conditional_t<std::is_same<A, __nv_bfloat16>::value ||
                                          std::is_same<B, __nv_bfloat16>::value,
                                      __nv_bfloat16, std::conditional_t<sizeof(A) == 2, A, B>>;

template <typename A, typename B>
static __global__ void __launch_bounds__(kThreads)
    compare_kernel(const __grid_constant__ compare_args args)
{
    __shared__ struct compare_part shared[kThreads];
    __shared__ bool is_last;
    let_next_start();
    wait_for_previous();
    const int64_t step = (int64_t)gridDim.x * kThreads * kPacket;
    struct compare_part part = nothing();
    for (int64_t at = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * kPacket; at < args.n;
         at += kBatch * step) {
        float a[kBatch][kPacket] = {}, b[kBatch][kPacket] = {};
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
            add_packet<coarser_of<A, B>>(args, at + i * step, a[i], b[i], part);
    }
    merge_block(part, shared);
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

static int64_t stride_of(const struct roped_tensor *tensor, int64_t width)
{
    return tensor->stride ? tensor->stride : width;
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
    const int64_t per_block = kThreads * kPacket;
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
    args.a_stride = stride_of(a, plan->width);
    args.b_stride = stride_of(b, plan->width);
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
