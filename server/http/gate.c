/*
 * gate.c - the tokens in force, and what they allow.
 */
#include "http/gate.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)TOKEN_NAME_BYTES == (int)ROPED_NAME_BYTES,
               "a token's name is a tenant's");

struct gate_set {
    struct tokens *tokens;
    struct tenant **tenant;  /* of each token */
    struct gate_set *before; /* that this one has replaced */
};

void gate_drop(struct gate_set *set)
{
    free(set->tenant);
    free(set->tokens);
    free(set);
}

static struct gate_set *set_of(const struct gate *gate)
{
    return atomic_load_explicit(&gate->set, memory_order_acquire);
}

static bool are_same(const struct tokens *a, const struct tokens *b)
{
    bool is_same = a->n == b->n;
    for (size_t i = 0; is_same && i < a->n; i++) {
        const struct token *x = &a->token[i], *y = &b->token[i];
        is_same = strcmp(x->name, y->name) == 0 &&
                  memcmp(x->hash, y->hash, sizeof x->hash) == 0 &&
                  x->scopes == y->scopes && x->most_bytes == y->most_bytes &&
                  x->most_names == y->most_names;
    }
    return is_same;
}

static enum roped_status find_tenants(const struct gate *gate,
                                      struct gate_set *set,
                                      struct roped_error *err)
{
    const struct tokens *tokens = set->tokens;
    enum roped_status status = ROPED_OK;
    set->tenant = calloc(tokens->n, sizeof *set->tenant);
    if (!set->tenant)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tokens");
    for (size_t i = 0; i < tokens->n && !status; i++)
        status = tenants_get(gate->tenants, tokens->token[i].name,
                             &set->tenant[i], err);
    for (size_t i = 0; i < tokens->n && !status; i++)
        set->tenant[i]->has_token = true;
    return status;
}

static bool has_tenant(const struct gate_set *set, const struct tenant *tenant)
{
    for (size_t i = 0; set && i < set->tokens->n; i++)
        if (set->tenant[i] == tenant)
            return true;
    return false;
}

/* Of all tenants, or of those that another set does not have. */
static void set_quotas(const struct gate_set *set, const struct gate_set *other)
{
    for (size_t i = 0; i < set->tokens->n; i++) {
        const struct token *token = &set->tokens->token[i];
        if (has_tenant(other, set->tenant[i]))
            continue;
        atomic_store(&set->tenant[i]->most_bytes, token->most_bytes);
        atomic_store(&set->tenant[i]->most_names, token->most_names);
    }
}

enum roped_status gate_read(const struct gate *gate, struct gate_set **out,
                            struct roped_error *err)
{
    struct gate_set *set = calloc(1, sizeof *set);
    *out = NULL;
    if (!set)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the tokens");
    set->before = set_of(gate);
    enum roped_status status = tokens_read(gate->path, &set->tokens, err);
    if (!status)
        status = find_tenants(gate, set, err);
    if (status) {
        gate_drop(set);
        return status;
    }
    set_quotas(set, set->before);
    *out = set;
    return ROPED_OK;
}

void gate_use(struct gate *gate, struct gate_set *set)
{
    if (set->before && are_same(set->before->tokens, set->tokens)) {
        gate_drop(set);
        return;
    }
    set_quotas(set, NULL);
    atomic_store_explicit(&gate->set, set, memory_order_release);
    log_line(LOG_INFO, "token", "tokens=%zu", set->tokens->n);
}

enum roped_status gate_open(struct gate *gate, const char *path,
                            struct tenants *tenants, struct roped_error *err)
{
    struct gate_set *set;
    gate->path = path;
    gate->tenants = tenants;
    atomic_init(&gate->set, NULL);
    if (!path[0])
        return ROPED_OK;
    enum roped_status status = gate_read(gate, &set, err);
    if (!status)
        gate_use(gate, set);
    return status;
}

void gate_close(struct gate *gate)
{
    struct gate_set *set = set_of(gate);
    while (set) {
        struct gate_set *before = set->before;
        gate_drop(set);
        set = before;
    }
    atomic_store(&gate->set, NULL);
}

bool gate_is_guarded(const struct gate *gate)
{
    return set_of(gate) != NULL;
}

/* ------------------------------------------------------------------ check */

static enum roped_status check_scope(const struct token *token,
                                     enum scope scope, struct caller *out,
                                     struct roped_error *err)
{
    char scopes[64];
    if (scopes_allow(token->scopes, scope))
        return ROPED_OK;
    atomic_fetch_add_explicit(&out->tenant->n_refusals, 1,
                              memory_order_relaxed);
    return roped_fail(err, ROPED_FORBIDDEN,
                      "token '%s' has scopes %s, expected '%s'", token->name,
                      scopes_text(token->scopes, scopes, sizeof scopes),
                      scope_name(scope));
}

/* The parameter 'tenant' of a route that has names, or NULL. */
static const char *asked_tenant(enum scope scope, const struct head *head)
{
    bool has_names = scope == SCOPE_REGIONS || scope == SCOPE_TABLES ||
                     scope == SCOPE_PROGRAMS || scope == SCOPE_SHM;
    for (int i = 0; i < head->n_parameters && has_names; i++)
        if (strcmp(head->parameter[i].name, "tenant") == 0)
            return head->parameter[i].value;
    return NULL;
}

/* The request has a token, which opens the route: whose names does it use? */
static enum roped_status choose_tenant(const struct gate *gate,
                                       const struct token *token,
                                       const char *asked, struct caller *out,
                                       struct roped_error *err)
{
    bool is_admin = scopes_allow(token->scopes, SCOPE_ADMIN);
    out->sees = is_admin ? &tenant_everyone : out->tenant;
    if (!asked)
        return ROPED_OK;
    out->tenant = tenants_find(gate->tenants, asked);
    out->sees = out->tenant;
    return out->tenant
               ? ROPED_OK
               : roped_fail(err, ROPED_NOT_FOUND,
                            "parameter 'tenant': nobody is called '%.64s'",
                            asked);
}

enum roped_status gate_check(const struct gate *gate, enum scope scope,
                             const struct head *head, struct caller *out,
                             struct roped_error *err)
{
    const struct gate_set *set = set_of(gate);
    const char *why;
    struct tenant *nameless = tenants_nameless(gate->tenants);
    *out = (struct caller){"", nameless, nameless};
    if (!set || scope == SCOPE_OPEN)
        return ROPED_OK;
    const char *asked = asked_tenant(scope, head);
    const struct token *token =
        tokens_find(set->tokens, head_value(head, HEADER_AUTHORIZATION), &why);
    if (!token)
        return roped_fail(err, ROPED_NO_TOKEN, "%s", why);
    out->name = token->name;
    out->tenant = set->tenant[token - set->tokens->token];
    if (check_scope(token, asked ? SCOPE_ADMIN : scope, out, err))
        return err->status;
    atomic_fetch_add_explicit(&out->tenant->n_requests, 1,
                              memory_order_relaxed);
    return choose_tenant(gate, token, asked, out, err);
}
