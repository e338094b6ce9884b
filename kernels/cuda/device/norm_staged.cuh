// norm_staged.cuh - the norm (norm.cuh) of rows that registers do not hold: too wide, or of widths
// or at addresses that 16 bytes do not divide, or with weights that have no kernel of their own;
// and of tensors whose rows are not equally far apart; and of sums of more than x + residual, where
// they become codes or have more than 2,048 vectors. Many rows that lie beside each other have
// norm_packets.cuh.
//
// A row waits in shared memory for its sum, each thread's vectors in a place of its own, so nobody
// waits for another thread but for the sum. Where shared memory has no room, a row is read again.
// Of a few rows each has several blocks, a cluster, whose warps have the vectors that those of one
// block would have: it waits for what a multiprocessor executes.
// Rows at addresses that 16 bytes do not divide are read and written by device/shifted.cuh, those
// of small calls by elements: such a call waits for one load, and for its code.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/norm.cuh"

extern __shared__ uint4 staged_rows[]; // a block's

// Packets of 16 bytes that wait of a vector: as it came, or as its sum is stored, or as floats,
// which its result is while the largest of all is found.
template <typename K>
constexpr bool kFindsLargest = K::kSink >= kToFp8PerRow;
template <typename K>
constexpr int kStagedPackets = sizeof(typename K::T) == 2 &&
                                       ((K::kAdds && !K::kRoundsSum) || kFindsLargest<K>)
                                   ? 2
                                   : 1;

// What the warps of a row tell each other where they are in several blocks.
struct row_exchange {
    cluster_values<float, 32> sum, largest;
    cluster_values<double, 32> exact;

    // A kernel's first lines. n_warps: those of a block that sum.
    __device__ __forceinline__ void begin(unsigned n_warps = blockDim.x / 32)
    {
        let_next_start();
        if (gridDim.y > 1) {
            sum.prepare(n_warps);
            largest.prepare();
            exact.begin(n_warps);
        }
        wait_for_previous();
    }
};

// A vector that waits as so many packets, which are step apart: as T, to the bit, or as floats.
template <typename T, int kPackets>
__device__ __forceinline__ void put_packets(uint4 *stage, int step, const float (&z)[kVecOf<T>])
{
    if constexpr (kPackets * 16 == kVecOf<T> * (int)sizeof(float)) {
#pragma unroll
        for (int i = 0; i < kPackets; i++) {
            float part[4] = {z[4 * i], z[4 * i + 1], z[4 * i + 2], z[4 * i + 3]};
            stage[i * step] = pack<float>(part);
        }
    } else {
        *stage = pack<T>(z);
    }
}

template <typename T, int kPackets>
__device__ __forceinline__ void get_packets(const uint4 *stage, int step, float (&z)[kVecOf<T>])
{
    if constexpr (kPackets * 16 == kVecOf<T> * (int)sizeof(float)) {
#pragma unroll
        for (int i = 0; i < kPackets; i++) {
            float part[4];
            unpack<float>(stage[i * step], part);
#pragma unroll
            for (int j = 0; j < 4; j++)
                z[4 * i + j] = part[j];
        }
    } else {
        unpack<T>(*stage, z);
    }
}

// Weights of a vector come nearer while its row is summed.
template <int kVec>
__device__ __forceinline__ void prefetch_weights(const norm_args &args, const void *weights,
                                                 int vector)
{
    const int kind = args.weight_kind;
    const int bytes = kind == kWeightSame ? 16 : kind == kWeightFloat ? 4 * kVec : 2 * kVec;
    const char *from = static_cast<const char *>(weights) + (int64_t)vector * bytes;
    if (weights)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// From the sum of a row's squares, and from an exact one where that is not good enough. Where rows
// share a warp, all of its lanes take part in a sum.
template <typename Sum, typename ExactSum>
__device__ __forceinline__ row_scale scale_by(const norm_args &args, bool shares_warp,
                                              const Sum &sum_of_row, const ExactSum &exact_sum)
{
    const float sum = sum_of_row();
    const float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = inverse_root(mean);
    const bool is_done = is_good(sum, mean) && !args.sums_in_double;
    if (shares_warp ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        const double exact = exact_sum();
        scale = is_done ? scale : exact_scale(args, exact);
    }
    return {scale};
}

// Rows of float32 may be so wide that threads which have a share of the sum have many vectors each,
// where codes are made of them.
template <typename K, bool kIsAligned>
constexpr bool kHasManyVectors = kIsAligned && sizeof(typename K::T) == 4 && !K::kHasTerms
                                 && K::kSink != kToFloats;

// May others help to write them?
template <typename K, bool kIsAligned>
constexpr bool kMayHelp = kHasManyVectors<K, kIsAligned> &&K::kSink != kToFp8PerRow;

// Threads of a block that sum.
template <typename K, bool kIsAligned>
__device__ __forceinline__ unsigned summing_threads(const norm_args &args)
{
    if constexpr (kMayHelp<K, kIsAligned>)
        if (gridDim.y > 1)
            return (unsigned)args.n_shares / gridDim.y;
    return blockDim.x;
}

// A thread's part of a row: vectors thread, thread + threads, ... Threads are numbered through all
// blocks of a row. Of a few wide rows others help to write those that sum: then a thread writes
// vectors first, first + step, ... of its block.
template <typename K, bool kIsAligned>
struct staged_row {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kPackets = kStagedPackets<K>;
    // vectors that are loaded at once
    static constexpr int kBatch = K::kIsAny                                     ? 1
                                  : K::kAdds && !kHasManyVectors<K, kIsAligned> ? 2
                                                                                : 4;
    // others have norm_quarters.cuh where they are few
    static constexpr bool kMayBeFew = K::kSink != kToFloats || K::kHasTerms;
    const norm_args &args;
    row_exchange &blocks;
    row_source<K> source;
    uint4 *stage; // of vector 0
    int64_t row;
    int n_vectors; // of any row
    int end;       // the same; 0 where there is no row
    int thread, threads;
    int first, step;

    __device__ __forceinline__ staged_row(const norm_args &norm, row_exchange &of_row)
        : args(norm), blocks(of_row), source(source_of_row<K, true>(norm, row_of_block())),
          row(row_of_block()), n_vectors((int)((norm.hidden + kVec - 1) / kVec)),
          thread(blockIdx.y * summing_threads<K, kIsAligned>(norm) + threadIdx.x),
          threads(gridDim.y * summing_threads<K, kIsAligned>(norm)), first(thread), step(threads)
    {
        if constexpr (kMayHelp<K, kIsAligned>) {
            const int summing = (int)summing_threads<K, kIsAligned>(norm);
            for (int i = threadIdx.x; i >= summing; i -= summing)
                first += threads - summing;
            step *= (int)blockDim.x / summing;
        }
        end = row < args.n_rows ? n_vectors : 0;
        stage = staged_rows + (int64_t)threadIdx.y * kPackets * n_vectors;
    }
    // Elements of the row from a vector on, as far as the next one's end.
    __device__ __forceinline__ int left(int vector) const
    {
        if (kIsAligned)
            return vector < end ? kVec : 0;
        return vector < end ? (int)min((int64_t)2 * kVec, args.hidden - (int64_t)vector * kVec) : 0;
    }
    __device__ __forceinline__ void put(int vector, const float (&z)[kVec]) const
    {
        put_packets<T, kPackets>(stage + vector, n_vectors, z);
    }
    __device__ __forceinline__ void get_staged(int vector, float (&z)[kVec]) const
    {
        get_packets<T, kPackets>(stage + vector, n_vectors, z);
    }
    // What waits of a vector, or would.
    __device__ __forceinline__ void get(int vector, float (&z)[kVec]) const
    {
        if (args.is_staged) {
            get_staged(vector, z);
        } else {
            raw_row<K, 1> raw;
            load_into<K, kIsAligned>(raw, 0, source, (int64_t)vector * kVec, left(vector));
            unpack_sum<K>(args, raw, 0, z);
        }
    }
    // The share of the sum of squares, n vectors at a time. load(raw, vector) loads those that are
    // the row's, and leaves zeros of others.
    template <int n, typename F>
    __device__ __forceinline__ float read_by(const F &load) const
    {
        square_sums<float> sums;
#pragma unroll 1
        for (int vector = thread; vector < end; vector += n * threads) {
            raw_row<K, n> raw;
            load(raw, vector);
#pragma unroll
            for (int v = 0; v < n; v++)
                if (vector + v * threads < end)
                    prefetch_weights<kVec>(args, args.weight, vector + v * threads);
#pragma unroll
            for (int v = 0; v < n; v++) {
                float z[kVec];
                unpack_sum<K>(args, raw, v, z);
                if (args.is_staged && vector + v * threads < end)
                    put(vector + v * threads, z);
                round_stored<K>(args, z);
                sums.add(z);
            }
        }
        return sums.total();
    }
    __device__ __forceinline__ float read_vectors() const
    {
        return read_by<kBatch>([&](auto &raw, int vector) {
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                clear<K>(raw, v);
                if (vector + v * threads < end)
                    load_into<K, true>(raw, v, source, (int64_t)(vector + v * threads) * kVec,
                                       kVec);
            }
        });
    }
    __device__ __forceinline__ float read_elements() const
    {
        constexpr int n = K::kIsAny ? 1 : 2;
        return read_by<n>([&](auto &raw, int vector) {
#pragma unroll
            for (int v = 0; v < n; v++)
                load_into<K, false>(raw, v, source, (int64_t)(vector + v * threads) * kVec,
                                    left(vector + v * threads));
        });
    }
    __device__ __forceinline__ float read_shifted() const
    {
        constexpr int kTerms = K::kHasTerms ? 3 : K::kAdds ? 2 : 1, n = K::kHasTerms ? 1 : 2;
        return read_by<n>([&](auto &raw, int vector) {
            shifted_vector<(int)sizeof(T)> part[n][kTerms];
#pragma unroll
            for (int v = 0; v < n; v++) {
                int64_t at = (int64_t)(vector + v * threads) * 16;
                int bytes = min(16, left(vector + v * threads) * (int)sizeof(T));
                part[v][0].start(source.x + at, bytes, args.x_end);
                if constexpr (K::kAdds)
                    part[v][1].start(source.residual + at, bytes, args.residual_end);
                if constexpr (K::kHasTerms)
                    part[v][2].start(source.addend + at, source.addend ? bytes : 0,
                                     args.addend_end);
            }
#pragma unroll
            for (int v = 0; v < n; v++) {
                raw.x[v] = part[v][0].finish();
                if constexpr (K::kAdds)
                    raw.residual[v] = part[v][1].finish();
                if constexpr (K::kHasTerms)
                    raw.addend[v] = part[v][2].finish();
            }
        });
    }
    __device__ __forceinline__ float read() const
    {
        if constexpr (kIsAligned)
            return read_vectors();
        else if constexpr (K::kIsAny)
            return read_elements();
        else
            return kMayBeFew && args.by_elements ? read_elements() : read_shifted();
    }
    __device__ __forceinline__ row_scale find_scale() const
    {
        __shared__ float partial[32];
        __shared__ double exact_partial[32];
        const bool helps = kMayHelp<K, kIsAligned> && gridDim.y > 1 &&
                           (int)threadIdx.x >= threads / (int)gridDim.y;
        auto sum = [&](auto share, auto &partial_sums, auto &of_row) {
            if constexpr (kMayHelp<K, kIsAligned>)
                if (gridDim.y > 1)
                    return of_row.sum_of(share, threads / (int)gridDim.y / 32);
            return gridDim.y > 1 ? of_row.sum_of(share)
                                 : sum_in_group(share, partial_sums, threads);
        };
        return scale_by(
            args, threads < 32, [&] { return sum(helps ? 0.0f : read(), partial, blocks.sum); },
            [&] {
                square_sums<double> squares;
#pragma unroll 1
                for (int vector = thread; vector < end && !helps; vector += threads) {
                    float z[kVec];
                    get(vector, z);
                    round_stored<K>(args, z);
                    squares.add(z);
                }
                return sum(squares.total(), exact_partial, blocks.exact);
            });
    }
    // y is the result of a vector, and z what was normalised.
    __device__ __forceinline__ void finish(int vector, const row_scale &scale, float (&z)[kVec],
                                           float (&y)[kVec]) const
    {
        constexpr bool kIsNarrow = sizeof(T) == 2;
        float gain[kVec];
        get(vector, z);
        gains_at<T, kIsAligned>(args, args.weight, 1.0f, vector, gain);
        add_bias(args, gain);
#pragma unroll
        for (int i = 0; i < kVec; i++)
            y[i] = z[i];
        round_stored<K>(args, y);
        if (kIsNarrow && args.rounds_product)
            finish_vector<K, kIsNarrow>(args, gain, scale, y);
        else
            finish_vector<K, false>(args, gain, scale, y);
    }
    // The first n elements of a vector in the type of x. All lanes of a warp take part.
    __device__ __forceinline__ void store(T *first, int n, const float (&z)[kVec]) const
    {
        if (kIsAligned || !kMayBeFew || !args.by_elements)
            put_vector<T, kIsAligned>(first, threads, thread, n, z);
        else
            store_vector<T, false>(first, n, z);
    }
    // Their codes; y is divided.
    __device__ __forceinline__ void
    store_codes(int64_t vector, int64_t n, const shared_divisor &divisor, float (&y)[1][kVec]) const
    {
        uint8_t *to = static_cast<uint8_t *>(args.y) + row * args.y_pitch + (int64_t)vector * kVec;
        divide_all(y, {divisor});
        const fp8_codes<kVec> codes = args.codes & kCodesAreInt8
                                          ? int8_codes_of(y[0], kLeastInt8<K>)
                                      : args.codes & kCodesAreE5m2 ? fp8_codes_of<true>(y[0])
                                                                   : fp8_codes_of<false>(y[0]);
        if constexpr (!kIsAligned)
            put_words<uint8_t>(to, threads, thread, n, codes.word);
        else if (n > 0)
            store_fp8(to, codes);
    }
    __device__ __forceinline__ void store_sum_of(int vector, int n, const float (&z)[kVec]) const
    {
        const int64_t at = row * args.residual_out_pitch + (int64_t)vector * kVec;
        if constexpr (K::kIsAny)
            store_sum<K, false>(args, at, n, z);
        else if constexpr (K::kAdds)
            store(static_cast<T *>(args.residual_out) + at, n, z);
    }
    // f(vector, n) of vectors first, first + step, ... before last; n: how many elements of the row
    // are left, 0 behind its end. Neighbours have neighbouring vectors, and all lanes of a warp go
    // round equally often.
    template <typename F>
    __device__ __forceinline__ void for_each(int first, int last, int step, const F &f) const
    {
#pragma unroll 1
        for (int vector = first; __any_sync(0xFFFFFFFFu, vector < last); vector += step)
            f(vector, vector < last ? left(vector) : 0);
    }
    // The largest result; all of them wait where there is room, and sums are stored.
    __device__ __forceinline__ float take(int first, int last, int step,
                                          const row_scale &scale) const
    {
        float most = 0;
        for_each(first, last, step, [&](int vector, int n) {
            float y[kVec] = {}, z[kVec] = {};
            if (n > 0)
                finish(vector, scale, z, y);
            most = largest_of(most, y);
            if (args.is_staged)
                store_sum_of(vector, n, z);
            if (args.is_staged && n > 0)
                put(vector, y);
        });
        return most;
    }
    __device__ __forceinline__ void write_codes(int first, int last, int step,
                                                const row_scale &scale,
                                                const shared_divisor &divisor) const
    {
        const bool has_taken = kFindsLargest<K> && args.is_staged;
        for_each(first, last, step, [&](int vector, int n) {
            float y[1][kVec] = {}, z[kVec] = {};
            if (n > 0 && has_taken)
                get_staged(vector, y[0]);
            else if (n > 0)
                finish(vector, scale, z, y[0]);
            if (!has_taken)
                store_sum_of(vector, n, z);
            store_codes(vector, n, divisor, y);
        });
    }
    __device__ __forceinline__ void write_floats(const row_scale &scale) const
    {
        for_each(thread, end, threads, [&](int vector, int n) {
            float y[kVec] = {}, z[kVec] = {};
            if (n > 0)
                finish(vector, scale, z, y);
            store_sum_of(vector, n, z);
            store(static_cast<T *>(args.y) + row * args.y_pitch + (int64_t)vector * kVec, n, y);
        });
    }
    // The largest value of all threads.
    __device__ __forceinline__ float largest_of_row(float largest) const
    {
        __shared__ float partial[32];
        return gridDim.y > 1 ? blocks.largest.largest_of(largest)
                             : largest_in_group(largest, partial, threads);
    }
    __device__ __forceinline__ void write_row(const row_scale &scale) const
    {
        float of_row = scale_for(args, largest_of_row(take(thread, end, threads, scale)));
        if (thread == 0 && end > 0)
            args.scales[row] = of_row;
        write_codes(thread, end, threads, scale, divisor_of(of_row));
    }
    // Group by group, each by as many threads as it has vectors, at most a warp, or all that the
    // row has.
    __device__ __forceinline__ void write_groups(const row_scale &scale) const
    {
        const int group_vectors = 1 << args.group_shift;
        const int lanes = min(group_vectors, threads);
        __syncwarp(); // a group's vectors may be other threads'
        for (int turn = 0; turn < args.n_groups; turn += step / lanes) {
            int group = turn + first / lanes, vector = group * group_vectors + first % lanes;
            bool is_there = end > 0 && group < args.n_groups;
            int last = is_there ? (group + 1) * group_vectors : 0; // every lane takes part
            float most = largest_in_group(take(vector, last, lanes, scale), nullptr, lanes);
            float of_group = scale_for(args, most);
            if (first % lanes == 0 && is_there)
                *scale_of_group(args, row, group) = of_group;
            write_codes(vector, last, lanes, scale, divisor_of(of_group));
        }
    }
};

template <typename K, bool kIsAligned>
__global__ void __launch_bounds__(1024)
    norm_staged_kernel(const __grid_constant__ struct norm_args args)
{
    __shared__ row_exchange blocks;
    blocks.begin(summing_threads<K, kIsAligned>(args) / 32);
    const staged_row<K, kIsAligned> row(args, blocks);
    row_scale scale = row.find_scale();
    if (kMayHelp<K, kIsAligned> && gridDim.y > 1)
        __syncthreads(); // others write what a thread has summed
    if constexpr (K::kSink == kToFp8PerGroup)
        row.write_groups(scale);
    else if constexpr (K::kSink == kToFp8PerRow)
        row.write_row(scale);
    else if constexpr (K::kSink == kToFp8)
        row.write_codes(row.first, row.end, row.step, scale, args.divisor);
    else
        row.write_floats(scale);
}
