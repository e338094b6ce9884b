/*
 * test_pairs.c - a table says which elements of a head pair, and calls that do
 * not say it follow: of every rotary operator, in both protocols.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <roped/op.h>

static struct server server;

enum { N = 3, HEADS = 2, D = 8, SLOTS = 5 }; /* of every call here */

static float values[SLOTS * HEADS * D];
static unsigned char codes[SLOTS * HEADS * D];

static struct answer put(const char *path, const char *json)
{
    return ask(&server, "PUT", path, json, strlen(json), NULL);
}

/* ---------------------------------------------------------- every operator */

static void add_heads(struct tensor_file *file, const char *name)
{
    static const int64_t heads[] = {N, HEADS, D};
    file_add(file, name, ROPED_F32, 3, heads, values);
}

static void add_index(struct tensor_file *file, const char *name, int64_t n,
                      int32_t *index)
{
    file_add(file, name, ROPED_I32, 1, &n, index);
}

/* A cache of one page, and the entries that the tokens go to. */
static void add_cache(struct tensor_file *file, bool has_codes)
{
    static const int64_t page[] = {1, SLOTS, HEADS, D};
    static int32_t indices, indptr[] = {0, 1}, batch[N], places[] = {3, 1, 0};
    enum roped_dtype dtype = has_codes ? ROPED_F8_E4M3 : ROPED_F32;
    void *data = has_codes ? (void *)codes : values;
    add_heads(file, "v");
    file_add(file, "k_cache", dtype, 4, page, data);
    file_add(file, "v_cache", dtype, 4, page, data);
    add_index(file, "page_indices", 1, &indices);
    add_index(file, "page_indptr", 2, indptr);
    add_index(file, "batch_indices", N, batch);
    add_index(file, "kv_positions", N, places);
}

static struct tensor_file inputs_of(const char *op)
{
    bool has_parts = strncmp(op, "rope_quantize", 13) == 0;
    struct tensor_file file = {0};
    add_heads(&file, has_parts ? "q_rope" : "q");
    add_heads(&file, has_parts ? "k_rope" : "k");
    if (strstr(op, "_append"))
        add_cache(&file, has_parts);
    return file;
}

static struct answer post(const char *op, const char *query)
{
    char path[128];
    size_t bytes;
    struct tensor_file file = inputs_of(op);
    unsigned char *body = file_write(&file, &bytes);
    snprintf(path, sizeof path, "/v1/%s?%s", op, query);
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    free(body);
    return answer;
}

/* Are two answers the same bytes? Frees them. */
static bool are_same(struct answer x, struct answer y)
{
    bool is_same = x.bytes == y.bytes && memcmp(x.body, y.body, x.bytes) == 0;
    if (x.code != 200 || y.code != 200)
        CHECK_FAIL("%d and %d: %s", x.code, y.code,
                   x.code == 200 ? y.body : x.body);
    answer_free(&x);
    answer_free(&y);
    return is_same;
}

TEST(tables_say_which_elements_pair)
{
    int n = 0;
    for (int i = 0; i < SLOTS * HEADS * D; i++)
        values[i] = (float)(i % 7 + 1);
    expect_code(put("/v1/tables/pairs", "{\"style\":\"gptj\"}"), 201,
                "\"style\":\"gptj\"", "in the body");
    expect_code(put("/v1/tables/asked?style=gptj", "{\"theta\":10000}"), 201,
                "\"style\":\"gptj\"", "in the query");
    for (int i = 0; i < roped_op_count(); i++) {
        const char *op = roped_op_at(i)->name;
        if (roped_op_at(i)->angles_offset == ROPED_NO_ANGLES)
            continue;
        n++;
        CHECK(!are_same(post(op, "style=gptj"), post(op, "style=neox")));
        CHECK(are_same(post(op, "table=pairs"), post(op, "style=gptj")));
        CHECK(are_same(post(op, "table=asked"), post(op, "style=gptj")));
        CHECK(are_same(post(op, "table=pairs&style=neox"),
                       post(op, "style=neox")));
    }
    CHECK_INT(n, 6);
}

/* ------------------------------------------------------------------ models */

static struct answer infer(const char *parameters)
{
    char body[512];
    int bytes = snprintf(
        body, sizeof body,
        "{\"parameters\":{%s},\"inputs\":[{\"name\":\"q\",\"datatype\":"
        "\"FP32\",\"shape\":[1,1,8],\"data\":[1,2,3,4,5,6,7,8]},"
        "{\"name\":\"positions\",\"datatype\":\"INT64\",\"shape\":[1],"
        "\"data\":[3]}]}",
        parameters);
    return ask(&server, "POST", "/v2/models/rope/infer", body, (size_t)bytes,
               NULL);
}

/* Do two v2 calls of the same q answer the same? */
static bool same_inference(const char *a, const char *b)
{
    struct answer x = infer(a), y = infer(b);
    bool is_same = x.code == 200 && y.code == 200 && x.bytes == y.bytes &&
                   memcmp(x.body, y.body, x.bytes) == 0;
    answer_free(&x);
    answer_free(&y);
    return is_same;
}

TEST(tables_of_models_have_their_pairs)
{
    static const char glm[] = "{\"model_type\":\"glm\",\"head_dim\":8,"
                              "\"partial_rotary_factor\":1,\"rope_theta\":1e4}";
    static const char unknown[] = "{\"model_type\":\"new\",\"head_dim\":8,"
                                  "\"rope_theta\":1e4}";
    expect_code(put("/v1/tables/glm", glm), 201, "\"style\":\"gptj\"",
                "a model whose pairs are adjacent");
    expect_code(get(&server, "/v1/tables/glm"), 200, "\"style\":\"gptj\"",
                "GET shows them");
    expect_code(get(&server, "/v1/tables"), 200, "\"style\":\"gptj\"",
                "the list shows them");
    CHECK(same_inference("\"table\":\"glm\"", "\"style\":\"gptj\""));
    CHECK(same_inference("\"table\":\"glm\",\"style\":\"neox\"", ""));
    CHECK(!same_inference("\"table\":\"glm\"", ""));
    expect_code(put("/v1/tables/new", unknown), 400,
                "model_type 'new' is not known", "no guess");
    expect_code(put("/v1/tables/new?style=gptj", unknown), 201,
                "\"style\":\"gptj\"", "said by the request");
    expect_code(put("/v1/tables/new?style=half", unknown), 400, "'half'",
                "no style");
    expect_code(put("/v1/tables/new?stile=neox", unknown), 400,
                "parameter 'stile'", "an unknown parameter");
    expect_code(put("/v1/tables/new?style=neox&style=neox", unknown), 400,
                "once", "given twice");
}

int main(void)
{
    server_start(&server, NULL);
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
