/*
 * reference_append.c - the operators that append to KV caches, in float64: the
 * place of every token from the index tensors, and every other entry bit for
 * bit as it was.
 */
#include "kernel/reference_rotary.h"

#include "ops/rope_append.h"

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
    const struct roped_tensor *slots;
    int64_t heads, width;
};

static int64_t place_in_slot(const void *context, int64_t token, int64_t head)
{
    const struct slot_place *place = context;
    int64_t slot = reference_index(place->slots, token);
    return slot < 0 ? -1 : (slot * place->heads + head) * place->width;
}

static void judge_cache_rest(const struct roped_call *call,
                             struct reference_judge *judge, int in, int out,
                             const struct head_rows *rows, int64_t n_tokens)
{
    struct touched touched;
    touched_init(&touched, &call->in[in], &call->out[out]);
    for (int64_t token = 0; token < n_tokens; token++)
        for (int64_t head = 0; head < rows->heads; head++) {
            int64_t at = rows->place(rows->context, token, head);
            if (at >= 0)
                touched_mark(&touched, at, rows->width);
        }
    touched_finish(&touched, judge, call->op->in[in].name);
}

void reference_rope_append(const struct roped_call *call,
                           struct reference_judge *judge)
{
    const struct rope_append_params *params = (const void *)call->params;
    struct angle_view view = {0};
    struct slot_place place = {.slots = &call->in[ROPE_APPEND_SLOTS]};
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
