/*
 * heads_append.c - the caches and cells of operators that put heads of k and
 * v into a KV cache.
 */
#include "ops/heads_append.h"

#include "core/call_internal.h"

static const struct rope_append_params *params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

static bool has(const struct roped_call *call, int port)
{
    return roped_tensor_given(&call->in[port]);
}

/* One k per token beside heads of q: MLA. */
static bool is_mla(const struct roped_call *call)
{
    return call->in[ROPE_APPEND_Q].rank == 3 &&
           call->in[ROPE_APPEND_K].rank == 2;
}

/* A cache, whatever its layout. */
struct cache_shape {
    int64_t pages, page_size; /* one page without pages */
    int64_t heads, width;     /* of a cell */
    int heads_dim;            /* -1: none */
};

static struct cache_shape cache_shape_of(const struct roped_call *call)
{
    const struct roped_tensor *cache = &call->in[ROPE_APPEND_K_CACHE];
    const int64_t *dims = cache->dims;
    bool mla = is_mla(call);
    bool is_paged = cache->rank == (mla ? 3 : 4);
    bool is_hnd =
        is_paged && !mla && params_of(call)->kv_layout == KV_LAYOUT_HND;
    struct cache_shape shape = {.pages = is_paged ? dims[0] : 1,
                                .page_size = dims[!is_paged ? 0
                                                  : is_hnd  ? 2
                                                            : 1],
                                .heads = 1,
                                .width = dims[cache->rank - 1],
                                .heads_dim = -1};
    if (!mla) {
        shape.heads_dim = is_hnd ? 1 : cache->rank - 2;
        shape.heads = dims[shape.heads_dim];
    }
    return shape;
}

/* ------------------------------------------------------------------ rule */

/* Scales and a format belong to FP8, the format to codes without a name. */
static enum roped_status check_types(const struct roped_call *call,
                                     struct roped_error *err)
{
    enum roped_dtype k = call->in[ROPE_APPEND_K_CACHE].dtype;
    bool is_float = ROPED_SET(k) & ROPED_FLOATS;
    const char *unused = NULL;
    if (k != ROPED_U8 && roped_call_gave(call, "cache_dtype"))
        unused = "cache_dtype";
    for (int i = ROPE_APPEND_SCALE_K; i <= ROPE_APPEND_SCALE_V; i++) {
        const char *name = call->op->in[i].name;
        if (is_float && (has(call, i) || roped_call_gave(call, name)))
            unused = name;
    }
    if (!unused)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID, "'%s' is given, but 'k_cache' is %s",
                      unused, roped_dtype_name(k));
}

enum roped_status heads_append_rule(const struct roped_call *call,
                                    const struct rotary_shape *shape,
                                    struct roped_error *err)
{
    enum roped_status status = rotary_rule(call, shape, err);
    return status ? status : check_types(call, err);
}

/* ------------------------------------------------------------------ plan */

int64_t heads_append_cells_offset(const struct roped_call *call,
                                  const struct rotary_shape *shape)
{
    return (int64_t)((rotary_aux_bytes(call, shape) + 15) / 16 * 16);
}

size_t heads_append_aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return (size_t)heads_append_cells_offset(call, &shape) +
           append_aux_bytes(shape.n_tokens);
}

/* Of a cache without elements, which may be as long as it likes. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) ? INT64_MAX : c;
}

static struct append_plan places_of(const struct roped_call *call,
                                    const struct rotary_shape *shape)
{
    struct cache_shape cache = cache_shape_of(call);
    bool has_slots = has(call, ROPE_APPEND_SLOTS);
    int first = has_slots ? ROPE_APPEND_SLOTS : ROPE_APPEND_PAGE_INDICES;
    bool is_hnd =
        cache.heads_dim == 1 && call->in[ROPE_APPEND_K_CACHE].rank == 4;
    int64_t heads = cache.heads ? cache.heads : 1; /* places differ, too */
    return (struct append_plan){
        .map = {.kind = has_slots ? APPEND_SLOTS : APPEND_PAGES,
                .page_size = cache.page_size,
                .page_stride = product(cache.page_size, heads),
                .slot_stride = is_hnd ? 1 : heads,
                .head_stride = is_hnd ? cache.page_size : 1},
        .first_port = first,
        .n_tokens = shape->n_tokens,
        .n_places =
            has_slots ? product(cache.pages, cache.page_size) : cache.pages,
        .cells_offset = heads_append_cells_offset(call, shape)};
}

/* Where k and v go, and what they become. */
static enum roped_status place_parts(const struct roped_call *call,
                                     struct heads_part *k, struct heads_part *v,
                                     struct roped_error *err)
{
    const struct roped_tensor *cache = &call->in[ROPE_APPEND_K_CACHE];
    int64_t width = cache->dims[cache->rank - 1];
    bool mla = is_mla(call);
    k->cache = ROPE_APPEND_K_CACHE_OUT;
    k->cell_first = width - k->width;
    v->cache = mla ? ROPE_APPEND_K_CACHE_OUT : ROPE_APPEND_V_CACHE_OUT;
    v->width = width - (mla ? k->width : 0);
    enum roped_status status = call_type_of(
        call, ROPE_APPEND_K_CACHE, ROPE_APPEND_V_CACHE, &k->cell_dtype, err);
    if (k->cell_dtype == ROPED_U8)
        k->cell_dtype =
            params_of(call)->cache_dtype ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
    v->cell_dtype = k->cell_dtype;
    return status;
}

enum roped_status heads_append_plan(struct roped_call *call,
                                    const struct rotary_shape *shape,
                                    struct heads_plan *plan,
                                    struct roped_error *err)
{
    const struct rope_append_params *params = params_of(call);
    struct heads_part *k = &plan->part[ROPE_APPEND_K];
    struct heads_part *v =
        heads_plan_add(plan, ROPE_APPEND_V, k->heads, k->width);
    enum roped_status status = rotary_plan(call, shape, &plan->rotary, err);
    if (!status)
        status = scale_plan(call, ROPE_APPEND_SCALE_K, params->scale_k,
                            &k->scale, err);
    if (!status)
        status = scale_plan(call, ROPE_APPEND_SCALE_V, params->scale_v,
                            &v->scale, err);
    if (!status)
        status = place_parts(call, k, v, err);
    if (status)
        return status;
    plan->append = places_of(call, shape);
    return append_plan(call, &plan->append, err);
}
