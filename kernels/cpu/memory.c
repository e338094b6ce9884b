/*
 * memory.c - host and device memory of the CPU backend.
 *
 * DESIGN. Memory from MAPPED_BYTES up is a mapping of its own, which is given
 * back to the system when it is freed. glibc's heaps would keep it: each
 * of their threads' arenas grows with the largest blocks that it had, and
 * shrinks only from its end. Tables of 510 MiB left 910 to 1,151 MiB that way.
 *
 * The last KEPT mappings of small pages, less than 8 MiB together, are kept for
 * others of their very size: tables and regions that replace one another would
 * pay for 256 pages per MiB each time, three times as long as a table takes to
 * build. Huge pages cost nothing to speak of, and none is kept.
 *
 * In front of what the caller gets there are ALIGNMENT bytes, and in them a
 * header that says how to free it.
 *
 * AddressSanitizer looks after memory of the heap alone, so under it all
 * memory comes from there, and ends with the last byte that was asked for.
 */
#include "cpu/cpu_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined __has_feature
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#elif defined __SANITIZE_ADDRESS__
#define HAS_ASAN 1
#endif

enum { ALIGNMENT = 256, HUGE_PAGE = 2 << 20, MAPPED_BYTES = 256 << 10 };

#ifdef HAS_ASAN

static void *take(size_t bytes)
{
    void *memory;
    return posix_memalign(&memory, ALIGNMENT, bytes) == 0 ? memory : NULL;
}

void cpu_free(void *memory)
{
    free(memory);
}

void cpu_free_kept(void)
{
}

#else

struct header {
    void *start;  /* of the whole */
    size_t bytes; /* of the mapping; 0: it is from the heap */
};

enum { KEPT = 4 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct header kept[KEPT]; /* under lock; the oldest first; {0}: none */

static struct header *header_of(void *memory)
{
    return (struct header *)((unsigned char *)memory - ALIGNMENT);
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static void *map(size_t bytes, int flags)
{
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

/* Unmaps what is outside [from, to) of a mapping. */
static void trim(unsigned char *start, size_t bytes, unsigned char *from,
                 unsigned char *to)
{
    if (from > start)
        (void)munmap(start, (size_t)(from - start));
    if (to < start + bytes)
        (void)munmap(to, (size_t)(start + bytes - to));
}

/*
 * Large memory is asked for in huge pages, which a system that leaves that to
 * programs gives to nobody else: caches are written at slots all over them,
 * and with pages of 4 KiB each slot is one that no translation is there for.
 * It starts at such a page, and its header in the small one before.
 */
static void *take_huge(size_t bytes, struct header *header)
{
    const size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
    const size_t whole = page + round_up(bytes, page);
    unsigned char *start = map(whole + HUGE_PAGE, 0);
    if (!start)
        return NULL;
    unsigned char *memory =
        start +
        (round_up((uintptr_t)start + page, HUGE_PAGE) - (uintptr_t)start);
    *header = (struct header){memory - page, whole};
    trim(start, whole + HUGE_PAGE, memory - page, memory - page + whole);
    /* where that is refused it is only slower */
    (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return memory;
}

static void *take_kept(size_t bytes)
{
    void *start = NULL;
    pthread_mutex_lock(&lock);
    for (int i = KEPT - 1; i >= 0 && !start; i--)
        if (kept[i].start && kept[i].bytes == bytes) {
            start = kept[i].start;
            kept[i] = (struct header){NULL, 0};
        }
    pthread_mutex_unlock(&lock);
    return start;
}

/* All of it will be used soon: its pages at once take 0.8 of the time that they
 * take one by one. */
static void *take_mapped(size_t bytes, struct header *header)
{
    const size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
    const size_t whole = round_up(ALIGNMENT + bytes, page);
    unsigned char *start = take_kept(whole);
    if (!start)
        start = map(whole, MAP_POPULATE);
    *header = (struct header){start, whole};
    return start ? start + ALIGNMENT : NULL;
}

static void *take_heap(size_t bytes, struct header *header)
{
    void *start;
    if (posix_memalign(&start, ALIGNMENT, ALIGNMENT + bytes) != 0)
        return NULL;
    *header = (struct header){start, 0};
    return (unsigned char *)start + ALIGNMENT;
}

static void *take(size_t bytes)
{
    struct header header;
    void *memory = bytes >= HUGE_PAGE      ? take_huge(bytes, &header)
                   : bytes >= MAPPED_BYTES ? take_mapped(bytes, &header)
                                           : take_heap(bytes, &header);
    if (memory)
        *header_of(memory) = header;
    return memory;
}

/* And unmaps the one that has to go for it. */
static void keep(struct header header)
{
    pthread_mutex_lock(&lock);
    const struct header gone = kept[0];
    for (int i = 0; i + 1 < KEPT; i++)
        kept[i] = kept[i + 1];
    kept[KEPT - 1] = header;
    pthread_mutex_unlock(&lock);
    if (gone.start)
        (void)munmap(gone.start, gone.bytes);
}

void cpu_free(void *memory)
{
    if (!memory)
        return;
    const struct header header = *header_of(memory);
    if (!header.bytes)
        free(header.start);
    else if (header.bytes < HUGE_PAGE)
        keep(header);
    else
        (void)munmap(header.start, header.bytes);
}

void cpu_free_kept(void)
{
    for (int i = 0; i < KEPT; i++)
        keep((struct header){NULL, 0});
}

#endif

enum roped_status cpu_alloc(size_t bytes, void **out, struct roped_error *err)
{
    void *memory = bytes <= SIZE_MAX / 2 ? take(bytes) : NULL;
    if (!memory)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for %zu bytes",
                          bytes);
    *out = memory;
    return ROPED_OK;
}
