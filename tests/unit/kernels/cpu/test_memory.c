/*
 * test_memory.c - host and device memory of the CPU backend: where it begins,
 * that all of it may be written, and that what is freed goes back to the
 * system, whichever thread had it.
 */
#include "check.h"

#include <roped/backend.h>

#include <pthread.h>
#include <unistd.h>

#if defined __has_feature
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#elif defined __SANITIZE_ADDRESS__
#define HAS_ASAN 1
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
enum { HAS_POISON = 1 };
#else
enum { HAS_POISON = 0 };
#endif
#ifdef __SANITIZE_THREAD__
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = HAS_POISON };
#endif

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const struct roped_backend_api *const api = &roped_backend_cpu;

static unsigned char *take(size_t bytes)
{
    struct roped_error err;
    void *memory = NULL;
    CHECK_OK(api->device_alloc(NULL, bytes, &memory, &err), &err);
    return memory;
}

static const size_t sizes[] = {0,
                               1,
                               255,
                               4096,
                               256 * KIB - 1,
                               256 * KIB,
                               256 * KIB + 1,
                               MIB + 17,
                               2 * MIB - 1,
                               2 * MIB,
                               2 * MIB + 1,
                               5 * MIB - 4096,
                               64 * MIB};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

TEST(memory_is_aligned_and_all_there)
{
    unsigned char *memory[N_SIZES];
    for (int i = 0; i < N_SIZES; i++) {
        memory[i] = take(sizes[i]);
        CHECK_INT((uintptr_t)memory[i] % 256, 0);
        memset(memory[i], i, sizes[i]);
    }
    for (int i = 0; i < N_SIZES; i++) {
        bool is_same = true;
        for (size_t at = 0; at < sizes[i]; at++)
            is_same = is_same && memory[i][at] == i;
        CHECK(is_same);
        api->device_free(NULL, memory[i]);
    }
    api->device_free(NULL, NULL);
}

TEST(more_memory_than_there_can_be_is_refused)
{
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2,
                                    SIZE_MAX / 4};
    /* AddressSanitizer ends the process where its own limit is passed */
    for (int i = 0; i < (HAS_POISON ? 2 : 4); i++) {
        struct roped_error err = {.text = ""};
        void *memory = NULL;
        CHECK_INT(api->host_alloc(NULL, absurd[i], &memory, &err),
                  ROPED_NO_MEMORY);
        CHECK_CONTAINS(err.text, "no memory for");
    }
}

/* The tests of kernels rely on it. */
TEST(address_sanitizer_knows_where_memory_ends)
{
#ifdef HAS_ASAN
    for (int i = 1; i < N_SIZES; i++) { /* nothing has a byte of its own */
        unsigned char *memory = take(sizes[i]);
        CHECK(__asan_address_is_poisoned(memory - 1));
        CHECK(__asan_address_is_poisoned(memory + sizes[i]));
        api->device_free(NULL, memory);
    }
#endif
}

/* --------------------------------------------------------------- given back */

static size_t resident_bytes(void)
{
    unsigned long n_pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%*s %lu", &n_pages) != 1)
        CHECK_FAIL("/proc/self/statm cannot be read");
    if (file)
        fclose(file);
    return n_pages * (size_t)sysconf(_SC_PAGE_SIZE);
}

/* What tables and regions are: blocks of any size, made by one thread and freed
 * by any other. */
enum { N_THREADS = 6, N_BLOCKS = 96, N_ROUNDS = 300 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held {
    unsigned char *memory;
    size_t bytes;
} blocks[N_BLOCKS]; /* under lock */

static void replace(size_t place, struct held held)
{
    pthread_mutex_lock(&lock);
    unsigned char *old = blocks[place].memory;
    blocks[place] = held;
    pthread_mutex_unlock(&lock);
    api->device_free(NULL, old);
}

static void *churn(void *context)
{
    uint64_t random = (uint64_t)(intptr_t)context;
    for (int i = 0; i < check_cases(N_ROUNDS); i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = 256 * KIB + (size_t)(random >> 33) % (2 * MIB);
        struct held held = {take(bytes), bytes};
        memset(held.memory, 1, bytes);
        replace((size_t)(random >> 20) % N_BLOCKS, held);
    }
    return NULL;
}

TEST(what_threads_free_goes_back_to_the_system)
{
    /* mappings that are kept for the next blocks, and as much for threads and,
     * under an emulator, for its own */
    enum { BESIDE_BYTES = 8 * MIB + 8 * MIB };
    const size_t before = resident_bytes();
    size_t held = 0;
    pthread_t thread[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&thread[i], NULL, churn, (void *)(intptr_t)(i + 1));
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N_BLOCKS; i++)
        held += blocks[i].bytes;
    const size_t during = resident_bytes();
    if (!IS_SANITIZED && during > before + held + BESIDE_BYTES)
        CHECK_FAIL("resident memory is %zu bytes, and was %zu; %zu are held",
                   during, before, held);
    for (size_t i = 0; i < N_BLOCKS; i++)
        replace(i, (struct held){NULL, 0});
    const size_t after = resident_bytes();
    if (!IS_SANITIZED && after > before + BESIDE_BYTES)
        CHECK_FAIL("resident memory is %zu bytes, and was %zu; none is held",
                   after, before);
    printf("resident: %zu KiB, %zu with %zu held, %zu after\n", before / KIB,
           during / KIB, held / KIB, after / KIB);
}
