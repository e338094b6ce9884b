/*
 * test_shared_memory.c - clients on this host that register memory of their
 * own: Triton's endpoints, phrases and codes.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"
#include "shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { H = 64, ROWS = 4, X_BYTES = ROWS * H * 4, SHARED_BYTES = 8192 };

static struct server server;
static const char *const allowed[] = {"--allow-client-shm", NULL};

/* The memory of one client: floats, and its name. */
struct shared {
    char key[SHARED_KEY_BYTES];
    int fd;
    float *data;
};

static void make_shared(struct shared *shared)
{
    shared->fd = shared_memory_make(shared->key, SHARED_BYTES);
    shared->data = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                        shared->fd, 0);
    for (int i = 0; i < SHARED_BYTES / 4; i++)
        shared->data[i] = 3;
}

static void drop_shared(struct shared *shared)
{
    munmap(shared->data, SHARED_BYTES);
    close(shared->fd);
    shm_unlink(shared->key);
}

static struct answer post(const char *path, const char *body)
{
    return ask(&server, "POST", path, body, body ? strlen(body) : 0, NULL);
}

static struct answer register_as(const char *name, const char *key,
                                 long long offset, long long bytes)
{
    char path[128], body[256];
    snprintf(path, sizeof path, "/v2/systemsharedmemory/region/%s/register",
             name);
    snprintf(body, sizeof body,
             "{\"key\":\"%s\",\"offset\":%lld,\"byte_size\":%lld}", key, offset,
             bytes);
    return post(path, body);
}

static void expect_registered(const char *name, const struct shared *shared,
                              long long offset, long long bytes)
{
    struct answer answer = register_as(name, shared->key, offset, bytes);
    CHECK_INT(answer.bytes, 0); /* to the letter */
    expect_code(answer, 200, "", name);
}

/* rmsnorm of x at one offset into y at another, all in region r. */
static struct answer infer(long long x_at, long long y_at)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"parameters\":{\"eps\":0},\"inputs\":[{\"name\":\"x\","
             "\"datatype\":\"FP32\",\"shape\":[%d,%d],\"parameters\":{"
             "\"shared_memory_region\":\"r\",\"shared_memory_byte_size\":%d,"
             "\"shared_memory_offset\":%lld}}],\"outputs\":[{\"name\":\"y\","
             "\"parameters\":{\"shared_memory_region\":\"r\","
             "\"shared_memory_byte_size\":%d,\"shared_memory_offset\":%lld}}]}",
             ROWS, H, X_BYTES, x_at, X_BYTES, y_at);
    return post("/v2/models/rmsnorm/infer", body);
}

static bool are_all(const float *y, float value)
{
    for (int i = 0; i < ROWS * H; i++)
        if (fabsf(y[i] - value) > 1e-5f)
            return false;
    return true;
}

/* ------------------------------------------------------------------- tests */

TEST(it_is_off_unless_allowed)
{
    struct shared shared;
    make_shared(&shared);
    server_start(&server, NULL);
    expect_code(register_as("r", shared.key, 0, 64), 501,
                "Client shared memory is disabled", "register");
    expect_code(post("/v2/systemsharedmemory/unregister", NULL), 501,
                "Client shared memory is disabled", "unregister all");
    expect_code(post("/v2/systemsharedmemory/region/r/unregister", NULL), 501,
                "Client shared memory is disabled", "unregister");
    expect_code(get(&server, "/v2/systemsharedmemory/status"), 200, "[]",
                "status");
    expect_code(get(&server, "/v2/systemsharedmemory/region/r/status"), 200,
                "[]", "status of one");
    expect_code(post("/v2/cudasharedmemory/region/r/register", "{}"), 501,
                "Client shared memory is disabled", "cuda register");
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 501,
                "Client shared memory is disabled", "cuda unregister");
    expect_code(get(&server, "/v2/cudasharedmemory/status"), 200, "[]",
                "cuda status");
    struct answer answer = get(&server, "/v2");
    CHECK(!strstr(answer.body, "shared_memory"));
    answer_free(&answer);
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

TEST(a_region_is_registered_used_and_unregistered)
{
    struct shared shared;
    char expected[256];
    make_shared(&shared);
    server_start(&server, allowed);
    expect_code(get(&server, "/v2"), 200, "\"system_shared_memory\"", "server");
    expect_code(get(&server, "/v2/systemsharedmemory/status"), 200, "[]",
                "none");
    expect_registered("r", &shared, 0, SHARED_BYTES);
    snprintf(expected, sizeof expected,
             "[{\"name\":\"r\",\"key\":\"%s\",\"offset\":0,\"byte_size\":%d}]",
             shared.key, SHARED_BYTES);
    expect_code(get(&server, "/v2/systemsharedmemory/status"), 200, expected,
                "status");
    expect_code(get(&server, "/v2/systemsharedmemory/region/r/status"), 200,
                expected, "status of one");
    expect_code(get(&server, "/v1/regions"), 200,
                "{\"name\":\"r\",\"kind\":\"system\",\"bytes\":8192}", "list");
    CHECK_DOUBLE(metric(&server, "roped_region_bytes{kind=\"system\"} "),
                 SHARED_BYTES, 0);
    expect_code(infer(0, X_BYTES), 200,
                "{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[4,64]}",
                "infer");
    CHECK(are_all(shared.data + ROWS * H, 1));
    CHECK(are_all(shared.data, 3));
    expect_code(infer(0, 0), 200, "", "in place");
    CHECK(are_all(shared.data, 1));
    shared.data[2 * ROWS * H] = 7;
    expect_code(post("/v1/rmsnorm?eps=0&from.x=r:1024&shape.x=4,64&dtype.x=F32"
                     "&into.y=r:4096",
                     ""),
                200, "", "v1");
    CHECK(are_all(shared.data + 4096 / 4, 1));
    expect_code(post("/v2/systemsharedmemory/region/r/unregister", NULL), 200,
                "", "unregister");
    expect_code(get(&server, "/v2/systemsharedmemory/region/r/status"), 404,
                "Unable to find system shared memory region: 'r'", "gone");
    expect_code(infer(0, X_BYTES), 404,
                "Unable to find shared memory region: 'r'", "unknown");
    expect_code(post("/v2/systemsharedmemory/region/r/unregister", NULL), 200,
                "", "again");
    CHECK_DOUBLE(metric(&server, "roped_region_bytes{kind=\"system\"} "), 0, 0);
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

TEST(a_region_may_start_anywhere_in_its_memory)
{
    struct shared shared;
    make_shared(&shared);
    server_start(&server, allowed);
    expect_registered("r", &shared, 4100, 2 * X_BYTES);
    expect_code(infer(0, X_BYTES), 200, "", "infer");
    CHECK(are_all(shared.data + (4100 + X_BYTES) / 4, 1));
    CHECK(are_all(shared.data, 3));
    expect_code(infer(0, X_BYTES + 4), 400, "Invalid offset + byte size",
                "beyond it");
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

TEST(what_cannot_be_registered_is_refused)
{
    struct shared shared;
    char long_path[256];
    make_shared(&shared);
    server_start(&server, allowed);
    expect_code(register_as("r", "/", 0, 64), 400,
                "cannot register shared memory region 'r' - invalid shm key "
                "'/'",
                "slash");
    expect_code(register_as("r", "///", 0, 64), 400,
                "cannot register shared memory region 'r' - invalid shm key "
                "'///'",
                "slashes");
    expect_code(register_as("r", "/../etc/passwd", 0, 64), 400,
                "invalid shm key", "path");
    expect_code(register_as("r", "triton_python_backend_shm_region_0", 0, 64),
                400, "cannot register shared memory region 'r'", "reserved");
    expect_code(register_as("r", "/roped_test_none", 0, 64), 400,
                "Unable to open shared memory region: '/roped_test_none'",
                "no such key");
    expect_code(register_as("r", shared.key, 0, SHARED_BYTES + 1), 400,
                "failed to register shared memory region 'r': invalid args",
                "too large");
    expect_code(register_as("r", shared.key, SHARED_BYTES, 1), 400,
                "failed to register shared memory region 'r': invalid args",
                "offset");
    expect_code(register_as("r", shared.key, 0, 0), 400, "invalid args",
                "none");
    expect_code(register_as("r", shared.key, -1, 64), 400,
                "Unable to parse 'offset'", "negative");
    expect_code(post("/v2/systemsharedmemory/region/r/register", "{}"), 400,
                "Unable to parse 'key'", "empty");
    expect_code(post("/v2/systemsharedmemory/region/r/register", "nonsense"),
                400, "failed to parse the request JSON buffer", "no JSON");
    expect_registered("r", &shared, 0, 64);
    expect_code(register_as("r", shared.key, 0, 64), 400,
                "shared memory region 'r' already in manager", "twice");
    expect_code(ask(&server, "PUT", "/v1/regions/r?bytes=8", "", 0, NULL), 400,
                "already in manager", "PUT over it");
    expect_code(ask(&server, "DELETE", "/v1/regions/r", NULL, 0, NULL), 400,
                "unregister it", "DELETE");
    expect_code(get(&server, "/v1/regions/r"), 400, "memory of a client",
                "GET");
    snprintf(long_path, sizeof long_path,
             "/v2/systemsharedmemory/region/%0*d"
             "/status",
             100, 0);
    expect_code(get(&server, long_path), 400, "longer than 63 bytes",
                "long name");
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

TEST(keys_may_be_held_to_a_prefix)
{
    struct shared shared;
    const char *flags[] = {"--allow-client-shm", "--shm-key-prefix",
                           "roped_test_", NULL};
    make_shared(&shared);
    server_start(&server, flags);
    expect_registered("r", &shared, 0, 64);
    expect_registered("q", &shared, 0, 64); /* one key under two names */
    expect_code(register_as("s", "/secrets_of_another", 0, 64), 400,
                "invalid shm key '/secrets_of_another', expected 'roped_test_' "
                "at its start",
                "another's");
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

/* perf_analyzer and every example begin so. */
TEST(unregistering_all_is_fine_without_any)
{
    struct shared a, b;
    make_shared(&a);
    make_shared(&b);
    server_start(&server, allowed);
    /* no body and no Content-Length, as the Python client sends it */
    static const char request[] =
        "POST /v2/systemsharedmemory/unregister HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: close\r\n\r\n";
    expect_code(ask_raw(&server, request, sizeof request - 1, 5), 200, "",
                "none");
    expect_registered("a", &a, 0, 64);
    expect_registered("b", &b, 0, 64);
    expect_code(ask(&server, "PUT", "/v1/regions/mine?bytes=8", "", 0, NULL),
                201, "", "resident");
    expect_code(post("/v2/systemsharedmemory/unregister", NULL), 200, "",
                "all");
    expect_code(get(&server, "/v2/systemsharedmemory/status"), 200, "[]",
                "none left");
    expect_code(get(&server, "/v1/regions"), 200,
                "\"regions\":[{\"name\":\"mine\"", "another kind stays");
    CHECK(server_stop(&server));
    drop_shared(&a);
    drop_shared(&b);
}

TEST(a_client_that_truncates_harms_only_itself)
{
    struct shared shared;
    make_shared(&shared);
    server_start(&server, allowed);
    expect_registered("r", &shared, 0, SHARED_BYTES);
    CHECK(ftruncate(shared.fd, 100) == 0);
    expect_code(infer(0, X_BYTES), 400, "its client has truncated it", "call");
    CHECK(call_ones(&server, 4, 64));
    expect_code(post("/v2/systemsharedmemory/unregister", NULL), 200, "",
                "all");
    CHECK(ftruncate(shared.fd, SHARED_BYTES) == 0);
    expect_registered("r", &shared, 0, SHARED_BYTES);
    expect_code(infer(0, X_BYTES), 200, "", "registered again");
    CHECK(server_stop(&server));
    drop_shared(&shared);
}

/* Where no handle can be opened, CUDA memory is refused in so many words; what
 * clients ask for in any case is answered. test_cuda_memory has the rest. */
TEST(cuda_memory_needs_a_handle)
{
    static const char no_handle[] =
        "{\"raw_handle\":{\"b64\":\"AAAA\"},\"device_id\":0,\"byte_size\":64}";
    char body[256], expected[64], zeros[89];
    memset(zeros, 'A', 86);
    memcpy(zeros + 86, "==", 3);
    server_start(&server, allowed);
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 200, "", "all");
    expect_code(post("/v2/cudasharedmemory/region/r/unregister", NULL), 200, "",
                "one");
    expect_code(get(&server, "/v2/cudasharedmemory/status"), 200, "[]",
                "status");
    expect_code(get(&server, "/v2/cudasharedmemory/region/r/status"), 404,
                "Unable to find cuda shared memory region: 'r'", "status of r");
    expect_code(post("/v2/cudasharedmemory/region/r/register", no_handle), 400,
                "'raw_handle' must be a valid base64 encoded "
                "cudaIpcMemHandle_t",
                "short");
    const int behind_last = server_n_devices();
    snprintf(body, sizeof body,
             "{\"raw_handle\":{\"b64\":\"%s\"},\"device_id\":%d,"
             "\"byte_size\":64}",
             zeros, behind_last);
    snprintf(expected, sizeof expected, "device_id is %d, expected 0",
             behind_last);
    expect_code(post("/v2/cudasharedmemory/region/r/register", body), 400,
                expected, "another device");
    snprintf(body, sizeof body,
             "{\"raw_handle\":{\"b64\":\"%s\"},\"device_id\":0,\"byte_size\":"
             "64}",
             zeros);
    struct answer answer = post("/v2/cudasharedmemory/region/r/register", body);
    CHECK(answer.code == 501 || answer.code == 400);
    CHECK_CONTAINS(answer.body, "failed to register");
    answer_free(&answer);
    CHECK(call_ones(&server, 4, 64)); /* the device is as well as before */
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------------- threads */

static atomic_bool is_over;
static atomic_int n_good, n_refused, n_wrong;

/* Each into a place of its own: two calls with one output are unordered. */
static void *call_always(void *context)
{
    int place = *(int *)context;
    while (!atomic_load(&is_over)) {
        struct answer answer = infer(0, (long long)place * X_BYTES);
        atomic_fetch_add(answer.code == 200                         ? &n_good
                         : answer.code == 404 || answer.code == 400 ? &n_refused
                                                                    : &n_wrong,
                         1);
        answer_free(&answer);
    }
    return NULL;
}

TEST(regions_go_and_shrink_while_calls_use_them)
{
    enum { N_CLIENTS = 3 };
    static int places[N_CLIENTS] = {1, 2, 5};
    pthread_t threads[N_CLIENTS];
    struct shared shared;
    const char *flags[] = {"--allow-client-shm", "--inline-bytes", "0", NULL};
    make_shared(&shared);
    server_start(&server, flags);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&threads[i], NULL, call_always, &places[i]);
    int n = check_cases(300);
    for (int i = 0; i < n; i++) {
        expect_registered("r", &shared, 0, SHARED_BYTES);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        if (i % 2)
            CHECK(ftruncate(shared.fd, i % 4 == 1 ? 0 : 4096) == 0);
        expect_code(post("/v2/systemsharedmemory/region/r/unregister", NULL),
                    200, "", "unregister");
        CHECK(ftruncate(shared.fd, SHARED_BYTES) == 0);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_good) > 0);
    printf("%d calls had their memory, %d did not\n", atomic_load(&n_good),
           atomic_load(&n_refused));
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
    drop_shared(&shared);
}
