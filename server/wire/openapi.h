/*
 * openapi.h - GET /openapi.json: OpenAPI 3.1 for every route; operators'
 * parameters, ranges and defaults derive from the table.
 */
#ifndef ROPED_WIRE_OPENAPI_H
#define ROPED_WIRE_OPENAPI_H

#include "wire/buffer.h"

/* is_guarded: the server asks for tokens, and each operation says for which. */
void openapi_write(struct buffer *buffer, const char *version, bool is_guarded);

/* Its member "schemas": everything that is JSON. */
void openapi_write_schemas(struct buffer *buffer);

#endif
