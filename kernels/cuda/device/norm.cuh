// norm.cuh - the one norm of the CUDA backend, for every norm operator:
//
//     y = z * rsqrt(mean(z^2) + eps) * (weight_bias + weight)
//
// where z is x, or x + residual in float32, and y is stored rounded, or divided by a scale and
// rounded to FP8.
//
// A group of threads owns a row: part of a warp for narrow rows, a block for wide ones. The row is
// read once, kept in registers as it came, summed, scaled and written. Rows beyond 4,096 vectors of
// 16 bytes, and rows that 16 bytes do not divide, are read twice, the second time from a cache.
//
// The order of the sum follows from the hidden size alone: element e belongs to vector e / kVec,
// vector v to thread v % threads; a thread adds its own in order, then a fixed tree adds the
// threads. The number of rows, the rows per block and the alignment change nothing, so a row's bits
// do not depend on how it came.
//
// Squares are summed in float32 (in double beyond 4,096 vectors). Where that overflows, or may
// have lost the sum to underflow, the group sums once more in double, as the CPU backend always
// does.
//
// A result may take the place of its input: a thread writes only the elements that it has read
// itself, after the sum's barrier. How many threads take a row is not decided here:
// norm_launch.cuh.
#pragma once

#include "cuda/device/fp8.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"

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
    const void *residual; // of kFromSum
    void *residual_out;
    int64_t n_rows;
    int64_t hidden;
    float eps;
    float weight_bias;
    float inverse_hidden;
    double exact_inverse_hidden;
    int32_t weight_kind;
    int32_t n_vectors;       // of a row, where 16 bytes divide it
    int32_t rounds_product;  // bool: rounding hf on a narrow type
    int32_t rows_per_group;  // one after another
    int32_t threads_per_row; // of the kernels that know it at run time
    int32_t sums_in_double;  // bool, the same
    // FP8 (ops/rmsnorm_quantize.h)
    int32_t is_e5m2;
    int32_t group_shift; // 2^group_shift vectors of x share a scale
    int64_t n_groups;    // of a row
    float *scales;
    struct shared_divisor given;   // the scale that was given
    struct shared_divisor largest; // the largest finite value of FP8
    float scale_ub;
    float smallest_scale;
};

// Where a row comes from.
enum norm_source {
    kFromX,
    kFromSum // x + residual, which is stored too
};

// Where the result goes.
enum norm_sink {
    kToFloats,      // the type of x
    kToFp8,         // divided by the scale that was given
    kToFp8PerRow,   // by one made from the row
    kToFp8PerGroup, // by one for each group of the row
};

// One kind of norm: the type of x, the row's source, the result's sink.
template <typename Element, norm_source kFrom, norm_sink kTo>
struct norm_kind {
    using T = Element;
    static constexpr int kVec = kVecOf<T>;
    static constexpr bool kAdds = kFrom == kFromSum;
    static constexpr norm_sink kSink = kTo;
};

// Below this mean square plus eps a sum of float32 squares may have lost bits to underflow.
constexpr float kTiny = 1e-30f;

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

// Of every vector of a launch, and so the kernel's: the weights' types double its instructions, and
// for narrow rows instructions are what takes the time.
enum weight_class {
    kWeightInKind, // of x's type, or none
    kWeightOther
};

// Starts the loads of weights that fit 16 bytes, before the sum needs x: one latency, not two. No
// weights are ones.
template <typename T, weight_class kClass>
__device__ __forceinline__ uint4 start_weight(const norm_args &args, int vector)
{
    uint4 raw = {};
    if constexpr (kClass == kWeightInKind) {
        float ones[kVecOf<T>];
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++)
            ones[i] = 1.0f;
        if (args.weight)
            return __ldg(reinterpret_cast<const uint4 *>(args.weight) + vector);
        raw = pack<T>(ones);
    } else if constexpr (sizeof(T) == 4) {
        uint2 half = __ldg(reinterpret_cast<const uint2 *>(args.weight) + vector);
        raw = make_uint4(half.x, half.y, 0, 0);
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

// Weights of a vector that were started.
template <typename T, weight_class kClass>
__device__ __forceinline__ void started_weights(const norm_args &args, const uint4 &started,
                                                int vector, float (&w)[kVecOf<T>])
{
    if constexpr (kClass == kWeightInKind)
        unpack<T>(started, w);
    else if constexpr (sizeof(T) == 2)
        load_weights<float, kVecOf<T>, true>(args.weight, vector, args.hidden, w);
    else if (args.weight_kind == kWeightHalf)
        unpack_half_vector<__half>(started, w);
    else
        unpack_half_vector<__nv_bfloat16>(started, w);
}

// Weights of a vector of any kind, from memory.
template <typename T, bool kIsAligned>
__device__ __forceinline__ void any_weights(const norm_args &args, int64_t vector,
                                            float (&w)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    int64_t n = args.hidden;
    if (args.weight_kind == kWeightNone) {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            w[i] = 1.0f;
    } else if (args.weight_kind == kWeightSame) {
        load_weights<T, kVec, kIsAligned>(args.weight, vector, n, w);
    } else if constexpr (sizeof(T) == 2) {
        load_weights<float, kVec, kIsAligned>(args.weight, vector, n, w);
    } else if (args.weight_kind == kWeightHalf) {
        load_weights<__half, kVec, kIsAligned>(args.weight, vector, n, w);
    } else {
        load_weights<__nv_bfloat16, kVec, kIsAligned>(args.weight, vector, n, w);
    }
}

// ------------------------------------------------------------------------------------ rows

// Vectors of a row as they came from memory.
template <typename K, int kVectors>
struct raw_row {
    uint4 x[kVectors];
    uint4 residual[K::kAdds ? kVectors : 1]; // unused, and so without registers, for x alone
};

template <typename K, bool kIsAligned, int kVectors>
__device__ __forceinline__ void load_into(raw_row<K, kVectors> &raw, int v, const norm_args &args,
                                          int64_t row, int64_t vector)
{
    using T = typename K::T;
    int64_t first = row * args.hidden;
    raw.x[v] =
        load_vector<T, kIsAligned>(static_cast<const T *>(args.x) + first, vector, args.hidden);
    if constexpr (K::kAdds)
        raw.residual[v] = load_vector<T, kIsAligned>(static_cast<const T *>(args.residual) + first,
                                                     vector, args.hidden);
}

// What is normalised, in float32 and not rounded.
template <typename K, int kVectors>
__device__ __forceinline__ void unpack_row(const raw_row<K, kVectors> &raw, int v,
                                           float (&z)[K::kVec])
{
    unpack<typename K::T>(raw.x[v], z);
    if constexpr (K::kAdds) {
        float residual[K::kVec];
        unpack<typename K::T>(raw.residual[v], residual);
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            z[i] += residual[i];
    }
}

// z becomes y. Rounding hf rounds z * scale to T before the weight.
template <typename T>
__device__ __forceinline__ void scale_vector(const norm_args &args, float scale,
                                             const float (&w)[kVecOf<T>], float (&z)[kVecOf<T>])
{
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++)
        z[i] *= scale;
    if (sizeof(T) == 2 && args.rounds_product)
        unpack<T>(pack<T>(z), z);
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++)
        z[i] *= args.weight_bias + w[i]; // also for 0: it makes a weight of -0 a +0
}

// y of vector v of a row, in float32.
template <typename K, int kVectors>
__device__ __forceinline__ void result_of(const norm_args &args, const raw_row<K, kVectors> &raw,
                                          int v, const float (&w)[K::kVec], float scale,
                                          float (&y)[K::kVec])
{
    unpack_row<K>(raw, v, y);
    scale_vector<typename K::T>(args, scale, w, y);
}

template <typename K, bool kIsAligned>
__device__ __forceinline__ void store_codes(const norm_args &args, int64_t row, int64_t vector,
                                            const shared_divisor &divisor, bool exists,
                                            float (&y)[K::kVec])
{
    uint8_t *to = static_cast<uint8_t *>(args.y) + row * args.hidden + vector * K::kVec;
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] = divide(y[i], divisor);
    if (kIsAligned) {
        if (exists)
            store_fp8(to, y, 1.0f, args.is_e5m2);
    } else {
#pragma unroll
        for (int i = 0; i < K::kVec; i++) {
            float one[1] = {y[i]};
            if (vector * K::kVec + i < args.hidden)
                store_fp8(to + i, one, 1.0f, args.is_e5m2);
        }
    }
}

// Writes vector v of a row, where it exists: the sum where there is one, and the result. divisor is
// that of FP8. Only the stores are conditional: branches would keep the compiler from working on
// several vectors at once.
template <typename K, bool kIsAligned, int kVectors>
__device__ __forceinline__ void write_vector(const norm_args &args, const raw_row<K, kVectors> &raw,
                                             int v, const float (&w)[K::kVec], int64_t row,
                                             int64_t vector, float scale,
                                             const shared_divisor &divisor, bool exists)
{
    using T = typename K::T;
    int64_t first = row * args.hidden;
    float y[K::kVec];
    if constexpr (K::kAdds) {
        unpack_row<K>(raw, v, y);
        if (exists)
            store_vector<T, kIsAligned>(static_cast<T *>(args.residual_out) + first, vector,
                                        args.hidden, y);
    }
    result_of<K>(args, raw, v, w, scale, y);
    if constexpr (K::kSink != kToFloats)
        store_codes<K, kIsAligned>(args, row, vector, divisor, exists, y);
    else if (exists)
        store_vector<T, kIsAligned>(static_cast<T *>(args.y) + first, vector, args.hidden, y);
}

// ------------------------------------------------------------------------------------ scales

template <int n>
__device__ __forceinline__ float largest_of(const float (&y)[n])
{
    float largest = 0;
#pragma unroll
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(y[i])); // not a NaN
    return largest;
}

__device__ __forceinline__ float scale_for(const norm_args &args, float largest)
{
    return fmaxf(divide(fminf(largest, args.scale_ub), args.largest), args.smallest_scale);
}

// The largest value of the group that each of a thread's vectors belongs to, from the largest of
// each vector. Vector v of a thread is number v * kThreads + thread of the row, so a group is some
// neighbouring threads, or all of the row's and several v where the row has fewer.
template <int kThreads, int kVectors>
__device__ __forceinline__ void spread_largest(float (&largest)[kVectors], int group_vectors)
{
    static_assert((kVectors & (kVectors - 1)) == 0, "pairs of pairs");
#pragma unroll
    for (int span = 1; span < kVectors; span *= 2)
        if (span * kThreads < group_vectors) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                if (!(v & span))
                    largest[v] = largest[v | span] = fmaxf(largest[v], largest[v | span]);
        }
#pragma unroll
    for (int distance = (kThreads < 32 ? kThreads : 32) / 2; distance > 0; distance /= 2)
        if (distance < group_vectors) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                largest[v] = fmaxf(largest[v], __shfl_xor_sync(0xFFFFFFFFu, largest[v], distance));
        }
}

// ------------------------------------------------------------------------------------ sums

// Explicitly fused: every kernel adds a row's squares with the same roundings.
template <typename K, typename Acc, int kVectors>
__device__ __forceinline__ void add_squares(const raw_row<K, kVectors> &raw, int v, Acc &sum)
{
    float z[K::kVec];
    unpack_row<K>(raw, v, z);
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        sum = fma((Acc)z[i], (Acc)z[i], sum);
}

// One thread's share of a row's squares, from memory.
template <typename K, bool kIsAligned, typename Acc>
__device__ __forceinline__ Acc read_squares(const norm_args &args, int64_t row, int thread,
                                            int threads)
{
    raw_row<K, 1> raw;
    Acc sum = 0;
    if (row >= args.n_rows)
        return sum;
#pragma unroll 1
    for (int64_t vector = thread; vector * K::kVec < args.hidden; vector += threads) {
        load_into<K, kIsAligned>(raw, 0, args, row, vector);
        add_squares<K>(raw, 0, sum);
    }
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

// The group's sum again, in double. Out of line: few rows need it, and every kernel carries it.
template <typename K, int kThreads>
__device__ __noinline__ float sum_again(const norm_args &args, int64_t row, int thread, int turn)
{
    __shared__ double partial[2][(kThreads + 31) / 32];
    double sum = read_squares<K, true, double>(args, row, thread, kThreads);
    return exact_scale(args, sum_in_group<kThreads>(sum, partial[turn]));
}

// 1 / sqrt(mean + eps), with the same bits in every thread of the group. turn alternates between
// rows, so that a fast warp's next row does not overwrite what a slow one still reads.
template <typename K, int kThreads, int kVectors>
__device__ __forceinline__ float scale_of(const norm_args &args, const raw_row<K, kVectors> &raw,
                                          int64_t row, int thread, int turn)
{
    __shared__ float partial[2][(kThreads + 31) / 32];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        add_squares<K>(raw, v, sum);
    sum = sum_in_group<kThreads>(sum, partial[turn]);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = __frsqrt_rn(mean);
    bool is_done = is_good(sum, mean);
    // Several groups may share a warp, and all of its lanes take part in a sum. A group whose own
    // sum was good keeps it: its neighbours must not change its bits.
    if (kThreads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return scale;
    float exact = sum_again<K, kThreads>(args, row, thread, turn);
    return is_done ? scale : exact;
}

// ------------------------------------------------------------------------------------ kernels

template <typename K, int kVectors, int kThreads>
__device__ __forceinline__ void load_row(raw_row<K, kVectors> &raw, const norm_args &args,
                                         int64_t row, int thread)
{
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        raw.x[v] = make_uint4(0, 0, 0, 0);
        if constexpr (K::kAdds)
            raw.residual[v] = make_uint4(0, 0, 0, 0);
        if (row < args.n_rows && v * kThreads + thread < args.n_vectors)
            load_into<K, true>(raw, v, args, row, v * kThreads + thread);
    }
}

// A row of threads and their registers, at the point where only the result is missing.
template <typename K, typename C>
struct row_writer {
    static constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    const norm_args &args;
    const raw_row<K, kVectors> &raw;
    const uint4 (&weight)[kVectors];
    int64_t row;
    int thread;
    float scale;

    __device__ __forceinline__ bool has(int v) const
    {
        return row < args.n_rows && v * kThreads + thread < args.n_vectors;
    }
    __device__ __forceinline__ void weights(int v, float (&w)[K::kVec]) const
    {
        using T = typename K::T;
        int vector = v * kThreads + thread;
        uint4 started = weight[v];
        if constexpr (!C::kStartsWeight || C::kWeight == kWeightOther)
            vector = min(vector, args.n_vectors - 1); // reads it: must exist
        if constexpr (!C::kStartsWeight)
            started = start_weight<T, C::kWeight>(args, vector);
        started_weights<T, C::kWeight>(args, started, vector, w);
    }
    __device__ __forceinline__ void write(int v, const shared_divisor &divisor) const
    {
        float w[K::kVec];
        weights(v, w);
        write_vector<K, true>(args, raw, v, w, row, v * kThreads + thread, scale, divisor, has(v));
    }
    __device__ __forceinline__ float largest(int v) const
    {
        float y[K::kVec], w[K::kVec];
        weights(v, w);
        result_of<K>(args, raw, v, w, scale, y);
        return has(v) ? largest_of(y) : 0.0f;
    }

    __device__ __forceinline__ void write_all(const shared_divisor &divisor) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            write(v, divisor);
    }
    __device__ __forceinline__ void write_per_row(int turn) const
    {
        __shared__ float partial[2][(kThreads + 31) / 32];
        float most = 0;
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            most = fmaxf(most, largest(v));
        float row_scale = scale_for(args, largest_in_group(most, partial[turn], kThreads));
        if (thread == 0 && row < args.n_rows)
            args.scales[row] = row_scale;
        write_all(divisor_of(row_scale));
    }
    __device__ __forceinline__ void write_per_group() const
    {
        float most[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            most[v] = largest(v);
        int group_vectors = 1 << args.group_shift;
        spread_largest<kThreads>(most, group_vectors);
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            int vector = v * kThreads + thread;
            float group_scale = scale_for(args, most[v]);
            if (has(v) && vector % group_vectors == 0)
                args.scales[row * args.n_groups + (vector >> args.group_shift)] = group_scale;
            write(v, divisor_of(group_scale));
        }
    }
    __device__ __forceinline__ void finish(int turn) const
    {
        if constexpr (K::kSink == kToFp8PerRow)
            write_per_row(turn);
        else if constexpr (K::kSink == kToFp8PerGroup)
            write_per_group();
        else
            write_all(args.given);
    }
};

// C: threads per row, vectors per thread and what is loaded ahead; groups below a block's size
// share one. A group takes rows_per_group rows in turn and loads the next one before it sums the
// present one, so that memory does not wait for the barrier. The next kernel's blocks are let in
// late: those of 64 rows on 64 multiprocessors disturb more than they save.
template <typename K, typename C>
__global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    norm_kernel(const __grid_constant__ struct norm_args args)
{
    constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    int thread = threadIdx.x % kThreads;
    int rows = C::kMaxRows > 1 ? args.rows_per_group : 1;
    int64_t row = (int64_t)blockIdx.x * rows * C::kGroups + threadIdx.x / kThreads;
    raw_row<K, kVectors> raw;
    uint4 weight[kVectors] = {};
    row = compute_now(row);
    wait_for_previous();
    let_next_start();
    load_row<K, kVectors, kThreads>(raw, args, row, thread);
    if constexpr (C::kStartsWeight) {
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            if (v * kThreads + thread < args.n_vectors)
                weight[v] = start_weight<typename K::T, C::kWeight>(args, v * kThreads + thread);
    }
    if constexpr (C::kMaxRows > 1) {
#pragma unroll 1
        for (int turn = rows - 1; turn > 0; turn--) {
            raw_row<K, kVectors> next;
            load_row<K, kVectors, kThreads>(next, args, row + C::kGroups, thread);
            float scale = scale_of<K, kThreads>(args, raw, row, thread, turn % 2);
            row_writer<K, C>{args, raw, weight, row, thread, scale}.finish(turn % 2);
            raw = next;
            row += C::kGroups;
        }
    }
    float scale = scale_of<K, kThreads>(args, raw, row, thread, 0);
    row_writer<K, C>{args, raw, weight, row, thread, scale}.finish(0);
}
