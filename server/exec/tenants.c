/*
 * tenants.c - tenants by name, and their quotas. What is used is counted
 * without a lock: regions, tables and programs, which share a quota, each have
 * their own.
 */
#include "exec/tenants.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENANTS_MAX = 4096 };

struct tenants {
    pthread_mutex_t lock; /* held to add one */
    atomic_int n;
    struct tenant *tenant[TENANTS_MAX]; /* the first n do not change */
};

struct tenant tenant_everyone;

enum roped_status tenants_open(struct tenants **out, struct roped_error *err)
{
    struct tenant *nameless;
    struct tenants *tenants = calloc(1, sizeof *tenants);
    *out = tenants;
    if (!tenants)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tenants");
    pthread_mutex_init(&tenants->lock, NULL);
    return tenants_get(tenants, "", &nameless, err);
}

void tenants_close(struct tenants *tenants)
{
    if (!tenants)
        return;
    for (int i = 0; i < tenants_count(tenants); i++)
        free(tenants->tenant[i]);
    pthread_mutex_destroy(&tenants->lock);
    free(tenants);
}

int tenants_count(struct tenants *tenants)
{
    return atomic_load_explicit(&tenants->n, memory_order_acquire);
}

struct tenant *tenants_at(struct tenants *tenants, int i)
{
    return tenants->tenant[i];
}

struct tenant *tenants_nameless(struct tenants *tenants)
{
    return tenants->tenant[0];
}

struct tenant *tenants_find(struct tenants *tenants, const char *name)
{
    int n = tenants_count(tenants), i = 0;
    while (i < n && strcmp(tenants->tenant[i]->name, name) != 0)
        i++;
    return i < n ? tenants->tenant[i] : NULL;
}

/* Under lock; NULL where there is no memory. */
static struct tenant *add(struct tenants *tenants, const char *name)
{
    int n = tenants_count(tenants);
    struct tenant *tenant = n < TENANTS_MAX ? calloc(1, sizeof *tenant) : NULL;
    if (!tenant)
        return NULL;
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    atomic_init(&tenant->most_bytes, UINT64_MAX);
    atomic_init(&tenant->most_names, UINT64_MAX);
    tenants->tenant[n] = tenant;
    atomic_store_explicit(&tenants->n, n + 1, memory_order_release);
    return tenant;
}

enum roped_status tenants_get(struct tenants *tenants, const char *name,
                              struct tenant **out, struct roped_error *err)
{
    pthread_mutex_lock(&tenants->lock);
    *out = tenants_find(tenants, name);
    if (!*out)
        *out = add(tenants, name);
    pthread_mutex_unlock(&tenants->lock);
    if (*out)
        return ROPED_OK;
    return roped_fail(err, ROPED_NO_MEMORY,
                      "no memory for tenant '%s', or %d there already", name,
                      TENANTS_MAX);
}

bool tenant_sees(const struct tenant *tenant, const struct tenant *owner)
{
    return tenant == owner || tenant == &tenant_everyone;
}

int tenant_compare(const struct tenant *a, const char *a_name,
                   const struct tenant *b, const char *b_name)
{
    int order = strcmp(a_name, b_name);
    return order || a == b ? order : strcmp(a->name, b->name);
}

/* ----------------------------------------------------------------- quotas */

/* Adds n to *used if it stays within most; else *left is what there is. */
static bool take(atomic_uint_least64_t *used, uint64_t n, uint64_t most,
                 uint64_t *left)
{
    uint64_t before = atomic_load(used);
    do {
        *left = before < most ? most - before : 0;
        if (n > *left)
            return false;
    } while (!atomic_compare_exchange_weak(used, &before, before + n));
    return true;
}

enum roped_status tenant_take_bytes(struct tenant *tenant, uint64_t bytes,
                                    const char *name, struct roped_error *err)
{
    uint64_t left, most = atomic_load(&tenant->most_bytes);
    if (bytes > most)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "region '%s': %llu bytes, expected at most the quota "
                          "of '%s', %llu",
                          name, (unsigned long long)bytes, tenant->name,
                          (unsigned long long)most);
    if (take(&tenant->bytes, bytes, most, &left))
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "region '%s': %llu bytes, expected at most the %llu that "
                      "are left of the quota of '%s', %llu; DELETE one",
                      name, (unsigned long long)bytes, (unsigned long long)left,
                      tenant->name, (unsigned long long)most);
}

void tenant_give_bytes(struct tenant *tenant, uint64_t bytes)
{
    atomic_fetch_sub(&tenant->bytes, bytes);
}

enum roped_status tenant_take_name(struct tenant *tenant, const char *kind,
                                   const char *name, struct roped_error *err)
{
    uint64_t left, most = atomic_load(&tenant->most_names);
    if (take(&tenant->names, 1, most, &left))
        return ROPED_OK;
    return roped_fail(
        err, ROPED_BUSY,
        "%s '%.64s': '%s' has %llu regions, tables and programs, expected "
        "fewer than the quota, %llu; DELETE one",
        kind, name, tenant->name,
        (unsigned long long)atomic_load(&tenant->names),
        (unsigned long long)most);
}

void tenant_give_name(struct tenant *tenant)
{
    atomic_fetch_sub(&tenant->names, 1);
}
