/*
 * tables.h - rotary tables: named ones (PUT by a client, kept until DELETE)
 * and the resident cos/sin memory behind them and behind inline parameters,
 * keyed by the angles' numbers, least recently used out first.
 */
#ifndef ROPED_EXEC_TABLES_H
#define ROPED_EXEC_TABLES_H

#include <roped/backend.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tables;
struct table_entry;    /* a named set, reference-counted */
struct resident_table; /* device memory, reference-counted */

struct tables_usage {
    int n_named;
    int n_resident;
    uint64_t resident_bytes, budget_bytes;
    uint64_t hits, builds, evictions;
};

/* budget_bytes bounds resident memory, table_bytes one table's share of it. */
ROPED_MUST_CHECK enum roped_status
tables_open(const struct roped_backend_api *api, struct roped_backend *backend,
            size_t budget_bytes, size_t table_bytes, struct tables **out,
            struct roped_error *err);
void tables_close(struct tables *tables);

/* Stores a copy of set under its name, replacing one of the same name:
 * calls that hold the old one finish with it. *replaced may be NULL. */
ROPED_MUST_CHECK enum roped_status tables_put(struct tables *tables,
                                              const struct roped_angle_set *set,
                                              bool *replaced,
                                              struct roped_error *err);

/* ROPED_NOT_FOUND for an unknown name. */
ROPED_MUST_CHECK enum roped_status
tables_delete(struct tables *tables, const char *name, struct roped_error *err);

/* Takes a named set; tables_give returns it. The set outlives its DELETE. */
ROPED_MUST_CHECK enum roped_status tables_take(struct tables *tables,
                                               const char *name,
                                               struct table_entry **out,
                                               struct roped_error *err);
const struct roped_angle_set *tables_set(const struct table_entry *entry);
void tables_give(struct tables *tables, struct table_entry *entry);

/* Calls visit for every named set, in name order, under the lock. */
void tables_each(struct tables *tables,
                 void (*visit)(void *context, const struct roped_angle_set *set,
                               uint64_t resident_bytes),
                 void *context);

/*
 * Finds or builds (on queue) resident memory for use->angles with at least
 * use->rows rows, and sets use->data. *out is the reference to give back
 * after the call has finished, or NULL with use->data NULL where the table
 * does not fit its budget: the launch then computes the angles on the fly
 * (ROPED_TOO_LARGE instead if use->required). Never blocks on the device
 * longer than a build.
 */
ROPED_MUST_CHECK enum roped_status tables_use(struct tables *tables,
                                              struct roped_queue *queue,
                                              struct roped_table_use *use,
                                              struct resident_table **out,
                                              struct roped_error *err);
void tables_unuse(struct tables *tables, struct resident_table *table);

void tables_usage(struct tables *tables, struct tables_usage *out);

#endif
