/*
 * roped_servers.c - servers in turn, and the home of what stays on one.
 */
#include "roped_servers.h"

#include <roped/op.h>

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double trust_seconds = 1;

double servers_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --------------------------------------------------------------- requests */

/* The character at *at, which may be percent-encoded: servers decode paths and
 * names of parameters. *at moves behind it. */
static char next_character(const char **at)
{
    char digits[3] = {0};
    if (**at == '%' && isxdigit((unsigned char)(*at)[1]) &&
        isxdigit((unsigned char)(*at)[2])) {
        memcpy(digits, *at + 1, 2);
        *at += 3;
        return (char)strtol(digits, NULL, 16);
    }
    return *(*at)++;
}

static bool begins(const char *text, const char *start)
{
    while (*start && *text && next_character(&text) == *start)
        start++;
    return !*start;
}

/* Is there a parameter whose name begins like this? "table=" is a whole name.
 */
static bool has_parameter(const char *query, const char *start)
{
    while (*query) {
        if (begins(query + 1, start)) /* behind '?' or '&' */
            return true;
        query += 1 + strcspn(query + 1, "&");
    }
    return false;
}

/* A call that names no region as a place. Of an operator that is not known
 * here it is not known which inputs are updated: from. is then a place, too. */
static bool is_safe_call(const char *path, const char *query)
{
    char name[ROPED_NAME_BYTES];
    size_t n = 0;
    for (const char *at = path + 4; at < query && n + 1 < sizeof name;)
        name[n++] = next_character(&at);
    name[n] = '\0';
    const struct roped_op *op = roped_op_find(name);
    bool updates = !op;
    for (int i = 0; op && i < roped_op_inputs(op); i++)
        updates |= roped_op_updates(op, i) >= 0;
    return !has_parameter(query, "into.") &&
           !(updates && has_parameter(query, "from."));
}

struct servers_request servers_request_make(const char *method,
                                            const char *path)
{
    static const char *const stays[] = {"/v1/regions",
                                        "/v1/tables",
                                        "/v1/programs",
                                        "/v1/devices",
                                        "/v2/systemsharedmemory",
                                        "/v2/cudasharedmemory"};
    static const char *const places[] = {"from.", "into.", "table="};
    const char *query = path + strcspn(path, "?");
    struct servers_request made = {.method = method, .path = path};
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++)
        made.is_kept |= begins(path, stays[i]);
    made.is_safe = strcmp(method, "GET") == 0 ||
                   (strcmp(method, "POST") == 0 && !made.is_kept &&
                    begins(path, "/v1/") && is_safe_call(path, query));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        made.is_kept |= has_parameter(query, places[i]);
    return made;
}

/* ---------------------------------------------------------------- choosing */

uint64_t servers_rank(const char *name, const char *url)
{
    uint64_t value = 0xcbf29ce484222325; /* FNV-1a, and a last mix */
    const char *text[] = {name, "\n", url};
    for (int i = 0; i < 3; i++)
        for (const char *at = text[i]; *at; at++)
            value = (value ^ (unsigned char)*at) * 0x100000001b3;
    value = (value ^ value >> 33) * 0xff51afd7ed558ccd;
    return value ^ value >> 33;
}

void servers_init(struct servers *servers, const char *const *urls, int n,
                  const char *name)
{
    *servers = (struct servers){.n = n, .home = -1};
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && servers_rank(name, urls[servers->rank[at - 1]]) <
                             servers_rank(name, urls[i]);
             at--)
            servers->rank[at] = servers->rank[at - 1];
        servers->rank[at] = i;
    }
}

/* Of one request: who was tried, and why not. */
struct sending {
    struct servers *servers;
    servers_attempt_fn *attempt;
    void *context;
    bool is_passed[SERVERS_MOST];
    bool is_there[SERVERS_MOST]; /* it answers, and is not ready */
    struct roped_error *err;     /* of the last one */
};

/* As it said within the last second, or says now. */
static bool is_ready(struct sending *sending, int i)
{
    struct servers *servers = sending->servers;
    enum fate fate = FATE_FINAL;
    if (servers_now() < servers->trusted_until[i])
        return true;
    if (sending->attempt(sending->context, i, NULL, &fate, sending->err)) {
        sending->is_there[i] = fate == FATE_REFUSED;
        return false;
    }
    servers->trusted_until[i] = servers_now() + trust_seconds;
    return true;
}

/* The next that is ready; one that is only there where none is; -1: nobody. */
static int find(struct sending *sending, const int *order, int first)
{
    const struct servers *servers = sending->servers;
    int there = -1;
    for (int k = 0; k < servers->n; k++) {
        int i = order ? order[k] : (first + k) % servers->n;
        if (sending->is_passed[i])
            continue;
        if (is_ready(sending, i))
            return i;
        if (sending->is_there[i] && there < 0)
            there = i;
        if (!sending->is_there[i])
            sending->is_passed[i] = true;
    }
    return there;
}

/* In turn over all clients of the process, which have a call at a time each:
 * the one whose turn it is has the fewest under way. */
static int find_any(struct sending *sending)
{
    static atomic_uint turn;
    return find(
        sending, NULL,
        (int)(atomic_fetch_add(&turn, 1) % (unsigned)sending->servers->n));
}

/* The home, while it is there: while it drains it is. */
static int find_home(struct sending *sending)
{
    struct servers *servers = sending->servers;
    int home = servers->home;
    if (home >= 0 && !sending->is_passed[home] &&
        (is_ready(sending, home) || sending->is_there[home]))
        return home;
    servers->home = find(sending, servers->rank, 0);
    return servers->home;
}

enum roped_status servers_send(struct servers *servers,
                               const struct servers_request *request,
                               servers_attempt_fn *attempt, void *context,
                               struct roped_error *err)
{
    struct sending sending = {
        .servers = servers, .attempt = attempt, .context = context, .err = err};
    enum roped_status status = ROPED_INTERNAL;
    bool is_second = false; /* at the home, whose connection had ended */
    for (;;) {
        enum fate fate = FATE_FINAL;
        int i = request->is_kept ? find_home(&sending) : find_any(&sending);
        if (i < 0)
            return err->status;
        status = attempt(context, i, request, &fate, err);
        if (!status || fate == FATE_FINAL ||
            (fate == FATE_UNKNOWN && !request->is_safe) ||
            (fate == FATE_REFUSED && request->is_kept))
            return status;
        servers->trusted_until[i] = 0;
        sending.is_passed[i] =
            !request->is_kept || is_second || fate == FATE_UNREACHED;
        is_second = fate == FATE_UNKNOWN;
    }
}
