/*
 * rope_quantize_append.h - ports and parameters of rope_quantize_append:
 * rope_quantize, with k and v put into a paged FP8 cache instead of returned.
 */
#ifndef ROPED_OPS_ROPE_QUANTIZE_APPEND_H
#define ROPED_OPS_ROPE_QUANTIZE_APPEND_H

#include "ops/append.h"
#include "ops/rope_quantize.h"

enum {
    ROPE_QUANTIZE_APPEND_Q_ROPE, /* the parts first, as rope_quantize's */
    ROPE_QUANTIZE_APPEND_K_ROPE,
    ROPE_QUANTIZE_APPEND_Q_NOPE,
    ROPE_QUANTIZE_APPEND_K_NOPE,
    ROPE_QUANTIZE_APPEND_SCALE_Q,
    ROPE_QUANTIZE_APPEND_SCALE_K,
    ROPE_QUANTIZE_APPEND_SCALE_V,
    ROPE_QUANTIZE_APPEND_V,
    ROPE_QUANTIZE_APPEND_K_CACHE,
    ROPE_QUANTIZE_APPEND_V_CACHE,
    ROPE_QUANTIZE_APPEND_CKV_CACHE,
    ROPE_QUANTIZE_APPEND_KPE_CACHE,
    ROPE_QUANTIZE_APPEND_PAGE_INDICES, /* in the order of ops/append.h */
    ROPE_QUANTIZE_APPEND_PAGE_INDPTR,
    ROPE_QUANTIZE_APPEND_BATCH_INDICES,
    ROPE_QUANTIZE_APPEND_KV_POSITIONS,
    ROPE_QUANTIZE_APPEND_POSITIONS /* from here on in the order of rope's */
};
enum {
    ROPE_QUANTIZE_APPEND_Q_ROPE_OUT,
    ROPE_QUANTIZE_APPEND_Q_NOPE_OUT,
    ROPE_QUANTIZE_APPEND_K_CACHE_OUT,
    ROPE_QUANTIZE_APPEND_V_CACHE_OUT,
    ROPE_QUANTIZE_APPEND_CKV_CACHE_OUT,
    ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT
};

struct rope_quantize_append_params {
    struct rope_quantize_params quantize;
    double scale_v;
    int32_t kv_layout; /* enum kv_layout */
    int32_t reserved;
};

#endif
