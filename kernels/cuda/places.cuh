// places.cuh - how many blocks a launch has, by the places that multiprocessors have for them. Host
// code only.
#pragma once

#include "cuda/dispatch.cuh"

// Would a fifth of all places and more stay empty, where some multiprocessors have one more of so
// many blocks than others?
static inline bool leaves_places(int64_t blocks, int64_t chips)
{
    return 5 * blocks_of(blocks, chips) * chips > 6 * blocks;
}

// Blocks for so many, some of which may find nothing to do: as many for each multiprocessor as for
// any other, if that is hardly more than wanted. Blocks of the next kernel take their places while
// these are at work, first those of multiprocessors that have none, or fewer: several of them on
// each, while others wait. 1,024 rows of 1,024 take 1.7 us by 132 blocks, and 2.7 by 128.
static inline int64_t evened_blocks(int64_t wanted, int64_t chips)
{
    const int64_t filled = blocks_of(wanted, chips) * chips;
    return wanted < 6 * chips && 16 * (filled - wanted) < wanted ? filled : wanted;
}

// The same of blocks of rows, also of one or two for each multiprocessor.
static inline int64_t filled_blocks(int64_t wanted, int64_t chips)
{
    const bool is_small = wanted > chips / 2 && wanted < 2 * chips;
    return is_small ? blocks_of(wanted, chips) * chips : evened_blocks(wanted, chips);
}
