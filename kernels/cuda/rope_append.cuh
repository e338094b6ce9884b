// rope_append.cuh - caches of rope_append and of what normalises before it, as their kernels see
// them, and rope_append's kernels for caches where k and v become something else.
#pragma once

#include "cuda/device/fp8_stream.cuh"
#include "cuda/dispatch.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/rope_append.h"

// Where k goes.
struct k_cells {
    char *first; // k's part of cell 0, less the heads of q
    uint32_t cell_bytes;
    int32_t kind; // enum cache_kind
    float scale;
};

// Bytes from one to the other; 0 where there is no other.
static inline int64_t bytes_between(const void *from, const void *to)
{
    return to ? (int64_t)((uintptr_t)to - (uintptr_t)from) : 0;
}

static inline char *part_in(const struct roped_call *call, const struct append_part *part)
{
    const struct roped_tensor *cache = &call->out[part->output];
    return static_cast<char *>(cache->data) +
           part->first * (int64_t)roped_dtype_bytes(cache->dtype);
}

static inline struct k_cells k_cells_of(const struct roped_call *call,
                                        const struct rope_append_plan *plan)
{
    int64_t bytes =
        plan->k.cell_width * (int64_t)roped_dtype_bytes((enum roped_dtype)plan->cache_dtype);
    int64_t q_bytes = plan->rope.q_heads * plan->append.map.head_step * bytes;
    struct k_cells cells = {};
    cells.first = reinterpret_cast<char *>((uintptr_t)part_in(call, &plan->k) - (uintptr_t)q_bytes);
    cells.cell_bytes = (uint32_t)bytes;
    cells.scale = plan->scale_k;
    if (plan->cache_dtype == ROPED_F8_E4M3)
        cells.kind = kCacheE4M3;
    if (plan->cache_dtype == ROPED_F8_E5M2)
        cells.kind = kCacheE5M2;
    return cells;
}

static inline struct row_stream v_rows_of(const struct roped_call *call,
                                          const struct rope_append_plan *plan)
{
    const struct rope_plan *rope = &plan->rope;
    int64_t bytes =
        plan->v.cell_width * (int64_t)roped_dtype_bytes((enum roped_dtype)plan->cache_dtype);
    return row_stream_of(&call->in[ROPE_APPEND_V], part_in(call, &plan->v), rope->rotary.n_tokens,
                         rope->k_heads, plan->v_dim, bytes, plan->scale_v);
}

// Of elements of T in the cache.
template <typename T>
static inline int cached_bytes(const struct k_cells *cells)
{
    return cells->kind == kCacheAsIs ? (int)sizeof(T) : 1;
}

// Do vectors of T's units fit every cell?
template <typename T>
static inline bool cells_take_vectors(const struct k_cells *cells)
{
    uintptr_t bytes = (uintptr_t)(kVecOf<T> * cached_bytes<T>(cells));
    return is_aligned(cells->first, bytes) && cells->cell_bytes % bytes == 0;
}

// The kernel of a family whose common calls have kernels of their own.
template <template <cell_class> class Family, typename T, int kUnit>
static auto append_kernel_of(int kind, int rows, cell_class cells)
{
    if constexpr (kUnit != kUnitScalar) {
        if (cells == kCellsFound)
            return fast_kernel_of<Family<kCellsFound>, T, kUnit, ROTATE_ROWS>(kind, rows);
        if (cells == kCellsOnLine)
            return fast_kernel_of<Family<kCellsOnLine>, T, kUnit, ROTATE_ROWS>(kind, rows);
    }
    return rotate_kernel_of<Family<kCellsAny>, T, kUnit>(kind, rows);
}

bool is_split_append(const struct roped_call *call, const struct rope_append_plan *plan);

enum roped_status launch_split_append(const struct roped_call *call,
                                      const struct rope_append_plan *plan,
                                      struct roped_queue *queue, struct roped_error *err);
