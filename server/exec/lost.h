/*
 * lost.h - names whose memory went with a device: who asks for one is told so,
 * until it is made anew or deleted. Not thread-safe: the owner's lock guards
 * it.
 */
#ifndef ROPED_EXEC_LOST_H
#define ROPED_EXEC_LOST_H

#include "exec/tenants.h"

#include <stdbool.h>

enum { LOST_NAMES = 4096 };

struct lost_name {
    const struct tenant *tenant;
    char name[ROPED_NAME_BYTES];
    int kind;        /* the owner's */
    const char *why; /* not owned */
    struct lost_name *next;
};

struct lost {
    struct lost_name *first;
    int n;
};

/* Notes a name; false: LOST_NAMES are there already, or no memory is. */
bool lost_add(struct lost *lost, const struct lost_name *name);
void lost_free(struct lost *lost);

/* ROPED_GONE with its reason where the tenant's name is among them; what: of
 * what kind it was, for the sentence. */
ROPED_MUST_CHECK enum roped_status
lost_check(const struct lost *lost, const struct tenant *tenant,
           const char *what, const char *name, struct roped_error *err);

/* Forgets the tenant's name; true: it was there. And all names of a kind. */
bool lost_forget(struct lost *lost, const struct tenant *tenant,
                 const char *name);
void lost_forget_kind(struct lost *lost, const struct tenant *tenant, int kind);

#endif
