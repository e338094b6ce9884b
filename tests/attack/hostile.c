/*
 * hostile.c - the server: a thread for each connection, and the table of what
 * it does there. Most behaviours are a row: bytes at the start, bytes again and
 * again, and what happens to the connection then.
 */
#include "attack/hostile.h"

#include "attack/attack.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum {
    FOREVER = -1,
    HOLD_SECONDS = 20, /* longer than any client is to wait */
    DRIP_MS = 50,
    PIECE_BYTES = 1 << 16
};

enum ending { CLOSE, RESET, HOLD };

struct peer {
    int fd, port;
    bool is_tls;       /* it began with a TLS handshake */
    char request[512]; /* its first line */
    const struct hostile_behaviour *behaviour;
};

struct hostile_behaviour {
    const char *name;
    unsigned fails;
    const char *start;
    size_t start_bytes;
    const char *again; /* NULL: nothing */
    int n_again, pause_ms;
    enum ending ending;
    void (*play)(const struct peer *peer); /* instead, where it is not NULL */
    const char *body;                      /* for play */
};

/* ----------------------------------------------------------------- sending */

static bool send_bytes(const struct peer *peer, const void *data, size_t n)
{
    const char *at = data;
    while (n > 0) {
        ssize_t sent = send(peer->fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Waits; false where the client has gone meanwhile. */
static bool wait_for_client(const struct peer *peer, int ms)
{
    struct pollfd pollfd = {peer->fd, POLLIN, 0};
    char byte;
    return poll(&pollfd, 1, ms) == 0 ||
           recv(peer->fd, &byte, 1, MSG_DONTWAIT) > 0;
}

/* As many bytes at once as make a rate that hurts, unless it is to drip. */
static void send_again(const struct peer *peer, const char *again, int n,
                       int pause_ms)
{
    struct bytes piece = {0};
    do
        bytes_text(&piece, again);
    while (!pause_ms && n == FOREVER && piece.n < PIECE_BYTES);
    for (int i = 0; n == FOREVER || i < n; i++)
        if (!send_bytes(peer, piece.start, piece.n) ||
            (pause_ms && !wait_for_client(peer, pause_ms)))
            break;
    bytes_free(&piece);
}

static void end(const struct peer *peer, enum ending ending)
{
    struct linger linger = {1, 0};
    if (ending == RESET) {
        setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    } else {
        if (ending == CLOSE)
            shutdown(peer->fd, SHUT_WR);
        for (int i = 0; i < HOLD_SECONDS && wait_for_client(peer, 1000); i++)
            continue;
    }
}

/* A whole answer with this head behind "HTTP/1.1 ", and its length. */
static void add_answer(struct bytes *all, const char *head, const void *body,
                       size_t bytes)
{
    bytes_format(all, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n", head,
                 bytes);
    bytes_add(all, body, bytes);
}

static void send_answer(const struct peer *peer, const char *head,
                        const void *body, size_t bytes)
{
    struct bytes all = {0};
    add_answer(&all, head, body, bytes);
    send_bytes(peer, all.start, all.n);
    bytes_free(&all);
}

/* ------------------------------------------------------------ good answers */

/* A safetensors file: this header and n bytes, each 'x'. */
static void add_file(struct bytes *out, const char *header, size_t n)
{
    uint64_t length = strlen(header);
    bytes_add(out, &length, sizeof length);
    bytes_text(out, header);
    while (n-- > 0)
        bytes_text(out, "x");
}

/* What a daemon would answer, and at once what comes behind it. */
static void send_good(const struct peer *peer, const char *more_head,
                      const char *behind)
{
    struct bytes body = {0}, head = {0}, all = {0};
    const char *request = peer->request;
    if (strstr(request, "/v1/regions ") || strstr(request, "/v1/tables"))
        bytes_text(&body, "{\"regions\":[],\"tables\":[],\"devices\":[]}");
    else if (strstr(request, "/metrics"))
        bytes_text(&body, "roped_queue_depth 1\n");
    else if (strstr(request, "/v1/r"))
        add_file(&body,
                 "{\"y\":{\"dtype\":\"F32\",\"shape\":[1,4],"
                 "\"data_offsets\":[0,16]}}",
                 16);
    else
        bytes_text(&body, "{}");
    bytes_format(&head, "200 OK%s", more_head);
    add_answer(&all, head.start, body.start, body.n);
    bytes_text(&all, behind);
    send_bytes(peer, all.start, all.n);
    bytes_free(&body);
    bytes_free(&head);
    bytes_free(&all);
}

static void play_good(const struct peer *peer)
{
    send_good(peer, peer->behaviour->body, "");
    end(peer, CLOSE);
}

/* The answer of the next request behind that of this one, and once more a
 * little later. */
static void play_early(const struct peer *peer)
{
    static const char early[] = "HTTP/1.1 400 No\r\nContent-Length: 30\r\n\r\n"
                                "{\"error\":\"of another request\"}";
    send_good(peer, "", early);
    if (wait_for_client(peer, DRIP_MS))
        send_bytes(peer, early, sizeof early - 1);
    end(peer, HOLD);
}

/* -------------------------------------------------------------- bad answers */

static void play_file(const struct peer *peer)
{
    struct bytes body = {0};
    add_file(&body, peer->behaviour->body, 16);
    send_answer(peer, "200 OK", body.start, body.n);
    bytes_free(&body);
    end(peer, CLOSE);
}

static void play_json(const struct peer *peer)
{
    const char *body = peer->behaviour->body;
    send_answer(peer, "200 OK\r\nContent-Type: application/json", body,
                strlen(body));
    end(peer, CLOSE);
}

/* body is a head, and what is repeated in the body between what it starts and
 * ends with: "head|start|again|end", up to some 3.5 MB. */
static void play_large(const struct peer *peer)
{
    struct bytes block = {0}, body = {0};
    char *copy = strdup(peer->behaviour->body), *rest = copy;
    const char *head = strsep(&rest, "|"), *start = strsep(&rest, "|"),
               *again = strsep(&rest, "|");
    bytes_text(&body, start);
    while (block.n < 50000)
        bytes_text(&block, again);
    while (body.n < 3500000)
        bytes_add(&body, block.start, block.n);
    bytes_text(&body, rest);
    send_answer(peer, head, body.start, body.n);
    bytes_free(&block);
    bytes_free(&body);
    free(copy);
    end(peer, CLOSE);
}

/* A safetensors file whose header is made so. */
static void play_large_header(const struct peer *peer)
{
    struct bytes header = {0}, body = {0};
    for (int i = 0; i < 2000; i++)
        bytes_format(&header,
                     "%c\"t%d\":{\"dtype\":\"F32\",\"shape\":[0],"
                     "\"data_offsets\":[0,0]}",
                     i ? ',' : '{', i);
    bytes_text(&header, "}");
    add_file(&body, header.start, 0);
    send_answer(peer, "200 OK", body.start, body.n);
    bytes_free(&header);
    bytes_free(&body);
    end(peer, CLOSE);
}

/* 64 MiB of zeros, gzipped. */
static void play_bomb(const struct peer *peer)
{
    enum { ZEROS = 64 << 20 };
    unsigned char *zeros = calloc(1, ZEROS), *out = malloc(1 << 20);
    z_stream z = {.next_in = zeros,
                  .avail_in = ZEROS,
                  .next_out = out,
                  .avail_out = 1 << 20};
    deflateInit2(&z, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
    deflate(&z, Z_FINISH);
    send_answer(peer, peer->behaviour->body, out, z.total_out);
    deflateEnd(&z);
    free(zeros);
    free(out);
    end(peer, CLOSE);
}

/* Who follows gets a good answer. */
static void play_redirect(const struct peer *peer)
{
    struct bytes head = {0};
    const char *name = strchr(peer->request, '/') + 1;
    const char *path = name + strcspn(name, "/ ");
    bytes_format(&head, "302 Found\r\nLocation: http://localhost:%d/good%.*s",
                 peer->port, (int)strcspn(path, " "), path);
    send_answer(peer, head.start, "", 0);
    bytes_free(&head);
    end(peer, CLOSE);
}

/* A TLS record of type 'handshake' that holds none. */
static void play_tls(const struct peer *peer)
{
    send_bytes(peer, "\x16\x03\x03\x40\x00", 5);
    send_again(peer, "garbage ", 2500, 0);
    end(peer, HOLD);
}

/* ----------------------------------------------------------------- the table
 */

#define OK      "HTTP/1.1 200 OK\r\n"
#define CHUNKED OK "Transfer-Encoding: chunked\r\n\r\n"
#define K16     "aaaaaaaaaaaaaaaa"
#define K256    K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16
#define DEEP16  "[[[[[[[[[[[[[[[["
#define DEEP256                                                                \
    DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16      \
        DEEP16 DEEP16 DEEP16 DEEP16 DEEP16 DEEP16

/* What drives a terminal: a title, colours, a cleared screen, both forms of C1,
 * a text that runs backwards, and bytes that are no UTF-8. */
#define RAW                                                                    \
    "\033]0;owned\007\033[31m\033[2J\b\r\x9b"                                  \
    "31m\xc2\x9b"                                                              \
    "31m\xe2\x80\xae\xe2\x81\xa6\xff\x7f caf\xc3\xa9"
#define ESCAPED "\\u001b]0;owned\\u0007\\u001b[31m\\u009b2J\\u202e\\r\\u007f"

#define RAW_ROW(name, fails, text, again, n, pause, ending)                    \
    {                                                                          \
        name, fails, text, sizeof text - 1, again, n, pause, ending, NULL,     \
            NULL                                                               \
    }
#define PLAY(name, fails, play, body)                                          \
    {                                                                          \
        name, fails, NULL, 0, NULL, 0, 0, CLOSE, play, body                    \
    }

/* Behaviours by what they say: bytes and the end; bytes that are an answer, if
 * not a file; bytes that are repeated; a file of this header; a JSON text. */
#define SAYS(name, text, ending)                                               \
    RAW_ROW(name, HOSTILE_ALL, text, NULL, 0, 0, ending)
#define HOLDS(name, text)                                                      \
    RAW_ROW(name, HOSTILE_CALL | HOSTILE_DOCUMENT, text, NULL, 0, 0, HOLD)
#define REPEATS(name, text, again)                                             \
    RAW_ROW(name, HOSTILE_ALL, text, again, FOREVER, 0, CLOSE)
#define DRIPS(name, text, again)                                               \
    RAW_ROW(name, HOSTILE_ALL, text, again, FOREVER, DRIP_MS, CLOSE)
#define FILE_OF(name, header)                                                  \
    PLAY(name, HOSTILE_CALL | HOSTILE_DOCUMENT, play_file, header)
#define TENSOR(fields)             "{\"y\":{" fields "}}"
#define JSON_OF(name, fails, text) PLAY(name, fails, play_json, text)
#define LARGE(name, fails, parts)  PLAY(name, fails, play_large, parts)

static const struct hostile_behaviour table[] = {
    /* connections */
    SAYS("silence", "", HOLD),
    SAYS("close", "", CLOSE),
    SAYS("reset", "", RESET),
    SAYS("reset_in_head", "HTTP/1.1 200 OK\r\nX", RESET),
    SAYS("reset_in_body", OK "Content-Length: 1000\r\n\r\n{", RESET),
    SAYS("close_in_head", "HTTP/1.1 200 OK\r\nX", CLOSE),
    SAYS("close_in_body", OK "Content-Length: 1000\r\n\r\n{", CLOSE),
    SAYS("close_in_chunk", CHUNKED "ff\r\n{", CLOSE),
    SAYS("silence_in_head", "HTTP/1.1 200 OK\r\nX", HOLD),
    SAYS("silence_in_body", OK "Content-Length: 1000\r\n\r\n{", HOLD),
    DRIPS("drip_head", OK "X: ", "a"),
    DRIPS("drip_body", OK "Content-Length: 1000000\r\n\r\n", " "),
    DRIPS("drip_chunks", CHUNKED, "1\r\n \r\n"),
    DRIPS("drip_interim", "", "HTTP/1.1 100 Continue\r\n\r\n"),
    PLAY("early_answers", 0, play_early, NULL),
    PLAY("tls_garbage", HOSTILE_ALL, play_tls, NULL),
    /* framing */
    REPEATS("endless_body", OK "\r\n", K256),
    REPEATS("endless_chunks", CHUNKED, "100\r\n" K256 "\r\n"),
    REPEATS("endless_of_length", OK "Content-Length: 1099511627776\r\n\r\n",
            K256),
    REPEATS("endless_status_line", "HTTP/1.1 200 ", K256),
    REPEATS("endless_header", OK "X: ", K256),
    REPEATS("endless_headers", OK, "X: " K16 "\r\n"),
    REPEATS("endless_interim", "", "HTTP/1.1 100 Continue\r\n\r\n"),
    REPEATS("endless_hints", "", "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"),
    REPEATS("endless_chunk_extension", CHUNKED "5;", K256),
    REPEATS("endless_trailers", CHUNKED "0\r\n", "X: " K16 "\r\n"),
    REPEATS("endless_folding", OK "X: y\r\n", " " K16 "\r\n"),
    RAW_ROW("header_of_3_mb", HOSTILE_ALL, OK "X: ", K256, 3 << 12, 0, CLOSE),
    SAYS("length_of_2_to_62", OK "Content-Length: 4611686018427387904\r\n\r\n{",
         HOLD),
    SAYS("length_overflows",
         OK "Content-Length: 99999999999999999999999\r\n\r\n{", HOLD),
    SAYS("length_negative", OK "Content-Length: -5\r\n\r\n{", HOLD),
    HOLDS("length_garbage", OK "Content-Length: 0x5\r\n\r\n{"),
    SAYS("chunk_garbage", CHUNKED "zz\r\n{}\r\n0\r\n\r\n", HOLD),
    SAYS("chunk_negative", CHUNKED "-5\r\n{}\r\n0\r\n\r\n", HOLD),
    REPEATS("chunk_of_2_to_64", CHUNKED "FFFFFFFFFFFFFFFF\r\n", K256),
    SAYS("chunk_without_end", CHUNKED "2\r\n{}0\r\n\r\n", HOLD),
    SAYS("nul_in_header", OK "X: a\0b\r\nContent-Length: 9\r\n\r\n{", CLOSE),
    SAYS("nul_in_status", "HTTP/1.1 2\0000 OK\r\nContent-Length: 9\r\n\r\n{",
         CLOSE),
    SAYS("status_of_letters", "HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}",
         CLOSE),
    SAYS("status_0", "HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\n{}", CLOSE),
    SAYS("status_999", "HTTP/1.1 999 " RAW "\r\nContent-Length: 2\r\n\r\n{}",
         CLOSE),
    SAYS("switching_protocols", "HTTP/1.1 101 OK\r\nUpgrade: x\r\n\r\n{}",
         HOLD),
    SAYS("version_of_the_future",
         "HTTP/7.3 200 OK\r\nContent-Length: 9\r\n\r\n{}", CLOSE),
    SAYS("not_http", "SSH-2.0-OpenSSH" RAW "\r\n", HOLD),
    SAYS("no_head", "<html>" RAW "</html>\r\n\r\n", CLOSE),
    /* refusals */
    SAYS("redirect_to_file",
         "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n"
         "Content-Length: 0\r\n\r\n",
         CLOSE),
    PLAY("redirect_to_host", HOSTILE_ALL, play_redirect, NULL),
    SAYS("error_raw",
         "HTTP/1.1 400 No\r\nConnection: close\r\n\r\n{\"error\":\"" RAW "\"}",
         CLOSE),
    SAYS("error_escaped",
         "HTTP/1.1 400 No\r\nConnection: close\r\n\r\n{\"error\":\"" ESCAPED
         "\"}",
         CLOSE),
    SAYS("error_html",
         "HTTP/1.1 502 No\r\nConnection: close\r\n\r\n<html>" RAW "\n</html>",
         CLOSE),
    SAYS("error_401",
         "HTTP/1.1 401 No\r\nConnection: close\r\n\r\n{\"error\":\"" RAW "\"}",
         CLOSE),
    SAYS("error_of_a_number",
         "HTTP/1.1 400 No\r\nConnection: close\r\n\r\n{\"error\":5}", CLOSE),
    SAYS("error_without_words",
         "HTTP/1.1 500 " RAW "\r\nContent-Length: 0\r\n\r\n", CLOSE),
    LARGE("error_of_megabytes", HOSTILE_ALL, "502 No|<html>|<p>" RAW "</p>|"),
    LARGE("error_deep", HOSTILE_ALL, "400 No|{\"error\":|" DEEP16 "|"),
    REPEATS("error_endless", "HTTP/1.1 500 No\r\n\r\n", "<p>" K256 "</p>"),
    SAYS("retry_in_30_years",
         "HTTP/1.1 503 Busy\r\nRetry-After: 1000000000\r\nContent-Length: 0"
         "\r\n\r\n",
         CLOSE),
    SAYS("retry_overflows",
         "HTTP/1.1 503 Busy\r\nRetry-After: 99999999999999999999\r\n"
         "Content-Length: 0\r\n\r\n",
         CLOSE),
    SAYS("retry_at_once",
         "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
         CLOSE),
    /* files */
    HOLDS("file_of_nothing", OK "Content-Length: 0\r\n\r\n"),
    FILE_OF("file_without_tensors", "{}"),
    FILE_OF("file_of_an_array", "[]"),
    FILE_OF("file_unended", "{\"y\":"),
    FILE_OF("file_deep", "{\"y\":" DEEP256 DEEP256 DEEP256 DEEP256),
    FILE_OF("file_past_its_end",
            TENSOR("\"dtype\":\"F32\",\"shape\":[1,1000000000],"
                   "\"data_offsets\":[0,4000000000]")),
    FILE_OF("file_offsets_reversed",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]")),
    FILE_OF("file_offsets_negative",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]")),
    FILE_OF("file_offsets_of_text",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":\"016\"")),
    FILE_OF("file_offsets_of_fractions",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4],"
                   "\"data_offsets\":[0.5,16.5]")),
    FILE_OF("file_overlaps",
            "{\"y\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
            "\"z\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"),
    FILE_OF("file_with_a_hole",
            TENSOR("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]")),
    FILE_OF("file_of_one_name_twice",
            "{\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
            "\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}"),
    FILE_OF("file_dims_overflow",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                   "\"data_offsets\":[0,16]")),
    FILE_OF("file_dims_negative", TENSOR("\"dtype\":\"F32\",\"shape\":[-2,-2],"
                                         "\"data_offsets\":[0,16]")),
    FILE_OF("file_dims_of_text", TENSOR("\"dtype\":\"F32\",\"shape\":[\"4\"],"
                                        "\"data_offsets\":[0,16]")),
    FILE_OF("file_dims_of_bools", TENSOR("\"dtype\":\"F32\",\"shape\":[true,4],"
                                         "\"data_offsets\":[0,16]")),
    FILE_OF("file_dims_infinite", TENSOR("\"dtype\":\"F32\",\"shape\":[1e999],"
                                         "\"data_offsets\":[0,16]")),
    FILE_OF("file_rank_40",
            TENSOR("\"dtype\":\"F32\",\"shape\":[4,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                   "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
                   "\"data_offsets\":[0,16]")),
    FILE_OF("file_dtype_unknown",
            TENSOR("\"dtype\":\"" ESCAPED "\",\"shape\":[4],"
                   "\"data_offsets\":[0,16]")),
    FILE_OF("file_dtype_of_a_list",
            TENSOR("\"dtype\":[],\"shape\":[4],\"data_offsets\":[0,16]")),
    FILE_OF("file_without_fields", "{\"y\":{}}"),
    FILE_OF("file_entry_of_text", "{\"" RAW "\":\"" RAW "\"}"),
    FILE_OF("file_name_controls",
            "{\"\\u001b[31m\":{\"dtype\":\"F32\",\"shape\":[4],"
            "\"data_offsets\":[0,16]}}"),
    FILE_OF("file_name_of_2048_bytes",
            "{\"" K256 K256 K256 K256 K256 K256 K256 K256
            "\":{\"dtype\":\"F32\",\"shape\":[4],"
            "\"data_offsets\":[0,16]}}"),
    PLAY("file_name_c1", HOSTILE_DOCUMENT, play_file,
         "{\"\xc2\x9b"
         "31m\xe2\x80\xae"
         "evil\":{\"dtype\":\"F32\",\"shape\":[4],"
         "\"data_offsets\":[0,16]}}"),
    PLAY("file_name_of_a_path", HOSTILE_DOCUMENT, play_file,
         "{\"../../evil\":{\"dtype\":\"F32\",\"shape\":[4],"
         "\"data_offsets\":[0,16]}}"),
    PLAY("file_unaligned", HOSTILE_DOCUMENT, play_file,
         "{ \"y\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"),
    FILE_OF("file_metadata_of_numbers", "{\"__metadata__\":{\"a\":5}}"),
    PLAY("file_of_2000_tensors", HOSTILE_CALL | HOSTILE_DOCUMENT,
         play_large_header, NULL),
    HOLDS("file_header_of_2_to_63",
          OK "Content-Length: 16\r\n\r\n"
             "\xff\xff\xff\xff\xff\xff\xff\x7f{}      "),
    HOLDS("file_shorter_than_a_length", OK "Content-Length: 3\r\n\r\n\1\0\0"),
    /* documents */
    JSON_OF("json_wrong_types", HOSTILE_CALL,
            "{\"regions\":5,\"tables\":{\"a\":[1]},\"devices\":\"x\","
            "\"name\":[]}"),
    JSON_OF("json_of_text", HOSTILE_CALL | HOSTILE_DOCUMENT, "\"" ESCAPED "\""),
    JSON_OF("json_rows_of_anything", HOSTILE_CALL,
            "{\"regions\":[{\"name\":\"r\",\"shape\":{},\"dtype\":5},7,null,"
            "[[]]],\"tables\":[null],\"devices\":[{}]}"),
    JSON_OF("json_controls", HOSTILE_CALL,
            "{\"" ESCAPED "\":[{\"" ESCAPED "\":\"" ESCAPED "\"}],\"regions\":"
            "[{\"name\":\"" ESCAPED "\",\"doc\":\"" ESCAPED "\"},{\"a\":{\""
            "" ESCAPED "\":\"" RAW "\"}}],\"b\":[\"" RAW "\"],\"c\":\"" RAW
            "\",\"" RAW "\":1e999}"),
    JSON_OF("table_of_2_to_53_rows", HOSTILE_CALL,
            "{\"name\":\"t\",\"theta\":1e4,\"head_dim\":64,"
            "\"rotary_dim\":64,\"rows\":9007199254740991}"),
    JSON_OF("table_of_2_to_24_rows", HOSTILE_CALL,
            "{\"name\":\"t\",\"theta\":1e4,\"head_dim\":64,"
            "\"rotary_dim\":64,\"rows\":16777216}"),
    LARGE("json_deep", HOSTILE_CALL | HOSTILE_DOCUMENT, "200 OK||" DEEP16 "|"),
    LARGE("json_of_many_numbers", HOSTILE_CALL,
          "200 OK|{\"regions\":[0|,0,0,0,0,0,0,0,0|]}"),
    LARGE("json_of_many_objects", HOSTILE_CALL,
          "200 OK|{\"regions\":[{}|,{},{},{},{}|]}"),
    LARGE("json_of_many_columns", HOSTILE_CALL,
          "200 OK|{\"regions\":[{\"name\":\"r\"|,\"a\":1,\"b\":2|}]}"),
    LARGE("json_of_a_wide_cell", HOSTILE_CALL,
          "200 OK|{\"regions\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},"
          "{\"a\":\"|" K256 "|\",\"b\":\"\"}]}"),
    LARGE("json_of_a_large_number", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK|{\"regions\":[{\"name\":\"r\",\"shape\":[|99999999999999|]"),
    /* metrics */
    JSON_OF("metrics_controls", HOSTILE_CALL | HOSTILE_DOCUMENT,
            "roped_build_info{version=\"" RAW "\",backend=\"" RAW "\"} 1\n"
            "roped_lanes{device=\"0\",state=\"busy\"} nan\n"
            "roped_queue_depth 1e999\nroped_pool_bytes{state=\"used\"} inf\n"
            "process_start_time_seconds nan\n" RAW " " RAW "\n"),
    LARGE("metrics_many", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK||roped_requests_total{op=\"rmsnorm\"} 1\n|"),
    LARGE("metrics_of_many_buckets", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK||roped_request_duration_seconds_bucket{op=\"rope\",le=\"1\"}"
          " 1\n|"),
    LARGE("metrics_of_empty_lines", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK||\n|"),
    LARGE("metrics_of_many_labels", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK|roped_build_info{|a=\"b\",|c=\"d\"} 1\n"),
    LARGE("metrics_of_spaces", HOSTILE_CALL | HOSTILE_DOCUMENT,
          "200 OK|||\n 1\n 1\n"),
    /* what a head says of an answer */
    PLAY("gzip_bomb", HOSTILE_CALL | HOSTILE_DOCUMENT, play_bomb,
         "200 OK\r\nContent-Encoding: gzip"),
    PLAY("gzip_transfer", HOSTILE_CALL | HOSTILE_DOCUMENT, play_bomb,
         "200 OK\r\nTransfer-Encoding: gzip"),
    PLAY("good", 0, play_good, ""),
    PLAY("timing_garbage", 0, play_good,
         "\r\nServer-Timing: queue;dur=nan, plan;dur=1e999, kernel;dur=" RAW
         ", d2h;dur=, receive;dur=-5"),
    PLAY("type_lies", 0, play_good, "\r\nContent-Type: text/html; " RAW),
};
enum { N_BEHAVIOURS = sizeof table / sizeof *table };

const struct hostile_behaviour *hostile_at(int i)
{
    return i < N_BEHAVIOURS ? &table[i] : NULL;
}

const char *hostile_name(const struct hostile_behaviour *behaviour)
{
    return behaviour->name;
}

unsigned hostile_fails(const struct hostile_behaviour *behaviour)
{
    return behaviour->fails;
}

/* --------------------------------------------------------------- the server */

/* Reads a request, its body as long as it says. */
static bool read_request(struct peer *peer)
{
    static const char length_name[] = "Content-Length: ";
    struct bytes in = {0};
    char piece[PIECE_BYTES];
    size_t wanted = 1;
    while (in.n < wanted) {
        ssize_t n = recv(peer->fd, piece, sizeof piece, 0);
        if (n <= 0)
            break;
        bytes_add(&in, piece, (size_t)n);
        peer->is_tls = in.start[0] == 0x16;
        const char *head_end = strstr(in.start, "\r\n\r\n");
        const char *length = strstr(in.start, length_name);
        if (!peer->is_tls)
            wanted = head_end ? (size_t)(head_end - in.start) + 4 : in.n + 1;
        if (head_end && length && length < head_end)
            wanted += strtoul(length + sizeof length_name - 1, NULL, 10);
    }
    bool is_whole = in.n >= wanted;
    if (is_whole && !peer->is_tls)
        snprintf(peer->request, sizeof peer->request, "%.*s",
                 (int)strcspn(in.start, "\r\n"), in.start);
    bytes_free(&in);
    return is_whole;
}

/* "GET /BEHAVIOUR/v1/..." names it; a handshake is of the one with TLS. */
static const struct hostile_behaviour *asked_for(const struct peer *peer)
{
    const char *name = strstr(peer->request, " /");
    size_t bytes = name ? strcspn(name + 2, "/ ") : 0;
    for (int i = 0; i < N_BEHAVIOURS; i++)
        if (peer->is_tls ? table[i].play == play_tls
                         : bytes == strlen(table[i].name) &&
                               memcmp(name + 2, table[i].name, bytes) == 0)
            return &table[i];
    return NULL;
}

static void *serve(void *context)
{
    struct peer *peer = context;
    if (read_request(peer) && (peer->behaviour = asked_for(peer))) {
        const struct hostile_behaviour *behaviour = peer->behaviour;
        if (behaviour->play) {
            behaviour->play(peer);
        } else {
            send_bytes(peer, behaviour->start, behaviour->start_bytes);
            if (behaviour->again)
                send_again(peer, behaviour->again, behaviour->n_again,
                           behaviour->pause_ms);
            end(peer, behaviour->ending);
        }
    }
    close(peer->fd);
    free(peer);
    return NULL;
}

struct listener {
    int fd, port;
};

static void *listen_on(void *context)
{
    const struct listener *listener = context;
    for (;;) {
        pthread_t thread;
        struct peer *peer = calloc(1, sizeof *peer);
        peer->port = listener->port;
        peer->fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
        if (peer->fd < 0 || pthread_create(&thread, NULL, serve, peer)) {
            perror("a hostile connection");
            exit(EXIT_FAILURE);
        }
        pthread_detach(thread);
    }
    return NULL;
}

int hostile_start(void)
{
    static struct listener listener;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    pthread_t thread;
    listener.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener.fd, (void *)&address, sizeof address) ||
        listen(listener.fd, 64) ||
        getsockname(listener.fd, (void *)&address, &length)) {
        perror("a hostile server");
        exit(EXIT_FAILURE);
    }
    listener.port = ntohs(address.sin_port);
    if (pthread_create(&thread, NULL, listen_on, &listener)) {
        perror("a hostile server");
        exit(EXIT_FAILURE);
    }
    return listener.port;
}
