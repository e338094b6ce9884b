/*
 * test_cuda_memory.c - a client whose tensors are in its own device memory: the
 * daemon opens its IPC handle and computes there. Needs a GPU that both share.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <cuda_runtime_api.h>

enum { H = 64, ROWS = 4, X_BYTES = ROWS * H * 4, MEMORY_BYTES = 1 << 20 };

static struct server server;
static const char *const allowed[] = {"--allow-client-shm", NULL};

#define CHECK_CUDA(call)                                                       \
    do {                                                                       \
        cudaError_t code_ = (call);                                            \
        if (code_ != cudaSuccess)                                              \
            CHECK_FAIL("%s: %s", #call, cudaGetErrorString(code_));            \
    } while (0)

/* What a client has: floats on the device, and their handle in base64. */
struct memory {
    float *device;
    char handle[89];
};

static void encode(const unsigned char *bytes, size_t n, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned bits = (unsigned)bytes[i] << 16;
        bits |= i + 1 < n ? (unsigned)bytes[i + 1] << 8 : 0;
        bits |= i + 2 < n ? bytes[i + 2] : 0;
        for (int j = 0; j < 4; j++)
            *out++ =
                i + (size_t)j > n ? '=' : digits[bits >> (18 - 6 * j) & 63];
    }
    *out = '\0';
}

static void fill(struct memory *memory, float value)
{
    static float values[MEMORY_BYTES / 4];
    for (int i = 0; i < MEMORY_BYTES / 4; i++)
        values[i] = value;
    CHECK_CUDA(cudaMemcpy(memory->device, values, sizeof values,
                          cudaMemcpyHostToDevice));
    /* the daemon's stream knows nothing of ours */
    CHECK_CUDA(cudaDeviceSynchronize());
}

static void make_memory(struct memory *memory)
{
    cudaIpcMemHandle_t handle;
    CHECK_CUDA(cudaMalloc((void **)&memory->device, MEMORY_BYTES));
    CHECK_CUDA(cudaIpcGetMemHandle(&handle, memory->device));
    encode((const void *)&handle, sizeof handle, memory->handle);
    fill(memory, 3);
}

static bool are_all(const struct memory *memory, size_t at, float value)
{
    float values[ROWS * H];
    bool is_right = true;
    CHECK_CUDA(cudaMemcpy(values, (const char *)memory->device + at,
                          sizeof values, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ROWS * H; i++)
        is_right &= fabsf(values[i] - value) < 1e-5f;
    return is_right;
}

static struct answer post(const char *path, const char *body)
{
    return ask(&server, "POST", path, body, body ? strlen(body) : 0, NULL);
}

static struct answer register_as(const char *name, const char *handle,
                                 long long bytes)
{
    char path[128], body[256];
    snprintf(path, sizeof path, "/v2/cudasharedmemory/region/%s/register",
             name);
    snprintf(body, sizeof body,
             "{\"raw_handle\":{\"b64\":\"%s\"},\"device_id\":0,\"byte_size\":"
             "%lld}",
             handle, bytes);
    return post(path, body);
}

/* rmsnorm of x at one offset into y at another of a region. */
static struct answer infer(const char *region, size_t x_at, size_t y_at)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"parameters\":{\"eps\":0},\"inputs\":[{\"name\":\"x\","
             "\"datatype\":\"FP32\",\"shape\":[%d,%d],\"parameters\":{"
             "\"shared_memory_region\":\"%s\",\"shared_memory_byte_size\":%d,"
             "\"shared_memory_offset\":%zu}}],\"outputs\":[{\"name\":\"y\","
             "\"parameters\":{\"shared_memory_region\":\"%s\","
             "\"shared_memory_byte_size\":%d,\"shared_memory_offset\":%zu}}]}",
             ROWS, H, region, X_BYTES, x_at, region, X_BYTES, y_at);
    return post("/v2/models/rmsnorm/infer", body);
}

TEST(the_daemon_computes_in_a_clients_memory)
{
    struct memory memory;
    make_memory(&memory);
    server_start(&server, allowed);
    expect_code(register_as("r", memory.handle, MEMORY_BYTES), 200, "",
                "register");
    expect_code(get(&server, "/v2/cudasharedmemory/status"), 200,
                "[{\"name\":\"r\",\"device_id\":0,\"byte_size\":1048576}]",
                "status");
    expect_code(infer("r", 0, X_BYTES), 200, "\"shape\":[4,64]}", "infer");
    CHECK(are_all(&memory, X_BYTES, 1));
    CHECK(are_all(&memory, 0, 3));
    CHECK(are_all(&memory, 2 * X_BYTES, 3));
    expect_code(infer("r", 0, 0), 200, "", "in place");
    CHECK(are_all(&memory, 0, 1));
    expect_code(infer("r", 0, MEMORY_BYTES - X_BYTES + 4), 400,
                "Invalid offset + byte size", "beyond it");
    expect_code(infer("r", 2, X_BYTES), 400, "expected a multiple of 4",
                "misaligned");
    expect_code(post("/v2/cudasharedmemory/region/r/unregister", NULL), 200, "",
                "unregister");
    CHECK_CUDA(cudaFree(memory.device));
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
}

TEST(one_handle_may_have_two_names)
{
    struct memory memory;
    make_memory(&memory);
    server_start(&server, allowed);
    expect_code(register_as("a", memory.handle, MEMORY_BYTES), 200, "", "a");
    expect_code(register_as("b", memory.handle, 2 * X_BYTES), 200, "", "b");
    expect_code(register_as("a", memory.handle, 64), 400,
                "shared memory region 'a' already in manager", "a again");
    expect_code(post("/v2/cudasharedmemory/region/a/unregister", NULL), 200, "",
                "unregister a");
    expect_code(infer("b", 0, X_BYTES), 200, "", "b works");
    CHECK(are_all(&memory, X_BYTES, 1));
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 200, "", "all");
    expect_code(infer("b", 0, X_BYTES), 404, "'b'", "gone");
    CHECK_CUDA(cudaFree(memory.device));
    CHECK(server_stop(&server));
}

TEST(what_cannot_be_opened_is_refused)
{
    struct memory memory;
    char none[89];
    make_memory(&memory);
    memset(none, 'A', 86);
    memcpy(none + 86, "==", 3);
    server_start(&server, allowed);
    expect_code(register_as("r", none, 64), 400,
                "failed to register shared memory region 'r': invalid args",
                "no handle");
    expect_code(register_as("r", memory.handle, MEMORY_BYTES * 64ll), 400,
                "invalid args: byte_size is", "too large");
    expect_code(register_as("r", memory.handle, 0), 400, "invalid args",
                "nothing");
    CHECK(server_is_alive(&server));
    CHECK(call_ones(&server, 4, 64));
    expect_code(register_as("r", memory.handle, MEMORY_BYTES), 200, "", "well");
    expect_code(infer("r", 0, X_BYTES), 200, "", "and used");
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 200, "", "all");
    CHECK_CUDA(cudaFree(memory.device));
    CHECK(server_stop(&server));
}

/* Positions in device memory are read by the host, and checked. */
TEST(index_values_in_a_clients_memory_are_checked)
{
    int64_t positions[ROWS] = {0, 1, 2, -9}, dims[3] = {ROWS, 1, H};
    struct memory memory;
    float q[ROWS * H] = {0};
    struct tensor_file file = {0};
    size_t bytes;
    static const char path[] =
        "/v1/rope?from.positions=r&shape.positions=4&dtype.positions=I64";
    file_add(&file, "q", ROPED_F32, 3, dims, q);
    unsigned char *body = file_write(&file, &bytes);
    make_memory(&memory);
    server_start(&server, allowed);
    expect_code(register_as("r", memory.handle, MEMORY_BYTES), 200, "", "r");
    CHECK_CUDA(cudaMemcpy(memory.device, positions, sizeof positions,
                          cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
    expect_code(ask(&server, "POST", path, body, bytes, NULL), 400,
                "position -9 at index 3", "bad position");
    positions[3] = 3;
    CHECK_CUDA(cudaMemcpy(memory.device, positions, sizeof positions,
                          cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
    expect_code(ask(&server, "POST", path, body, bytes, NULL), 200, "", "good");
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 200, "", "all");
    CHECK_CUDA(cudaFree(memory.device));
    free(body);
    CHECK(server_stop(&server));
}

static int n_devices;

/* On another GPU where there are two, else on the same one twice. */
TEST(a_clients_memory_is_read_on_another_device)
{
    const char *flags[] = {"--allow-client-shm", "--devices",
                           n_devices > 1 ? "0,1" : "0,0", NULL};
    struct memory memory;
    make_memory(&memory);
    server_start(&server, flags);
    expect_code(register_as("r", memory.handle, MEMORY_BYTES), 200, "", "r");
    expect_code(ask(&server, "PUT",
                    "/v1/regions/y?dtype=F32&shape=4,64&device=1", NULL, 0,
                    NULL),
                201, "\"device\":1", "y");
    expect_code(post("/v1/rmsnorm?eps=0&from.x=r&dtype.x=F32&shape.x=4,64&"
                     "into.y=y",
                     NULL),
                200, "", "across");
    struct answer answer = get(&server, "/v1/regions/y");
    CHECK(are_ones(&answer, (int64_t)ROWS * H));
    answer_free(&answer);
    expect_metric(&server, "roped_device_fetched_bytes_total{device=\"1\"}",
                  X_BYTES);
    expect_code(infer("r", 0, X_BYTES), 200, "", "and where it is");
    CHECK(are_all(&memory, X_BYTES, 1));
    expect_code(post("/v2/cudasharedmemory/unregister", NULL), 200, "", "all");
    CHECK_CUDA(cudaFree(memory.device));
    CHECK(server_stop(&server));
}

/* All but some of what is free now; NULL: that failed. */
static void *fill_device(void)
{
    enum { LEFT = 256 << 20 };
    size_t n_free = 0, n_all = 0;
    void *memory = NULL;
    CHECK_CUDA(cudaMemGetInfo(&n_free, &n_all));
    for (size_t left = LEFT; !memory && left < n_free; left += LEFT / 4)
        if (cudaMalloc(&memory, n_free - left) != cudaSuccess)
            (void)cudaGetLastError();
    return memory;
}

TEST(a_full_device_says_who_has_its_memory)
{
    static const char path[] = "/v1/regions/w?bytes=2147483648";
    server_start(&server, NULL);
    expect_code(ask(&server, "PUT", "/v1/regions/a?bytes=4096", NULL, 0, NULL),
                201, "", "a");
    void *filling = fill_device();
    CHECK(filling);
    struct answer answer = ask(&server, "PUT", path, NULL, 0, NULL);
    CHECK_INT(answer.code, 503);
    CHECK_CONTAINS(answer.body,
                   "region 'w': device 0: 2147483648 bytes wanted: ");
    CHECK_CONTAINS(answer.body, " are free, 2147483648 are needed (cudaMalloc: "
                                "cudaErrorMemoryAllocation");
    CHECK_CONTAINS(answer.body, "holds 4096 bytes for regions");
    answer_free(&answer);
    CHECK(call_ones(&server, 4, 64));
    CHECK_CUDA(cudaFree(filling));
    expect_code(ask(&server, "PUT", path, NULL, 0, NULL), 201, "",
                "once there is room");
    CHECK(server_stop(&server));
}

int main(void)
{
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("skipped: no usable GPU\n");
        return 77;
    }
    setenv("ROPED_TEST_BACKEND", "cuda", 1);
    check_run();
    return check_done();
}
