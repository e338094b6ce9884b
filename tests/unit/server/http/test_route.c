/*
 * test_route.c - the table of routes: what each asks of a token, and that every
 * row is found by a path of its own.
 */
#include "check.h"
#include "http/route.h"

#include <strings.h>

/* What the paths that begin so are about; the first that fits counts. */
static const struct {
    const char *start;
    enum scope scope;
} families[] = {
    {"/v2/health/", SCOPE_OPEN},    {"/v1/regions", SCOPE_REGIONS},
    {"/v1/tables", SCOPE_TABLES},   {"/v2/systemsharedmemory", SCOPE_SHM},
    {"/metrics", SCOPE_METRICS},    {"/v2/cudasharedmemory", SCOPE_SHM},
    {"/v1/devices", SCOPE_METRICS}, {"/v2/models/stats", SCOPE_METRICS},
    {"/v2/logging", SCOPE_ADMIN},   {"/docs", SCOPE_OPEN},
};

static enum scope expected_scope(const struct route *route)
{
    size_t length = strlen(route->path);
    if (route->kind == ROUTE_PAGE)
        return SCOPE_OPEN;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strncmp(route->path, families[i].start,
                    strlen(families[i].start)) == 0)
            return families[i].scope;
    if (strncmp(route->path, "/v1/programs", 12) == 0 &&
        (strcmp(route->method, "PUT") == 0 ||
         strcmp(route->method, "DELETE") == 0))
        return SCOPE_PROGRAMS;
    if (route->body == BODY_V1 || route->body == BODY_PROGRAM ||
        route->body == BODY_V2)
        return SCOPE_CALL;
    return length > 6 && strcmp(route->path + length - 6, "/stats") == 0
               ? SCOPE_METRICS
               : SCOPE_ANY;
}

TEST(every_route_asks_for_the_scope_of_what_it_is_about)
{
    for (int i = 0; i < route_count(); i++) {
        const struct route *route = route_at(i);
        enum scope expected = expected_scope(route);
        if (route->scope <= SCOPE_UNSET || route->scope >= N_SCOPES)
            CHECK_FAIL("%s %s has no scope", route->method, route->path);
        else if (route->scope != expected)
            CHECK_FAIL("%s %s has scope %s, expected %s", route->method,
                       route->path, scope_name(route->scope),
                       scope_name(expected));
    }
}

/* The document calls a scope by its id in lower case. */
TEST(scopes_are_called_as_their_ids)
{
#define SCOPE(id, name, meaning)                                               \
    CHECK_INT(strcasecmp(#id, name), 0);                                       \
    CHECK_TEXT(scope_name(SCOPE_##id), name);
#include "scope.def"
}

/* Only what reads may be had without a token. */
TEST(open_routes_change_nothing)
{
    for (int i = 0; i < route_count(); i++)
        if (route_at(i)->scope == SCOPE_OPEN)
            CHECK_TEXT(route_at(i)->method, "GET");
}

TEST(every_route_is_found)
{
    for (int i = 0; i < route_count(); i++) {
        struct route_match match;
        const struct route *route = route_at(i);
        route_find(route->method, route->path,
                   route->kind == ROUTE_PAGE ? "text/html" : "*/*", &match);
        if (match.route != route)
            CHECK_FAIL("%s %s is another's", route->method, route->path);
    }
}
