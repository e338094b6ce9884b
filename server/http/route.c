/*
 * route.c - the routes, and how a path finds its own. Literal paths stand
 * before the patterns that would swallow them, and else what is asked for most
 * comes first: a path is held against one after the other.
 */
#include "http/route.h"

#include "http/accept.h"
#include "http/call.h"
#include "http/handlers.h"

#include <roped/nearest.h>

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct route routes[] = {
    {"POST",   "/v2/models/*/infer",             SCOPE_CALL,     ROUTE_BODY_V2,      call_start, &protocol_v2},
    {"GET",    "/v1",                            SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_describe_all, NULL},
    {"GET",    "/v1/devices",                    SCOPE_METRICS,  ROUTE_BODY_IGNORED, handle_devices, NULL},
    {"GET",    "/v1/tables",                     SCOPE_TABLES,   ROUTE_BODY_IGNORED, handle_tables, NULL},
    {"GET",    "/v1/regions",                    SCOPE_REGIONS,  ROUTE_BODY_IGNORED, handle_regions, NULL},
    {"POST",   "/v1/*",                          SCOPE_CALL,     ROUTE_BODY_V1,      call_start, &protocol_v1},
    {"GET",    "/v1/*",                          SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_describe, NULL},
    {"GET",    "/v2/health/live",                SCOPE_OPEN,     ROUTE_BODY_IGNORED, handle_live, NULL},
    {"GET",    "/v2/health/ready",               SCOPE_OPEN,     ROUTE_BODY_IGNORED, handle_ready, NULL},
    {"GET",    "/metrics",                       SCOPE_METRICS,  ROUTE_BODY_IGNORED, handle_metrics, NULL},
    {"GET",    "/",                              SCOPE_OPEN,     ROUTE_BODY_IGNORED, handle_page, NULL, .is_page = true},
    {"GET",    "/",                              SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_root, NULL},
    {"GET",    "/docs",                          SCOPE_OPEN,     ROUTE_BODY_IGNORED, handle_docs, NULL},
    {"GET",    "/openapi.json",                  SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_openapi, NULL},
    {"GET",    "/v1/tables/*",                   SCOPE_TABLES,   ROUTE_BODY_IGNORED, handle_table_get, NULL},
    {"PUT",    "/v1/tables/*",                   SCOPE_TABLES,   ROUTE_BODY_JSON,    handle_table_put, NULL},
    {"DELETE", "/v1/tables/*",                   SCOPE_TABLES,   ROUTE_BODY_IGNORED, handle_table_delete, NULL},
    {"GET",    "/v1/regions/*",                  SCOPE_REGIONS,  ROUTE_BODY_IGNORED, handle_region_get, NULL},
    {"PUT",    "/v1/regions/*",                  SCOPE_REGIONS,  ROUTE_BODY_TENSOR,  handle_region_put, NULL},
    {"DELETE", "/v1/regions/*",                  SCOPE_REGIONS,  ROUTE_BODY_IGNORED, handle_region_delete, NULL, true},
    {"GET",    "/v2",                            SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_server, NULL},
    {"GET",    "/v2/models/stats",               SCOPE_METRICS,  ROUTE_BODY_IGNORED, handle_stats_all, NULL},
    {"POST",   "/v2/repository/index",           SCOPE_ANY,      ROUTE_BODY_JSON,    handle_index, NULL},
    {"POST",   "/v2/repository/models/*/load",   SCOPE_ANY,      ROUTE_BODY_JSON,    handle_load, NULL},
    {"POST",   "/v2/repository/models/*/unload", SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_unload, NULL},
    {"GET",    "/v2/logging",                    SCOPE_ADMIN,    ROUTE_BODY_IGNORED, handle_log_get, NULL},
    {"POST",   "/v2/logging",                    SCOPE_ADMIN,    ROUTE_BODY_JSON,    handle_log_post, NULL},
    {"GET",    "/v2/trace/setting",              SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_trace_get, NULL},
    {"POST",   "/v2/trace/setting",              SCOPE_ANY,      ROUTE_BODY_JSON,    handle_trace_post, NULL},
    {"GET",    "/v2/models/*/trace/setting",     SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_trace_get, NULL},
    {"POST",   "/v2/models/*/trace/setting",     SCOPE_ANY,      ROUTE_BODY_JSON,    handle_trace_post, NULL},
    {"GET",    "/v2/models/*",                   SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_model, NULL},
    {"GET",    "/v2/models/*/ready",             SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_model_ready, NULL},
    {"GET",    "/v2/models/*/config",            SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_config, NULL},
    {"GET",    "/v2/models/*/stats",             SCOPE_METRICS,  ROUTE_BODY_IGNORED, handle_stats, NULL},
    {"GET",    "/v2/models/*/versions/*",        SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_model, NULL},
    {"GET",    "/v2/models/*/versions/*/ready",  SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_model_ready, NULL},
    {"GET",    "/v2/models/*/versions/*/config", SCOPE_ANY,      ROUTE_BODY_IGNORED, handle_config, NULL},
    {"GET",    "/v2/models/*/versions/*/stats",  SCOPE_METRICS,  ROUTE_BODY_IGNORED, handle_stats, NULL},
    {"POST",   "/v2/models/*/versions/*/infer",  SCOPE_CALL,     ROUTE_BODY_V2,      call_start, &protocol_v2},
    {"GET",    "/v2/systemsharedmemory/status",              SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_system_status, NULL},
    {"GET",    "/v2/systemsharedmemory/region/*/status",     SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_system_status, NULL},
    {"POST",   "/v2/systemsharedmemory/region/*/register",   SCOPE_SHM,      ROUTE_BODY_JSON,    handle_system_register, NULL, true},
    {"POST",   "/v2/systemsharedmemory/unregister",          SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_system_unregister, NULL, true},
    {"POST",   "/v2/systemsharedmemory/region/*/unregister", SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_system_unregister, NULL, true},
    {"GET",    "/v2/cudasharedmemory/status",                SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_cuda_status, NULL},
    {"GET",    "/v2/cudasharedmemory/region/*/status",       SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_cuda_status, NULL},
    {"POST",   "/v2/cudasharedmemory/region/*/register",     SCOPE_SHM,      ROUTE_BODY_JSON,    handle_cuda_register, NULL, true},
    {"POST",   "/v2/cudasharedmemory/unregister",            SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_cuda_unregister, NULL, true},
    {"POST",   "/v2/cudasharedmemory/region/*/unregister",   SCOPE_SHM,      ROUTE_BODY_IGNORED, handle_cuda_unregister, NULL, true},
};
/* clang-format on */

/* Copies one segment, what fits of it; false where it is empty, too long or
 * unprintable. */
static bool capture(const char *segment, size_t length, char *out,
                    size_t out_bytes)
{
    bool is_fine = length > 0 && length < out_bytes;
    size_t n = is_fine ? length : 0;
    for (size_t i = 0; i < n; i++)
        is_fine &= (unsigned char)segment[i] >= 0x20 && segment[i] != 0x7F;
    memcpy(out, segment, n);
    out[n] = '\0';
    return is_fine;
}

static bool matches(const char *pattern, const char *path,
                    struct route_match *out)
{
    int n_captures = 0;
    bool is_fine = true;
    out->capture[0] = out->second[0] = '\0';
    while (*pattern) {
        if (*pattern == '*') {
            size_t length = strcspn(path, "/");
            bool is_first = n_captures++ == 0;
            is_fine &=
                capture(path, length, is_first ? out->capture : out->second,
                        is_first ? sizeof out->capture : sizeof out->second);
            path += length;
            pattern++;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    bool is_match = *path == '\0' || (path[0] == '/' && path[1] == '\0');
    out->is_long |= is_match && !is_fine && n_captures > 0;
    return is_match && is_fine;
}

/* The i-th route is of this path. first: the pattern of the first that was, or
 * NULL: what a literal path is, a pattern is not. */
static bool is_of(size_t i, const char *path, const char **first,
                  struct route_match *out)
{
    if (!matches(routes[i].path, path, out) ||
        (*first && strcmp(*first, routes[i].path) != 0))
        return false;
    *first = routes[i].path;
    return true;
}

/* The methods of a path that no route takes with the one that was asked. */
static void list_methods(const char *path, char *out, size_t out_bytes)
{
    struct route_match ignored = {.is_long = false};
    const char *first = NULL;
    size_t at = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (is_of(i, path, &first, &ignored) && !strstr(out, routes[i].method))
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%s",
                                   at ? ", " : "", routes[i].method);
}

/* A pattern with a path's own segments in the places of its '*'; "": it has
 * another number of them, or they do not fit. */
static void fill(const char *pattern, const char *path, char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = '\0';
    while (*pattern == '/' && *path == '/') {
        size_t wanted = strcspn(pattern + 1, "/") + 1;
        size_t given = strcspn(path + 1, "/") + 1;
        bool is_any = pattern[1] == '*';
        size_t n = is_any ? given : wanted;
        if (at + n >= bytes)
            break;
        memcpy(out + at, is_any ? path : pattern, n);
        at += n;
        pattern += wanted;
        path += given;
    }
    out[*pattern || *path ? 0 : at] = '\0';
}

const char *route_nearest(const char *method, const char *path, char *text,
                          size_t bytes)
{
    char known[ROPED_NEAREST_BYTES];
    struct roped_nearest nearest = {.word = path};
    text[0] = '\0';
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].method, method) != 0)
            continue;
        fill(routes[i].path, path, known, sizeof known);
        if (known[0])
            roped_nearest_offer(&nearest, known);
    }
    if (nearest.found[0])
        snprintf(text, bytes, "; did you mean '%s %s'?", method, nearest.found);
    return text;
}

bool route_is_admin(const struct route *route)
{
    return route->handler == handle_live || route->handler == handle_ready ||
           route->handler == handle_metrics;
}

int route_count(void)
{
    return sizeof routes / sizeof *routes;
}

const struct route *route_at(int i)
{
    return &routes[i];
}

void route_find(const char *method, const char *path, const char *accept,
                struct route_match *out)
{
    const char *first = NULL;
    memset(out, 0, sizeof *out);
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (is_of(i, path, &first, out) &&
            strcmp(routes[i].method, method) == 0 &&
            (!routes[i].is_page || accept_prefers_html(accept))) {
            out->route = &routes[i];
            return;
        }
    out->capture[0] = out->second[0] = '\0';
    if (first)
        list_methods(path, out->allow, sizeof out->allow);
}
