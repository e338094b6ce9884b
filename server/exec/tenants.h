/*
 * tenants.h - who owns regions, tables and programs, and how much of both each
 * may have.
 *
 * A name is one of its tenant's: two tenants may have regions of one name, and
 * neither finds the other's. The tenant without a name has all where clients
 * have no names.
 *
 * MEMORY. A tenant lives as long as the executor: what it owns may outlive its
 * token.
 */
#ifndef ROPED_EXEC_TENANTS_H
#define ROPED_EXEC_TENANTS_H

#include <roped/op.h>
#include <roped/status.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tenants;

enum { TENANT_DEVICES = 16 }; /* the most there may be */

struct tenant {
    char name[ROPED_NAME_BYTES];
    atomic_uint_least64_t most_bytes, most_names; /* UINT64_MAX: no quota */
    atomic_uint_least64_t bytes; /* of resident regions, forgotten ones in use
                                    included */
    atomic_uint_least64_t names; /* listed regions, tables, programs */
    uint64_t device_bytes[TENANT_DEVICES]; /* of regions in the memory of each;
                                              guarded by the regions' lock */
    atomic_uint_least64_t n_requests, n_refusals; /* counted by their callers */
    /* of the thread that starts and reloads: is or was it a token's, and were
     * the programs of the folder put for it? */
    bool has_token, has_folder;
};

/* Not one, but all of them: who lists with it sees everything. */
extern struct tenant tenant_everyone;

ROPED_MUST_CHECK enum roped_status tenants_open(struct tenants **out,
                                                struct roped_error *err);
void tenants_close(struct tenants *tenants);

/* The one without a name, which is always there. */
struct tenant *tenants_nameless(struct tenants *tenants);

/* The tenant of this name, or NULL. */
struct tenant *tenants_find(struct tenants *tenants, const char *name);

/* The same, which is made where there is none. */
ROPED_MUST_CHECK enum roped_status tenants_get(struct tenants *tenants,
                                               const char *name,
                                               struct tenant **out,
                                               struct roped_error *err);

/* All of them: 0 <= i < tenants_count(), which never shrinks. */
int tenants_count(struct tenants *tenants);
struct tenant *tenants_at(struct tenants *tenants, int i);

/* Does a list for one show what another owns? */
bool tenant_sees(const struct tenant *tenant, const struct tenant *owner);

/* The order of names in lists: by name, then by tenant. */
int tenant_compare(const struct tenant *a, const char *a_name,
                   const struct tenant *b, const char *b_name);

/*
 * Takes of the quota for a region of this name, and for a "region", "table" or
 * "program"; and gives it back. ROPED_TOO_LARGE: more than the quota;
 * ROPED_BUSY: more than what is left of it.
 */
ROPED_MUST_CHECK enum roped_status tenant_take_bytes(struct tenant *tenant,
                                                     uint64_t bytes,
                                                     const char *name,
                                                     struct roped_error *err);
void tenant_give_bytes(struct tenant *tenant, uint64_t bytes);
ROPED_MUST_CHECK enum roped_status tenant_take_name(struct tenant *tenant,
                                                    const char *kind,
                                                    const char *name,
                                                    struct roped_error *err);
void tenant_give_name(struct tenant *tenant);

#endif
