// angle.cuh - cos and sin of (token, pair) for every position mode and angle source of a plan.
//
// Two sources are fast and have kernels of their own: rows of a float32 table, and angles computed
// from float32 frequencies. Everything rarer (M-RoPE, narrow or per-token cos and sin, float64,
// misaligned memory, tokens without a position) shares one kernel that decides at run time: its
// branches are the same for a whole launch, and a thread's angles serve all heads it walks.
#pragma once

#include "cuda/device/sincos.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "ops/rope.h"

enum angle_kind { kAnglesTable, kAnglesComputed, kAnglesAny };

// What the fast kinds need comes first and once more: a launch reads its parameters through a cold
// cache, line by line.
struct angle_args {
    const void *index;     // rotary.index[0]
    const float *table;    // [rows, 2 * n_pairs] in float32, or NULL
    const void *frequency; // derived without a table: [n_pairs] of rotary.precision
    int32_t positions;     // enum rope_positions
    uint32_t n_pairs;
    uint32_t tokens_per_sequence;
    uint32_t offset;
    uint32_t position_bytes; // of an element of a positions tensor; 0: there is none
    float attention_factor;
    float sin_sign;
    struct rope_rotary rotary;
};

// ------------------------------------------------------------------------------------ position

__device__ __forceinline__ bool is_int32(const rope_rotary &rotary)
{
    return rotary.positions == ROPE_POSITIONS_I32 || rotary.positions == ROPE_POSITIONS_RAGGED_I32;
}

__device__ __forceinline__ int64_t index_at(const rope_rotary &rotary, int which, int64_t i)
{
    const void *index = which ? rotary.index[1] : rotary.index[0];
    if (is_int32(rotary))
        return static_cast<const int32_t *>(index)[i];
    return static_cast<const long long *>(index)[i];
}

// Position inside the token's sequence: the last j with indptr[j] <= token owns it.
__device__ __forceinline__ int64_t ragged_position(const rope_rotary &rotary, uint32_t token)
{
    int64_t low = 0, high = rotary.n_sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (index_at(rotary, 0, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return index_at(rotary, 1, low) + token - index_at(rotary, 0, low);
}

__device__ __forceinline__ int64_t implicit_position(const rope_rotary &rotary, uint32_t token)
{
    uint32_t length = (uint32_t)rotary.tokens_per_sequence;
    return rotary.offset + (token < length ? token : token % length);
}

__device__ __forceinline__ int64_t position_of(const rope_rotary &rotary, uint32_t token)
{
    switch (rotary.positions) {
    case ROPE_POSITIONS_IMPLICIT:
        return implicit_position(rotary, token);
    case ROPE_POSITIONS_I32:
    case ROPE_POSITIONS_I64:
        return index_at(rotary, 0, token);
    case ROPE_POSITIONS_RAGGED_I32:
    case ROPE_POSITIONS_RAGGED_I64:
        return ragged_position(rotary, token);
    default:
        return token; // angles are per token
    }
}

// Out of line: its loop and division would stand between the first instructions of every kernel.
inline __device__ __noinline__ uint32_t rare_position_of(const rope_rotary &rotary, uint32_t token)
{
    return (uint32_t)position_of(rotary, token);
}

// Where the lower 32 bits of a token's position are in a positions tensor.
__device__ __forceinline__ const char *position_place(const angle_args &args, uint32_t token)
{
    return static_cast<const char *>(args.index) + (uint64_t)token * args.position_bytes;
}

// Volatile, so that this load starts before those of the data.
__device__ __forceinline__ uint32_t load_position(const char *from)
{
    uint32_t position;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(position) : "l"(__cvta_generic_to_global(from)));
    return position;
}

// A position where it fits 32 bits, in few instructions for a positions tensor or one sequence: a
// table's row, and so a rotation, waits for it. from is position_place.
__device__ __forceinline__ uint32_t short_position_of(const angle_args &args, uint32_t token,
                                                      const char *from)
{
    uint32_t position;
    if (__builtin_expect(args.position_bytes != 0, 1)) {
        position = load_position(from);
    } else if (args.positions == ROPE_POSITIONS_IMPLICIT && token < args.tokens_per_sequence) {
        position = args.offset + token;
    } else {
        position = rare_position_of(args.rotary, token);
    }
    return position;
}

// Is a token of position -1, which stays as it is? Only calls of rare angles have such tokens.
template <int kKind>
__device__ __forceinline__ bool is_padding(const angle_args &args, uint32_t token)
{
    return kKind == kAnglesAny && args.rotary.has_padding && position_of(args.rotary, token) < 0;
}

// ------------------------------------------------------------------------------------ angles

template <int kPairs>
struct angle_values {
    float cosine[kPairs];
    float sine[kPairs]; // sin_sign inside
};

// Rows of cosines and of sines, row_stride apart; row[i] is that of pair first + i.
template <typename C, int kPairs>
__device__ __forceinline__ void read_angles(const void *cosines, const void *sines,
                                            const int64_t (&row)[kPairs], int64_t row_stride,
                                            int first, angle_values<kPairs> &out)
{
    const C *c = static_cast<const C *>(cosines) + first;
    const C *s = static_cast<const C *>(sines) + first;
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
        out.cosine[i] = element<C>::to_float(c[row[i] * row_stride + i]);
        out.sine[i] = element<C>::to_float(s[row[i] * row_stride + i]);
    }
}

template <typename F, int kPairs>
__device__ __forceinline__ void compute_angles(const angle_args &args,
                                               const int64_t (&position)[kPairs], int first,
                                               angle_values<kPairs> &out)
{
    const F *frequency = static_cast<const F *>(args.frequency) + first;
#pragma unroll
    for (int i = 0; i < kPairs; i++)
        sincos_of_product((F)position[i], frequency[i], out.sine[i], out.cosine[i]);
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
        out.cosine[i] *= args.rotary.attention_factor;
        out.sine[i] *= args.rotary.attention_factor;
    }
}

template <int kPairs>
__device__ __forceinline__ void any_angles(const angle_args &args, uint32_t token, int first,
                                           angle_values<kPairs> &out)
{
    const rope_rotary &rotary = args.rotary;
    int64_t row[kPairs];
    int64_t n_pairs = rotary.n_pairs;
    int64_t position = position_of(rotary, token);
#pragma unroll
    for (int i = 0; i < kPairs; i++)
        row[i] = position;
    if (rotary.n_axes > 1) {
#pragma unroll
        for (int i = 0; i < kPairs; i++)
            row[i] = index_at(rotary, 0, rotary.axis_of[first + i] * rotary.n_tokens + token);
    }
    bool is_cache = rotary.angle_source == ROPE_ANGLES_CACHE;
    if (args.table)
        read_angles<float>(args.table, args.table + n_pairs, row, 2 * n_pairs, first, out);
    else if (rotary.angle_source == ROPE_ANGLES_DERIVED && rotary.precision == ROPED_ANGLE_F64)
        compute_angles<double>(args, row, first, out);
    else if (rotary.angle_source == ROPE_ANGLES_DERIVED)
        compute_angles<float>(args, row, first, out);
    else {
        // a cache row holds cosines, then sines; per token they are two tensors
        int64_t stride = is_cache ? 2 * n_pairs : n_pairs;
        size_t bytes = rotary.angle_dtype == ROPED_F32 ? 4 : 2;
        const void *sines = is_cache ? static_cast<const char *>(rotary.angle[0]) + n_pairs * bytes
                                     : rotary.angle[1];
        if (rotary.angle_dtype == ROPED_F32)
            read_angles<float>(rotary.angle[0], sines, row, stride, first, out);
        else if (rotary.angle_dtype == ROPED_F16)
            read_angles<__half>(rotary.angle[0], sines, row, stride, first, out);
        else
            read_angles<__nv_bfloat16>(rotary.angle[0], sines, row, stride, first, out);
    }
}

// The angles of pairs first .. first + kPairs - 1 of a token. position is that of
// short_position_of; kAnglesAny finds its own.
template <int kKind, int kPairs>
__device__ __forceinline__ void angles_of(const angle_args &args, uint32_t token, uint32_t position,
                                          int first, angle_values<kPairs> &out)
{
    if constexpr (kKind == kAnglesTable) {
        const float *row = args.table + (uint64_t)position * (2 * args.n_pairs) + first;
        load_floats(row, out.cosine);
        load_floats(row + args.n_pairs, out.sine);
    } else if constexpr (kKind == kAnglesComputed) {
        float frequency[kPairs];
        load_floats(static_cast<const float *>(args.frequency) + first, frequency);
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            sincos_of_product((float)position, frequency[i], out.sine[i], out.cosine[i]);
            out.sine[i] *= args.attention_factor;
            out.cosine[i] *= args.attention_factor;
        }
    } else {
        any_angles(args, token, first, out);
    }
#pragma unroll
    for (int i = 0; i < kPairs; i++)
        out.sine[i] *= args.sin_sign;
}

// Which kind a call is. pairs_per_thread is that of the vector kernels.
static inline enum angle_kind angle_kind_of(const struct angle_args *args, int pairs_per_thread)
{
    const struct rope_rotary *rotary = &args->rotary;
    bool is_even = rotary->n_pairs % pairs_per_thread == 0;
    if (rotary->n_axes > 1 || rotary->has_padding || !is_even || rotary->is_wide)
        return kAnglesAny;
    if (args->table)
        return (uintptr_t)args->table % 16 == 0 ? kAnglesTable : kAnglesAny;
    if (rotary->angle_source == ROPE_ANGLES_DERIVED && rotary->precision == ROPED_ANGLE_F32 &&
        (uintptr_t)args->frequency % 16 == 0)
        return kAnglesComputed;
    return kAnglesAny;
}

// Binds a call's angle source.
static inline struct angle_args angle_args_of(const struct roped_call *call,
                                              const struct rope_rotary *planned)
{
    struct angle_args args = {};
    args.rotary = rope_rotary_bind(call, planned);
    args.index = args.rotary.index[0];
    args.frequency = call->aux;
    args.positions = planned->positions;
    args.n_pairs = (uint32_t)planned->n_pairs;
    args.tokens_per_sequence = (uint32_t)planned->tokens_per_sequence;
    args.offset = (uint32_t)planned->offset;
    if (planned->positions == ROPE_POSITIONS_I64 || planned->positions == ROPE_POSITIONS_I32)
        args.position_bytes = planned->positions == ROPE_POSITIONS_I64 ? 8 : 4;
    args.attention_factor = planned->attention_factor;
    args.sin_sign = planned->sin_sign;
    if (planned->angle_source == ROPE_ANGLES_DERIVED)
        args.table = static_cast<const float *>(call->table.data);
    else if (planned->angle_source == ROPE_ANGLES_CACHE && planned->angle_dtype == ROPED_F32)
        args.table = static_cast<const float *>(args.rotary.angle[0]);
    return args;
}
