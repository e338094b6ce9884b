// qk_head.cuh - what the kernels of qk_norm.cuh do with one head of q or k: the values of a unit,
// weights, scaling and rotation, and where results go.
#pragma once

#include "cuda/device/reduce.cuh"
#include "cuda/device/rotate.cuh"
#include "cuda/device/squares.cuh"

#include <type_traits>

struct qk_args {
    int64_t to[2];     // bytes from an input to its output
    uint32_t n_groups; // of threads that take a head each, where blocks are one-dimensional
    int32_t lane_bits; // log2 of the threads of such a group
    int32_t q_runs;    // of heads that a thread walks, q's; k's follow
    float eps;
    float inverse_width;
    const void *weight[2];
    int32_t weight_dtype; // enum roped_dtype; ROPED_NO_DTYPE: weights are 1
    float weight_bias;
    int32_t rounds_product;
    int32_t weights_in_kind; // bool: none, or of the type of q and k
    double exact_inverse_width;
    struct rotate_args rotate;
};

constexpr int kMaxThreads = 256; // of a block

// ------------------------------------------------------------------------------------ units

// What a lane computes with: the first and second elements of a unit's pairs. A unit that does not
// rotate has as many, in the same places; b is unused where it has half as many.
template <typename T, int kUnit>
struct unit_values {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    float a[kPairs], b[kPairs];
};

// A scalar that does not rotate is one element instead of two.
template <int kUnit>
__device__ __forceinline__ bool has_second(const unit_place &place)
{
    return kUnit != kUnitScalar || place.rotates;
}

template <typename T, int kUnit>
__device__ __forceinline__ unit_words<T, kUnit> no_words()
{
    unit_words<T, kUnit> words;
    if constexpr (kUnit == kUnitScalar) {
        words.a = words.b = element<T>::from_float(0.0f);
    } else {
#pragma unroll
        for (uint4 &word : words.word)
            word = make_uint4(0, 0, 0, 0);
    }
    return words;
}

template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ void add_squares(const unit_words<T, kUnit> &words,
                                            square_sums<Acc> &sums)
{
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit>(words, x.a, x.b);
    sums.add(x.a);
    sums.add(x.b);
}

// ------------------------------------------------------------------------------------ weights

// n weights plus weight_bias, from element at of a head.
template <typename W, int n>
__device__ __forceinline__ void read_gains(const void *weight, int at, float bias, float (&gain)[n])
{
    const W *from = static_cast<const W *>(weight) + at;
    if constexpr (n * sizeof(W) % 4 != 0) {
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] = bias + element<W>::to_float(from[i]);
    } else if constexpr (sizeof(W) == 4) {
        load_floats(reinterpret_cast<const float *>(from), gain);
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] += bias;
    } else {
        float word[n / 2];
        load_floats(reinterpret_cast<const float *>(from), word);
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            float2 pair = element<W>::to_float2(__float_as_uint(word[i]));
            gain[2 * i] = bias + pair.x;
            gain[2 * i + 1] = bias + pair.y;
        }
    }
}

// The type is the same for a whole launch.
template <int n>
__device__ __forceinline__ void gains_at(const qk_args &args, bool is_k, int at, float (&gain)[n])
{
    const void *weight = is_k ? args.weight[1] : args.weight[0];
    if (args.weight_dtype == ROPED_NO_DTYPE) {
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] = args.weight_bias + 1.0f;
    } else if (args.weight_dtype == ROPED_F32) {
        read_gains<float>(weight, at, args.weight_bias, gain);
    } else if (args.weight_dtype == ROPED_F16) {
        read_gains<__half>(weight, at, args.weight_bias, gain);
    } else {
        read_gains<__nv_bfloat16>(weight, at, args.weight_bias, gain);
    }
}

template <typename T, int kUnit>
__device__ __forceinline__ void gains_of(const qk_args &args, bool is_k, const unit_place &place,
                                         unit_values<T, kUnit> &gain)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    if constexpr (kUnit == kUnitGptj) {
        float both[2 * kPairs];
        gains_at(args, is_k, place.at, both);
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            gain.a[i] = both[2 * i];
            gain.b[i] = both[2 * i + 1];
        }
    } else {
        gains_at(args, is_k, place.at, gain.a);
        if (has_second<kUnit>(place))
            gains_at(args, is_k, place.second, gain.b);
    }
}

// Weights of the type of q and k are loaded as a head is, and used when everything else has been
// asked for: a load that is waited for holds up those behind it. No weights are ones.
template <typename T, int kUnit>
__device__ __forceinline__ unit_words<T, kUnit> start_gains(const void *weight,
                                                            const unit_place &place)
{
    unit_words<T, kUnit> words;
    if (weight) {
        load_unit<T, kUnit>(static_cast<const char *>(weight), place, words);
    } else {
        float ones[kVecOf<T>];
#pragma unroll
        for (float &one : ones)
            one = 1.0f;
        words.word[0] = pack<T>(ones);
    }
    return words;
}

template <typename T, int kUnit>
__device__ __forceinline__ void
started_gains(const qk_args &args, const unit_words<T, kUnit> &words, unit_values<T, kUnit> &gain)
{
    widen_unit<T, kUnit>(words, gain.a, gain.b);
#pragma unroll
    for (int i = 0; i < rotate_unit<T, kUnit>::kPairs; i++) {
        gain.a[i] += args.weight_bias;
        gain.b[i] += args.weight_bias;
    }
}

// ------------------------------------------------------------------------------------ results

// Rounds to T, two elements in an instruction.
template <typename T, int n>
__device__ __forceinline__ void round_values(float (&x)[n])
{
    if constexpr (n == 1) {
        x[0] = element<T>::to_float(element<T>::from_float(x[0]));
    } else {
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            float2 pair = element<T>::to_float2(element<T>::from_float2(x[i], x[i + 1]));
            x[i] = pair.x;
            x[i + 1] = pair.y;
        }
    }
}

// Weights and rotation of a unit, made once for all heads of a thread. Of 16-bit types in one: what
// the first and the second element of each pair count for in either result, which saves each head a
// product per element. In float32 apart: a weight times a cosine may be subnormal where the result
// is not. A unit that does not rotate has its weights alone.
template <typename T, int kUnit, bool kIsNarrow = sizeof(T) == 2>
struct unit_factors {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    float a_in_a[kPairs], b_in_a[kPairs], a_in_b[kPairs], b_in_b[kPairs];

    __device__ __forceinline__ unit_factors(const unit_place &place,
                                            const unit_values<T, kUnit> &gain,
                                            const angle_values<kPairs> &angle)
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            a_in_a[i] = place.rotates ? gain.a[i] * angle.cosine[i] : gain.a[i];
            b_in_b[i] = place.rotates ? gain.b[i] * angle.cosine[i] : gain.b[i];
            a_in_b[i] = gain.a[i] * angle.sine[i];
            b_in_a[i] = gain.b[i] * -angle.sine[i];
        }
    }
    __device__ __forceinline__ void apply(const unit_place &place, unit_values<T, kUnit> &x) const
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            float a = x.a[i], b = x.b[i];
            x.a[i] = a * a_in_a[i];
            x.b[i] = b * b_in_b[i];
            if (place.rotates) {
                x.a[i] = fmaf(b, b_in_a[i], x.a[i]);
                x.b[i] = fmaf(a, a_in_b[i], x.b[i]);
            }
        }
    }
};

template <typename T, int kUnit>
struct unit_factors<T, kUnit, false> {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    unit_values<T, kUnit> gain;
    angle_values<kPairs> angle;

    __device__ __forceinline__ unit_factors(const unit_place &,
                                            const unit_values<T, kUnit> &unit_gain,
                                            const angle_values<kPairs> &unit_angle)
        : gain(unit_gain), angle(unit_angle)
    {
    }
    __device__ __forceinline__ void apply(const unit_place &place, unit_values<T, kUnit> &x) const
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            x.a[i] *= gain.a[i];
            x.b[i] *= gain.b[i];
        }
        if (place.rotates)
            rotate_pairs(x.a, x.b, angle);
    }
};

template <typename T, bool kRounds, int n>
__device__ __forceinline__ void scale_values(float scale, float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] *= scale;
    if constexpr (kRounds)
        round_values<T>(x);
}

// Scales, weights and rotates a unit as loaded, and writes it to a head of the outputs.
template <typename T, int kUnit, bool kRounds, typename Head>
__device__ __forceinline__ void write_unit(const Head &to, const unit_place &place,
                                           const unit_factors<T, kUnit> &factors, float scale,
                                           const unit_words<T, kUnit> &words)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit, true>(words, x.a, x.b);
    scale_values<T, kRounds>(scale, x.a);
    if (has_second<kUnit>(place))
        scale_values<T, kRounds>(scale, x.b);
    factors.apply(place, x);
    if constexpr (kUnit == kUnitGptj) {
        float both[2 * kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            both[2 * i] = x.a[i];
            both[2 * i + 1] = x.b[i];
        }
        to.store(place.at, both);
    } else {
        to.store(place.at, x.a);
        if (has_second<kUnit>(place))
            to.store(place.second, x.b);
    }
}

// Writes units as they are.
template <typename T>
struct keeping_sink {
    static constexpr bool kMaySkip = false;
    T *to;

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return reinterpret_cast<char *>(to);
    }
    template <typename, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
        *reinterpret_cast<Word *>(to + at) = word;
    }
};

template <typename T, int kUnit>
__device__ __forceinline__ void keep_words(T *to, const unit_place &place,
                                           const unit_words<T, kUnit> &words)
{
    if (to)
        keep_unit<T, kUnit>(keeping_sink<T>{to}, nullptr, 0, 0, place, words);
}

template <bool isOn>
struct rounding_is {
    static constexpr bool kIsOn = isOn;
};

// write(rounding_is<...>) for whether x * scale is rounded to T before the weight.
template <typename T, bool kCommon = false, typename F>
__device__ __forceinline__ void with_rounding(const qk_args &args, const F &write)
{
    if (sizeof(T) == 2 && !kCommon && args.rounds_product)
        write(rounding_is<sizeof(T) == 2>{});
    else
        write(rounding_is<false>{});
}

// ------------------------------------------------------------------------------------ rows

// Address of a head, of q's then k's.
__device__ __forceinline__ const char *head_of(const rotate_args &args, uint32_t token, int head)
{
    bool is_k = head >= args.q_heads;
    const char *from = is_k ? args.from[1] : args.from[0];
    uint32_t token_bytes = is_k ? args.token_bytes[1] : args.token_bytes[0];
    return from + (uint64_t)token * token_bytes + (int64_t)head * args.head_bytes;
}

template <typename T>
__device__ __forceinline__ T *output_of(const qk_args &args, const char *from, bool is_k)
{
    return reinterpret_cast<T *>(const_cast<char *>(from) + (is_k ? args.to[1] : args.to[0]));
}

// Where heads go. The Outputs of a kernel have
//     args                                     qk_args, or more
//     any                                      the Outputs that serve calls of every kind
//     kAppends                                 there are columns of blocks that write v
//     column(args)                             of this block among the others
//     place(args, token, is_k)                 the cell of a token, where k needs it
//     run<T>(args, cell, head, is_k, from, at) heads from one on, whose element at is at from
//     run.with_heads(args, f)                  f(head): head(r) is the r-th of them, with
//                                              store(at, x), and kept, where it goes as it is, or
//                                              NULL
//     run.head(args, r)                        the same head, of Outputs::any
struct plain_outputs {
    using args = qk_args;
    using any = plain_outputs;
    static constexpr bool kAppends = false;
    static __device__ __forceinline__ uint32_t column(const qk_args &)
    {
        return blockIdx.x;
    }

    template <typename T>
    struct plain_head {
        T *kept;
        template <int n>
        __device__ __forceinline__ void store(int at, const float (&x)[n]) const
        {
            store_floats(kept + at, x);
        }
    };
    template <typename T>
    struct run {
        char *to;
        __device__ __forceinline__ run(const qk_args &args, int64_t, int, bool is_k,
                                       const char *from, int)
            : to(output_of<char>(args, from, is_k))
        {
        }
        __device__ __forceinline__ plain_head<T> head(const qk_args &args, int r) const
        {
            return {reinterpret_cast<T *>(to + r * (int64_t)args.rotate.head_bytes)};
        }
        template <typename F>
        __device__ __forceinline__ void with_heads(const qk_args &args, const F &write) const
        {
            write([&](int r) { return head(args, r); });
        }
    };
    static __device__ __forceinline__ int64_t place(const qk_args &, uint32_t, bool)
    {
        return 0;
    }
};

__device__ __forceinline__ const void *weight_of(const qk_args &args, bool is_k)
{
    return is_k ? args.weight[1] : args.weight[0];
}

__device__ __forceinline__ float exact_scale(const qk_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_width, (double)args.eps));
}

// A sum over lanes threads of a warp, a power of two, the same bits in every one.
template <typename Acc>
__device__ __forceinline__ Acc sum_in_lanes(int lanes, Acc x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        if (distance < lanes)
            x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}
