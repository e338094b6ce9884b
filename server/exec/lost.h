/*
 * lost.h - names whose memory went with a device: who asks for one is told so,
 * until it is made anew or deleted. Thread-safe; its lock is taken within its
 * owner's.
 */
#ifndef ROPED_EXEC_LOST_H
#define ROPED_EXEC_LOST_H

#include "exec/tenants.h"

#include <pthread.h>
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
    const char *what; /* of what kind they were, for the sentence */
    enum roped_status status;
    pthread_mutex_t lock;
    struct lost_name *first;
    int n;
};

/* Of what lost_check fails with; what is static memory. */
void lost_init(struct lost *lost, const char *what, enum roped_status status);
void lost_free(struct lost *lost);

/* Notes a name, whose why outlives it; false: LOST_NAMES are there already, or
 * no memory is. */
bool lost_add(struct lost *lost, const struct lost_name *name);

/* The status of lost_init with a reason where the tenant's name is among them.
 */
ROPED_MUST_CHECK enum roped_status lost_check(struct lost *lost,
                                              const struct tenant *tenant,
                                              const char *name,
                                              struct roped_error *err);

/* Forgets the tenant's name; true: it was there. And all names of a kind. */
bool lost_forget(struct lost *lost, const struct tenant *tenant,
                 const char *name);
void lost_forget_kind(struct lost *lost, const struct tenant *tenant, int kind);

/* Calls visit for each, under the lock. */
void lost_each(struct lost *lost,
               void (*visit)(void *context, const struct lost_name *name),
               void *context);

#endif
