// rotate.cuh - the rotation that every rotary operator shares: from q and k as they are to rotated
// float values in registers, which the operator's sink writes.
//
// A head is cut into units, each owned by one thread, so that a pair is read before either half is
// written and an output may be its input:
//     neox    16 bytes of the first half and the 16 bytes that pair with them
//     gptj    16 bytes: whole pairs already
//     scalar  one pair, for widths or pointers that 16 bytes do not divide
// and, where the output is other memory, rest units: as many vectors of what does not rotate. The
// loads and stores of both are the same instructions; only the arithmetic between them differs.
//
// blockDim is (units, heads, tokens): no division finds a thread's place. A thread walks kRows
// rows at once, all loads before the first use: heads of one token, whose angles it then needs
// once, or, where there is one head, tokens.
#pragma once

#include "cuda/device/angle.cuh"

#include <type_traits>

enum unit_kind { kUnitNeox, kUnitGptj, kUnitScalar };

// q and k, whose heads are one row of q_heads + k_heads.
struct rotate_args {
    struct angle_args angles;
    const void *from[2];
    int64_t heads[2];
    int32_t head_dim; // elements
    int32_t rotary_offset;
    int32_t rotating_units; // per head
    int32_t rest_vectors;   // per head, of vector elements; 0: they stay where they are
    int32_t token_rows;     // one head: tokens per thread, at most kRows
    int32_t reserved;
};

template <typename T, int kUnit>
struct rotate_unit {
    static constexpr bool kIsScalar = kUnit == kUnitScalar;
    static constexpr int kVec = kIsScalar ? 1 : kVecOf<T>; // elements per access
    static constexpr int kVectors = kUnit == kUnitGptj ? 1 : 2;
    static constexpr int kPairs = kUnit == kUnitGptj ? kVec / 2 : kVec;
    using word = std::conditional_t<kIsScalar, T, uint4>; // what one access loads
};

// ------------------------------------------------------------------------------------ registers

template <typename T, int kUnit>
__device__ __forceinline__ void load_word(const void *from, int64_t at,
                                          typename rotate_unit<T, kUnit>::word &out)
{
    if constexpr (kUnit == kUnitScalar)
        out = static_cast<const T *>(from)[at];
    else
        out = load_once(static_cast<const T *>(from) + at);
}

template <typename T, int kUnit>
__device__ __forceinline__ void widen_word(const typename rotate_unit<T, kUnit>::word &word,
                                           float (&x)[rotate_unit<T, kUnit>::kVec])
{
    if constexpr (kUnit == kUnitScalar)
        x[0] = element<T>::to_float(word);
    else
        unpack<T>(word, x);
}

template <int n>
__device__ __forceinline__ void rotate_halves(float (&a)[n], float (&b)[n],
                                              const angle_values<n> &angle)
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        float x = a[i], y = b[i];
        a[i] = x * angle.cosine[i] - y * angle.sine[i];
        b[i] = y * angle.cosine[i] + x * angle.sine[i];
    }
}

template <int n>
__device__ __forceinline__ void rotate_neighbours(float (&a)[n], const angle_values<n / 2> &angle)
{
#pragma unroll
    for (int i = 0; i < n / 2; i++) {
        float x = a[2 * i], y = a[2 * i + 1];
        a[2 * i] = x * angle.cosine[i] - y * angle.sine[i];
        a[2 * i + 1] = y * angle.cosine[i] + x * angle.sine[i];
    }
}

// ------------------------------------------------------------------------------------ place

// Elements of a head that a thread owns: kVec at each of these.
struct unit_place {
    int at[2];
    int first_pair;
    bool rotates;
    bool has_second; // kVectors 2: the last rest unit may be a single vector
};

template <typename T, int kUnit>
__device__ __forceinline__ unit_place place_of(const rotate_args &args, int unit)
{
    using unit_type = rotate_unit<T, kUnit>;
    constexpr int kVec = unit_type::kVec;
    int n_pairs = (int)args.angles.rotary.n_pairs;
    unit_place place;
    place.rotates = unit < args.rotating_units;
    place.has_second = true;
    place.first_pair = unit * unit_type::kPairs;
    if (place.rotates) {
        bool is_scalar_gptj = kUnit == kUnitScalar && args.angles.rotary.style == ROPE_GPTJ;
        place.at[0] = args.rotary_offset + (is_scalar_gptj ? 2 * unit : unit * kVec);
        place.at[1] = place.at[0] + (is_scalar_gptj ? 1 : n_pairs);
        return place;
    }
    int vector = (unit - args.rotating_units) * unit_type::kVectors;
    place.has_second = vector + 1 < args.rest_vectors;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = (vector + i) * kVec;
        place.at[i] = at < args.rotary_offset ? at : at + 2 * n_pairs;
    }
    return place;
}

// ------------------------------------------------------------------------------------ rows

// One head of one token.
struct rotate_row {
    int64_t first; // element in q or in k
    bool is_k;
    bool exists;
};

__device__ __forceinline__ rotate_row row_of(const rotate_args &args, int64_t token, int64_t head,
                                             bool exists)
{
    bool is_k = head >= args.heads[0];
    int64_t heads = is_k ? args.heads[1] : args.heads[0];
    int64_t index = token * heads + head - (is_k ? args.heads[0] : 0);
    return {index * args.head_dim, is_k, exists};
}

template <typename T, int kUnit>
struct row_words {
    typename rotate_unit<T, kUnit>::word word[rotate_unit<T, kUnit>::kVectors];
};

template <typename T, int kUnit>
__device__ __forceinline__ void load_row(const rotate_args &args, const rotate_row &row,
                                         const unit_place &place, row_words<T, kUnit> &out)
{
    if (!row.exists)
        return;
    const void *from = row.is_k ? args.from[1] : args.from[0];
    load_word<T, kUnit>(from, row.first + place.at[0], out.word[0]);
    if constexpr (rotate_unit<T, kUnit>::kVectors == 2)
        if (place.has_second)
            load_word<T, kUnit>(from, row.first + place.at[1], out.word[1]);
}

// The sink has, for an access of kVec elements at element at of q or k:
//     void rotated(is_k, at, const float (&x)[kVec])
//     void rest(is_k, at, word)
template <typename T, int kUnit, typename Sink>
__device__ __forceinline__ void finish_row(const Sink &sink, const rotate_row &row,
                                           const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const row_words<T, kUnit> &words)
{
    using unit_type = rotate_unit<T, kUnit>;
    if (!row.exists)
        return;
    int64_t at = row.first + place.at[0];
    if (!place.rotates) {
        sink.rest(row.is_k, at, words.word[0]);
        if constexpr (unit_type::kVectors == 2)
            if (place.has_second)
                sink.rest(row.is_k, row.first + place.at[1], words.word[1]);
        return;
    }
    float a[unit_type::kVec];
    widen_word<T, kUnit>(words.word[0], a);
    if constexpr (unit_type::kVectors == 2) {
        float b[unit_type::kVec];
        widen_word<T, kUnit>(words.word[1], b);
        rotate_halves(a, b, angle);
        sink.rotated(row.is_k, row.first + place.at[1], b);
    } else {
        rotate_neighbours(a, angle);
    }
    sink.rotated(row.is_k, at, a);
}

// ------------------------------------------------------------------------------------ walks

// Heads of one token: head 'first', then every 'step'-th.
template <typename T, int kUnit, int kAngles, int kRows, typename Sink>
__device__ __forceinline__ void rotate_heads(const rotate_args &args, const Sink &sink,
                                             const unit_place &place, int64_t token)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    int64_t n_heads = args.heads[0] + args.heads[1];
    int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t first = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    if (token >= args.angles.rotary.n_tokens || first >= n_heads)
        return;
    int64_t position = 0;
    if (kAngles != kAnglesAny && place.rotates)
        position = position_of<true>(args.angles, token, 0);
    angle_values<kPairs> angle;
    bool has_angle = false;
    for (; first < n_heads; first += kRows * step) {
        rotate_row row[kRows];
        row_words<T, kUnit> words[kRows];
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            row[r] = row_of(args, token, first + r * step, first + r * step < n_heads);
            load_row<T, kUnit>(args, row[r], place, words[r]);
        }
        if (!has_angle && place.rotates)
            angles_of<kAngles>(args.angles, token, position, place.first_pair, angle);
        has_angle = true;
#pragma unroll
        for (int r = 0; r < kRows; r++)
            finish_row<T, kUnit>(sink, row[r], place, angle, words[r]);
    }
}

// Tokens of the only head: token 'first', then every 'step'-th, token_rows in all.
template <typename T, int kUnit, int kAngles, int kRows, typename Sink>
__device__ __forceinline__ void rotate_tokens(const rotate_args &args, const Sink &sink,
                                              const unit_place &place, int64_t first, int step)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    int64_t n_tokens = args.angles.rotary.n_tokens;
    rotate_row row[kRows];
    row_words<T, kUnit> words[kRows];
    int64_t position[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        int64_t token = first + r * step;
        row[r] = row_of(args, token, 0, r < args.token_rows && token < n_tokens);
        position[r] = row[r].exists ? position_of<false>(args.angles, token, 0) : 0;
        load_row<T, kUnit>(args, row[r], place, words[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        angle_values<kPairs> angle;
        if (row[r].exists && place.rotates)
            angles_of<kAngles>(args.angles, first + r * step, position[r], place.first_pair, angle);
        finish_row<T, kUnit>(sink, row[r], place, angle, words[r]);
    }
}

// The block's part: column is its index along the tokens.
template <typename T, int kUnit, int kAngles, int kRows, bool kIsOneHead, typename Sink>
__device__ __forceinline__ void rotate_block(const rotate_args &args, const Sink &sink,
                                             int64_t column)
{
    using unit_type = rotate_unit<T, kUnit>;
    int unit = blockIdx.z * blockDim.x + threadIdx.x;
    int rest_units = (args.rest_vectors + unit_type::kVectors - 1) / unit_type::kVectors;
    if (unit >= args.rotating_units + rest_units)
        return;
    unit_place place = place_of<T, kUnit>(args, unit);
    if constexpr (kIsOneHead)
        rotate_tokens<T, kUnit, kAngles, kRows>(
            args, sink, place, column * blockDim.z * args.token_rows + threadIdx.z, blockDim.z);
    else
        rotate_heads<T, kUnit, kAngles, kRows>(args, sink, place,
                                               column * blockDim.z + threadIdx.z);
}
