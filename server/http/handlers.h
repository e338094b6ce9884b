/*
 * handlers.h - one handler per route; each returns its reply.
 */
#ifndef ROPED_HTTP_HANDLERS_H
#define ROPED_HTTP_HANDLERS_H

#include "http/reply.h"
#include "wire/models.h"

#define UNLISTED_ROUTE(method, path, scope, body, handler, kind)               \
    reply_fn handler;
#define ROUTE(method, path, scope, body, handler, kind, ...) reply_fn handler;
#include "routes.def"

/* The model of the path; else the ROPED_NO_OPERATOR that v2 clients match on,
 * in request->error. */
enum roped_status find_model(struct request *request, struct model *out);

/* The header of a PUT is complete: reads it, and takes the memory. */
enum roped_status region_decode(struct request *request);

#endif
