/*
 * append_case.c - random heads, caches and places.
 */
#include "kernel/append_case.h"

#include "check.h"

#include "ops/rope_append.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ tensors */

/* Pages that the caches need, with some to spare. */
static int64_t pages_of(const struct append_case *c)
{
    return c->heads.rotary.n_tokens / c->page_size + 3;
}

static bool is_mla(const struct append_case *c)
{
    return c->heads.hk == 0;
}

static struct roped_tensor new_cache(struct random_source *source,
                                     const struct append_case *c)
{
    enum roped_dtype dtype = c->cache ? c->cache : c->heads.rotary.dtype;
    int64_t pages = pages_of(c), hk = c->heads.hk, d = c->heads.d;
    int64_t nhd[] = {pages, c->page_size, hk, d};
    int64_t hnd[] = {pages, hk, c->page_size, d};
    int64_t slots[] = {pages * c->page_size, hk, d};
    int64_t mla[] = {pages, c->page_size, c->p + d};
    int64_t mla_slots[] = {pages * c->page_size, c->p + d};
    if (is_mla(c) && c->places == PLACES_SLOTS)
        return case_tensor(source, dtype, 2, mla_slots, 1);
    if (is_mla(c))
        return case_tensor(source, dtype, 3, mla, 1);
    if (c->places == PLACES_SLOTS)
        return case_tensor(source, dtype, 3, slots, 1);
    return case_tensor(source, dtype, 4, c->is_hnd ? hnd : nhd, 1);
}

/* A cache of any bits: NaN, infinities and subnormals among them. */
static void bind_cache(struct roped_call *call, struct random_source *source,
                       const struct append_case *c, const char *name)
{
    struct roped_tensor cache = new_cache(source, c);
    unsigned char *bytes = cache.data;
    for (int64_t i = 0; i < roped_tensor_bytes(&cache); i++)
        bytes[i] = (unsigned char)random_bits(source);
    case_bind(call, name, &cache);
}

static struct roped_tensor new_indexes(struct random_source *source,
                                       const struct append_case *c, int64_t n)
{
    return case_tensor(source, c->is_wide ? ROPED_I64 : ROPED_I32, 1, &n, 0);
}

/* 0 .. n - 1 in random order. */
static int64_t *shuffled(struct random_source *source, int64_t n)
{
    int64_t *order = runner_alloc((size_t)n * sizeof *order);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = random_int(source, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

static void bind_slots(struct roped_call *call, struct random_source *source,
                       const struct append_case *c)
{
    int64_t n = c->heads.rotary.n_tokens;
    int64_t *order = shuffled(source, pages_of(c) * c->page_size);
    struct roped_tensor slots = new_indexes(source, c, n);
    for (int64_t i = 0; i < n; i++) {
        bool has_none = c->none_in && random_once_in(source, c->none_in);
        case_set_int(&slots, i, has_none ? -1 : order[i]);
    }
    free(order);
    case_bind(call, "slots", &slots);
}

/* Two requests that share the pages; every token has an entry of its own. */
static void bind_pages(struct roped_call *call, struct random_source *source,
                       const struct append_case *c)
{
    int64_t n = c->heads.rotary.n_tokens, pages = pages_of(c);
    int64_t first = random_int(source, 0, pages); /* pages of request 0 */
    int64_t *order = shuffled(source, pages);
    int64_t *entry = shuffled(source, pages * c->page_size);
    struct roped_tensor indices = new_indexes(source, c, pages);
    struct roped_tensor indptr = new_indexes(source, c, 3);
    struct roped_tensor requests = new_indexes(source, c, n);
    struct roped_tensor positions = new_indexes(source, c, n);
    for (int64_t i = 0; i < pages; i++)
        case_set_int(&indices, i, order[i]);
    case_set_int(&indptr, 0, 0);
    case_set_int(&indptr, 1, first);
    case_set_int(&indptr, 2, pages);
    for (int64_t i = 0; i < n; i++) {
        bool has_none = c->none_in && random_once_in(source, c->none_in);
        int64_t j = entry[i] >= first * c->page_size;
        case_set_int(&requests, i, has_none ? -1 : j);
        case_set_int(&positions, i,
                     has_none ? -5 : entry[i] - j * first * c->page_size);
    }
    free(order);
    free(entry);
    case_bind(call, "page_indices", &indices);
    case_bind(call, "page_indptr", &indptr);
    case_bind(call, "batch_indices", &requests);
    case_bind(call, "kv_positions", &positions);
}

/* --------------------------------------------------------------------- case */

static bool has_input(const char *op, const char *name)
{
    return roped_op_input(roped_op_find(op), name) >= 0;
}

struct append_case append_case_random(struct random_source *source,
                                      const char *op)
{
    static const enum roped_dtype caches[] = {
        ROPED_NO_DTYPE, ROPED_NO_DTYPE, ROPED_F8_E4M3, ROPED_F8_E5M2, ROPED_U8};
    struct append_case c = {
        .heads = heads_case_random(source, has_input(op, "k_cache")),
        .page_size = random_int(source, 1, 17),
        .places = (enum append_places)random_int(source, 0, PLACES_KINDS - 1),
        .cache = caches[random_int(source, 0, 4)],
        .none_in = (int)random_int(source, 0, 3),
        .is_wide = random_once_in(source, 2),
        .is_hnd = random_once_in(source, 2),
        .is_e5m2 = random_once_in(source, 2),
        .returns_k = random_once_in(source, 3),
        .scale_k = random_once_in(source, 2) ? "0.37" : NULL,
        .scale_v = random_once_in(source, 2) ? "2.5" : NULL,
        .is_tensor = random_once_in(source, 2),
        .is_hf = random_once_in(source, 4),
        .is_gemma = random_once_in(source, 4)};
    c.weight = heads_case_weight(source, &c.heads);
    c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
    c.options.in_place = random_once_in(source, 3);
    c.options.updates_apart = random_once_in(source, 4);
    c.options.misalign_elements = random_once_in(source, 4) ? 1 : 0;
    case_strides(source, &c.options);
    return c;
}

/* k [n, d] and v [n, p]. */
static void bind_mla(struct roped_call *call, struct random_source *source,
                     const struct append_case *c)
{
    int64_t k[2] = {c->heads.rotary.n_tokens, c->heads.d};
    int64_t v[2] = {c->heads.rotary.n_tokens, c->p};
    struct roped_tensor tensor =
        case_tensor(source, c->heads.rotary.dtype, 2, k, 2);
    case_bind(call, "k", &tensor);
    tensor = case_tensor(source, c->heads.rotary.dtype, 2, v, 2);
    case_bind(call, "v", &tensor);
}

static void bind_weights(struct roped_call *call, struct random_source *source,
                         const struct append_case *c)
{
    static const char *const names[] = {"q_weight", "k_weight"};
    for (int i = 0; i < (c->heads.hk ? 2 : 1) && c->weight; i++) {
        struct roped_tensor weight =
            case_tensor(source, c->weight, 1, &c->heads.d, 1);
        case_bind(call, names[i], &weight);
    }
    if (c->is_hf)
        case_param(call, "rounding", "hf");
    if (c->is_gemma)
        case_param(call, "weight_bias", "1");
}

/* v, the caches, and where in them k and v go. */
static void bind_caches(struct roped_call *call, struct random_source *source,
                        const struct append_case *c)
{
    if (is_mla(c))
        bind_mla(call, source, c);
    else
        heads_case_bind(call, source, &c->heads, "v", c->heads.hk);
    bind_cache(call, source, c, "k_cache");
    if (!is_mla(c))
        bind_cache(call, source, c, "v_cache");
    if (c->places == PLACES_PAGES)
        bind_pages(call, source, c);
    else
        bind_slots(call, source, c);
    if (c->returns_k)
        case_param(call, "return_k", "true");
    if (c->is_hnd)
        case_param(call, "kv_layout", "hnd");
    if (c->cache == ROPED_U8 && c->is_e5m2)
        case_param(call, "cache_dtype", "e5m2");
    if (c->cache && c->scale_k)
        case_scale(call, source, "scale_k", c->scale_k, c->is_tensor);
    if (c->cache && c->scale_v)
        case_scale(call, source, "scale_v", c->scale_v, c->is_tensor);
}

void append_case_build(struct roped_call *call, struct random_source *source,
                       const char *op, const struct append_case *c)
{
    heads_case_build(call, source, op, &c->heads);
    if (has_input(op, "k_cache"))
        bind_caches(call, source, c);
    if (has_input(op, "q_weight"))
        bind_weights(call, source, c);
}

/* Codes are judged as what they are. */
static void name_codes(struct roped_call *call, const struct append_case *c)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        if (call->out[i].dtype == ROPED_U8)
            call->out[i].dtype = c->is_e5m2 ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
}

void append_case_run(struct roped_call *call, struct runner *runner,
                     const struct append_case *c)
{
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[320], how[160];
    enum roped_status status = roped_call_resolve(call, &err);
    if (!status)
        status = runner_run(runner, call, &c->options, &err);
    name_codes(call, c);
    if (!status)
        reference_judge(call, &judge);
    if (!status && has_input(call->op->name, "k_cache") &&
        roped_tensor_given(&call->out[ROPE_APPEND_K_OUT]) != c->returns_k)
        CHECK_FAIL("k was%s returned", c->returns_k ? " not" : "");
    if (status || judge.n_wrong)
        CHECK_FAIL(
            "%s: %s weight %d hf %d gemma %d p %lld page %lld places %d cache "
            "%s e5m2 %d hnd %d none "
            "in %d wide %d returns k %d %s: %s; %lld of %lld wrong: %s",
            call->op->name, heads_case_text(&c->heads, text, sizeof text),
            c->weight, c->is_hf, c->is_gemma, (long long)c->p,
            (long long)c->page_size, c->places,
            c->cache ? roped_dtype_name(c->cache) : "same", c->is_e5m2,
            c->is_hnd, c->none_in, c->is_wide, c->returns_k,
            runner_options_text(&c->options, how, sizeof how), err.text,
            (long long)judge.n_wrong, (long long)judge.n_checked, judge.first);
    runner_free_outputs(call);
    case_free(call);
}
