/*
 * clock.h - time, as tests and benchmarks tell it and pass it.
 */
#ifndef ROPED_TESTS_CLOCK_H
#define ROPED_TESTS_CLOCK_H

#include <time.h>

static inline double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void pause_seconds(double seconds)
{
    struct timespec time = {(time_t)seconds,
                            (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

#endif
