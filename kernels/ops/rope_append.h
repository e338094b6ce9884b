/*
 * rope_append.h - ports and parameters of rope_append: rotate q and k,
 * and put k and v into slots or pages of a KV cache. Operators that do more in
 * the same pass begin their parameters with these, their ports with
 * those before ROPE_APPEND_POSITIONS (ops/heads_append.h).
 */
#ifndef ROPED_OPS_ROPE_APPEND_H
#define ROPED_OPS_ROPE_APPEND_H

#include "ops/append.h"
#include "ops/rope.h"

enum {
    ROPE_APPEND_Q, /* q and k are the first two ports, as rope's */
    ROPE_APPEND_K,
    ROPE_APPEND_V,
    ROPE_APPEND_K_CACHE,
    ROPE_APPEND_V_CACHE,
    ROPE_APPEND_SLOTS,
    ROPE_APPEND_PAGE_INDICES, /* in the order of ops/append.h */
    ROPE_APPEND_PAGE_INDPTR,
    ROPE_APPEND_BATCH_INDICES,
    ROPE_APPEND_KV_POSITIONS,
    ROPE_APPEND_SCALE_K,
    ROPE_APPEND_SCALE_V,
    ROPE_APPEND_POSITIONS /* from here on in the order of rope's ports */
};
enum {
    ROPE_APPEND_Q_OUT,
    ROPE_APPEND_K_OUT,
    ROPE_APPEND_K_CACHE_OUT,
    ROPE_APPEND_V_CACHE_OUT
};

struct rope_append_params {
    struct rope_params rope;
    double scale_k;
    double scale_v;
    int32_t return_k;    /* bool */
    int32_t kv_layout;   /* enum kv_layout */
    int32_t cache_dtype; /* of U8 caches: 0 e4m3, 1 e5m2 */
    int32_t reserved;
};

#endif
