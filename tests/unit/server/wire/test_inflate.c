/*
 * test_inflate.c - compressed bodies in pieces of every size, damaged ones,
 * and ones that are larger than anybody wants.
 */
#include "wire/inflate.h"

#include "check.h"

#define ZLIB_CONST /* next_in points at const */
#include <zlib.h>

enum { PLAIN_BYTES = 100000, GZIP = 31, ZLIB = 15, RAW = -15 };

struct sink {
    unsigned char *bytes;
    size_t n, limit;
};

static bool collect(void *context, const char *data, size_t bytes)
{
    struct sink *sink = context;
    if (bytes > sink->limit - sink->n)
        return false;
    if (bytes)
        memcpy(sink->bytes + sink->n, data, bytes);
    sink->n += bytes;
    return true;
}

/* Compresses into a new block, in a format that is a number of window bits. */
static unsigned char *compress_as(int format, const unsigned char *plain,
                                  size_t bytes, size_t *out_bytes)
{
    z_stream stream = {.next_in = plain, .avail_in = (unsigned)bytes};
    CHECK_INT(
        deflateInit2(&stream, 6, Z_DEFLATED, format, 8, Z_DEFAULT_STRATEGY),
        Z_OK);
    size_t room = deflateBound(&stream, bytes);
    unsigned char *out = malloc(room);
    stream.next_out = out;
    stream.avail_out = (unsigned)room;
    CHECK_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *out_bytes = room - stream.avail_out;
    deflateEnd(&stream);
    return out;
}

/* Half noise, half zeros. */
static unsigned char *make_plain(void)
{
    unsigned char *plain = calloc(PLAIN_BYTES, 1);
    uint32_t state = 1;
    for (size_t i = 0; i < PLAIN_BYTES / 2; i++) {
        state = state * 1664525 + 1013904223;
        plain[i] = (unsigned char)(state >> 24);
    }
    return plain;
}

static enum roped_status feed_all(const unsigned char *data, size_t bytes,
                                  size_t piece, struct sink *sink,
                                  struct roped_error *err)
{
    struct inflater *inflater;
    CHECK_OK(inflater_new(&inflater, err), err);
    enum roped_status status = ROPED_OK;
    for (size_t at = 0; at < bytes && !status; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        char *copy = malloc(n); /* a read past the piece is seen */
        memcpy(copy, data + at, n);
        status = inflater_feed(inflater, copy, n, collect, sink, err);
        free(copy);
    }
    if (!status)
        status = inflater_end(inflater, err);
    inflater_free(inflater);
    return status;
}

TEST(inflates_in_pieces_of_any_size)
{
    static const size_t pieces[] = {1, 7, 1000, 16384, 1 << 20};
    static const int formats[] = {GZIP, ZLIB};
    unsigned char *plain = make_plain();
    for (size_t f = 0; f < 2; f++) {
        size_t bytes;
        unsigned char *packed =
            compress_as(formats[f], plain, PLAIN_BYTES, &bytes);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            struct sink sink = {malloc(PLAIN_BYTES), 0, PLAIN_BYTES};
            struct roped_error err;
            CHECK_OK(feed_all(packed, bytes, pieces[i], &sink, &err), &err);
            CHECK_INT(sink.n, PLAIN_BYTES);
            CHECK(memcmp(sink.bytes, plain, PLAIN_BYTES) == 0);
            free(sink.bytes);
        }
        free(packed);
    }
    free(plain);
}

/* Appended to each other, cut in pieces anywhere; an empty one among them. */
TEST(gzip_may_have_several_members)
{
    static const unsigned char text[] = "{\"inputs\":[]}", none[] = "";
    size_t bytes, none_bytes;
    unsigned char *member = compress_as(GZIP, text, 8, &bytes),
                  *empty = compress_as(GZIP, none, 0, &none_bytes);
    unsigned char *all = malloc(2 * bytes + none_bytes + 1);
    memcpy(all, member, bytes);
    memcpy(all + bytes, empty, none_bytes);
    memcpy(all + bytes + none_bytes, member, bytes);
    size_t n = 2 * bytes + none_bytes;
    for (size_t piece = 1; piece <= n; piece++) {
        char room[16];
        struct sink sink = {(unsigned char *)room, 0, sizeof room};
        struct roped_error err;
        CHECK_OK(feed_all(all, n, piece, &sink, &err), &err);
        CHECK_INT(sink.n, 16);
        CHECK(memcmp(room, text, 8) == 0 && memcmp(room + 8, text, 8) == 0);
    }
    for (size_t cut = bytes + 1; cut < n; cut++)
        if (cut != bytes + none_bytes) {
            unsigned char room[16];
            struct sink sink = {room, 0, sizeof room};
            struct roped_error err;
            CHECK_INT(feed_all(all, cut, 5, &sink, &err), ROPED_INVALID);
            CHECK_CONTAINS(err.text, "ends before");
        }
    free(empty);
    free(member);
    free(all);
}

TEST(nothing_inflates_to_nothing)
{
    struct sink sink = {NULL, 0, 0};
    struct roped_error err;
    size_t bytes;
    unsigned char *packed =
        compress_as(GZIP, (const unsigned char *)"", 0, &bytes);
    CHECK_OK(feed_all(packed, bytes, 1, &sink, &err), &err);
    CHECK_INT(sink.n, 0);
    free(packed);
}

static void refuse(const unsigned char *data, size_t bytes, const char *why)
{
    unsigned char room[64];
    for (size_t piece = 1; piece <= 64; piece *= 8) {
        struct sink sink = {room, 0, sizeof room};
        struct roped_error err = {.text = ""};
        CHECK_INT(feed_all(data, bytes, piece, &sink, &err), ROPED_INVALID);
        CHECK_CONTAINS(err.text, "Content-Encoding: ");
        CHECK_CONTAINS(err.text, why);
    }
}

TEST(refuses_what_is_not_whole)
{
    static const unsigned char text[] = "{\"inputs\":[]}";
    static const unsigned char dictionary[] = {0x78, 0xBB, 0, 1, 2, 3, 4, 5};
    size_t bytes;
    unsigned char *packed = compress_as(GZIP, text, sizeof text, &bytes);
    refuse(text, sizeof text, "is not gzip or zlib data");
    refuse(packed, 0, "ends before");
    for (size_t n = 1; n < bytes; n++)
        refuse(packed, n, "ends before");
    packed[bytes - 8] ^= 1; /* the checksum */
    refuse(packed, bytes, "incorrect data check");
    free(packed);
    packed = compress_as(RAW, text, sizeof text, &bytes);
    refuse(packed, bytes, "is not gzip or zlib data");
    free(packed);
    packed = compress_as(ZLIB, text, sizeof text, &bytes);
    packed = realloc(packed, bytes + 1);
    packed[bytes] = 0;
    refuse(packed, bytes + 1, "something follows");
    packed[bytes] = 0x1f; /* zlib's format has one */
    refuse(packed, bytes + 1, "something follows");
    free(packed);
    refuse(dictionary, sizeof dictionary, "dictionary");
}

TEST(a_sink_may_have_enough)
{
    unsigned char room[1000], *zeros = calloc(1, 1 << 24);
    struct sink sink = {room, 0, sizeof room};
    struct inflater *inflater;
    struct roped_error err;
    size_t bytes;
    unsigned char *bomb = compress_as(GZIP, zeros, 1 << 24, &bytes);
    CHECK_OK(inflater_new(&inflater, &err), &err);
    CHECK_OK(inflater_feed(inflater, (const char *)bomb, bytes, collect, &sink,
                           &err),
             &err);
    CHECK_INT(sink.n, 0); /* the first part was too much already */
    CHECK_INT(inflater_end(inflater, &err), ROPED_INVALID);
    inflater_free(inflater);
    free(bomb);
    free(zeros);
}

TEST(knows_its_names)
{
    CHECK(inflater_knows("gzip") && inflater_knows("GZip"));
    CHECK(inflater_knows("x-gzip") && inflater_knows("deflate"));
    CHECK(!inflater_knows("") && !inflater_knows("br"));
    CHECK(!inflater_knows("gzip, deflate") && !inflater_knows("identity"));
    inflater_free(NULL);
}
