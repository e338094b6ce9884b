/*
 * test_allocations.c - the hot path takes tensors from the pool and reads its
 * JSON where it lies: after warm-up, a call allocates what the HTTP library's
 * answer needs and nothing else, whatever its size.
 */
#include "check.h"
#include "http/count_malloc.h"
#include "http/harness.h"
#include "http/service.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    N_WARM = 50,
    N_CALLS = 200,
    /* All are libmicrohttpd's: an answer, and three for each of its headers,
     * of which a v1 call has two and a v2 call three. */
    MOST_V1_CALLS = 7,
    MOST_V2_CALLS = 10,
    MOST_BYTES = 768,
    N_STRAY = 2 /* in all calls: of what else the daemon does meanwhile */
};

static struct server server;
static struct malloc_counts *counts;

static void start(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/roped_test_%d.counts", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *counts) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    counts =
        mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    setenv(MALLOC_COUNTS_ENVIRONMENT, path, 1);
    setenv("LD_PRELOAD", ROPED_TEST_COUNT_MALLOC, 1);
    server_start(&server, NULL);
    unsetenv("LD_PRELOAD");
    unlink(path);
}

struct cost {
    double calls, bytes; /* per call of the operator */
};

static struct cost cost_of(const char *path, const unsigned char *body,
                           size_t bytes, const char *const *headers)
{
    unsigned long calls = 0, total = 0;
    for (int i = 0; i < N_WARM + N_CALLS; i++) {
        if (i == N_WARM) {
            calls = atomic_load(&counts->calls);
            total = atomic_load(&counts->bytes);
        }
        struct answer answer = ask(&server, "POST", path, body, bytes, headers);
        CHECK_INT(answer.code, 200);
        answer_free(&answer);
    }
    return (struct cost){
        (double)(atomic_load(&counts->calls) - calls) / N_CALLS,
        (double)(atomic_load(&counts->bytes) - total) / N_CALLS};
}

static void check_cost(const char *what, struct cost cost, double most_calls)
{
    printf("%-26s %5.2f allocations, %6.0f bytes per call\n", what, cost.calls,
           cost.bytes);
    CHECK(cost.calls <= most_calls + (double)N_STRAY / N_CALLS);
    CHECK(cost.bytes <= MOST_BYTES);
}

static void check_rows(int64_t rows, const char *what)
{
    size_t bytes;
    unsigned char *body = ones(rows, 256, &bytes);
    check_cost(what, cost_of("/v1/rmsnorm?eps=0", body, bytes, NULL),
               MOST_V1_CALLS);
    free(body);
}

/* The same over v2, with a binary tensor behind its JSON. */
static void check_v2_rows(int64_t rows, const char *what)
{
    char json[256], length[64];
    size_t data_bytes = (size_t)rows * 256 * sizeof(float);
    int json_bytes = snprintf(
        json, sizeof json,
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[%d,256],"
        "\"parameters\":{\"binary_data_size\":%zu}}],"
        "\"parameters\":{\"eps\":0,\"binary_data_output\":true}}",
        (int)rows, data_bytes);
    const char *const headers[] = {length, NULL};
    unsigned char *body = calloc((size_t)json_bytes + data_bytes, 1);
    memcpy(body, json, (size_t)json_bytes);
    snprintf(length, sizeof length, "Inference-Header-Content-Length: %d",
             json_bytes);
    check_cost(what,
               cost_of("/v2/models/rmsnorm/infer", body,
                       (size_t)json_bytes + data_bytes, headers),
               MOST_V2_CALLS);
    free(body);
}

/* The counter counts: or else the bounds below would hold for nothing. */
TEST(the_counter_sees_the_daemon)
{
    CHECK(atomic_load(&counts->calls) > 20);
}

TEST(calls_of_any_size_allocate_alike)
{
    check_rows(2, "rmsnorm of 2 KiB, inline");
    check_rows(256, "rmsnorm of 256 KiB");
    check_rows(8192, "rmsnorm of 8 MiB");
    check_v2_rows(2, "v2 rmsnorm of 2 KiB");
    check_v2_rows(256, "v2 rmsnorm of 256 KiB");
}

int main(void)
{
    start();
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
