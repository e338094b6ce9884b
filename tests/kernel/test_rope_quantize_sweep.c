/*
 * test_rope_quantize_sweep.c - rope_quantize and rope_quantize_append on one
 * backend (argument: cpu or cuda) against float64: MLA, GQA and MHA shapes,
 * both FP8 types, both styles, scales that saturate, NaN, Inf and -0 in the
 * non-rotary parts, misaligned memory; NHD, HND and MLA caches, pages in any
 * order, requests of unlike lengths, tokens without a request, and what no
 * token addresses keeps its bits. Index tensors that must be refused are,
 * before anything is written.
 */
#include "check.h"
#include "kernel/parts_case.h"
#include "kernel/reference.h"

#include "ops/rope_quantize_append.h"

static struct runner runner;
static struct random_source source = {37};

static const char *const ops[] = {"rope_quantize", "rope_quantize_append"};
enum { QUANTIZE, APPEND, OPS };

/* rope_quantize has the parts alone. */
struct append_case {
    struct parts_case parts;
    int64_t page_size, n_requests;
    const char *scale_v; /* may be NULL */
    int none_in; /* one token in this many has no request; 0: all have */
    bool is_hnd;
    bool has_codes; /* the caches are U8 */
    bool is_wide;   /* the page table is I64 */
};

/* ------------------------------------------------------------------ tensors */

static enum roped_dtype cache_type(const struct append_case *c)
{
    if (c->has_codes)
        return ROPED_U8;
    return c->parts.is_e5m2 ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
}

/* A cache of any codes. */
static void bind_cache(struct roped_call *call, const struct append_case *c,
                       const char *name, int64_t pages, int64_t width)
{
    int64_t nhd[] = {pages, c->page_size, c->parts.hk, width};
    int64_t hnd[] = {pages, c->parts.hk, c->page_size, width};
    int64_t mla[] = {pages, c->page_size, width};
    struct roped_tensor cache =
        case_tensor(&source, cache_type(c), c->parts.hk ? 4 : 3,
                    c->parts.hk == 0 ? mla
                    : c->is_hnd      ? hnd
                                     : nhd,
                    0);
    for (int64_t i = 0; i < roped_tensor_bytes(&cache); i++)
        ((unsigned char *)cache.data)[i] = (unsigned char)random_bits(&source);
    case_bind(call, name, &cache);
}

static void bind_ints(struct roped_call *call, const struct append_case *c,
                      const char *name, const int64_t *values, int64_t n)
{
    struct roped_tensor tensor =
        case_tensor(&source, c->is_wide ? ROPED_I64 : ROPED_I32, 1, &n, 0);
    for (int64_t i = 0; i < n; i++)
        case_set_int(&tensor, i, values[i]);
    case_bind(call, name, &tensor);
}

/* Random pages, each once: the front of a shuffle. */
static void bind_page_indices(struct roped_call *call,
                              const struct append_case *c, int64_t n,
                              int64_t pages)
{
    int64_t *shuffled = runner_alloc((size_t)pages * sizeof *shuffled);
    for (int64_t i = 0; i < pages; i++) {
        int64_t j = random_int(&source, 0, i);
        shuffled[i] = shuffled[j];
        shuffled[j] = i;
    }
    shuffled[n] = -7; /* beyond page_indptr: nobody reads it */
    bind_ints(call, c, "page_indices", shuffled, n + 1);
    free(shuffled);
}

/*
 * Tokens go to random entries of random requests, each entry once; requests
 * own random pages. Returns the pages of the caches.
 */
static int64_t bind_pages(struct roped_call *call, const struct append_case *c)
{
    int64_t n = c->parts.rotary.n_tokens, b = c->n_requests;
    int64_t pages_of_one = (n + b * c->page_size - 1) / (b * c->page_size) + 1;
    int64_t n_indices = pages_of_one * b, pages = n_indices + 2;
    int64_t *requests = runner_alloc((size_t)(2 * n + b + 1) * 8);
    int64_t *positions = requests + n, *indptr = positions + n;
    bind_page_indices(call, c, n_indices, pages);
    for (int64_t j = 0; j <= b; j++)
        indptr[j] = j * pages_of_one;
    int64_t first = random_int(&source, 0, pages_of_one * c->page_size - 1);
    for (int64_t i = 0; i < n; i++) {
        bool has_none = c->none_in && random_once_in(&source, c->none_in);
        requests[i] = has_none ? -1 : i % b;
        positions[i] =
            has_none ? -5 : (first + i / b) % (pages_of_one * c->page_size);
    }
    bind_ints(call, c, "page_indptr", indptr, b + 1);
    bind_ints(call, c, "batch_indices", requests, n);
    bind_ints(call, c, "kv_positions", positions, n);
    free(requests);
    return pages;
}

/* v, the caches, and where in them k and v go. */
static void bind_caches(struct roped_call *call, const struct append_case *c)
{
    const struct parts_case *parts = &c->parts;
    int64_t d = parts->r + parts->p, pages = bind_pages(call, c);
    if (parts->hk) {
        parts_case_bind(call, &source, parts, "v", parts->hk, d);
        bind_cache(call, c, "k_cache", pages, d);
        bind_cache(call, c, "v_cache", pages, d);
        case_param(call, "kv_layout", c->is_hnd ? "hnd" : "nhd");
    } else {
        bind_cache(call, c, "kpe_cache", pages, parts->r);
        if (parts->p)
            bind_cache(call, c, "ckv_cache", pages, parts->p);
    }
    if (c->scale_v)
        case_scale(call, &source, "scale_v", c->scale_v, parts->is_tensor);
}

static void build_call(struct roped_call *call, int op,
                       const struct append_case *c)
{
    roped_call_init(call, roped_op_find(ops[op]));
    parts_case_build(call, &source, &c->parts);
    if (op == APPEND)
        bind_caches(call, c);
    case_param(call, "output_dtype", c->parts.is_e5m2 ? "e5m2" : "e4m3");
}

static void run_case(int op, const struct append_case *c)
{
    static struct roped_call call;
    const struct runner_options *options = &c->parts.options;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[400];
    if (!check_takes_case())
        return;
    build_call(&call, op, c);
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, options, &err);
    for (int i = 0; i < ROPED_MAX_OUTPUTS && !status; i++)
        if (call.out[i].dtype == ROPED_U8) /* what the codes are */
            call.out[i].dtype = call.out[ROPE_QUANTIZE_APPEND_Q_ROPE_OUT].dtype;
    if (!status)
        reference_judge(&call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL(
            "%s: %s page %lld requests %lld none in %d hnd %d apart %d: %s; "
            "%lld of %lld wrong: %s",
            ops[op], parts_case_text(&c->parts, text, sizeof text),
            (long long)c->page_size, (long long)c->n_requests, c->none_in,
            c->is_hnd, options->updates_apart, err.text,
            (long long)judge.n_wrong, (long long)judge.n_checked, judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

/* -------------------------------------------------------------------- tests */

/* The peers' shapes, with both styles and scales that are not 1. */
TEST(shapes_of_models_are_correctly_rounded)
{
    for (int i = 0; i < PARTS_MODELS; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (int hnd = 0; hnd < 2; hnd++) {
                    struct append_case c = {.parts =
                                                parts_case_model(i, t, gptj),
                                            .page_size = t == 0 ? 32 : 16,
                                            .n_requests = 1 + t,
                                            .scale_v = "0.6",
                                            .none_in = 7,
                                            .is_hnd = hnd};
                    c.parts.is_e5m2 = (i + t + hnd) % 2;
                    for (int op = 0; op < OPS; op++)
                        run_case(op, &c);
                }
}

/* Widths that no vector divides, p that is no multiple of r, pages of one. */
TEST(random_cases_are_correctly_rounded)
{
    for (int i = 0; i < check_cases(800); i++) {
        struct append_case c = {.parts = parts_case_random(&source),
                                .page_size = random_int(&source, 1, 17),
                                .n_requests = random_int(&source, 1, 5),
                                .scale_v =
                                    random_once_in(&source, 2) ? "0.3" : NULL,
                                .none_in = (int)random_int(&source, 0, 3),
                                .is_hnd = random_once_in(&source, 2),
                                .has_codes = random_once_in(&source, 4),
                                .is_wide = random_once_in(&source, 2)};
        c.parts.options.updates_apart = random_once_in(&source, 4);
        for (int op = 0; op < OPS; op++)
            run_case(op, &c);
    }
}

/* Enough work for several heads per thread. */
TEST(many_tokens_are_correctly_rounded)
{
    static const int64_t shapes[][4] = {
        {128, 0, 64, 512}, {32, 8, 64, 64}, {8, 8, 40, 24}};
    for (int i = 0; i < 3; i++)
        for (int gptj = 0; gptj < 2; gptj++) {
            const struct append_case c = {
                .parts = {.hq = shapes[i][0],
                          .hk = shapes[i][1],
                          .r = shapes[i][2],
                          .p = shapes[i][3],
                          .scale = 2,
                          .scale_q = "1",
                          .scale_k = "0.5",
                          .is_gptj = gptj,
                          .rotary = {.positions = CASE_I64,
                                     .angles =
                                         gptj ? CASE_COMPUTED : CASE_TABLE,
                                     .dtype = ROPED_BF16,
                                     .n_tokens = i == 0 ? 60 : 1500,
                                     .n_pairs = shapes[i][2] / 2,
                                     .largest_position = 8191},
                          .options = {.use_table = !gptj}},
                .page_size = 16,
                .n_requests = 3,
                .scale_v = "1.7",
                .none_in = 11,
                .is_hnd = gptj};
            for (int op = 0; op < OPS; op++)
                run_case(op, &c);
        }
}

/* ----------------------------------------------------------------- refusals */

/* Three tokens, two requests of two pages of four entries, six pages. */
struct index_values {
    int64_t indices[4], indptr[3], requests[3], positions[3];
};
static const struct index_values sound = {
    {3, 0, 5, 2}, {0, 2, 4}, {0, 1, -1}, {7, 0, 99}};

static void build_indices(struct roped_call *call,
                          const struct index_values *values)
{
    const struct append_case c = {.parts = {.hq = 2,
                                            .hk = 2,
                                            .r = 8,
                                            .p = 8,
                                            .scale = 1,
                                            .scale_q = "1",
                                            .scale_k = "1",
                                            .rotary = {.dtype = ROPED_F32,
                                                       .n_tokens = 3,
                                                       .n_pairs = 4,
                                                       .largest_position = 9}},
                                  .page_size = 4,
                                  .n_requests = 2,
                                  .is_wide = true};
    build_call(call, APPEND, &c);
    struct roped_tensor *in = call->in;
    int64_t *indices = in[ROPE_QUANTIZE_APPEND_PAGE_INDICES].data;
    CHECK(roped_tensor_elements(&in[ROPE_QUANTIZE_APPEND_PAGE_INDICES]) == 5);
    CHECK(in[ROPE_QUANTIZE_APPEND_K_CACHE].dims[0] == 6);
    memcpy(indices, values->indices, sizeof values->indices);
    memcpy(in[ROPE_QUANTIZE_APPEND_PAGE_INDPTR].data, values->indptr,
           sizeof values->indptr);
    memcpy(in[ROPE_QUANTIZE_APPEND_BATCH_INDICES].data, values->requests,
           sizeof values->requests);
    memcpy(in[ROPE_QUANTIZE_APPEND_KV_POSITIONS].data, values->positions,
           sizeof values->positions);
}

static void expect(const struct index_values *values, const char *refusal)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct runner_options options = {0};
    struct reference_judge judge = {0};
    build_indices(&call, values);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    enum roped_status status = runner_run(&runner, &call, &options, &err);
    if (refusal) {
        CHECK_INT(status, ROPED_BAD_VALUE);
        CHECK_CONTAINS(err.text, refusal);
    } else {
        CHECK_OK(status, &err);
        reference_judge(&call, &judge);
        CHECK_INT(judge.n_wrong, 0);
    }
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(index_values_outside_the_pages_are_refused)
{
    struct index_values v = sound;
    expect(&v, NULL);
    v.indices[2] = 6;
    expect(&v, "page 6 at index 2");
    v.indices[2] = -1;
    expect(&v, "page -1 at index 2");
    v = sound;
    v.indptr[1] = 5;
    expect(&v, "'page_indptr': value 4 at index 2");
    v = sound;
    v.indptr[0] = 1;
    expect(&v, "'page_indptr': value 1 at index 0");
    v = sound;
    v.indptr[2] = 6;
    expect(&v, "'page_indptr': value 6 at index 2");
    v = sound;
    v.requests[1] = 2;
    expect(&v, "request 2 at index 1");
    v.requests[1] = -2;
    expect(&v, "request -2 at index 1");
    v = sound;
    v.positions[0] = 8;
    expect(&v, "position 8 at index 0");
    v.positions[0] = (INT64_C(1) << 32) + 7; /* whose lower half is sound */
    expect(&v, "position 4294967303 at index 0");
    v.positions[0] = -1;
    expect(&v, "position -1 at index 0");
    v = sound;
    v.indptr[1] = 0; /* request 0 has no page */
    expect(&v, "0 pages of request 0");
}

TEST(two_tokens_of_one_entry_are_refused)
{
    struct index_values v = sound;
    v.requests[2] = 0;
    v.positions[2] = 7;
    expect(&v, "position 7 at index 2 is the entry of index 0 too");
    v = sound; /* another request, the same page */
    v.indices[2] = 0;
    v.requests[1] = 1;
    v.positions[1] = 3;
    expect(&v, "position 3 at index 1 is the entry of index 0 too");
}

/* In-process, with index tensors on the device: nothing is checked, and the
 * launch finds the entries itself. */
TEST(pages_on_the_device_are_found_there)
{
    static struct roped_call call;
    for (int i = 0; i < 6; i++) {
        int form = i / 2;
        struct roped_error err = {.text = ""};
        struct runner_options options = {0};
        struct reference_judge judge = {0};
        const struct append_case c = {
            .parts = {.hq = 4,
                      .hk = form == 2 ? 0 : 2,
                      .r = 64,
                      .p = 32,
                      .scale = 1,
                      .scale_q = "1",
                      .scale_k = "1",
                      .rotary = {.positions = CASE_I32,
                                 .dtype = ROPED_BF16,
                                 .n_tokens = 50,
                                 .n_pairs = 32,
                                 .largest_position = 99}},
            .page_size = 5,
            .n_requests = 3,
            .none_in = 5,
            .is_hnd = form == 1,
            .is_wide = i % 2};
        build_call(&call, APPEND, &c);
        call.host_values = false;
        call.largest_position = 99;
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
        reference_judge(&call, &judge);
        CHECK_INT(judge.n_wrong, 0);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
