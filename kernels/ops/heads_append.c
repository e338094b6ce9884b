/*
 * heads_append.c - the caches and places of operators that put heads of k and
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

/* Slots, or everything of pages. */
static enum roped_status check_places(const struct roped_call *call,
                                      struct roped_error *err)
{
    bool has_slots = has(call, ROPE_APPEND_SLOTS);
    for (int i = ROPE_APPEND_PAGE_INDICES; i <= ROPE_APPEND_KV_POSITIONS; i++)
        if (has_slots && has(call, i))
            return roped_fail(err, ROPED_INVALID,
                              "tensors 'slots' and '%s' are both given, "
                              "expected slots or pages",
                              call->op->in[i].name);
    for (int i = ROPE_APPEND_PAGE_INDICES; i <= ROPE_APPEND_KV_POSITIONS; i++)
        if (!has_slots && !has(call, i))
            return roped_fail(err, ROPED_INVALID,
                              "missing tensor '%s'%s: where do tokens go?",
                              call->op->in[i].name,
                              i == ROPE_APPEND_PAGE_INDICES ? " or 'slots'"
                                                            : "");
    if (!has_slots && call->in[ROPE_APPEND_PAGE_INDPTR].dims[0] == 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'page_indptr': dim 0 is 0, expected "
                          "requests + 1");
    return ROPED_OK;
}

static enum roped_status check_rank(const struct roped_call *call,
                                    struct roped_error *err)
{
    static const char *const slots[] = {"[slots, hk, d]", "[slots, p + d]"};
    static const char *const pages[] = {
        "[pages, page_size, hk, d] or [pages, hk, page_size, d]",
        "[pages, page_size, p + d]"};
    bool mla = is_mla(call), has_slots = has(call, ROPE_APPEND_SLOTS);
    int rank = call->in[ROPE_APPEND_K_CACHE].rank, paged = mla ? 3 : 4;
    if (rank == paged || (has_slots && rank == paged - 1))
        return ROPED_OK;
    return roped_fail(
        err, ROPED_BAD_SHAPE, "tensor 'k_cache': rank %d, expected %s%s%s",
        rank, has_slots ? slots[mla] : "", has_slots ? ", " : "", pages[mla]);
}

static enum roped_status check_dim(const struct roped_call *call, int port,
                                   int dim, int64_t expected, const char *what,
                                   struct roped_error *err)
{
    if (call->in[port].dims[dim] == expected)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_BAD_SHAPE, "tensor '%s': dim %d is %lld, expected %s = %lld",
        call->op->in[port].name, dim, (long long)call->in[port].dims[dim], what,
        (long long)expected);
}

/* MLA has one cache, whose cells hold v and k. */
static enum roped_status check_caches(const struct roped_call *call,
                                      const struct rotary_shape *shape,
                                      struct roped_error *err)
{
    const struct roped_tensor *cache = &call->in[ROPE_APPEND_K_CACHE];
    bool mla = is_mla(call);
    if (mla && has(call, ROPE_APPEND_V_CACHE))
        return roped_fail(err, ROPED_INVALID,
                          "tensor 'v_cache': not with k of rank 2, which goes "
                          "to 'k_cache' with v");
    if (!mla && !has(call, ROPE_APPEND_V_CACHE))
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor 'v_cache': only k of rank 2 goes to "
                          "one cache with v");
    enum roped_status status = check_rank(call, err);
    if (status)
        return status;
    struct cache_shape found = cache_shape_of(call);
    if (found.heads_dim >= 0)
        status =
            check_dim(call, ROPE_APPEND_K_CACHE, found.heads_dim,
                      rope_heads_of(call, ROPE_APPEND_K, shape), "hk", err);
    int64_t latent = mla ? call->in[ROPE_APPEND_V].dims[1] : 0;
    return status
               ? status
               : check_dim(call, ROPE_APPEND_K_CACHE, cache->rank - 1,
                           latent + shape->head_dim, mla ? "p + d" : "d", err);
}

/* Scales and a format belong to FP8, the format to codes without a name. */
static enum roped_status check_types(const struct roped_call *call,
                                     struct roped_error *err)
{
    enum roped_dtype t = call->in[ROPE_APPEND_Q].dtype;
    enum roped_dtype k = call->in[ROPE_APPEND_K_CACHE].dtype;
    bool is_float = ROPED_SET(k) & ROPED_FLOATS;
    const char *unused = NULL;
    if (is_float && k != t)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor 'k_cache': %s, expected %s, the type of 'q', "
                          "or F8_E4M3, F8_E5M2 or U8",
                          roped_dtype_name(k), roped_dtype_name(t));
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
    enum roped_status status = rope_heads_rule(call, shape, err);
    if (!status)
        status = check_places(call, err);
    if (!status)
        status = check_caches(call, shape, err);
    if (!status)
        status = check_types(call, err);
    if (!status)
        status = scale_rule(call, ROPE_APPEND_SCALE_K, err);
    if (!status)
        status = scale_rule(call, ROPE_APPEND_SCALE_V, err);
    int index = has(call, ROPE_APPEND_SLOTS) ? ROPE_APPEND_SLOTS
                                             : ROPE_APPEND_BATCH_INDICES;
    return status ? status
                  : check_dim(call, index, 0, shape->n_tokens, "n", err);
}

/* ------------------------------------------------------------------ plan */

static size_t rotary_bytes(const struct roped_call *call,
                           const struct rotary_shape *shape)
{
    return (rotary_aux_bytes(call, shape) + 15) / 16 * 16;
}

size_t heads_append_aux_bytes(const struct roped_call *call,
                              const struct rotary_shape *shape)
{
    return rotary_bytes(call, shape) + append_aux_bytes(shape->n_tokens);
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
                .page_step = product(cache.page_size, heads),
                .slot_step = is_hnd ? 1 : heads,
                .head_step = is_hnd ? cache.page_size : 1},
        .first_port = first,
        .positions_port = shape->first_port,
        .n_tokens = shape->n_tokens,
        .n_places =
            has_slots ? product(cache.pages, cache.page_size) : cache.pages,
        .cells_offset = (int64_t)rotary_bytes(call, shape)};
}

static enum roped_status place_parts(const struct roped_call *call,
                                     struct rope_append_plan *out,
                                     struct roped_error *err)
{
    const struct roped_tensor *cache = &call->in[ROPE_APPEND_K_CACHE];
    int64_t width = cache->dims[cache->rank - 1];
    bool mla = is_mla(call);
    out->v_dim = width - (mla ? out->rope.head_dim : 0);
    out->k = (struct append_part){.output = ROPE_APPEND_K_CACHE_OUT,
                                  .cell_width = width,
                                  .first = width - out->rope.head_dim};
    out->v = (struct append_part){.output = mla ? ROPE_APPEND_K_CACHE_OUT
                                                : ROPE_APPEND_V_CACHE_OUT,
                                  .cell_width = width};
    enum roped_status status = call_type_of(
        call, ROPE_APPEND_K_CACHE, ROPE_APPEND_V_CACHE, &out->cache_dtype, err);
    if (out->cache_dtype == ROPED_U8)
        out->cache_dtype =
            params_of(call)->cache_dtype ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
    return status;
}

enum roped_status heads_append_plan(struct roped_call *call,
                                    const struct rotary_shape *shape,
                                    struct rope_append_plan *out,
                                    struct roped_error *err)
{
    const struct rope_append_params *params = params_of(call);
    enum roped_status status = rope_heads_plan(call, shape, &out->rope, err);
    if (!status)
        status = scale_plan(call, ROPE_APPEND_SCALE_K, params->scale_k,
                            &out->scale_k, err);
    if (!status)
        status = scale_plan(call, ROPE_APPEND_SCALE_V, params->scale_v,
                            &out->scale_v, err);
    if (!status)
        status = place_parts(call, out, err);
    if (status)
        return status;
    out->append = places_of(call, shape);
    return append_plan(call, &out->append, err);
}
