// norm_centred.cuh - the centred norm of the CUDA backend, for layer_norm and add_layer_norm:
//
//     y = (z - mean(z)) * rsqrt(mean((z - mean(z))^2) + eps) * (weight_bias + weight) + bias
//
// where z is what norm.cuh normalises. Rows of up to eight vectors of 16 bytes for each of 1,024
// threads are read once and kept in registers, whatever their width, address and weights are;
// wider ones are read three times, from a cache after the first. Of addresses that 16 bytes do not
// divide, a few rows have norm_centred_quarters.cuh, and many norm_centred_packets.cuh.
//
// Each warp finds the mean of what it holds, and sums the distances from that, and their squares,
// before it meets the others: one barrier, and never E[z^2] - E[z]^2. Together they are the sums of
// the row about the first warp's mean, which gives the rest of the mean and the variance. Where
// squares overflow, may have lost bits to underflow, or where the rest is most of them, the same
// once more in double.
//
// The order of the sums follows from the width alone: element e belongs to vector e / kVec, vector
// v to thread v % threads, which adds its own in four sums, in order; then a butterfly adds a
// warp's threads, and another one the warps. A thread may do the work of two, and sums as they do.
#pragma once

#include "cuda/device/centred_sums.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/norm_row.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// kRowVectors: of a thread. kIsNarrow: a row takes up to a warp, or a part of one. kPlain: all
// addresses are multiples of 16 bytes, and weights have x's type. kKeep: what is read stays in L2
// (device/vector.cuh). kRowShares: as how many threads each of them sums. kPart: several blocks, a
// cluster, may take a row.
template <typename K, int kRowVectors, bool kIsNarrow, bool kPlain, bool kKeep = false,
          int kRowShares = 1, bool kPart = false>
struct centred_config {
    static constexpr int kVectors = kRowVectors;
    static constexpr int kShares = kRowShares;
    static constexpr bool kIsBlock = !kIsNarrow;
    static constexpr bool kIsPlain = kPlain;
    static constexpr bool kKeeps = kKeep;
    static constexpr bool kIsShort = kVectors <= 2;
    static constexpr bool kMayPart = kPart;
    static constexpr bool kHoldsFloats = kIsShort || (K::kAdds && !K::kRoundsSum);
    static constexpr bool kStartsWeights = kPlain && kIsShort;
    // two blocks on a multiprocessor of 576 threads, which a row of 18,432 of 16 bits takes, and
    // four of the halves of one of 8,192
    static constexpr int kRegisters = kVectors > 4 && kMayPart       ? 80
                                      : kVectors > 4 || kShares == 2 ? 64
                                                                     : 56;
};

// C of three vectors, whose weights come with the row, not one vector ahead of their use: a row
// that has a multiprocessor for itself would wait for each of them.
template <typename C>
struct with_weights : C {
    static constexpr bool kStartsWeights = true;
    static constexpr int kRegisters = 72;
};

// ------------------------------------------------------------------------------------ places

// The threads of a row: whole warps, which are a block, or the blocks of a cluster, or a power of
// two up to 32. A thread may have the shares of two that are a block apart; the last ones have one,
// where warps are odd, or none, where they are odd for the blocks.
template <bool kInBlock, int kRowShares = 1, bool kPart = false>
struct row_threads {
    static constexpr bool kIsBlock = kInBlock;
    static constexpr int kShares = kRowShares;
    static constexpr bool kMayPart = kPart;
    int threads, thread; // shares, and the number of the first of this thread's

    __device__ __forceinline__ int lanes() const
    {
        return kIsBlock ? 32 : threads;
    }
    // The number of a share.
    __device__ __forceinline__ int as(int share) const
    {
        return kShares == 1 ? thread : thread + share * (int)blockDim.x;
    }
    __device__ __forceinline__ bool has(int share) const
    {
        return (!kMayPart && share == 0) || as(share) < threads;
    }
    // The warp of shares that a lane finds the sum of: of two, those in the lane's half.
    __device__ __forceinline__ int warp() const
    {
        return as(kShares == 2 && (thread & 16)) / 32;
    }
    // Elements of a row that it holds, where shares have so many vectors at most.
    template <int kMost>
    __device__ __forceinline__ int held_of(int hidden, int vec) const
    {
        const int width = lanes() * vec;
        int n = 0, left = hidden - warp() * width;
#pragma unroll
        for (int v = 0; v < kMost; v++, left -= threads * vec)
            n += min(max(left, 0), width);
        return n;
    }
    // The same of a row of any width.
    __device__ __forceinline__ int held_by_warp(int64_t hidden, int vec) const
    {
        int64_t n = 0, step = threads * vec, width = lanes() * vec;
        for (int64_t left = hidden - warp() * width; left > 0; left -= step)
            n += left < width ? left : width;
        return (int)n;
    }
};

// Where a thread's vectors of a row are. Those of two shares are of either in turn.
template <int kShares>
struct centred_place {
    int64_t row;
    int left;      // elements from vector 0 to the row's end; 0 or below: none, or no row
    int left_next; // the same from the second share's first
    int step;      // elements from one vector of a share to the next

    __device__ __forceinline__ int at(int v, int vec) const
    {
        return v / kShares * step + v % kShares * (int)blockDim.x * vec;
    }
    __device__ __forceinline__ int left_at(int v) const
    {
        return (v % kShares ? left_next : left) - v / kShares * step;
    }
    __device__ __forceinline__ int bytes(int v, int size) const
    {
        return min(16, left_at(v) * size);
    }
};

// ------------------------------------------------------------------------------------ sums

// A thread's vectors of a row, in registers. f takes each, and how many elements of the row are
// left at it. What was unpacked is not kept for the next time, where registers hold it as it came.
// Where it has the shares of two threads, its vectors are of either in turn.
template <typename K, typename C>
struct held_row {
    static constexpr int kShares = C::kShares;
    static constexpr bool kIsWhole = C::kIsPlain; // vectors are, or are not there at all
    static constexpr bool kMayBranch = false;     // between those that are whole and others
    row_values<K, C> &values;
    const centred_place<kShares> &place;

    template <typename F>
    __device__ __forceinline__ void for_each(int share, const F &f) const
    {
#pragma unroll
        for (int v = share; v < C::kVectors; v += kShares) {
            float z[K::kVec];
            values.template get<false>(v, z);
            f(z, place.left_at(v));
        }
        if (share == kShares - 1)
            values.forget();
    }
};

// The same in memory.
template <typename K, typename Threads>
struct read_row {
    static constexpr int kShares = Threads::kShares;
    static constexpr bool kIsWhole = false, kMayBranch = false;
    const norm_args &args;
    const row_source<K> &source; // of the row
    const Threads &group;
    int64_t end; // of its elements, 0 where there is no row

    // f(first element, elements left) of a share's vectors.
    template <typename F>
    __device__ __forceinline__ void for_each_vector(int share, const F &f) const
    {
        const int step = group.threads * K::kVec;
#pragma unroll 1
        for (int64_t i = group.as(share) * K::kVec; i < (group.has(share) ? end : 0); i += step)
            f(i, end - i);
    }
    template <typename F>
    __device__ __forceinline__ void for_each(int share, const F &f) const
    {
        raw_row<K, 1> raw;
        for_each_vector(share, [&](int64_t i, int64_t left) {
            float z[K::kVec];
            load_into<K, false>(raw, 0, source, i, left);
            unpack_sum<K>(args, raw, 0, z);
            round_stored<K>(args, z);
            f(z, left < K::kVec ? (int)left : K::kVec);
        });
    }
};

// A thread's share of the sum; elements that do not count are 0.
template <typename Acc, typename Row>
__device__ __forceinline__ Acc share_of_sum(const Row &row, int share)
{
    Acc part[4] = {};
    row.for_each(share, [&](const auto &z, int) {
        constexpr int n = sizeof z / sizeof z[0];
#pragma unroll
        for (int i = 0; i < n; i++)
            part[i % 4] += (Acc)z[i];
    });
    return (part[0] + part[1]) + (part[2] + part[3]);
}

// Of the distances from mean, and of their squares.
template <typename Acc, typename Row>
__device__ __forceinline__ two_sums<Acc> share_about(const Row &row, int share, float mean)
{
    Acc sum[4] = {};
    square_sums<Acc> squares;
    row.for_each(share, [&](const auto &z, int left) {
        constexpr int n = sizeof z / sizeof z[0];
        const auto add = [&](auto is_whole) {
            float from = left > 0 ? mean : 0.0f; // zeros that are not the row's are at no distance
#pragma unroll
            for (int i = 0; i < n; i++) {
                Acc off = is_whole.value || i < left ? (Acc)z[i] - (Acc)from : (Acc)0;
                sum[i % 4] += off;
                squares.part[i % 4] = fma(off, off, squares.part[i % 4]);
            }
        };
        if (Row::kIsWhole || (Row::kMayBranch && left >= n))
            add(std::true_type{});
        else
            add(std::false_type{});
    });
    return {(sum[0] + sum[1]) + (sum[2] + sum[3]), squares.total()};
}

// What the warps of a row know where they are in several blocks.
template <typename Acc>
__device__ __forceinline__ cluster_values<warp_sums<Acc>, 32> &row_meeting()
{
    __shared__ cluster_values<warp_sums<Acc>, 32> meeting;
    return meeting;
}

// The same of all blocks of a row. together: 32 places that nobody reads any more.
template <int kShares, bool kMayPart, typename Acc>
__device__ __forceinline__ two_sums<Acc>
sums_of_block(const row_threads<true, kShares, kMayPart> &group, const warp_sums<Acc> &mine,
              warp_sums<Acc> *together, float &mean)
{
    const int n_warps = group.threads / 32, lanes = lanes_of_warps(n_warps);
    if constexpr (kShares == 2)
        if (blockDim.x == 32) { // each half of the warp knows what one of two would
            const float first = __shfl_sync(0xFFFFFFFFu, mine.mean, 0);
            const two_sums<Acc> sums = sums_beside(mine, first);
            mean = first;
            return sums + exchange(sums, 16);
        }
    if constexpr (kMayPart)
        if (gridDim.y > 1) {
            auto &meeting = row_meeting<Acc>();
            meeting.exchange_of_warp(mine);
            return sums_of_warps<Acc>(
                n_warps, lanes, [&](int warp) -> const auto & { return meeting.of_warp[warp]; },
                mean);
        }
    if (group.thread % (32 / kShares) == 0 && (kShares == 1 || group.warp() < n_warps))
        together[group.warp()] = mine;
    __syncthreads();
    return sums_of_warps<Acc>(
        n_warps, lanes, [&](int warp) -> const auto & { return together[warp]; }, mean);
}

// From the sums about mean. Every kernel rounds alike: nothing is left to be fused. rest is the sum
// divided, not times an inverse: of a row of one value it is all that mean is off. What the sum of
// both loses is left beside it.
__device__ __forceinline__ row_scale scale_beside(float mean, float rest, float root)
{
    float sum = __fadd_rn(mean, rest), more = __fsub_rn(sum, mean);
    float lost = __fadd_rn(__fsub_rn(mean, __fsub_rn(sum, more)), __fsub_rn(rest, more));
    // of a row so near one value that the root is infinite: nothing times that is no number
    return {root, sum, lost == 0.0f ? -lost : __fmul_rn(-lost, root)};
}

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
    return scale_beside(mean, rest, inverse_root(spread));
}

__device__ __forceinline__ row_scale scale_about(const norm_args &args, float mean,
                                                 const two_sums<double> &sums, bool &is_done)
{
    double rest = sums.first * args.exact_inverse_hidden;
    double variance = fma(sums.second, args.exact_inverse_hidden, -__dmul_rn(rest, rest));
    is_done = true;
    return scale_beside(mean, (float)rest,
                        (float)rsqrt((variance < 0 ? 0.0 : variance) + (double)args.eps));
}

// In double to its last place: a row of one value has it as its mean, and no variance.
template <typename Acc>
__device__ __forceinline__ Acc inverse_of(int n)
{
    return sizeof(Acc) == 8 ? (Acc)(1.0 / (double)n) : (Acc)__fdividef(1.0f, (float)n);
}

// n: elements that the warp holds; of two shares, those of the lane's half of it.
template <typename Acc, typename Row, typename Threads>
__device__ __forceinline__ row_scale centre(const norm_args &args, const Row &row,
                                            const Threads &group, int n, bool &is_done)
{
    warp_sums<Acc> mine;
    mine.n = (float)n;
    const Acc inverse = inverse_of<Acc>(n);
    if constexpr (Threads::kShares == 2) {
        Acc sum = sum_of_shares(share_of_sum<Acc>(row, 0), share_of_sum<Acc>(row, 1));
        mine.mean = (float)(sum * inverse);
        float other = exchange(mine.mean, 16);
        const bool is_upper = group.thread & 16;
        mine.about = sum_of_shares(share_about<Acc>(row, 0, is_upper ? other : mine.mean),
                                   share_about<Acc>(row, 1, is_upper ? mine.mean : other));
    } else {
        Acc sum = sum_over(share_of_sum<Acc>(row, 0), group.lanes());
        mine.mean = (float)(sum * inverse);
        mine.about = sum_over(share_about<Acc>(row, 0, mine.mean), group.lanes());
    }
    if constexpr (Threads::kIsBlock) {
        __shared__ warp_sums<Acc> together[32];
        mine.about = sums_of_block(group, mine, together, mine.mean);
    }
    return scale_about(args, mine.mean, mine.about, is_done);
}

// ------------------------------------------------------------------------------------ rows

// Vectors at any address, two at a time: more would leave no registers.
template <typename T, int kVectors>
__device__ __forceinline__ void load_shifted(const char *from, const char *end,
                                             const centred_place<1> &place, uint4 (&raw)[kVectors])
{
#pragma unroll
    for (int v = 0; v < kVectors; v += 2) {
        shifted_vector<(int)sizeof(T)> vector[2];
#pragma unroll
        for (int i = v; i < v + 2 && i < kVectors; i++)
            vector[i - v].start(from + i * place.step * (int)sizeof(T),
                                place.bytes(i, (int)sizeof(T)), end);
#pragma unroll
        for (int i = v; i < v + 2 && i < kVectors; i++)
            raw[i] = vector[i - v].finish();
    }
}

template <typename K, typename C>
__device__ __forceinline__ void
load_row(const norm_args &args, const centred_place<C::kShares> &place, const row_source<K> &source,
         uint64_t policy, raw_row<K, C::kVectors> &raw)
{
    using T = typename K::T;
    if constexpr (C::kIsPlain) {
        auto load = [&](const char *from) { return load_16_by<C::kKeeps>(policy, from); };
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            const int at = place.at(v, K::kVec) * (int)sizeof(T);
            clear<K>(raw, v);
            if constexpr (C::kShares == 1) {
                if (v * place.step < place.left)
                    load_into<K, true, C::kKeeps>(raw, v, source, v * place.step, K::kVec);
            } else if (place.left_at(v) > 0) {
                raw.x[v] = load(source.x + at);
                if constexpr (K::kAdds)
                    raw.residual[v] = load(source.residual + at);
                if constexpr (K::kHasTerms)
                    if (source.addend)
                        raw.addend[v] = load(source.addend + at);
            }
        }
    } else {
        load_shifted<T>(source.x, args.x_end, place, raw.x);
        if constexpr (K::kAdds)
            load_shifted<T>(source.residual, args.residual_end, place, raw.residual);
    }
}

// A vector of ones, and one of zeros, for rows that have no weights, or no biases: they are loaded
// as if a row had these.
template <typename T>
static __device__ const uint4 absent_vectors[2] = {
    sizeof(T) == 4                   ? uint4{0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000}
    : std::is_same<T, __half>::value ? uint4{0x3C003C00, 0x3C003C00, 0x3C003C00, 0x3C003C00}
                                     : uint4{0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80},
    {}};

// Weights, or biases, of a thread's vectors; where there are none, absent. Where all addresses are
// plain, loads start before what needs them: all with those of the row, or one vector ahead.
template <typename K, typename C>
struct centred_gains {
    static constexpr int kAhead = C::kStartsWeights ? C::kVectors : 1;
    const norm_args &args;
    const void *weights;
    float absent;
    uint4 started[kAhead];

    __device__ __forceinline__ centred_gains(const norm_args &norm, const void *from, float none)
        : args(norm), weights(from), absent(none)
    {
    }
    // Of vector v of a thread, at element at of the row. Many rows are bound by instructions: those
    // have no branch, and a vector that is not there has the row's first weights. A few wait for
    // the address.
    __device__ __forceinline__ void start(int v, int at, const centred_place<C::kShares> &place,
                                          uint64_t policy)
    {
        using T = typename K::T;
        uint4 &raw = started[v % kAhead];
        if constexpr (C::kIsPlain && C::kIsShort) {
            float all[K::kVec];
#pragma unroll
            for (float &one : all)
                one = absent;
            raw = pack<T>(all);
            const char *from = static_cast<const char *>(weights) + at * (int)sizeof(T);
            if (weights && place.left_at(v) > 0)
                raw = C::kShares == 2 ? load_16_by<C::kKeeps>(policy, from)
                      : C::kKeeps     ? load_16_to_keep(from)
                                      : load_16(from);
        } else if constexpr (C::kIsPlain) {
            const char *base = reinterpret_cast<const char *>(absent_vectors<T> + (absent == 0));
            const int step = weights ? (int)sizeof(T) : 0;
            const char *at_v = (weights ? static_cast<const char *>(weights) : base) +
                               (place.left_at(v) > 0 ? at : 0) * step;
            raw = C::kShares == 2 ? load_16_by<C::kKeeps>(policy, at_v)
                  : C::kKeeps     ? load_16_to_keep(at_v)
                                  : load_16(at_v);
        }
    }
    __device__ __forceinline__ void get(int v, int at, const centred_place<C::kShares> &place,
                                        float (&gain)[K::kVec]) const
    {
        using T = typename K::T;
        if constexpr (C::kIsPlain)
            unpack<T>(started[v % kAhead], gain);
        else
            any_weights<T, false>(args, place.left_at(v) > 0 ? weights : nullptr, absent,
                                  at / K::kVec, gain);
    }
};

template <typename K>
__device__ __forceinline__ void finish_any(const norm_args &args, const float (&gain)[K::kVec],
                                           const float (&bias)[K::kVec], const row_scale &scale,
                                           float (&y)[K::kVec])
{
    constexpr bool kMayRound = sizeof(typename K::T) == 2;
    if (kMayRound && args.rounds_product)
        finish_centred<K, kMayRound>(gain, bias, scale, y);
    else
        finish_centred<K, false>(gain, bias, scale, y);
}

// ------------------------------------------------------------------------------------ kernels

// Element 0 of a row of a tensor, whose rows are so far apart.
template <typename K>
__device__ __forceinline__ int64_t row_at(const norm_args &args, int64_t row, int64_t pitch)
{
    if constexpr (K::kHasHeads)
        return row / args.heads * pitch + row % args.heads * args.hidden;
    else
        return row * pitch;
}

// Weights, or biases, of a row.
template <typename K>
__device__ __forceinline__ const void *weights_of(const norm_args &args, const void *weights,
                                                  int64_t row)
{
    if constexpr (K::kHasHeads) {
        const bool is_same = args.weight_kind <= (int)kWeightSame;
        int bytes = is_same ? (int)sizeof(typename K::T) : args.weight_kind == kWeightFloat ? 4 : 2;
        if (weights)
            return static_cast<const char *>(weights) + row % args.heads * args.hidden * bytes;
    }
    return weights;
}

// All of a row that is read again, for sums in double, and for its result. Several rows may share a
// warp, and all of its lanes take part in a sum: one that is done has found its scale, and keeps
// it.
template <typename K, typename Threads>
__device__ __forceinline__ void write_again(const norm_args &args, int64_t row,
                                            const read_row<K, Threads> &values,
                                            const row_scale &scale)
{
    using T = typename K::T;
    for (int share = 0; share < Threads::kShares; share++)
        values.for_each_vector(share, [&](int64_t i, int64_t left) {
            raw_row<K, 1> raw;
            float y[K::kVec], gain[K::kVec], bias[K::kVec];
            load_into<K, false>(raw, 0, values.source, i, left);
            unpack_sum<K>(args, raw, 0, y);
            store_sum<K, false>(args, row * args.residual_out_pitch + i, left, y);
            round_stored<K>(args, y);
            any_weights<T, false>(args, weights_of<K>(args, args.weight, row), 1.0f, i / K::kVec,
                                  gain);
            any_weights<T, false>(args, weights_of<K>(args, args.bias, row), 0.0f, i / K::kVec,
                                  bias);
            add_bias(args, gain);
            finish_any<K>(args, gain, bias, scale, y);
            store_result<K, false>(args, row_at<K>(args, row, args.y_pitch) + i, left, y);
        });
}

template <typename K>
__device__ __forceinline__ row_source<K> source_of(const norm_args &args, int64_t row)
{
    return {args, row_at<K>(args, row, args.x_pitch), K::kAdds ? row * args.residual_pitch : 0,
            K::kHasTerms ? row * args.addend_pitch : 0};
}

template <typename K, typename Threads>
__device__ __forceinline__ void centre_again(const norm_args &args, int64_t row,
                                             const Threads &group, bool is_done, row_scale found)
{
    const row_source<K> source = source_of<K>(args, row);
    const read_row<K, Threads> values{args, source, group, row < args.n_rows ? args.hidden : 0};
    bool is_exact;
    row_scale exact =
        centre<double>(args, values, group, group.held_by_warp(args.hidden, K::kVec), is_exact);
    write_again(args, row, values, is_done ? found : exact);
}

// Out of line, and nothing is left to do behind it: the instructions of a row that is good follow
// each other, and no register waits for the call.
template <typename K, typename Threads>
__device__ __noinline__ void call_centre_again(const norm_args &args, int64_t row, Threads group,
                                               bool is_done, row_scale found)
{
    centre_again<K>(args, row, group, is_done, found);
}

// Rows that no registers hold.
template <typename K>
__global__ void __launch_bounds__(1024)
    centred_reread_kernel(const __grid_constant__ struct norm_args args)
{
    wait_for_previous();
    let_next_start();
    centre_again<K>(args, blockIdx.x, row_threads<true>{(int)blockDim.x, (int)threadIdx.x}, false,
                    {});
}

// A row that no registers hold. Sums of terms at any address, and heads, which are rare, by as many
// threads as a row in registers has: in the same order, so with the bits that the norm of the
// stored sum has where every step is rounded. A thread reads the elements that it writes, and no
// others: a result may take an input's place.
template <typename K, typename Threads>
__device__ __forceinline__ void centre_in_memory(const norm_args &args, int64_t row,
                                                 const Threads &group)
{
    const row_source<K> source = source_of<K>(args, row);
    const read_row<K, Threads> values{args, source, group, row < args.n_rows ? args.hidden : 0};
    bool is_done;
    row_scale scale =
        centre<float>(args, values, group, group.held_by_warp(args.hidden, K::kVec), is_done);
    if (Threads::kIsBlock ? !is_done : !__all_sync(0xFFFFFFFFu, is_done))
        call_centre_again<K>(args, row, group, is_done, scale);
    else
        write_again(args, row, values, scale);
}

template <typename K, bool kIsBlock>
__global__ void __launch_bounds__(1024)
    centred_terms_kernel(const __grid_constant__ struct norm_args args)
{
    int64_t row = blockIdx.x;
    if constexpr (!kIsBlock)
        row = row * blockDim.y + threadIdx.y;
    wait_for_previous();
    let_next_start();
    centre_in_memory<K>(args, row, row_threads<kIsBlock>{(int)blockDim.x, (int)threadIdx.x});
}

// Rows in turn of up to a warp each, so many apart, from one on that float32 does not centre; its
// neighbours have the bits that they would have. Out of line, and nothing is left to do behind it.
template <typename K, typename Threads>
__device__ __noinline__ void call_centre_rest(const norm_args &args, int64_t row, int64_t end,
                                              Threads group, int step)
{
    int first = threadIdx.y % (32 / blockDim.x); // of a warp all go round
    for (; row - first < end; row += step)
        centre_in_memory<K>(args, row, group);
}

// blockDim.x threads a row, blockDim.y rows a block: one where they are whole warps.
template <typename K, typename C>
__global__ void __maxnreg__(C::kRegisters)
    centred_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    constexpr int kVectors = C::kVectors, kShares = C::kShares;
    constexpr bool kMayPart = C::kMayPart;
    row_threads<C::kIsBlock, kShares, kMayPart> group{
        kShares == 1 && !kMayPart ? (int)blockDim.x : args.n_shares,
        (int)(kMayPart ? blockIdx.y * blockDim.x + threadIdx.x : threadIdx.x)};
    centred_place<kShares> place;
    raw_row<K, kVectors> raw;
    row_values<K, C> values;
    place.row = blockIdx.x;
    if constexpr (!C::kIsBlock || kShares == 2)
        place.row = place.row * blockDim.y + threadIdx.y;
    place.step = group.threads * K::kVec;
    int first = group.thread * K::kVec;
    place.left = place.row < args.n_rows && group.has(0) ? (int)args.hidden - first : 0;
    place.left_next = group.has(1) ? place.left - (int)blockDim.x * K::kVec : 0;
    const int n = C::kIsShort
                      ? group.held_by_warp(args.hidden, K::kVec)
                      : group.template held_of<kVectors / kShares>((int)args.hidden, K::kVec);
    const uint64_t policy = policy_to_keep();
    row_source<K> source(args, row_at<K>(args, place.row, args.x_pitch) + first,
                         K::kAdds ? place.row * args.residual_pitch + first : 0,
                         K::kHasTerms ? place.row * args.addend_pitch + first : 0);
    centred_gains<K, C> gains(args, weights_of<K>(args, args.weight, place.row), 1.0f);
    centred_gains<K, C> biases(args, weights_of<K>(args, args.bias, place.row), 0.0f);
    source.find_now();
    if (kMayPart && gridDim.y > 1) {
        row_meeting<float>().prepare();
        row_meeting<double>().begin();
    }
    // what is read of the parameters before is in a cache behind the wait
    finish_before_wait(source.x, n, gains.weights, biases.weights, args.y, args.residual_out,
                       (int)(args.y_pitch >> 32), (int)(args.residual_out_pitch >> 32),
                       args.rounds_product);
    wait_for_previous();
    let_next_start();
    load_row<K, C>(args, place, source, policy, raw);
    auto start_gains = [&](int v) {
        gains.start(v, first + place.at(v, K::kVec), place, policy);
        biases.start(v, first + place.at(v, K::kVec), place, policy);
    };
#pragma unroll
    for (int v = 0; v < gains.kAhead; v++)
        start_gains(v);
    values.take(args, raw);
    auto store_sum_of = [&](int v) {
        float z[K::kVec];
        int at = first + place.at(v, K::kVec);
        values.template get<true>(v, z);
        put_vector<T, C::kIsPlain>(static_cast<T *>(args.residual_out) +
                                       place.row * args.residual_out_pitch + at,
                                   group.threads, group.thread, place.left_at(v), z);
    };
    // a row that may be read again needs what it has replaced, and so do neighbours of one that is
    // shifted
    constexpr bool kMayStoreEarly = K::kAdds && C::kIsPlain && kVectors <= 2;
    const bool stores_early = kMayStoreEarly && args.stores_early;
    if constexpr (kMayStoreEarly)
        for (int v = 0; v < kVectors && stores_early; v++)
            store_sum_of(v);
    bool is_done;
    held_row<K, C> held{values, place};
    row_scale scale = centre<float>(args, held, group, n, is_done);
    if (C::kIsBlock ? !is_done : !__all_sync(0xFFFFFFFFu, is_done)) {
        call_centre_again<K>(args, place.row, group, is_done, scale);
        return;
    }
    const auto find_result = [&] { return row_at<K>(args, place.row, args.y_pitch); };
    // registers have room for it where the row is not there as floats
    const int64_t found = C::kIsShort ? 0 : compute_now(find_result() + first);
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float y[K::kVec], gain[K::kVec], bias[K::kVec];
        int at = first + place.at(v, K::kVec);
        values.template get<true>(v, y);
        if (K::kAdds && !stores_early)
            store_sum_of(v);
        gains.get(v, at, place, gain);
        biases.get(v, at, place, bias);
        constexpr bool kHasNext = gains.kAhead < kVectors;
        if (kHasNext && !K::kAdds && v + 1 < kVectors)
            start_gains(v + 1);
        add_bias(args, gain);
        finish_any<K>(args, gain, bias, scale, y);
        if (kHasNext && K::kAdds && v + 1 < kVectors) // before that a sum has no registers for it
            start_gains(v + 1);
        T *const to = C::kIsShort ? static_cast<T *>(args.y) + find_result() + at
                                  : static_cast<T *>(args.y) + found + place.at(v, K::kVec);
        put_vector<T, C::kIsPlain>(to, group.threads, group.thread, place.left_at(v), y);
    }
}
