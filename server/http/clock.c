/*
 * clock.c - CLOCK_MONOTONIC for the HTTP room.
 */
#include "http/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_after_ns(double seconds)
{
    return read_ns(CLOCK_MONOTONIC_COARSE) + (uint64_t)(seconds * 1e9);
}
