/*
 * gate.h - who sends a request, and may they?
 *
 * THREADS. Requests look into the set of tokens that is in force without a
 * lock. A set that has been replaced stays until the end, because a thread may
 * still look into it: sets are small, and people replace them.
 */
#ifndef ROPED_HTTP_GATE_H
#define ROPED_HTTP_GATE_H

#include "exec/tenants.h"
#include "http/head.h"
#include "tokens.h"

#include <stdatomic.h>

struct gate_set;

struct gate {
    const char *path; /* of the file; "": no token is wanted */
    struct tenants *tenants;
    _Atomic(struct gate_set *) set; /* in force; NULL: none is wanted */
};

/* Whose request it is. */
struct caller {
    const char *name;          /* of the token; "": it has none */
    struct tenant *tenant;     /* whose names it uses */
    const struct tenant *sees; /* whose names it is shown in lists */
};

/* Reads the tokens, whose names become tenants, with their quotas; gate_close
 * also after a failure. */
ROPED_MUST_CHECK enum roped_status gate_open(struct gate *gate,
                                             const char *path,
                                             struct tenants *tenants,
                                             struct roped_error *err);
void gate_close(struct gate *gate);

/* Reads them again, on one thread at a time: those before stay in force until
 * gate_use, and names that are new are tenants by then, with their quotas. A
 * set that is not used is given back with gate_drop. */
ROPED_MUST_CHECK enum roped_status gate_read(const struct gate *gate,
                                             struct gate_set **out,
                                             struct roped_error *err);
void gate_use(struct gate *gate, struct gate_set *set);
void gate_drop(struct gate_set *set);

/* Are tokens wanted? */
bool gate_is_guarded(const struct gate *gate);

/*
 * May the request have what is behind a route of this scope? ROPED_NO_TOKEN and
 * ROPED_FORBIDDEN say why not. An admin is shown what all have, and with the
 * parameter 'tenant' uses the names of one, where a route has names;
 * ROPED_NOT_FOUND: nobody is called so.
 */
ROPED_MUST_CHECK enum roped_status
gate_check(const struct gate *gate, enum scope scope, const struct head *head,
           struct caller *out, struct roped_error *err);

#endif
