/*
 * append.h - where in a KV cache a token's key and value go: at a slot of its
 * own, or at an entry of a page that its request owns.
 *
 * A cache is rows of one head each, here called cells: head h of token t goes
 * to cell append_cell(t) + h * head_stride, whatever the layout.
 */
#ifndef ROPED_OPS_APPEND_H
#define ROPED_OPS_APPEND_H

#include <roped/op.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum append_kind {
    APPEND_CELLS, /* found by plan: index[0] is int64_t cells */
    APPEND_SLOTS,
    APPEND_PAGES
};

/* Index tensors of a paged cache, in the order of their ports. */
enum {
    APPEND_PAGE_INDICES,
    APPEND_PAGE_INDPTR,
    APPEND_BATCH_INDICES,
    APPEND_KV_POSITIONS
};

struct append_map {
    int32_t kind;        /* enum append_kind */
    int32_t is_wide;     /* bool: index tensors are I64, else I32 */
    int64_t page_size;   /* entries; of slots without pages: all of them */
    int64_t page_stride; /* cells from a page to the next */
    int64_t slot_stride; /* cells from a slot or entry to the next */
    int64_t head_stride; /* cells from a head to the next */
    const void *index[4];
};

/* An operator's places, as its plan has them. */
struct append_plan {
    struct append_map map;
    int32_t first_port; /* 'slots' or 'page_indices' */
    int32_t reserved;
    int64_t n_tokens;
    int64_t n_places;     /* slots or pages of the caches */
    int64_t cells_offset; /* of the cells, in call->aux */
};

enum kv_layout { KV_LAYOUT_NHD, KV_LAYOUT_HND };

/* Plan reads tensors of a body, which start at any byte. */
static inline int64_t append_index(const void *base, int64_t i, bool is_wide)
{
    int32_t narrow;
    int64_t wide;
    if (is_wide) {
        memcpy(&wide, (const char *)base + 8 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)base + 4 * i, sizeof narrow);
    return narrow;
}

/* First cell of a token, or -1: the caches take nothing of it. On a CUDA
 * device: cuda/device/append.cuh. */
static inline int64_t append_cell(const struct append_map *map, int64_t token)
{
    const void *const *index = map->index;
    bool is_wide = map->is_wide;
    if (map->kind == APPEND_CELLS)
        return append_index(index[0], token, true);
    if (map->kind == APPEND_SLOTS) {
        int64_t slot = append_index(index[0], token, is_wide);
        return slot < 0 ? -1
                        : slot / map->page_size * map->page_stride +
                              slot % map->page_size * map->slot_stride;
    }
    int64_t j = append_index(index[APPEND_BATCH_INDICES], token, is_wide);
    int64_t at = append_index(index[APPEND_KV_POSITIONS], token, is_wide);
    if (j < 0)
        return -1;
    int64_t which = append_index(index[APPEND_PAGE_INDPTR], j, is_wide) +
                    at / map->page_size;
    int64_t page = append_index(index[APPEND_PAGE_INDICES], which, is_wide);
    return page * map->page_stride + at % map->page_size * map->slot_stride;
}

/* Bytes of call->aux that append_plan needs, a multiple of 16. */
size_t append_aux_bytes(int64_t n_tokens);

/*
 * Fills map.is_wide, checks slots, or pages, and that no two tokens share a
 * place; writes the cells of the tokens to call->aux. No value is checked and
 * nothing is written where the call's index values are on the device.
 */
ROPED_MUST_CHECK enum roped_status append_plan(const struct roped_call *call,
                                               struct append_plan *plan,
                                               struct roped_error *err);

/* The planned map with the pointers of this call's tensors, as they are now. */
struct append_map append_map_of(const struct roped_call *call,
                                const struct append_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
