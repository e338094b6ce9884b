/*
 * name.h - names of a descriptor: ports, parameters, types, dims.
 */
#ifndef ROPED_CORE_NAME_H
#define ROPED_CORE_NAME_H

#include <stdbool.h>
#include <string.h>

/* Are they the same? Most differ in one of their first letters, or have no
 * more. */
static inline bool name_is(const char *a, const char *b)
{
    if (*a != *b || !*a || a[1] != b[1] || !a[1])
        return *a == *b && (!*a || a[1] == b[1]);
    return strcmp(a, b) == 0;
}

#endif
