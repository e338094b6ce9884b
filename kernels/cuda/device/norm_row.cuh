// norm_row.cuh - what a norm (norm.cuh) has of a row: its vectors from memory to registers, its
// gains, its results from registers to memory.
#pragma once

#include "cuda/device/norm_kind.cuh"
#include "cuda/device/shifted.cuh"
#include "cuda/device/stream.cuh"

#include <type_traits>

// The row of a thread whose block has them beside each other, blockDim.y rows of blockDim.x
// threads.
__device__ __forceinline__ int64_t row_of_block()
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

// ------------------------------------------------------------------------------------ vectors

// A vector of a row, of which n elements are the row's; the others are 0. Without alignment its
// elements are loaded one by one into the same places. kKeeps: lines stay in L2 (vector.cuh).
template <typename T, bool kIsAligned, bool kKeeps>
__device__ __forceinline__ uint4 load_vector(const T *from, int64_t n)
{
    if constexpr (kIsAligned) {
        return kKeeps ? load_16_to_keep(from) : load_16(from);
    } else {
        float x[kVecOf<T>];
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++)
            x[i] = i < n ? element<T>::to_float(from[i]) : 0.0f;
        return pack<T>(x);
    }
}

template <typename T, bool kIsAligned>
__device__ __forceinline__ void store_vector(T *to, int64_t n, const float (&y)[kVecOf<T>])
{
    if constexpr (kIsAligned) {
        *reinterpret_cast<uint4 *>(to) = pack<T>(y);
    } else {
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++)
            if (i < n)
                to[i] = element<T>::from_float(y[i]);
    }
}

// Weights of a vector as floats. W is packed.
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
        load_floats(reinterpret_cast<const float *>(from), w);
    } else {
        float word[kWords];
        load_floats(reinterpret_cast<const float *>(from), word);
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

// No weights are ones.
template <typename T>
__device__ __forceinline__ uint4 no_weight()
{
    float ones[kVecOf<T>];
#pragma unroll
    for (float &one : ones)
        one = 1.0f;
    return pack<T>(ones);
}

// Bytes of a vector's weights where they fit 16; those of float for a narrow x do not.
template <typename T, weight_class kClass>
constexpr int weight_bytes = kClass == kWeightInKind ? 16
                             : sizeof(T) == 4        ? 8
                                                     : 0;

// Starts the loads of weights that fit 16 bytes, before the sum needs x: one latency, not two.
template <typename T, weight_class kClass, bool kKeeps>
__device__ __forceinline__ uint4 start_weight(const char *from)
{
    if constexpr (weight_bytes<T, kClass> == 16)
        return kKeeps ? load_16_to_keep(from) : load_16(from);
    uint2 half = {};
    if constexpr (weight_bytes<T, kClass> == 8)
        half = load_8(from);
    return make_uint4(half.x, half.y, 0, 0);
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

// Weights of a vector that were started, of those at from.
template <typename T, weight_class kClass>
__device__ __forceinline__ void started_weights(const norm_args &args, const void *from,
                                                const uint4 &started, int vector,
                                                float (&w)[kVecOf<T>])
{
    if constexpr (kClass == kWeightInKind)
        unpack<T>(started, w);
    else if constexpr (sizeof(T) == 2)
        load_weights<float, kVecOf<T>, true>(from, vector, args.hidden, w);
    else if (args.weight_kind == kWeightHalf)
        unpack_half_vector<__half>(started, w);
    else
        unpack_half_vector<__nv_bfloat16>(started, w);
}

// What a weight of w multiplies by. Added also where the bias is 0: it makes a weight of -0 a +0.
template <int n>
__device__ __forceinline__ void add_bias(const norm_args &args, float (&w)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        w[i] += args.weight_bias;
}

// Weights of a vector of any kind, from memory; where there are none, absent.
template <typename T, bool kIsAligned>
__device__ __forceinline__ void any_weights(const norm_args &args, const void *from, float absent,
                                            int64_t vector, float (&w)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    int64_t n = args.hidden;
    if (!from) {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            w[i] = absent;
    } else if (args.weight_kind == kWeightSame) {
        load_weights<T, kVec, kIsAligned>(from, vector, n, w);
    } else if constexpr (sizeof(T) == 2) {
        load_weights<float, kVec, kIsAligned>(from, vector, n, w);
    } else if (args.weight_kind == kWeightHalf) {
        load_weights<__half, kVec, kIsAligned>(from, vector, n, w);
    } else {
        load_weights<__nv_bfloat16, kVec, kIsAligned>(from, vector, n, w);
    }
}

// The same where only the last vector may be cut, of which the row has no more; out of line, for
// few vectors are loaded by elements.
template <typename T>
struct vector_gains {
    float of[kVecOf<T>];
};
template <typename T>
__device__ __noinline__ vector_gains<T> cut_weights(const norm_args &args, const void *from,
                                                    float absent, int64_t vector)
{
    vector_gains<T> gains;
    any_weights<T, false>(args, from, absent, vector, gains.of);
    return gains;
}
template <typename T, bool kIsAligned>
__device__ __forceinline__ void gains_at(const norm_args &args, const void *from, float absent,
                                         int64_t vector, float (&w)[kVecOf<T>])
{
    if (kIsAligned || ((uintptr_t)from % 16 == 0 && (vector + 1) * kVecOf<T> <= args.hidden)) {
        any_weights<T, true>(args, from, absent, vector, w);
    } else {
        const vector_gains<T> gains = cut_weights<T>(args, from, absent, vector);
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++)
            w[i] = gains.of[i];
    }
}

// ------------------------------------------------------------------------------------ stores

// Stores words at any address of a unit, of which left units are the row's: 0 or below is none.
// Threads of a row that are neighbours have neighbouring words. All lanes of a warp take part.
template <typename Unit, int kWords>
__device__ __forceinline__ void put_words(void *to, int threads, int thread, int64_t left,
                                          const uint32_t (&word)[kWords])
{
    constexpr int kUnits = 4 * kWords / (int)sizeof(Unit);
    int lane = thread & 31;
    bool has_right = lane < 31 && thread + 1 < threads && left > kUnits;
    store_shifted<Unit>(static_cast<char *>(to), left, lane > 0 && left > 0, has_right, word);
}

// A vector of so many elements to its row's end.
template <typename T, bool kIsPlain>
__device__ __forceinline__ void put_vector(T *to, int threads, int thread, int64_t left,
                                           const float (&y)[kVecOf<T>])
{
    uint4 raw = pack<T>(y);
    if constexpr (kIsPlain) {
        if (left > 0)
            *reinterpret_cast<uint4 *>(to) = raw;
    } else {
        using unit = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
        put_words<unit>(to, threads, thread, left, {raw.x, raw.y, raw.z, raw.w});
    }
}

// ------------------------------------------------------------------------------------ rows

// What follows unpacks anew: the compiler does not know that nothing has changed.
__device__ __forceinline__ void forget_words(uint4 &raw)
{
    for (uint32_t *word : {&raw.x, &raw.y, &raw.z, &raw.w})
        *word = compute_now(*word);
}

// What only a sum of terms has: no other kind's rows have room for it.
template <bool kHasTerms, int kVectors>
struct raw_addend {
};
template <int kVectors>
struct raw_addend<true, kVectors> {
    uint4 addend[kVectors];
};
template <bool kIsAny, int kVectors, int kVec>
struct raw_floats {
};
template <int kVectors, int kVec>
struct raw_floats<true, kVectors, kVec> {
    float residual_floats[kVectors][kVec]; // of either type
};
template <bool kHasTerms, bool kIsAny>
struct addend_source {
};
template <>
struct addend_source<true, false> {
    const char *addend; // or NULL
};
template <>
struct addend_source<true, true> {
    const char *addend; // or NULL
    bool residual_is_float;
};

// Vectors of a row as they came from memory.
template <typename K, int kVectors>
struct raw_row : raw_addend<K::kHasTerms, kVectors>, raw_floats<K::kIsAny, kVectors, K::kVec> {
    uint4 x[kVectors];
    uint4 residual[K::kAdds ? kVectors : 1]; // unused, and so without registers, for x alone
};

// Addresses of an element in x, and in the residual.
template <typename K>
struct row_source : addend_source<K::kHasTerms, K::kIsAny> {
    const char *x;
    const char *residual;

    __device__ __forceinline__ row_source(const norm_args &args, int64_t at)
        : row_source(args, at, at, at)
    {
    }
    __device__ __forceinline__ row_source(const norm_args &args, int64_t at, int64_t residual_at,
                                          int64_t addend_at = 0)
    {
        x = reinterpret_cast<const char *>(static_cast<const typename K::T *>(args.x) + at);
        residual = nullptr;
        if constexpr (K::kIsAny) {
            this->residual_is_float = args.residual_is_float;
            residual = static_cast<const char *>(args.residual) +
                       residual_at * (args.residual_is_float ? 4 : (int)sizeof(typename K::T));
        } else if constexpr (K::kAdds)
            residual = reinterpret_cast<const char *>(
                static_cast<const typename K::T *>(args.residual) + residual_at);
        if constexpr (K::kHasTerms) {
            this->addend = nullptr;
            if (args.addend)
                this->addend = reinterpret_cast<const char *>(
                    static_cast<const typename K::T *>(args.addend) + addend_at);
        }
    }
    __device__ __forceinline__ void find_now()
    {
        x = compute_now(x);
        if constexpr (K::kAdds)
            residual = compute_now(residual);
        if constexpr (K::kHasTerms)
            this->addend = compute_now(this->addend);
    }
};

// Of a row. kStrides: rows may be further apart than they are long.
template <typename K, bool kStrides>
__device__ __forceinline__ row_source<K> source_of_row(const norm_args &args, int64_t row)
{
    if constexpr (kStrides)
        return {args, row * args.x_pitch, K::kAdds ? row * args.residual_pitch : 0,
                K::kHasTerms ? row * args.addend_pitch : 0};
    return {args, row * args.hidden};
}

// A vector that is not there.
template <typename K, int kVectors>
__device__ __forceinline__ void clear(raw_row<K, kVectors> &raw, int v)
{
    raw.x[v] = make_uint4(0, 0, 0, 0);
    if constexpr (K::kAdds)
        raw.residual[v] = make_uint4(0, 0, 0, 0);
    if constexpr (K::kHasTerms)
        raw.addend[v] = make_uint4(0, 0, 0, 0);
}

// The same of a residual of either type, as floats.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void load_residual(const char *residual, bool is_float, int64_t at,
                                              int64_t n, float (&z)[K::kVec])
{
    using T = typename K::T;
    const float *floats = reinterpret_cast<const float *>(residual) + at;
    if (!is_float) {
        unpack<T>(load_vector<T, kIsAligned, false>(reinterpret_cast<const T *>(residual) + at, n),
                  z);
        return;
    }
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        z[i] = i < n ? floats[i] : 0.0f;
}

// A vector at element at of source, of which n elements are its row's.
template <typename K, bool kIsAligned, bool kKeeps = false, int kVectors>
__device__ __forceinline__ void load_into(raw_row<K, kVectors> &raw, int v,
                                          const row_source<K> &source, int64_t at, int64_t n)
{
    using T = typename K::T;
    raw.x[v] = load_vector<T, kIsAligned, kKeeps>(reinterpret_cast<const T *>(source.x) + at, n);
    if constexpr (K::kIsAny)
        load_residual<K, kIsAligned>(source.residual, source.residual_is_float, at, n,
                                     raw.residual_floats[v]);
    else if constexpr (K::kAdds)
        raw.residual[v] = load_vector<T, kIsAligned, kKeeps>(
            reinterpret_cast<const T *>(source.residual) + at, n);
    if constexpr (K::kHasTerms) {
        raw.addend[v] = make_uint4(0, 0, 0, 0);
        if (source.addend)
            raw.addend[v] = load_vector<T, kIsAligned, kKeeps>(
                reinterpret_cast<const T *>(source.addend) + at, n);
    }
}

// What is normalised, in float32.
template <typename K, bool kAgain = false, int kVectors>
__device__ __forceinline__ void unpack_row(const raw_row<K, kVectors> &raw, int v,
                                           float (&z)[K::kVec])
{
    unpack<typename K::T, kAgain>(raw.x[v], z);
    if constexpr (K::kAdds) {
        float residual[K::kVec];
        unpack<typename K::T>(raw.residual[v], residual);
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            z[i] += residual[i];
    }
    if constexpr (K::kRoundsSum)
        unpack<typename K::T>(pack<typename K::T>(z), z);
}

// A tensor of any sum, times its scale.
template <int n>
__device__ __forceinline__ void scale_term(float scale, float (&z)[n])
{
#pragma unroll
    for (float &value : z)
        value = __fmul_rn(value, scale);
}

// As T has them. Of a vector, or of single elements.
template <typename T, int n>
__device__ __forceinline__ void round_to(float (&y)[n])
{
    if constexpr (n == kVecOf<T>) {
        unpack<T>(pack<T>(y), y);
    } else {
#pragma unroll
        for (float &value : y)
            value = element<T>::to_float(element<T>::from_float(value));
    }
}

// A step of a sum of terms.
template <typename T, int n>
__device__ __forceinline__ void round_step(const norm_args &args, float (&z)[n])
{
    if (sizeof(T) == 2 && args.rounds_sum)
        round_to<T>(z);
}

template <typename T, int n>
__device__ __forceinline__ void add_term(const norm_args &args, const uint4 &term, float (&z)[n])
{
    float other[n];
    unpack<T>(term, other);
#pragma unroll
    for (int i = 0; i < n; i++)
        z[i] += other[i];
    round_step<T>(args, z);
}

// Any sum, as it is stored. What a residual of float is part of is not rounded.
template <typename K>
__device__ __forceinline__ void add_any(const norm_args &args, const raw_row<K, 1> &raw,
                                        float (&z)[K::kVec])
{
    using T = typename K::T;
    const bool is_float = args.residual_is_float;
    float addend[K::kVec], residual[K::kVec];
    auto add = [&](const float(&other)[K::kVec], bool is_rounded) {
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            z[i] = __fadd_rn(z[i], other[i]);
        if (is_rounded)
            round_step<T>(args, z);
    };
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        residual[i] = raw.residual_floats[0][i];
    unpack<T>(raw.x[0], z);
    scale_term(args.x_scale, z);
    round_step<T>(args, z);
    scale_term(args.residual_scale, residual);
    if (!is_float)
        round_step<T>(args, residual);
    unpack<T>(raw.addend[0], addend);
    scale_term(args.addend_scale, addend);
    round_step<T>(args, addend);
    if (args.addend && !args.residual_first)
        add(addend, true);
    add(residual, !is_float);
    if (args.addend && args.residual_first)
        add(addend, !is_float);
    scale_term(args.sum_scale, z);
    if (!is_float)
        round_step<T>(args, z);
}

// From a sum as it is stored to what is normalised: one of float is rounded where others are.
template <typename K>
__device__ __forceinline__ void round_stored(const norm_args &args, float (&z)[K::kVec])
{
    if constexpr (K::kIsAny)
        round_step<typename K::T>(args, z);
}

// A sum as it is stored, of any kind. A product that is not fused with the sum: it is rounded.
template <typename K, int kVectors>
__device__ __forceinline__ void unpack_sum(const norm_args &args, const raw_row<K, kVectors> &raw,
                                           int v, float (&z)[K::kVec])
{
    using T = typename K::T;
    if constexpr (K::kIsAny) {
        add_any<K>(args, raw, z);
    } else if constexpr (K::kHasTerms) {
        unpack<T>(raw.x[v], z);
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            z[i] = __fmul_rn(z[i], args.x_scale);
        round_step<T>(args, z);
        if (!args.addend) {
            add_term<T>(args, raw.residual[v], z);
        } else {
            add_term<T>(args, args.residual_first ? raw.residual[v] : raw.addend[v], z);
            add_term<T>(args, args.residual_first ? raw.addend[v] : raw.residual[v], z);
        }
    } else {
        unpack_row<K>(raw, v, z);
    }
}

// What a thread keeps of a row from its sum to its result: floats, where there are registers for
// them, or what came from memory, or a sum as it is stored, in half as many. kAgain: vector.cuh.
template <typename K, typename C, bool kIsFloats = C::kHoldsFloats>
struct row_values {
    static constexpr int kVectors = C::kVectors;
    float z[kVectors][K::kVec];

    __device__ __forceinline__ void take(const norm_args &args, const raw_row<K, kVectors> &raw)
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            unpack_sum<K>(args, raw, v, z[v]);
#pragma unroll
            for (float &value : z[v])
                value = compute_now(value);
        }
    }
    template <bool kAgain>
    __device__ __forceinline__ void get(int v, float (&x)[K::kVec]) const
    {
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            x[i] = z[v][i];
    }
    __device__ __forceinline__ void forget()
    {
    }
};
template <typename K, typename C>
struct row_values<K, C, false> {
    static_assert(!K::kHasTerms, "a sum of terms is held as floats");
    static constexpr int kVectors = C::kVectors;
    using kept = norm_kind<typename K::T, K::kAdds && !K::kRoundsSum ? kFromSum : kFromX, K::kSink>;
    raw_row<kept, kVectors> raw;

    __device__ __forceinline__ void take(const norm_args &, const raw_row<K, kVectors> &from)
    {
        if constexpr (K::kRoundsSum) {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                float z[K::kVec];
                unpack_row<K>(from, v, z);
                raw.x[v] = pack<typename K::T>(z);
            }
        } else if constexpr (std::is_same_v<K, kept>) {
            raw = from;
        } else {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                raw.x[v] = from.x[v]; // of heads
        }
    }
    template <bool kAgain>
    __device__ __forceinline__ void get(int v, float (&x)[K::kVec]) const
    {
        unpack_row<kept, kAgain && !kept::kAdds>(raw, v, x);
    }
    __device__ __forceinline__ void forget()
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            forget_words(raw.x[v]);
            if constexpr (kept::kAdds)
                forget_words(raw.residual[v]);
        }
    }
};

// From z of a vector to its result, in float32. Rounding hf rounds z * scale to T before the gain,
// rounding type after it too.
template <typename K, bool kRounds>
__device__ __forceinline__ void finish_vector(const norm_args &args, const float (&gain)[K::kVec],
                                              const row_scale &row, float (&y)[K::kVec])
{
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] *= row.scale;
    if constexpr (kRounds)
        round_to<typename K::T>(y);
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] *= gain[i];
    if constexpr (kRounds && K::kSink != kToFloats)
        if (args.rounds_result)
            round_to<typename K::T>(y);
}

// The same of a centred norm, whose bias comes last; kRounds: rounding type. Explicitly fused, or
// not: every kernel rounds alike.
template <typename K, bool kRounds>
__device__ __forceinline__ void finish_centred(const float (&gain)[K::kVec],
                                               const float (&bias)[K::kVec], const row_scale &row,
                                               float (&y)[K::kVec])
{
    using T = typename K::T;
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] = fmaf(y[i] - row.mean, row.scale, row.rest);
    if constexpr (kRounds) {
        round_to<T>(y);
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            y[i] *= gain[i];
        round_to<T>(y);
    }
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] = kRounds ? y[i] + bias[i] : fmaf(y[i], gain[i], bias[i]);
}

// Stores z of a vector at element at of all rows (of residual_out), of which n elements are its
// row's, where a row is a sum.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void store_sum(const norm_args &args, int64_t at, int64_t n,
                                          const float (&z)[K::kVec])
{
    if constexpr (K::kIsAny)
        if (args.residual_is_float) {
            float *to = static_cast<float *>(args.residual_out) + at;
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                if (i < n)
                    to[i] = z[i];
            return;
        }
    if constexpr (K::kAdds) {
        using T = typename K::T;
        store_vector<T, kIsAligned>(static_cast<T *>(args.residual_out) + at, n, z);
    }
}

// The same for y.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void store_result(const norm_args &args, int64_t at, int64_t n,
                                             const float (&y)[K::kVec])
{
    using T = typename K::T;
    store_vector<T, kIsAligned>(static_cast<T *>(args.y) + at, n, y);
}
