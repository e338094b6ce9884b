/*
 * deflate.h - answers for clients that accept them compressed.
 */
#ifndef ROPED_WIRE_DEFLATE_H
#define ROPED_WIRE_DEFLATE_H

#include <stddef.h>

enum deflate_format { DEFLATE_NONE, DEFLATE_GZIP, DEFLATE_ZLIB };

/* What the value of an Accept-Encoding header takes: gzip, else deflate. NULL
 * (no such header), "identity" and "gzip;q=0" take neither. */
enum deflate_format deflate_accepted(const char *accept_encoding);

/* "gzip", "deflate": for Content-Encoding. */
const char *deflate_name(enum deflate_format format);

/* A new block with the bytes compressed, to be freed; NULL: without memory, or
 * where it would be no smaller. At most 1 GiB. */
unsigned char *deflate_bytes(enum deflate_format format, const void *bytes,
                             size_t n, size_t *out_n);

#endif
