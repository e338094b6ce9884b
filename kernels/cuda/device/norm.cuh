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
// vector v to thread v % threads; a thread adds its own in four sums, in order, then a fixed tree
// adds the threads. The number of rows, the rows per block and the alignment change nothing, so a
// row's bits do not depend on how it came.
//
// Squares are summed in float32 (in double beyond 4,096 vectors). Where that overflows, or may
// have lost the sum to underflow, the group sums once more in double, as the CPU backend always
// does.
//
// A result may take the place of its input: a thread writes only the elements that it has read
// itself; y after the sum's barrier, x + residual before it. How many threads take a row is not
// decided here: norm_launch.cuh.
#pragma once

#include "cuda/device/norm_row.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// ------------------------------------------------------------------------------------ scales

// The largest of most, which is not NaN, and of y. Elements past the end of a row are 0, or NaN in
// a row of NaN: never the largest.
template <int n>
__device__ __forceinline__ float largest_of(float most, const float (&y)[n])
{
    float other = fabsf(y[0]);
#pragma unroll
    for (int i = 1; i < n; i += 2) {
        most = fmaxf(most, fabsf(y[i])); // not a NaN
        if (i + 1 < n)
            other = fmaxf(other, fabsf(y[i + 1]));
    }
    return fmaxf(most, other);
}

__device__ __forceinline__ float scale_for(const norm_args &args, float largest)
{
    return fmaxf(divide(fminf(largest, args.scale_ub), args.largest), args.smallest_scale);
}

// The largest value of the groups that a thread's vectors belong to, where a group is some
// neighbouring threads of a warp and they have as many groups as each has vectors. At each step
// half of the threads goes on with half of the vectors: with one in the end, whose largest value is
// most[0] and whose number is returned.
template <int kVectors>
__device__ __forceinline__ int share_largest(float (&most)[kVectors], int lane, int group_vectors)
{
    int distance = (int)((unsigned)group_vectors / 2), mine = 0;
#pragma unroll
    for (int n = kVectors / 2; n > 0; n /= 2) {
        bool is_upper = lane & distance;
        mine += is_upper ? n : 0;
#pragma unroll
        for (int v = 0; v < n; v++) {
            float other = is_upper ? most[v] : most[v + n];
            most[v] = fmaxf(is_upper ? most[v + n] : most[v],
                            __shfl_xor_sync(0xFFFFFFFFu, other, distance));
        }
        distance >>= 1;
    }
#pragma unroll
    for (int d = 16 / kVectors; d > 0; d /= 2)
        if (d <= distance)
            most[0] = fmaxf(most[0], __shfl_xor_sync(0xFFFFFFFFu, most[0], d));
    return mine;
}

// The same for narrow rows, each vector by itself, from the largest of each vector. Vector v of a
// thread is number v * kThreads + thread of the row, so a group is some neighbouring threads, or
// all of the row's and several v where the row has fewer.
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

// What another thread of the warp divides by.
__device__ __forceinline__ shared_divisor divisor_from(const shared_divisor &mine, int lane)
{
    shared_divisor divisor = {1.0f, __shfl_sync(0xFFFFFFFFu, mine.high, lane),
                              __shfl_sync(0xFFFFFFFFu, mine.low, lane)};
    if (__any_sync(0xFFFFFFFFu, mine.first != 1.0f))
        divisor.first = __shfl_sync(0xFFFFFFFFu, mine.first, lane);
    return divisor;
}

// ------------------------------------------------------------------------------------ sums

template <typename K, typename Acc, int kVectors>
__device__ __forceinline__ void add_squares(const raw_row<K, kVectors> &raw, int v,
                                            square_sums<Acc> &sums)
{
    float z[K::kVec];
    unpack_row<K>(raw, v, z);
    sums.add(z);
}

// One thread's share of a row's squares, from memory.
template <typename K, bool kIsAligned, typename Acc>
__device__ __forceinline__ Acc read_squares(const norm_args &args, int64_t row, int thread,
                                            int threads)
{
    raw_row<K, 1> raw;
    square_sums<Acc> sums;
    if (row >= args.n_rows)
        return 0;
#pragma unroll 1
    for (int64_t i = thread * K::kVec; i < args.hidden; i += threads * K::kVec) {
        load_into<K, kIsAligned>(raw, 0, args, row * args.hidden + i, args.hidden - i);
        add_squares<K>(raw, 0, sums);
    }
    return sums.total();
}

__device__ __forceinline__ float exact_scale(const norm_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_hidden, (double)args.eps));
}

template <int kThreads>
__device__ __forceinline__ float exact_scale_of(const norm_args &args, double share, int turn)
{
    __shared__ double partial[2][(kThreads + 31) / 32];
    return exact_scale(args, sum_in_group<kThreads>(share, partial[turn]));
}

// The group's sum again, in double. Out of line: few rows need it, and every kernel carries it.
template <typename K, int kThreads>
__device__ __noinline__ float read_again(const norm_args &args, int64_t row, int thread, int turn)
{
    double share = read_squares<K, true, double>(args, row, thread, kThreads);
    return exact_scale_of<kThreads>(args, share, turn);
}

// The same. Of x + residual from registers: the sum has been stored, and may have been in the place
// of either.
template <typename K, int kThreads, int kVectors>
__device__ __forceinline__ float sum_again(const norm_args &args, const raw_row<K, kVectors> &raw,
                                           int64_t row, int thread, int turn)
{
    if constexpr (K::kAdds) {
        square_sums<double> sums;
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            add_squares<K>(raw, v, sums);
        return exact_scale_of<kThreads>(args, sums.total(), turn);
    } else {
        return read_again<K, kThreads>(args, row, thread, turn);
    }
}

// 1 / sqrt(mean + eps), with the same bits in every thread of the group. turn alternates between
// rows, so that a fast warp's next row does not overwrite what a slow one still reads.
template <typename K, int kThreads, int kVectors>
__device__ __forceinline__ float scale_of(const norm_args &args, const raw_row<K, kVectors> &raw,
                                          int64_t row, int thread, int turn)
{
    __shared__ float partial[2][(kThreads + 31) / 32];
    square_sums<float> sums;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        add_squares<K>(raw, v, sums);
    float sum = sum_in_group<kThreads>(sums.total(), partial[turn]);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = inverse_root(mean);
    bool is_done = is_good(sum, mean);
    // Several groups may share a warp, and all of its lanes take part in a sum. A group whose own
    // sum was good keeps it: its neighbours must not change its bits.
    if (kThreads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return scale;
    float exact = sum_again<K, kThreads>(args, raw, row, thread, turn);
    return is_done ? scale : exact;
}

// ------------------------------------------------------------------------------------ kernels

// A thread's part of a row: vectors thread, thread + threads, ...
template <typename K, typename C>
struct row_part {
    static constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    static constexpr int kStep = kThreads * K::kVec; // elements from one vector to the next
    int64_t row;
    int64_t at; // element of all rows: of vector 0
    int thread;
    bool is_row; // rows beyond the last have no vectors

    __device__ __forceinline__ bool has(const norm_args &args, int v) const
    {
        return is_row && v * kThreads + thread < args.n_vectors;
    }
    __device__ __forceinline__ void load(const norm_args &args, raw_row<K, kVectors> &raw) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            raw.x[v] = make_uint4(0, 0, 0, 0);
            if constexpr (K::kAdds)
                raw.residual[v] = make_uint4(0, 0, 0, 0);
            if (has(args, v))
                load_into<K, true>(raw, v, args, at + v * kStep, K::kVec);
        }
    }
    // Before the squares are summed: nothing has to wait for these stores.
    __device__ __forceinline__ void store_sums(const norm_args &args,
                                               const raw_row<K, kVectors> &raw) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            if (has(args, v))
                store_sum<K, true>(args, raw, v, at + v * kStep, K::kVec);
    }
};

// Gains of a thread's vectors, the same for all rows of its group: weights as they came, or as
// floats before the sum is there, which shortens what follows it.
template <typename K, typename C>
struct row_gains {
    static constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    const norm_args &args;
    int thread;
    uint4 started[C::kStartsWeight ? kVectors : 1];
    float ready[C::kReadiesGains ? kVectors : 1][K::kVec];

    __device__ __forceinline__ void start()
    {
        if constexpr (C::kStartsWeight) {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                started[v] = make_uint4(0, 0, 0, 0);
                if (v * kThreads + thread < args.n_vectors)
                    started[v] =
                        start_weight<typename K::T, C::kWeight>(args, v * kThreads + thread);
            }
        }
    }
    __device__ __forceinline__ void make(int v, float (&gain)[K::kVec]) const
    {
        using T = typename K::T;
        int vector = v * kThreads + thread;
        uint4 raw;
        if constexpr (!C::kStartsWeight || C::kWeight == kWeightOther)
            vector = min(vector, args.n_vectors - 1); // reads it: must exist
        if constexpr (C::kStartsWeight)
            raw = started[v];
        else
            raw = start_weight<T, C::kWeight>(args, vector);
        started_weights<T, C::kWeight>(args, raw, vector, gain);
        add_bias(args, gain);
    }
    __device__ __forceinline__ void make_ready()
    {
        if constexpr (C::kReadiesGains) {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                make(v, ready[v]);
#pragma unroll
                for (float &gain : ready[v])
                    gain = compute_now(gain);
            }
        }
    }
    __device__ __forceinline__ void get(int v, float (&gain)[K::kVec]) const
    {
        if constexpr (C::kReadiesGains) {
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                gain[i] = ready[v][i];
        } else {
            make(v, gain);
        }
    }
};

// A part and its registers, at the point where only the result is missing.
template <typename K, typename C, bool kRounds>
struct row_writer {
    static constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    const norm_args &args;
    const raw_row<K, kVectors> &raw;
    const row_gains<K, C> &gains;
    const row_part<K, C> &part;
    float scale;

    __device__ __forceinline__ void result(int v, float (&y)[K::kVec]) const
    {
        float gain[K::kVec];
        gains.get(v, gain);
        result_of<K, kRounds>(raw, v, gain, scale, y);
    }
    // Of n vectors from first on. Only the stores depend on whether a vector exists: branches would
    // keep the compiler from working on several at once.
    template <int n>
    __device__ __forceinline__ void write_codes(int first, const shared_divisor (&divisor)[n],
                                                float (&y)[n][K::kVec]) const
    {
        fp8_codes<K::kVec> codes[n];
        divide_all(y, divisor);
        if (args.is_e5m2) {
#pragma unroll
            for (int v = 0; v < n; v++)
                codes[v] = fp8_codes_of<true>(y[v]);
        } else {
#pragma unroll
            for (int v = 0; v < n; v++)
                codes[v] = fp8_codes_of<false>(y[v]);
        }
#pragma unroll
        for (int v = 0; v < n; v++)
            if (part.has(args, first + v))
                store_fp8(static_cast<uint8_t *>(args.y) + part.at + (first + v) * part.kStep,
                          codes[v]);
    }

    __device__ __forceinline__ void write_all() const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            float y[1][K::kVec];
            result(v, y[0]);
            if constexpr (K::kSink == kToFp8)
                write_codes(v, {args.given}, y);
            else if (part.has(args, v))
                store_result<K, true>(args, part.at + v * part.kStep, K::kVec, y[0]);
        }
    }
    __device__ __forceinline__ void write_per_row(int turn) const
    {
        __shared__ float partial[2][(kThreads + 31) / 32];
        float y[kVectors][K::kVec], most = 0;
        shared_divisor divisor[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            result(v, y[v]);
            most = largest_of(most, y[v]);
        }
        float row_scale = scale_for(args, largest_in_group<kThreads>(most, partial[turn]));
        if (part.thread == 0 && part.is_row)
            args.scales[part.row] = row_scale;
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            divisor[v] = divisor_of(row_scale);
        write_codes(0, divisor, y);
    }
    __device__ __forceinline__ void store_scale(int v, float group_scale) const
    {
        int shift = args.group_shift + (K::kVec == 8 ? 3 : 2);
        args.scales[(part.at + v * part.kStep) >> shift] = group_scale;
    }
    __device__ __forceinline__ void write_per_group() const
    {
        float y[kVectors][K::kVec], most[kVectors];
        shared_divisor divisor[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            result(v, y[v]);
            most[v] = largest_of(0, y[v]);
        }
        int group_vectors = 1 << args.group_shift;
        if constexpr (kThreads >= 32) {
            // powers of two: no division
            int step = (int)((unsigned)group_vectors / kVectors), lane = part.thread % 32;
            int mine = share_largest(most, lane, group_vectors);
            float my_scale = scale_for(args, most[0]);
            if ((lane & (step - 1)) == 0 && part.has(args, mine))
                store_scale(mine, my_scale);
            int source = lane & ~(group_vectors - step); // the thread that has vector 0's
            shared_divisor my_divisor = divisor_of(my_scale);
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                divisor[v] = divisor_from(my_divisor, source + v * step);
        } else {
            spread_largest<kThreads>(most, group_vectors);
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                float group_scale = scale_for(args, most[v]);
                if (part.has(args, v) && ((v * kThreads + part.thread) & (group_vectors - 1)) == 0)
                    store_scale(v, group_scale);
                divisor[v] = divisor_of(group_scale);
            }
        }
        write_codes(0, divisor, y);
    }
    __device__ __forceinline__ void finish(int turn) const
    {
        if constexpr (K::kSink == kToFp8PerRow)
            write_per_row(turn);
        else if constexpr (K::kSink == kToFp8PerGroup)
            write_per_group();
        else
            write_all();
    }
};

// All of a row that has been loaded. turn alternates between rows.
template <typename K, typename C>
__device__ __forceinline__ void norm_row(const norm_args &args, const raw_row<K, C::kVectors> &raw,
                                         const row_gains<K, C> &gains, const row_part<K, C> &part,
                                         int turn)
{
    constexpr bool kIsNarrow = sizeof(typename K::T) == 2;
    if constexpr (K::kAdds)
        part.store_sums(args, raw);
    float scale = scale_of<K, C::kThreads>(args, raw, part.row, part.thread, turn);
    if (kIsNarrow && args.rounds_product)
        row_writer<K, C, kIsNarrow>{args, raw, gains, part, scale}.finish(turn);
    else
        row_writer<K, C, false>{args, raw, gains, part, scale}.finish(turn);
}

// C: threads per row, vectors per thread and what is loaded ahead; groups below a block's size
// share one. Where a group takes several rows, a grid apart, it loads the next one before it sums
// the present one, so that memory does not wait for the barrier. The next kernel's blocks are let
// in late: those of 64 rows on 64 multiprocessors disturb more than they save; and where a row's
// own scale follows only behind the loads.
template <typename K, typename C>
__global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    norm_kernel(const __grid_constant__ struct norm_args args)
{
    row_part<K, C> part;
    raw_row<K, C::kVectors> raw;
    part.thread = threadIdx.x % C::kThreads;
    part.row = (int64_t)blockIdx.x * C::kGroups + threadIdx.x / C::kThreads;
    part.at = compute_now(part.row * args.hidden + part.thread * K::kVec);
    part.is_row = part.row < args.n_rows;
    row_gains<K, C> gains{args, part.thread};
    wait_for_previous();
    if constexpr (K::kSink < kToFp8PerRow)
        let_next_start();
    part.load(args, raw);
    gains.start();
    if constexpr (K::kSink >= kToFp8PerRow)
        let_next_start();
    gains.make_ready();
    if constexpr (C::kTakesRows) {
        int64_t step = (int64_t)gridDim.x * args.hidden;
        for (int turn = 0;; turn ^= 1) {
            row_part<K, C> next = part;
            raw_row<K, C::kVectors> next_raw;
            next.row += gridDim.x;
            next.at += step;
            next.is_row = next.row < args.n_rows;
            next.load(args, next_raw);
            norm_row<K, C>(args, raw, gains, part, turn);
            if (!next.is_row)
                break;
            part = next;
            raw = next_raw;
        }
    } else {
        norm_row<K, C>(args, raw, gains, part, 0);
    }
}
