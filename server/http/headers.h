/*
 * headers.h - the headers of a reply.
 */
#ifndef ROPED_HTTP_HEADERS_H
#define ROPED_HTTP_HEADERS_H

#include "http/request.h"

/* Each is handed to emit. */
typedef void reply_header_fn(void *context, const char *name,
                             const char *value);
void reply_headers(const struct request *request, const struct reply *reply,
                   reply_header_fn *emit, void *context);

#endif
