// rmsnorm.cu - rmsnorm on a CUDA device.
//
//     y = x * rsqrt(mean(x^2) + eps) * (weight_bias + weight)
//
// A group of threads owns a row: part of a warp for narrow rows, a block for wide ones. The row is
// read once, kept in registers as it came, summed, scaled and written: 2 bytes moved per byte of
// x. Rows beyond 4,096 vectors of 16 bytes, and rows that 16 bytes do not divide, are read twice,
// the second time from a cache.
//
// The order of the sum follows from the hidden size alone: element e belongs to vector e / kVec,
// vector v to thread v % threads; a thread adds its own in order, then a fixed tree adds the
// threads. The number of rows, the rows per block and the alignment change nothing, so a row's bits
// do not depend on how it came.
//
// Squares are summed in float32 (in double beyond 4,096 vectors). Where that overflows, or may
// have lost the sum to underflow, the group sums once more in double, as the CPU backend always
// does.
#include "cuda/device/stream.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"
#include "ops/rmsnorm.h"

#include <float.h>

// The weight's type beside that of x (T).
enum weight_kind {
    kWeightNone,
    kWeightSame,
    kWeightFloat, // T is narrow
    kWeightHalf,  // T is float
    kWeightBf16   // T is float
};

struct norm_args {
    const void *x;
    const void *weight;
    void *y;
    int64_t n_rows;
    int64_t hidden;
    float eps;
    float weight_bias;
    float inverse_hidden;
    double exact_inverse_hidden;
    int32_t weight_kind;
    int32_t rounds_product;  // bool: rounding hf on a narrow type
    int32_t rows_per_group;  // one after another
    int32_t threads_per_row; // of the kernels that know it at run time
    int32_t sums_in_double;  // bool, the same
};

// Below this mean square plus eps a sum of float32 squares may have lost bits to underflow.
constexpr float kTiny = 1e-30f;

constexpr int kNormThreads = 256; // per block where groups are smaller

// ------------------------------------------------------------------------------------ vectors

// Vector v of a row that ends at element n; elements beyond are 0. Without alignment its elements
// are loaded one by one into the same places.
template <typename T, bool kIsAligned>
__device__ __forceinline__ uint4 load_vector(const T *row, int64_t vector, int64_t n)
{
    constexpr int kVec = kVecOf<T>;
    if constexpr (kIsAligned) {
        return load_once(row + vector * kVec);
    } else {
        float x[kVec];
#pragma unroll
        for (int i = 0; i < kVec; i++)
            x[i] = vector * kVec + i < n ? element<T>::to_float(row[vector * kVec + i]) : 0.0f;
        return pack<T>(x);
    }
}

template <typename T, bool kIsAligned>
__device__ __forceinline__ void store_vector(T *row, int64_t vector, int64_t n,
                                             const float (&y)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    if constexpr (kIsAligned) {
        *reinterpret_cast<uint4 *>(row + vector * kVec) = pack<T>(y);
    } else {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            if (vector * kVec + i < n)
                row[vector * kVec + i] = element<T>::from_float(y[i]);
    }
}

// Weights of a vector as floats. W is packed; a row of them is read by every block, so through the
// read-only cache.
template <typename W, int kVec, bool kIsAligned>
__device__ __forceinline__ void load_weights(const void *weight, int64_t vector, int64_t n,
                                             float (&w)[kVec])
{
    const W *from = static_cast<const W *>(weight) + vector * kVec;
    constexpr int kWords = kVec * (int)sizeof(W) / 4;
    if constexpr (!kIsAligned) {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            w[i] = vector * kVec + i < n ? element<W>::to_float(from[i]) : 0.0f;
    } else if constexpr (sizeof(W) == 4) {
        load_shared_floats(reinterpret_cast<const float *>(from), w);
    } else {
        float word[kWords];
        load_shared_floats(reinterpret_cast<const float *>(from), word);
#pragma unroll
        for (int i = 0; i < kWords; i++) {
            float2 pair = element<W>::to_float2(__float_as_uint(word[i]));
            w[2 * i] = pair.x;
            w[2 * i + 1] = pair.y;
        }
    }
}

// ------------------------------------------------------------------------------------ weights

// Starts the loads of weights that fit 16 bytes, before the sum needs x: one latency, not two.
template <typename T>
__device__ __forceinline__ uint4 start_weight(const norm_args &args, int64_t vector)
{
    if (args.weight_kind == kWeightSame)
        return __ldg(reinterpret_cast<const uint4 *>(args.weight) + vector);
    uint4 raw = {};
    if (sizeof(T) == 4 && args.weight_kind >= kWeightHalf) {
        uint2 half = __ldg(reinterpret_cast<const uint2 *>(args.weight) + vector);
        raw.x = half.x;
        raw.y = half.y;
    }
    return raw;
}

template <typename W>
__device__ __forceinline__ void unpack_half_vector(const uint4 &raw, float (&w)[4])
{
    float2 low = element<W>::to_float2(raw.x), high = element<W>::to_float2(raw.y);
    w[0] = low.x;
    w[1] = low.y;
    w[2] = high.x;
    w[3] = high.y;
}

// Weights of a vector: from started, or from memory. The kind is the same for a whole launch.
template <typename T, bool kIsAligned, bool kIsStarted>
__device__ __forceinline__ void weights_of(const norm_args &args, const uint4 &started,
                                           int64_t vector, float (&w)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    int64_t n = args.hidden;
    if (args.weight_kind == kWeightNone) {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            w[i] = 1.0f;
    } else if (args.weight_kind == kWeightSame) {
        if constexpr (kIsStarted)
            unpack<T>(started, w);
        else
            load_weights<T, kVec, kIsAligned>(args.weight, vector, n, w);
    } else if constexpr (sizeof(T) == 2) {
        load_weights<float, kVec, kIsAligned>(args.weight, vector, n, w);
    } else if (args.weight_kind == kWeightHalf) {
        if constexpr (kIsStarted)
            unpack_half_vector<__half>(started, w);
        else
            load_weights<__half, kVec, kIsAligned>(args.weight, vector, n, w);
    } else {
        if constexpr (kIsStarted)
            unpack_half_vector<__nv_bfloat16>(started, w);
        else
            load_weights<__nv_bfloat16, kVec, kIsAligned>(args.weight, vector, n, w);
    }
}

// ------------------------------------------------------------------------------------ rows

// x becomes y. Rounding hf rounds x * scale to T before the weight.
template <typename T>
__device__ __forceinline__ void scale_vector(const norm_args &args, float scale,
                                             const float (&w)[kVecOf<T>], float (&x)[kVecOf<T>])
{
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++) {
        x[i] *= scale;
        if (sizeof(T) == 2 && args.rounds_product)
            x[i] = element<T>::to_float(element<T>::from_float(x[i]));
        x[i] *= args.weight_bias + w[i];
    }
}

// Explicitly fused: every kernel adds a row's squares with the same roundings.
template <typename T, typename Acc>
__device__ __forceinline__ void add_squares(const uint4 &raw, Acc &sum)
{
    float x[kVecOf<T>];
    unpack<T>(raw, x);
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++)
        sum = fma((Acc)x[i], (Acc)x[i], sum);
}

// One thread's share of a row's squares, from memory.
template <typename T, bool kIsAligned, typename Acc>
__device__ __forceinline__ Acc read_squares(const norm_args &args, int64_t row, int thread,
                                            int threads)
{
    const T *x = static_cast<const T *>(args.x) + row * args.hidden;
    Acc sum = 0;
    if (row >= args.n_rows)
        return sum;
#pragma unroll 1
    for (int64_t vector = thread; vector * kVecOf<T> < args.hidden; vector += threads)
        add_squares<T>(load_vector<T, kIsAligned>(x, vector, args.hidden), sum);
    return sum;
}

// Is a sum of float32 squares good enough: no overflow (or NaN), no underflow that matters.
__device__ __forceinline__ bool is_good(float sum, float mean)
{
    return sum <= FLT_MAX && mean >= kTiny;
}

__device__ __forceinline__ float exact_scale(const norm_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_hidden, (double)args.eps));
}

// 1 / sqrt(mean + eps), with the same bits in every thread of the group. turn alternates between
// rows, so that a fast warp's next row does not overwrite what a slow one still reads.
template <typename T, int kThreads, int kVectors>
__device__ __forceinline__ float scale_of(const norm_args &args, const uint4 (&raw)[kVectors],
                                          int64_t row, int thread, int turn)
{
    constexpr int kWarps = (kThreads + 31) / 32;
    __shared__ float partial[2][kWarps];
    __shared__ double exact_partial[2][kWarps];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        add_squares<T>(raw[v], sum);
    sum = sum_in_group<kThreads>(sum, partial[turn]);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    bool is_done = is_good(sum, mean);
    // Several groups may share a warp, and all of its lanes take part in a sum. A group whose own
    // sum was good keeps it: its neighbours must not change its bits.
    if (kThreads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return __frsqrt_rn(mean);
    double exact = read_squares<T, true, double>(args, row, thread, kThreads);
    exact = sum_in_group<kThreads>(exact, exact_partial[turn]);
    return is_done ? __frsqrt_rn(mean) : exact_scale(args, exact);
}

template <typename T, int kVectors, int kThreads>
__device__ __forceinline__ void load_row(const norm_args &args, int64_t row, int thread,
                                         uint4 (&raw)[kVectors])
{
    const T *x = static_cast<const T *>(args.x) + row * args.hidden;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        int vector = v * kThreads + thread;
        raw[v] = make_uint4(0, 0, 0, 0);
        if (row < args.n_rows && vector * kVecOf<T> < args.hidden)
            raw[v] = load_vector<T, true>(x, vector, args.hidden);
    }
}

template <typename T, int kVectors, int kThreads, bool kIsStarted>
__device__ __forceinline__ void write_row(const norm_args &args, int64_t row, int thread,
                                          float scale, const uint4 (&raw)[kVectors],
                                          const uint4 (&weight)[kVectors])
{
    T *y = static_cast<T *>(args.y) + row * args.hidden;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        int vector = v * kThreads + thread;
        if (row >= args.n_rows || vector * kVecOf<T> >= args.hidden)
            continue;
        float x[kVecOf<T>], w[kVecOf<T>];
        unpack<T>(raw[v], x);
        weights_of<T, true, kIsStarted>(args, weight[v], vector, w);
        scale_vector<T>(args, scale, w, x);
        store_vector<T, true>(y, vector, args.hidden, x);
    }
}

// ------------------------------------------------------------------------------------ kernels

// kThreads threads per row, kVectors vectors per thread; groups below a block's size share one.
// A group takes rows_per_group rows in turn and loads the next one before it sums the present one,
// so that memory does not wait for the barrier. What registers cannot hold is left out where
// blocks are large: weights and next row beside four vectors.
template <int kThreads, int kVectors>
struct norm_config {
    static constexpr bool kIsBlock = kThreads > 32;
    static constexpr int kBlock = kIsBlock ? kThreads : kNormThreads;
    static constexpr int kMinBlocks = kThreads == 512 ? 2 : 1;
    static constexpr int kGroups = kBlock / kThreads;
    static constexpr bool kStartsWeight = kVectors <= 2 || !kIsBlock;
    static constexpr bool kStartsNext = kThreads <= 256 || kVectors <= 2;
};

template <typename T, int kThreads, int kVectors>
__global__ void __launch_bounds__(norm_config<kThreads, kVectors>::kBlock,
                                  norm_config<kThreads, kVectors>::kMinBlocks)
    rmsnorm_kernel(const __grid_constant__ struct norm_args args)
{
    enter_stream();
    using config = norm_config<kThreads, kVectors>;
    int thread = threadIdx.x % kThreads;
    int64_t first = (int64_t)blockIdx.x * args.rows_per_group * config::kGroups;
    int64_t row = first + threadIdx.x / kThreads;
    uint4 raw[kVectors], weight[kVectors];
    load_row<T, kVectors, kThreads>(args, row, thread, raw);
    if constexpr (config::kStartsWeight) {
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            if ((v * kThreads + thread) * kVecOf<T> < args.hidden)
                weight[v] = start_weight<T>(args, v * kThreads + thread);
    }
    int rows = config::kStartsNext ? args.rows_per_group : 1;
    for (int turn = 0; turn < rows; turn++) {
        uint4 next[kVectors];
        int64_t next_row = turn + 1 < rows ? row + config::kGroups : args.n_rows;
        if constexpr (config::kStartsNext)
            load_row<T, kVectors, kThreads>(args, next_row, thread, next);
        float scale = scale_of<T, kThreads>(args, raw, row, thread, turn % 2);
        write_row<T, kVectors, kThreads, config::kStartsWeight>(args, row, thread, scale, raw,
                                                                weight);
        if constexpr (config::kStartsNext)
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                raw[v] = next[v];
        row = next_row;
    }
}

// The same sums without registers for the row: rows too wide, widths or pointers that 16 bytes do
// not divide. threads_per_row as the other kernel would have, several rows per block likewise.
template <typename T, bool kIsAligned>
__global__ void __launch_bounds__(1024)
    rmsnorm_reread_kernel(const __grid_constant__ struct norm_args args)
{
    enter_stream();
    constexpr int kVec = kVecOf<T>;
    __shared__ float partial[32];
    __shared__ double exact_partial[32];
    int threads = args.threads_per_row;
    int thread = threadIdx.x % threads;
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / threads) + threadIdx.x / threads;
    float mean = 0;
    bool is_done = false;
    if (!args.sums_in_double) {
        float sum = read_squares<T, kIsAligned, float>(args, row, thread, threads);
        sum = sum_in_group(sum, partial, threads);
        mean = fmaf(sum, args.inverse_hidden, args.eps);
        is_done = is_good(sum, mean);
    }
    float scale = __frsqrt_rn(mean);
    if (threads < 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_squares<T, kIsAligned, double>(args, row, thread, threads);
        exact = sum_in_group(exact, exact_partial, threads);
        scale = is_done ? scale : exact_scale(args, exact);
    }
    if (row >= args.n_rows)
        return;
    const T *x = static_cast<const T *>(args.x) + row * args.hidden;
    T *y = static_cast<T *>(args.y) + row * args.hidden;
    for (int64_t vector = thread; vector * kVec < args.hidden; vector += threads) {
        uint4 raw = load_vector<T, kIsAligned>(x, vector, args.hidden);
        float value[kVec], w[kVec];
        unpack<T>(raw, value);
        weights_of<T, kIsAligned, false>(args, raw, vector, w);
        scale_vector<T>(args, scale, w, value);
        store_vector<T, kIsAligned>(y, vector, args.hidden, value);
    }
}

// ------------------------------------------------------------------------------------ launchers

static int64_t blocks_of(int64_t n_rows, int64_t rows_per_block)
{
    return (n_rows + rows_per_block - 1) / rows_per_block;
}

template <typename T>
static enum roped_status launch_reread(struct norm_args *args, bool is_aligned, int threads,
                                       struct roped_queue *queue, struct roped_error *err)
{
    int block = threads < kNormThreads ? kNormThreads : threads;
    kernel_fn<norm_args> *kernel =
        is_aligned ? rmsnorm_reread_kernel<T, true> : rmsnorm_reread_kernel<T, false>;
    if (threads > 32)
        block = threads;
    args->threads_per_row = threads;
    return start(queue, kernel, dim3(block), blocks_of(args->n_rows, block / threads), dim3(),
                 *args, err);
}

// Many rows: a group takes four, so that weights are read a quarter as often and three of four
// loads overlap a sum. Few rows: each its own group.
template <typename T, int kThreads, int kVectors>
static enum roped_status launch_rows(struct norm_args *args, bool is_aligned,
                                     struct roped_queue *queue, struct roped_error *err)
{
    using config = norm_config<kThreads, kVectors>;
    if (!is_aligned)
        return launch_reread<T>(args, false, kThreads, queue, err);
    int64_t n_blocks = blocks_of(args->n_rows, config::kGroups);
    bool is_much = n_blocks >= (int64_t)queue->n_multiprocessors * 32;
    args->rows_per_group = config::kStartsNext && is_much ? 4 : 1;
    return start(queue, rmsnorm_kernel<T, kThreads, kVectors>, dim3(config::kBlock),
                 blocks_of(n_blocks, args->rows_per_group), dim3(), *args, err);
}

// Threads and vectors per row, by the row's vectors of 16 bytes: two to four loads in flight per
// thread, and a block as small as that allows, for its barrier is what a single row waits for.
// 4,096 of bfloat16 are 512 vectors: 256 threads with two each.
template <typename T>
static enum roped_status launch_hidden(struct norm_args *args, bool is_aligned,
                                       struct roped_queue *queue, struct roped_error *err)
{
    int64_t vectors = (args->hidden + kVecOf<T> - 1) / kVecOf<T>;
    if (vectors <= 8)
        return launch_rows<T, 4, 2>(args, is_aligned, queue, err);
    if (vectors <= 16)
        return launch_rows<T, 8, 2>(args, is_aligned, queue, err);
    if (vectors <= 32)
        return launch_rows<T, 16, 2>(args, is_aligned, queue, err);
    if (vectors <= 64)
        return launch_rows<T, 32, 2>(args, is_aligned, queue, err);
    if (vectors <= 128)
        return launch_rows<T, 32, 4>(args, is_aligned, queue, err);
    if (vectors <= 256)
        return launch_rows<T, 128, 2>(args, is_aligned, queue, err);
    if (vectors <= 512)
        return launch_rows<T, 256, 2>(args, is_aligned, queue, err);
    if (vectors <= 1024)
        return launch_rows<T, 512, 2>(args, is_aligned, queue, err);
    if (vectors <= 2048)
        return launch_rows<T, 512, 4>(args, is_aligned, queue, err);
    if (vectors <= 4096)
        return launch_rows<T, 1024, 4>(args, is_aligned, queue, err);
    args->sums_in_double = true;
    return launch_reread<T>(args, is_aligned, 1024, queue, err);
}

static int weight_kind_of(int weight, int x)
{
    if (weight == ROPED_NO_DTYPE)
        return kWeightNone;
    if (weight == x)
        return kWeightSame;
    if (weight == ROPED_F32)
        return kWeightFloat;
    return weight == ROPED_F16 ? kWeightHalf : kWeightBf16;
}

extern "C" enum roped_status roped_cuda_rmsnorm(const struct roped_call *call,
                                                struct roped_queue *queue, struct roped_error *err)
{
    const struct rmsnorm_plan *plan = reinterpret_cast<const struct rmsnorm_plan *>(call->plan);
    int dtype = call->in[RMSNORM_X].dtype;
    if (plan->n_rows == 0)
        return ROPED_OK;
    struct norm_args args = {};
    args.x = call->in[RMSNORM_X].data;
    args.weight = call->in[RMSNORM_WEIGHT].data;
    args.y = call->out[RMSNORM_Y].data;
    args.n_rows = plan->n_rows;
    args.hidden = plan->hidden;
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.exact_inverse_hidden = 1.0 / (double)plan->hidden;
    args.inverse_hidden = (float)args.exact_inverse_hidden;
    args.weight_kind = weight_kind_of(plan->weight_dtype, dtype);
    args.rounds_product = plan->rounding == RMSNORM_ROUND_HF && dtype != ROPED_F32;
    return with_float_type(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        bool has_vectors = plan->hidden % kVecOf<T> == 0 && is_aligned(args.x, 16) &&
                           is_aligned(args.y, 16) && is_aligned(args.weight, 16);
        return launch_hidden<T>(&args, has_vectors, queue, err);
    });
}
