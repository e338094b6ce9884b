/*
 * name.h - names of a descriptor: ports, parameters, types, dims.
 */
#ifndef ROPED_CORE_NAME_H
#define ROPED_CORE_NAME_H

#include <stdbool.h>
#include <string.h>

/* Are they the same? Most differ in their first letter. */
static inline bool name_is(const char *a, const char *b)
{
    return *a == *b && strcmp(a, b) == 0;
}

#endif
