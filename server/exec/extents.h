/*
 * extents.h - which parts of a range are free: the range is cut into extents
 * of whole grains, and each knows its neighbours, so that taking, growing and
 * giving back take a few steps however many extents there are.
 */
#ifndef ROPED_EXEC_EXTENTS_H
#define ROPED_EXEC_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

enum { EXTENT_CLASSES = 128 };

#define EXTENT_NONE UINT32_MAX

/* One per grain of the range; used where an extent starts or ends. */
struct grain {
    uint32_t size;           /* grains of that extent; its top bit: free */
    uint32_t next, previous; /* free extents of its class */
};

/* Sizes of which there are four to each power of two: the first that is at
 * least n, and how many grains it has. */
int extents_class(uint32_t n);
uint32_t extents_class_size(int class);

/* Not thread-safe. */
struct extents {
    struct grain *grain; /* n of them, not owned */
    uint32_t n;
    uint32_t first[EXTENT_CLASSES]; /* free extents by size */
    uint64_t has[EXTENT_CLASSES / 64];
};

/* One free extent of n grains, below 2^31. */
void extents_init(struct extents *extents, struct grain *grain, uint32_t n);

/* An extent of n grains at the start of a free one of at least room >= n:
 * its first grain, or EXTENT_NONE. */
uint32_t extents_take(struct extents *extents, uint32_t n, uint32_t room);

/* Makes a taken extent n grains long where it is; false: not free behind it. */
bool extents_grow(struct extents *extents, uint32_t start, uint32_t n);

/* Gives an extent back; returns its grains. */
uint32_t extents_give(struct extents *extents, uint32_t start);

#endif
