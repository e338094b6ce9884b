/*
 * rope_quantize_append.c - the descriptor of rope_quantize_append: rotate,
 * scale, round to FP8 and put k and v into the pages of a KV cache.
 */
#include "ops/rope_quantize_append.h"

#include "ops/rope_parts.h"

_Static_assert(offsetof(struct rope_quantize_append_params, quantize) == 0,
               "rope_parts.h reads rope_quantize's parameters at the start");

enum { FORM_NHD, FORM_HND, FORM_MLA };

static struct rotary_shape shape_of(const struct roped_call *call)
{
    return rope_parts_shape(call, ROPE_QUANTIZE_APPEND_POSITIONS);
}

static bool has(const struct roped_call *call, int port)
{
    return roped_tensor_given(&call->in[port]);
}

/* ------------------------------------------------------------------ rule */

/* Each form has caches of its own, and v only where k has heads. */
static enum roped_status check_given(const struct roped_call *call, int port,
                                     bool is_wanted, struct roped_error *err)
{
    bool is_mla = call->form == FORM_MLA;
    if (has(call, port) == is_wanted)
        return ROPED_OK;
    if (is_wanted)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': k_rope of rank %d needs it",
                          call->op->in[port].name, is_mla ? 2 : 3);
    if (port == ROPE_QUANTIZE_APPEND_CKV_CACHE && is_mla)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor 'k_nope': 'ckv_cache' is given and "
                          "needs it");
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': not with k_rope of rank %d, which goes to "
                      "%s",
                      call->op->in[port].name, is_mla ? 2 : 3,
                      is_mla ? "'ckv_cache' and 'kpe_cache'"
                             : "'k_cache', as v to 'v_cache'");
}

static enum roped_status check_caches(const struct roped_call *call,
                                      struct roped_error *err)
{
    bool is_mla = call->form == FORM_MLA;
    bool has_nope = has(call, ROPE_QUANTIZE_APPEND_K_NOPE);
    enum roped_status status =
        check_given(call, ROPE_QUANTIZE_APPEND_V, !is_mla, err);
    if (!status)
        status = check_given(call, ROPE_QUANTIZE_APPEND_K_CACHE, !is_mla, err);
    if (!status)
        status = check_given(call, ROPE_QUANTIZE_APPEND_V_CACHE, !is_mla, err);
    if (!status)
        status = check_given(call, ROPE_QUANTIZE_APPEND_CKV_CACHE,
                             is_mla && has_nope, err);
    if (!status)
        status = check_given(call, ROPE_QUANTIZE_APPEND_KPE_CACHE, is_mla, err);
    return status;
}

/* Caches are of the type that is written, or its codes for clients without a
 * name for it. */
static enum roped_status check_types(const struct roped_call *call,
                                     struct roped_error *err)
{
    enum roped_dtype q = call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].dtype;
    for (int i = ROPE_QUANTIZE_APPEND_K_CACHE;
         i <= ROPE_QUANTIZE_APPEND_KPE_CACHE; i++)
        if (has(call, i) && call->in[i].dtype != q &&
            call->in[i].dtype != ROPED_U8)
            return roped_fail(err, ROPED_BAD_TYPE,
                              "tensor '%s': %s, expected %s (parameter "
                              "'output_dtype') or U8",
                              call->op->in[i].name,
                              roped_dtype_name(call->in[i].dtype),
                              roped_dtype_name(q));
    return ROPED_OK;
}

/* A cell holds both parts of a head. */
static enum roped_status check_widths(const struct roped_call *call,
                                      struct roped_error *err)
{
    const struct roped_tensor *k = &call->in[ROPE_QUANTIZE_APPEND_K_NOPE];
    const struct roped_tensor *v = &call->in[ROPE_QUANTIZE_APPEND_V];
    int64_t r = call->in[ROPE_QUANTIZE_APPEND_Q_ROPE].dims[2];
    int64_t p = roped_tensor_given(k) ? k->dims[k->rank - 1] : 0;
    if (call->in[ROPE_QUANTIZE_APPEND_PAGE_INDPTR].dims[0] == 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'page_indptr': dim 0 is 0, expected "
                          "requests + 1");
    if (call->form == FORM_MLA || v->dims[2] == r + p)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor 'v': dim 2 is %lld, expected r + p = %lld + %lld",
                      (long long)v->dims[2], (long long)r, (long long)p);
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = shape_of(call);
    enum roped_status status = rope_parts_rule(call, &shape, err);
    if (!status)
        status = check_caches(call, err);
    if (!status)
        status = check_types(call, err);
    if (!status)
        status = scale_rule(call, ROPE_QUANTIZE_APPEND_SCALE_V, err);
    return status ? status : check_widths(call, err);
}

/* ------------------------------------------------------------------ plan */

static size_t rotary_bytes(const struct roped_call *call,
                           const struct rotary_shape *shape)
{
    return (rotary_aux_bytes(call, shape) + 15) / 16 * 16;
}

static size_t aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = shape_of(call);
    return rotary_bytes(call, &shape) + append_aux_bytes(shape.n_tokens);
}

/* Cells of the form's caches, of which each token takes one per head. */
static struct append_map map_of(const struct roped_call *call, int64_t heads)
{
    int64_t page_size = roped_call_dim(call, "pagesize");
    int64_t n = heads ? heads : 1; /* places differ without heads, too */
    struct append_map map = {.kind = APPEND_PAGES,
                             .page_size = page_size,
                             .page_step = page_size * n};
    bool is_nhd = call->form != FORM_HND;
    map.slot_step = is_nhd ? n : 1;
    map.head_step = is_nhd ? 1 : page_size;
    return map;
}

static void place_parts(const struct roped_call *call,
                        struct rope_quantize_append_plan *plan)
{
    int64_t r = plan->parts.rope_dim, p = plan->parts.nope_dim;
    if (call->form == FORM_MLA) {
        plan->rope = (struct append_part){
            .output = ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT, .cell_width = r};
        plan->nope = (struct append_part){
            .output = ROPE_QUANTIZE_APPEND_CKV_CACHE_OUT, .cell_width = p};
        plan->value_dim = 0;
        return;
    }
    plan->rope = (struct append_part){
        .output = ROPE_QUANTIZE_APPEND_K_CACHE_OUT, .cell_width = r + p};
    plan->nope = plan->rope;
    plan->nope.first = r;
    plan->value = plan->rope;
    plan->value.output = ROPE_QUANTIZE_APPEND_V_CACHE_OUT;
    plan->value_dim = r + p;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rope_quantize_append_plan *plan = (void *)call->plan;
    const struct rope_quantize_append_params *params =
        (const void *)call->params;
    struct rotary_shape shape = shape_of(call);
    enum roped_status status = rope_parts_plan(call, &shape, &plan->parts, err);
    if (!status)
        status = scale_plan(call, ROPE_QUANTIZE_APPEND_SCALE_V, params->scale_v,
                            &plan->scale_v, err);
    if (status)
        return status;
    place_parts(call, plan);
    plan->append = (struct append_plan){
        .map = map_of(call, plan->parts.k_heads),
        .first_port = ROPE_QUANTIZE_APPEND_PAGE_INDICES,
        .positions_port = ROPE_QUANTIZE_APPEND_POSITIONS,
        .n_tokens = shape.n_tokens,
        .n_places = roped_call_dim(call, "pages"),
        .cells_offset = (int64_t)rotary_bytes(call, &shape)};
    return append_plan(call, &plan->append, err);
}

static const char rule_doc[] =
    "what rope_quantize says of its parts, positions and angles; caches have "
    "the "
    "type output_dtype, or U8, its codes; k with heads "
    "goes to k_cache and v to v_cache, k without heads to kpe_cache and "
    "ckv_cache; token t of request j = batch_indices[t] goes to entry "
    "kv_positions[t] of the pages page_indices[page_indptr[j] ..], and no "
    "other token; request -1, or position -1, leaves the caches as they are "
    "for "
    "that token";

#define AT(member) offsetof(struct rope_quantize_append_params, member)
#define CACHE_SHAPE                                                            \
    "pages pagesize hk d|pages hk pagesize d|pages pagesize hk d"

/* clang-format off */
const struct roped_op roped_op_rope_quantize_append = {
    .name = "rope_quantize_append",
    .since = "0.1",
    .summary = "rope_quantize, with k and v put into the pages of a KV cache",
    .type = {{"T", ROPED_FLOATS}, {"Q", ROPED_FP8S}, {"K", ROPED_FP8S | ROPED_SET(ROPED_U8)}, {"J", ROPED_INDEXES}, ROPED_ANGLE_TYPES},
    .form = {
        [FORM_NHD] = {"nhd", "kv_layout", KV_LAYOUT_NHD, "GQA and MHA: a page is entries of heads"},
        [FORM_HND] = {"hnd", "kv_layout", KV_LAYOUT_HND, "GQA and MHA: a page is heads of entries"},
        [FORM_MLA] = {"mla", .doc = "MLA: one k per token, without a head dim, in two caches"},
    },
    .in = {
        [ROPE_QUANTIZE_APPEND_Q_ROPE] = {"q_rope", "T", "n hq r", ROPED_STRIDED, .doc = "rotary part of the query heads"},
        [ROPE_QUANTIZE_APPEND_K_ROPE] = {"k_rope", "T", "n hk r|n hk r|n r", ROPED_STRIDED, .doc = "rotary part of the key heads"},
        [ROPE_QUANTIZE_APPEND_Q_NOPE] = {"q_nope", "T", "n hq p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the query heads"},
        [ROPE_QUANTIZE_APPEND_K_NOPE] = {"k_nope", "T", "n hk p|n hk p|n p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the key heads"},
        [ROPE_QUANTIZE_APPEND_SCALE_Q] = SCALE_INPUT("scale_q"),
        [ROPE_QUANTIZE_APPEND_SCALE_K] = SCALE_INPUT("scale_k"),
        [ROPE_QUANTIZE_APPEND_SCALE_V] = SCALE_INPUT("scale_v"),
        [ROPE_QUANTIZE_APPEND_V] = {"v", "T", "n hk d", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "value heads, of width d = r + p; not with MLA"},
        [ROPE_QUANTIZE_APPEND_K_CACHE] = {"k_cache", "K", CACHE_SHAPE, ROPED_OPTIONAL | ROPED_UPDATED, .doc = "keys of earlier tokens; takes k_rope, then k_nope"},
        [ROPE_QUANTIZE_APPEND_V_CACHE] = {"v_cache", "K", CACHE_SHAPE, ROPED_OPTIONAL | ROPED_UPDATED, .doc = "values of earlier tokens; takes v times scale_v"},
        [ROPE_QUANTIZE_APPEND_CKV_CACHE] = {"ckv_cache", "K", "pages pagesize p", ROPED_OPTIONAL | ROPED_UPDATED, .doc = "MLA: takes k_nope"},
        [ROPE_QUANTIZE_APPEND_KPE_CACHE] = {"kpe_cache", "K", "pages pagesize r", ROPED_OPTIONAL | ROPED_UPDATED, .doc = "MLA: takes k_rope"},
        [ROPE_QUANTIZE_APPEND_PAGE_INDICES] = {"page_indices", "J", "indices", ROPED_INDEX, .doc = "pages of all requests, one after another"},
        [ROPE_QUANTIZE_APPEND_PAGE_INDPTR] = {"page_indptr", "J", "requests1", ROPED_INDEX, .doc = "first of each request's page_indices, and the end of the last"},
        [ROPE_QUANTIZE_APPEND_BATCH_INDICES] = {"batch_indices", "J", "n", ROPED_INDEX, .doc = "request of each token; -1: none"},
        [ROPE_QUANTIZE_APPEND_KV_POSITIONS] = {"kv_positions", "J", "n", ROPED_INDEX, .doc = "entry of each token in its request's pages"},
        [ROPE_QUANTIZE_APPEND_POSITIONS] = ROPED_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_QUANTIZE_APPEND_Q_ROPE_OUT] = {"q_rope", "Q", "n hq r", ROPED_STRIDED, .doc = "FP8 of q_rope, rotated, times scale_q; of tokens without a request too"},
        [ROPE_QUANTIZE_APPEND_Q_NOPE_OUT] = {"q_nope", "Q", "n hq p", ROPED_STRIDED, .requires_ = "q_nope", .doc = "FP8 of q_nope times scale_q"},
        [ROPE_QUANTIZE_APPEND_K_CACHE_OUT] = {"k_cache", "K", CACHE_SHAPE, .requires_ = "k_cache", .in_place = "k_cache", .doc = "k_cache with the keys of this call"},
        [ROPE_QUANTIZE_APPEND_V_CACHE_OUT] = {"v_cache", "K", CACHE_SHAPE, .requires_ = "v_cache", .in_place = "v_cache", .doc = "v_cache with the values of this call"},
        [ROPE_QUANTIZE_APPEND_CKV_CACHE_OUT] = {"ckv_cache", "K", "pages pagesize p", .requires_ = "ckv_cache", .in_place = "ckv_cache", .doc = "ckv_cache with the non-rotary keys of this call"},
        [ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT] = {"kpe_cache", "K", "pages pagesize r", .requires_ = "kpe_cache", .in_place = "kpe_cache", .doc = "kpe_cache with the rotary keys of this call"},
    },
    .params_bytes = sizeof(struct rope_quantize_append_params),
    .angles_offset = AT(quantize.angles),
    .param = {
        {"kv_layout", ROPED_PARAM_CHOICE, AT(kv_layout), .choices = "nhd|hnd", .doc = "order of entries and heads in a page; no matter with MLA"},
        SCALE_PARAM("scale_v", AT(scale_v), "v"),
        ROPE_PARTS_PARAMS,
    },
    .tokens = "n",
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct rope_quantize_append_plan),
};
/* clang-format on */
