/*
 * test_allocations.c - the hot path takes tensors from the pool: after
 * warm-up, a call allocates what its JSON header and the HTTP library's answer
 * need, the same number of times and bytes whatever its size.
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
    /* Of a call with one tensor, 26 and 1,400 bytes were counted: 7 for
     * libmicrohttpd's answer with two headers, 19 for cJSON's tree. */
    MOST_CALLS = 28,
    MOST_BYTES = 2048
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
                           size_t bytes)
{
    unsigned long calls = 0, total = 0;
    for (int i = 0; i < N_WARM + N_CALLS; i++) {
        if (i == N_WARM) {
            calls = atomic_load(&counts->calls);
            total = atomic_load(&counts->bytes);
        }
        struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
        CHECK_INT(answer.code, 200);
        answer_free(&answer);
    }
    return (struct cost){
        (double)(atomic_load(&counts->calls) - calls) / N_CALLS,
        (double)(atomic_load(&counts->bytes) - total) / N_CALLS};
}

static void check_rows(int64_t rows, const char *what)
{
    size_t bytes;
    unsigned char *body = ones(rows, 256, &bytes);
    struct cost cost = cost_of("/v1/rmsnorm?eps=0", body, bytes);
    printf("%-26s %5.2f allocations, %6.0f bytes per call\n", what, cost.calls,
           cost.bytes);
    CHECK(cost.calls <= MOST_CALLS);
    CHECK(cost.bytes <= MOST_BYTES);
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
}

int main(void)
{
    start();
    RUN(the_counter_sees_the_daemon);
    RUN(calls_of_any_size_allocate_alike);
    if (!server_stop(&server))
        check_n_failed++;
    return check_done();
}
