/*
 * mappings.c - memory straight from the kernel, and the last of it kept.
 */
#include "exec/mappings.h"

#include <sys/mman.h>
#include <unistd.h>

void mappings_init(struct mappings *mappings, pthread_mutex_t *lock,
                   size_t limit_bytes)
{
    *mappings = (struct mappings){.lock = lock, .limit_bytes = limit_bytes};
}

void mappings_fini(struct mappings *mappings)
{
    for (int i = 0; i < KEPT_MAPPINGS; i++)
        if (mappings->kept[i].mapping.start)
            munmap(mappings->kept[i].mapping.start,
                   mappings->kept[i].mapping.bytes);
}

/* Takes the i-th kept one out of the list. */
static struct mapping unkeep(struct mappings *mappings, int i)
{
    struct mapping mapping = mappings->kept[i].mapping;
    for (; i + 1 < KEPT_MAPPINGS; i++)
        mappings->kept[i] = mappings->kept[i + 1];
    mappings->kept[i] = (struct kept_mapping){.n_trims = 0};
    return mapping;
}

/* A kept one that fits without wasting half of it: the last that was given
 * back, so that those that nobody needs grow old. */
static struct mapping take_kept(struct mappings *mappings, size_t bytes)
{
    for (int i = KEPT_MAPPINGS - 1; i >= 0; i--) {
        const struct mapping *kept = &mappings->kept[i].mapping;
        if (kept->start && kept->bytes >= bytes && kept->bytes / 2 <= bytes)
            return unkeep(mappings, i);
    }
    return (struct mapping){NULL, 0};
}

/* The bytes count as taken until they are gone. */
static void unmap(struct mappings *mappings, struct mapping mapping)
{
    pthread_mutex_unlock(mappings->lock);
    munmap(mapping.start, mapping.bytes);
    pthread_mutex_lock(mappings->lock);
    mappings->bytes -= mapping.bytes;
}

/* Claims bytes of the limit, for which kept ones may go. */
static bool claim(struct mappings *mappings, size_t bytes)
{
    size_t limit = mappings->limit_bytes;
    if (bytes > limit)
        return false;
    while (mappings->bytes > limit - bytes && mappings->kept[0].mapping.start)
        unmap(mappings, unkeep(mappings, 0));
    if (mappings->bytes > limit - bytes)
        return false;
    mappings->bytes += bytes;
    return true;
}

bool mappings_take(struct mappings *mappings, size_t bytes, struct mapping *out,
                   bool *is_refused)
{
    *is_refused = false;
    *out = take_kept(mappings, bytes);
    if (out->start)
        return true;
    if (!claim(mappings, bytes))
        return false;
    pthread_mutex_unlock(mappings->lock);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(mappings->lock);
    *is_refused = start == MAP_FAILED;
    if (*is_refused)
        mappings->bytes -= bytes;
    else
        *out = (struct mapping){start, bytes};
    return !*is_refused;
}

void mappings_give(struct mappings *mappings, struct mapping mapping)
{
    int i = 0;
    struct mapping oldest = {NULL, 0};
    if (mappings->kept[KEPT_MAPPINGS - 1].mapping.start)
        oldest = unkeep(mappings, 0);
    while (mappings->kept[i].mapping.start)
        i++;
    mappings->kept[i] = (struct kept_mapping){mapping, 0};
    if (oldest.start)
        unmap(mappings, oldest);
}

void mappings_trim(struct mappings *mappings, int n_trims)
{
    for (int i = 0; i < KEPT_MAPPINGS && mappings->kept[i].mapping.start; i++)
        mappings->kept[i].n_trims++;
    while (mappings->kept[0].mapping.start &&
           mappings->kept[0].n_trims > n_trims)
        unmap(mappings, unkeep(mappings, 0));
}

size_t mappings_kept_bytes(const struct mappings *mappings)
{
    size_t bytes = 0;
    for (int i = 0; i < KEPT_MAPPINGS; i++)
        bytes += mappings->kept[i].mapping.bytes;
    return bytes;
}

size_t mappings_resident_bytes(void *start, size_t bytes)
{
    enum { PAGES = 4096 }; /* asked about at once */
    unsigned char is_resident[PAGES];
    const size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
    size_t n_resident = 0;
    for (size_t at = 0; at < bytes; at += PAGES * page) {
        size_t n = (bytes - at + page - 1) / page;
        if (n > PAGES)
            n = PAGES;
        if (mincore((unsigned char *)start + at, n * page, is_resident) != 0)
            return 0;
        for (size_t i = 0; i < n; i++)
            n_resident += is_resident[i] & 1;
    }
    return n_resident * page;
}

bool mappings_grow(struct mappings *mappings, struct mapping *mapping,
                   size_t bytes)
{
    size_t more = bytes - mapping->bytes;
    if (!claim(mappings, more))
        return false;
    pthread_mutex_unlock(mappings->lock);
    void *start = mremap(mapping->start, mapping->bytes, bytes, MREMAP_MAYMOVE);
    pthread_mutex_lock(mappings->lock);
    if (start == MAP_FAILED) {
        mappings->bytes -= more;
        return false;
    }
    *mapping = (struct mapping){start, bytes};
    return true;
}
