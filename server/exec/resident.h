/*
 * resident.h - cos/sin tables in the memory of one device: behind named tables
 * and behind parameters of calls, keyed by the angles' numbers, least recently
 * used out first.
 */
#ifndef ROPED_EXEC_RESIDENT_H
#define ROPED_EXEC_RESIDENT_H

#include "exec/device_memory.h"

#include <roped/backend.h>

#include <stdint.h>

struct resident;
struct resident_table; /* device memory, reference-counted */

struct resident_usage {
    int n;
    uint64_t bytes, budget_bytes;
    uint64_t hits, builds, evictions;
};

/* budget_bytes bounds what is taken of memory, which outlives the tables, and
 * table_bytes one table's share of it. */
ROPED_MUST_CHECK enum roped_status resident_open(struct device_memory *memory,
                                                 uint64_t budget_bytes,
                                                 uint64_t table_bytes,
                                                 struct resident **out,
                                                 struct roped_error *err);
void resident_close(struct resident *resident);

/*
 * Finds or builds (on queue, of the same device) memory for use->angles with
 * at least use->rows rows, and sets use->data. *out is the reference to give
 * back after the call has finished, or NULL with use->data NULL where the
 * table does not fit its budget: the launch then computes the angles on the
 * fly (ROPED_TOO_LARGE instead if use->required). Never blocks on the device
 * longer than a build.
 */
ROPED_MUST_CHECK enum roped_status resident_use(struct resident *resident,
                                                struct roped_queue *queue,
                                                struct roped_table_use *use,
                                                struct resident_table **out,
                                                struct roped_error *err);
void resident_unuse(struct resident *resident, struct resident_table *table);

/* Bytes of the finished table with these angles; 0: there is none. */
uint64_t resident_bytes_of(struct resident *resident,
                           const struct roped_angles *angles);

void resident_usage(struct resident *resident, struct resident_usage *out);

#endif
