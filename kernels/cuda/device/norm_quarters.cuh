// norm_quarters.cuh - norms without a mean (norm.cuh, norm_pair.cuh) of a few rows at addresses
// that 16 bytes do not divide; centred ones have the same threads (norm_centred_quarters.cuh).
//
// Such a call waits for what one thread executes, and most of that would be shifting vectors into
// their places. Here four threads have a vector, each the elements of one of the four sums of
// squares.cuh, which it loads and stores one by one: what the four add up are the same sums.
// Nothing waits in shared memory. Several blocks take a row, a cluster, as in norm_staged.cuh.
#pragma once

#include "cuda/device/norm_pair.cuh"
#include "cuda/device/norm_staged.cuh"

constexpr int kQuarterThreads = 1024; // of a block, at most
constexpr int kQuarterVectors = 4;    // of a thread, at most
// The same of rows of float32 that are wider than registers hold otherwise: fewer shares have more
// vectors, of which a thread has an element each. Kernels of their own: narrower rows would wait
// for the instructions.
constexpr int kWideQuarterVectors = 10;

// A kind of norm, for so many elements of a vector.
template <typename K, int n>
struct part_kind : K {
    static constexpr int kVec = n;
};

// The threads' shares, four of which are one of norm.cuh.
template <typename Acc>
struct quarter_shares {
    Acc of_share[kQuarterThreads / 4];

    // A sum of 32 shares, by the threads that have them: every warp adds up all, as three others.
    // A block of fewer threads has no more shares. meanwhile: device/reduce.cuh.
    template <typename F = wait_idly>
    __device__ __forceinline__ Acc sum_of_warp(Acc share, const F &meanwhile = {})
    {
        share += exchange(share, 1);
        share += exchange(share, 2);
        if (threadIdx.x % 4 == 0)
            of_share[threadIdx.x / 4] = share;
        __syncthreads();
        const int lane = threadIdx.x % 32;
        Acc other = {};
        if (lane < blockDim.x / 4)
            other = of_share[threadIdx.x / 128 * 32 + lane];
        return sum_in_warp<32>(other, meanwhile);
    }
};

// A sum of all.
template <typename Acc>
struct quarter_sums {
    quarter_shares<Acc> shares;
    Acc of_warp[kQuarterThreads / 128];
    cluster_values<Acc, 8 * kQuarterThreads / 32> of_row;

    template <typename F = wait_idly>
    __device__ __forceinline__ Acc sum_of(Acc share, const F &meanwhile = {})
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int n_warps = (blockDim.x + 127) / 128;
        share = shares.sum_of_warp(share, meanwhile);
        if (gridDim.y == 1 && n_warps == 1)
            return share;
        Acc leaf = {};
        if (gridDim.y > 1) {
            of_row.exchange_of_warp(share);
            n_warps *= gridDim.y;
            if (lane < n_warps)
                leaf = of_row.of_warp[4 * lane];
        } else {
            if (threadIdx.x % 128 == 0)
                of_warp[warp / 4] = share;
            __syncthreads();
            if (lane < n_warps)
                leaf = of_warp[lane];
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2)
            leaf += exchange(leaf, distance);
        return leaf;
    }
};

// Where a row is, by the kernel's arguments.
template <typename K>
struct quarter_place {
    using T = typename K::T;
    const norm_args &norm;
    row_source<K> source;
    const char *weights;
    int64_t at, sum_at; // elements of y, and of residual_out

    __device__ __forceinline__ quarter_place(const norm_args &args, int64_t row)
        : norm(args), source(source_of_row<K, true>(args, row)),
          weights(static_cast<const char *>(args.weight)), at(row * args.y_pitch),
          sum_at(row * args.residual_out_pitch)
    {
    }
    __device__ __forceinline__ quarter_place(const pair_args &args, int64_t row)
        : quarter_place(args, pair_place(args, row))
    {
    }

  private:
    __device__ __forceinline__ quarter_place(const pair_args &args, const pair_place &place)
        : norm(args.norm), source(place.source<K>(args.norm, 0)), weights(place.weights(args)),
          at(place.row * args.norm.y_pitch + place.column), sum_at(0)
    {
    }
};

// An element as it came, in the lower bits.
template <int kBytes>
__device__ __forceinline__ uint32_t load_element(const char *from)
{
    uint32_t raw;
    if constexpr (kBytes == 4)
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(raw) : "l"(__cvta_generic_to_global(from)));
    else
        asm volatile("ld.global.u16 %0, [%1];" : "=r"(raw) : "l"(__cvta_generic_to_global(from)));
    return raw;
}

template <typename T>
__device__ __forceinline__ float float_of(uint32_t raw)
{
    if constexpr (sizeof(T) == 4)
        return __uint_as_float(raw);
    else
        return element<T>::to_float2(raw).x;
}

// A thread's elements of a row: of vectors share, share + shares, ... every fourth one. Where
// shares are no whole block, or less than a warp, others have none.
template <typename K>
struct quarters {
    using T = typename K::T;
    static constexpr int kEach = K::kVec / 4;
    int first, left; // element of the row; elements from there to the row's end
    int step;        // from a vector to the next

    __device__ __forceinline__ explicit quarters(const norm_args &norm)
    {
        const int thread = (int)(blockIdx.y * blockDim.x + threadIdx.x), share = thread / 4;
        first = share * K::kVec + thread % 4;
        left = compute_now(share < norm.n_vectors ? (int)norm.hidden - first : 0);
        step = compute_now(norm.n_vectors * K::kVec);
    }
    __device__ __forceinline__ quarters(int first_element, int n_left, int n_apart)
        : first(first_element), left(compute_now(n_left)), step(compute_now(n_apart))
    {
    }
    // Zeros where there are none. kWord: bytes of a word that begins at such an element.
    template <int kBytes, int kWord = kBytes, int kVectors>
    __device__ __forceinline__ void load(const char *from, uint32_t (&raw)[kVectors][kEach]) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                raw[v][i] = 0;
                if (has(v, i))
                    raw[v][i] = load_element<kWord>(from + 4 * i * kBytes);
            }
            from += (uint32_t)(step * kBytes);
        }
    }
    // Element i of vector v, or the first one.
    __device__ __forceinline__ bool has(int v, int i = 0) const
    {
        return v * step + 4 * i < left;
    }
    __device__ __forceinline__ void store(T *to, int v, const float (&y)[kEach]) const
    {
        to += (uint32_t)(v * step);
#pragma unroll
        for (int i = 0; i < kEach; i++)
            if (has(v, i))
                to[4 * i] = element<T>::from_float(y[i]);
    }
};

// From elements as they came to those that are normalised, and what there is to do beside the norm.
template <typename K, int n>
__device__ __forceinline__ void take_elements(const norm_args &args, float (&z)[n],
                                              float (&other)[n])
{
    if constexpr (K::kHasTerms) {
        using T = typename K::T;
#pragma unroll
        for (float &value : z)
            value = __fmul_rn(value, args.x_scale);
        round_step<T>(args, z);
#pragma unroll
        for (int i = 0; i < n; i++)
            z[i] += other[i];
        round_step<T>(args, z);
    } else if constexpr (K::kAdds) {
#pragma unroll
        for (int i = 0; i < n; i++)
            z[i] += other[i];
    }
    if constexpr (K::kRoundsSum)
        round_to<typename K::T>(z);
}
template <typename K, int n>
__device__ __forceinline__ void take_elements(const pair_args &args, float (&z)[n],
                                              float (&other)[n])
{
    if constexpr (K::kPair == GATE_THEN_NORM || K::kPair == NORM_THEN_GATE)
        activate_gate(args.activation, other);
    if constexpr (K::kPair == GATE_THEN_NORM) {
#pragma unroll
        for (int i = 0; i < n; i++)
            z[i] *= other[i];
    }
}

template <typename K>
__device__ __forceinline__ row_scale rounded_scale(const norm_args &, row_scale row)
{
    return row;
}

// To results.
template <typename K, int n>
__device__ __forceinline__ void finish_elements(const norm_args &args, const float (&gain)[n],
                                                const row_scale &scale, const float (&)[n],
                                                float (&y)[n])
{
    if (sizeof(typename K::T) == 2 && args.rounds_product)
        finish_vector<part_kind<K, n>, sizeof(typename K::T) == 2>(args, gain, scale, y);
    else
        finish_vector<part_kind<K, n>, false>(args, gain, scale, y);
}
template <typename K, int n>
__device__ __forceinline__ void finish_elements(const pair_args &args, const float (&gain)[n],
                                                const row_scale &scale, const float (&other)[n],
                                                float (&y)[n])
{
    finish_pair<part_kind<K, n>>(args, gain, scale, other, y);
}

// A weight, or a bias.
template <typename T>
__device__ __forceinline__ float weight_of(int kind, uint32_t raw)
{
    if (sizeof(T) == 2 && kind == kWeightFloat)
        return __uint_as_float(raw);
    if (sizeof(T) == 4 && kind == kWeightHalf)
        return float_of<__half>(raw);
    if (sizeof(T) == 4 && kind == kWeightBf16)
        return float_of<__nv_bfloat16>(raw);
    return float_of<T>(raw);
}

template <typename T>
__device__ __forceinline__ float gain_of(const norm_args &args, uint32_t raw)
{
    return (args.weight ? weight_of<T>(args.weight_kind, raw) : 1.0f) + args.weight_bias;
}

// Do weights have four bytes?
template <typename T>
__device__ __forceinline__ bool has_float_weights(int kind)
{
    return sizeof(T) == 4 ? kind <= kWeightSame : kind == kWeightFloat;
}

// A row's results: write(place, mine, v, y) has those of a thread's vector. All loads start
// together; x and the second tensor may have their results' places, which a thread writes when it
// has what it reads. Rows of sums, and those that become codes, have gains made, and x + residual
// stored, between the exchanges of the sum; of others gains would take registers meanwhile.
template <typename K, int kVectors, typename Args, typename F>
__device__ __forceinline__ void normalise_quarters(const Args &args, const F &write)
{
    using T = typename K::T;
    constexpr int kEach = K::kVec / 4, kSeconds = K::kAdds ? kVectors : 1;
    constexpr bool kPrepares =
        std::is_same_v<Args, norm_args> && (K::kAdds || K::kSink != kToFloats);
    __shared__ quarter_sums<float> sums;
    __shared__ quarter_sums<double> exact_sums;
    const quarter_place<K> place(args, blockIdx.x);
    const norm_args &norm = place.norm;
    const quarters<K> mine(norm);
    const bool are_floats = has_float_weights<T>(norm.weight_kind);
    const char *x = compute_now(place.source.x + mine.first * (int)sizeof(T));
    const char *second = x, *weights = x;
    if constexpr (K::kAdds)
        second = compute_now(place.source.residual + mine.first * (int)sizeof(T));
    if (place.weights)
        weights = place.weights + mine.first * (are_floats ? 4 : 2);
    weights = compute_now(weights);
    uint32_t raw[kVectors][kEach], raw_second[kVectors][kEach];
    uint32_t raw_weight[kVectors][kEach];
    if (gridDim.y > 1) {
        sums.of_row.prepare();
        exact_sums.of_row.begin();
    }
    finish_before_wait(x, second, weights, mine.left);
    wait_for_previous();
    let_next_start();
    mine.template load<(int)sizeof(T)>(x, raw);
    if constexpr (K::kAdds)
        mine.template load<(int)sizeof(T)>(second, raw_second);
    if (are_floats)
        mine.template load<4>(weights, raw_weight);
    else
        mine.template load<2>(weights, raw_weight);
    float z[kVectors][kEach] = {}, other[kSeconds][kEach] = {}, share = 0;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        if (!mine.has(v))
            continue;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            z[v][i] = float_of<T>(raw[v][i]);
            if constexpr (K::kAdds)
                other[v][i] = float_of<T>(raw_second[v][i]);
        }
        take_elements<K>(args, z[v], other[v % kSeconds]);
#pragma unroll
        for (float value : z[v])
            share = fmaf(value, value, share);
    }
    float gain[kPrepares ? kVectors : 1][kEach];
    const auto prepare = [&](int i, int n) {
        for (int v = i; kPrepares && v < kVectors; v += n) {
            if (!mine.has(v))
                continue;
#pragma unroll
            for (int j = 0; j < kEach; j++)
                gain[v][j] = compute_now(gain_of<T>(norm, raw_weight[v][j]));
            if constexpr (K::kAdds)
                mine.store(static_cast<T *>(norm.residual_out) + place.sum_at + mine.first, v,
                           z[v]);
        }
    };
    auto exact_sum = [&] {
        double exact = 0;
        for (auto &vector : z)
            for (float value : vector)
                exact = fma((double)value, (double)value, exact);
        return exact_sums.sum_of(exact);
    };
    const row_scale scale = rounded_scale<K>(
        args, scale_by(
                  norm, false, [&] { return sums.sum_of(share, prepare); }, exact_sum));
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float y[kEach];
        if (!mine.has(v))
            continue;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            if constexpr (!kPrepares)
                gain[0][i] = gain_of<T>(norm, raw_weight[v][i]);
            y[i] = z[v][i];
        }
        finish_elements<K>(args, gain[kPrepares ? v : 0], scale, other[v % kSeconds], y);
        write(place, mine, v, y);
    }
}

template <typename K, typename Args, int kVectors = kQuarterVectors>
__global__ void __launch_bounds__(kQuarterThreads)
    norm_quarters_kernel(const __grid_constant__ Args args)
{
    using T = typename K::T;
    normalise_quarters<K, kVectors>(args, [](auto &place, auto &mine, int v, auto &y) {
        mine.store(static_cast<T *>(place.norm.y) + place.at + mine.first, v, y);
    });
}
