/*
 * region_internal.h - a region, for the files that make it up: what it is
 * (region.c), and who holds it (regions.c).
 */
#ifndef ROPED_EXEC_REGION_INTERNAL_H
#define ROPED_EXEC_REGION_INTERNAL_H

#include "exec/regions.h"

struct region {
    struct region_info info; /* constant, as are data and is_device */
    unsigned char *data; /* resident in host memory: REGION_HEAD_BYTES behind
                            the start of what was allocated */
    size_t head_bytes;   /* right before data */
    bool is_device;
    bool is_written;              /* all of it */
    struct device_memory *memory; /* of the device that has or page-locks it */
    struct client_memory client;  /* REGION_SYSTEM */
    int references;               /* one is the list's while it is listed */
    struct region *next;
};

#endif
