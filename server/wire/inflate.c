/*
 * inflate.c - zlib, fed with what the network delivers.
 */
#include "wire/inflate.h"

#include <stdlib.h>
#include <strings.h>
#define ZLIB_CONST /* next_in points at const */
#include <zlib.h>

enum {
    PART_BYTES = 16 << 10,
    ANY_FORMAT = 32, /* added to the window bits: gzip or zlib */
    GZIP_ALONE = 16,
    GZIP_BEGIN = 0x1f /* the first byte of a member; never one of zlib */
};

struct inflater {
    z_stream stream;
    bool is_begun, is_gzip, is_complete;
};

bool inflater_knows(const char *encoding)
{
    return strcasecmp(encoding, "gzip") == 0 ||
           strcasecmp(encoding, "x-gzip") == 0 ||
           strcasecmp(encoding, "deflate") == 0;
}

enum roped_status inflater_new(struct inflater **out, struct roped_error *err)
{
    struct inflater *inflater = calloc(1, sizeof *inflater);
    if (inflater &&
        inflateInit2(&inflater->stream, MAX_WBITS + ANY_FORMAT) == Z_OK) {
        *out = inflater;
        return ROPED_OK;
    }
    free(inflater);
    return roped_fail(err, ROPED_NO_MEMORY, "no memory to inflate the body");
}

void inflater_free(struct inflater *inflater)
{
    if (!inflater)
        return;
    inflateEnd(&inflater->stream);
    free(inflater);
}

/* Behind a member of gzip another may follow (RFC 1952): pigz, bgzip, and
 * whoever appends one file to another make these. */
static enum roped_status begin_member(struct inflater *inflater,
                                      struct roped_error *err)
{
    z_stream *stream = &inflater->stream;
    bool is_member = inflater->is_gzip && stream->next_in[0] == GZIP_BEGIN;
    if (!is_member || inflateReset2(stream, MAX_WBITS + GZIP_ALONE) != Z_OK)
        return roped_fail(err, ROPED_INVALID,
                          "Content-Encoding: something follows the "
                          "compressed data");
    inflater->is_complete = false;
    return ROPED_OK;
}

enum roped_status inflater_feed(struct inflater *inflater, const char *data,
                                size_t bytes, inflater_sink_fn *sink,
                                void *context, struct roped_error *err)
{
    z_stream *stream = &inflater->stream;
    unsigned char part[PART_BYTES];
    stream->next_in = (const unsigned char *)data;
    stream->avail_in = (unsigned)bytes; /* a piece of the network: small */
    if (bytes > 0 && !inflater->is_begun) {
        inflater->is_begun = true;
        inflater->is_gzip = (unsigned char)data[0] == GZIP_BEGIN;
    }
    do {
        if (inflater->is_complete && begin_member(inflater, err))
            return err->status;
        stream->next_out = part;
        stream->avail_out = sizeof part;
        int code = inflate(stream, Z_NO_FLUSH);
        if (code == Z_MEM_ERROR)
            return roped_fail(err, ROPED_NO_MEMORY,
                              "no memory to inflate the body");
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return roped_fail(err, ROPED_INVALID,
                              "Content-Encoding: the body is not gzip or zlib "
                              "data: %s",
                              stream->msg ? stream->msg
                                          : "it needs a "
                                            "dictionary");
        inflater->is_complete = code == Z_STREAM_END;
        size_t n = sizeof part - stream->avail_out;
        if (n > 0 && !sink(context, (const char *)part, n))
            return ROPED_OK;
    } while (stream->avail_in > 0 ||
             (stream->avail_out == 0 && !inflater->is_complete));
    return ROPED_OK;
}

enum roped_status inflater_end(const struct inflater *inflater,
                               struct roped_error *err)
{
    if (inflater->is_complete)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Content-Encoding: the body ends before its compressed "
                      "data does");
}
