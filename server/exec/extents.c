/*
 * extents.c - segregated fit with boundary tags.
 *
 * DESIGN. The first and the last grain of an extent hold its size, so that a
 * neighbour is found by one look to the left or right. Free extents are listed
 * by class, four to each power of two; a bit map finds the next class that has
 * one. What the class of a size itself may hold is tried last, one by one: that
 * is for a range that is nearly full.
 */
#include "exec/extents.h"

#include <assert.h>
#include <string.h>

#define FREE 0x80000000u

static int log2_of(uint32_t n)
{
    return 31 - __builtin_clz(n);
}

static int class_of(uint32_t n)
{
    int log2 = log2_of(n);
    uint32_t quarter = log2 >= 2 ? n >> (log2 - 2) : n << (2 - log2);
    return 4 * log2 + (int)(quarter & 3);
}

int extents_class(uint32_t n)
{
    int log2 = log2_of(n);
    bool is_least = log2 < 2 || (n & ((1u << (log2 - 2)) - 1)) == 0;
    return class_of(n) + !is_least;
}

uint32_t extents_class_size(int class)
{
    return ((4u + (uint32_t) class % 4) << class / 4) / 4;
}

static bool is_free(const struct extents *extents, uint32_t start)
{
    return extents->grain[start].size & FREE;
}

static uint32_t size_at(const struct extents *extents, uint32_t start)
{
    return extents->grain[start].size & ~FREE;
}

static void tag(struct extents *extents, uint32_t start, uint32_t n,
                uint32_t free)
{
    extents->grain[start].size = n | free;
    extents->grain[start + n - 1].size = n | free;
}

static void list(struct extents *extents, uint32_t start, uint32_t n)
{
    int class = class_of(n);
    struct grain *grain = &extents->grain[start];
    tag(extents, start, n, FREE);
    grain->previous = EXTENT_NONE;
    grain->next = extents->first[class];
    if (grain->next != EXTENT_NONE)
        extents->grain[grain->next].previous = start;
    extents->first[class] = start;
    extents->has[class / 64] |= UINT64_C(1) << class % 64;
}

static void unlist(struct extents *extents, uint32_t start)
{
    const struct grain *grain = &extents->grain[start];
    int class = class_of(size_at(extents, start));
    if (grain->next != EXTENT_NONE)
        extents->grain[grain->next].previous = grain->previous;
    if (grain->previous != EXTENT_NONE)
        extents->grain[grain->previous].next = grain->next;
    else
        extents->first[class] = grain->next;
    if (extents->first[class] == EXTENT_NONE)
        extents->has[class / 64] &= ~(UINT64_C(1) << class % 64);
}

void extents_init(struct extents *extents, struct grain *grain, uint32_t n)
{
    extents->grain = grain;
    extents->n = n;
    memset(extents->has, 0, sizeof extents->has);
    for (int i = 0; i < EXTENT_CLASSES; i++)
        extents->first[i] = EXTENT_NONE;
    if (n)
        list(extents, 0, n);
}

static uint32_t find(const struct extents *extents, uint32_t n)
{
    int class = extents_class(n), word = class / 64;
    uint64_t has = extents->has[word] >> class % 64 << class % 64;
    while (!has && ++word < EXTENT_CLASSES / 64)
        has = extents->has[word];
    if (has)
        return extents->first[64 * word + __builtin_ctzll(has)];
    uint32_t start = extents->first[class_of(n)];
    while (start != EXTENT_NONE && size_at(extents, start) < n)
        start = extents->grain[start].next;
    return start;
}

/* Makes an extent of n of the size grains at start; the rest is free. */
static void cut(struct extents *extents, uint32_t start, uint32_t size,
                uint32_t n)
{
    tag(extents, start, n, 0);
    if (size > n)
        list(extents, start + n, size - n);
}

uint32_t extents_take(struct extents *extents, uint32_t n, uint32_t room)
{
    uint32_t start = find(extents, room);
    if (start == EXTENT_NONE)
        return start;
    unlist(extents, start);
    cut(extents, start, size_at(extents, start), n);
    return start;
}

bool extents_grow(struct extents *extents, uint32_t start, uint32_t n)
{
    uint32_t size = size_at(extents, start), behind = start + size;
    if (behind >= extents->n || !is_free(extents, behind) ||
        size + size_at(extents, behind) < n)
        return false;
    size += size_at(extents, behind);
    unlist(extents, behind);
    cut(extents, start, size, n);
    return true;
}

uint32_t extents_give(struct extents *extents, uint32_t start)
{
    uint32_t given = size_at(extents, start), n = given;
    uint32_t behind = start + n;
    assert(n > 0 && !is_free(extents, start)); /* else not taken, or twice */
    if (behind < extents->n && is_free(extents, behind)) {
        unlist(extents, behind);
        n += size_at(extents, behind);
    }
    if (start > 0 && is_free(extents, start - 1)) {
        uint32_t left = size_at(extents, start - 1);
        unlist(extents, start - left);
        start -= left;
        n += left;
    }
    list(extents, start, n);
    return given;
}
