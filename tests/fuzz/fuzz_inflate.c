/*
 * fuzz_inflate.c - any bytes as a compressed body: one for the sizes of the
 * pieces, then the body. Promises: pieces change nothing of the verdict, or of
 * what comes out; a sink that has enough is not called again; what deflate.h
 * makes of the input is inflated to the input.
 */
#include "fuzz.h"

#include "wire/deflate.h"
#include "wire/inflate.h"

#include <string.h>

enum { SINK_BYTES = 1 << 18 };

struct sink {
    size_t bytes;
    bool is_full;
    char data[SINK_BYTES];
};

static bool store(void *context, const char *data, size_t bytes)
{
    struct sink *sink = context;
    FUZZ_PROMISE(bytes > 0);
    FUZZ_PROMISE(!sink->is_full);
    sink->is_full = bytes > sizeof sink->data - sink->bytes;
    if (sink->is_full)
        return false;
    memcpy(sink->data + sink->bytes, data, bytes);
    sink->bytes += bytes;
    return true;
}

/* Any sizes, the same for the same seed; 0: all at once. */
static size_t next_piece(unsigned *seed, size_t left)
{
    if (*seed == 0)
        return left;
    *seed = *seed * 1103515245u + 12345u;
    size_t bytes = 1 + (*seed >> 16) % 64;
    return bytes < left ? bytes : left;
}

static enum roped_status inflate_all(const char *data, size_t bytes,
                                     unsigned seed, struct sink *sink)
{
    struct inflater *inflater;
    struct roped_error err = {.text = ""};
    enum roped_status status = inflater_new(&inflater, &err);
    FUZZ_PROMISE(status == ROPED_OK);
    sink->bytes = 0;
    sink->is_full = false;
    while (bytes > 0 && !status && !sink->is_full) {
        size_t piece = next_piece(&seed, bytes);
        status = inflater_feed(inflater, data, piece, store, sink, &err);
        data += piece;
        bytes -= piece;
    }
    if (!status && !sink->is_full)
        status = inflater_end(inflater, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(status == ROPED_OK || err.text[0]);
    inflater_free(inflater);
    return status;
}

static void check_round_trip(enum deflate_format format, const uint8_t *input,
                             size_t bytes)
{
    static struct sink sink;
    unsigned char *packed = malloc(bytes);
    FUZZ_PROMISE(packed);
    size_t n = deflate_bytes(format, input, bytes, packed, bytes - 1);
    FUZZ_PROMISE(n < bytes);
    if (n > 0)
        FUZZ_PROMISE(!inflate_all((const char *)packed, n, 1, &sink));
    FUZZ_PROMISE(n == 0 || sink.is_full ||
                 (sink.bytes == bytes && !memcmp(sink.data, input, bytes)));
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    static struct sink whole, pieces;
    if (bytes < 1)
        return 0;
    const char *body = (const char *)input + 1;
    enum roped_status expected = inflate_all(body, bytes - 1, 0, &whole);
    enum roped_status status =
        inflate_all(body, bytes - 1, 1 + (unsigned)input[0], &pieces);
    if (!whole.is_full && !pieces.is_full) {
        FUZZ_PROMISE(status == expected);
        FUZZ_PROMISE(status || (whole.bytes == pieces.bytes &&
                                !memcmp(whole.data, pieces.data, whole.bytes)));
    }
    check_round_trip(input[0] % 2 ? DEFLATE_GZIP : DEFLATE_ZLIB, input, bytes);
    return 0;
}
