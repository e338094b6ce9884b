/*
 * test_devices.c - one daemon with several devices. The same device twice is
 * two of them, so that any machine will do; ROPED_TEST_DEVICES names others for
 * what holds of any number.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { N_CLIENTS = 8, H = 64 };
static struct server server;
static atomic_int n_right, n_wrong;

/* One lane each, so that a second call at once must go to the second. */
static const char *const twice[] = {"--devices", "0,0", "--lanes", "1", NULL};

static struct answer put(const char *path)
{
    return ask(&server, "PUT", path, NULL, 0, NULL);
}

static struct answer post(const char *path, const void *body, size_t bytes)
{
    return ask(&server, "POST", path, body, bytes, NULL);
}

static double jobs_of(int device)
{
    char name[64];
    snprintf(name, sizeof name, "roped_device_jobs_total{device=\"%d\"}",
             device);
    return metric(&server, name);
}

TEST(devices_are_listed_and_measured)
{
    server_start(&server, twice);
    expect_code(get(&server, "/v1/devices"), 200,
                "\"devices\":[{\"device\":0,\"index\":0,", "list");
    expect_code(get(&server, "/v1/devices"), 200, "{\"device\":1,\"index\":0,",
                "the second");
    CHECK(call_ones(&server, 4, H));
    expect_metric(&server, "roped_lanes{device=\"0\",state=\"idle\"}", 1);
    expect_metric(&server, "roped_lanes{device=\"1\",state=\"idle\"}", 1);
    expect_metric(&server, "roped_device_healthy{device=\"1\"}", 1);
    expect_metric(&server, "roped_device_errors_total{device=\"1\"}", 0);
    expect_metric(&server, "roped_device_jobs_total{device=\"0\"}", 1);
    expect_metric(&server, "roped_device_jobs_total{device=\"1\"}", 0);
    CHECK(metric(&server, "roped_device_busy_seconds_total{device=\"0\"}") > 0);
    struct answer answer = get(&server, "/metrics");
    CHECK_CONTAINS(answer.body, "roped_device_info{device=\"1\",index=\"0\"");
    answer_free(&answer);
    CHECK(server_stop(&server));
}

TEST(regions_are_on_a_device_and_calls_follow_them)
{
    size_t bytes;
    unsigned char *body = ones(4, H, &bytes);
    server_start(&server, twice);
    expect_code(put("/v1/regions/a?bytes=2048"), 201, "\"device\":0", "first");
    expect_code(put("/v1/regions/a2?bytes=2048"), 201, "\"device\":0",
                "beside it");
    expect_code(put("/v1/regions/b?bytes=4096&device=spread"), 201,
                "\"device\":1", "where there is more room");
    expect_code(put("/v1/regions/c?bytes=64&device=1"), 201, "\"device\":1",
                "where it was asked for");
    expect_code(put("/v1/regions/d?bytes=64&device=2"), 400,
                "region 'd': device 2, expected 0 <= device < 2", "no such");
    expect_code(put("/v1/regions/d?bytes=64&device=x"), 400,
                "parameter 'device': 'x'", "no number");
    expect_code(put("/v1/regions/d?bytes=64&device=1&device=spread"), 400,
                "parameter 'device': 'spread'", "twice");
    expect_code(get(&server, "/v1/regions"), 200,
                "{\"name\":\"b\",\"kind\":\"resident\",\"bytes\":4096,"
                "\"device\":1}",
                "list");
    expect_metric(&server, "roped_device_region_bytes{device=\"0\"}", 4096);
    expect_metric(&server, "roped_device_region_bytes{device=\"1\"}", 4160);
    double before = jobs_of(1);
    expect_code(post("/v1/rmsnorm?eps=0&into.y=b", body, bytes), 200, "",
                "into the second");
    CHECK_DOUBLE(jobs_of(1), before + 1, 0);
    /* the result is there, and the next call finds it */
    struct answer answer = post("/v1/rmsnorm?eps=0&from.x=b&dtype.x=F32&"
                                "shape.x=4,64",
                                NULL, 0);
    CHECK(are_ones(&answer, (int64_t)4 * H));
    answer_free(&answer);
    CHECK_DOUBLE(jobs_of(1), before + 2, 0);
    /* what is only read may be elsewhere */
    expect_code(post("/v1/rmsnorm?eps=0&from.x=b&dtype.x=F32&shape.x=4,64&"
                     "into.y=c",
                     NULL, 0),
                400, "region: 'c'", "too small");
    expect_code(put("/v1/regions/a?dtype=F32&shape=4,64"), 200, "\"device\":0",
                "again");
    double others = jobs_of(0);
    expect_code(post("/v1/rmsnorm?eps=0&from.x=b&dtype.x=F32&shape.x=4,64&"
                     "into.y=a",
                     NULL, 0),
                200, "", "across");
    CHECK_DOUBLE(jobs_of(0), others + 1, 0);
    answer = post("/v1/rmsnorm?eps=0&from.x=a", NULL, 0);
    CHECK(are_ones(&answer, (int64_t)4 * H));
    answer_free(&answer);
    free(body);
    CHECK(server_stop(&server));
}

/* ----------------------------------------------------------- any number */

/* The devices of these tests. */
static const char *const *all_devices(void)
{
    static const char *flags[] = {"--devices", "0,0", NULL};
    if (getenv("ROPED_TEST_DEVICES"))
        flags[1] = server_devices();
    return flags;
}

static int count_devices(void)
{
    return getenv("ROPED_TEST_DEVICES") ? server_n_devices() : 2;
}

/* Neither wire has to know that there are devices. */
TEST(a_client_that_names_no_device_has_its_regions_on_one)
{
    enum { N_REGIONS = 6 };
    char path[128];
    static const char infer[] =
        "{\"parameters\":{\"eps\":0},\"inputs\":[{\"name\":\"x\",\"shape\":[4,"
        "64],\"datatype\":\"FP32\",\"parameters\":{\"shared_memory_region\":"
        "\"r0"
        "\",\"shared_memory_byte_size\":1024}}],\"outputs\":[{\"name\":\"y\","
        "\"parameters\":{\"shared_memory_region\":\"r5\","
        "\"shared_memory_byte_size\":1024}}]}";
    size_t bytes;
    unsigned char *body = ones(4, H, &bytes);
    server_start(&server, all_devices());
    for (int i = 0; i < N_REGIONS; i++) {
        snprintf(path, sizeof path, "/v1/regions/r%d", i);
        expect_code(ask(&server, "PUT", path, body, bytes, NULL), 201,
                    "\"device\":0", path);
    }
    for (int i = 0; i < N_REGIONS; i++)
        for (int j = 0; j < N_REGIONS; j++) {
            snprintf(path, sizeof path,
                     "/v1/rmsnorm?eps=0&from.x=r%d&into.y=r%d", i, j);
            expect_code(post(path, NULL, 0), 200, "", path);
        }
    expect_code(post("/v2/models/rmsnorm/infer", infer, sizeof infer - 1), 200,
                "", "v2");
    for (int i = 0; i < count_devices(); i++) {
        snprintf(path, sizeof path,
                 "roped_device_fetched_bytes_total{device=\"%d\"}", i);
        expect_metric(&server, path, 0);
    }
    free(body);
    CHECK(server_stop(&server));
}

/* The tensors of add_rmsnorm, outputs last; each in the request or the answer,
 * or in a region of some device. */
enum { N_INPUTS = 3, N_TENSORS = 5, AT_CLIENT = -1 };
static const char *const tensors[N_TENSORS] = {"x", "residual", "weight", "y",
                                               "residual"};

struct trial {
    int64_t rows;
    int at[N_TENSORS]; /* a device or AT_CLIENT */
    float *in[N_INPUTS];
    struct tensor_file expected;
};

static unsigned draw(unsigned n)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % n;
}

static unsigned char *body_of(const struct trial *trial, bool is_whole,
                              size_t *bytes)
{
    struct tensor_file file = {0};
    for (int i = 0; i < N_INPUTS; i++) {
        const int64_t dims[] = {trial->rows, H};
        bool is_row = i == 2;
        if (is_whole || trial->at[i] == AT_CLIENT)
            file_add(&file, tensors[i], ROPED_F32, 2 - is_row, dims + is_row,
                     trial->in[i]);
    }
    *bytes = 0;
    return file.n ? file_write(&file, bytes) : NULL;
}

/* Puts the regions, and writes the query of the call. */
static void put_trial(const struct trial *trial, char *query, size_t size)
{
    int at = snprintf(query, size, "/v1/add_rmsnorm?eps=0");
    for (int i = 0; i < N_TENSORS; i++) {
        const int64_t dims[] = {trial->rows, H};
        bool is_row = i == 2, is_input = i < N_INPUTS;
        struct tensor_file file = {0};
        char path[96];
        size_t bytes = 0;
        unsigned char *body = NULL;
        if (trial->at[i] == AT_CLIENT)
            continue;
        if (is_input) {
            file_add(&file, "t", ROPED_F32, 2 - is_row, dims + is_row,
                     trial->in[i]);
            body = file_write(&file, &bytes);
        }
        int n = snprintf(path, sizeof path, "/v1/regions/t%d?device=%d", i,
                         trial->at[i]);
        if (!is_input)
            snprintf(path + n, sizeof path - (size_t)n,
                     "&dtype=F32&shape=%d,%d", (int)trial->rows, H);
        struct answer answer = ask(&server, "PUT", path, body, bytes, NULL);
        CHECK(answer.code == 200 || answer.code == 201);
        answer_free(&answer);
        free(body);
        at += snprintf(query + at, size - (size_t)at, "&%s.%s=t%d",
                       is_input ? "from" : "into", tensors[i], i);
    }
}

/* The call with all tensors in body and answer says what is right. */
static void expect_of(struct trial *trial)
{
    size_t bytes;
    unsigned char *body = body_of(trial, true, &bytes);
    struct answer answer = post("/v1/add_rmsnorm?eps=0", body, bytes);
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&trial->expected, answer.body, answer.bytes, NULL, NULL));
    answer_free(&answer);
    free(body);
}

/* One output, in the answer or in its region. */
static void expect_output(const struct trial *trial, int i,
                          const struct answer *answer)
{
    struct answer own = {0};
    struct tensor_file file = {0};
    char path[32];
    snprintf(path, sizeof path, "/v1/regions/t%d", i);
    if (trial->at[i] != AT_CLIENT) {
        own = get(&server, path);
        answer = &own;
    }
    const struct roped_tensor *found = NULL;
    if (file_read(&file, answer->body, answer->bytes, NULL, NULL))
        found = trial->at[i] == AT_CLIENT ? file_find(&file, tensors[i])
                                          : &file.tensor[0];
    const struct roped_tensor *expected =
        file_find(&trial->expected, tensors[i]);
    if (!found || roped_tensor_bytes(found) != roped_tensor_bytes(expected) ||
        memcmp(found->data, expected->data,
               (size_t)roped_tensor_bytes(found)) != 0)
        CHECK_FAIL("output '%s' differs: on %d, inputs on %d, %d and %d",
                   tensors[i], trial->at[i], trial->at[0], trial->at[1],
                   trial->at[2]);
    file_free(&file);
    if (own.body)
        answer_free(&own);
}

static void try_placed(struct trial *trial)
{
    char query[256];
    size_t bytes;
    int first = trial->at[N_INPUTS], second = trial->at[N_INPUTS + 1];
    bool is_split =
        first != AT_CLIENT && second != AT_CLIENT && first != second;
    expect_of(trial);
    put_trial(trial, query, sizeof query);
    unsigned char *body = body_of(trial, false, &bytes);
    struct answer answer = post(query, body ? (const void *)body : "", bytes);
    if (answer.code != (is_split ? 400 : 200) ||
        (is_split && !strstr(answer.body,
                             "expected one device for all that a call writes")))
        CHECK_FAIL("%s: %d %.200s, outputs on %d and %d", query, answer.code,
                   answer.body, first, second);
    for (int i = N_INPUTS; i < N_TENSORS && !is_split; i++)
        expect_output(trial, i, &answer);
    answer_free(&answer);
    file_free(&trial->expected);
    free(body);
}

TEST(random_calls_on_regions_of_any_device_are_right)
{
    const char *backend = getenv("ROPED_TEST_BACKEND");
    bool is_host = !backend || strcmp(backend, "cpu") == 0;
    double fetched = 0;
    char name[64];
    int n_devices = count_devices();
    server_start(&server, all_devices());
    for (int i = 0; i < check_cases(300); i++) {
        struct trial trial = {.rows = i % 50 == 7 ? 20000 : 1 + draw(50)};
        for (int j = 0; j < N_TENSORS; j++)
            trial.at[j] = (int)draw((unsigned)n_devices + 1) - 1;
        for (int j = 0; j < N_INPUTS; j++) {
            trial.in[j] = malloc((size_t)trial.rows * H * sizeof(float));
            for (int64_t k = 0; k < trial.rows * H; k++)
                trial.in[j][k] = (float)draw(2000) * 0.01f - 10;
        }
        try_placed(&trial);
        for (int j = 0; j < N_INPUTS; j++)
            free(trial.in[j]);
    }
    for (int i = 0; i < n_devices; i++) {
        snprintf(name, sizeof name,
                 "roped_device_fetched_bytes_total{device=\"%d\"}", i);
        fetched += metric(&server, name);
    }
    CHECK(is_host ? fetched == 0 : fetched > 0);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_stop(&server));
}

/* A weight that is replaced and forgotten all the time while calls on another
 * device read it: each sees one version of it, whole. */
enum { READ_ROWS = 4, WIDE = 4096 };
static atomic_bool is_replacing;

static void *replace_weight(void *context)
{
    static float weight[WIDE];
    const int64_t dims[] = {WIDE};
    (void)context;
    for (int i = 0; atomic_load(&is_replacing); i++) {
        struct tensor_file file = {0};
        size_t bytes;
        for (int j = 0; j < WIDE; j++)
            weight[j] = (float)(1 + i % 100);
        file_add(&file, "weight", ROPED_F32, 1, dims, weight);
        unsigned char *body = file_write(&file, &bytes);
        struct answer answer =
            ask(&server, "PUT", "/v1/regions/w?device=1", body, bytes, NULL);
        CHECK(answer.code == 200 || answer.code == 201);
        answer_free(&answer);
        free(body);
        if (i % 5 == 4)
            expect_code(ask(&server, "DELETE", "/v1/regions/w", NULL, 0, NULL),
                        200, "", "forget");
    }
    return NULL;
}

static void *read_weight(void *context)
{
    size_t bytes;
    unsigned char *body = ones(READ_ROWS, WIDE, &bytes);
    char path[96];
    int number = (int)(intptr_t)context;
    snprintf(path, sizeof path,
             "/v1/regions/y%d?dtype=F32&shape=%d,%d&device=0", number,
             READ_ROWS, WIDE);
    expect_code(put(path), 201, "", path);
    for (int left = check_cases(100); left > 0 && check_failures == 0;) {
        snprintf(path, sizeof path,
                 "/v1/rmsnorm?eps=0&from.weight=w&into.y=y%d", number);
        struct answer answer = post(path, body, bytes);
        int code = answer.code;
        answer_free(&answer);
        if (code == 404) /* not there yet, or forgotten at the moment */
            continue;
        left--;
        CHECK_INT(code, 200);
        snprintf(path, sizeof path, "/v1/regions/y%d", number);
        struct tensor_file file = {0};
        answer = get(&server, path);
        CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
        const float *y = file.tensor[0].data;
        bool is_one = true;
        for (int j = 1; j < READ_ROWS * WIDE; j++)
            is_one &= fabsf(y[j] - y[0]) < 1e-3f;
        atomic_fetch_add(is_one ? &n_right : &n_wrong, 1);
        file_free(&file);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(what_is_replaced_meanwhile_is_read_whole)
{
    enum { N_READERS = 3 };
    pthread_t writer, reader[N_READERS];
    atomic_store(&n_right, 0);
    atomic_store(&n_wrong, 0);
    server_start(&server, all_devices());
    atomic_store(&is_replacing, true);
    pthread_create(&writer, NULL, replace_weight, NULL);
    for (int i = 0; i < N_READERS; i++)
        pthread_create(&reader[i], NULL, read_weight, (void *)(intptr_t)i);
    for (int i = 0; i < N_READERS; i++)
        pthread_join(reader[i], NULL);
    atomic_store(&is_replacing, false);
    pthread_join(writer, NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_right) > 0);
    CHECK(server_stop(&server));
}

/* -------------------------------------------------------------------- load */

static void *mixed_sizes(void *context)
{
    int64_t seed = (int64_t)(intptr_t)context;
    for (int i = 0; i < check_cases(60); i++) {
        int64_t rows = i % 10 == 0 ? 2000 : 1 + (seed * 7 + i) % 50;
        bool is_right = call_ones(&server, rows, 256);
        atomic_fetch_add(is_right ? &n_right : &n_wrong, 1);
    }
    return NULL;
}

/* Into a region of the client's own, made where room is, read back from it. */
static void *own_region(void *context)
{
    char path[160];
    size_t bytes;
    unsigned char *body = ones(8, H, &bytes);
    int number = (int)(intptr_t)context;
    snprintf(path, sizeof path,
             "/v1/regions/own%d?dtype=F32&shape=8,64&device=spread", number);
    expect_code(put(path), 201, "", "own region");
    for (int i = 0; i < check_cases(60); i++) {
        snprintf(path, sizeof path, "/v1/rmsnorm?eps=0&into.y=own%d", number);
        expect_code(post(path, body, bytes), 200, "", "into it");
        snprintf(path, sizeof path, "/v1/rmsnorm?eps=0&from.x=own%d", number);
        struct answer answer = post(path, NULL, 0);
        bool is_right = are_ones(&answer, (int64_t)8 * H);
        atomic_fetch_add(is_right ? &n_right : &n_wrong, 1);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(many_clients_at_once_use_every_device)
{
    const char *flags[] = {"--devices",      "0,0", "--lanes", "1",
                           "--inline_bytes", "8k",  NULL};
    pthread_t thread[N_CLIENTS];
    atomic_store(&n_right, 0);
    atomic_store(&n_wrong, 0);
    server_start(&server, flags);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&thread[i], NULL, i % 2 ? own_region : mixed_sizes,
                       (void *)(intptr_t)i);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(thread[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK_INT(atomic_load(&n_right), N_CLIENTS * check_cases(60));
    CHECK(jobs_of(0) >= 1);
    CHECK(jobs_of(1) >= 1);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_stop(&server));
}

/* SIGTERM while both devices have work: every call that was taken is
 * answered, and the daemon ends well. */
static void *until_the_end(void *context)
{
    size_t bytes;
    unsigned char *body = ones(2000, 256, &bytes);
    (void)context;
    for (int code = 200; code == 200;) {
        struct answer answer = post("/v1/rmsnorm?eps=0", body, bytes);
        code = answer.code;
        if (code == 200)
            atomic_fetch_add(
                are_ones(&answer, 2000 * 256) ? &n_right : &n_wrong, 1);
        else if (code != 503 && code != 0)
            atomic_fetch_add(&n_wrong, 1);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(drain_waits_for_every_device)
{
    pthread_t thread[N_CLIENTS];
    atomic_store(&n_right, 0);
    server_start(&server, twice);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&thread[i], NULL, until_the_end, NULL);
    double start_seconds = now_seconds();
    while (atomic_load(&n_right) < 2 * N_CLIENTS &&
           now_seconds() - start_seconds < 60)
        sched_yield();
    kill(server.pid, SIGTERM);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(thread[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_right) >= 2 * N_CLIENTS);
    CHECK(server_stop(&server));
}
