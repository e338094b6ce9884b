/*
 * test_smuggle.c - requests whose end a proxy and a server may see in two
 * places (RFC 9112, sections 5.2, 6.3 and 11.2), as a table of bytes. What
 * stands behind such a request must never be answered as one of its own. Then
 * the odd but harmless: absolute targets, bodies of GET, names, full houses.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <sys/socket.h>
#include <unistd.h>

/* A request that must not be seen as one; its answer would carry the id. */
#define SMUGGLED                                                               \
    "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"                      \
    "X-Request-Id: smuggled\r\n\r\n"
#define LIVE   "GET /v2/health/live HTTP/1.1\r\n"
#define HOST   "Host: localhost\r\n"
#define POST   "POST /v2/repository/index HTTP/1.1\r\n" HOST
#define CHUNKS POST "Transfer-Encoding: chunked\r\n\r\n"

struct attack {
    const char *name, *bytes;
    size_t n_bytes;
};
#define BYTES(text) text, sizeof(text) - 1

/* Each is 400, once, and ends the connection. */
static const struct attack refused[] = {
    {"folded Content-Length",
     BYTES(POST "Content-Length:\r\n 2\r\n\r\n{}" SMUGGLED)},
    {"Content-Length folded with a tab",
     BYTES(POST "Content-Length:\r\n\t2\r\n\r\n{}" SMUGGLED)},
    {"Content-Length that goes on in a fold",
     BYTES(POST "Content-Length: 2\r\n 0\r\n\r\n{}" SMUGGLED)},
    {"folded Transfer-Encoding",
     BYTES(POST "Transfer-Encoding:\r\n "
                "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"another header folded",
     BYTES(LIVE HOST "X-Other: a\r\n b\r\n\r\n" SMUGGLED)},
    {"another header folded empty",
     BYTES(LIVE HOST "X-Other:\r\n b\r\n\r\n" SMUGGLED)},
    {"first header folded", BYTES(LIVE " Host: localhost\r\n\r\n" SMUGGLED)},
    {"NUL in the target",
     BYTES("GET /v2/health/live\0/x HTTP/1.1\r\n" HOST "\r\n" SMUGGLED)},
    {"NUL in the query",
     BYTES("GET /v2/health/live?a=b\0c HTTP/1.1\r\n" HOST "\r\n" SMUGGLED)},
    {"NUL in a value", BYTES(LIVE HOST "X-Other: a\0b\r\n\r\n" SMUGGLED)},
    {"NUL in a name", BYTES(LIVE HOST "X-Ot\0her: a\r\n\r\n" SMUGGLED)},
    {"NUL in Content-Length",
     BYTES(POST "Content-Length: 2\0\r\n\r\n{}" SMUGGLED)},
    {"bare LF behind the request line",
     BYTES("GET /v2/health/live HTTP/1.1\n" HOST "\r\n" SMUGGLED)},
    {"bare LF behind a header",
     BYTES(LIVE "Host: localhost\nX-Other: a\r\n\r\n" SMUGGLED)},
    {"bare LF behind Content-Length",
     BYTES(POST "Content-Length: 2\n\r\n{}" SMUGGLED)},
    {"bare LF as the empty line", BYTES(LIVE HOST "\n" SMUGGLED)},
    {"two Hosts", BYTES(LIVE HOST HOST "\r\n" SMUGGLED)},
    {"two Hosts that differ", BYTES(LIVE HOST "Host: a\r\n\r\n" SMUGGLED)},
    {"no Host", BYTES(LIVE "\r\n" SMUGGLED)},
    {"Content-Length twice",
     BYTES(POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" SMUGGLED)},
    {"two lengths",
     BYTES(POST "Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}" SMUGGLED)},
    {"two lengths in one",
     BYTES(POST "Content-Length: 2, 2\r\n\r\n{}" SMUGGLED)},
    {"length with a plus", BYTES(POST "Content-Length: +2\r\n\r\n{}" SMUGGLED)},
    {"negative length", BYTES(POST "Content-Length: -2\r\n\r\n{}" SMUGGLED)},
    {"hexadecimal length",
     BYTES(POST "Content-Length: 0x2\r\n\r\n{}" SMUGGLED)},
    {"length of two words",
     BYTES(POST "Content-Length: 2 0\r\n\r\n{}" SMUGGLED)},
    {"empty length", BYTES(POST "Content-Length:\r\n\r\n{}" SMUGGLED)},
    {"length and chunks",
     BYTES(POST "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
                "0\r\n\r\n" SMUGGLED)},
    {"chunks and length",
     BYTES(POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
                "0\r\n\r\n" SMUGGLED)},
    {"Transfer-Encoding twice",
     BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"
                "\r\n\r\n0\r\n\r\n" SMUGGLED)},
    {"name that begins like Content-Length",
     BYTES(POST "Content-Length5: \r\n\r\n" SMUGGLED)},
    {"name that begins like Transfer-Encoding",
     BYTES(POST "Transfer-Encodingx: chunked\r\n\r\n" SMUGGLED)},
    {"space before the colon of Content-Length",
     BYTES(POST "Content-Length : 2\r\n\r\n{}" SMUGGLED)},
    {"space before the colon of Transfer-Encoding",
     BYTES(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" SMUGGLED)},
    {"tab before the colon",
     BYTES(POST "Content-Length\t: 2\r\n\r\n{}" SMUGGLED)},
    {"space within a name", BYTES(LIVE HOST "X Other: a\r\n\r\n" SMUGGLED)},
    {"line without a colon", BYTES(LIVE HOST "Other\r\n\r\n" SMUGGLED)},
};

/* What is well formed and cannot be: 400, 413 or 501, and the end of the
 * connection. */
static const struct attack unknown[] = {
    {"length of 2^64",
     BYTES(POST "Content-Length: 18446744073709551616\r\n\r\n{}" SMUGGLED)},
    {"xchunked",
     BYTES(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SMUGGLED)},
    {"chunked, identity",
     BYTES(POST
           "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SMUGGLED)},
    {"gzip, chunked",
     BYTES(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED)},
    {"chunked with a vertical tab",
     BYTES(POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" SMUGGLED)},
};

/* Any answer or none, but nothing behind it is answered, and it is closed. */
static const struct attack chunk_faults[] = {
    {"bare LF behind a size", BYTES(CHUNKS "2\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"bare LF in an extension",
     BYTES(CHUNKS "2;a\nb\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"bare LF behind data", BYTES(CHUNKS "2\r\n{}\n0\r\n\r\n" SMUGGLED)},
    {"bare LF behind the last chunk",
     BYTES(CHUNKS "2\r\n{}\r\n0\n\r\n" SMUGGLED)},
    {"bare LF as the end", BYTES(CHUNKS "2\r\n{}\r\n0\r\n\n" SMUGGLED)},
    {"more data than the size says",
     BYTES(CHUNKS "2\r\n{} \r\n0\r\n\r\n" SMUGGLED)},
    {"negative size", BYTES(CHUNKS "-2\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"size of 2^64",
     BYTES(CHUNKS "10000000000000002\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"size with 0x", BYTES(CHUNKS "0x2\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"size with a plus", BYTES(CHUNKS "+2\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"no size", BYTES(CHUNKS "\r\n{}\r\n0\r\n\r\n" SMUGGLED)},
    {"a request in the trailers", BYTES(CHUNKS "2\r\n{}\r\n0\r\n" SMUGGLED)},
    {"a length in the trailers",
     BYTES(CHUNKS "2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n" SMUGGLED)},
};

enum { DEADLINE_SECONDS = 3 };
static struct server server;

static bool is_smuggled(const struct exchange *all)
{
    for (int i = 0; i < all->n_answers; i++)
        if (bytes_contain(all->answer[i].head, all->answer[i].head_bytes,
                          "smuggled"))
            return true;
    return false;
}

/* Sent whole, or byte by byte, where a server may look less far ahead. */
static int start(const struct attack *attack, bool is_dripped)
{
    int fd = client_connect(server.port);
    for (size_t i = 0; is_dripped && i < attack->n_bytes; i++)
        if (!attack_send(fd, attack->bytes + i, 1))
            break;
    if (!is_dripped)
        attack_send(fd, attack->bytes, attack->n_bytes);
    return fd;
}

/* All at once, so that those that hang take their time together. */
static void attempt_all(const struct attack *attacks, int n, bool is_dripped,
                        void (*judge)(const struct attack *attack,
                                      const struct exchange *all))
{
    enum { MOST = 64 };
    int fd[MOST];
    for (int i = 0; i < n; i++)
        fd[i] = start(&attacks[i], is_dripped);
    double until = now_seconds() + DEADLINE_SECONDS;
    for (int i = 0; i < n; i++) {
        double left = until - now_seconds();
        struct exchange all =
            exchange_read(fd[i], EXCHANGE_ANSWERS, left > 0.1 ? left : 0.1);
        judge(&attacks[i], &all);
        exchange_free(&all);
        close(fd[i]);
    }
}
#define ATTEMPT_ALL(attacks, is_dripped, judge)                                \
    attempt_all(attacks, (int)(sizeof(attacks) / sizeof *(attacks)),           \
                is_dripped, judge)

/* One answer at most, well formed, and then the end. */
static void expect_end(const struct attack *attack, const struct exchange *all)
{
    if (all->is_malformed)
        CHECK_FAIL("%s: malformed answer: %.200s", attack->name, all->in.start);
    else if (!all->is_closed)
        CHECK_FAIL("%s: answered %d, not closed", attack->name,
                   exchange_code(all));
    if (all->n_answers > 1 || is_smuggled(all))
        CHECK_FAIL("%s: %d answers, the first %d%s", attack->name,
                   all->n_answers, exchange_code(all),
                   is_smuggled(all) ? ", the smuggled request's too" : "");
}

/* Or 413, for a length that no number holds. */
static void expect_400(const struct attack *attack, const struct exchange *all)
{
    if (exchange_code(all) != 400 && exchange_code(all) != 413)
        CHECK_FAIL("%s: answered %d, expected 400", attack->name,
                   exchange_code(all));
    expect_end(attack, all);
}

/* Bytes that go on after an answer may reset it away. */
static void expect_400_or_reset(const struct attack *attack,
                                const struct exchange *all)
{
    if (all->in.n > 0)
        expect_400(attack, all);
    else
        expect_end(attack, all);
}

static void expect_4xx_or_501(const struct attack *attack,
                              const struct exchange *all)
{
    int code = exchange_code(all);
    if (code != 501 && code != 413 && code != 400)
        CHECK_FAIL("%s: answered %d, expected 400, 413 or 501", attack->name,
                   code);
    expect_end(attack, all);
}

TEST(what_could_be_framed_twice_is_400_and_closed)
{
    ATTEMPT_ALL(refused, false, expect_400);
}

TEST(byte_by_byte_it_is_no_request_either)
{
    ATTEMPT_ALL(refused, true, expect_400_or_reset);
}

TEST(lengths_and_encodings_that_cannot_be_are_refused_and_closed)
{
    ATTEMPT_ALL(unknown, false, expect_4xx_or_501);
}

TEST(behind_broken_chunks_nothing_is_read)
{
    ATTEMPT_ALL(chunk_faults, false, expect_end);
}

/* ------------------------------------------------------- what is a request */

static void expect_first(const char *bytes, size_t n_bytes, int code,
                         const char *part)
{
    struct exchange all =
        exchange(server.port, bytes, n_bytes, 1, DEADLINE_SECONDS);
    if (exchange_code(&all) != code ||
        !bytes_contain(all.in.start, all.in.n, part))
        CHECK_FAIL("answered %.300s, expected %d with '%s' to: %.60s",
                   all.in.n ? all.in.start : "nothing", code, part, bytes);
    exchange_free(&all);
}

TEST(well_formed_requests_are_answered)
{
    struct bytes text = {0};
    expect_first(BYTES(LIVE HOST "\r\n"), 200, "live");
    expect_first(BYTES(LIVE "host:localhost\r\n\r\n"), 200, "live");
    expect_first(BYTES(LIVE "Host: \t localhost\r\n\r\n"), 200, "live");
    expect_first(BYTES(POST "Content-Length: 2\r\n\r\n{}"), 200, "rmsnorm");
    expect_first(BYTES(POST "Content-Length:  2\r\n\r\n{}"), 200, "rmsnorm");
    expect_first(BYTES(CHUNKS "1\r\n{\r\n1;a=b\r\n}\r\n0\r\n\r\n"), 200,
                 "rmsnorm");
    expect_first(BYTES(CHUNKS "2\r\n{}\r\n0\r\nX-Trailer: a\r\n\r\n"), 200,
                 "rmsnorm");
    bytes_format(&text,
                 "GET http://localhost:%d/v2/health/live HTTP/1.1\r\n"
                 "Host: localhost:%d\r\n\r\n",
                 server.port, server.port);
    expect_first(text.start, text.n, 200, "live");
    bytes_free(&text);
}

/* More than any route without a body reads. */
TEST(a_large_body_on_get_is_answered)
{
    enum { BODY_BYTES = 2000000 };
    static const char head[] = LIVE HOST "Content-Length: 2000000\r\n\r\n";
    struct bytes text = {0};
    char *body = calloc(1, BODY_BYTES);
    bytes_add(&text, head, sizeof head - 1);
    bytes_add(&text, body, BODY_BYTES);
    struct exchange all = exchange(server.port, text.start, text.n, 1, 5);
    int code = exchange_code(&all);
    if (code != 200 && code != 400 && code != 413)
        CHECK_FAIL("2 MB on GET: answered %d, expected 200, 400 or 413", code);
    exchange_free(&all);
    bytes_free(&text);
    free(body);
}

TEST(names_that_cannot_be_are_refused_with_a_reason)
{
    char text[512];
    expect_first(BYTES("PUT /v1/regions/.?bytes=64 HTTP/1.1\r\n" HOST "\r\n"),
                 400, "name");
    expect_first(BYTES("PUT /v1/regions/..?bytes=64 HTTP/1.1\r\n" HOST "\r\n"),
                 400, "name");
    expect_first(
        BYTES("PUT /v1/regions/%2e%2E?bytes=64 HTTP/1.1\r\n" HOST "\r\n"), 400,
        "name");
    for (int length = 64; length <= 192; length += 64) {
        int n = snprintf(text, sizeof text,
                         "PUT /v1/tables/%0*d HTTP/1.1\r\n" HOST
                         "Content-Length: 2\r\n\r\n{}",
                         length, 0);
        expect_first(text, (size_t)n, 400, "name");
    }
}

/* ------------------------------------------------------------ a full house */

TEST(a_newcomer_takes_the_place_of_an_idle_connection)
{
    enum { N_IDLE = 8 };
    const char *flags[] = {"--max_connections", "8", NULL};
    struct server small;
    int fd[N_IDLE];
    server_start(&small, flags);
    for (int i = 0; i < N_IDLE; i++) {
        fd[i] = client_connect(small.port);
        attack_send(fd[i], LIVE HOST "\r\n", sizeof(LIVE HOST "\r\n") - 1);
        struct exchange all = exchange_read(fd[i], 1, 1);
        CHECK_INT(exchange_code(&all), 200);
        exchange_free(&all);
    }
    for (int i = 0; i < 3; i++)
        CHECK_INT(attack_get(small.port, "/v2/health/live", 1), 200);
    for (int i = 0; i < N_IDLE; i++)
        close(fd[i]);
    CHECK(server_stop(&small));
}

int main(void)
{
    /* a chunk that never ends is cut off soon */
    const char *flags[] = {"--body_timeout_seconds", "2", NULL};
    server_start(&server, flags);
    check_run();
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
    return check_done();
}
