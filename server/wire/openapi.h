/*
 * openapi.h - GET /openapi.json: OpenAPI 3.1 for every route; operators'
 * parameters, ranges and defaults derive from the table.
 */
#ifndef ROPED_WIRE_OPENAPI_H
#define ROPED_WIRE_OPENAPI_H

#include "wire/buffer.h"

/* What a token must be allowed to do for a method ("get") of a path of the
 * document: a scope, "" where any token will do, NULL where none is asked for.
 */
typedef const char *openapi_scope_fn(const char *method, const char *path);

/* scope_of NULL: the server asks for no token. */
void openapi_write(struct buffer *buffer, const char *version,
                   openapi_scope_fn *scope_of);

/* Its member "schemas": everything that is JSON. */
void openapi_write_schemas(struct buffer *buffer);

#endif
