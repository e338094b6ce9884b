/*
 * handlers.h - one handler per route; each returns its reply.
 */
#ifndef ROPED_HTTP_HANDLERS_H
#define ROPED_HTTP_HANDLERS_H

#include "wire/models.h"

#include <roped/status.h>

struct reply;
struct request;

/* On the thread of the connection, or on a lane's for what takes its time: see
 * request.h. */
typedef struct reply handler_fn(struct request *request);

#define UNLISTED_ROUTE(method, path, scope, body, handler, kind)               \
    handler_fn handler;
#define ROUTE(method, path, scope, body, handler, kind, ...) handler_fn handler;
#include "routes.def"

/* The model of the path; else the ROPED_NO_OPERATOR that v2 clients match on,
 * in request->answer.error. */
enum roped_status find_model(struct request *request, struct model *out);

#endif
