/*
 * tables.c - named angle sets, and resident cos/sin tables keyed by the
 * numbers of their angles.
 *
 * DESIGN. Both lists hang under one mutex, which is never held while the
 * device works. A lane that finds no table for its angles inserts one that is
 * 'building', builds it without the lock and publishes it; a lane that meets
 * a table under construction computes its angles on the fly instead of
 * waiting. A table that is too short is replaced by a longer one; whoever
 * uses the short one keeps it by its reference.
 */
#include "exec/tables.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows beyond 2^24 have positions that float32 does not hold. */
enum { MIN_ROWS = 4096, MAX_ROWS = 1 << 24 };
enum { MAX_NAMED = 4096 };

struct table_entry {
    char name[ROPED_NAME_BYTES];
    struct roped_angle_set set;
    float *factors; /* owned copy, short then long */
    int references; /* one is the list's */
    struct table_entry *next;
};

struct resident_table {
    struct roped_angles angles; /* frequency is owned */
    uint64_t hash;
    int64_t rows;
    uint64_t bytes;
    float *data;
    int references; /* one is the list's while it is listed */
    bool is_building;
    uint64_t last_use;
    struct resident_table *next;
};

struct tables {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    uint64_t budget_bytes, table_bytes;

    pthread_mutex_t lock;      /* guards the following */
    struct table_entry *named; /* in name order */
    int n_named;
    struct resident_table *resident;
    uint64_t resident_bytes, clock;
    uint64_t hits, builds, evictions;
};

enum roped_status tables_open(const struct roped_backend_api *api,
                              struct roped_backend *backend,
                              size_t budget_bytes, size_t table_bytes,
                              struct tables **out, struct roped_error *err)
{
    struct tables *tables = calloc(1, sizeof *tables);
    if (!tables)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tables");
    tables->api = api;
    tables->backend = backend;
    tables->budget_bytes = budget_bytes;
    tables->table_bytes =
        table_bytes < budget_bytes ? table_bytes : budget_bytes;
    pthread_mutex_init(&tables->lock, NULL);
    *out = tables;
    return ROPED_OK;
}

static void free_entry(struct table_entry *entry)
{
    free(entry->factors);
    free(entry);
}

static void free_resident(struct tables *tables, struct resident_table *table)
{
    tables->api->device_free(tables->backend, table->data);
    free((void *)(uintptr_t)table->angles.frequency.f32);
    free(table);
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
    while (tables->resident) {
        struct resident_table *table = tables->resident;
        tables->resident = table->next;
        free_resident(tables, table);
    }
    pthread_mutex_destroy(&tables->lock);
    free(tables);
}

/* ------------------------------------------------------------- named sets */

static struct table_entry *copy_set(const struct roped_angle_set *set)
{
    struct table_entry *entry = calloc(1, sizeof *entry);
    size_t n = (size_t)set->factors.count;
    if (!entry)
        return NULL;
    snprintf(entry->name, sizeof entry->name, "%s", set->name);
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

/* Under lock: the link that points at the first name not before this one. */
static struct table_entry **find_link(struct tables *tables, const char *name)
{
    struct table_entry **link = &tables->named;
    while (*link && strcmp((*link)->name, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Under lock: drops one reference. */
static void drop_entry(struct table_entry *entry)
{
    if (--entry->references == 0)
        free_entry(entry);
}

enum roped_status tables_put(struct tables *tables,
                             const struct roped_angle_set *set, bool *replaced,
                             struct roped_error *err)
{
    struct table_entry *entry = copy_set(set);
    bool has_replaced = false;
    if (!entry)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for table '%s'",
                          set->name);
    pthread_mutex_lock(&tables->lock);
    struct table_entry **link = find_link(tables, entry->name);
    if (*link && strcmp((*link)->name, entry->name) == 0) {
        struct table_entry *old = *link;
        *link = old->next;
        tables->n_named--;
        drop_entry(old);
        has_replaced = true;
    }
    bool has_room = tables->n_named < MAX_NAMED;
    if (has_room) {
        entry->next = *link;
        *link = entry;
        tables->n_named++;
    }
    pthread_mutex_unlock(&tables->lock);
    if (replaced)
        *replaced = has_replaced;
    if (has_room)
        return ROPED_OK;
    free_entry(entry);
    return roped_fail(err, ROPED_BUSY,
                      "table '%.64s': there are %d named tables, expected "
                      "fewer; DELETE one",
                      set->name, MAX_NAMED);
}

static enum roped_status no_table(const char *name, struct roped_error *err)
{
    return roped_fail(err, ROPED_NOT_FOUND,
                      "table '%.64s' is not known; PUT /v1/tables/%.64s makes "
                      "it",
                      name, name);
}

enum roped_status tables_delete(struct tables *tables, const char *name,
                                struct roped_error *err)
{
    pthread_mutex_lock(&tables->lock);
    struct table_entry **link = find_link(tables, name);
    struct table_entry *entry = *link;
    bool is_known = entry && strcmp(entry->name, name) == 0;
    if (is_known) {
        *link = entry->next;
        tables->n_named--;
        drop_entry(entry);
    }
    pthread_mutex_unlock(&tables->lock);
    return is_known ? ROPED_OK : no_table(name, err);
}

enum roped_status tables_take(struct tables *tables, const char *name,
                              struct table_entry **out, struct roped_error *err)
{
    pthread_mutex_lock(&tables->lock);
    struct table_entry *entry = *find_link(tables, name);
    bool is_known = entry && strcmp(entry->name, name) == 0;
    if (is_known)
        entry->references++;
    pthread_mutex_unlock(&tables->lock);
    *out = is_known ? entry : NULL;
    return is_known ? ROPED_OK : no_table(name, err);
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

/* Under lock: resident bytes of a set whose frequencies never change. */
static uint64_t resident_bytes_of(struct tables *tables,
                                  const struct roped_angle_set *set)
{
    struct roped_angles angles;
    uint64_t bytes = 0;
    int64_t r = set->rotary_dim;
    int64_t d = set->head_dim > r ? set->head_dim : r;
    double *storage = r > 0 ? calloc((size_t)d, sizeof *storage) : NULL;
    if (storage && roped_angles_resolve(&set->params, &set->factors, r, d, 0,
                                        storage, &angles, NULL) == ROPED_OK)
        for (struct resident_table *t = tables->resident; t; t = t->next)
            if (!t->is_building && roped_angles_equal(&t->angles, &angles))
                bytes = t->bytes;
    free(storage);
    return bytes;
}

void tables_each(struct tables *tables,
                 void (*visit)(void *context, const struct roped_angle_set *set,
                               uint64_t resident_bytes),
                 void *context)
{
    pthread_mutex_lock(&tables->lock);
    for (struct table_entry *entry = tables->named; entry; entry = entry->next)
        visit(context, &entry->set, resident_bytes_of(tables, &entry->set));
    pthread_mutex_unlock(&tables->lock);
}

/* --------------------------------------------------------- resident tables */

static int64_t row_bytes(const struct roped_angles *angles)
{
    return 2 * angles->n_pairs * (int64_t)sizeof(float);
}

/* Rows to build for a call that needs rows: a power of two, so that growing
 * positions do not rebuild at every step; 0 where the budget has no room. */
static int64_t rows_to_build(const struct tables *tables,
                             const struct roped_table_use *use)
{
    int64_t rows = MIN_ROWS, most = MAX_ROWS;
    uint64_t fitting =
        use->angles.n_pairs > 0
            ? tables->table_bytes / (uint64_t)row_bytes(&use->angles)
            : 0;
    if (fitting < MAX_ROWS)
        most = (int64_t)fitting;
    if (use->rows > most)
        return 0;
    while (rows < use->rows)
        rows *= 2;
    return rows < most ? rows : most;
}

/* Under lock: takes a table out of the list and drops the list's reference.
 * Returns it where nobody uses it any more: to be freed without the lock. */
static struct resident_table *unlist(struct tables *tables,
                                     struct resident_table *table)
{
    struct resident_table **link = &tables->resident;
    while (*link != table)
        link = &(*link)->next;
    *link = table->next;
    tables->resident_bytes -= table->bytes;
    return --table->references == 0 ? table : NULL;
}

/* Under lock: evicts until bytes fit; the evicted hang on *freed. */
static bool evict_for(struct tables *tables, uint64_t bytes,
                      struct resident_table **freed)
{
    while (tables->resident_bytes + bytes > tables->budget_bytes) {
        struct resident_table *oldest = NULL;
        for (struct resident_table *t = tables->resident; t; t = t->next)
            if (t->references == 1 && !t->is_building &&
                (!oldest || t->last_use < oldest->last_use))
                oldest = t;
        if (!oldest)
            return false;
        struct resident_table *gone = unlist(tables, oldest);
        gone->next = *freed;
        *freed = gone;
        tables->evictions++;
    }
    return true;
}

static struct resident_table *new_resident(const struct roped_angles *angles,
                                           uint64_t hash, int64_t rows)
{
    size_t bytes =
        roped_angles_frequency_bytes(angles->n_pairs, angles->precision);
    struct resident_table *table = calloc(1, sizeof *table);
    void *frequency = malloc(bytes);
    if (!table || !frequency) {
        free(table);
        free(frequency);
        return NULL;
    }
    memcpy(frequency, angles->frequency.f32, bytes);
    table->angles = *angles;
    table->angles.frequency.f32 = frequency;
    table->hash = hash;
    table->rows = rows;
    table->bytes = (uint64_t)(rows * row_bytes(angles));
    table->references = 2; /* the list's and the caller's */
    table->is_building = true;
    return table;
}

static enum roped_status build(struct tables *tables, struct roped_queue *queue,
                               struct resident_table *table,
                               struct roped_error *err)
{
    void *data;
    enum roped_status status =
        tables->api->device_alloc(tables->backend, table->bytes, &data, err);
    if (status)
        return status;
    table->data = data;
    status = tables->api->build_table(queue, &table->angles, 0, table->rows,
                                      table->data, err);
    /* other lanes use it on their own queues: it must be finished first */
    enum roped_status waited = tables->api->wait(queue, status ? NULL : err);
    return status ? status : waited;
}

/* Under lock: the longest finished table with these angles. */
static struct resident_table *find_resident(struct tables *tables,
                                            const struct roped_angles *angles,
                                            uint64_t hash, bool *is_building)
{
    struct resident_table *best = NULL;
    *is_building = false;
    for (struct resident_table *t = tables->resident; t; t = t->next) {
        if (t->hash != hash || !roped_angles_equal(&t->angles, angles))
            continue;
        if (t->is_building)
            *is_building = true;
        else if (!best || t->rows > best->rows)
            best = t;
    }
    return best;
}

static void free_list(struct tables *tables, struct resident_table *freed)
{
    while (freed) {
        struct resident_table *next = freed->next;
        free_resident(tables, freed);
        freed = next;
    }
}

static enum roped_status no_room(const struct roped_table_use *use,
                                 const struct tables *tables,
                                 struct roped_error *err)
{
    if (!use->required)
        return ROPED_OK; /* computed on the fly */
    if (rows_to_build(tables, use) > 0)
        return roped_fail(err, ROPED_BUSY,
                          "parameter 'angles': table, but other calls use all "
                          "the memory of tables");
    return roped_fail(err, ROPED_TOO_LARGE,
                      "parameter 'angles': table, but %lld rows of %lld bytes "
                      "do not fit, expected at most %d rows and %llu bytes "
                      "(table_bytes)",
                      (long long)use->rows, (long long)row_bytes(&use->angles),
                      MAX_ROWS, (unsigned long long)tables->table_bytes);
}

/* Under lock: lists a new table under construction, or returns NULL. */
static struct resident_table *start_build(struct tables *tables,
                                          const struct roped_table_use *use,
                                          uint64_t hash,
                                          struct resident_table **freed)
{
    int64_t rows = rows_to_build(tables, use);
    if (rows == 0 ||
        !evict_for(tables, (uint64_t)(rows * row_bytes(&use->angles)), freed))
        return NULL;
    struct resident_table *table = new_resident(&use->angles, hash, rows);
    if (!table)
        return NULL;
    table->next = tables->resident;
    tables->resident = table;
    tables->resident_bytes += table->bytes;
    return table;
}

/* Ends a build: publishes the table, or takes it away. */
static void finish_build(struct tables *tables, struct resident_table *table,
                         bool is_good, struct resident_table **freed)
{
    struct resident_table *shorter = NULL, *t;
    pthread_mutex_lock(&tables->lock);
    table->is_building = false;
    table->last_use = ++tables->clock;
    tables->builds += is_good;
    for (t = tables->resident; t && is_good; t = t->next)
        if (t != table && t->hash == table->hash && !t->is_building &&
            roped_angles_equal(&t->angles, &table->angles))
            shorter = t;
    if (!is_good) {
        table->references--; /* the caller's */
        shorter = table;
    }
    struct resident_table *gone = shorter ? unlist(tables, shorter) : NULL;
    if (gone) {
        gone->next = *freed;
        *freed = gone;
    }
    pthread_mutex_unlock(&tables->lock);
}

enum roped_status tables_use(struct tables *tables, struct roped_queue *queue,
                             struct roped_table_use *use,
                             struct resident_table **out,
                             struct roped_error *err)
{
    uint64_t hash = roped_angles_hash(&use->angles);
    struct resident_table *freed = NULL, *built = NULL;
    bool is_building;
    *out = NULL;
    use->data = NULL;
    pthread_mutex_lock(&tables->lock);
    struct resident_table *table =
        find_resident(tables, &use->angles, hash, &is_building);
    if (table && table->rows >= use->rows) {
        table->references++;
        table->last_use = ++tables->clock;
        tables->hits++;
        *out = table;
        use->data = table->data;
    } else if (!is_building) {
        built = start_build(tables, use, hash, &freed);
    }
    pthread_mutex_unlock(&tables->lock);
    enum roped_status status = ROPED_OK;
    if (built) {
        status = build(tables, queue, built, err);
        finish_build(tables, built, status == ROPED_OK, &freed);
        if (!status) {
            *out = built;
            use->data = built->data;
        } else if (status == ROPED_NO_MEMORY && !use->required) {
            status = ROPED_OK; /* computed on the fly */
        }
    }
    free_list(tables, freed);
    if (!status && !use->data && !is_building)
        status = no_room(use, tables, err);
    return status;
}

void tables_unuse(struct tables *tables, struct resident_table *table)
{
    if (!table)
        return;
    pthread_mutex_lock(&tables->lock);
    bool is_last = --table->references == 0;
    pthread_mutex_unlock(&tables->lock);
    if (is_last)
        free_resident(tables, table);
}

void tables_usage(struct tables *tables, struct tables_usage *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&tables->lock);
    out->n_named = tables->n_named;
    for (struct resident_table *t = tables->resident; t; t = t->next)
        out->n_resident++;
    out->resident_bytes = tables->resident_bytes;
    out->budget_bytes = tables->budget_bytes;
    out->hits = tables->hits;
    out->builds = tables->builds;
    out->evictions = tables->evictions;
    pthread_mutex_unlock(&tables->lock);
}
