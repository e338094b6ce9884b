/*
 * count_malloc.h - the page in which count_malloc.c counts, shared with the
 * test that reads it.
 */
#ifndef ROPED_TESTS_HTTP_COUNT_MALLOC_H
#define ROPED_TESTS_HTTP_COUNT_MALLOC_H

#include <stdatomic.h>

#define MALLOC_COUNTS_ENVIRONMENT "ROPED_TEST_MALLOC_COUNTS"

struct malloc_counts {
    atomic_ulong calls; /* malloc, calloc, realloc, aligned_alloc, ... */
    atomic_ulong bytes; /* asked for */
};

#endif
