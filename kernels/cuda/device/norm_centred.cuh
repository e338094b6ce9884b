// norm_centred.cuh - mean and standard deviation of a row, for norms (norm.cuh) that are centred.
// The sum of the row gives its mean, but for what float32 loses of it; sums of the distances from
// that, and of their squares, give the rest of the mean and the variance. Both are over what the
// threads hold, in the order of the norm's one sum. Where squares overflow, may have lost bits to
// underflow, or where the rest is most of them, the same once more in double.
#pragma once

#include "cuda/device/norm_row.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// A thread's vectors of a row, in registers: f takes each, and how many of its elements count. What
// was unpacked for it is not kept for the next time.
template <typename K, typename C>
struct held_row {
    static_assert(C::kShares == 1, "one share per thread");
    row_values<K, C> &values;
    int to_read; // row_part

    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            float z[K::kVec];
            values.template get<false>(v, z);
            f(z, v * C::kThreads < to_read ? K::kVec : 0);
        }
        values.forget();
    }
};

// The same in memory.
template <typename K, bool kIsAligned, bool kStrides, bool kKeeps>
struct read_row {
    const norm_args &args;
    int64_t row;
    int thread, threads;

    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        raw_row<K, 1> raw;
        if (row >= args.n_rows)
            return;
#pragma unroll 1
        for (int64_t i = thread * K::kVec; i < args.hidden; i += threads * K::kVec) {
            float z[K::kVec];
            int64_t n = args.hidden - i;
            load_into<K, kIsAligned, kKeeps>(raw, 0, source_of_row<K, kStrides>(args, row), i, n);
            unpack_row<K>(raw, 0, z);
            f(z, n < K::kVec ? (int)n : K::kVec);
        }
    }
};

// A thread's share of the sum; elements that do not count are 0.
template <typename Acc, typename Row>
__device__ __forceinline__ Acc share_of_sum(const Row &row)
{
    Acc part[4] = {};
    row.for_each([&](const auto &z, int) {
        constexpr int n = sizeof z / sizeof z[0];
#pragma unroll
        for (int i = 0; i < n; i++)
            part[i % 4] += (Acc)z[i];
    });
    return (part[0] + part[1]) + (part[2] + part[3]);
}

// Of the distances from mean, and of their squares.
template <typename Acc, typename Row>
__device__ __forceinline__ two_sums<Acc> share_about(const Row &row, float mean)
{
    Acc sum[4] = {};
    square_sums<Acc> squares;
    row.for_each([&](const auto &z, int n_counted) {
        constexpr int n = sizeof z / sizeof z[0];
#pragma unroll
        for (int i = 0; i < n; i++) {
            Acc off = i < n_counted ? (Acc)z[i] - (Acc)mean : (Acc)0;
            sum[i % 4] += off;
            squares.part[i % 4] = fma(off, off, squares.part[i % 4]);
        }
    });
    return {(sum[0] + sum[1]) + (sum[2] + sum[3]), squares.total()};
}

__device__ __forceinline__ float mean_of(const norm_args &args, float sum)
{
    return sum * args.inverse_hidden;
}

__device__ __forceinline__ float mean_of(const norm_args &args, double sum)
{
    return (float)(sum * args.exact_inverse_hidden);
}

// From the sums about mean. Every kernel rounds alike: nothing is left to be fused. rest is the sum
// divided, not times an inverse: of a row of one value it is all that mean is off.
__device__ __forceinline__ row_scale scale_about(const norm_args &args, float mean,
                                                 const two_sums<float> &sums, bool &is_done)
{
    float near = __fmul_rn(sums.first, args.inverse_hidden);
    float left = fmaf(-near, (float)args.hidden, sums.first);
    float rest = fmaf(left, args.inverse_hidden, near);
    float square = __fmul_rn(rest, rest);
    float variance = fmaf(sums.second, args.inverse_hidden, -square);
    float spread = __fadd_rn(variance < 0 ? 0.0f : variance, args.eps);
    is_done = is_good(sums.second, spread) && square <= spread;
    return {inverse_root(spread), mean, rest};
}

__device__ __forceinline__ row_scale scale_about(const norm_args &args, float mean,
                                                 const two_sums<double> &sums, bool &is_done)
{
    double rest = sums.first * args.exact_inverse_hidden;
    double variance = fma(sums.second, args.exact_inverse_hidden, -__dmul_rn(rest, rest));
    is_done = true;
    return {(float)rsqrt((variance < 0 ? 0.0 : variance) + (double)args.eps), mean, (float)rest};
}

// The threads of a row: as many as a configuration says, or the launch.
template <typename C>
struct fixed_group {
    static constexpr int kPartials = C::kPartials;
    template <typename Acc, typename F>
    __device__ __forceinline__ Acc sum(const Acc &share, Acc *shared, const F &meanwhile) const
    {
        return sum_in_group<C::kThreads>(share, shared, meanwhile);
    }
};
struct any_group {
    static constexpr int kPartials = 32;
    int threads;
    template <typename Acc, typename F>
    __device__ __forceinline__ Acc sum(const Acc &share, Acc *shared, const F &) const
    {
        return sum_in_group(share, shared, threads);
    }
};

// With the same bits in every thread of the group. turn: as of scale_of (norm.cuh). Each sum has
// memory of its own, which nobody reads any more when the next row's comes.
template <typename Acc, typename Row, typename Group, typename F = wait_idly>
__device__ __forceinline__ row_scale centre(const norm_args &args, const Row &row,
                                            const Group &group, int turn, bool &is_done,
                                            const F &meanwhile = {})
{
    __shared__ Acc sum[2][Group::kPartials];
    __shared__ two_sums<Acc> about[2][Group::kPartials];
    float mean = mean_of(args, group.sum(share_of_sum<Acc>(row), sum[turn], meanwhile));
    two_sums<Acc> sums = group.sum(share_about<Acc>(row, mean), about[turn], wait_idly{});
    return scale_about(args, mean, sums, is_done);
}

// Out of line, and of x from memory, of a sum from registers: as sum_again (norm.cuh).
template <typename K, typename C>
__device__ __noinline__ row_scale centre_read_again(const norm_args &args, int64_t row, int thread,
                                                    int turn)
{
    bool is_done;
    read_row<K, true, C::kStrides, C::kKeeps> again{args, row, thread, C::kThreads};
    return centre<double>(args, again, fixed_group<C>{}, turn, is_done);
}

template <typename K, typename C>
__device__ __noinline__ row_scale centre_held_again(const norm_args &args, row_values<K, C> values,
                                                    int to_read, int turn)
{
    bool is_done;
    held_row<K, C> again{values, to_read};
    return centre<double>(args, again, fixed_group<C>{}, turn, is_done);
}

template <typename K, typename C>
__device__ __forceinline__ row_scale centre_again(const norm_args &args, const held_row<K, C> &held,
                                                  int64_t row, int thread, int turn)
{
    if constexpr (!K::kAdds)
        return centre_read_again<K, C>(args, row, thread, turn);
    else
        return centre_held_again<K, C>(args, held.values, held.to_read, turn);
}

// Of a row in registers.
template <typename K, typename C, typename F>
__device__ __forceinline__ row_scale centre_row(const norm_args &args, const held_row<K, C> &held,
                                                int64_t row, int thread, int turn,
                                                const F &meanwhile)
{
    bool is_done;
    row_scale found = centre<float>(args, held, fixed_group<C>{}, turn, is_done, meanwhile);
    if (C::kSharesWarp ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return found;
    row_scale exact = centre_again(args, held, row, thread, turn);
    return is_done ? found : exact;
}

// Of a row that is read again and again.
template <typename K, bool kIsAligned>
__device__ __forceinline__ row_scale reread_centre(const norm_args &args, int64_t row, int thread,
                                                   int threads)
{
    read_row<K, kIsAligned, true, false> read{args, row, thread, threads};
    row_scale found = {};
    bool is_done = false, is_exact;
    if (!args.sums_in_double)
        found = centre<float>(args, read, any_group{threads}, 0, is_done);
    if (threads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return found;
    row_scale exact = centre<double>(args, read, any_group{threads}, 0, is_exact);
    return is_done ? found : exact;
}
