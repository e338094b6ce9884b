/*
 * resident.c - cos/sin tables in the memory of one device, keyed by the
 * numbers of their angles.
 *
 * DESIGN. The list hangs under one mutex, which is never held while the device
 * works. A lane that finds no table for its angles inserts one that is
 * 'building', builds it without the lock and publishes it; a lane that meets
 * a table under construction computes its angles on the fly instead of
 * waiting. A table that is too short is replaced by a longer one; whoever
 * uses the short one keeps it by its reference.
 */
#include "exec/resident.h"

#include "exec/poison.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Rows beyond 2^24 have positions that float32 does not hold. */
enum { MIN_ROWS = 4096 };

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

struct resident {
    const struct roped_backend_api *api;
    struct device_memory *memory;
    uint64_t budget_bytes, table_bytes;

    pthread_mutex_t lock; /* guards the following */
    struct resident_table *listed;
    uint64_t bytes, clock;
    uint64_t hits, builds, evictions;
};

enum roped_status resident_open(struct device_memory *memory,
                                uint64_t budget_bytes, uint64_t table_bytes,
                                struct resident **out, struct roped_error *err)
{
    struct resident *resident = calloc(1, sizeof *resident);
    if (!resident)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tables");
    resident->api = memory->api;
    resident->memory = memory;
    resident->budget_bytes = budget_bytes;
    resident->table_bytes =
        table_bytes < budget_bytes ? table_bytes : budget_bytes;
    pthread_mutex_init(&resident->lock, NULL);
    *out = resident;
    return ROPED_OK;
}

static void free_table(struct resident *resident, struct resident_table *table)
{
    device_memory_give(resident->memory, FOR_TABLES, table->bytes, table->data);
    free((void *)(uintptr_t)table->angles.frequency.f32);
    free(table);
}

void resident_close(struct resident *resident)
{
    if (!resident)
        return;
    while (resident->listed) {
        struct resident_table *table = resident->listed;
        resident->listed = table->next;
        free_table(resident, table);
    }
    pthread_mutex_destroy(&resident->lock);
    free(resident);
}

/* ------------------------------------------------------------------ making */

static int64_t row_bytes(const struct roped_angles *angles)
{
    return 2 * angles->n_pairs * (int64_t)sizeof(float);
}

/* Rows to build for a call that needs rows: a power of two, so that growing
 * positions do not rebuild at every step; 0 where the budget has no room. */
static int64_t rows_to_build(const struct resident *resident,
                             const struct roped_table_use *use)
{
    int64_t rows = MIN_ROWS, most = ROPED_TABLE_ROWS;
    uint64_t fitting =
        use->angles.n_pairs > 0
            ? resident->table_bytes / (uint64_t)row_bytes(&use->angles)
            : 0;
    if (fitting < ROPED_TABLE_ROWS)
        most = (int64_t)fitting;
    if (use->rows > most)
        return 0;
    while (rows < use->rows)
        rows *= 2;
    return rows < most ? rows : most;
}

/* Under lock: takes a table out of the list and drops the list's reference.
 * Returns it where nobody uses it any more: to be freed without the lock. */
static struct resident_table *unlist(struct resident *resident,
                                     struct resident_table *table)
{
    struct resident_table **link = &resident->listed;
    while (*link != table)
        link = &(*link)->next;
    *link = table->next;
    resident->bytes -= table->bytes;
    return --table->references == 0 ? table : NULL;
}

/* Under lock: evicts until bytes fit; the evicted hang on *freed. */
static bool evict_for(struct resident *resident, uint64_t bytes,
                      struct resident_table **freed)
{
    while (resident->bytes + bytes > resident->budget_bytes) {
        struct resident_table *oldest = NULL;
        for (struct resident_table *t = resident->listed; t; t = t->next)
            if (t->references == 1 && !t->is_building &&
                (!oldest || t->last_use < oldest->last_use))
                oldest = t;
        if (!oldest)
            return false;
        struct resident_table *gone = unlist(resident, oldest);
        gone->next = *freed;
        *freed = gone;
        resident->evictions++;
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

static enum roped_status build(struct resident *resident,
                               struct roped_queue *queue,
                               struct resident_table *table,
                               struct roped_error *err)
{
    void *data;
    enum roped_status status = device_memory_take(resident->memory, FOR_TABLES,
                                                  table->bytes, &data, err);
    if (status)
        return status;
    table->data = data;
    status = poison_device(resident->api, queue, data, table->bytes, err);
    if (!status)
        status = resident->api->build_table(queue, &table->angles, 0,
                                            table->rows, table->data, err);
    /* other lanes use it on their own queues: it must be finished first */
    enum roped_status waited = resident->api->wait(queue, status ? NULL : err);
    return status ? status : waited;
}

/* Under lock: the longest finished table with these angles. */
static struct resident_table *find_resident(struct resident *resident,
                                            const struct roped_angles *angles,
                                            uint64_t hash, bool *is_building)
{
    struct resident_table *best = NULL;
    *is_building = false;
    for (struct resident_table *t = resident->listed; t; t = t->next) {
        if (t->hash != hash || !roped_angles_equal(&t->angles, angles))
            continue;
        if (t->is_building)
            *is_building = true;
        else if (!best || t->rows > best->rows)
            best = t;
    }
    return best;
}

static void free_list(struct resident *resident, struct resident_table *freed)
{
    while (freed) {
        struct resident_table *next = freed->next;
        free_table(resident, freed);
        freed = next;
    }
}

static enum roped_status no_room(const struct roped_table_use *use,
                                 const struct resident *resident,
                                 struct roped_error *err)
{
    if (!use->required)
        return ROPED_OK; /* computed on the fly */
    if (rows_to_build(resident, use) > 0)
        return roped_fail(err, ROPED_BUSY,
                          "parameter 'angles': table, but other calls use all "
                          "the memory of tables");
    return roped_fail(err, ROPED_TOO_LARGE,
                      "parameter 'angles': table, but %lld rows of %lld bytes "
                      "do not fit, expected at most %d rows and %llu bytes "
                      "(table_bytes)",
                      (long long)use->rows, (long long)row_bytes(&use->angles),
                      ROPED_TABLE_ROWS,
                      (unsigned long long)resident->table_bytes);
}

/* Under lock: lists a new table under construction, or returns NULL. */
static struct resident_table *start_build(struct resident *resident,
                                          const struct roped_table_use *use,
                                          uint64_t hash,
                                          struct resident_table **freed)
{
    int64_t rows = rows_to_build(resident, use);
    if (rows == 0 ||
        !evict_for(resident, (uint64_t)(rows * row_bytes(&use->angles)), freed))
        return NULL;
    struct resident_table *table = new_resident(&use->angles, hash, rows);
    if (!table)
        return NULL;
    table->next = resident->listed;
    resident->listed = table;
    resident->bytes += table->bytes;
    return table;
}

/* Ends a build: publishes the table, or takes it away. */
static void finish_build(struct resident *resident,
                         struct resident_table *table, bool is_good,
                         struct resident_table **freed)
{
    struct resident_table *shorter = NULL, *t;
    pthread_mutex_lock(&resident->lock);
    table->is_building = false;
    table->last_use = ++resident->clock;
    resident->builds += is_good;
    for (t = resident->listed; t && is_good; t = t->next)
        if (t != table && t->hash == table->hash && !t->is_building &&
            roped_angles_equal(&t->angles, &table->angles))
            shorter = t;
    if (!is_good) {
        table->references--; /* the caller's */
        shorter = table;
    }
    struct resident_table *gone = shorter ? unlist(resident, shorter) : NULL;
    if (gone) {
        gone->next = *freed;
        *freed = gone;
    }
    pthread_mutex_unlock(&resident->lock);
}

enum roped_status resident_use(struct resident *resident,
                               struct roped_queue *queue,
                               struct roped_table_use *use,
                               struct resident_table **out,
                               struct roped_error *err)
{
    uint64_t hash = roped_angles_hash(&use->angles);
    struct resident_table *freed = NULL, *built = NULL;
    bool is_building;
    *out = NULL;
    use->data = NULL;
    pthread_mutex_lock(&resident->lock);
    struct resident_table *table =
        find_resident(resident, &use->angles, hash, &is_building);
    if (table && table->rows >= use->rows) {
        table->references++;
        table->last_use = ++resident->clock;
        resident->hits++;
        *out = table;
        use->data = table->data;
    } else if (!is_building) {
        built = start_build(resident, use, hash, &freed);
    }
    pthread_mutex_unlock(&resident->lock);
    enum roped_status status = ROPED_OK;
    free_list(resident, freed); /* first: the new table is in their place */
    freed = NULL;
    if (built) {
        status = build(resident, queue, built, err);
        finish_build(resident, built, status == ROPED_OK, &freed);
        if (!status) {
            *out = built;
            use->data = built->data;
        } else if (status == ROPED_NO_MEMORY && !use->required) {
            status = ROPED_OK; /* computed on the fly */
        }
    }
    free_list(resident, freed);
    if (!status && !use->data && !is_building)
        status = no_room(use, resident, err);
    return status;
}

void resident_unuse(struct resident *resident, struct resident_table *table)
{
    if (!table)
        return;
    pthread_mutex_lock(&resident->lock);
    bool is_last = --table->references == 0;
    pthread_mutex_unlock(&resident->lock);
    if (is_last)
        free_table(resident, table);
}

uint64_t resident_bytes_of(struct resident *resident,
                           const struct roped_angles *angles)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&resident->lock);
    for (struct resident_table *t = resident->listed; t; t = t->next)
        if (!t->is_building && roped_angles_equal(&t->angles, angles))
            bytes = t->bytes;
    pthread_mutex_unlock(&resident->lock);
    return bytes;
}

void resident_usage(struct resident *resident, struct resident_usage *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&resident->lock);
    for (struct resident_table *t = resident->listed; t; t = t->next)
        out->n++;
    out->bytes = resident->bytes;
    out->budget_bytes = resident->budget_bytes;
    out->hits = resident->hits;
    out->builds = resident->builds;
    out->evictions = resident->evictions;
    pthread_mutex_unlock(&resident->lock);
}
