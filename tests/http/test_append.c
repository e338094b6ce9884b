/*
 * test_append.c - operators that write into KV caches, and qk_rmsnorm_rope,
 * over HTTP: a cache that was sent comes back whole, with nothing changed but
 * the addressed entries; what their rules and index values forbid is refused
 * by name.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <roped/numeric.h>

static struct server server;

enum { N = 3, HEADS = 2, D = 8, SLOTS = 5 }; /* of every call here */

static float values[4][SLOTS * HEADS * D]; /* q or k, v, two caches */

/* A call to be changed: a path and its tensors. */
struct request {
    const char *path;
    struct tensor_file file;
};

static void add(struct request *request, const char *name,
                enum roped_dtype dtype, int rank, const int64_t *dims,
                void *data)
{
    file_add(&request->file, name, dtype, rank, dims, data);
}

static struct roped_tensor *tensor_of(struct request *request, const char *name)
{
    int i = 0;
    while (strcmp(request->file.name[i], name) != 0)
        i++;
    return &request->file.tensor[i];
}

static struct answer post(const struct request *request, const char *query)
{
    char path[256];
    size_t bytes;
    unsigned char *body = file_write(&request->file, &bytes);
    snprintf(path, sizeof path, "/v1/%s?%s", request->path, query);
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    free(body);
    return answer;
}

static void accept(const struct request *request, const char *query)
{
    expect_code(post(request, query), 200, "", request->path);
}

static void refuse(const struct request *request, const char *query,
                   const char *culprit)
{
    expect_code(post(request, query), 400, culprit, request->path);
}

/* -------------------------------------------------------- qk_rmsnorm_rope */

TEST(rules_of_qk_rmsnorm_rope_are_kept)
{
    static const int64_t heads[] = {N, HEADS, D}, d = D, wrong = 6;
    static const int64_t packed[] = {N, HEADS * D};
    struct request request = {"qk_rmsnorm_rope", {0}};
    add(&request, "q", ROPED_F32, 3, heads, values[0]);
    accept(&request, "");
    refuse(&request, "eps=-1", "eps");
    add(&request, "k_weight", ROPED_F32, 1, &d, values[1]);
    refuse(&request, "", "missing tensor 'k'");
    add(&request, "k", ROPED_F32, 3, heads, values[0]);
    refuse(&request, "", "missing tensor 'q_weight'");
    add(&request, "q_weight", ROPED_F32, 1, &d, values[1]);
    accept(&request, "rounding=hf");
    tensor_of(&request, "q")->dtype = ROPED_BF16;
    tensor_of(&request, "k")->dtype = ROPED_BF16;
    accept(&request, "");
    tensor_of(&request, "q_weight")->dtype = ROPED_F16;
    tensor_of(&request, "k_weight")->dtype = ROPED_F16;
    refuse(&request, "",
           "'q_weight': F16, expected F32 or BF16 beside 'q' of BF16");
    struct request row = {"qk_rmsnorm_rope", {0}};
    add(&row, "q", ROPED_F32, 2, packed, values[0]);
    refuse(&row, "", "head_dim");
    add(&row, "q_weight", ROPED_F32, 1, &wrong, values[1]);
    refuse(&row, "head_dim=8", "'q_weight': dim 0 is 6, expected d = 8");
}

/* ------------------------------------------------------------ rope_append */

static int64_t slots[N];

static struct request append_request(int64_t a, int64_t b, int64_t c)
{
    static const int64_t heads[] = {N, HEADS, D}, n = N;
    static const int64_t cache[] = {SLOTS, HEADS, D};
    struct request request = {"rope_append", {0}};
    slots[0] = a;
    slots[1] = b;
    slots[2] = c;
    add(&request, "q", ROPED_F32, 3, heads, values[0]);
    add(&request, "k", ROPED_F32, 3, heads, values[0]);
    add(&request, "v", ROPED_F32, 3, heads, values[1]);
    add(&request, "k_cache", ROPED_F32, 3, cache, values[2]);
    add(&request, "v_cache", ROPED_F32, 3, cache, values[3]);
    add(&request, "slots", ROPED_I64, 1, &n, slots);
    return request;
}

/* Is row a of x the same bits as row b of y? */
static bool same_row(const struct roped_tensor *x, int64_t a, const float *y,
                     int64_t b)
{
    enum { ROW = HEADS * D };
    return memcmp((const float *)x->data + a * ROW, y + b * ROW,
                  ROW * sizeof *y) == 0;
}

TEST(caches_come_back_with_nothing_else_changed)
{
    struct request request = append_request(3, -1, 0);
    struct answer answer = post(&request, "angles=compute");
    struct tensor_file file = {0};
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(file.n, 3);
    CHECK(!file_find(&file, "k"));
    const struct roped_tensor *k = file_find(&file, "k_cache");
    const struct roped_tensor *v = file_find(&file, "v_cache");
    CHECK(file_find(&file, "q") && k && v);
    if (k && v) {
        CHECK(same_row(k, 3, values[0], 0)); /* position 0: not rotated */
        CHECK(!same_row(k, 0, values[2], 0) && !same_row(k, 0, values[0], 2));
        CHECK(same_row(v, 3, values[1], 0) && same_row(v, 0, values[1], 2));
        for (int64_t slot = 1; slot < SLOTS; slot++)
            if (slot != 3) {
                CHECK(same_row(k, slot, values[2], slot));
                CHECK(same_row(v, slot, values[3], slot));
            }
    }
    file_free(&file);
    answer_free(&answer);
}

TEST(keys_are_returned_where_they_are_asked_for)
{
    struct request request = append_request(-1, -1, -1);
    struct answer answer = post(&request, "return_k=true");
    struct tensor_file file = {0};
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    const struct roped_tensor *k = file_find(&file, "k");
    CHECK(k && same_row(k, 0, values[0], 0) && !same_row(k, 1, values[0], 1));
    file_free(&file);
    answer_free(&answer);
}

/* slots, the last tensor, takes the place of the first cache. */
static void leave_out_caches(struct request *request)
{
    request->file.tensor[3] = *tensor_of(request, "slots");
    memcpy(request->file.name[3], "slots", sizeof "slots");
    request->file.n = 4;
}

/* Makes a region of one cache. */
static void put_region(const char *name, float *cache)
{
    static const int64_t dims[] = {SLOTS, HEADS, D};
    char path[64];
    size_t bytes;
    struct tensor_file file = {0};
    file_add(&file, name, ROPED_F32, 3, dims, cache);
    unsigned char *body = file_write(&file, &bytes);
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    expect_code(ask(&server, "PUT", path, body, bytes, NULL), 201, name, path);
    free(body);
}

/* Does row of a cache in a region hold row of values? */
static void expect_row(const char *region, int64_t row, const float *expected,
                       int64_t expected_row)
{
    char path[64];
    struct tensor_file file = {0};
    snprintf(path, sizeof path, "/v1/regions/%s", region);
    struct answer answer = get(&server, path);
    if (!file_read(&file, answer.body, answer.bytes, NULL, NULL) ||
        !same_row(&file.tensor[0], row, expected, expected_row))
        CHECK_FAIL("%s: row %lld is not that of the call", region,
                   (long long)row);
    file_free(&file);
    answer_free(&answer);
}

/* Two steps of a decoder, whose cache stays on the server. */
TEST(caches_in_regions_are_written_there)
{
    static const char query[] = "from.k_cache=keys&from.v_cache=vals";
    put_region("keys", values[2]);
    put_region("vals", values[3]);
    for (int step = 0; step < 2; step++) {
        struct request request =
            append_request(step ? 4 : 0, -1, step ? -1 : 2);
        struct tensor_file file = {0};
        leave_out_caches(&request);
        struct answer answer = post(&request, query);
        CHECK_INT(answer.code, 200);
        CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
        CHECK_INT(file.n, 1); /* q */
        file_free(&file);
        answer_free(&answer);
    }
    expect_row("vals", 0, values[1], 0);
    expect_row("vals", 2, values[1], 2);
    expect_row("vals", 4, values[1], 0);
    expect_row("keys", 4, values[0], 0); /* position 0 */
    for (int64_t row = 1; row < 4; row += 2) {
        expect_row("keys", row, values[2], row);
        expect_row("vals", row, values[3], row);
    }
    /* a call that is refused writes nothing */
    struct request twice = append_request(1, 3, 1);
    leave_out_caches(&twice);
    refuse(&twice, query, "slot 1 at index 2");
    expect_row("vals", 3, values[3], 3);
}

TEST(tokens_of_position_minus_1_are_left_as_they_are)
{
    static const int64_t n = N;
    int32_t positions[N] = {7, -1, -1};
    struct request request = append_request(3, 1, -1);
    struct tensor_file file = {0};
    add(&request, "positions", ROPED_I32, 1, &n, positions);
    struct answer answer = post(&request, "return_k=true");
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    const struct roped_tensor *q = file_find(&file, "q");
    const struct roped_tensor *k = file_find(&file, "k");
    const struct roped_tensor *cache = file_find(&file, "k_cache");
    CHECK(q && !same_row(q, 0, values[0], 0) && same_row(q, 1, values[0], 1) &&
          same_row(q, 2, values[0], 2));
    CHECK(k && !same_row(k, 0, values[0], 0) && same_row(k, 1, values[0], 1));
    CHECK(cache && !same_row(cache, 3, values[2], 3));
    for (int64_t slot = 0; slot < SLOTS && cache; slot++)
        CHECK(slot == 3 || same_row(cache, slot, values[2], slot));
    file_free(&file);
    answer_free(&answer);
}

TEST(slots_that_a_cache_has_not_are_named)
{
    struct request request = append_request(0, 5, 1);
    refuse(&request, "", "slot 5 at index 1");
    request = append_request(-2, 0, 1);
    refuse(&request, "", "slot -2 at index 0");
    request = append_request(2, 1, 2);
    refuse(&request, "", "slot 2 at index 2 is that of index 0 too");
    request = append_request(0, 1, 2);
    tensor_of(&request, "slots")->dims[0] = 2;
    refuse(&request, "", "'slots': dim 0 is 2, expected n = 3");
}

TEST(caches_that_do_not_fit_are_named)
{
    static const int64_t packed[] = {N, HEADS * D}, other[] = {SLOTS, 1, D};
    struct request request = append_request(0, 1, 2);
    tensor_of(&request, "v_cache")->dims[0] = 4;
    refuse(&request, "", "'v_cache': dim 0 is 4, expected slots = 5");
    request = append_request(0, 1, 2);
    tensor_of(&request, "v_cache")->dtype = ROPED_BF16;
    refuse(&request, "",
           "'v_cache': BF16, expected F32, the type of 'k_cache'");
    tensor_of(&request, "k_cache")->dtype = ROPED_BF16;
    refuse(&request, "",
           "'k_cache': BF16, expected F32, F8_E4M3, F8_E5M2 or U8");
    request = append_request(0, 1, 2);
    refuse(&request, "scale_k=2", "'scale_k' is given, but 'k_cache' is F32");
    refuse(&request, "cache_dtype=e5m2", "'cache_dtype' is given, but");
    refuse(&request, "kv_layout=sideways", "kv_layout");
    request = append_request(0, 1, 2);
    for (int i = 0; i < 3; i++) {
        memcpy(request.file.tensor[i].dims, packed, sizeof packed);
        request.file.tensor[i].rank = 2;
    }
    accept(&request, "head_dim=8");
    memcpy(tensor_of(&request, "k_cache")->dims, other, sizeof other);
    memcpy(tensor_of(&request, "v_cache")->dims, other, sizeof other);
    refuse(&request, "head_dim=8", "dim 1 is 1, expected hk = 2");
}

static unsigned char fp8[2][SLOTS * HEADS * D];

/* The same request with caches of codes. */
static struct request fp8_request(enum roped_dtype dtype)
{
    struct request request = append_request(3, -1, 0);
    for (int i = 3; i < 5; i++) {
        request.file.tensor[i].dtype = dtype;
        request.file.tensor[i].data = fp8[i - 3];
    }
    return request;
}

/* Keys and values become FP8, q stays what it is. */
TEST(caches_of_codes_are_written_beside_q)
{
    static const char *const queries[] = {"scale_v=2",
                                          "scale_v=2&cache_dtype=e4m3",
                                          "scale_v=2&cache_dtype=e5m2"};
    for (int i = 0; i < 3; i++) {
        struct request request = fp8_request(i ? ROPED_U8 : ROPED_F8_E4M3);
        struct answer answer = post(&request, queries[i]);
        struct tensor_file file = {0};
        float twice = 2 * values[1][0];
        CHECK_INT(answer.code, 200);
        CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
        const struct roped_tensor *q = file_find(&file, "q");
        const struct roped_tensor *v = file_find(&file, "v_cache");
        CHECK(q && q->dtype == ROPED_F32 && same_row(q, 0, values[0], 0));
        CHECK(v && ((unsigned char *)v->data)[3 * HEADS * D] ==
                       (i == 2 ? roped_float_to_e5m2(twice)
                               : roped_float_to_e4m3(twice)));
        for (int64_t at = HEADS * D; at < 3 * HEADS * D && v; at++)
            CHECK_INT(((unsigned char *)v->data)[at], 0xA5);
        file_free(&file);
        answer_free(&answer);
    }
    struct request request = fp8_request(ROPED_F8_E5M2);
    refuse(&request, "cache_dtype=e5m2", "'cache_dtype' is given, but");
    refuse(&request, "scale_k=inf", "scale_k");
}

/* What takes the place of slots. */
static void add_entries(struct request *request, int32_t *indices,
                        int32_t *indptr, int32_t *batch, int32_t *positions)
{
    static const int64_t n = N, one = 1, two = 2;
    request->file.n--; /* slots, the last */
    add(request, "page_indices", ROPED_I32, 1, &one, indices);
    add(request, "page_indptr", ROPED_I32, 1, &two, indptr);
    add(request, "batch_indices", ROPED_I32, 1, &n, batch);
    add(request, "kv_positions", ROPED_I32, 1, &n, positions);
}

/* One page whose entries are the slots of the other tests. */
static struct request page_request(void)
{
    static int32_t indices, indptr[] = {0, 1}, batch[] = {0, -1, 0};
    static int32_t positions[] = {3, 9, 0};
    static const int64_t page[] = {1, SLOTS, HEADS, D};
    struct request request = append_request(3, -1, 0);
    for (int i = 3; i < 5; i++) {
        memcpy(request.file.tensor[i].dims, page, sizeof page);
        request.file.tensor[i].rank = 4;
    }
    add_entries(&request, &indices, indptr, batch, positions);
    return request;
}

TEST(pages_take_what_slots_would)
{
    struct request paged = page_request(), slots_too = append_request(3, -1, 0);
    struct answer with_pages = post(&paged, ""), with_slots;
    struct tensor_file file = {0};
    CHECK_INT(with_pages.code, 200);
    CHECK(file_read(&file, with_pages.body, with_pages.bytes, NULL, NULL));
    const struct roped_tensor *v = file_find(&file, "v_cache");
    CHECK(v && same_row(v, 3, values[1], 0) && same_row(v, 0, values[1], 2) &&
          same_row(v, 1, values[3], 1));
    file_free(&file);
    answer_free(&with_pages);
    for (int i = 3; i < 5; i++) { /* slots of a cache with pages */
        slots_too.file.tensor[i].rank = 4;
        memcpy(slots_too.file.tensor[i].dims, (int64_t[]){1, SLOTS, HEADS, D},
               4 * sizeof(int64_t));
    }
    with_slots = post(&slots_too, "");
    CHECK(file_read(&file, with_slots.body, with_slots.bytes, NULL, NULL));
    v = file_find(&file, "v_cache");
    CHECK(v && same_row(v, 3, values[1], 0) && same_row(v, 0, values[1], 2));
    file_free(&file);
    answer_free(&with_slots);
}

TEST(places_that_are_not_whole_are_named)
{
    struct request request = page_request();
    refuse(&request, "kv_layout=hnd", "'k_cache': dim 1 is 5, expected hk = 2");
    request.file.n--;
    refuse(&request, "", "missing tensor 'kv_positions'");
    request = page_request();
    tensor_of(&request, "k_cache")->rank = 3;
    tensor_of(&request, "v_cache")->rank = 3;
    refuse(&request, "",
           "'k_cache': shape [1, 5, 2], expected rank of [pages, pagesize");
    request = append_request(0, 1, 2);
    request.file.n--;
    refuse(&request, "", "missing tensor 'page_indices' or 'slots'");
    add(&request, "slots", ROPED_I64, 1, (int64_t[]){N}, slots);
    add(&request, "page_indptr", ROPED_I32, 1, (int64_t[]){1}, slots);
    refuse(&request, "", "'slots' and 'page_indptr' are both given");
}

/* One cache takes v and then k. */
TEST(mla_has_one_cache)
{
    static const int64_t k[] = {N, D}, v[] = {N, HEADS};
    static const int64_t cache[] = {SLOTS, HEADS + D}, heads[] = {N, HEADS, D};
    static const int64_t n = N;
    struct request request = {"rope_append", {0}};
    struct tensor_file file = {0};
    slots[0] = 4, slots[1] = -1, slots[2] = 0;
    add(&request, "q", ROPED_F32, 3, heads, values[0]);
    add(&request, "k", ROPED_F32, 2, k, values[0]);
    add(&request, "v", ROPED_F32, 2, v, values[1]);
    add(&request, "k_cache", ROPED_F32, 2, cache, values[2]);
    add(&request, "slots", ROPED_I64, 1, &n, slots);
    struct answer answer = post(&request, "");
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(file.n, 2);
    const struct roped_tensor *out = file_find(&file, "k_cache");
    const float *cell = out ? (float *)out->data + 4 * cache[1] : values[3];
    CHECK(memcmp(cell, values[1], HEADS * sizeof *cell) == 0);
    CHECK(memcmp(cell + HEADS, values[0], D * sizeof *cell) == 0);
    file_free(&file);
    answer_free(&answer);
    tensor_of(&request, "k_cache")->dims[1]--;
    refuse(&request, "", "'k_cache': dim 1 is 9, expected p+d = 10");
    tensor_of(&request, "k_cache")->dims[1]++;
    add(&request, "v_cache", ROPED_F32, 2, cache, values[3]);
    refuse(&request, "", "'v_cache': not with form mla");
}

/* --------------------------------------------------- rope_quantize_append */

enum { R = 8, P = 4, PAGES = 4, PAGE_SIZE = 2, REQUESTS = 2 };

static int32_t page_indices[8]; /* 4, with room for a wider type */
static int32_t page_indptr[3], batch_indices[N];
static int32_t kv_positions[N];
static unsigned char codes[2][PAGES * PAGE_SIZE * HEADS * (R + P)];

static void add_pages(struct request *request)
{
    static const int64_t n = N, indices = 4, requests1 = REQUESTS + 1;
    static const int32_t pages[] = {2, 0, 1, 9}, indptr[] = {0, 2, 3};
    static const int32_t batch[] = {0, -1, 1}, positions[] = {3, 77, 0};
    memcpy(page_indices, pages, sizeof pages);
    memcpy(page_indptr, indptr, sizeof indptr);
    memcpy(batch_indices, batch, sizeof batch);
    memcpy(kv_positions, positions, sizeof positions);
    add(request, "page_indices", ROPED_I32, 1, &indices, page_indices);
    add(request, "page_indptr", ROPED_I32, 1, &requests1, page_indptr);
    add(request, "batch_indices", ROPED_I32, 1, &n, batch_indices);
    add(request, "kv_positions", ROPED_I32, 1, &n, kv_positions);
}

static struct request paged_request(void)
{
    static const int64_t rope[] = {N, HEADS, R}, nope[] = {N, HEADS, P};
    static const int64_t both[] = {N, HEADS, R + P};
    static const int64_t cache[] = {PAGES, PAGE_SIZE, HEADS, R + P};
    struct request request = {"rope_quantize_append", {0}};
    add(&request, "q_rope", ROPED_F32, 3, rope, values[0]);
    add(&request, "k_rope", ROPED_F32, 3, rope, values[0]);
    add(&request, "q_nope", ROPED_F32, 3, nope, values[1]);
    add(&request, "k_nope", ROPED_F32, 3, nope, values[1]);
    add(&request, "v", ROPED_F32, 3, both, values[2]);
    add(&request, "k_cache", ROPED_F8_E4M3, 4, cache, codes[0]);
    add(&request, "v_cache", ROPED_F8_E4M3, 4, cache, codes[1]);
    add_pages(&request);
    return request;
}

static struct request mla_request(void)
{
    static const int64_t q_rope[] = {N, HEADS, R}, q_nope[] = {N, HEADS, P};
    static const int64_t k_rope[] = {N, R}, k_nope[] = {N, P};
    static const int64_t ckv[] = {PAGES, PAGE_SIZE, P};
    static const int64_t kpe[] = {PAGES, PAGE_SIZE, R};
    struct request request = {"rope_quantize_append", {0}};
    add(&request, "q_rope", ROPED_F32, 3, q_rope, values[0]);
    add(&request, "k_rope", ROPED_F32, 2, k_rope, values[0]);
    add(&request, "q_nope", ROPED_F32, 3, q_nope, values[1]);
    add(&request, "k_nope", ROPED_F32, 2, k_nope, values[1]);
    add(&request, "ckv_cache", ROPED_F8_E4M3, 3, ckv, codes[0]);
    add(&request, "kpe_cache", ROPED_F8_E4M3, 3, kpe, codes[1]);
    add_pages(&request);
    return request;
}

/* Tensor that is changed in rows a and b of width, and in no other; the
 * values here make no code 0xA5. */
static void check_rows(const struct tensor_file *file, const char *name,
                       int64_t width, int64_t a, int64_t b)
{
    const struct roped_tensor *tensor = file_find(file, name);
    int64_t n = tensor ? roped_tensor_elements(tensor) : 0;
    CHECK(tensor != NULL);
    for (int64_t i = 0; i < n; i++) {
        bool is_kept = ((const unsigned char *)tensor->data)[i] == 0xA5;
        int64_t row = i / width;
        if (is_kept == (row == a || row == b)) {
            CHECK_FAIL("%s: element %lld is%s changed", name, (long long)i,
                       is_kept ? " not" : "");
            return;
        }
    }
}

/* Token 0 goes to page 0 (the second of request 0), entry 1; token 2 to page
 * 1, entry 0; token 1 nowhere. */
TEST(paged_caches_come_back_with_nothing_else_changed)
{
    for (int is_mla = 0; is_mla < 2; is_mla++) {
        struct request request = is_mla ? mla_request() : paged_request();
        struct answer answer = post(&request, "scale_k=1");
        struct tensor_file file = {0};
        int64_t cell = is_mla ? 1 : HEADS;
        CHECK_INT(answer.code, 200);
        CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
        CHECK_INT(file.n, 4);
        CHECK(file_find(&file, "q_rope") && file_find(&file, "q_nope"));
        check_rows(&file, is_mla ? "kpe_cache" : "k_cache",
                   cell * (is_mla ? R : R + P), 1, 2);
        check_rows(&file, is_mla ? "ckv_cache" : "v_cache",
                   cell * (is_mla ? P : R + P), 1, 2);
        file_free(&file);
        answer_free(&answer);
    }
}

/* v2 has no name for FP8: caches are UINT8 there, both ways. */
TEST(paged_caches_are_codes_in_v2)
{
    static const char body[] =
        "{\"inputs\":["
        "{\"name\":\"q_rope\",\"datatype\":\"FP32\",\"shape\":[1,1,2],"
        "\"data\":[0.5,4]},"
        "{\"name\":\"k_rope\",\"datatype\":\"FP32\",\"shape\":[1,2],"
        "\"data\":[1,-2]},"
        "{\"name\":\"kpe_cache\",\"datatype\":\"UINT8\",\"shape\":[1,2,2],"
        "\"data\":[9,8,7,6]},"
        "{\"name\":\"page_indices\",\"datatype\":\"INT32\",\"shape\":[1],"
        "\"data\":[0]},"
        "{\"name\":\"page_indptr\",\"datatype\":\"INT32\",\"shape\":[2],"
        "\"data\":[0,1]},"
        "{\"name\":\"batch_indices\",\"datatype\":\"INT32\",\"shape\":[1],"
        "\"data\":[0]},"
        "{\"name\":\"kv_positions\",\"datatype\":\"INT32\",\"shape\":[1],"
        "\"data\":[1]}]}";
    struct answer answer =
        ask(&server, "POST", "/v2/models/rope_quantize_append/infer", body,
            sizeof body - 1, NULL);
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "\"name\":\"kpe_cache\"");
    CHECK_CONTAINS(answer.body, "[9,8,56,192]"); /* e4m3 of 1 and of -2 */
    answer_free(&answer);
}

TEST(pages_that_a_cache_has_not_are_named)
{
    struct request request = paged_request();
    page_indices[2] = PAGES;
    refuse(&request, "", "page 4 at index 2");
    request = paged_request();
    page_indptr[1] = 4;
    refuse(&request, "", "'page_indptr': value 3 at index 2");
    request = paged_request();
    batch_indices[0] = 2;
    refuse(&request, "", "request 2 at index 0");
    request = paged_request();
    kv_positions[2] = 2;
    refuse(&request, "", "position 2 at index 2");
    request = paged_request();
    batch_indices[2] = 0;
    kv_positions[2] = 3;
    refuse(&request, "", "position 3 at index 2 is the entry of index 0 too");
    request = paged_request();
    tensor_of(&request, "page_indptr")->dims[0] = 0;
    refuse(&request, "", "'page_indptr': dim 0 is 0");
    request = paged_request();
    tensor_of(&request, "page_indices")->dtype = ROPED_I64;
    refuse(&request, "",
           "'page_indptr': I32, expected I64, the type of 'page_indices'");
}

TEST(caches_of_another_form_are_named)
{
    static const int64_t both[] = {N, HEADS, R + P};
    struct request request = mla_request();
    add(&request, "v", ROPED_F32, 3, both, values[2]);
    refuse(&request, "", "'v': not with form mla");
    request = mla_request();
    snprintf(request.file.name[4], sizeof request.file.name[4], "other");
    refuse(&request, "", "unknown tensor 'other'");
    request = paged_request();
    tensor_of(&request, "v")->dims[2] = R;
    refuse(&request, "", "'v': dim 2 is 8, expected r+p = 12");
    request = paged_request();
    for (int i = 4; i < 7; i++) /* v and both caches */
        request.file.tensor[i].dims[request.file.tensor[i].rank - 1] = R;
    refuse(&request, "", "'v': dim 2 is 8, expected r+p = 12");
    request = paged_request();
    tensor_of(&request, "v_cache")->dtype = ROPED_F8_E5M2;
    refuse(&request, "", "v_cache");
    request = paged_request();
    refuse(&request, "output_dtype=e5m2",
           "'k_cache': F8_E4M3, expected F8_E5M2 or U8 beside 'output_dtype'");
    tensor_of(&request, "k_cache")->dtype = ROPED_U8;
    refuse(&request, "",
           "'v_cache': F8_E4M3, expected U8, the type of 'k_cache'");
    tensor_of(&request, "v_cache")->dtype = ROPED_U8;
    accept(&request, "output_dtype=e5m2");
    accept(&request, "kv_layout=hnd"); /* as many heads as entries */
    refuse(&request, "scale_k=0", "scale_k");
    refuse(&request, "scale_v=0", "scale_v");
}

int main(void)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < SLOTS * HEADS * D; j++)
            values[i][j] = (float)(j % 17) * 0.25f - 2 + (float)i;
    memset(codes, 0xA5, sizeof codes);
    memset(fp8, 0xA5, sizeof fp8);
    server_start(&server, NULL);
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
