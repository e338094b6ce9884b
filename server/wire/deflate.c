/*
 * deflate.c - zlib, fast rather than small.
 */
#include "wire/deflate.h"

#include <roped/number.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#define ZLIB_CONST /* next_in points at const */
#include <zlib.h>

enum { GZIP_FORMAT = 16, MEMORY_LEVEL = 8 };

static const size_t most_bytes = 1 << 30;

/* Is coding one of the list, with a weight that is not 0? */
static bool accepts(const char *list, const char *coding)
{
    size_t length = strlen(coding);
    while (*list) {
        list += strspn(list, " \t,");
        size_t item = strcspn(list, ",");
        size_t name = strcspn(list, ",; \t");
        const char *weight = memchr(list, '=', item);
        if (name == length && strncasecmp(list, coding, length) == 0)
            return !weight || roped_read_number(weight + 1, NULL) > 0;
        list += item;
    }
    return false;
}

enum deflate_format deflate_accepted(const char *accept_encoding)
{
    if (!accept_encoding)
        return DEFLATE_NONE;
    if (accepts(accept_encoding, "gzip"))
        return DEFLATE_GZIP;
    return accepts(accept_encoding, "deflate") ? DEFLATE_ZLIB : DEFLATE_NONE;
}

const char *deflate_name(enum deflate_format format)
{
    return format == DEFLATE_GZIP   ? "gzip"
           : format == DEFLATE_ZLIB ? "deflate"
                                    : "identity";
}

size_t deflate_bytes(enum deflate_format format, const void *bytes, size_t n,
                     void *out, size_t room)
{
    int window = MAX_WBITS + (format == DEFLATE_GZIP ? GZIP_FORMAT : 0);
    z_stream stream = {.next_in = bytes,
                       .avail_in = (unsigned)n,
                       .next_out = out,
                       .avail_out = (unsigned)room};
    if (n == 0 || n > most_bytes || room > most_bytes ||
        format == DEFLATE_NONE ||
        deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, window, MEMORY_LEVEL,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return 0;
    bool has_fit = deflate(&stream, Z_FINISH) == Z_STREAM_END;
    size_t n_out = (size_t)stream.total_out;
    deflateEnd(&stream);
    return has_fit ? n_out : 0;
}
