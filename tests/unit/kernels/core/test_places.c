/*
 * test_places.c - where tokens go in a cache: what plan refuses, before
 * anything is launched.
 */
#include "check.h"

#include <roped/op.h>

/* Binds packed data: a rank and dims stand behind it. */
static void bind(struct roped_call *call, const char *name,
                 enum roped_dtype dtype, const void *data, int rank,
                 const int64_t *dims)
{
    struct roped_error err = {.text = ""};
    struct roped_tensor tensor = {.dtype = dtype, .rank = rank};
    memcpy(tensor.dims, dims, (size_t)rank * sizeof *dims);
    tensor.data = (void *)(uintptr_t)data;
    CHECK_OK(roped_call_bind(call, name, &tensor, &err), &err);
}
#define BIND(call, name, dtype, data, ...)                                     \
    bind(call, name, dtype, data,                                              \
         sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                   \
         (int64_t[]){__VA_ARGS__})

/* refusal: NULL where there is none. */
static void expect_plan(struct roped_call *call, const char *refusal)
{
    struct roped_error err = {.text = ""};
    CHECK_OK(roped_call_resolve(call, &err), &err);
    size_t bytes = roped_call_aux_bytes(call);
    call->aux = aligned_alloc(64, (bytes + 64) / 64 * 64);
    enum roped_status status = roped_call_plan(call, &err);
    free(call->aux);
    if (!refusal) {
        CHECK_OK(status, &err);
        return;
    }
    CHECK_INT(status, ROPED_BAD_VALUE);
    CHECK_CONTAINS(err.text, refusal);
}

static const float values[256];

/* -------------------------------------------------------------------- slots */

/* Three tokens, eight slots in pages of two. */
static void expect_slots(const int64_t *slots, const char *refusal)
{
    static struct roped_call call;
    roped_call_init(&call, roped_op_find("rope_append"));
    BIND(&call, "q", ROPED_F32, values, 3, 2, 8);
    BIND(&call, "k", ROPED_F32, values, 3, 1, 8);
    BIND(&call, "v", ROPED_F32, values, 3, 1, 8);
    BIND(&call, "k_cache", ROPED_F32, values, 8, 1, 8);
    BIND(&call, "v_cache", ROPED_F32, values, 8, 1, 8);
    BIND(&call, "slots", ROPED_I64, slots, 3);
    expect_plan(&call, refusal);
}

TEST(slots_outside_the_cache_and_shared_ones_are_refused)
{
    expect_slots((int64_t[]){0, 8, 1}, "slot 8 at index 1");
    expect_slots((int64_t[]){0, 1, -2}, "slot -2 at index 2");
    expect_slots((int64_t[]){INT64_MAX, 1, 2}, "at index 0");
    expect_slots((int64_t[]){5, 1, 5}, "slot 5 at index 2 is that of index 0");
}

TEST(tokens_without_a_slot_share_nothing)
{
    expect_slots((int64_t[]){-1, -1, 7}, NULL);
}

/* -------------------------------------------------------------------- pages */

/* Three tokens, two requests of two pages of four entries, six pages; an index
 * that nobody reads. */
struct index_values {
    int64_t indices[5], indptr[3], requests[3], positions[3];
};
static const struct index_values sound = {
    {3, 0, 5, 2, -7}, {0, 2, 4}, {0, 1, -1}, {7, 0, 99}};

static void expect(const struct index_values *index, const char *refusal)
{
    static struct roped_call call;
    roped_call_init(&call, roped_op_find("rope_quantize_append"));
    BIND(&call, "q_rope", ROPED_F32, values, 3, 2, 8);
    BIND(&call, "k_rope", ROPED_F32, values, 3, 2, 8);
    BIND(&call, "v", ROPED_F32, values, 3, 2, 8);
    BIND(&call, "k_cache", ROPED_F8_E4M3, values, 6, 4, 2, 8);
    BIND(&call, "v_cache", ROPED_F8_E4M3, values, 6, 4, 2, 8);
    BIND(&call, "page_indices", ROPED_I64, index->indices, 5);
    BIND(&call, "page_indptr", ROPED_I64, index->indptr, 3);
    BIND(&call, "batch_indices", ROPED_I64, index->requests, 3);
    BIND(&call, "kv_positions", ROPED_I64, index->positions, 3);
    expect_plan(&call, refusal);
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
