/*
 * lost.c - a list of names; short, and looked at where a name is not found, or
 * is made.
 */
#include "exec/lost.h"

#include <stdlib.h>
#include <string.h>

void lost_init(struct lost *lost, const char *what, enum roped_status status)
{
    *lost = (struct lost){.what = what, .status = status};
    pthread_mutex_init(&lost->lock, NULL);
}

/* Takes out what the link points at. */
static void drop(struct lost *lost, struct lost_name **link)
{
    struct lost_name *name = *link;
    *link = name->next;
    free(name);
    lost->n--;
}

void lost_free(struct lost *lost)
{
    while (lost->first)
        drop(lost, &lost->first);
    pthread_mutex_destroy(&lost->lock);
}

bool lost_add(struct lost *lost, const struct lost_name *name)
{
    pthread_mutex_lock(&lost->lock);
    struct lost_name *copy = lost->n < LOST_NAMES ? malloc(sizeof *copy) : NULL;
    if (copy) {
        *copy = *name;
        copy->next = lost->first;
        lost->first = copy;
        lost->n++;
    }
    pthread_mutex_unlock(&lost->lock);
    return copy != NULL;
}

/* Under lock: the link that points at the tenant's name, or at nothing. */
static struct lost_name **
find_link(struct lost *lost, const struct tenant *tenant, const char *name)
{
    struct lost_name **link = &lost->first;
    while (*link &&
           ((*link)->tenant != tenant || strcmp((*link)->name, name) != 0))
        link = &(*link)->next;
    return link;
}

enum roped_status lost_check(struct lost *lost, const struct tenant *tenant,
                             const char *name, struct roped_error *err)
{
    pthread_mutex_lock(&lost->lock);
    const struct lost_name *found = *find_link(lost, tenant, name);
    enum roped_status status =
        found ? roped_fail(err, lost->status, "%s '%s': %s", lost->what, name,
                           found->why)
              : ROPED_OK;
    pthread_mutex_unlock(&lost->lock);
    return status;
}

bool lost_forget(struct lost *lost, const struct tenant *tenant,
                 const char *name)
{
    pthread_mutex_lock(&lost->lock);
    struct lost_name **link = find_link(lost, tenant, name);
    bool was_there = *link != NULL;
    if (was_there)
        drop(lost, link);
    pthread_mutex_unlock(&lost->lock);
    return was_there;
}

void lost_forget_kind(struct lost *lost, const struct tenant *tenant, int kind)
{
    pthread_mutex_lock(&lost->lock);
    struct lost_name **link = &lost->first;
    while (*link)
        if ((*link)->tenant == tenant && (*link)->kind == kind)
            drop(lost, link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&lost->lock);
}

void lost_each(struct lost *lost,
               void (*visit)(void *context, const struct lost_name *name),
               void *context)
{
    pthread_mutex_lock(&lost->lock);
    for (struct lost_name *name = lost->first; name; name = name->next)
        visit(context, name);
    pthread_mutex_unlock(&lost->lock);
}
