/*
 * heaps.c - glibc's heaps, of which there are several for each processor.
 *
 * Eight documents of half a million values, whose trees had been freed, left
 * 280 MiB. malloc_trim gives back pages that are free within heaps, but of the
 * ends of heaps only that of the first. free() gives back the other ends,
 * unless what it frees waits in a "fast bin" to be joined with its neighbours.
 */
#include "exec/heaps.h"

#include <malloc.h>

enum { WITHIN_BYTES = 16 << 20, END_BYTES = 4 << 20 };

void heaps_bound(void)
{
    (void)mallopt(M_MXFAST, 0);
    (void)mallopt(M_TRIM_THRESHOLD, END_BYTES);
}

void heaps_trim(void)
{
    if (mallinfo2().fordblks > WITHIN_BYTES)
        malloc_trim(0);
}
