/*
 * test_chain.c - steps of a decoder with everything but the token's hidden row
 * resident: rmsnorm -> qk_rmsnorm_rope -> append, chained through regions, in
 * F32 and BF16, into slots and into FP8 pages. Caches and q are compared with
 * the whole chain in float64, and what crosses the wire is counted.
 *
 * There is no projection: the normalised row is taken for q, k and v, one after
 * the other, as a kernel beside the server would leave them there.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <roped/numeric.h>

enum { Q_HEADS = 4, K_HEADS = 2, WIDTH = 64 };
enum { K_AT = Q_HEADS, V_AT = K_AT + K_HEADS, HEADS = V_AT + K_HEADS };
enum { ROW = HEADS * WIDTH, CELL = K_HEADS * WIDTH };
enum { PAGES = 4, PAGE_SIZE = 4, SLOTS = PAGES * PAGE_SIZE };
enum { N_TOKENS = 6, FIRST_POSITION = 40000, UNTOUCHED = 0xA5 };

static struct server server;

/* Slots of the tokens, or entries of the one request's pages. */
static const int32_t places[N_TOKENS] = {5, 0, 15, 6, 1, 10};
static const int32_t page_indices[PAGES] = {2, 0, 3, 1};

static float hidden[N_TOKENS][ROW], weight[ROW];
static float q_weight[WIDTH], k_weight[WIDTH];

struct chain {
    enum roped_dtype dtype;
    bool is_paged;
    uint64_t sent, received; /* bytes of bodies, as the client saw them */
};

/* ----------------------------------------------------------------- values */

/* About normal, times scale, plus middle; of the chain's type. */
static void fill(const struct chain *chain, float *to, int n, float scale,
                 float middle)
{
    static uint64_t state = 88172645463325252u;
    for (int i = 0; i < n; i++) {
        float sum = -2;
        for (int j = 0; j < 4; j++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum += (float)(state >> 40) * 0x1p-24f;
        }
        to[i] = middle + scale * sum;
        if (chain->dtype == ROPED_BF16)
            to[i] = roped_bf16_to_float(roped_float_to_bf16(to[i]));
    }
}

static double value_at(const void *data, enum roped_dtype dtype, int64_t i)
{
    switch (dtype) {
    case ROPED_BF16:
        return (double)roped_bf16_to_float(((const uint16_t *)data)[i]);
    case ROPED_F8_E4M3:
        return (double)roped_e4m3_to_float(((const uint8_t *)data)[i]);
    default:
        return (double)((const float *)data)[i];
    }
}

/* The body with one tensor of n elements, narrowed to the chain's type. */
static unsigned char *body_of(const struct chain *chain, const char *name,
                              int rank, int64_t n, const float *values,
                              size_t *bytes)
{
    int64_t dims[2] = {rank == 1 ? n : 1, n};
    uint16_t narrow[ROW];
    struct tensor_file file = {0};
    for (int64_t i = 0; i < n; i++)
        narrow[i] = roped_float_to_bf16(values[i]);
    void *data = chain->dtype == ROPED_BF16
                     ? (void *)narrow
                     : (void *)(uintptr_t)(const void *)values;
    file_add(&file, name, chain->dtype, rank, dims, data);
    return file_write(&file, bytes);
}

/* ---------------------------------------------------------------- regions */

static void put(const char *name, const void *body, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    expect_code(ask(&server, "PUT", path, body, bytes, NULL), 201, "", path);
}

static void put_values(const struct chain *chain, const char *name, int n,
                       const float *values)
{
    size_t bytes;
    unsigned char *body = body_of(chain, name, 1, n, values, &bytes);
    put(name, body, bytes);
    free(body);
}

static void put_indexes(const char *name, int64_t n, const int32_t *indexes)
{
    size_t bytes;
    struct tensor_file file = {0};
    file_add(&file, name, ROPED_I32, 1, &n,
             (void *)(uintptr_t)(const void *)indexes);
    unsigned char *body = file_write(&file, &bytes);
    put(name, body, bytes);
    free(body);
}

static enum roped_dtype cache_dtype(const struct chain *chain)
{
    return chain->is_paged ? ROPED_F8_E4M3 : chain->dtype;
}

/* A cache whose every byte is one that this test can tell from a token's. */
static void put_cache(const struct chain *chain, const char *name)
{
    static unsigned char data[sizeof(float[SLOTS][CELL])];
    int64_t paged[4] = {PAGES, PAGE_SIZE, K_HEADS, WIDTH};
    int64_t slots[3] = {SLOTS, K_HEADS, WIDTH};
    size_t bytes;
    struct tensor_file file = {0};
    memset(data, UNTOUCHED, sizeof data);
    file_add(&file, name, cache_dtype(chain), chain->is_paged ? 4 : 3,
             chain->is_paged ? paged : slots, data);
    unsigned char *body = file_write(&file, &bytes);
    put(name, body, bytes);
    free(body);
}

static void prepare(const struct chain *chain)
{
    static const int32_t indptr[2] = {0, PAGES}, request = 0;
    fill(chain, &hidden[0][0], N_TOKENS * ROW, 1.7f, 0);
    fill(chain, weight, ROW, 0.25f, 1);
    fill(chain, q_weight, WIDTH, 0.25f, 1);
    fill(chain, k_weight, WIDTH, 0.25f, 1);
    put_values(chain, "weight", ROW, weight);
    put_values(chain, "q_weight", WIDTH, q_weight);
    put_values(chain, "k_weight", WIDTH, k_weight);
    put_values(chain, "row", ROW, weight); /* to be written */
    put_cache(chain, "k_cache");
    put_cache(chain, "v_cache");
    put_indexes("places", N_TOKENS, places);
    if (!chain->is_paged)
        return;
    put_indexes("page_indices", PAGES, page_indices);
    put_indexes("page_indptr", 2, indptr);
    put_indexes("batch_indices", 1, &request);
    expect_code(ask(&server, "PUT",
                    "/v1/regions/q_codes?dtype=F8_E4M3&shape=1,4,64", "", 0,
                    NULL),
                201, "\"bytes\":256", "q_codes");
}

/* ------------------------------------------------------------------- steps */

/* A call that returns no tensor. */
static void call(struct chain *chain, const char *path, const void *body,
                 size_t bytes)
{
    struct tensor_file file = {0};
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    chain->sent += bytes;
    chain->received += answer.bytes;
    if (answer.code != 200 ||
        !file_read(&file, answer.body, answer.bytes, NULL, NULL))
        CHECK_FAIL("%s: answered %d %.200s", path, answer.code, answer.body);
    CHECK_INT(file.n, 0);
    file_free(&file);
    answer_free(&answer);
}

/* Appends "&from.NAME=row:AT&shape.NAME=1,HEADS,WIDTH". */
static void from_row(const struct chain *chain, char *path, size_t size,
                     const char *name, int first_head, int n_heads)
{
    size_t used = strlen(path);
    snprintf(path + used, size - used, "&from.%s=row:%zu&shape.%s=1,%d,%d",
             name,
             (size_t)(first_head * WIDTH) * roped_dtype_bytes(chain->dtype),
             name, n_heads, WIDTH);
}

static void append(struct chain *chain, int token)
{
    bool is_paged = chain->is_paged;
    const char *place = is_paged ? "kv_positions" : "slots";
    char path[1024];
    /* q and k are rotated already: no position is position 0 */
    snprintf(path, sizeof path,
             "/v1/%s?from.k_cache=k_cache&from.v_cache=v_cache&from.%s="
             "places:%zu&shape.%s=1%s",
             is_paged ? "rope_quantize_append" : "rope_append", place,
             (size_t)token * sizeof *places, place,
             is_paged ? "&from.page_indices=page_indices&from.page_indptr="
                        "page_indptr&from.batch_indices=batch_indices&into."
                        "q_rope=q_codes"
                      : "&into.q=row");
    from_row(chain, path, sizeof path, is_paged ? "q_rope" : "q", 0, Q_HEADS);
    from_row(chain, path, sizeof path, is_paged ? "k_rope" : "k", K_AT,
             K_HEADS);
    from_row(chain, path, sizeof path, "v", V_AT, K_HEADS);
    call(chain, path, "", 0);
}

static void step(struct chain *chain, int token)
{
    char path[1024];
    size_t bytes;
    unsigned char *body = body_of(chain, "x", 2, ROW, hidden[token], &bytes);
    call(chain, "/v1/rmsnorm?eps=1e-6&from.weight=weight&into.y=row", body,
         bytes);
    free(body);
    snprintf(path, sizeof path,
             "/v1/qk_rmsnorm_rope?eps=1e-6&theta=1e6&offset=%d&from.q_weight="
             "q_weight&from.k_weight=k_weight&into.q=row&into.k=row:%zu",
             FIRST_POSITION + token,
             (size_t)(K_AT * WIDTH) * roped_dtype_bytes(chain->dtype));
    from_row(chain, path, sizeof path, "q", 0, Q_HEADS);
    from_row(chain, path, sizeof path, "k", K_AT, K_HEADS);
    call(chain, path, "", 0);
    append(chain, token);
}

/* --------------------------------------------------------------- reference */

static void norm(double *x, const float *gain, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] *= (double)gain[i] / sqrt(sum / n + 1e-6);
}

/* Exact but for the angle, which is the float32 number of trained models. */
static void rotate(double *head, int position)
{
    for (int i = 0; i < WIDTH / 2; i++) {
        float frequency = 1 / (float)pow(1e6, (double)(2 * i) / WIDTH);
        float angle = (float)position * frequency;
        double c = cos((double)angle), s = sin((double)angle);
        double a = head[i], b = head[i + WIDTH / 2];
        head[i] = a * c - b * s;
        head[i + WIDTH / 2] = b * c + a * s;
    }
}

/* q, k and v of a token, unrounded. */
static void reference(int token, double row[HEADS][WIDTH])
{
    for (int i = 0; i < ROW; i++)
        row[i / WIDTH][i % WIDTH] = (double)hidden[token][i];
    norm(row[0], weight, ROW);
    for (int head = 0; head < V_AT; head++) {
        norm(row[head], head < K_AT ? q_weight : k_weight, WIDTH);
        rotate(row[head], FIRST_POSITION + token);
    }
}

/* What a head may be off: each call may add its own rounding. Four halves of a
 * BF16 unit of the head's largest, or what F32 is held to, which is 1e-6 of the
 * largest of whole rows. */
static double bound_of(const struct chain *chain, const double *head)
{
    double largest = 0;
    for (int i = 0; i < WIDTH; i++)
        largest = fmax(largest, fabs(head[i]));
    return largest * (chain->dtype == ROPED_BF16 ? 0x1p-7 : 1e-5);
}

/* Data, of a cache's type, beside the reference of so many values. */
static void expect_heads(const struct chain *chain, const char *what,
                         const void *data, const double *expected, int n)
{
    enum roped_dtype dtype = cache_dtype(chain);
    for (int i = 0; i < n; i++) {
        double found = value_at(data, dtype, i);
        double bound = bound_of(chain, &expected[i - i % WIDTH]);
        if (dtype == ROPED_F8_E4M3) /* half a unit, and of subnormals */
            bound += fabs(expected[i]) * 0x1p-4 + 0x1p-10;
        if (fabs(found - expected[i]) <= bound)
            continue;
        CHECK_FAIL("%s: head %d, element %d is %g, expected %g within %g", what,
                   i / WIDTH, i % WIDTH, found, expected[i], bound);
        return;
    }
}

/* The one tensor of a region; free it. */
static struct tensor_file read_region(const char *name)
{
    char path[64];
    struct tensor_file file = {0};
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    struct answer answer = get(&server, path);
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(file.n, 1);
    answer_free(&answer);
    return file;
}

static void check_cache(const struct chain *chain, const char *name,
                        int first_head)
{
    struct tensor_file file = read_region(name);
    enum roped_dtype dtype = cache_dtype(chain);
    size_t cell_bytes = (size_t)CELL * roped_dtype_bytes(dtype);
    unsigned char untouched[sizeof(float[CELL])];
    bool is_used[SLOTS] = {false};
    double row[HEADS][WIDTH];
    memset(untouched, UNTOUCHED, sizeof untouched);
    CHECK_INT(file.tensor[0].dtype, dtype);
    CHECK_INT(roped_tensor_bytes(&file.tensor[0]), SLOTS * cell_bytes);
    const unsigned char *data = file.tensor[0].data;
    for (int token = 0; token < N_TOKENS && data; token++) {
        int place = places[token];
        int slot = chain->is_paged
                       ? page_indices[place / PAGE_SIZE] * PAGE_SIZE +
                             place % PAGE_SIZE
                       : place;
        is_used[slot] = true;
        reference(token, row);
        expect_heads(chain, name, data + (size_t)slot * cell_bytes,
                     row[first_head], CELL);
    }
    for (int slot = 0; slot < SLOTS && data; slot++)
        CHECK(is_used[slot] || memcmp(data + (size_t)slot * cell_bytes,
                                      untouched, cell_bytes) == 0);
    file_free(&file);
}

static void check_q(const struct chain *chain)
{
    struct tensor_file file = read_region(chain->is_paged ? "q_codes" : "row");
    double row[HEADS][WIDTH];
    reference(N_TOKENS - 1, row);
    if (file.n == 1)
        expect_heads(chain, "q", file.tensor[0].data, row[0], Q_HEADS * WIDTH);
    file_free(&file);
}

/* ------------------------------------------------------------------- bytes */

/* Of a counter, over the operators of the chain. */
static double total(const struct chain *chain, const char *counter)
{
    const char *ops[] = {"rmsnorm", "qk_rmsnorm_rope",
                         chain->is_paged ? "rope_quantize_append"
                                         : "rope_append"};
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s{op=\"%s\"} ", counter, ops[i]);
        sum += metric(&server, name);
    }
    return sum;
}

/* The hidden rows crossed the wire, with a header each, and nothing but the
 * headers of files without tensors came back: in the server's count, too. */
static void check_bytes(const struct chain *chain)
{
    enum { HEADER = 128 };
    uint64_t row = (uint64_t)ROW * roped_dtype_bytes(chain->dtype);
    CHECK(chain->sent >= N_TOKENS * row);
    CHECK(chain->sent <= N_TOKENS * (row + HEADER));
    CHECK(chain->received <= (uint64_t)N_TOKENS * 3 * HEADER);
    CHECK_DOUBLE(total(chain, "roped_request_bytes_total"), (double)chain->sent,
                 0);
    CHECK_DOUBLE(total(chain, "roped_response_bytes_total"),
                 (double)chain->received, 0);
    printf("%s, %s: %llu bytes sent and %llu received per token, %.0f stay\n",
           roped_dtype_name(chain->dtype),
           chain->is_paged ? "FP8 pages" : "slots",
           (unsigned long long)chain->sent / N_TOKENS,
           (unsigned long long)chain->received / N_TOKENS,
           metric(&server, "roped_region_bytes{kind=\"resident\"} "));
}

static void run(enum roped_dtype dtype, bool is_paged)
{
    struct chain chain = {.dtype = dtype, .is_paged = is_paged};
    server_start(&server, NULL);
    prepare(&chain);
    for (int token = 0; token < N_TOKENS; token++)
        step(&chain, token);
    check_bytes(&chain);
    check_cache(&chain, "k_cache", K_AT);
    check_cache(&chain, "v_cache", V_AT);
    check_q(&chain);
    CHECK(server_stop(&server));
}

TEST(tokens_go_into_slots)
{
    run(ROPED_F32, false);
}

TEST(narrow_tokens_go_into_slots)
{
    run(ROPED_BF16, false);
}

TEST(tokens_go_into_pages)
{
    run(ROPED_F32, true);
}

TEST(narrow_tokens_go_into_pages)
{
    run(ROPED_BF16, true);
}
