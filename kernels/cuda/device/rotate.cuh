// rotate.cuh - the rotation that every rotary operator shares: from q and k as they are to rotated
// float values in registers, which the operator's sink writes.
//
// A head is cut into units, each owned by one thread, so that a pair is read before either half is
// written and an output may be its input:
//     neox       8 bytes of the first half and the 8 bytes that pair with them
//     neox wide  16 bytes of each
//     gptj       16 bytes: whole pairs already
//     scalar     one pair, for widths or pointers that the others do not divide
// and, where the output is other memory, rest units: 16 bytes (or an element) of what does not
// rotate.
//
// kCommon: a kernel for the calls of most models alone, in which every unit rotates and positions
// are a tensor. What asks for anything else is a fifth of the instructions, and small work waits
// for instructions, as large work does that does more than rotate.
//
// blockDim is (units, heads, tokens): no division finds a thread's place. A thread walks kRows
// heads of one token, all loads before the first use, and needs the token's angles once. Every
// instruction counts here: at decode sizes the time is a chain of two loads (position, then table)
// and what stands before and after them.
#pragma once

#include "cuda/device/angle.cuh"

enum unit_kind { kUnitNeox, kUnitNeoxWide, kUnitGptj, kUnitScalar };
static_assert(ROPE_N_STYLES == 2, "each place here and in qk_head.cuh that asks for kUnitGptj");

// q and k, whose heads are one row of q_heads + k_heads: the address of a head is that of q or of
// k at the token, plus the head's number times head_bytes, for k as for q.
struct rotate_args {
    const char *from[2];     // k: less q_heads heads
    uint32_t token_bytes[2]; // of all heads
    uint32_t n_tokens;
    int32_t head_bytes;
    int32_t q_heads;
    int32_t n_heads;
    int32_t first_head;     // of this launch
    int32_t rotary_offset;  // elements
    int32_t rotating_units; // per head
    int32_t rest_units;     // per head; 0: they stay where they are
    struct angle_args angles;
};

template <typename T, int kUnit>
struct rotate_unit {
    static constexpr bool kIsScalar = kUnit == kUnitScalar;
    static constexpr int kWords = kUnit == kUnitNeoxWide ? 2 : 1; // of 16 bytes
    static constexpr int kPairs = kIsScalar ? 1 : kWords * kVecOf<T> / 2;
};

// What a thread holds of a head between load and store.
template <typename T, int kUnit>
struct unit_words {
    uint4 word[rotate_unit<T, kUnit>::kWords];
};
template <typename T>
struct unit_words<T, kUnitScalar> {
    T a, b;
};

// Elements of a head that a thread owns.
struct unit_place {
    int at;
    int second; // neox: of the other half; of a rest unit, its second 8 bytes
    int first_pair;
    bool rotates;
};

template <typename T, int kUnit, bool kCommon = false>
__device__ __forceinline__ unit_place place_of(const rotate_args &args, int unit)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    constexpr int kRest = kUnit == kUnitScalar ? 1 : kVecOf<T>;
    int n_pairs = (int)args.angles.n_pairs;
    unit_place place;
    place.rotates = kCommon || unit < args.rotating_units;
    place.first_pair = unit * kPairs;
    bool is_gptj =
        kUnit == kUnitGptj || (kUnit == kUnitScalar && args.angles.rotary.style == ROPE_GPTJ);
    place.at = args.rotary_offset + (is_gptj ? 2 : 1) * place.first_pair;
    place.second = is_gptj ? place.at + 1 : place.at + n_pairs;
    if (!place.rotates) {
        int at = (unit - args.rotating_units) * kRest;
        place.at = at < args.rotary_offset ? at : at + 2 * n_pairs;
        place.second = place.at + kRest / 2;
    }
    return place;
}

// ------------------------------------------------------------------------------------ registers

template <typename T, int kUnit>
__device__ __forceinline__ void load_unit(const char *head, const unit_place &place,
                                          unit_words<T, kUnit> &out)
{
    const T *first = reinterpret_cast<const T *>(head) + place.at;
    const T *second = reinterpret_cast<const T *>(head) + place.second;
    if constexpr (kUnit == kUnitScalar) {
        out.a = *first;
        if (place.rotates)
            out.b = *second;
    } else if constexpr (kUnit == kUnitGptj) {
        out.word[0] = load_16(first);
    } else if constexpr (kUnit == kUnitNeoxWide) {
        out.word[0] = load_16(first);
        if (place.rotates)
            out.word[1] = load_16(second);
    } else {
        uint2 a = load_8(first), b = load_8(second);
        out.word[0] = make_uint4(a.x, a.y, b.x, b.y);
    }
}

// Which of two products is fused is said, or each kernel would have the compiler's choice, and a
// call with other strides, which is another kernel's, other bits. Cosines are loaded first.
template <int n>
__device__ __forceinline__ void rotate_pairs(float (&a)[n], float (&b)[n],
                                             const angle_values<n> &angle)
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        float x = a[i], y = b[i];
        a[i] = fmaf(-y, angle.sine[i], __fmul_rn(x, angle.cosine[i]));
        b[i] = fmaf(x, angle.sine[i], __fmul_rn(y, angle.cosine[i]));
    }
}

// First and second elements of the unit's pairs. kAgain: vector.cuh, unpack.
template <typename T, int kUnit, bool kAgain = false>
__device__ __forceinline__ void widen_unit(const unit_words<T, kUnit> &words,
                                           float (&a)[rotate_unit<T, kUnit>::kPairs],
                                           float (&b)[rotate_unit<T, kUnit>::kPairs])
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    if constexpr (kUnit == kUnitScalar) {
        a[0] = element<T>::to_float(words.a);
        b[0] = element<T>::to_float(words.b);
    } else if constexpr (kUnit == kUnitNeoxWide) {
        unpack<T, kAgain>(words.word[0], a);
        unpack<T, kAgain>(words.word[1], b);
    } else {
        float x[2 * kPairs];
        unpack<T, kAgain>(words.word[0], x);
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            a[i] = x[kUnit == kUnitGptj ? 2 * i : i];
            b[i] = x[kUnit == kUnitGptj ? 2 * i + 1 : i + kPairs];
        }
    }
}

// The sink has
//     char *head(from, token, head)      the output of a head, k's after q's; NULL: none
//     rotated(to, head, at, const float (&x)[n])   elements at .. at + n - 1 of it
//     rest<T>(to, head, at, word)        16 or 8 bytes of input, or one element
template <typename T, int kUnit, typename Sink>
__device__ __forceinline__ void
finish_unit(const Sink &sink, const char *from, uint32_t token, int head, const unit_place &place,
            const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
            const unit_words<T, kUnit> &words)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    char *to = sink.head(from, token, head);
    if (Sink::kMaySkip && !to)
        return;
    if (!place.rotates) {
        if constexpr (kUnit == kUnitScalar)
            sink.template rest<T>(to, head, place.at, words.a);
        else
            sink.template rest<T>(to, head, place.at, words.word[0]);
        return;
    }
    float a[kPairs], b[kPairs];
    widen_unit<T, kUnit>(words, a, b);
    rotate_pairs(a, b, angle);
    if constexpr (kUnit == kUnitGptj) {
        float x[2 * kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            x[2 * i] = a[i];
            x[2 * i + 1] = b[i];
        }
        sink.rotated(to, head, place.at, x);
    } else {
        sink.rotated(to, head, place.at, a);
        sink.rotated(to, head, place.second, b);
    }
}

// Elements at .. of a head as they are: what a padded token's units write.
template <typename T, int kUnit, typename Sink>
__device__ __forceinline__ void keep_unit(const Sink &sink, const char *from, uint32_t token,
                                          int head, const unit_place &place,
                                          const unit_words<T, kUnit> &words)
{
    char *to = sink.head(from, token, head);
    if (Sink::kMaySkip && !to)
        return;
    if constexpr (kUnit == kUnitScalar) {
        sink.template rest<T>(to, head, place.at, words.a);
        if (place.rotates)
            sink.template rest<T>(to, head, place.second, words.b);
    } else if (kUnit == kUnitNeox && place.rotates) {
        const uint4 &word = words.word[0];
        sink.template rest<T>(to, head, place.at, make_uint2(word.x, word.y));
        sink.template rest<T>(to, head, place.second, make_uint2(word.z, word.w));
    } else {
        sink.template rest<T>(to, head, place.at, words.word[0]);
        if constexpr (kUnit == kUnitNeoxWide)
            if (place.rotates)
                sink.template rest<T>(to, head, place.second, words.word[1]);
    }
}

// A head of a token that rotates, or is padded.
template <typename T, int kUnit, typename Sink>
__device__ __forceinline__ void
write_unit_of(const Sink &sink, const char *from, uint32_t token, int head, const unit_place &place,
              const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
              const unit_words<T, kUnit> &words, bool is_kept)
{
    if (is_kept)
        keep_unit<T, kUnit>(sink, from, token, head, place, words);
    else
        finish_unit<T, kUnit>(sink, from, token, head, place, angle, words);
}

// ------------------------------------------------------------------------------------ the walk

// The block's part; column is its index along the tokens.
template <typename T, int kUnit, int kAngles, int kRows, typename Sink>
__device__ __forceinline__ void rotate_block(const rotate_args &args, const Sink &sink,
                                             uint32_t column)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    int unit = blockIdx.z * blockDim.x + threadIdx.x;
    int head = args.first_head + blockIdx.y * blockDim.y + threadIdx.y;
    int step = gridDim.y * blockDim.y;
    uint32_t token = column * blockDim.z + threadIdx.z;
    if (token >= args.n_tokens || head >= args.n_heads ||
        unit >= args.rotating_units + args.rest_units)
        return;
    unit_place place = place_of<T, kUnit>(args, unit);
    place.at = compute_now(place.at);
    place.second = compute_now(place.second);
    const char *q = args.from[0] + (uint64_t)token * args.token_bytes[0];
    const char *k = args.from[1] + (uint64_t)token * args.token_bytes[1];
    const char *from[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        int h = head + r * step;
        from[r] = compute_now((h < args.q_heads ? q : k) + (int64_t)h * args.head_bytes);
    }
    const char *position_from = compute_now(position_place(args.angles, token));
    if constexpr (kRows == 1)
        finish_before_wait(from[0], position_from, place.at, place.second);
    wait_for_previous();
    uint32_t position = 0;
    if constexpr (kAngles != kAnglesAny)
        position = short_position_of(args.angles, token, position_from);
    unit_words<T, kUnit> words[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++)
        if (r == 0 || head + r * step < args.n_heads)
            load_unit<T, kUnit>(from[r], place, words[r]);
    angle_values<kPairs> angle;
    bool is_kept = is_padding<kAngles>(args.angles, token);
    if (place.rotates && !is_kept)
        angles_of<kAngles>(args.angles, token, position, place.first_pair, angle);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        int h = head + r * step;
        if (r > 0 && h >= args.n_heads)
            continue;
        write_unit_of<T, kUnit>(sink, from[r], token, h, place, angle, words[r], is_kept);
    }
}
