/*
 * programs.c - named programs. One mutex guards the list.
 */
#include "exec/programs.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PROGRAMS = 1024, MOST_BYTES = 256 << 20, IDLE_SHARE = 16 };

struct programs {
    struct memory_pool *pool;
    uint64_t most_idle_bytes;
    atomic_uint_least64_t idle_bytes; /* of all programs' idle runs */

    pthread_mutex_t lock;  /* guards the following */
    struct program *named; /* in name order */
    int n;
    uint64_t bytes;
    struct lost lost; /* of those that are not there */
};

enum roped_status programs_open(struct memory_pool *pool, struct programs **out,
                                struct roped_error *err)
{
    struct memory_usage usage;
    struct programs *programs = calloc(1, sizeof *programs);
    if (!programs)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the programs");
    memory_usage(pool, &usage);
    programs->pool = pool;
    programs->most_idle_bytes = usage.budget_bytes / IDLE_SHARE;
    pthread_mutex_init(&programs->lock, NULL);
    lost_init(&programs->lost, "program", ROPED_PROGRAM_LOST);
    *out = programs;
    return ROPED_OK;
}

static void free_program(struct programs *programs, struct program *program)
{
    struct memory_block block;
    while (programs_take_idle(programs, program, &block))
        memory_give(programs->pool, &block);
    pthread_mutex_destroy(&program->lock);
    roped_program_free(program->definition);
    free(program->document);
    free(program);
}

void programs_close(struct programs *programs)
{
    if (!programs)
        return;
    while (programs->named) {
        struct program *program = programs->named;
        programs->named = program->next;
        free_program(programs, program);
    }
    lost_free(&programs->lost);
    pthread_mutex_destroy(&programs->lock);
    free(programs);
}

/* FNV-1a: one document has one ETag, on every daemon. */
void program_etag(const char *document, size_t bytes,
                  char etag[PROGRAM_ETAG_BYTES])
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)document[i]) * 1099511628211u;
    snprintf(etag, PROGRAM_ETAG_BYTES, "\"%016llx\"", (unsigned long long)hash);
}

static uint64_t bytes_of(const struct program *program)
{
    return sizeof *program + program->document_bytes +
           roped_program_bytes(program->definition);
}

/* Owns the definition, also where there is no memory. */
static struct program *new_program(struct tenant *tenant,
                                   const struct program_text *text,
                                   struct roped_program *definition)
{
    struct program *program = calloc(1, sizeof *program);
    char *document = malloc(text->document_bytes + 1);
    if (!program || !document) {
        free(program);
        free(document);
        roped_program_free(definition);
        return NULL;
    }
    memcpy(document, text->document, text->document_bytes);
    document[text->document_bytes] = '\0';
    snprintf(program->name, sizeof program->name, "%s", text->name);
    program_etag(text->document, text->document_bytes, program->etag);
    program->tenant = tenant;
    program->definition = definition;
    program->document = document;
    program->document_bytes = text->document_bytes;
    program->references = 1;
    pthread_mutex_init(&program->lock, NULL);
    return program;
}

/* Under lock: the link that points at the first one not before this. */
static struct program **find_link(struct programs *programs,
                                  const struct tenant *tenant, const char *name)
{
    struct program **link = &programs->named;
    while (*link &&
           tenant_compare((*link)->tenant, (*link)->name, tenant, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Under lock: the tenant's program of this name, or NULL. */
static struct program *find(struct programs *programs,
                            const struct tenant *tenant, const char *name)
{
    struct program *program = *find_link(programs, tenant, name);
    return program && tenant_compare(program->tenant, program->name, tenant,
                                     name) == 0
               ? program
               : NULL;
}

static void drop(struct programs *programs, struct program *program)
{
    if (--program->references == 0)
        free_program(programs, program);
}

static void unlist(struct programs *programs, struct program *program)
{
    *find_link(programs, program->tenant, program->name) = program->next;
    programs->n--;
    programs->bytes -= bytes_of(program);
    drop(programs, program);
}

/* ------------------------------------------------------------- conditions */

/* Behind an entity tag, W/"..." or "...", or what stands in the place of one.
 */
static const char *tag_end(const char *tag)
{
    const char *quote = strncmp(tag, "W/", 2) == 0 ? tag + 2 : tag;
    const char *end = *quote == '"' ? strchr(quote + 1, '"') : NULL;
    return end ? end + 1 : tag + strcspn(tag, ",");
}

/* Is it one of those of a list, or any? */
static bool is_listed(const char *etag, const char *list, bool is_weak)
{
    size_t bytes = strlen(etag);
    list += strspn(list, " \t,");
    if (strcmp(list, "*") == 0)
        return true;
    while (*list) {
        const char *end = tag_end(list);
        const char *tag =
            is_weak && strncmp(list, "W/", 2) == 0 ? list + 2 : list;
        if ((size_t)(end - tag) == bytes && memcmp(tag, etag, bytes) == 0)
            return true;
        list = end + strspn(end, " \t,");
    }
    return false;
}

bool program_is_known(const struct program *program,
                      const struct program_conditions *conditions)
{
    return conditions->if_none_match &&
           is_listed(program->etag, conditions->if_none_match, true);
}

enum roped_status program_meets(const struct program *program, const char *name,
                                const struct program_conditions *conditions,
                                struct roped_error *err)
{
    const char *if_match = conditions->if_match;
    if (if_match && !program)
        return roped_fail(err, ROPED_MISMATCH,
                          "program '%.64s' does not exist, expected one with "
                          "ETag %.64s (If-Match)",
                          name, if_match);
    if (if_match && !is_listed(program->etag, if_match, false))
        return roped_fail(err, ROPED_MISMATCH,
                          "program '%.64s': its ETag is %s, expected %.64s "
                          "(If-Match)",
                          name, program->etag, if_match);
    if (program && program_is_known(program, conditions))
        return roped_fail(err, ROPED_MISMATCH,
                          "program '%.64s': its ETag is %s, expected none of "
                          "%.64s (If-None-Match)",
                          name, program->etag, conditions->if_none_match);
    return ROPED_OK;
}

/* -------------------------------------------------------------------- list */

/* Under lock: is there room, beside one that is replaced? */
static enum roped_status claim(const struct programs *programs,
                               const struct program *program,
                               const struct program *old,
                               struct roped_error *err)
{
    uint64_t bytes = programs->bytes - (old ? bytes_of(old) : 0);
    if (bytes_of(program) > MOST_BYTES - bytes)
        return roped_fail(err, ROPED_BUSY,
                          "program '%s': programs take %llu bytes, and all of "
                          "them at most %d; DELETE one",
                          program->name, (unsigned long long)bytes, MOST_BYTES);
    if (old)
        return ROPED_OK;
    if (programs->n < MOST_PROGRAMS)
        return tenant_take_name(program->tenant, "program", program->name, err);
    return roped_fail(err, ROPED_BUSY,
                      "program '%s': %d programs exist, the most there may be; "
                      "DELETE one",
                      program->name, MOST_PROGRAMS);
}

enum roped_status programs_put(struct programs *programs, struct tenant *tenant,
                               const struct program_text *text,
                               struct roped_program *definition, bool *replaced,
                               struct roped_error *err)
{
    struct program *program = new_program(tenant, text, definition);
    if (!program)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for program '%.64s'",
                          text->name);
    pthread_mutex_lock(&programs->lock);
    struct program *old = find(programs, tenant, program->name);
    enum roped_status status =
        program_meets(old, program->name, &text->conditions, err);
    if (!status)
        status = claim(programs, program, old, err);
    *replaced = old != NULL;
    if (!status) {
        if (old)
            unlist(programs, old);
        struct program **link = find_link(programs, tenant, program->name);
        program->next = *link;
        *link = program;
        programs->n++;
        programs->bytes += bytes_of(program);
        (void)lost_forget(&programs->lost, tenant, program->name);
    }
    pthread_mutex_unlock(&programs->lock);
    if (status)
        free_program(programs, program);
    return status;
}

enum roped_status programs_make(const struct program_text *text,
                                struct roped_program *definition,
                                struct program **out, struct roped_error *err)
{
    *out = new_program(NULL, text, definition);
    return *out ? ROPED_OK
                : roped_fail(err, ROPED_NO_MEMORY, "no memory for a program");
}

/* Under lock: why there is none. */
static enum roped_status no_program(struct programs *programs,
                                    const struct tenant *tenant,
                                    const char *name, struct roped_error *err)
{
    enum roped_status status = lost_check(&programs->lost, tenant, name, err);
    if (status)
        return status;
    return roped_fail(err, ROPED_NO_PROGRAM,
                      "program '%.64s' does not exist; PUT /v1/programs/%.64s "
                      "makes it",
                      name, name);
}

enum roped_status programs_delete(struct programs *programs,
                                  const struct tenant *tenant, const char *name,
                                  const struct program_conditions *conditions,
                                  struct roped_error *err)
{
    pthread_mutex_lock(&programs->lock);
    struct program *program = find(programs, tenant, name);
    enum roped_status status =
        program ? program_meets(program, name, conditions, err) : ROPED_OK;
    if (program && !status) {
        tenant_give_name(program->tenant);
        unlist(programs, program);
    } else if (!program && !lost_forget(&programs->lost, tenant, name)) {
        status = no_program(programs, tenant, name, err);
    }
    pthread_mutex_unlock(&programs->lock);
    return status;
}

enum roped_status programs_take(struct programs *programs,
                                const struct tenant *tenant, const char *name,
                                struct program **out, struct roped_error *err)
{
    pthread_mutex_lock(&programs->lock);
    struct program *program = find(programs, tenant, name);
    if (program)
        program->references++;
    enum roped_status status =
        program ? ROPED_OK : no_program(programs, tenant, name, err);
    pthread_mutex_unlock(&programs->lock);
    *out = program;
    return status;
}

void programs_give(struct programs *programs, struct program *program)
{
    if (!program)
        return;
    pthread_mutex_lock(&programs->lock);
    drop(programs, program);
    pthread_mutex_unlock(&programs->lock);
}

bool programs_take_idle(struct programs *programs, struct program *program,
                        struct memory_block *out)
{
    pthread_mutex_lock(&program->lock);
    bool is_there = program->n_idle > 0;
    if (is_there)
        *out = program->idle[--program->n_idle];
    pthread_mutex_unlock(&program->lock);
    if (is_there)
        atomic_fetch_sub(&programs->idle_bytes, out->bytes);
    return is_there;
}

void programs_keep_idle(struct programs *programs, struct program *program,
                        struct memory_block *block)
{
    uint64_t others = atomic_fetch_add(&programs->idle_bytes, block->bytes);
    bool is_kept = false;
    pthread_mutex_lock(&program->lock);
    if (program->n_idle < PROGRAM_IDLE_RUNS &&
        others + block->bytes <= programs->most_idle_bytes) {
        program->idle[program->n_idle++] = *block;
        is_kept = true;
    }
    pthread_mutex_unlock(&program->lock);
    if (is_kept)
        *block = (struct memory_block){.start = NULL};
    else
        atomic_fetch_sub(&programs->idle_bytes, block->bytes);
}

void program_count(struct program *program, enum roped_status status,
                   uint64_t total_ns, const struct exec_timing *timing)
{
    struct program_statistics *s = &program->statistics;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now); /* milliseconds are told */
    pthread_mutex_lock(&program->lock);
    if (status) {
        s->n_failed++;
        s->failed_ns += total_ns;
    } else {
        s->n_succeeded++;
        s->succeeded_ns += total_ns;
        s->last_ms =
            (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
#define PHASE(id, name, statistic, meaning)                                    \
    s->timing.name##_ns += timing->name##_ns;
#include "phase.def"
    }
    pthread_mutex_unlock(&program->lock);
}

void program_statistics(struct program *program, struct program_statistics *out)
{
    pthread_mutex_lock(&program->lock);
    *out = program->statistics;
    pthread_mutex_unlock(&program->lock);
}

void programs_each(struct programs *programs, const struct tenant *tenant,
                   void (*visit)(void *context, struct program *program),
                   void *context)
{
    pthread_mutex_lock(&programs->lock);
    for (struct program *p = programs->named; p; p = p->next)
        if (tenant_sees(tenant, p->tenant))
            visit(context, p);
    pthread_mutex_unlock(&programs->lock);
}

struct lost *programs_lost(struct programs *programs)
{
    return &programs->lost;
}

void programs_usage(struct programs *programs, struct programs_usage *out)
{
    pthread_mutex_lock(&programs->lock);
    *out = (struct programs_usage){programs->n, programs->bytes};
    pthread_mutex_unlock(&programs->lock);
}
