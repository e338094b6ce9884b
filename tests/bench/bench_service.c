/*
 * bench_service.c - what a running daemon takes, measured so that one number
 * can be held against another: the kinds of requests that are compared take
 * turns, in one process, over connections that stay open.
 *
 *   bench_service small PORT            an empty request, rmsnorm of 64
 *                                       elements, rope of 4 tokens
 *   bench_service large PORT PORT       64 MiB of rope, to two daemons
 *   bench_service scale PORT PORT       rope of resident regions, to a daemon
 *                                       with one device and one with several
 * Options: --seconds S (of each; 3), --tokens N, --least X: end with 1 where
 * the second daemon of scale has less than X times the rate of the first.
 */
#include "http/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    LARGE_TOKENS = 6553,     /* 64 MiB of q and k in BF16 */
    RESIDENT_TOKENS = 65536, /* 512 MiB of q in BF16 */
    PER_DEVICE = 4,          /* connections */
    ROUNDS = 3,
    MAX_SAMPLES = 1 << 20,
    BUFFER_BYTES = 1 << 20
};

struct settings {
    double seconds, least;
    int64_t tokens; /* 0: of its kind */
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench_service: %s\n", what);
    exit(EXIT_FAILURE);
}

static void *must(void *memory)
{
    if (!memory)
        die("no memory");
    return memory;
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* -------------------------------------------------------------- connections */

/* A whole request, as it is sent. */
struct message {
    char *bytes;
    size_t n;
};

static int open_connection(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die(strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_all(int fd, const struct message *message)
{
    for (size_t at = 0; at < message->n;) {
        ssize_t n =
            send(fd, message->bytes + at, message->n - at, MSG_NOSIGNAL);
        if (n <= 0)
            die("the daemon does not take a request");
        at += (size_t)n;
    }
}

/* Bytes of the body behind a complete head, or -1 where it is not complete;
 * *head_bytes is how long that is. */
static long long body_length(const char *text, size_t *head_bytes)
{
    const char *end = strstr(text, "\r\n\r\n");
    long long length = 0;
    if (!end)
        return -1;
    *head_bytes = (size_t)(end - text) + 4;
    for (const char *line = text; line < end; line = strstr(line, "\r\n") + 2)
        if (strncasecmp(line, "Content-Length:", 15) == 0)
            length = strtoll(line + 15, NULL, 10);
    return length;
}

/* Reads an answer, which must be 200, and drops it. */
static void drop_answer(int fd, char *buffer)
{
    size_t have = 0, head_bytes = 0;
    long long left = -1;
    while (left < 0) {
        ssize_t n = recv(fd, buffer + have, BUFFER_BYTES - have - 1, 0);
        if (n <= 0)
            die("the daemon has hung up");
        have += (size_t)n;
        buffer[have] = '\0';
        left = body_length(buffer, &head_bytes);
    }
    if (strncmp(buffer, "HTTP/1.1 200", 12) != 0)
        die(buffer);
    left -= (long long)(have - head_bytes);
    while (left > 0) {
        ssize_t n = recv(fd, buffer, BUFFER_BYTES, 0);
        if (n <= 0)
            die("an answer breaks off");
        left -= n;
    }
}

static double exchange(int fd, const struct message *message, char *buffer)
{
    double start = now_seconds();
    send_all(fd, message);
    drop_answer(fd, buffer);
    return now_seconds() - start;
}

/* ----------------------------------------------------------------- messages */

static struct message post(const char *path, const void *body, size_t bytes)
{
    struct message message = {must(malloc(512 + bytes)), 0};
    message.n = (size_t)snprintf(message.bytes, 512,
                                 "POST %s HTTP/1.1\r\nHost: a\r\n"
                                 "Content-Length: %zu\r\n\r\n",
                                 path, bytes);
    if (bytes)
        memcpy(message.bytes + message.n, body, bytes);
    message.n += bytes;
    return message;
}

static struct message empty_request(void)
{
    static const char text[] =
        "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n";
    struct message message = {must(malloc(sizeof text)), sizeof text - 1};
    memcpy(message.bytes, text, sizeof text);
    return message;
}

/* BF16 of magnitude 0.5 to 2. */
static uint16_t *values(size_t n)
{
    uint16_t *out = must(malloc(n * sizeof *out));
    for (size_t i = 0; i < n; i++)
        out[i] = (uint16_t)(0x3F00 + i * 2654435761u % 256);
    return out;
}

static struct message rmsnorm(int64_t h)
{
    int64_t dims[2] = {1, h};
    struct tensor_file file = {0};
    size_t bytes;
    uint16_t *x = values((size_t)h);
    file_add(&file, "x", ROPED_BF16, 2, dims, x);
    file_add(&file, "weight", ROPED_BF16, 1, &h, x);
    unsigned char *body = file_write(&file, &bytes);
    struct message message = post("/v1/rmsnorm", body, bytes);
    free(body);
    free(x);
    return message;
}

static struct message rope(int64_t tokens)
{
    int64_t q[3] = {tokens, HEADS, HEAD_DIM};
    int64_t k[3] = {tokens, KV_HEADS, HEAD_DIM};
    struct tensor_file file = {0};
    size_t bytes, n = (size_t)tokens * HEADS * HEAD_DIM;
    uint16_t *x = values(n);
    int64_t *positions = must(malloc((size_t)tokens * sizeof *positions));
    for (int64_t i = 0; i < tokens; i++)
        positions[i] = i % 4096;
    file_add(&file, "q", ROPED_BF16, 3, q, x);
    file_add(&file, "k", ROPED_BF16, 3, k, x);
    file_add(&file, "positions", ROPED_I64, 1, &tokens, positions);
    unsigned char *body = file_write(&file, &bytes);
    struct message message = post("/v1/rope", body, bytes);
    free(body);
    free(positions);
    free(x);
    return message;
}

/* ------------------------------------------------------------------ latency */

/* Requests that take turns, each on a connection of its own. */
struct turn {
    const char *name;
    int port, fd;
    struct message message;
    double *sample;
    double p50;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void take_turns(struct turn *turn, int n_turns, double seconds)
{
    char *buffer = must(malloc(BUFFER_BYTES));
    int n = 0;
    for (int i = 0; i < n_turns; i++) {
        turn[i].fd = open_connection(turn[i].port);
        turn[i].sample = must(malloc(MAX_SAMPLES * sizeof(double)));
        for (int j = 0; j < 5; j++) /* tables, arenas and inboxes are made */
            exchange(turn[i].fd, &turn[i].message, buffer);
    }
    double end = now_seconds() + seconds * n_turns;
    for (; now_seconds() < end && n < MAX_SAMPLES; n++)
        for (int i = 0; i < n_turns; i++) { /* and back: none is always first */
            struct turn *now = &turn[n % 2 ? n_turns - 1 - i : i];
            now->sample[n] = exchange(now->fd, &now->message, buffer);
        }
    for (int i = 0; i < n_turns; i++) {
        qsort(turn[i].sample, (size_t)n, sizeof(double), compare);
        turn[i].p50 = turn[i].sample[n / 2];
        printf("%-32s p10 %10.1f  p50 %10.1f  p90 %10.1f us  (%d)\n",
               turn[i].name, turn[i].sample[n / 10] * 1e6, turn[i].p50 * 1e6,
               turn[i].sample[n * 9 / 10] * 1e6, n);
        close(turn[i].fd);
        free(turn[i].sample);
        free(turn[i].message.bytes);
    }
    free(buffer);
}

static int small(int port, const struct settings *settings)
{
    struct turn turns[] = {
        {.name = "empty request", .port = port, .message = empty_request()},
        {.name = "rmsnorm bf16 1 x 64", .port = port, .message = rmsnorm(64)},
        {.name = "rope bf16 4 tokens", .port = port, .message = rope(4)}};
    take_turns(turns, 3, settings->seconds);
    printf("rope of 4 tokens - empty request: %.1f us\n",
           (turns[2].p50 - turns[0].p50) * 1e6);
    return EXIT_SUCCESS;
}

static struct server server_at(int port)
{
    struct server server = {.port = port};
    snprintf(server.url, sizeof server.url, "http://127.0.0.1:%d", port);
    return server;
}

/* Of its first device. */
static double staged_bytes(int port)
{
    static const char name[] =
        "\nroped_device_staged_bytes_total{device=\"0\"} ";
    struct server server = server_at(port);
    struct answer answer = ask(&server, "GET", "/metrics", NULL, 0, NULL);
    const char *at = strstr(answer.body, name);
    double bytes = at ? strtod(at + sizeof name - 1, NULL) : 0;
    answer_free(&answer);
    return bytes;
}

static int large(const int *port, const struct settings *settings)
{
    int64_t tokens = settings->tokens ? settings->tokens : LARGE_TOKENS;
    struct turn turns[] = {{.name = "large rope, first daemon",
                            .port = port[0],
                            .message = rope(tokens)},
                           {.name = "large rope, second daemon",
                            .port = port[1],
                            .message = rope(tokens)}};
    double mib = (double)turns[0].message.n / (1 << 20);
    take_turns(turns, 2, settings->seconds);
    printf("%.1f MiB: second / first = %.3f, difference %.1f us\n", mib,
           turns[1].p50 / turns[0].p50, (turns[1].p50 - turns[0].p50) * 1e6);
    printf("uploaded while it arrived: first %.0f, second %.0f bytes in all\n",
           staged_bytes(port[0]), staged_bytes(port[1]));
    return EXIT_SUCCESS;
}

/* --------------------------------------------------------------------- rate */

struct load {
    pthread_t thread;
    int port;
    struct message message;
    double end_seconds;
    int n_calls;
};

static void *call_until_the_end(void *context)
{
    struct load *load = context;
    char *buffer = must(malloc(BUFFER_BYTES));
    int fd = open_connection(load->port);
    for (load->n_calls = 0; now_seconds() < load->end_seconds; load->n_calls++)
        exchange(fd, &load->message, buffer);
    close(fd);
    free(buffer);
    return NULL;
}

/* Calls per second of all connections together. */
static double rate(struct load *load, int n, double seconds)
{
    double start = now_seconds();
    int n_calls = 0;
    for (int i = 0; i < n; i++) {
        load[i].end_seconds = start + seconds;
        if (pthread_create(&load[i].thread, NULL, call_until_the_end, &load[i]))
            die("no thread");
    }
    for (int i = 0; i < n; i++) {
        pthread_join(load[i].thread, NULL);
        n_calls += load[i].n_calls;
    }
    return n_calls / (now_seconds() - start);
}

static int n_devices(const struct server *server)
{
    struct answer answer = ask(server, "GET", "/v1/devices", NULL, 0, NULL);
    int n = 0;
    for (const char *at = answer.body;
         answer.code == 200 && (at = strstr(at, "\"index\":")); at++)
        n++;
    answer_free(&answer);
    if (n == 0)
        die("the daemon lists no devices");
    return n;
}

/* PER_DEVICE connections for each device, each with a region there that its
 * calls rotate in place; *n of them. */
static struct load *make_loads(int port, int64_t tokens, int *n)
{
    struct server server = server_at(port);
    char path[160];
    *n = PER_DEVICE * n_devices(&server);
    struct load *load = must(calloc((size_t)*n, sizeof *load));
    for (int i = 0; i < *n; i++) {
        snprintf(path, sizeof path,
                 "/v1/regions/scale%d?dtype=BF16&shape=%lld,%d,%d&device=%d", i,
                 (long long)tokens, HEADS, HEAD_DIM, i / PER_DEVICE);
        struct answer answer = ask(&server, "PUT", path, NULL, 0, NULL);
        if (answer.code != 201 && answer.code != 200)
            die(answer.body);
        answer_free(&answer);
        snprintf(path, sizeof path,
                 "/v1/rope?from.q=scale%d&into.q=scale%d&offset=%d", i, i, i);
        load[i].port = port;
        load[i].message = post(path, NULL, 0);
    }
    return load;
}

static void free_loads(struct load *load, int n)
{
    for (int i = 0; i < n; i++)
        free(load[i].message.bytes);
    free(load);
}

static int scale(const int *port, const struct settings *settings)
{
    int64_t tokens = settings->tokens ? settings->tokens : RESIDENT_TOKENS;
    double rates[2][ROUNDS];
    struct load *load[2];
    int n[2];
    for (int side = 0; side < 2; side++) {
        load[side] = make_loads(port[side], tokens, &n[side]);
        rate(load[side], n[side], settings->seconds / 10);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int side = 0; side < 2; side++)
            rates[side][round] =
                rate(load[side], n[side], settings->seconds / ROUNDS);
    for (int side = 0; side < 2; side++) {
        qsort(rates[side], ROUNDS, sizeof(double), compare);
        printf("%d devices, %2d connections: %9.1f calls/s (%.1f .. %.1f), "
               "%.1f GB/s read and written\n",
               n[side] / PER_DEVICE, n[side], rates[side][ROUNDS / 2],
               rates[side][0], rates[side][ROUNDS - 1],
               rates[side][ROUNDS / 2] * (double)tokens * HEADS * HEAD_DIM * 4 *
                   1e-9);
        free_loads(load[side], n[side]);
    }
    double ratio = rates[1][ROUNDS / 2] / rates[0][ROUNDS / 2];
    printf("second / first = %.3f, %lld tokens resident\n", ratio,
           (long long)tokens);
    return ratio >= settings->least ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct settings settings = {.seconds = 3};
    int port[2] = {0}, n_ports = 0;
    for (int i = 2; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--seconds") == 0 && has_value)
            settings.seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--tokens") == 0 && has_value)
            settings.tokens = strtoll(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--least") == 0 && has_value)
            settings.least = strtod(argv[++i], NULL);
        else if (n_ports < 2)
            port[n_ports++] = (int)strtol(argv[i], NULL, 10);
    }
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "small") == 0 && n_ports == 1)
        return small(port[0], &settings);
    if (strcmp(what, "large") == 0 && n_ports == 2)
        return large(port, &settings);
    if (strcmp(what, "scale") == 0 && n_ports == 2)
        return scale(port, &settings);
    fprintf(stderr, "usage: bench_service small PORT | large PORT PORT | scale "
                    "PORT PORT [--seconds 3] [--tokens N] [--least 1.9]\n");
    return 2;
}
