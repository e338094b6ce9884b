/*
 * fuzz_http.c - any bytes as what a client sends over one connection, to a
 * daemon inside this process. Promises: whatever is sent, the daemon lives;
 * every answer starts with "HTTP/1.1 " where the one before it ended; once the
 * client has nothing more to say, the connection is closed and every request is
 * over before FUZZ_HANG_MS have passed.
 */
#include "fuzz.h"

#include "exec/executor.h"
#include "http/daemon.h"
#include "log.h"
#include "metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef FUZZ_HANG_MS
#define FUZZ_HANG_MS 2000
#endif

/* silence after which the client takes it that no more is to come */
enum { PATIENCE_MS = 5 };
enum { ANSWER_BYTES = 4 << 20 };

static struct {
    struct config config;
    struct models models;
    struct executor *exec;
    struct metrics *metrics;
    struct daemon *daemon;
    struct handover before; /* none */
    uint16_t port;
} service;

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ----------------------------------------------------------------- daemon */

/* Little memory, one thread of a kind, and the shortest deadlines there are. */
static void read_config(void)
{
    static char flags[][48] = {"roped",
                               "--listen=127.0.0.1:0",
                               "--demo_models=true",
                               "--lanes=1",
                               "--queue_depth=4",
                               "--http_threads=1",
                               "--max_connections=16",
                               "--max_body_bytes=256k",
                               "--max_inflated_bytes=256k",
                               "--pool_bytes=1m",
                               "--host_bytes=4m",
                               "--device_bytes=4m",
                               "--table_budget_bytes=1m",
                               "--table_bytes=256k",
                               "--region_memory=256k",
                               "--inline_bytes=1k",
                               "--allow_client_shm=true",
                               "--shm_key_prefix=roped-fuzz-",
                               "--compress_answers=true",
                               "--queue_timeout_seconds=0.5",
                               "--header_timeout_seconds=0.3",
                               "--body_timeout_seconds=0.3",
                               "--idle_timeout_seconds=1",
                               "--allowed_hosts=*", /* seeds name many */
                               "--log_level=error"};
    enum { N_FLAGS = sizeof flags / sizeof *flags };
    char *arguments[N_FLAGS + 1] = {NULL};
    enum config_action action;
    struct roped_error err;
    for (int i = 0; i < N_FLAGS; i++)
        arguments[i] = flags[i];
    FUZZ_PROMISE(
        !config_load(&service.config, N_FLAGS, arguments, &action, &err));
}

static void start(void)
{
    const struct config *config = &service.config;
    struct roped_backend_options backend = {.n_threads = 1};
    struct roped_error err;
    struct exec_options exec = {.n_lanes = (int)config->lanes,
                                .queue_depth = (int)config->queue_depth,
                                .pool_bytes = config->pool_bytes,
                                .host_bytes = config->host_bytes,
                                .device_bytes = config->device_bytes,
                                .table_budget_bytes =
                                    config->table_budget_bytes,
                                .table_bytes = config->table_bytes,
                                .region_bytes = config->region_memory,
                                .inline_bytes = config->inline_bytes,
                                .mapped_bytes = config->mapped_bytes};
    log_set_level(log_level_from_text(config->log_level));
    FUZZ_PROMISE(
        !exec_open(&roped_backend_cpu, &backend, &exec, &service.exec, &err));
    FUZZ_PROMISE(!metrics_new(&service.models, &service.metrics, &err));
    struct daemon_options options = {.config = config,
                                     .exec = service.exec,
                                     .metrics = service.metrics,
                                     .models = &service.models,
                                     .version = "fuzz",
                                     .handover = &service.before};
    FUZZ_PROMISE(!daemon_start(&options, &service.daemon, &service.port, &err));
}

static void stop(void)
{
    exec_drain(service.exec, 0);
    daemon_stop(service.daemon);
    metrics_free(service.metrics);
    exec_close(service.exec);
}

static void start_once(void)
{
    static bool is_started;
    if (is_started)
        return;
    is_started = true;
    signal(SIGPIPE, SIG_IGN);
    read_config();
    models_init(&service.models, service.config.demo_models);
    start();
    atexit(stop);
}

/* ----------------------------------------------------------------- client */

static int open_connection(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(service.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_PROMISE(fd >= 0);
    FUZZ_PROMISE(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* Sent to the end, in as few segments as there can be, or until the daemon has
 * enough of it. */
static void send_all(int fd, const uint8_t *input, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = send(fd, input, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            return;
        input += n;
        bytes -= (size_t)n;
    }
}

/* What comes until the daemon closes; false: silence for so long. */
static bool receive(int fd, int silence_ms, char *answer, size_t *bytes)
{
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int n_ready = poll(&wait, 1, silence_ms);
        if (n_ready == 0)
            return false;
        if (n_ready < 0) /* a signal: libFuzzer looks at its clock */
            continue;
        FUZZ_PROMISE(*bytes < ANSWER_BYTES);
        ssize_t n = recv(fd, answer + *bytes, ANSWER_BYTES - *bytes, 0);
        if (n <= 0) {
            FUZZ_PROMISE(n == 0 || errno == ECONNRESET);
            return true;
        }
        *bytes += (size_t)n;
    }
}

/* Resets, so that no connection of the many lingers. */
static void close_connection(int fd)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void wait_for_requests(void)
{
    uint64_t until_ms = now_ms() + FUZZ_HANG_MS;
    while (daemon_is_busy(service.daemon)) {
        FUZZ_PROMISE(now_ms() < until_ms);
        usleep(20);
    }
}

/* ---------------------------------------------------------------- answers */

/* A header of an answer, up to its end, or NULL. */
static const char *find_header(const char *at, const char *end,
                               const char *name)
{
    for (; at < end; at++)
        if (strncasecmp(at, name, strlen(name)) == 0)
            return at + strlen(name);
    return NULL;
}

/* An answer's length, with its header, or 0: it ends with the connection. */
static size_t answer_bytes(const char *answer, const char *body)
{
    long code = strtol(answer + strlen("HTTP/1.1 "), NULL, 10);
    const char *length = find_header(answer, body, "\r\nContent-Length:");
    const char *close = find_header(answer, body, "\r\nConnection: close");
    /* libmicrohttpd 0.9.75 sends the header of its own refusals twice */
    if (code >= 400 && close)
        return 0;
    if (code < 200 || code == 204 || code == 304)
        return (size_t)(body - answer);
    FUZZ_PROMISE(length != NULL);
    return (size_t)(body - answer) + strtoull(length, NULL, 10);
}

/* Answers, one after the other; the last may be cut off. */
static void check_answers(const char *answer, size_t bytes, bool has_heads)
{
    static const char start_of_all[] = "HTTP/1.1 ";
    size_t n = sizeof start_of_all - 1;
    while (bytes > 0) {
        FUZZ_PROMISE(!memcmp(answer, start_of_all, bytes < n ? bytes : n));
        const char *body = memmem(answer, bytes, "\r\n\r\n", 4);
        if (!body || has_heads) /* answers to HEAD tell a length, and end */
            return;
        size_t length = answer_bytes(answer, body + 4);
        if (length == 0 || length > bytes)
            return;
        answer += length;
        bytes -= length;
    }
}

static bool contains(const uint8_t *input, size_t bytes, const char *word)
{
    size_t length = strlen(word);
    for (size_t i = 0; i + length <= bytes; i++)
        if (strncasecmp((const char *)input + i, word, length) == 0)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    static char answer[ANSWER_BYTES + 1];
    size_t n = 0;
    start_once();
    int fd = open_connection();
    send_all(fd, input, bytes);
    if (!receive(fd, PATIENCE_MS, answer, &n)) {
        shutdown(fd, SHUT_WR);
        FUZZ_PROMISE(receive(fd, FUZZ_HANG_MS, answer, &n));
    }
    close_connection(fd);
    answer[n] = '\0';
    check_answers(answer, n, contains(input, bytes, "HEAD"));
    wait_for_requests();
    /* what it left there would make the next input another one */
    if (contains(input, bytes, "PUT") || contains(input, bytes, "POST")) {
        stop();
        start();
    }
    return 0;
}
