/*
 * test_deflate.c - which coding a client accepts, and that what is deflated
 * inflates again.
 */
#include "wire/deflate.h"

#include "check.h"
#include "wire/inflate.h"

TEST(a_client_says_what_it_accepts)
{
    static const struct {
        const char *list;
        enum deflate_format format;
    } cases[] = {{NULL, DEFLATE_NONE},
                 {"", DEFLATE_NONE},
                 {"identity", DEFLATE_NONE},
                 {"br, zstd", DEFLATE_NONE},
                 {"gzipped", DEFLATE_NONE},
                 {"gzip", DEFLATE_GZIP},
                 {"GZIP", DEFLATE_GZIP},
                 {"deflate", DEFLATE_ZLIB},
                 {"deflate, gzip", DEFLATE_GZIP},
                 {"gzip, deflate, br", DEFLATE_GZIP},
                 {" br ,\tdeflate ", DEFLATE_ZLIB},
                 {"gzip;q=0, deflate", DEFLATE_ZLIB},
                 {"gzip; q=0.0", DEFLATE_NONE},
                 {"gzip;q=0.5, deflate;q=1", DEFLATE_GZIP},
                 {",,,", DEFLATE_NONE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (deflate_accepted(cases[i].list) != cases[i].format)
            CHECK_FAIL("'%s' is %s", cases[i].list ? cases[i].list : "",
                       deflate_name(deflate_accepted(cases[i].list)));
    CHECK_TEXT(deflate_name(DEFLATE_GZIP), "gzip");
    CHECK_TEXT(deflate_name(DEFLATE_ZLIB), "deflate");
}

struct text {
    char bytes[4096];
    size_t n;
};

static bool collect(void *context, const char *data, size_t bytes)
{
    struct text *text = context;
    if (bytes > sizeof text->bytes - text->n)
        return false;
    memcpy(text->bytes + text->n, data, bytes);
    text->n += bytes;
    return true;
}

TEST(what_is_deflated_inflates)
{
    char plain[3000];
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = (char)('a' + i % 7);
    for (int format = DEFLATE_GZIP; format <= DEFLATE_ZLIB; format++) {
        struct inflater *inflater;
        struct roped_error err;
        struct text text = {.n = 0};
        unsigned char packed[sizeof plain];
        size_t n = deflate_bytes((enum deflate_format)format, plain,
                                 sizeof plain, packed, sizeof packed);
        CHECK(n > 0 && n < sizeof plain);
        /* gzip has a magic number, zlib's format a checksum */
        CHECK_INT(packed[0], format == DEFLATE_GZIP ? 0x1F : 0x78);
        CHECK_OK(inflater_new(&inflater, &err), &err);
        CHECK_OK(inflater_feed(inflater, (const char *)packed, n, collect,
                               &text, &err),
                 &err);
        CHECK_OK(inflater_end(inflater, &err), &err);
        CHECK_INT(text.n, sizeof plain);
        CHECK(memcmp(text.bytes, plain, sizeof plain) == 0);
        inflater_free(inflater);
    }
}

TEST(what_does_not_fit_is_left_alone)
{
    unsigned char noise[1000], out[1000];
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof noise; i++) {
        state = state * 1664525 + 1013904223;
        noise[i] = (unsigned char)(state >> 24);
    }
    CHECK_INT(deflate_bytes(DEFLATE_GZIP, noise, sizeof noise, out, sizeof out),
              0);
    CHECK_INT(deflate_bytes(DEFLATE_GZIP, noise, 0, out, sizeof out), 0);
    CHECK_INT(deflate_bytes(DEFLATE_GZIP, "a", 1, out, 1), 0);
    CHECK_INT(deflate_bytes(DEFLATE_NONE, "aaaaaaaaaaaaaaaaaaaaa", 21, out,
                            sizeof out),
              0);
}
