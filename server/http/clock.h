/*
 * clock.h - CLOCK_MONOTONIC for the HTTP room.
 */
#ifndef ROPED_HTTP_CLOCK_H
#define ROPED_HTTP_CLOCK_H

#include <stdint.h>

/* Nanoseconds, now. */
uint64_t clock_now_ns(void);

/* In some seconds, to the tick of the system's timer (1 to 10 ms early): for
 * deadlines that a reaper keeps, of which a request sets several. */
uint64_t clock_after_ns(double seconds);

#endif
