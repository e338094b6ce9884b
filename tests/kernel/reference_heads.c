/*
 * reference_heads.c - the rotary operators in float64: what becomes of the
 * heads of every input, in outputs and in cells of caches, and every other
 * entry of a cache bit for bit as it was.
 */
#include "kernel/reference_rotary.h"

#include "ops/append.h"

#include <stdlib.h>
#include <string.h>

/*
 * What an operator does with heads, by the names of its tensors. A cell takes
 * what goes to its cache one after the other, in this order.
 */
static const struct flow {
    const char *in, *out;
    bool rotates;
    const char *scale;
    const char *unless; /* where this is given, heads go elsewhere */
} flows[] = {{"q", "q", true, NULL, NULL},
             {"k", "k", true, NULL, NULL},
             {"v", "v_cache", false, "scale_v", NULL},
             {"v", "k_cache", false, "scale_v", "v_cache"},
             {"k", "k_cache", true, "scale_k", NULL},
             {"q_rope", "q_rope", true, "scale_q", NULL},
             {"q_nope", "q_nope", false, "scale_q", NULL},
             {"k_rope", "k_rope", true, "scale_k", NULL},
             {"k_nope", "k_nope", false, "scale_k", NULL},
             {"k_rope", "k_cache", true, "scale_k", NULL},
             {"k_nope", "k_cache", false, "scale_k", NULL},
             {"k_rope", "kpe_cache", true, "scale_k", NULL},
             {"k_nope", "ckv_cache", false, "scale_k", NULL}};
enum { FLOWS = sizeof flows / sizeof *flows };

static const struct roped_tensor *input_of(const struct roped_call *call,
                                           const char *name)
{
    int input = roped_op_input(call->op, name);
    return input >= 0 && roped_tensor_given(&call->in[input]) ? &call->in[input]
                                                              : NULL;
}

static const struct roped_tensor *output_of(const struct roped_call *call,
                                            const char *name)
{
    for (int i = 0; i < call->n_out; i++)
        if (strcmp(call->op->out[i].name, name) == 0)
            return roped_tensor_given(&call->out[i]) ? &call->out[i] : NULL;
    return NULL;
}

/* Where a parameter of this name is; NULL: the operator has none. */
static const void *param_of(const struct roped_call *call, const char *name)
{
    int param = roped_op_param(call->op, name);
    return param < 0 ? NULL : call->params + call->op->param[param].offset;
}

/* One k per token, without a head dim, beside heads of q. */
static bool is_mla(const struct roped_call *call)
{
    return call->in[0].rank == 3 && call->in[1].rank == 2;
}

/* ------------------------------------------------------------------ caches */

/* A cache that flows write to, and what of it they have written. */
struct cache {
    const struct angle_view *view;
    const struct roped_tensor *in, *out;
    const struct roped_tensor *slots; /* or NULL: there are pages */
    const struct roped_tensor *pages; /* page_indices and what follows it */
    int64_t page_size, heads, first;  /* first: of a cell, the next flow's */
    bool is_hnd;
    unsigned char *is_written; /* by element */
};

static struct cache cache_of(const struct roped_call *call, const char *name)
{
    struct cache cache = {.in = input_of(call, name),
                          .out = output_of(call, name),
                          .slots = input_of(call, "slots"),
                          .pages = input_of(call, "page_indices"),
                          .heads = 1};
    const int64_t *dims = cache.in->dims;
    const int32_t *layout = param_of(call, "kv_layout");
    bool is_paged = cache.in->rank == (is_mla(call) ? 3 : 4);
    cache.is_hnd = is_paged && !is_mla(call) && *layout == KV_LAYOUT_HND;
    if (!is_mla(call))
        cache.heads = dims[cache.is_hnd ? 1 : cache.in->rank - 2];
    cache.page_size = dims[!is_paged ? 0 : cache.is_hnd ? 2 : 1];
    cache.is_written = calloc((size_t)roped_tensor_elements(cache.in) + 1, 1);
    if (!cache.is_written)
        abort();
    return cache;
}

/* Place of a token among all entries of all pages, or -1. */
static int64_t entry_of(const struct cache *cache, int64_t token)
{
    if (cache->slots)
        return reference_index(cache->slots, token);
    int64_t j = reference_index(&cache->pages[APPEND_BATCH_INDICES], token);
    if (j < 0)
        return -1;
    int64_t at = reference_index(&cache->pages[APPEND_KV_POSITIONS], token);
    int64_t page =
        reference_index(&cache->pages[APPEND_PAGE_INDICES],
                        reference_index(&cache->pages[APPEND_PAGE_INDPTR], j) +
                            at / cache->page_size);
    return page * cache->page_size + at % cache->page_size;
}

static int64_t place_in_cache(const void *context, int64_t token, int64_t head)
{
    const struct cache *cache = context;
    int64_t entry = entry_of(cache, token), size = cache->page_size;
    if (entry < 0 || is_padding(cache->view, token))
        return -1;
    int64_t row = cache->is_hnd ? (entry / size * cache->heads + head) * size +
                                      entry % size
                                : entry * cache->heads + head;
    return row * cache->in->dims[cache->in->rank - 1] + cache->first;
}

/* What rows have written is so; the next ones begin behind it. */
static void mark_rows(struct cache *cache, const struct head_rows *rows)
{
    for (int64_t token = 0; token < cache->view->n_tokens; token++)
        for (int64_t head = 0; head < rows->heads; head++) {
            int64_t at = place_in_cache(cache, token, head);
            if (at >= 0)
                memset(cache->is_written + at, 1, (size_t)rows->width);
        }
    cache->first += rows->width;
}

/* Everything else is as it was. */
static void finish_cache(struct cache *cache, struct reference_judge *judge,
                         const char *name)
{
    size_t bytes = roped_dtype_bytes(cache->in->dtype);
    const unsigned char *before = cache->in->data, *after = cache->out->data;
    for (int64_t i = 0; i < roped_tensor_elements(cache->in); i++)
        if (!cache->is_written[i])
            judge_bits(judge,
                       memcmp(before + (size_t)i * bytes,
                              after + (size_t)i * bytes, bytes) == 0,
                       i, name);
    free(cache->is_written);
}

/* ------------------------------------------------------------------- flows */

static double scale_of(const struct roped_call *call, const char *name)
{
    const struct roped_tensor *tensor = input_of(call, name);
    const double *param = param_of(call, name);
    return tensor ? reference_value(tensor, 0) : (double)(float)*param;
}

/* The heads of a flow; false where the call has no such flow. */
static bool rows_of(const struct roped_call *call, int64_t n_tokens,
                    const struct flow *flow, struct head_rows *rows)
{
    const struct rope_params *params = (const void *)call->params;
    *rows = (struct head_rows){.in = input_of(call, flow->in),
                               .out = output_of(call, flow->out),
                               .first = params->rotary_offset,
                               .style = params->style,
                               .name = flow->out};
    if (!rows->in || !rows->out ||
        (flow->unless && input_of(call, flow->unless)))
        return false;
    rows->width = rows->in->rank == 3 || is_mla(call)
                      ? rows->in->dims[rows->in->rank - 1]
                      : params->head_dim;
    if (n_tokens > 0 && rows->width > 0)
        rows->heads = roped_tensor_elements(rows->in) / n_tokens / rows->width;
    rows->is_fp8 = rows->out->dtype != rows->in->dtype;
    if (flow->scale)
        rows->scale = scale_of(call, flow->scale);
    return true;
}

static void judge_flow(const struct roped_call *call,
                       struct reference_judge *judge,
                       const struct angle_view *view, const struct flow *flow,
                       const struct head_rows *rows)
{
    int weight = roped_op_input(call->op, "q_weight");
    if (!flow->rotates) {
        judge_copied_rows(judge, view->n_tokens, rows);
    } else if (weight < 0) {
        judge_rotated_rows(judge, view, rows);
    } else {
        const char *eps = param_of(call, "eps");
        const struct norm_view norm = {
            &call->in[weight],
            (const void *)(eps - offsetof(struct rmsnorm_params, eps))};
        judge_normal_rows(judge, view, rows, &norm, rows->in == &call->in[1]);
    }
}

/* All flows to an output, which is a cache where it is an input as well. */
static void judge_output(const struct roped_call *call,
                         struct reference_judge *judge,
                         const struct angle_view *view, const char *name)
{
    int input = roped_op_input(call->op, name);
    bool is_cache = input >= 0 && roped_op_updates(call->op, input) >= 0;
    struct cache cache = {0};
    struct head_rows rows;
    if (is_cache)
        cache = cache_of(call, name);
    cache.view = view;
    for (int i = 0; i < FLOWS; i++) {
        if (strcmp(flows[i].out, name) != 0 ||
            !rows_of(call, view->n_tokens, &flows[i], &rows))
            continue;
        rows.place = is_cache ? place_in_cache : NULL;
        rows.context = &cache;
        judge_flow(call, judge, view, &flows[i], &rows);
        if (is_cache)
            mark_rows(&cache, &rows);
    }
    if (is_cache)
        finish_cache(&cache, judge, name);
}

static void judge_heads(const struct roped_call *call,
                        struct reference_judge *judge)
{
    struct angle_view view = {0};
    view_heads(&view, call);
    for (int i = 0; i < call->n_out; i++)
        if (roped_tensor_given(&call->out[i]))
            judge_output(call, judge, &view, call->op->out[i].name);
}

#define JUDGE_HEADS(op)                                                        \
    void reference_##op(const struct roped_call *call,                         \
                        struct reference_judge *judge)                         \
    {                                                                          \
        judge_heads(call, judge);                                              \
    }
JUDGE_HEADS(rope)
JUDGE_HEADS(rope_quantize)
JUDGE_HEADS(qk_rmsnorm_rope)
JUDGE_HEADS(rope_append)
JUDGE_HEADS(qk_rmsnorm_rope_append)
JUDGE_HEADS(rope_quantize_append)
