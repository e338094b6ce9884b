/*
 * route.h - which handler answers a path.
 */
#ifndef ROPED_HTTP_ROUTE_H
#define ROPED_HTTP_ROUTE_H

#include "http/body.h"
#include "http/handlers.h"
#include "tokens.h"

#include <roped/op.h>

#include <stdbool.h>

enum route_kind {
    ROUTE_PLAIN,
    ROUTE_ADMIN, /* served on admin_listen as well */
    ROUTE_LONG,  /* frees or page-locks memory: its handler runs on a lane */
    ROUTE_PAGE   /* for clients that would rather have HTML; others get the next
                    route of its path */
};

/* A row of routes.def. */
struct route {
    const char *method; /* HEAD is served as GET */
    const char *path;   /* '*' stands for one segment */
    enum scope scope;   /* that a token must have, where tokens are wanted */
    enum body_kind body;
    enum route_kind kind;
    handler_fn *handler;
};

struct route_match {
    const struct route *route;      /* NULL: none */
    char capture[ROPED_NAME_BYTES]; /* the first '*' */
    char second[16];                /* the second '*': a model's version */
    char allow[48];                 /* methods of the path, where only the
                                       method was wrong; else "" */
    bool is_long; /* no route, because a name is too long or unprintable */
};

/* Finds the route of a method and a decoded path. accept: the header of that
 * name, or NULL. */
void route_find(const char *method, const char *path, const char *accept,
                struct route_match *out);

/* The route of that method that is near a path that has none, with the path's
 * own names: "; did you mean 'GET /v1/tables/x'?", or "". */
const char *route_nearest(const char *method, const char *path, char *text,
                          size_t bytes);

/* The routes: 0 <= i < route_count(). */
int route_count(void);
const struct route *route_at(int i);

#endif
