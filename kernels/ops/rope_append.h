/*
 * rope_append.h - ports, parameters and plan of rope_append: rotate q and k,
 * and put k and v into the slots of a KV cache.
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
    int32_t return_k; /* bool */
    int32_t reserved;
};

struct rope_append_plan {
    struct rope_plan rope;
    struct append_plan append;
};

#endif
