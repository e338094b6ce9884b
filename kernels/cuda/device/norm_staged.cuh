// norm_staged.cuh - the norm (norm.cuh) of rows that registers do not hold: too wide, or of widths
// or at addresses that 16 bytes do not divide, or with weights that have no kernel of their own;
// and of tensors whose rows are not equally far apart; and of sums of more than x + residual, where
// they become codes or have more than 2,048 vectors.
//
// A row waits in shared memory for its sum, each thread's vectors in a place of its own, so nobody
// waits for another thread but for the sum. Where shared memory has no room, a row is read again.
// Rows at addresses that 16 bytes do not divide are read and written by device/shifted.cuh, those
// of small calls by elements: such a call waits for one load, and for its code.
#pragma once

#include "cuda/device/norm.cuh"

extern __shared__ uint4 staged_rows[]; // a block's

// Packets of 16 bytes that wait of a vector: as it came, or as its sum is stored, or as floats.
template <typename K>
constexpr int kStagedPackets = K::kAdds && !K::kRoundsSum && sizeof(typename K::T) == 2 ? 2 : 1;

// A thread's part of a row: vectors thread, thread + threads, ...
template <typename K, bool kIsAligned>
struct staged_row {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kPackets = kStagedPackets<K>;
    static constexpr bool kIsFloats = kPackets * 16 == kVec * (int)sizeof(float);
    static constexpr int kBatch = K::kAdds ? 2 : 4; // vectors that are loaded at once
    const norm_args &args;
    row_source<K> source;
    uint4 *stage; // of vector 0
    int64_t row;
    int64_t hidden; // 0 where there is no row
    int thread, threads;

    __device__ __forceinline__ staged_row(const norm_args &norm, int64_t row_number, int row_thread,
                                          int row_threads)
        : args(norm), source(source_of_row<K, true>(norm, row_number)), row(row_number),
          thread(row_thread), threads(row_threads)
    {
        hidden = row < args.n_rows ? args.hidden : 0;
        stage = staged_rows + (int64_t)(threadIdx.x / threads) * kPackets * n_vectors();
    }
    // Of any row of the launch.
    __device__ __forceinline__ int64_t n_vectors() const
    {
        return (args.hidden + kVec - 1) / kVec;
    }
    __device__ __forceinline__ int64_t left(int64_t vector) const
    {
        return hidden - vector * kVec;
    }
    __device__ __forceinline__ void put(int64_t vector, const float (&z)[kVec]) const
    {
        if constexpr (kIsFloats) {
#pragma unroll
            for (int i = 0; i < kPackets; i++) {
                float part[4] = {z[4 * i], z[4 * i + 1], z[4 * i + 2], z[4 * i + 3]};
                stage[i * n_vectors() + vector] = pack<float>(part);
            }
        } else {
            stage[vector] = pack<T>(z); // to the bit
        }
    }
    // What is normalised of a vector.
    __device__ __forceinline__ void get(int64_t vector, float (&z)[kVec]) const
    {
        if (!args.is_staged) {
            raw_row<K, 1> raw;
            load_into<K, kIsAligned>(raw, 0, source, vector * kVec, left(vector));
            unpack_sum<K>(args, raw, 0, z);
        } else if constexpr (kIsFloats) {
#pragma unroll
            for (int i = 0; i < kPackets; i++) {
                float part[4];
                unpack<float>(stage[i * n_vectors() + vector], part);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    z[4 * i + j] = part[j];
            }
        } else {
            unpack<T>(stage[vector], z);
        }
    }
    // Weights of a vector come nearer while its row is summed.
    __device__ __forceinline__ void prefetch_weights(int64_t vector) const
    {
        const int kind = args.weight_kind;
        const int bytes = kind == kWeightSame ? 16 : kind == kWeightFloat ? 4 * kVec : 2 * kVec;
        const char *from = static_cast<const char *>(args.weight) + vector * bytes;
        if (args.weight && left(vector) > 0)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from)));
    }
    // The share of the sum of squares, n vectors at a time. load(raw, vector) loads those that are
    // the row's, and leaves zeros of others.
    template <int n, typename F>
    __device__ __forceinline__ float read_by(const F &load) const
    {
        square_sums<float> sums;
#pragma unroll 1
        for (int64_t vector = thread; left(vector) > 0; vector += n * threads) {
            raw_row<K, n> raw;
            load(raw, vector);
#pragma unroll
            for (int v = 0; v < n; v++)
                prefetch_weights(vector + v * threads);
#pragma unroll
            for (int v = 0; v < n; v++) {
                float z[kVec];
                unpack_sum<K>(args, raw, v, z);
                sums.add(z);
                if (args.is_staged && left(vector + v * threads) > 0)
                    put(vector + v * threads, z);
            }
        }
        return sums.total();
    }
    __device__ __forceinline__ float read_vectors() const
    {
        return read_by<kBatch>([&](auto &raw, int64_t vector) {
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                clear<K>(raw, v);
                if (left(vector + v * threads) > 0)
                    load_into<K, true>(raw, v, source, (vector + v * threads) * kVec, kVec);
            }
        });
    }
    __device__ __forceinline__ float read_elements() const
    {
        return read_by<1>([&](auto &raw, int64_t vector) {
            load_into<K, false>(raw, 0, source, vector * kVec, left(vector));
        });
    }
    __device__ __forceinline__ float read_shifted() const
    {
        constexpr int kTerms = K::kHasTerms ? 3 : K::kAdds ? 2 : 1, n = K::kHasTerms ? 1 : 2;
        return read_by<n>([&](auto &raw, int64_t vector) {
            shifted_vector<(int)sizeof(T)> part[n][kTerms];
#pragma unroll
            for (int v = 0; v < n; v++) {
                int64_t at = (vector + v * threads) * 16;
                int64_t n_bytes = left(vector + v * threads) * (int)sizeof(T);
                int bytes = n_bytes > 16 ? 16 : n_bytes < 0 ? 0 : (int)n_bytes;
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
        else
            return args.by_elements ? read_elements() : read_shifted();
    }
    __device__ __forceinline__ row_scale find_scale() const
    {
        __shared__ float partial[32];
        __shared__ double exact_partial[32];
        float sum = sum_in_group(read(), partial, threads);
        float mean = fmaf(sum, args.inverse_hidden, args.eps);
        float scale = inverse_root(mean);
        bool is_done = is_good(sum, mean) && !args.sums_in_double;
        // Several rows may share a warp, and all of its lanes take part in a sum.
        if (threads < 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
            square_sums<double> squares;
#pragma unroll 1
            for (int64_t vector = thread; left(vector) > 0; vector += threads) {
                float z[kVec];
                get(vector, z);
                squares.add(z);
            }
            double exact = sum_in_group(squares.total(), exact_partial, threads);
            scale = is_done ? scale : exact_scale(args, exact);
        }
        return {scale};
    }
    // y is the result of a vector, and z what was normalised.
    __device__ __forceinline__ void finish(int64_t vector, const row_scale &scale, float (&z)[kVec],
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
        if (kIsNarrow && args.rounds_product)
            finish_vector<K, kIsNarrow>(args, gain, scale, y);
        else
            finish_vector<K, false>(args, gain, scale, y);
    }
    // The largest value among vectors first, first + step, ... before end.
    __device__ __forceinline__ float largest(int64_t first, int64_t end, int step,
                                             const row_scale &scale) const
    {
        float most = 0, y[kVec], z[kVec];
#pragma unroll 1
        for (int64_t vector = first; vector < end; vector += step) {
            finish(vector, scale, z, y);
            most = largest_of(most, y);
        }
        return most;
    }
    // The first n elements of a vector in the type of x. All lanes of a warp take part.
    __device__ __forceinline__ void store(void *to, int64_t pitch, int64_t vector, int64_t n,
                                          const float (&z)[kVec]) const
    {
        T *first = static_cast<T *>(to) + row * pitch + vector * kVec;
        if (kIsAligned || !args.by_elements)
            put_vector<T, kIsAligned>(first, threads, thread, n, z);
        else
            store_vector<T, false>(first, n, z);
    }
    // Their codes; y is divided.
    __device__ __forceinline__ void
    store_codes(int64_t vector, int64_t n, const shared_divisor &divisor, float (&y)[1][kVec]) const
    {
        uint8_t *to = static_cast<uint8_t *>(args.y) + row * args.y_pitch + vector * kVec;
        divide_all(y, {divisor});
        const fp8_codes<kVec> codes =
            args.is_e5m2 ? fp8_codes_of<true>(y[0]) : fp8_codes_of<false>(y[0]);
        if constexpr (!kIsAligned)
            put_words<uint8_t>(to, threads, thread, n, codes.word);
        else if (n > 0)
            store_fp8(to, codes);
    }
    // Vectors first, first + step, ... before end. Neighbours have neighbouring ones, and all lanes
    // of a warp go round equally often.
    __device__ __forceinline__ void write(int64_t first, int64_t end, int step,
                                          const row_scale &scale,
                                          const shared_divisor &divisor) const
    {
#pragma unroll 1
        for (int64_t vector = first; __any_sync(0xFFFFFFFFu, vector < end); vector += step) {
            float y[1][kVec] = {}, z[kVec] = {};
            int64_t n = vector < end ? left(vector) : 0;
            if (n > 0)
                finish(vector, scale, z, y[0]);
            if constexpr (K::kAdds)
                store(args.residual_out, args.residual_out_pitch, vector, n, z);
            if constexpr (K::kSink == kToFloats)
                store(args.y, args.y_pitch, vector, n, y[0]);
            else
                store_codes(vector, n, divisor, y);
        }
    }
    // Group by group, each by as many threads as it has vectors, at most a warp, or all that the
    // row has.
    __device__ __forceinline__ void write_groups(const row_scale &scale) const
    {
        int group_vectors = 1 << args.group_shift;
        int lanes = min(group_vectors, threads);
        for (int64_t turn = 0; turn < args.n_groups; turn += threads / lanes) {
            int64_t group = turn + thread / lanes;
            int64_t first = group * group_vectors + thread % lanes,
                    end = (group + 1) * group_vectors;
            if (hidden == 0 || group >= args.n_groups)
                end = 0; // nothing to do, but every lane of a warp takes part
            float most = largest_in_group(largest(first, end, lanes, scale), nullptr, lanes);
            float group_scale = scale_for(args, most);
            if (thread % lanes == 0 && end > 0)
                *scale_of_group(args, row, group) = group_scale;
            write(first, end, lanes, scale, divisor_of(group_scale));
        }
    }
};

template <typename K, bool kIsAligned>
__global__ void __launch_bounds__(1024)
    norm_staged_kernel(const __grid_constant__ struct norm_args args)
{
    let_next_start();
    wait_for_previous();
    int threads = args.threads_per_row, thread = threadIdx.x % threads;
    int64_t in_block = threadIdx.x / threads;
    const staged_row<K, kIsAligned> row(
        args, (int64_t)blockIdx.x * (blockDim.x / threads) + in_block, thread, threads);
    int64_t end = row.hidden > 0 ? row.n_vectors() : 0;
    row_scale scale = row.find_scale();
    if constexpr (K::kSink == kToFp8PerGroup) {
        __syncwarp(); // a group's vectors may be other threads'
        row.write_groups(scale);
    } else if constexpr (K::kSink == kToFp8PerRow) {
        __shared__ float partial[32];
        float most = row.largest(thread, end, threads, scale);
        float of_row = scale_for(args, largest_in_group(most, partial, threads));
        if (thread == 0 && end > 0)
            args.scales[row.row] = of_row;
        row.write(thread, end, threads, scale, divisor_of(of_row));
    } else {
        row.write(thread, end, threads, scale, args.divisor);
    }
}
