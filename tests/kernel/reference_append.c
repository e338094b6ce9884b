/*
 * reference_append.c - the operators that append to KV caches, in float64: the
 * place of every token from the index tensors, and every other entry bit for
 * bit as it was.
 */
#include "kernel/reference_rotary.h"

#include "ops/qk_rmsnorm_rope_append.h"
#include "ops/rope_quantize_append.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- the rest */

/*
 * What an operator that appends to caches leaves where it does not write:
 * every element of out that has not been marked must be that of in.
 */
struct touched {
    const struct roped_tensor *in, *out;
    unsigned char *is_written; /* by element */
};

static void touched_init(struct touched *touched, const struct roped_tensor *in,
                         const struct roped_tensor *out)
{
    touched->in = in;
    touched->out = out;
    touched->is_written = calloc((size_t)roped_tensor_elements(in) + 1, 1);
    if (!touched->is_written)
        abort();
}

static void touched_mark(struct touched *touched, int64_t first, int64_t n)
{
    memset(touched->is_written + first, 1, (size_t)n);
}

/* Judges the rest and frees. */
static void touched_finish(struct touched *touched,
                           struct reference_judge *judge, const char *name)
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

/* ------------------------------------------------------------------ places */

/* Of one part of k, or v: elements [first, first + its width) of a cell. */
struct cell_place {
    const struct angle_view *view;
    const struct roped_tensor *cache;
    const struct roped_tensor *slots; /* or NULL: there are pages */
    const struct roped_tensor *pages; /* page_indices and what follows it */
    int64_t page_size, heads, first;
    bool is_hnd;
};

/* Place of a token among all entries of all pages, or -1. */
static int64_t entry_of(const struct cell_place *place, int64_t token)
{
    if (place->slots)
        return reference_index(place->slots, token);
    int64_t j = reference_index(&place->pages[APPEND_BATCH_INDICES], token);
    if (j < 0)
        return -1;
    int64_t at = reference_index(&place->pages[APPEND_KV_POSITIONS], token);
    int64_t page =
        reference_index(&place->pages[APPEND_PAGE_INDICES],
                        reference_index(&place->pages[APPEND_PAGE_INDPTR], j) +
                            at / place->page_size);
    return page * place->page_size + at % place->page_size;
}

static int64_t place_in_cache(const void *context, int64_t token, int64_t head)
{
    const struct cell_place *place = context;
    int64_t entry = entry_of(place, token), size = place->page_size;
    if (entry < 0 || is_padding(place->view, token))
        return -1;
    int64_t row = place->is_hnd ? (entry / size * place->heads + head) * size +
                                      entry % size
                                : entry * place->heads + head;
    return row * place->cache->dims[place->cache->rank - 1] + place->first;
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

/* ------------------------------------------------------------ rope_append */

/* What an operator that appends heads has, and what is judged next. */
struct heads_judge {
    const struct roped_call *call;
    struct reference_judge *judge;
    struct angle_view view;
    struct head_rows rows;
    const struct norm_view *norm; /* NULL: heads are not normalised */
};

static void judge_heads(const struct heads_judge *heads, int which)
{
    if (heads->norm)
        judge_normal_rows(heads->judge, &heads->view, &heads->rows, heads->norm,
                          which);
    else
        judge_rotated_rows(heads->judge, &heads->view, &heads->rows);
}

static struct cell_place place_of(const struct heads_judge *heads)
{
    const struct roped_call *call = heads->call;
    const struct rope_append_params *params = (const void *)call->params;
    const struct roped_tensor *cache = &call->in[ROPE_APPEND_K_CACHE];
    bool is_mla =
        call->in[ROPE_APPEND_K].rank == 2 && call->in[ROPE_APPEND_Q].rank == 3;
    bool has_slots = roped_tensor_given(&call->in[ROPE_APPEND_SLOTS]);
    struct cell_place place = {.view = &heads->view,
                               .cache = cache,
                               .slots = has_slots ? &call->in[ROPE_APPEND_SLOTS]
                                                  : NULL,
                               .pages = &call->in[ROPE_APPEND_PAGE_INDICES],
                               .heads = 1};
    place.is_hnd =
        !is_mla && cache->rank == 4 && params->kv_layout == KV_LAYOUT_HND;
    if (!is_mla)
        place.heads = cache->dims[place.is_hnd ? 1 : cache->rank - 2];
    place.page_size = cache->dims[place.is_hnd                      ? 2
                                  : cache->rank == (is_mla ? 3 : 4) ? 1
                                                                    : 0];
    return place;
}

/* k and v in their caches, or in one. */
static void judge_heads_caches(struct heads_judge *heads)
{
    const struct roped_call *call = heads->call;
    const struct rope_append_params *params = (const void *)call->params;
    struct head_rows *rows = &heads->rows;
    struct cell_place place = place_of(heads);
    bool is_one = !roped_tensor_given(&call->in[ROPE_APPEND_V_CACHE]);
    const struct roped_tensor *v = &call->in[ROPE_APPEND_V];
    struct touched touched;
    rows->place = place_in_cache;
    rows->context = &place;
    rows->is_fp8 = call->out[ROPE_APPEND_K_CACHE_OUT].dtype != rows->in->dtype;
    rows->out = &call->out[ROPE_APPEND_K_CACHE_OUT];
    rows->name = "k_cache";
    rows->scale = reference_scale(call, "scale_k", params->scale_k);
    place.first = is_one ? v->dims[1] : 0;
    touched_init(&touched, place.cache, rows->out);
    judge_heads(heads, 1);
    mark_rows(&touched, rows, heads->view.n_tokens);
    if (!is_one) {
        touched_finish(&touched, heads->judge, "k_cache");
        rows->out = &call->out[ROPE_APPEND_V_CACHE_OUT];
        rows->name = "v_cache";
        touched_init(&touched, &call->in[ROPE_APPEND_V_CACHE], rows->out);
    }
    rows->in = v;
    rows->width = is_one ? v->dims[1] : rows->width;
    rows->scale = reference_scale(call, "scale_v", params->scale_v);
    place.first = 0;
    judge_copied_rows(heads->judge, heads->view.n_tokens, rows);
    mark_rows(&touched, rows, heads->view.n_tokens);
    touched_finish(&touched, heads->judge, rows->name);
}

static void reference_heads_append(const struct roped_call *call,
                                   struct reference_judge *judge,
                                   int positions_port,
                                   const struct norm_view *norm)
{
    const struct rope_append_params *params = (const void *)call->params;
    struct heads_judge heads = {.call = call, .judge = judge, .norm = norm};
    struct head_rows *rows = &heads.rows;
    view_heads(&heads.view, call, positions_port, &rows->width);
    int64_t n = heads.view.n_tokens;
    rows->in = &call->in[ROPE_APPEND_Q];
    rows->out = &call->out[ROPE_APPEND_Q_OUT];
    rows->first = params->rope.rotary_offset;
    rows->style = params->rope.style;
    rows->name = "q";
    rows->heads = n ? roped_tensor_elements(rows->in) / n / rows->width : 0;
    judge_heads(&heads, 0);
    rows->in = &call->in[ROPE_APPEND_K];
    rows->out = &call->out[ROPE_APPEND_K_OUT];
    rows->heads = n ? roped_tensor_elements(rows->in) / n / rows->width : 0;
    rows->name = "k";
    if (params->return_k)
        judge_heads(&heads, 1);
    judge_heads_caches(&heads);
}

void reference_rope_append(const struct roped_call *call,
                           struct reference_judge *judge)
{
    reference_heads_append(call, judge, ROPE_APPEND_POSITIONS, NULL);
}

void reference_qk_rmsnorm_rope_append(const struct roped_call *call,
                                      struct reference_judge *judge)
{
    const struct qk_rmsnorm_rope_append_params *params =
        (const void *)call->params;
    const struct norm_view norm = {&call->in[QK_RMSNORM_ROPE_APPEND_Q_WEIGHT],
                                   &params->norm};
    reference_heads_append(call, judge, QK_RMSNORM_ROPE_APPEND_POSITIONS,
                           &norm);
}

/* --------------------------------------------------- rope_quantize_append */

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
    struct cell_place place = {.view = &parts->view,
                               .cache = &call->in[cache],
                               .pages =
                                   &call->in[ROPE_QUANTIZE_APPEND_PAGE_INDICES],
                               .is_hnd = params->kv_layout == KV_LAYOUT_HND &&
                                         call->in[cache].rank == 4};
    place.heads = call->in[cache].rank == 3 ? 1
                  : place.is_hnd            ? place.cache->dims[1]
                                            : place.cache->dims[2];
    place.page_size = place.cache->dims[place.is_hnd ? 2 : 1];
    parts->rows.place = place_in_cache;
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
