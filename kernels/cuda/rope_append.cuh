// rope_append.cuh - caches of rope_append and of what normalises before it, as their kernels see
// them, and rope_append's kernels for caches where k and v become something else.
#pragma once

#include "cuda/rotate_launch.cuh"
#include "ops/rope_append.h"

// Where k goes.
struct k_cells {
    char *first; // k's part of cell 0, less the heads of q
    uint32_t cell_bytes;
    int32_t kind; // enum cache_kind
    float scale;
};

static inline char *place_in(const struct roped_call *call, const struct heads_part *part)
{
    const struct roped_tensor *cache = &call->out[part->cache];
    return static_cast<char *>(cache->data) +
           part->cell_first * (int64_t)roped_dtype_bytes(cache->dtype);
}

static inline int64_t cell_bytes_of(const struct roped_call *call, const struct heads_part *part)
{
    const struct roped_tensor *cache = &call->out[part->cache];
    return cache->dims[cache->rank - 1] * (int64_t)roped_dtype_bytes(cache->dtype);
}

static inline struct k_cells k_cells_of(const struct roped_call *call)
{
    const struct heads_plan *plan = heads_plan_of(call);
    const struct heads_part *k = &plan->part[1];
    struct k_cells cells = {};
    int64_t bytes = cell_bytes_of(call, k);
    cells.first =
        less_bytes(place_in(call, k), plan->part[0].heads * plan->append.map.head_stride * bytes);
    cells.cell_bytes = (uint32_t)bytes;
    cells.scale = k->scale;
    if (k->cell_dtype == ROPED_F8_E4M3)
        cells.kind = kCacheE4M3;
    if (k->cell_dtype == ROPED_F8_E5M2)
        cells.kind = kCacheE5M2;
    return cells;
}

// Of a part that goes to a cache as it is, or becomes FP8; empty where nothing comes from input.
static inline struct row_stream rows_from(const struct roped_call *call, int input)
{
    const struct heads_plan *plan = heads_plan_of(call);
    const struct heads_part *part = part_from(plan, input);
    if (!part)
        return {};
    return row_stream_of(&call->in[input], place_in(call, part), plan->rotary.n_tokens, part->heads,
                         part->width, cell_bytes_of(call, part), part->scale);
}

// What forms that append have of a call, whatever they do to v.
template <typename Args>
static inline void set_places(Args *args, const struct roped_call *call)
{
    const struct heads_plan *plan = heads_plan_of(call);
    args->map = append_map_of(call, &plan->append);
    args->cells = cell_class_of(args->map, plan->append.n_places);
    args->returns_k = plan->part[1].to != HEADS_NO_PORT;
    for (int i = 0; i < 2; i++)
        args->to[i] = bytes_to_output(call, i);
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

// Six blocks on a multiprocessor: 56 registers, where nothing spills yet. With 60 of them, five
// blocks find room, and large work takes 2 % longer.
struct append_form : rotary_form {
    static constexpr int kThreads = 192, kLargeThreads = 192, kMinBlocks = 6;
    static constexpr int kTableWaves = ROTATE_TABLE_WAVES;
};

// The kernel of a family whose common calls have kernels of their own.
template <template <cell_class> class Kernels, typename T, int kUnit, int kMany, typename Args>
static kernel_fn<Args> *append_kernel_of(const Args *args, int kind, int rows)
{
    if constexpr (kUnit != kUnitScalar)
        if (is_common_rotation(&args->rotate, kind) && !args->returns_k) {
            if (args->cells == kCellsFound)
                return fast_kernel_of<Kernels<kCellsFound>, T, kUnit, kMany>(kind, rows);
            if (args->cells == kCellsOnLine)
                return fast_kernel_of<Kernels<kCellsOnLine>, T, kUnit, kMany>(kind, rows);
        }
    return rotary_kernel_of<Kernels<kCellsAny>, T, kUnit, kMany>(kind, rows);
}

bool is_split_append(const struct roped_call *call);

enum roped_status launch_split_append(const struct roped_call *call, struct roped_queue *queue,
                                      struct roped_error *err);
