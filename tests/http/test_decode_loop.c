/*
 * test_decode_loop.c - a decode loop of 1,000 steps over HTTP. Where a backend
 * has recordings, each lane makes one, and one more when the table of angles
 * grows, and no step is launched otherwise but the first of each lane. Whatever
 * the backend, all bits are those of separate calls.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

enum { STEPS = 1000, HEAD = 64, HEADS = 2, SLOTS = STEPS, FIRST = 3600 };
enum { TOKEN = HEADS * HEAD };
static struct server server;
static float keys[STEPS * HEADS * HEAD], values[STEPS * HEADS * HEAD];
static float weight[HEAD], zeros[SLOTS * HEADS * HEAD];

static const char document[] =
    "{\"inputs\": [\"k\", \"v\", \"positions\", \"slots\"],"
    " \"steps\": ["
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"k\", \"weight\": \"@weight\"},"
    " \"out\": {\"y\": \"normal\"}},"
    "{\"op\": \"rope_append\","
    " \"in\": {\"q\": \"normal\", \"k\": \"normal\", \"v\": \"v\","
    " \"k_cache\": \"@keys\", \"v_cache\": \"@values\","
    " \"slots\": \"slots\", \"positions\": \"positions\"},"
    " \"params\": {\"angles\": \"table\"},"
    " \"out\": {\"q\": \"q\"}}],"
    " \"outputs\": [\"q\"]}";

static void fill(float *to, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)seed / 1e9f;
    }
}

static void put_regions(void)
{
    const int64_t cells[3] = {SLOTS, HEADS, HEAD}, width[1] = {HEAD};
    store_region(&server, "weight", ROPED_F32, 1, width, weight);
    store_region(&server, "keys", ROPED_F32, 3, cells, zeros);
    store_region(&server, "values", ROPED_F32, 3, cells, zeros);
}

/* The tensor of the answer, of one token. */
static bool send(const char *path, struct tensor_file *file, float *to)
{
    struct tensor_file found = {0};
    struct answer answer = ask_file(&server, "POST", path, file);
    bool is_good = answer.code == 200 &&
                   file_read(&found, answer.body, answer.bytes, NULL, NULL) &&
                   found.n == 1;
    if (is_good)
        memcpy(to, found.tensor[0].data, TOKEN * sizeof *to);
    else
        CHECK_FAIL("%s answered %d %.200s", path, answer.code, answer.body);
    file_free(&found);
    answer_free(&answer);
    return is_good;
}

static const int64_t heads[3] = {1, HEADS, HEAD}, one[1] = {1};

static void add_place(struct tensor_file *file, int token, int64_t *position,
                      int64_t *slot)
{
    *position = FIRST + token;
    *slot = token * 7 % SLOTS;
    file_add(file, "v", ROPED_F32, 3, heads, values + token * TOKEN);
    file_add(file, "positions", ROPED_I64, 1, one, position);
    file_add(file, "slots", ROPED_I64, 1, one, slot);
}

static bool by_program(int token, float *q)
{
    int64_t position, slot;
    struct tensor_file file = {0};
    file_add(&file, "k", ROPED_F32, 3, heads, keys + token * TOKEN);
    add_place(&file, token, &position, &slot);
    return send("/v1/programs/loop", &file, q);
}

static bool by_calls(int token, float *q)
{
    int64_t position, slot;
    float normal[TOKEN];
    struct tensor_file first = {0}, second = {0};
    file_add(&first, "x", ROPED_F32, 3, heads, keys + token * TOKEN);
    if (!send("/v1/rmsnorm?from.weight=weight", &first, normal))
        return false;
    file_add(&second, "q", ROPED_F32, 3, heads, normal);
    file_add(&second, "k", ROPED_F32, 3, heads, normal);
    add_place(&second, token, &position, &slot);
    return send("/v1/rope_append?angles=table&from.k_cache=keys&"
                "from.v_cache=values",
                &second, q);
}

static void read_cache(const char *path, float *to)
{
    struct tensor_file file = {0};
    struct answer answer = get(&server, path);
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    memcpy(to, file.tensor[0].data, sizeof zeros);
    file_free(&file);
    answer_free(&answer);
}

static double of_programs(const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "roped_program_%s_total{device=\"0\"}", what);
    return metric(&server, name);
}

TEST(a_decode_loop_is_one_recording_on_each_lane)
{
    enum { ALL = STEPS * HEADS * HEAD };
    static float q[2][ALL], k_cache[2][ALL], v_cache[2][ALL];
    fill(keys, ALL, 1);
    fill(values, ALL, 2);
    fill(weight, HEAD, 3);
    put_regions();
    struct answer answer = ask(&server, "PUT", "/v1/programs/loop", document,
                               sizeof document - 1, NULL);
    CHECK_INT(answer.code, 201);
    answer_free(&answer);
    for (int i = 0; i < STEPS; i++)
        if (!by_program(i, q[0] + i * TOKEN))
            return;
    read_cache("/v1/regions/keys", k_cache[0]);
    read_cache("/v1/regions/values", v_cache[0]);

    double captures = of_programs("captures"), replays = of_programs("replays");
    double lanes = metric_sum(&server, "roped_lanes{device=\"0\"");
    printf("%.0f lanes, %.0f steps recorded, %.0f repeated\n", lanes, captures,
           replays);
    CHECK_DOUBLE(of_programs("fallbacks"), 0, 0);
    CHECK(captures <= 2 * lanes);
    CHECK(captures == 0 || replays >= STEPS - 3 * lanes);

    put_regions();
    for (int i = 0; i < STEPS; i++)
        if (!by_calls(i, q[1] + i * TOKEN))
            return;
    read_cache("/v1/regions/keys", k_cache[1]);
    read_cache("/v1/regions/values", v_cache[1]);
    CHECK(memcmp(q[0], q[1], sizeof q[0]) == 0);
    CHECK(memcmp(k_cache[0], k_cache[1], sizeof k_cache[0]) == 0);
    CHECK(memcmp(v_cache[0], v_cache[1], sizeof v_cache[0]) == 0);
}

/* Eight layers, whose angles are the same: the table is looked for once. */
TEST(layers_of_one_model_share_a_table)
{
    static float q[TOKEN];
    static const char layers[] =
        "{\"inputs\": [\"h0\", \"positions\"], \"steps\": [{\"repeat\": 8, "
        "\"steps\": [{\"op\": \"rope\", \"in\": {\"q\": \"h{i}\", "
        "\"positions\": \"positions\"}, \"out\": {\"q\": \"h{i+1}\"}, "
        "\"params\": {\"theta\": 777, \"angles\": \"table\"}}]}], "
        "\"outputs\": [\"h8\"]}";
    int64_t position = 5;
    struct answer answer = ask(&server, "PUT", "/v1/programs/layers", layers,
                               sizeof layers - 1, NULL);
    CHECK_INT(answer.code, 201);
    answer_free(&answer);
    double hits = metric(&server, "roped_table_hits_total"),
           builds = metric(&server, "roped_table_builds_total");
    for (int i = 0; i < 3; i++) {
        struct tensor_file file = {0};
        file_add(&file, "h0", ROPED_F32, 3, heads, keys);
        file_add(&file, "positions", ROPED_I64, 1, one, &position);
        CHECK(send("/v1/programs/layers", &file, q));
    }
    CHECK_DOUBLE(metric(&server, "roped_table_builds_total"), builds + 1, 0);
    CHECK_DOUBLE(metric(&server, "roped_table_hits_total"), hits + 2, 0);
}

int main(void)
{
    server_start(&server, NULL);
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
