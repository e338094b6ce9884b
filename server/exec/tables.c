/*
 * tables.c - named angle sets. One mutex guards the list; the resident tables
 * of a device have their own, which is taken under it.
 */
#include "exec/tables.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMED = 4096 };

struct table_entry {
    struct tenant *tenant;
    char name[ROPED_NAME_BYTES];
    struct roped_angle_set set;
    float *factors; /* owned copy, short then long */
    int references; /* one is the list's */
    struct table_entry *next;
};

struct tables {
    struct resident *const *resident; /* of each device; not owned */
    int n_devices;

    pthread_mutex_t lock;      /* guards the following */
    struct table_entry *named; /* in name order */
    int n_named;
    struct lost lost; /* of those that are not there */
};

enum roped_status tables_open(struct resident *const *resident, int n_devices,
                              struct tables **out, struct roped_error *err)
{
    struct tables *tables = calloc(1, sizeof *tables);
    if (!tables)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tables");
    tables->resident = resident;
    tables->n_devices = n_devices;
    pthread_mutex_init(&tables->lock, NULL);
    lost_init(&tables->lost, "table", ROPED_TABLE_LOST);
    *out = tables;
    return ROPED_OK;
}

static void free_entry(struct table_entry *entry)
{
    free(entry->factors);
    free(entry);
}

void tables_close(struct tables *tables)
{
    if (!tables)
        return;
    while (tables->named) {
        struct table_entry *entry = tables->named;
        tables->named = entry->next;
        free_entry(entry);
    }
    lost_free(&tables->lost);
    pthread_mutex_destroy(&tables->lock);
    free(tables);
}

/* ------------------------------------------------------------- named sets */

static struct table_entry *copy_set(struct tenant *tenant,
                                    const struct roped_angle_set *set)
{
    struct table_entry *entry = calloc(1, sizeof *entry);
    size_t n = (size_t)set->factors.count;
    if (!entry)
        return NULL;
    snprintf(entry->name, sizeof entry->name, "%s", set->name);
    entry->tenant = tenant;
    entry->set = *set;
    entry->set.name = entry->name;
    entry->references = 1;
    if (n == 0)
        return entry;
    entry->factors = calloc(2 * n, sizeof *entry->factors);
    if (!entry->factors) {
        free(entry);
        return NULL;
    }
    memcpy(entry->factors, set->factors.short_factor, n * sizeof(float));
    memcpy(entry->factors + n, set->factors.long_factor, n * sizeof(float));
    entry->set.factors.short_factor = entry->factors;
    entry->set.factors.long_factor = entry->factors + n;
    return entry;
}

static int compare(const struct table_entry *entry, const struct tenant *tenant,
                   const char *name)
{
    return tenant_compare(entry->tenant, entry->name, tenant, name);
}

/* Under lock: the link that points at the first entry not before this one. */
static struct table_entry **
find_link(struct tables *tables, const struct tenant *tenant, const char *name)
{
    struct table_entry **link = &tables->named;
    while (*link && compare(*link, tenant, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Under lock: the tenant's entry of this name, or NULL. */
static struct table_entry *find(struct tables *tables,
                                const struct tenant *tenant, const char *name)
{
    struct table_entry *entry = *find_link(tables, tenant, name);
    return entry && compare(entry, tenant, name) == 0 ? entry : NULL;
}

/* Under lock: drops one reference. */
static void drop_entry(struct table_entry *entry)
{
    if (--entry->references == 0)
        free_entry(entry);
}

/* Under lock: takes an entry out of the list. */
static void unlist(struct tables *tables, struct table_entry *entry)
{
    *find_link(tables, entry->tenant, entry->name) = entry->next;
    tables->n_named--;
    drop_entry(entry);
}

/* Under lock: may there be one more, beside n that are to come? */
static enum roped_status claim_name(const struct tables *tables, int n,
                                    struct tenant *tenant, const char *name,
                                    struct roped_error *err)
{
    if (tables->n_named + n < MAX_NAMED)
        return tenant_take_name(tenant, "table", name, err);
    return roped_fail(err, ROPED_BUSY,
                      "table '%.64s': %d tables exist, the most there may "
                      "be; DELETE one",
                      name, MAX_NAMED);
}

/* Under lock: claims the names that are not there yet, all of them or none. */
static enum roped_status claim_names(struct tables *tables,
                                     const struct table_entry *entry,
                                     struct roped_error *err)
{
    struct tenant *tenant = entry->tenant;
    enum roped_status status = ROPED_OK;
    int n = 0;
    for (; entry && !status; entry = entry->next) {
        if (find(tables, tenant, entry->name))
            continue;
        status = claim_name(tables, n, tenant, entry->name, err);
        n += status == ROPED_OK;
    }
    while (status && n-- > 0)
        tenant_give_name(tenant);
    return status;
}

/* Under lock: lists an entry whose name is claimed; true where there was
 * another of this name. */
static bool list(struct tables *tables, struct table_entry *entry)
{
    struct table_entry *old = find(tables, entry->tenant, entry->name);
    if (old)
        unlist(tables, old);
    struct table_entry **link = find_link(tables, entry->tenant, entry->name);
    entry->next = *link;
    *link = entry;
    tables->n_named++;
    (void)lost_forget(&tables->lost, entry->tenant, entry->name);
    return old != NULL;
}

static void free_entries(struct table_entry *entry)
{
    while (entry) {
        struct table_entry *next = entry->next;
        free_entry(entry);
        entry = next;
    }
}

/* Copies that hang on the first, in their order; NULL: no memory. */
static struct table_entry *copy_sets(struct tenant *tenant,
                                     const struct roped_angle_set *const *sets,
                                     int n)
{
    struct table_entry *first = NULL;
    while (n-- > 0) {
        struct table_entry *entry = copy_set(tenant, sets[n]);
        if (!entry) {
            free_entries(first);
            return NULL;
        }
        entry->next = first;
        first = entry;
    }
    return first;
}

enum roped_status tables_put(struct tables *tables, struct tenant *tenant,
                             const struct roped_angle_set *const *sets, int n,
                             bool *replaced, struct roped_error *err)
{
    bool has_replaced = false;
    struct table_entry *entries = copy_sets(tenant, sets, n);
    if (!entries)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for table '%s'",
                          sets[0]->name);
    pthread_mutex_lock(&tables->lock);
    enum roped_status status = claim_names(tables, entries, err);
    while (!status && entries) {
        struct table_entry *next = entries->next;
        has_replaced |= list(tables, entries);
        entries = next;
    }
    pthread_mutex_unlock(&tables->lock);
    free_entries(entries);
    if (replaced)
        *replaced = has_replaced;
    return status;
}

/* Under lock: why there is none. */
static enum roped_status no_table(struct tables *tables,
                                  const struct tenant *tenant, const char *name,
                                  struct roped_error *err)
{
    enum roped_status status = lost_check(&tables->lost, tenant, name, err);
    if (status)
        return status;
    return roped_fail(
        err, ROPED_NO_TABLE,
        "table '%.64s' does not exist; PUT /v1/tables/%.64s makes "
        "it",
        name, name);
}

enum roped_status tables_delete(struct tables *tables,
                                const struct tenant *tenant, const char *name,
                                struct roped_error *err)
{
    pthread_mutex_lock(&tables->lock);
    enum roped_status status = ROPED_OK;
    struct table_entry *entry = find(tables, tenant, name);
    if (entry) {
        tenant_give_name(entry->tenant);
        unlist(tables, entry);
    } else if (!lost_forget(&tables->lost, tenant, name)) {
        status = no_table(tables, tenant, name, err);
    }
    pthread_mutex_unlock(&tables->lock);
    return status;
}

enum roped_status tables_take(struct tables *tables,
                              const struct tenant *tenant, const char *name,
                              struct table_entry **out, struct roped_error *err)
{
    pthread_mutex_lock(&tables->lock);
    struct table_entry *entry = find(tables, tenant, name);
    if (entry)
        entry->references++;
    enum roped_status status =
        entry ? ROPED_OK : no_table(tables, tenant, name, err);
    pthread_mutex_unlock(&tables->lock);
    *out = entry;
    return status;
}

const struct roped_angle_set *tables_set(const struct table_entry *entry)
{
    return &entry->set;
}

void tables_give(struct tables *tables, struct table_entry *entry)
{
    if (!entry)
        return;
    pthread_mutex_lock(&tables->lock);
    drop_entry(entry);
    pthread_mutex_unlock(&tables->lock);
}

/* Device memory behind a set whose frequencies never change. */
static uint64_t device_bytes_of(struct tables *tables,
                                const struct roped_angle_set *set)
{
    struct roped_angles angles;
    uint64_t bytes = 0;
    int64_t r = set->rotary_dim;
    int64_t d = set->head_dim > r ? set->head_dim : r;
    double *storage = r > 0 ? calloc((size_t)d, sizeof *storage) : NULL;
    if (storage && roped_angles_resolve(&set->params, &set->factors, r, d, 0,
                                        storage, &angles, NULL) == ROPED_OK)
        for (int i = 0; i < tables->n_devices; i++)
            bytes += resident_bytes_of(tables->resident[i], &angles);
    free(storage);
    return bytes;
}

void tables_each(struct tables *tables, const struct tenant *tenant,
                 void (*visit)(void *context, const struct table_info *info),
                 void *context)
{
    pthread_mutex_lock(&tables->lock);
    for (struct table_entry *entry = tables->named; entry;
         entry = entry->next) {
        if (!tenant_sees(tenant, entry->tenant))
            continue;
        struct table_info info = {entry->tenant, &entry->set,
                                  device_bytes_of(tables, &entry->set)};
        visit(context, &info);
    }
    pthread_mutex_unlock(&tables->lock);
}

struct lost *tables_lost(struct tables *tables)
{
    return &tables->lost;
}

void tables_usage(struct tables *tables, struct tables_usage *out)
{
    struct resident_usage usage;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&tables->lock);
    out->n_named = tables->n_named;
    pthread_mutex_unlock(&tables->lock);
    for (int i = 0; i < tables->n_devices; i++) {
        resident_usage(tables->resident[i], &usage);
        out->n_resident += usage.n;
        out->resident_bytes += usage.bytes;
        out->budget_bytes += usage.budget_bytes;
        out->hits += usage.hits;
        out->builds += usage.builds;
        out->evictions += usage.evictions;
    }
}
