/*
 * tables.h - named rotary tables: PUT by a client, kept until DELETE. One
 * namespace for all devices; the cos/sin memory behind them is each device's
 * own (resident.h).
 */
#ifndef ROPED_EXEC_TABLES_H
#define ROPED_EXEC_TABLES_H

#include "exec/lost.h"
#include "exec/resident.h"
#include "exec/tenants.h"

#include <stdbool.h>
#include <stdint.h>

struct tables;
struct table_entry; /* a named set, reference-counted */

/* Resident tables of all devices together. */
struct tables_usage {
    int n_named;
    int n_resident;
    uint64_t resident_bytes, budget_bytes;
    uint64_t hits, builds, evictions;
};

/* resident: of each device; the array and what it holds outlive the tables. */
ROPED_MUST_CHECK enum roped_status tables_open(struct resident *const *resident,
                                               int n_devices,
                                               struct tables **out,
                                               struct roped_error *err);
void tables_close(struct tables *tables);

/* Stores copies of n sets (1 or more, of different names) under their names,
 * all of them or none, and at once. Those of the same name and tenant are
 * replaced: calls that hold an old one finish with it. *replaced says whether
 * there was one; it may be NULL. ROPED_BUSY: there are too many, or more than
 * the tenant's quota. */
ROPED_MUST_CHECK enum roped_status
tables_put(struct tables *tables, struct tenant *tenant,
           const struct roped_angle_set *const *sets, int n, bool *replaced,
           struct roped_error *err);

/* Also of one that was lost; ROPED_NO_TABLE for an unknown name. */
ROPED_MUST_CHECK enum roped_status tables_delete(struct tables *tables,
                                                 const struct tenant *tenant,
                                                 const char *name,
                                                 struct roped_error *err);

/* Takes a named set, or ROPED_NO_TABLE, or ROPED_TABLE_LOST where it was lost;
 * tables_give returns it. The set outlives its DELETE. */
ROPED_MUST_CHECK enum roped_status tables_take(struct tables *tables,
                                               const struct tenant *tenant,
                                               const char *name,
                                               struct table_entry **out,
                                               struct roped_error *err);
const struct roped_angle_set *tables_set(const struct table_entry *entry);
void tables_give(struct tables *tables, struct table_entry *entry);

/* A named set, whose it is, and what it takes on all devices. */
struct table_info {
    const struct tenant *tenant;
    const struct roped_angle_set *set;
    uint64_t resident_bytes;
};

/* Calls visit for every named set that the tenant sees, in name order, under
 * the lock. */
void tables_each(struct tables *tables, const struct tenant *tenant,
                 void (*visit)(void *context, const struct table_info *info),
                 void *context);

/* Names of sets that went with a device, until they are put or deleted. */
struct lost *tables_lost(struct tables *tables);

void tables_usage(struct tables *tables, struct tables_usage *out);

#endif
