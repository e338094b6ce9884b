/*
 * grammar_break.c - what is done to valid requests: one part of one broken by
 * its own rules, or bytes anywhere; and how a connection is put together.
 */
#include "attack/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 */
static uint64_t dice_next(struct dice *dice)
{
    uint64_t z = (dice->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

size_t dice_below(struct dice *dice, size_t n)
{
    return n ? (size_t)(dice_next(dice) % n) : 0;
}

bool dice_chance(struct dice *dice, int percent)
{
    return dice_below(dice, 100) < (size_t)percent;
}

/* ------------------------------------------------------------------- bytes */

static void replace(struct bytes *bytes, size_t at, size_t n_out,
                    const void *in, size_t n_in)
{
    struct bytes all = {0};
    bytes_add(&all, bytes->start, at);
    bytes_add(&all, in, n_in);
    bytes_add(&all, bytes->start + at + n_out, bytes->n - at - n_out);
    bytes_free(bytes);
    *bytes = all;
}

static void set_text(struct bytes *bytes, const char *text, size_t n)
{
    bytes->n = 0;
    bytes_add(bytes, text, n);
}

/* One of a table of strings that may hold NUL. */
struct piece {
    const char *text;
    size_t n;
};
#define PIECE(text)                                                            \
    {                                                                          \
        text, sizeof(text) - 1                                                 \
    }
#define PICK(dice, table)                                                      \
    (&(table)[dice_below(dice, sizeof(table) / sizeof *(table))])

static void repeat(struct bytes *bytes, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes_text(bytes, text);
}

/* Flips, cuts out, repeats or inserts bytes anywhere. */
static void bytes_break(struct bytes *bytes, struct dice *dice)
{
    size_t at = dice_below(dice, bytes->n), left = bytes->n - at;
    size_t n = 1 + dice_below(dice, 32);
    char noise[32];
    if (bytes->n == 0)
        return;
    n = n < left ? n : left;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)dice_next(dice);
    switch (dice_below(dice, 4)) {
    case 0:
        bytes->start[at] =
            (char)(bytes->start[at] ^ (1 << dice_below(dice, 8)));
        break;
    case 1:
        replace(bytes, at, n, "", 0);
        break;
    case 2:
        memcpy(noise, bytes->start + at, n);
        replace(bytes, at, 0, noise, n);
        break;
    default:
        replace(bytes, at, 0, noise, n);
    }
}

/* ------------------------------------------------------------ request line */

static void break_method(struct message *message, struct dice *dice)
{
    static const struct piece methods[] = {
        PIECE("GET"),     PIECE("HEAD"),    PIECE("POST"),   PIECE("PUT"),
        PIECE("DELETE"),  PIECE("OPTIONS"), PIECE("TRACE"),  PIECE("CONNECT"),
        PIECE("PATCH"),   PIECE("get"),     PIECE("PRI"),    PIECE(""),
        PIECE("G\0T"),    PIECE(" GET"),    PIECE("GET\t"),  PIECE("GET "),
        PIECE("\r\nGET"), PIECE("\nGET"),   PIECE("G\x80T"), PIECE("G@T")};
    const struct piece *method = PICK(dice, methods);
    set_text(&message->method, method->text, method->n);
    if (dice_chance(dice, 5))
        repeat(&message->method, "LONG", dice_below(dice, 12000));
}

static void break_target(struct message *message, struct dice *dice)
{
    static const struct piece whole[] = {
        PIECE("*"),
        PIECE(""),
        PIECE("localhost:80"),
        PIECE("//"),
        PIECE("/../../etc/passwd"),
        PIECE("/v1/regions/.."),
        PIECE("?"),
        PIECE("/v1/rope%"),
        PIECE("/v1/regions/%00"),
        PIECE("/v1/%2e%2e/v2"),
        PIECE("/v1/regions/a b"),
        PIECE("http://"),
        PIECE("/v2/models//infer"),
        PIECE("/v2/models/rope/versions/99999999999999999999/ready"),
        PIECE("/v1/rmsnorm?eps=nan&eps=1"),
        PIECE("/v1/rmsnorm?from.x="),
        PIECE("/v1/rmsnorm?from.x=in-play:99999999999999999999"),
        PIECE("/v1/regions/play?bytes=99999999999999999999"),
        PIECE("/v1/regions/play?bytes=-1"),
        PIECE("/v1/regions/play?shape=,"),
        PIECE("/v1/regions/play?dtype=F32&shape=4294967296,4294967296")};
    static const struct piece parts[] = {
        PIECE("%00"),        PIECE("%2f"),    PIECE("%2e%2e"),
        PIECE("%zz"),        PIECE("%"),      PIECE("\x80\xFF"),
        PIECE("//"),         PIECE("/../"),   PIECE(" "),
        PIECE("?"),          PIECE("&"),      PIECE("#"),
        PIECE("\0"),         PIECE("\t"),     PIECE("?eps=1&eps=1"),
        PIECE("?unknown=1"), PIECE("&="),     PIECE("%0d%0a"),
        PIECE("+"),          PIECE(";"),      PIECE("\r"),
        PIECE("\n"),         PIECE("%ff%fe"), PIECE("\"<'")};
    const struct piece *piece = PICK(dice, whole), *part = PICK(dice, parts);
    switch (dice_below(dice, 8)) {
    case 0:
        set_text(&message->target, piece->text, piece->n);
        break;
    case 1:
        replace(&message->target, 0, 0, "http://localhost:8000", 21);
        break;
    case 2:
        repeat(&message->target, dice_chance(dice, 50) ? "a" : "/",
               dice_below(dice, dice_chance(dice, 20) ? 60000 : 300));
        break;
    case 3:
        repeat(&message->target, "&a=b", dice_below(dice, 400));
        break;
    default:
        replace(&message->target, dice_below(dice, message->target.n + 1), 0,
                part->text, part->n);
    }
}

static void break_version(struct message *message, struct dice *dice)
{
    static const struct piece versions[] = {
        PIECE("HTTP/1.0"),
        PIECE("HTTP/0.9"),
        PIECE("HTTP/2.0"),
        PIECE("HTTP/1.1 "),
        PIECE("http/1.1"),
        PIECE("HTTP/1."),
        PIECE(""),
        PIECE("HTTP/1.99999999999999999999"),
        PIECE("HTTP/1.1\r"),
        PIECE("HTTP/1.1\0"),
        PIECE("HTTP/1.1 HTTP/1.1"),
        PIECE("\t"),
        PIECE("HTTP/1.2"),
        PIECE("XTTP/1.1"),
        PIECE("HTTP/11")};
    const struct piece *version = PICK(dice, versions);
    set_text(&message->version, version->text, version->n);
}

/* ----------------------------------------------------------------- headers */

static void break_host(struct message *message, struct dice *dice)
{
    static const struct piece hosts[] = {
        PIECE(""),
        PIECE("Host: localhost\r\nHost: localhost\r\n"),
        PIECE("Host: localhost\r\nHost: other\r\n"),
        PIECE("Host:\r\n"),
        PIECE("Host: attacker.example\r\n"),
        PIECE("Host: [::1]:80:80\r\n"),
        PIECE("Host: localhost, localhost\r\n"),
        PIECE("Host: local\0host\r\n"),
        PIECE("Host : localhost\r\n"),
        PIECE("Host:\r\n localhost\r\n"),
        PIECE("Host: \xFF\r\n"),
        PIECE("Host: localhost:99999999999\r\n")};
    const struct piece *host = PICK(dice, hosts);
    set_text(&message->host, host->text, host->n);
}

/* Lines that servers have stumbled over. */
static void break_header(struct message *message, struct dice *dice)
{
    static const struct piece lines[] = {
        PIECE("X-Other: a\r\n b\r\n"),
        PIECE("X-Other:\r\n\tb\r\n"),
        PIECE(" first: folded\r\n"),
        PIECE("X-Other: a\nX-More: b\r\n"),
        PIECE("X-Other: a\rX-More: b\r\n"),
        PIECE("X-Other: a\0b\r\n"),
        PIECE("X-Ot\0her: a\r\n"),
        PIECE(": empty\r\n"),
        PIECE("nothing\r\n"),
        PIECE("X Other: a\r\n"),
        PIECE("X-Other : a\r\n"),
        PIECE("\r"),
        PIECE("\r\n"),
        PIECE("\n"),
        PIECE("\n\n"),
        PIECE("X-Other: \x01\x7F\r\n"),
        PIECE("X-Other: \x80\xFF\r\n"),
        PIECE("\x80: a\r\n"),
        PIECE("Connection: close\r\n"),
        PIECE("Connection: upgrade\r\n"),
        PIECE("Upgrade: h2c\r\nConnection: upgrade\r\n"),
        PIECE("Connection: close, keep-alive\r\n"),
        PIECE("Expect: 100-continue\r\n"),
        PIECE("Expect: 200-ok\r\n"),
        PIECE("Expect: 100-continue\r\nExpect: 100-continue\r\n"),
        PIECE("Content-Encoding: gzip\r\n"),
        PIECE("Content-Encoding: br\r\n"),
        PIECE("Content-Encoding: deflate\r\n"),
        PIECE("Content-Encoding: gzip, gzip\r\n"),
        PIECE("Authorization: Bearer\r\n"),
        PIECE("Authorization: Basic =\r\n"),
        PIECE("Inference-Header-Content-Length: 99\r\n"),
        PIECE("Inference-Header-Content-Length: -1\r\n"),
        PIECE("Inference-Header-Content-Length: 0\r\n"),
        PIECE("Inference-Header-Content-Length: 18446744073709551615\r\n"),
        PIECE("Origin: http://attacker.example\r\n"),
        PIECE("Origin: null\r\n"),
        PIECE("X-Request-Id: \x1B[31m\r\n"),
        PIECE("X-Request-Id:\r\n"),
        PIECE("Accept-Encoding: gzip;q=0, *;q=99999999999\r\n")};
    const struct piece *line = PICK(dice, lines);
    replace(&message->headers, 0, 0, line->text, line->n);
    if (!dice_chance(dice, 8))
        return;
    bytes_text(&message->headers, "X-Long: ");
    repeat(&message->headers, dice_chance(dice, 50) ? "a" : "a\r\nX: ",
           dice_below(dice, dice_chance(dice, 20) ? 60000 : 3000));
    bytes_text(&message->headers, "\r\n");
}

/* Lengths and encodings beside, or instead of, the right one. */
static void break_framing(struct message *message, struct dice *dice)
{
    static const struct piece lines[] = {
        PIECE("Content-Length: -1\r\n"),
        PIECE("Content-Length: +5\r\n"),
        PIECE("Content-Length: 5 5\r\n"),
        PIECE("Content-Length: 5, 5\r\n"),
        PIECE("Content-Length: 0x5\r\n"),
        PIECE("Content-Length:\r\n"),
        PIECE("Content-Length: 5\0\r\n"),
        PIECE("Content-Length: \t5\t\r\n"),
        PIECE("Content-Length:\r\n 5\r\n"),
        PIECE("Content-Length5: \r\n"),
        PIECE("Content-Length : 5\r\n"),
        PIECE("Content-Length: 5\n"),
        PIECE("Content-Length: 9223372036854775807\r\n"),
        PIECE("Content-Length: 9223372036854775808\r\n"),
        PIECE("Content-Length: 18446744073709551615\r\n"),
        PIECE("Content-Length: 99999999999999999999999999999999\r\n"),
        PIECE("Content-Length: 1048576\r\n"),
        PIECE("Content-Length: 1048577\r\n"),
        PIECE("Transfer-Encoding: chunked\r\n"),
        PIECE("Transfer-Encoding: chunked, chunked\r\n"),
        PIECE("Transfer-Encoding: gzip, chunked\r\n"),
        PIECE("Transfer-Encoding: identity\r\n"),
        PIECE("Transfer-Encoding: xchunked\r\n"),
        PIECE("Transfer-Encoding: Chunked\r\n"),
        PIECE("Transfer-Encoding: chunked\t\r\n"),
        PIECE("Transfer-Encoding:\r\n chunked\r\n"),
        PIECE("Transfer-Encodingx: chunked\r\n"),
        PIECE("Transfer-Encoding : chunked\r\n"),
        PIECE("Transfer-Encoding: \vchunked\r\n")};
    const struct piece *line = PICK(dice, lines);
    switch (dice_below(dice, 4)) {
    case 0:
        message->framing.n = 0;
        break;
    case 1:
        message->framing.n = 0;
        bytes_format(&message->framing, "Content-Length: %zu\r\n",
                     dice_below(dice, 2 * message->body.n + 8));
        return;
    default:
        break;
    }
    bytes_add(&message->framing, line->text, line->n);
}

/* ------------------------------------------------------------------ bodies */

/* A chunk of its own before, or in the place of, the others. */
static void break_chunks(struct message *message, struct dice *dice)
{
    static const struct piece chunks[] = {
        PIECE("-1\r\na\r\n"),
        PIECE("ffffffffffffffff\r\na\r\n"),
        PIECE("10000000000000001\r\na\r\n"),
        PIECE("0x1\r\na\r\n"),
        PIECE("+1\r\na\r\n"),
        PIECE("\r\na\r\n"),
        PIECE("1\na\r\n"),
        PIECE("1\r\na\n"),
        PIECE("1;a\nb\r\na\r\n"),
        PIECE("1;\0\r\na\r\n"),
        PIECE("1\r\nab\r\n"),
        PIECE("2\r\na\r\n"),
        PIECE("1 \r\na\r\n"),
        PIECE("00000000000000000000000000001\r\na\r\n"),
        PIECE("g\r\na\r\n"),
        PIECE("7fffffffffffffff\r\na\r\n"),
        PIECE("0\r\nX-Trailer: a\r\n\r\n"),
        PIECE("0\r\nContent-Length: 5\r\n\r\n"),
        PIECE("0\n\n"),
        PIECE("0\r\nGET / HTTP/1.1\r\n\r\n"),
        PIECE("100001\r\n")};
    const struct piece *chunk = PICK(dice, chunks);
    set_text(&message->framing, "Transfer-Encoding: chunked\r\n", 28);
    if (dice_chance(dice, 50))
        message->body.n = 0;
    replace(&message->body, 0, 0, chunk->text, chunk->n);
    if (dice_chance(dice, 10))
        for (size_t n = dice_below(dice, 3000); n > 0; n--)
            bytes_text(&message->body, "1\r\na\r\n");
}

/* The length stays as announced, or follows. */
static void break_body(struct message *message, struct dice *dice)
{
    bytes_break(&message->body, dice);
    if (message->is_chunked || dice_chance(dice, 30))
        return;
    message->framing.n = 0;
    bytes_format(&message->framing, "Content-Length: %zu\r\n", message->body.n);
}

/* Breaks one of its parts. */
static void message_break(struct message *message, struct dice *dice)
{
    static void (*const breaks[])(struct message *, struct dice *) = {
        break_method,  break_target, break_version, break_host,
        break_header,  break_header, break_header,  break_framing,
        break_framing, break_chunks, break_body,    break_body};
    (*PICK(dice, breaks))(message, dice);
}

/* ------------------------------------------------------------- connections */

void plan_tag(char *out, size_t out_bytes, uint64_t number, int i)
{
    int letter = 'a' + i;
    snprintf(out, out_bytes, "t%llu-%c%c%c%c", (unsigned long long)number,
             letter, letter, letter, letter);
}

static void add_request(struct plan *plan, struct dice *dice, bool is_last)
{
    struct message message = {0};
    int i = plan->n_requests++;
    char tag[48];
    plan_tag(tag, sizeof tag, plan->number, i);
    plan->kind[i] =
        message_make(&message, dice, plan->is_valid ? "keep" : "play");
    plan->is_chunked[i] = message.is_chunked;
    if (is_last && dice_chance(dice, 25))
        bytes_text(&message.headers, "Connection: close\r\n");
    if (!plan->is_valid)
        for (size_t n = dice_below(dice, 3); n > 0; n--, plan->n_extra++)
            message_break(&message, dice);
    bytes_add(&plan->wire, message.method.start, message.method.n);
    bytes_text(&plan->wire, " ");
    bytes_add(&plan->wire, message.target.start, message.target.n);
    bytes_text(&plan->wire, " ");
    bytes_add(&plan->wire, message.version.start, message.version.n);
    bytes_text(&plan->wire, "\r\n");
    bytes_add(&plan->wire, message.host.start, message.host.n);
    bytes_format(&plan->wire, "X-Request-Id: %s\r\n", tag);
    bytes_add(&plan->wire, message.headers.start, message.headers.n);
    bytes_add(&plan->wire, message.framing.start, message.framing.n);
    bytes_text(&plan->wire, "\r\n");
    bytes_add(&plan->wire, message.body.start, message.body.n);
    message_free(&message);
}

static int compare_cuts(const void *a, const void *b)
{
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    return (left > right) - (left < right);
}

static void choose_cuts(struct plan *plan, struct dice *dice)
{
    plan->n_cuts =
        dice_chance(dice, 40) ? 1 + (int)dice_below(dice, PLAN_CUTS) : 0;
    for (int i = 0; i < plan->n_cuts; i++) {
        plan->cut[i] = dice_below(dice, plan->wire.n + 1);
        plan->pause_seconds[i] = (double)dice_below(dice, 20) * 1e-3;
    }
    qsort(plan->cut, (size_t)plan->n_cuts, sizeof *plan->cut, compare_cuts);
}

void plan_make(struct plan *plan, uint64_t seed, uint64_t number)
{
    struct dice dice = {seed * 0xD1342543DE82EF95u + number};
    memset(plan, 0, sizeof *plan);
    plan->number = number;
    plan->is_valid = dice_chance(&dice, 30);
    int n = dice_chance(&dice, 50)
                ? 1
                : 2 + (int)dice_below(&dice, PLAN_REQUESTS - 1);
    for (int i = 0; i < n; i++)
        add_request(plan, &dice, i == n - 1);
    if (!plan->is_valid && dice_chance(&dice, 25)) {
        bytes_break(&plan->wire, &dice);
        plan->n_extra += 2;
    }
    choose_cuts(plan, &dice);
    size_t end = dice_below(&dice, 100);
    plan->ending = end < 8 ? END_WAIT : END_SOON;
    if (!plan->is_valid && end >= 80)
        plan->ending = end < 90 ? END_RESET : END_HALF;
    plan->end_at = dice_below(&dice, plan->wire.n + 1);
}

void plan_free(struct plan *plan)
{
    bytes_free(&plan->wire);
}
