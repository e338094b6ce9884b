// append.cuh - what the operators that put heads into a cache share: the place of a token (that of
// ops/append.h, for the device), and the walk of rotate.cuh with that place in hand.
#pragma once

#include "cuda/device/rotate.cuh"
#include "ops/append.h"

// ------------------------------------------------------------------------------------ places

// Volatile: not before wait_for_previous, and after the loads of data that stand before it.
__device__ __forceinline__ int64_t load_wide_index(const void *base, int64_t i)
{
    int64_t value;
    asm volatile("ld.global.s64 %0, [%1];"
                 : "=l"(value)
                 : "l"(__cvta_generic_to_global(static_cast<const int64_t *>(base) + i)));
    return value;
}

__device__ __forceinline__ int load_short_index(const void *from)
{
    int value;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)));
    return value;
}

__device__ __forceinline__ int64_t load_index(const append_map &map, int which, int64_t i)
{
    if (map.is_wide)
        return load_wide_index(map.index[which], i);
    return load_short_index(static_cast<const int *>(map.index[which]) + i);
}

// Out of line: only calls whose index values plan could not read need it.
inline __device__ __noinline__ int64_t find_cell(const append_map &map, uint32_t token)
{
    if (map.kind == APPEND_SLOTS) {
        int64_t slot = load_index(map, 0, token);
        return slot < 0 ? -1
                        : slot / map.page_size * map.page_stride +
                              slot % map.page_size * map.slot_stride;
    }
    int64_t j = load_index(map, APPEND_BATCH_INDICES, token);
    int64_t at = load_index(map, APPEND_KV_POSITIONS, token);
    if (j < 0)
        return -1;
    int64_t which = load_index(map, APPEND_PAGE_INDPTR, j) + at / map.page_size;
    int64_t page = load_index(map, APPEND_PAGE_INDICES, which);
    return page * map.page_stride + at % map.page_size * map.slot_stride;
}

// What a kernel knows of the cells: nothing; that plan has found them; or that they are on a line,
// as those of slots on the device nearly always are: a slot times slot_stride, and all below 2^31,
// where the lower half of an index is all of it.
enum cell_class { kCellsAny, kCellsFound, kCellsOnLine };

static inline enum cell_class cell_class_of(const struct append_map &map, int64_t n_slots)
{
    if (map.kind == APPEND_CELLS)
        return kCellsFound;
    bool is_line = map.kind == APPEND_SLOTS && map.page_stride == map.page_size * map.slot_stride;
    return is_line && n_slots * map.slot_stride <= INT32_MAX ? kCellsOnLine : kCellsAny;
}

// First cell of a token, or below 0: the caches take nothing of it.
template <cell_class kCells = kCellsAny>
__device__ __forceinline__ int64_t cell_of(const append_map &map, uint32_t token)
{
    if constexpr (kCells == kCellsOnLine) {
        uint64_t at = (uint64_t)token * (map.is_wide ? 8u : 4u);
        int slot = load_short_index(static_cast<const char *>(map.index[0]) + at);
        return (int64_t)slot * (int)map.slot_stride;
    }
    if (kCells == kCellsFound || __builtin_expect(map.kind == APPEND_CELLS, 1))
        return load_wide_index(map.index[0], token);
    return find_cell(map, token);
}

// ------------------------------------------------------------------------------------ the walk

// rotate_block for heads some of which go to a cache. Rows is the operator's view of a token's
// heads, which need not all rotate:
//     row_of(token, head)                 a row, with members from (its address) and head
//     place_of(row, place, unit)          what a thread owns of it
//     finish(row, token, cell, ...)       rotates and writes it, or keeps it as it is; cell is that
//                                         of the token
// The cell is loaded behind the data: a load that nothing but the stores wait for.
template <typename T, int kUnit, int kAngles, int kRows, cell_class kCells, typename Rows>
__device__ __forceinline__ void append_block(const rotate_args &args, const append_map &map,
                                             const Rows &rows, uint32_t column)
{
    constexpr bool kCommon = kCells != kCellsAny;
    int unit = blockIdx.z * blockDim.x + threadIdx.x;
    int head = args.first_head + blockIdx.y * blockDim.y + threadIdx.y;
    int step = gridDim.y * blockDim.y;
    uint32_t token = column * blockDim.z + threadIdx.z;
    if (token >= args.n_tokens || head >= args.n_heads ||
        unit >= args.rotating_units + args.rest_units)
        return;
    unit_place place = place_of<T, kUnit, kCommon>(args, unit);
    typename Rows::row row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        row[r] = rows.row_of(token, head + r * step);
        row[r].from = compute_now(row[r].from);
    }
    const char *position_from = compute_now(position_place(args.angles, token));
    finish_before_wait(row[0].from, row[kRows - 1].from, position_from, place.at, place.second);
    wait_for_previous();
    uint32_t position = 0;
    if constexpr (kCommon)
        position = load_position(position_from);
    else if constexpr (kAngles != kAnglesAny)
        position = short_position_of(args.angles, token, position_from);
    unit_words<T, kUnit> words[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++)
        if (r == 0 || row[r].head < args.n_heads)
            load_unit<T, kUnit>(row[r].from, rows.place_of(row[r], place, unit), words[r]);
    int64_t cell = cell_of<kCells>(map, token);
    angle_values<rotate_unit<T, kUnit>::kPairs> angle;
    bool is_kept = is_padding<kAngles>(args.angles, token);
    if (place.rotates && !is_kept)
        angles_of<kAngles>(args.angles, token, position, place.first_pair, angle);
#pragma unroll
    for (int r = 0; r < kRows; r++)
        if (r == 0 || row[r].head < args.n_heads)
            rows.finish(row[r], token, cell, rows.place_of(row[r], place, unit), angle, words[r],
                        is_kept);
}

// Rows of heads that all rotate, of q and then k; one that derives from it adds finish.
template <typename Args>
struct qk_rows {
    struct row {
        const char *from;
        int head;
    };
    const Args &args;

    __device__ __forceinline__ row row_of(uint32_t token, int head) const
    {
        bool is_k = head >= args.rotate.q_heads;
        uint32_t token_bytes = is_k ? args.rotate.token_bytes[1] : args.rotate.token_bytes[0];
        const char *from = is_k ? args.rotate.from[1] : args.rotate.from[0];
        return {from + (uint64_t)token * token_bytes + (int64_t)head * args.rotate.head_bytes,
                head};
    }
    __device__ __forceinline__ unit_place place_of(const row &, const unit_place &place, int) const
    {
        return place;
    }
};
