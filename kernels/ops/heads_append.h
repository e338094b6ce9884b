/*
 * heads_append.h - q and k as rope takes them and v, where k and v go to a
 * cache: the rows of the descriptor, the rule and the plan that rope_append
 * shares with the operator that normalises first.
 *
 * A cache has slots, [slots, hk, d], or pages, [pages, page_size, hk, d] or
 * [pages, hk, page_size, d]. In the MLA form k_cache is the only one: k is what
 * rotates of a key, v the latent part before it, which is the value too.
 */
#ifndef ROPED_OPS_HEADS_APPEND_H
#define ROPED_OPS_HEADS_APPEND_H

#include "ops/rope_append.h"
#include "ops/rope_heads.h"
#include "ops/scale.h"

/* clang-format off */
#define HEADS_APPEND_TYPES \
    {"K", ROPED_FLOATS | ROPED_FP8S | ROPED_SET(ROPED_U8), .beside = "T", .also = ROPED_FP8S | ROPED_SET(ROPED_U8)}, {"S", ROPED_INDEXES}, {"J", ROPED_INDEXES}

/* In the order of enum APPEND_PAGE_INDICES .. APPEND_KV_POSITIONS. */
#define APPEND_PAGE_INPUTS(tokens) \
    {"page_indices", "J", "indices", ROPED_OPTIONAL | ROPED_INDEX, .holds = "page < pages up to page_indptr for batch_indices", .doc = "pages of all requests, one after another"}, \
    {"page_indptr", "J", "requests+1", ROPED_OPTIONAL | ROPED_INDEX, .holds = "starts within indices for batch_indices", .doc = "first of each request's page_indices, and the end of the last"}, \
    {"batch_indices", "J", tokens, ROPED_OPTIONAL | ROPED_INDEX, .holds = "request < requests or -1", .doc = "request of each token; -1: none"}, \
    {"kv_positions", "J", tokens, ROPED_OPTIONAL | ROPED_INDEX, .holds = "position", .doc = "entry of each token in its request's pages"}

/* Shapes of caches: slots, or pages whose layout is a parameter. */
#define HEADS_APPEND_CACHE \
    "[form=heads,packed slots] slots hk d" \
    "|[form=heads,packed kv_layout=hnd] pages hk pagesize d" \
    "|[form=heads,packed] pages pagesize hk d" \
    "|[form=bsd slots] slots 1 d" \
    "|[form=bsd kv_layout=hnd] pages 1 pagesize d" \
    "|[form=bsd] pages pagesize 1 d"
#define HEADS_APPEND_MLA_CACHE \
    "|[form=mla slots] slots p+d|[form=mla] pages pagesize p+d"

/* Inputs from k_cache to scale_v; tokens is what numbers them in each form. */
#define HEADS_APPEND_INPUTS(cache, tokens) \
    [ROPE_APPEND_K_CACHE] = {"k_cache", "K", cache, ROPED_UPDATED, .doc = "keys of earlier tokens, of q's type or FP8, or its codes as U8: [slots, hk, d], [pages, page_size, hk, d] or (kv_layout hnd) [pages, hk, page_size, d]; takes k, rotated"}, \
    [ROPE_APPEND_V_CACHE] = {"v_cache", "K", cache, ROPED_OPTIONAL | ROPED_UPDATED, .doc = "values of earlier tokens, like k_cache; takes v"}, \
    [ROPE_APPEND_SLOTS] = {"slots", "S", tokens, ROPED_OPTIONAL | ROPED_INDEX, .holds = "slot < slots|pages*pagesize or -1", .doc = "slot of each token; page * page_size + entry where the caches have pages; -1: none"}, \
    [ROPE_APPEND_PAGE_INDICES] = APPEND_PAGE_INPUTS(tokens), \
    [ROPE_APPEND_SCALE_K] = SCALE_INPUT("scale_k"), \
    [ROPE_APPEND_SCALE_V] = SCALE_INPUT("scale_v")

/* Slots, or everything of pages. */
#define HEADS_APPEND_PAGES \
    (ROPED_INPUT(ROPE_APPEND_PAGE_INDICES) | ROPED_INPUT(ROPE_APPEND_PAGE_INDPTR) | ROPED_INPUT(ROPE_APPEND_BATCH_INDICES) | ROPED_INPUT(ROPE_APPEND_KV_POSITIONS))
#define HEADS_APPEND_GIVEN \
    {.with = ROPED_INPUT(ROPE_APPEND_SLOTS), .none = HEADS_APPEND_PAGES}, \
    {.without = ROPED_INPUT(ROPE_APPEND_SLOTS), .all = HEADS_APPEND_PAGES}

#define HEADS_APPEND_OUTPUTS(cache) \
    [ROPE_APPEND_K_CACHE_OUT] = {"k_cache", "K", cache, .in_place = "k_cache", .doc = "k_cache with the keys of this call"}, \
    [ROPE_APPEND_V_CACHE_OUT] = {"v_cache", "K", cache, .requires_ = "v_cache", .in_place = "v_cache", .doc = "v_cache with the values of this call"}

#define HEADS_APPEND_AT(member) offsetof(struct rope_append_params, member)
#define HEADS_APPEND_PARAMS \
    {"return_k", ROPED_PARAM_BOOL, HEADS_APPEND_AT(return_k), .doc = "also return k as it is before it becomes FP8"}, \
    {"kv_layout", ROPED_PARAM_CHOICE, HEADS_APPEND_AT(kv_layout), .choices = "nhd|hnd", .doc = "order of entries and heads in a page"}, \
    {"cache_dtype", ROPED_PARAM_CHOICE, HEADS_APPEND_AT(cache_dtype), .choices = "e4m3|e5m2", .doc = "FP8 format of caches that are U8"}, \
    SCALE_PARAM("scale_k", HEADS_APPEND_AT(scale_k), "k"), \
    SCALE_PARAM("scale_v", HEADS_APPEND_AT(scale_v), "v"), \
    ROPE_HEADS_PARAMS
/* clang-format on */

/* The rule's sentence, behind what rope says. */
#define HEADS_APPEND_RULE_DOC                                                  \
    "a token's slot or entry is no other token's; slot or request -1, or "     \
    "position -1, leaves the caches as they are for that token; scales "       \
    "belong "                                                                  \
    "to FP8 caches"

/* What rope's rule says, and all about places and caches that needs no values.
 */
ROPED_MUST_CHECK enum roped_status
heads_append_rule(const struct roped_call *call,
                  const struct rotary_shape *shape, struct roped_error *err);

/* aux_bytes of operators with a cache, whatever their ports. */
size_t heads_append_aux_bytes(const struct roped_call *call);

/* Where the cells of the tokens begin in call->aux. */
int64_t heads_append_cells_offset(const struct roped_call *call,
                                  const struct rotary_shape *shape);

/*
 * Completes a plan that has q and k: adds v, sends k and v to their caches,
 * checks the values, fills call->aux and call->table.
 */
ROPED_MUST_CHECK enum roped_status
heads_append_plan(struct roped_call *call, const struct rotary_shape *shape,
                  struct heads_plan *plan, struct roped_error *err);

#endif
