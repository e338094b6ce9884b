/*
 * reference_append.c - the operators that append to KV caches, in float64: the
 * place of every token from the index tensors, and every other entry bit for
 * bit as it was.
 */
#include "kernel/reference_rotary.h"

#include "ops/rope_append.h"
#include "ops/rope_quantize_append.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- the rest */

void touched_init(struct touched *touched, const struct roped_tensor *in,
                  const struct roped_tensor *out)
{
    touched->in = in;
    touched->out = out;
    touched->is_written = calloc((size_t)roped_tensor_elements(in) + 1, 1);
    if (!touched->is_written)
        abort();
}

void touched_mark(struct touched *touched, int64_t first, int64_t n)
{
    memset(touched->is_written + first, 1, (size_t)n);
}

void touched_finish(struct touched *touched, struct reference_judge *judge,
                    const char *name)
{
    size_t bytes = roped_dtype_bytes(touched->in->dtype);
    int64_t n = roped_tensor_elements(touched->in);
    const unsigned char *before = touched->in->data,
                        *after = touched->out->data;
    for (int64_t i = 0; i < n; i++)
        if (!touched->is_written[i])
            judge_bits(judge,
                       memcmp(before + (size_t)i * bytes,
                              after + (size_t)i * bytes, bytes) == 0,
                       i, name);
    free(touched->is_written);
}

/* ------------------------------------------------------------ rope_append */

/* Slots of a cache [slots, heads, d]. */
struct slot_place {
    const struct angle_view *view;
    const struct roped_tensor *slots;
    int64_t heads, width;
};

static int64_t place_in_slot(const void *context, int64_t token, int64_t head)
{
    const struct slot_place *place = context;
    int64_t slot = reference_index(place->slots, token);
    if (slot < 0 || is_padding(place->view, token))
        return -1;
    return (slot * place->heads + head) * place->width;
}

/* Marks what rows write. */
static void mark_rows(struct touched *touched, const struct head_rows *rows,
                      int64_t n_tokens)
{
    for (int64_t token = 0; token < n_tokens; token++)
        for (int64_t head = 0; head < rows->heads; head++) {
            int64_t at = rows->place(rows->context, token, head);
            if (at >= 0)
                touched_mark(touched, at, rows->width);
        }
}

static void judge_cache_rest(const struct roped_call *call,
                             struct reference_judge *judge, int in, int out,
                             const struct head_rows *rows, int64_t n_tokens)
{
    struct touched touched;
    touched_init(&touched, &call->in[in], &call->out[out]);
    mark_rows(&touched, rows, n_tokens);
    touched_finish(&touched, judge, call->op->in[in].name);
}

void reference_rope_append(const struct roped_call *call,
                           struct reference_judge *judge)
{
    const struct rope_append_params *params = (const void *)call->params;
    struct angle_view view = {0};
    struct slot_place place = {.view = &view,
                               .slots = &call->in[ROPE_APPEND_SLOTS]};
    view_heads(&view, call, ROPE_APPEND_POSITIONS, &place.width);
    int64_t n = view.n_tokens;
    struct head_rows rows = {.in = &call->in[ROPE_APPEND_Q],
                             .out = &call->out[ROPE_APPEND_Q_OUT],
                             .width = place.width,
                             .first = params->rope.rotary_offset,
                             .style = params->rope.style,
                             .name = "q"};
    rows.heads = n ? roped_tensor_elements(rows.in) / n / place.width : 0;
    judge_rotated_rows(judge, &view, &rows);

    rows.in = &call->in[ROPE_APPEND_K];
    rows.heads = place.heads = call->in[ROPE_APPEND_K_CACHE].dims[1];
    rows.out = &call->out[ROPE_APPEND_K_OUT];
    rows.name = "k";
    if (params->return_k)
        judge_rotated_rows(judge, &view, &rows);

    rows.place = place_in_slot;
    rows.context = &place;
    rows.out = &call->out[ROPE_APPEND_K_CACHE_OUT];
    rows.name = "k_cache";
    judge_rotated_rows(judge, &view, &rows);
    judge_cache_rest(call, judge, ROPE_APPEND_K_CACHE, ROPE_APPEND_K_CACHE_OUT,
                     &rows, n);

    rows.in = &call->in[ROPE_APPEND_V];
    rows.out = &call->out[ROPE_APPEND_V_CACHE_OUT];
    rows.name = "v_cache";
    judge_copied_rows(judge, n, &rows);
    judge_cache_rest(call, judge, ROPE_APPEND_V_CACHE, ROPE_APPEND_V_CACHE_OUT,
                     &rows, n);
}

/* --------------------------------------------------- rope_quantize_append */

/* One part of k, or v: elements [first, first + its width) of a cell. */
struct page_place {
    const struct roped_call *call;
    const struct angle_view *view;
    const struct roped_tensor *cache;
    int64_t heads, first;
    bool is_hnd;
};

static int64_t place_in_page(const void *context, int64_t token, int64_t head)
{
    const struct page_place *place = context;
    const struct roped_tensor *in = place->call->in;
    const struct roped_tensor *cache = place->cache;
    int64_t width = cache->dims[cache->rank - 1];
    int64_t page_size = cache->dims[place->is_hnd ? 2 : 1];
    int64_t j = reference_index(&in[ROPE_QUANTIZE_APPEND_BATCH_INDICES], token);
    if (j < 0 || is_padding(place->view, token))
        return -1;
    int64_t at = reference_index(&in[ROPE_QUANTIZE_APPEND_KV_POSITIONS], token);
    int64_t page = reference_index(
        &in[ROPE_QUANTIZE_APPEND_PAGE_INDICES],
        reference_index(&in[ROPE_QUANTIZE_APPEND_PAGE_INDPTR], j) +
            at / page_size);
    int64_t row =
        place->is_hnd
            ? (page * place->heads + head) * page_size + at % page_size
            : (page * page_size + at % page_size) * place->heads + head;
    return row * width + place->first;
}

struct parts_judge {
    const struct roped_call *call;
    struct reference_judge *judge;
    struct angle_view view;
    struct head_rows rows;
};

/* Judges a part in its output; is_rotated: the rotary one. */
static void judge_part(struct parts_judge *parts, int in, int out,
                       bool is_rotated)
{
    const struct roped_tensor *tensor = &parts->call->in[in];
    struct head_rows *rows = &parts->rows;
    if (!roped_tensor_given(tensor))
        return;
    rows->in = tensor;
    rows->out = &parts->call->out[out];
    rows->width = tensor->dims[tensor->rank - 1];
    rows->heads = tensor->rank == 3 ? tensor->dims[1] : 1;
    rows->name = parts->call->op->out[out].name;
    if (is_rotated)
        judge_rotated_rows(parts->judge, &parts->view, rows);
    else
        judge_copied_rows(parts->judge, parts->view.n_tokens, rows);
}

/* One or two parts (in -1: none) in one cache, and the rest of the cache. */
static void judge_cache(struct parts_judge *parts, int cache, int out,
                        int rotated, int copied)
{
    const struct roped_call *call = parts->call;
    const struct rope_quantize_append_params *params =
        (const void *)call->params;
    struct touched touched;
    if (!roped_tensor_given(&call->in[cache]))
        return;
    struct page_place place = {.call = call,
                               .view = &parts->view,
                               .cache = &call->in[cache],
                               .is_hnd = params->kv_layout == KV_LAYOUT_HND &&
                                         call->in[cache].rank == 4};
    place.heads = call->in[cache].rank == 3 ? 1
                  : place.is_hnd            ? place.cache->dims[1]
                                            : place.cache->dims[2];
    parts->rows.place = place_in_page;
    parts->rows.context = &place;
    touched_init(&touched, place.cache, &call->out[out]);
    if (rotated >= 0) {
        judge_part(parts, rotated, out, true);
        mark_rows(&touched, &parts->rows, parts->view.n_tokens);
        place.first = parts->rows.width;
    }
    if (copied >= 0 && roped_tensor_given(&call->in[copied])) {
        judge_part(parts, copied, out, false);
        mark_rows(&touched, &parts->rows, parts->view.n_tokens);
    }
    touched_finish(&touched, parts->judge, call->op->in[cache].name);
}

void reference_rope_quantize_append(const struct roped_call *call,
                                    struct reference_judge *judge)
{
    const struct rope_quantize_append_params *whole =
        (const void *)call->params;
    const struct rope_quantize_params *params = &whole->quantize;
    const struct roped_tensor *q = &call->in[ROPE_QUANTIZE_APPEND_Q_ROPE];
    int64_t r = q->dims[2];
    struct parts_judge parts = {
        .call = call,
        .judge = judge,
        .view = {.offset = params->offset, .sign = params->inverse ? -1 : 1},
        .rows = {.first = params->rotary_offset,
                 .style = params->style,
                 .is_fp8 = true}};
    view_angles(&parts.view, call, ROPE_QUANTIZE_APPEND_POSITIONS);
    parts.view.n_pairs = roped_angles_pairs(
        parts.view.params, params->rotary_dim ? params->rotary_dim : r, r);
    parts.view.n_tokens = parts.view.tokens_per_sequence = q->dims[0];

    parts.rows.scale = reference_scale(call, "scale_q", params->scale_q);
    judge_part(&parts, ROPE_QUANTIZE_APPEND_Q_ROPE,
               ROPE_QUANTIZE_APPEND_Q_ROPE_OUT, true);
    judge_part(&parts, ROPE_QUANTIZE_APPEND_Q_NOPE,
               ROPE_QUANTIZE_APPEND_Q_NOPE_OUT, false);
    parts.rows.scale = reference_scale(call, "scale_k", params->scale_k);
    judge_cache(&parts, ROPE_QUANTIZE_APPEND_K_CACHE,
                ROPE_QUANTIZE_APPEND_K_CACHE_OUT, ROPE_QUANTIZE_APPEND_K_ROPE,
                ROPE_QUANTIZE_APPEND_K_NOPE);
    judge_cache(&parts, ROPE_QUANTIZE_APPEND_KPE_CACHE,
                ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT, ROPE_QUANTIZE_APPEND_K_ROPE,
                -1);
    judge_cache(&parts, ROPE_QUANTIZE_APPEND_CKV_CACHE,
                ROPE_QUANTIZE_APPEND_CKV_CACHE_OUT, -1,
                ROPE_QUANTIZE_APPEND_K_NOPE);
    parts.rows.scale = reference_scale(call, "scale_v", whole->scale_v);
    judge_cache(&parts, ROPE_QUANTIZE_APPEND_V_CACHE,
                ROPE_QUANTIZE_APPEND_V_CACHE_OUT, -1, ROPE_QUANTIZE_APPEND_V);
}
