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

/* Compresses n bytes, at most 1 GiB, into out. Returns how many that makes; 0:
 * more than room, or there is no memory for the compressor. */
size_t deflate_bytes(enum deflate_format format, const void *bytes, size_t n,
                     void *out, size_t room);

#endif
