/*
 * rope_quantize_append.c - the descriptor of rope_quantize_append: rotate,
 * scale, round to FP8 and put k and v into the pages of a KV cache.
 */
#include "ops/rope_quantize_append.h"

#include "ops/heads_append.h"

_Static_assert(offsetof(struct rope_quantize_append_params, quantize) == 0,
               "rope_heads.h reads rope_quantize's parameters at the start");

enum { FORM_NHD, FORM_HND, FORM_MLA };

/* ------------------------------------------------------------------ rule */

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return rotary_rule(call, &shape, err);
}

/* ------------------------------------------------------------------ plan */

/* Cells of the form's caches, of which each token takes one per head. */
static struct append_map map_of(const struct roped_call *call, int64_t heads)
{
    int64_t page_size = roped_call_dim(call, "pagesize");
    int64_t n = heads ? heads : 1; /* places differ without heads, too */
    struct append_map map = {.kind = APPEND_PAGES,
                             .page_size = page_size,
                             .page_stride = page_size * n};
    bool is_nhd = call->form != FORM_HND;
    map.slot_stride = is_nhd ? n : 1;
    map.head_stride = is_nhd ? 1 : page_size;
    return map;
}

/* q goes to outputs, k and v to the caches of their form. */
static void place_parts(const struct roped_call *call, struct heads_plan *plan)
{
    enum { NONE = HEADS_NO_PORT };
    static const struct {
        int16_t to, cache, mla_cache;
    } places[] = {
        [ROPE_QUANTIZE_APPEND_Q_ROPE] = {ROPE_QUANTIZE_APPEND_Q_ROPE_OUT, NONE,
                                         NONE},
        [ROPE_QUANTIZE_APPEND_K_ROPE] = {NONE, ROPE_QUANTIZE_APPEND_K_CACHE_OUT,
                                         ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT},
        [ROPE_QUANTIZE_APPEND_Q_NOPE] = {ROPE_QUANTIZE_APPEND_Q_NOPE_OUT, NONE,
                                         NONE},
        [ROPE_QUANTIZE_APPEND_K_NOPE] = {NONE, ROPE_QUANTIZE_APPEND_K_CACHE_OUT,
                                         ROPE_QUANTIZE_APPEND_CKV_CACHE_OUT},
        [ROPE_QUANTIZE_APPEND_V] = {NONE, ROPE_QUANTIZE_APPEND_V_CACHE_OUT,
                                    NONE}};
    bool is_mla = call->form == FORM_MLA;
    for (int i = 0; i < plan->n_parts; i++) {
        struct heads_part *part = &plan->part[i];
        int from = part->from;
        part->to = places[from].to;
        part->cache = is_mla ? places[from].mla_cache : places[from].cache;
        part->cell_dtype = call->out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].dtype;
        if (from == ROPE_QUANTIZE_APPEND_K_NOPE && !is_mla) /* behind k_rope */
            part->cell_first = plan->part[ROPE_QUANTIZE_K_ROPE].width;
    }
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct rope_quantize_append_params *params =
        (const void *)call->params;
    const struct roped_tensor *v = &call->in[ROPE_QUANTIZE_APPEND_V];
    struct rotary_shape shape = rope_heads_shape(call);
    struct heads_plan *plan;
    float scale_v = 1;
    enum roped_status status = rope_parts_plan(call, &shape, &plan, err);
    if (!status)
        status = scale_plan(call, ROPE_QUANTIZE_APPEND_SCALE_V, params->scale_v,
                            &scale_v, err);
    if (status)
        return status;
    int64_t k_heads = plan->part[ROPE_QUANTIZE_K_ROPE].heads;
    if (roped_tensor_given(v))
        heads_plan_add(plan, ROPE_QUANTIZE_APPEND_V, k_heads, v->dims[2])
            ->scale = scale_v;
    place_parts(call, plan);
    plan->append = (struct append_plan){
        .map = map_of(call, k_heads),
        .first_port = ROPE_QUANTIZE_APPEND_PAGE_INDICES,
        .n_tokens = shape.n_tokens,
        .n_places = roped_call_dim(call, "pages"),
        .cells_offset = heads_append_cells_offset(call, &shape)};
    return append_plan(call, &plan->append, err);
}

static const char rule_doc[] =
    "what rope_quantize says of positions and angles; U8 caches have codes of "
    "output_dtype; k with heads "
    "goes to k_cache and v to v_cache, k without heads to kpe_cache and "
    "ckv_cache; token t of request j = batch_indices[t] goes to entry "
    "kv_positions[t] of the pages page_indices[page_indptr[j] ..], and no "
    "other token; request -1, or position -1, leaves the caches as they are "
    "for "
    "that token";

#define AT(member) offsetof(struct rope_quantize_append_params, member)
#define CACHE_SHAPE                                                            \
    "pages pagesize hk r+p|pages hk pagesize r+p|pages pagesize hk r+p"

/* clang-format off */
/* Each form has caches of its own, and v only where k has heads. */
#define HEADS_INPUTS (ROPED_INPUT(ROPE_QUANTIZE_APPEND_V) | ROPED_INPUT(ROPE_QUANTIZE_APPEND_K_CACHE) | ROPED_INPUT(ROPE_QUANTIZE_APPEND_V_CACHE))
#define MLA_INPUTS (ROPED_INPUT(ROPE_QUANTIZE_APPEND_CKV_CACHE) | ROPED_INPUT(ROPE_QUANTIZE_APPEND_KPE_CACHE))

const struct roped_op roped_op_rope_quantize_append = {
    .name = "rope_quantize_append",
    .since = "0.1",
    .summary = "rope_quantize, with k and v put into the pages of a KV cache",
    .type = {{"T", ROPED_FLOATS}, {"Q", ROPED_FP8S}, {"K", ROPED_FP8S | ROPED_SET(ROPED_U8), .beside = "Q", .also = ROPED_SET(ROPED_U8)}, {"J", ROPED_INDEXES}, ROPED_ANGLE_TYPES},
    .form = {
        [FORM_NHD] = {"nhd", "kv_layout", KV_LAYOUT_NHD, "GQA and MHA: a page is entries of heads"},
        [FORM_HND] = {"hnd", "kv_layout", KV_LAYOUT_HND, "GQA and MHA: a page is heads of entries"},
        [FORM_MLA] = {"mla", .doc = "MLA: one k per token, without a head dim, in two caches"},
    },
    .given = {
        {.when = "form=nhd,hnd", .all = HEADS_INPUTS, .none = MLA_INPUTS},
        {.when = "form=mla", .all = ROPED_INPUT(ROPE_QUANTIZE_APPEND_KPE_CACHE), .none = HEADS_INPUTS},
        {.when = "form=mla", .together = ROPED_INPUT(ROPE_QUANTIZE_APPEND_K_NOPE) | ROPED_INPUT(ROPE_QUANTIZE_APPEND_CKV_CACHE)},
        ROPE_PARTS_GIVEN(ROPE_QUANTIZE_APPEND_POSITIONS),
    },
    .in = {
        [ROPE_QUANTIZE_APPEND_Q_ROPE] = {"q_rope", "T", "n hq r", ROPED_STRIDED, .doc = "rotary part of the query heads"},
        [ROPE_QUANTIZE_APPEND_K_ROPE] = {"k_rope", "T", "n hk r|n hk r|n r", ROPED_STRIDED, .doc = "rotary part of the key heads"},
        [ROPE_QUANTIZE_APPEND_Q_NOPE] = {"q_nope", "T", "n hq p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the query heads"},
        [ROPE_QUANTIZE_APPEND_K_NOPE] = {"k_nope", "T", "n hk p|n hk p|n p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the key heads"},
        [ROPE_QUANTIZE_APPEND_SCALE_Q] = SCALE_INPUT("scale_q"),
        [ROPE_QUANTIZE_APPEND_SCALE_K] = SCALE_INPUT("scale_k"),
        [ROPE_QUANTIZE_APPEND_SCALE_V] = SCALE_INPUT("scale_v"),
        [ROPE_QUANTIZE_APPEND_V] = {"v", "T", "n hk r+p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "value heads, of the width of both parts; not with MLA"},
        [ROPE_QUANTIZE_APPEND_K_CACHE] = {"k_cache", "K", CACHE_SHAPE, ROPED_OPTIONAL | ROPED_UPDATED, .doc = "keys of earlier tokens; takes k_rope, then k_nope"},
        [ROPE_QUANTIZE_APPEND_V_CACHE] = {"v_cache", "K", CACHE_SHAPE, ROPED_OPTIONAL | ROPED_UPDATED, .doc = "values of earlier tokens; takes v times scale_v"},
        [ROPE_QUANTIZE_APPEND_CKV_CACHE] = {"ckv_cache", "K", "pages pagesize p", ROPED_OPTIONAL | ROPED_UPDATED, .doc = "MLA: takes k_nope"},
        [ROPE_QUANTIZE_APPEND_KPE_CACHE] = {"kpe_cache", "K", "pages pagesize r", ROPED_OPTIONAL | ROPED_UPDATED, .doc = "MLA: takes k_rope"},
        [ROPE_QUANTIZE_APPEND_PAGE_INDICES] = {"page_indices", "J", "indices", ROPED_INDEX, .holds = "page < pages up to page_indptr for batch_indices", .doc = "pages of all requests, one after another"},
        [ROPE_QUANTIZE_APPEND_PAGE_INDPTR] = {"page_indptr", "J", "requests+1", ROPED_INDEX, .holds = "starts within indices for batch_indices", .doc = "first of each request's page_indices, and the end of the last"},
        [ROPE_QUANTIZE_APPEND_BATCH_INDICES] = {"batch_indices", "J", "n", ROPED_INDEX, .holds = "request < requests or -1", .doc = "request of each token; -1: none"},
        [ROPE_QUANTIZE_APPEND_KV_POSITIONS] = {"kv_positions", "J", "n", ROPED_INDEX, .holds = "position", .doc = "entry of each token in its request's pages"},
        [ROPE_QUANTIZE_APPEND_POSITIONS] = ROPE_PARTS_ANGLE_INPUTS,
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
    .angles_offset = AT(quantize.rope.angles),
    .param = {
        {"kv_layout", ROPED_PARAM_CHOICE, AT(kv_layout), .choices = "nhd|hnd", .doc = "order of entries and heads in a page; no matter with MLA"},
        SCALE_PARAM("scale_v", AT(scale_v), "v"),
        ROPE_PARTS_PARAMS,
    },
    .tokens = "n",
    .widths = "r",
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = heads_append_aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_plan),
};
/* clang-format on */
