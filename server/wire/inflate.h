/*
 * inflate.h - bodies sent with Content-Encoding gzip or deflate, piece by
 * piece as they arrive.
 */
#ifndef ROPED_WIRE_INFLATE_H
#define ROPED_WIRE_INFLATE_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>

struct inflater;

/* Content-Encoding "gzip", "x-gzip" or "deflate", in any case. */
bool inflater_knows(const char *encoding);

/* For one body: gzip, of one member or of several, or zlib's format, which is
 * what HTTP calls deflate; the data says which. */
ROPED_MUST_CHECK enum roped_status inflater_new(struct inflater **out,
                                                struct roped_error *err);
void inflater_free(struct inflater *inflater); /* NULL: nothing */

/* Takes what a piece holds, a part at a time; false: enough, stop. */
typedef bool inflater_sink_fn(void *context, const char *data, size_t bytes);

/*
 * ROPED_INVALID: not compressed as announced, damaged, or something follows
 * the end. ROPED_OK with less than all handed over where sink has stopped it.
 */
ROPED_MUST_CHECK enum roped_status
inflater_feed(struct inflater *inflater, const char *data, size_t bytes,
              inflater_sink_fn *sink, void *context, struct roped_error *err);

/* Nothing more is to come: was that all of it? */
ROPED_MUST_CHECK enum roped_status inflater_end(const struct inflater *inflater,
                                                struct roped_error *err);

#endif
