// append.cuh - append_cell of ops/append.h, for the device.
#pragma once

#include "cuda/device/stream.cuh"
#include "ops/append.h"

// Volatile: not before wait_for_previous, and after the loads of data that stand before it.
__device__ __forceinline__ int64_t load_wide_index(const void *base, int64_t i)
{
    int64_t value;
    asm volatile("ld.global.nc.s64 %0, [%1];"
                 : "=l"(value)
                 : "l"(__cvta_generic_to_global(static_cast<const int64_t *>(base) + i)));
    return value;
}

__device__ __forceinline__ int load_index(const void *base, int64_t i)
{
    int value;
    asm volatile("ld.global.nc.s32 %0, [%1];"
                 : "=r"(value)
                 : "l"(__cvta_generic_to_global(static_cast<const int *>(base) + i)));
    return value;
}

// Out of line: only calls whose index values plan could not read need it.
static __device__ __noinline__ int64_t find_cell(const append_map &map, uint32_t token)
{
    if (map.kind == APPEND_SLOTS_I32 || map.kind == APPEND_SLOTS_I64) {
        int64_t slot = map.kind == APPEND_SLOTS_I64 ? load_wide_index(map.index[0], token)
                                                    : load_index(map.index[0], token);
        return slot < 0 ? -1 : slot * map.slot_step;
    }
    int j = load_index(map.index[APPEND_BATCH_INDICES], token);
    uint32_t at = (uint32_t)load_index(map.index[APPEND_KV_POSITIONS], token);
    if (j < 0)
        return -1;
    int64_t which = load_index(map.index[APPEND_PAGE_INDPTR], j) + (int64_t)(at / map.page_size);
    int64_t page = load_index(map.index[APPEND_PAGE_INDICES], which);
    return page * map.page_step + at % map.page_size * map.slot_step;
}

// First cell of a token, or -1: the caches take nothing of it.
__device__ __forceinline__ int64_t cell_of(const append_map &map, uint32_t token)
{
    if (__builtin_expect(map.kind == APPEND_CELLS, 1))
        return load_wide_index(map.index[0], token);
    return find_cell(map, token);
}
