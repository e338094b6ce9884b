/*
 * lost.c - a list of names; short, and looked at where a name is not found, or
 * is made.
 */
#include "exec/lost.h"

#include <stdlib.h>
#include <string.h>

bool lost_add(struct lost *lost, const struct lost_name *name)
{
    struct lost_name *copy = lost->n < LOST_NAMES ? malloc(sizeof *copy) : NULL;
    if (!copy)
        return false;
    *copy = *name;
    copy->next = lost->first;
    lost->first = copy;
    lost->n++;
    return true;
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
}

static bool is_it(const struct lost_name *lost, const struct tenant *tenant,
                  const char *name)
{
    return lost->tenant == tenant && strcmp(lost->name, name) == 0;
}

enum roped_status lost_check(const struct lost *lost,
                             const struct tenant *tenant, const char *what,
                             const char *name, struct roped_error *err)
{
    for (const struct lost_name *at = lost->first; at; at = at->next)
        if (is_it(at, tenant, name))
            return roped_fail(err, ROPED_GONE, "%s '%s': %s", what, name,
                              at->why);
    return ROPED_OK;
}

bool lost_forget(struct lost *lost, const struct tenant *tenant,
                 const char *name)
{
    for (struct lost_name **link = &lost->first; *link; link = &(*link)->next)
        if (is_it(*link, tenant, name)) {
            drop(lost, link);
            return true;
        }
    return false;
}

void lost_forget_kind(struct lost *lost, const struct tenant *tenant, int kind)
{
    struct lost_name **link = &lost->first;
    while (*link)
        if ((*link)->tenant == tenant && (*link)->kind == kind)
            drop(lost, link);
        else
            link = &(*link)->next;
}
