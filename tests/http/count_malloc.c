/*
 * count_malloc.c - preloaded into the daemon by test_allocations.c: counts the
 * calls of the allocator into a page that both processes have mapped.
 *
 * Loaded before anything else, so that it may use nothing that allocates:
 * glibc's own names of the functions behind.
 */
#include "http/count_malloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* NOLINTBEGIN(readability-identifier-naming): glibc's */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
/* NOLINTEND(readability-identifier-naming) */

static struct malloc_counts here, *counts = &here;

__attribute__((constructor)) static void map_counts(void)
{
    const char *path = getenv(MALLOC_COUNTS_ENVIRONMENT);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page =
        mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        counts = page;
}

static void count(size_t bytes)
{
    atomic_fetch_add_explicit(&counts->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->bytes, bytes, memory_order_relaxed);
}

void *malloc(size_t bytes)
{
    count(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count(n * bytes);
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count(bytes);
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count(bytes);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    count(bytes);
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}
