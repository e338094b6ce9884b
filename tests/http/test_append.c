/*
 * test_append.c - operators that write into KV caches, and qk_rmsnorm_rope,
 * over HTTP: a cache that was sent comes back whole, with nothing changed but
 * the addressed entries; what their rules and index values forbid is refused
 * by name.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

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
    refuse(&request, "", "'q_weight': F16, expected BF16 or F32");
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
    refuse(&request, "", "'v_cache': BF16, but T is F32");
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

int main(void)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < SLOTS * HEADS * D; j++)
            values[i][j] = (float)(j % 17) * 0.25f - 2 + (float)i;
    server_start(&server, NULL);
    RUN(rules_of_qk_rmsnorm_rope_are_kept);
    RUN(caches_come_back_with_nothing_else_changed);
    RUN(keys_are_returned_where_they_are_asked_for);
    RUN(slots_that_a_cache_has_not_are_named);
    RUN(caches_that_do_not_fit_are_named);
    if (!server_stop(&server))
        check_n_failed++;
    return check_done();
}
