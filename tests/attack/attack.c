/*
 * attack.c - raw connections, and answers found in what they brought.
 */
#include "attack/attack.h"

#include "http/service.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------- bytes */

static void bytes_reserve(struct bytes *bytes, size_t n)
{
    if (bytes->n + n + 1 <= bytes->capacity)
        return;
    bytes->capacity = 2 * (bytes->n + n + 1);
    bytes->start = realloc(bytes->start, bytes->capacity);
    if (!bytes->start) {
        fprintf(stderr, "attack: no memory\n");
        exit(EXIT_FAILURE);
    }
}

void bytes_add(struct bytes *bytes, const void *data, size_t n)
{
    bytes_reserve(bytes, n);
    if (n)
        memcpy(bytes->start + bytes->n, data, n);
    bytes->n += n;
    bytes->start[bytes->n] = '\0';
}

void bytes_text(struct bytes *bytes, const char *text)
{
    bytes_add(bytes, text, strlen(text));
}

void bytes_format(struct bytes *bytes, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    bytes_add(bytes, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->start);
    memset(bytes, 0, sizeof *bytes);
}

bool bytes_contain(const void *data, size_t n, const char *part)
{
    size_t length = strlen(part);
    const char *text = data;
    for (size_t i = 0; i + length <= n; i++)
        if (memcmp(text + i, part, length) == 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- requests */

struct http_request post_ones(int rows, int h)
{
    size_t n;
    unsigned char *body = ones(rows, h, &n);
    return request_make("POST", "/v1/rmsnorm?eps=0", "", body, n);
}

void request_ones(struct bytes *out, int rows, int h)
{
    struct http_request request = post_ones(rows, h);
    bytes_add(out, request.head, request.head_bytes);
    bytes_add(out, request.body, request.body_bytes);
    request_free(&request);
}

void request_plain(struct bytes *out, const char *method, const char *target,
                   const char *headers)
{
    bytes_format(out, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method,
                 target, headers);
}

/* ----------------------------------------------------------------- answers */

static enum found malformed(struct found_answer *out, const char *flaw)
{
    out->flaw = flaw;
    return FOUND_MALFORMED;
}

bool found_header(const struct found_answer *answer, const char *name,
                  char *value, size_t value_bytes)
{
    size_t length = strlen(name);
    const char *end = answer->head + answer->head_bytes;
    const char *line = answer->head;
    while ((line = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        line++;
        if ((size_t)(end - line) <= length || line[length] != ':' ||
            strncasecmp(line, name, length) != 0)
            continue;
        for (line += length + 1; line < end && *line == ' ';)
            line++;
        const char *stop = memchr(line, '\r', (size_t)(end - line));
        snprintf(value, value_bytes, "%.*s", stop ? (int)(stop - line) : 0,
                 line);
        return true;
    }
    return false;
}

/* The bytes of headers and their end; 0: not all there. */
static size_t head_bytes(const char *data, size_t n)
{
    const char *end = n < 4 ? NULL : memmem(data, n, "\r\n\r\n", 4);
    return end ? (size_t)(end - data) + 4 : 0;
}

/* Every header line is "token: printable". */
static bool has_good_lines(const char *head, size_t n)
{
    const char *end = head + n - 2;
    const char *line = (const char *)memchr(head, '\n', n) + 1;
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        const char *colon = memchr(line, ':', (size_t)(end - line));
        if (!stop || stop[-1] != '\r' || !colon || colon > stop ||
            colon == line)
            return false;
        for (const char *c = line; c < stop - 1; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7F)
                return false;
        line = stop + 1;
    }
    return true;
}

/* Chunks up to their end; *bytes is what they take. */
static enum found find_chunks(const char *data, size_t n, size_t *bytes)
{
    for (size_t at = 0;;) {
        const char *line = memmem(data + at, n - at, "\r\n", 2);
        char *end;
        if (!line)
            return FOUND_PART;
        unsigned long long size = strtoull(data + at, &end, 16);
        if (end != line)
            return FOUND_MALFORMED;
        at = (size_t)(line - data) + 2;
        if (size + 2 > n - at)
            return FOUND_PART;
        at += size;
        if (memcmp(data + at, "\r\n", 2) != 0)
            return FOUND_MALFORMED;
        at += 2;
        *bytes = at;
        if (size == 0)
            return FOUND_WHOLE;
    }
}

/* Finds what Content-Length or chunks announce. */
static enum found find_body(const char *data, size_t n, bool is_head,
                            struct found_answer *out)
{
    char value[64], *end;
    if (is_head || out->code < 200 || out->code == 204 || out->code == 304)
        return FOUND_WHOLE;
    if (found_header(out, "Transfer-Encoding", value, sizeof value)) {
        enum found found = find_chunks(data, n, &out->body_bytes);
        return found == FOUND_MALFORMED ? malformed(out, "chunks") : found;
    }
    if (!found_header(out, "Content-Length", value, sizeof value))
        return malformed(out, "no Content-Length");
    unsigned long long length = strtoull(value, &end, 10);
    if (*end || end == value)
        return malformed(out, "Content-Length is no number");
    out->body_bytes = length < n ? length : n;
    return length <= n ? FOUND_WHOLE : FOUND_PART;
}

/* libmicrohttpd 0.9.75 sends the headers of its own refusals twice. */
static enum found skip_repeated_head(const char *data, size_t n,
                                     struct found_answer *out)
{
    size_t more = n - out->head_bytes;
    if (more == 0 ||
        memcmp(data, data + out->head_bytes,
               more < out->head_bytes ? more : out->head_bytes) != 0)
        return FOUND_WHOLE;
    if (more < out->head_bytes)
        return FOUND_PART;
    out->head_bytes *= 2;
    return FOUND_WHOLE;
}

enum found find_answer(const char *data, size_t n, bool is_head,
                       struct found_answer *out)
{
    static const char start[] = "HTTP/1.";
    char value[64];
    memset(out, 0, sizeof *out);
    size_t known = n < sizeof start - 1 ? n : sizeof start - 1;
    if (memcmp(data, start, known) != 0)
        return malformed(out, "no status line");
    out->head = data;
    out->head_bytes = head_bytes(data, n);
    if (!out->head_bytes)
        return n > 1 << 16 ? malformed(out, "endless headers") : FOUND_PART;
    if ((data[7] != '0' && data[7] != '1') || data[8] != ' ')
        return malformed(out, "version");
    out->code = (int)strtol(data + 9, NULL, 10);
    if (out->code < 100 || out->code > 599)
        return malformed(out, "status code");
    if (!has_good_lines(data, out->head_bytes))
        return malformed(out, "header line");
    out->closes = data[7] == '0' ||
                  (found_header(out, "Connection", value, sizeof value) &&
                   strcasecmp(value, "close") == 0);
    if (!is_head && out->code >= 400 &&
        skip_repeated_head(data, n, out) == FOUND_PART)
        return FOUND_PART;
    out->body = data + out->head_bytes;
    return find_body(out->body, n - out->head_bytes, is_head, out);
}

/* ------------------------------------------------------------- connections */

bool attack_send(int fd, const void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(fd, (const char *)data + at, n - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += (size_t)sent;
    }
    return true;
}

/* Finds the answers in what has come so far. */
static void find_all(struct exchange *exchange)
{
    size_t at = 0;
    exchange->n_answers = 0;
    while (at < exchange->in.n && exchange->n_answers < EXCHANGE_ANSWERS) {
        struct found_answer *answer = &exchange->answer[exchange->n_answers];
        enum found found = find_answer(exchange->in.start + at,
                                       exchange->in.n - at, false, answer);
        exchange->is_malformed |= found == FOUND_MALFORMED;
        if (found != FOUND_WHOLE)
            return;
        at += answer->head_bytes + answer->body_bytes;
        exchange->n_answers += answer->code >= 200;
    }
}

struct exchange exchange_read(int fd, int n, double seconds)
{
    enum { PIECE = 1 << 16 };
    struct exchange all = {0};
    double until = now_seconds() + seconds;
    bytes_add(&all.in, "", 0);
    while (!all.is_closed && !all.is_malformed && all.n_answers < n) {
        struct pollfd wait = {fd, POLLIN, 0};
        double left = until - now_seconds();
        if (left <= 0)
            break;
        if (poll(&wait, 1, (int)(left * 1e3) + 1) <= 0)
            continue;
        bytes_reserve(&all.in, PIECE);
        ssize_t got = recv(fd, all.in.start + all.in.n, PIECE, 0);
        if (got <= 0) {
            all.is_closed = true;
            break;
        }
        all.in.n += (size_t)got;
        all.in.start[all.in.n] = '\0';
        find_all(&all);
    }
    find_all(&all); /* the bytes may have moved since */
    return all;
}

struct exchange exchange(int port, const void *data, size_t n_bytes,
                         int n_answers, double seconds)
{
    struct exchange none = {0};
    int fd = client_connect(port);
    if (fd < 0)
        return none;
    attack_send(fd, data, n_bytes);
    struct exchange all = exchange_read(fd, n_answers, seconds);
    close(fd);
    return all;
}

void exchange_free(struct exchange *exchange)
{
    bytes_free(&exchange->in);
    exchange->n_answers = 0;
}

int exchange_code(const struct exchange *exchange)
{
    return exchange->n_answers > 0 ? exchange->answer[0].code : 0;
}

int attack_get(int port, const char *path, double seconds)
{
    struct bytes request = {0};
    request_plain(&request, "GET", path, "");
    struct exchange all = exchange(port, request.start, request.n, 1, seconds);
    int code = exchange_code(&all);
    exchange_free(&all);
    bytes_free(&request);
    return code;
}

/* ------------------------------------------------------------------ daemon */

size_t process_memory(pid_t pid)
{
    char line[256];
    size_t kib = 0;
    snprintf(line, sizeof line, "/proc/%d/status", (int)pid);
    FILE *file = fopen(line, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtoul(line + 6, NULL, 10);
    if (file)
        fclose(file);
    return kib << 10;
}

bool process_is_gone(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid == pid;
}

/* --------------------------------------------------------------- arguments */

double argument(int argc, char **argv, const char *name, double otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return strtod(argv[i + 1], NULL);
    return otherwise;
}

double argument_seconds(int argc, char **argv, double otherwise)
{
    const bool is_quick = getenv("ROPED_TEST_QUICK");
    return argument(argc, argv, "--seconds", otherwise / (is_quick ? 3 : 1));
}
