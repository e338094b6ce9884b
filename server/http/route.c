/*
 * route.c - how a path finds its route.
 */
#include "http/route.h"

#include "http/accept.h"

#include <roped/nearest.h>

#include <stdio.h>
#include <string.h>

static const struct route routes[] = {
#define UNLISTED_ROUTE(method, path, scope, body, handler, kind)               \
    {#method, path, SCOPE_##scope, BODY_##body, ROUTE_##kind, handler},
#define ROUTE(method, path, scope, body, handler, kind, ...)                   \
    UNLISTED_ROUTE(method, path, scope, body, handler, kind)
#include "routes.def"
};

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

/* Has the path the segments of the pattern, whatever stands for a '*'? */
static bool matches(const char *pattern, const char *path)
{
    for (; *pattern; pattern++)
        if (*pattern == '*')
            while (*path && *path != '/')
                path++;
        else if (*pattern != *path++)
            return false;
    return *path == '\0' || (path[0] == '/' && path[1] == '\0');
}

/* What stands for each '*' of a path that matches; false: one of them is no
 * name. */
static bool capture_names(const char *pattern, const char *path,
                          struct route_match *out)
{
    bool is_fine = true, is_first = true;
    out->capture[0] = out->second[0] = '\0';
    for (; *pattern; pattern++) {
        size_t length = *pattern == '*' ? strcspn(path, "/") : 1;
        if (*pattern == '*') {
            is_fine &=
                capture(path, length, is_first ? out->capture : out->second,
                        is_first ? sizeof out->capture : sizeof out->second);
            is_first = false;
        }
        path += length;
    }
    out->is_long |= !is_fine;
    return is_fine;
}

/* The i-th route is of this path. first: the pattern of the first that was, or
 * NULL: what a literal path is, a pattern is not. */
static bool is_of(size_t i, const char *path, const char **first,
                  struct route_match *out)
{
    if (!matches(routes[i].path, path) ||
        !capture_names(routes[i].path, path, out) ||
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
    bool is_start = false;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].method, method) != 0)
            continue;
        fill(routes[i].path, path, known, sizeof known);
        is_start |= strcmp(known, "/") == 0;
        if (known[0] && known[1])
            roped_nearest_offer(&nearest, known);
    }
    if (is_start) /* last: it is near to whatever is short */
        roped_nearest_offer(&nearest, "/");
    if (nearest.found[0])
        snprintf(text, bytes, "; did you mean '%s %s'?", method, nearest.found);
    return text;
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
            (routes[i].kind != ROUTE_PAGE || accept_prefers_html(accept))) {
            out->route = &routes[i];
            return;
        }
    out->capture[0] = out->second[0] = '\0';
    if (first)
        list_methods(path, out->allow, sizeof out->allow);
}
