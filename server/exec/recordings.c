/*
 * recordings.c - recordings of one lane, least recently used out first.
 */
#include "exec/recordings.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_RECORDINGS = 256,
    MOST_STEPS = 4096, /* of all of them: a driver keeps some KiB of each */
    N_SEEN = 1024,     /* a power of two */
    PRICE = 8,         /* of a recording, in runs */
    MOST_CREDIT = PRICE * MOST_RECORDINGS
};

struct recording {
    struct roped_recording *launches;
    uint64_t *key;
    size_t words; /* of its key */
    int n_steps;
    char etag[PROGRAM_ETAG_BYTES]; /* of its program */
    uint64_t last_use;
};

struct recordings {
    const struct roped_backend_api *api;
    struct roped_queue *queue;
    struct recording_counts *counts;
    struct recording recording[MOST_RECORDINGS];
    int n, n_steps, credit;
    uint64_t clock;
    uint64_t *key; /* of the run that is launched */
    size_t room;
    uint64_t seen[N_SEEN]; /* hashes of runs, each in its place */
};

enum roped_status recordings_open(const struct roped_backend_api *api,
                                  struct roped_queue *queue,
                                  struct recording_counts *counts,
                                  struct recordings **out,
                                  struct roped_error *err)
{
    struct recordings *all = calloc(1, sizeof *all);
    if (!all)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for recordings");
    all->api = api;
    all->queue = queue;
    all->counts = counts;
    all->credit = MOST_CREDIT;
    *out = all;
    return ROPED_OK;
}

/* The last one takes its place. */
static void drop(struct recordings *all, struct recording *recording)
{
    all->api->recording_free(all->queue, recording->launches);
    free(recording->key);
    all->n_steps -= recording->n_steps;
    *recording = all->recording[--all->n];
}

void recordings_close(struct recordings *all)
{
    if (!all)
        return;
    while (all->n > 0)
        drop(all, &all->recording[all->n - 1]);
    free(all->key);
    free(all);
}

static void count(atomic_uint_least64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* --------------------------------------------------------------------- key */

/* What a run launches: its key is written. */
struct wanted {
    size_t words, tables_at; /* of the key: all of it, where tables begin */
    int n_steps;
    const char *etag;
};

/* False: no memory for it. */
static bool write_key(struct recordings *all, const struct roped_chain *chain,
                      struct wanted *wanted)
{
    wanted->words = roped_chain_key(chain, all->key, all->room);
    wanted->tables_at = wanted->words - (size_t)wanted->n_steps;
    if (wanted->words <= all->room)
        return true;
    uint64_t *key = realloc(all->key, wanted->words * sizeof *key);
    if (!key)
        return false;
    all->key = key;
    all->room = wanted->words;
    (void)roped_chain_key(chain, all->key, all->room);
    return true;
}

static bool is_same(const uint64_t *a, const uint64_t *b, size_t words)
{
    return memcmp(a, b, words * sizeof *a) == 0;
}

/* Of another table perhaps. Others differ early. */
static struct recording *find(struct recordings *all,
                              const struct wanted *wanted)
{
    for (int i = 0; i < all->n; i++) {
        struct recording *recording = &all->recording[i];
        if (recording->words == wanted->words &&
            is_same(recording->key, all->key, wanted->tables_at))
            return recording;
    }
    return NULL;
}

static uint64_t hash_of(const uint64_t *key, size_t words)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < words; i++) {
        hash = (hash ^ key[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* Has this lane a recording of this program, with other memory or shapes? */
static bool has_relative(const struct recordings *all, const char *etag)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->recording[i].etag, etag) == 0)
            return true;
    return false;
}

/* Notes a run that no recording is of; has there been one before? */
static bool was_seen(struct recordings *all, const struct wanted *wanted)
{
    uint64_t hash = hash_of(all->key, wanted->tables_at);
    uint64_t *seen = &all->seen[hash % N_SEEN];
    bool was = *seen == hash;
    *seen = hash;
    return was;
}

/* --------------------------------------------------------------- recording */

static void make_room(struct recordings *all, int n_steps)
{
    while (all->n == MOST_RECORDINGS ||
           (all->n > 0 && all->n_steps + n_steps > MOST_STEPS)) {
        struct recording *oldest = &all->recording[0];
        for (int i = 1; i < all->n; i++)
            if (all->recording[i].last_use < oldest->last_use)
                oldest = &all->recording[i];
        drop(all, oldest);
    }
}

/* The launches of a run; NULL: they cannot be recorded, now. */
static struct roped_recording *record(struct recordings *all,
                                      const struct roped_chain *chain)
{
    struct roped_recording *launches = NULL;
    if (all->api->record(all->queue, NULL))
        return NULL;
    if (roped_chain_launch(chain, all->api, all->queue, NULL)) {
        (void)!all->api->record_end(all->queue, NULL, NULL);
        return NULL;
    }
    return all->api->record_end(all->queue, &launches, NULL) ? NULL : launches;
}

/* A new recording of the run whose key is written; NULL: there is none. */
static struct recording *add(struct recordings *all,
                             const struct roped_chain *chain,
                             const struct wanted *wanted)
{
    make_room(all, wanted->n_steps);
    uint64_t *key = malloc(wanted->words * sizeof *key);
    struct roped_recording *launches = key ? record(all, chain) : NULL;
    if (!launches) {
        free(key);
        return NULL;
    }
    struct recording *made = &all->recording[all->n++];
    memcpy(key, all->key, wanted->words * sizeof *key);
    *made = (struct recording){.launches = launches,
                               .key = key,
                               .words = wanted->words,
                               .n_steps = wanted->n_steps};
    memcpy(made->etag, wanted->etag, PROGRAM_ETAG_BYTES);
    all->n_steps += wanted->n_steps;
    return made;
}

/* The recording that a run can be repeated by, which may be made for that;
 * NULL: it is launched in order, and *is_first, that this is no wonder. */
static struct recording *choose(struct recordings *all,
                                const struct roped_chain *chain,
                                const struct wanted *wanted, bool *is_first)
{
    struct recording *found = find(all, wanted);
    size_t at = wanted->tables_at;
    *is_first = false;
    all->credit += all->credit < MOST_CREDIT;
    if (found && is_same(found->key + at, all->key + at, wanted->words - at)) {
        count(&all->counts->replays);
        return found;
    }
    if (!found && !was_seen(all, wanted)) {
        *is_first = !has_relative(all, wanted->etag);
        return NULL;
    }
    if (all->credit < PRICE)
        return NULL;
    all->credit -= PRICE;
    if (found) /* its table is elsewhere now */
        drop(all, found);
    found = add(all, chain, wanted);
    if (found)
        count(&all->counts->captures);
    return found;
}

enum roped_status recordings_launch(struct recordings *all,
                                    const struct program *program,
                                    const struct roped_chain *chain,
                                    struct roped_error *err)
{
    struct wanted wanted = {.n_steps = roped_program_steps(program->definition),
                            .etag = program->etag};
    struct recording *found = NULL;
    bool is_first = false;
    if (roped_chain_repeats(chain) && wanted.n_steps <= MOST_STEPS &&
        write_key(all, chain, &wanted))
        found = choose(all, chain, &wanted, &is_first);
    if (found) {
        found->last_use = ++all->clock;
        return all->api->replay(all->queue, found->launches, err);
    }
    if (!is_first)
        count(&all->counts->fallbacks);
    return roped_chain_launch(chain, all->api, all->queue, err);
}
