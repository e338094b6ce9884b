/*
 * heaps.h - the heaps that malloc takes small allocations from: what was freed
 * goes back to the system.
 */
#ifndef ROPED_EXEC_HEAPS_H
#define ROPED_EXEC_HEAPS_H

/* Before the first threads: free() gives back what is free at the end of a
 * heap, as far as that is more than 4 MiB. */
void heaps_bound(void);

/* Gives back what is free within heaps, where that is more than 16 MiB. */
void heaps_trim(void);

#endif
