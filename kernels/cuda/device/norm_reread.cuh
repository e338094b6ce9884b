// norm_reread.cuh - the norm (norm.cuh) of rows that registers do not hold: too wide, or of widths
// or at addresses that 16 bytes do not divide, or with weights that have no kernel of their own;
// and of tensors whose rows are not equally far apart; and of sums of more than x + residual, where
// they become codes or have more than 2,048 vectors.
#pragma once

#include "cuda/device/norm.cuh"

// The same sums without registers for the row: rows too wide, widths or pointers that 16 bytes do
// not divide. threads is what the other kernel would have, several rows per block likewise.
template <typename K, bool kIsAligned>
__device__ __forceinline__ row_scale reread_scale(const norm_args &args, int64_t row, int thread,
                                                  int threads)
{
    __shared__ float partial[32];
    __shared__ double exact_partial[32];
    float mean = 0;
    bool is_done = false;
    if (!args.sums_in_double) {
        float sum = read_squares<K, kIsAligned, true, false, float>(args, row, thread, threads);
        sum = sum_in_group(sum, partial, threads);
        mean = fmaf(sum, args.inverse_hidden, args.eps);
        is_done = is_good(sum, mean);
    }
    float scale = inverse_root(mean);
    if (threads < 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_squares<K, kIsAligned, true, false, double>(args, row, thread, threads);
        exact = sum_in_group(exact, exact_partial, threads);
        scale = is_done ? scale : exact_scale(args, exact);
    }
    return {scale};
}

// Reads a vector of a row; y is its result.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void reread_vector(const norm_args &args, int64_t row, int64_t vector,
                                              const row_scale &scale, raw_row<K, 1> &raw,
                                              float (&y)[K::kVec])
{
    constexpr bool kIsNarrow = sizeof(typename K::T) == 2;
    float gain[K::kVec];
    int64_t i = vector * K::kVec;
    load_into<K, kIsAligned>(raw, 0, source_of_row<K, true>(args, row), i, args.hidden - i);
    any_weights<typename K::T, kIsAligned>(args, args.weight, 1.0f, vector, gain);
    add_bias(args, gain);
    unpack_sum<K>(args, raw, 0, y);
    round_stored<K>(args, y);
    if (kIsNarrow && args.rounds_product)
        finish_vector<K, kIsNarrow>(args, gain, scale, y);
    else
        finish_vector<K, false>(args, gain, scale, y);
}

// The largest value among vectors first, first + step, ... before end.
template <typename K, bool kIsAligned>
__device__ __forceinline__ float reread_largest(const norm_args &args, int64_t row, int64_t first,
                                                int64_t end, int step, const row_scale &scale)
{
    raw_row<K, 1> raw;
    float largest = 0, y[K::kVec];
    for (int64_t vector = first; vector < end; vector += step) {
        reread_vector<K, kIsAligned>(args, row, vector, scale, raw, y);
        largest = largest_of(largest, y);
    }
    return largest;
}

template <bool kIsAligned, int kVec>
__device__ __forceinline__ void store_codes(const norm_args &args, int64_t at, int64_t n,
                                            const float (&y)[kVec])
{
    uint8_t *to = static_cast<uint8_t *>(args.y) + at;
    if constexpr (kIsAligned) {
        store_fp8(to, y, args.is_e5m2);
    } else {
#pragma unroll
        for (int i = 0; i < kVec; i++) {
            float one[1] = {y[i]};
            if (i < n)
                store_fp8(to + i, one, args.is_e5m2);
        }
    }
}

template <typename K, bool kIsAligned>
__device__ __forceinline__ void reread_write(const norm_args &args, int64_t row, int64_t first,
                                             int64_t end, int step, const row_scale &scale,
                                             const shared_divisor &divisor)
{
    raw_row<K, 1> raw;
    float y[1][K::kVec];
    for (int64_t vector = first; vector < end; vector += step) {
        reread_vector<K, kIsAligned>(args, row, vector, scale, raw, y[0]);
        int64_t i = vector * K::kVec, at = row * args.y_pitch + i, n = args.hidden - i;
        if constexpr (K::kAdds) {
            float z[K::kVec];
            unpack_sum<K>(args, raw, 0, z);
            store_sum<K, kIsAligned>(args, row * args.residual_out_pitch + i, n, z);
        }
        if constexpr (K::kSink == kToFloats) {
            store_result<K, kIsAligned>(args, at, n, y[0]);
        } else {
            divide_all(y, {divisor});
            store_codes<kIsAligned>(args, at, n, y[0]);
        }
    }
}

// Group by group, each by as many threads as it has vectors, or all that the row has.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void reread_groups(const norm_args &args, int64_t row, int thread,
                                              int threads, const row_scale &scale)
{
    int group_vectors = 1 << args.group_shift;
    int lanes = min(group_vectors, threads);
    for (int64_t turn = 0; turn < args.n_groups; turn += threads / lanes) {
        int64_t group = turn + thread / lanes;
        int64_t begin = group * group_vectors, end = begin + group_vectors;
        if (row >= args.n_rows || group >= args.n_groups)
            end = begin; // nothing to do, but every lane of a warp takes part below
        float most =
            reread_largest<K, kIsAligned>(args, row, begin + thread % lanes, end, lanes, scale);
        most = largest_in_group(most, nullptr, lanes);
        float group_scale = scale_for(args, most);
        if (thread % lanes == 0 && begin < end)
            *scale_of_group(args, row, group) = group_scale;
        reread_write<K, kIsAligned>(args, row, begin + thread % lanes, end, lanes, scale,
                                    divisor_of(group_scale));
    }
}

template <typename K, bool kIsAligned>
__global__ void __launch_bounds__(1024)
    norm_reread_kernel(const __grid_constant__ struct norm_args args)
{
    let_next_start();
    wait_for_previous();
    int threads = args.threads_per_row;
    int thread = threadIdx.x % threads;
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / threads) + threadIdx.x / threads;
    int64_t end = row < args.n_rows ? (args.hidden + K::kVec - 1) / K::kVec : 0;
    row_scale scale = reread_scale<K, kIsAligned>(args, row, thread, threads);
    if constexpr (K::kSink == kToFp8PerGroup) {
        reread_groups<K, kIsAligned>(args, row, thread, threads, scale);
    } else if constexpr (K::kSink == kToFp8PerRow) {
        __shared__ float partial[32];
        float most = reread_largest<K, kIsAligned>(args, row, thread, end, threads, scale);
        float row_scale = scale_for(args, largest_in_group(most, partial, threads));
        if (thread == 0 && row < args.n_rows)
            args.scales[row] = row_scale;
        reread_write<K, kIsAligned>(args, row, thread, end, threads, scale, divisor_of(row_scale));
    } else {
        reread_write<K, kIsAligned>(args, row, thread, end, threads, scale, args.divisor);
    }
}
