/*
 * test_load.c - many clients at once: each gets its own answer, a full queue
 * refuses instead of stalling, slow clients hold nobody up, and a server that
 * is told to stop loses no answer.
 *
 * The counters are shared by the client threads of one test at a time.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_CLIENTS = 8 };
static atomic_int n_right, n_wrong, n_refused;
static atomic_bool is_over;
static struct server server;

static void start(const char *const *flags)
{
    atomic_store(&n_right, 0);
    atomic_store(&n_wrong, 0);
    atomic_store(&n_refused, 0);
    atomic_store(&is_over, false);
    server_start(&server, flags);
}

static void run_clients(void *(*run)(void *))
{
    pthread_t thread[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&thread[i], NULL, run, (void *)(intptr_t)(i + 1));
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(thread[i], NULL);
}

/* -------------------------------------------------------- their own answers */

static void *mixed_sizes(void *context)
{
    int64_t seed = (int64_t)(intptr_t)context;
    for (int i = 0; i < check_cases(60); i++) {
        int64_t rows = i % 10 == 0 ? 2000 : 1 + (seed * 7 + i) % 50;
        if (call_ones(&server, rows, 256))
            atomic_fetch_add(&n_right, 1);
        else
            atomic_fetch_add(&n_wrong, 1);
    }
    return NULL;
}

TEST(many_clients_at_once_get_their_own_answers)
{
    const char *flags[] = {"--lanes", "2", "--inline_bytes", "8k", NULL};
    start(flags);
    run_clients(mixed_sizes);
    CHECK_INT(atomic_load(&n_right), N_CLIENTS * check_cases(60));
    CHECK_INT(atomic_load(&n_wrong), 0);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_stop(&server));
}

TEST(a_keep_alive_connection_serves_ten_thousand_calls)
{
    size_t bytes;
    unsigned char *body = ones(4, 64, &bytes);
    int n_good = 0, n_calls = check_cases(10000);
    start(NULL);
    for (int i = 0; i < n_calls; i++) {
        struct answer answer =
            ask(&server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
        n_good += answer.code == 200;
        answer_free(&answer);
    }
    CHECK_INT(n_good, n_calls);
    CHECK_DOUBLE(metric(&server, "roped_connections "), 1, 0);
    free(body);
    CHECK(server_stop(&server));
}

/* ----------------------------------------------------------- a full queue */

/* rope with every angle computed: far more work than bytes. */
static unsigned char *heavy_body(size_t *bytes)
{
    int64_t dims[3] = {8192, 1, 128};
    float *q = calloc((size_t)(dims[0] * dims[2]), sizeof *q);
    struct tensor_file file = {0};
    file_add(&file, "q", ROPED_F32, 3, dims, q);
    unsigned char *body = file_write(&file, bytes);
    free(q);
    return body;
}

static void *until_one_is_refused(void *context)
{
    size_t bytes;
    unsigned char *body = heavy_body(&bytes);
    double start_seconds = now_seconds();
    (void)context;
    while (!atomic_load(&is_over) && now_seconds() - start_seconds < 60) {
        struct answer answer =
            ask(&server, "POST", "/v1/rope?angles=compute&angle_precision=f64",
                body, bytes, NULL);
        const char *retry = answer_header(&answer, "Retry-After");
        if (answer.code == 200) {
            atomic_fetch_add(&n_right, 1);
        } else if (answer.code == 503 && retry && strtol(retry, NULL, 10) > 0 &&
                   strstr(answer.body, "Exceeds maximum queue size")) {
            atomic_fetch_add(&n_refused, 1);
            atomic_store(&is_over, true);
        } else {
            fprintf(stderr, "answered %d %.200s\n", answer.code,
                    answer.code == 200 ? "" : answer.body);
            atomic_fetch_add(&n_wrong, 1);
        }
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(a_full_queue_is_503_with_retry_after)
{
    const char *flags[] = {"--lanes",
                           "1",
                           "--queue_depth",
                           "1",
                           "--cpu_threads",
                           "1",
                           "--inline_bytes",
                           "0",
                           NULL};
    start(flags);
    run_clients(until_one_is_refused);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_right) >= 1);
    CHECK(atomic_load(&n_refused) >= 1);
    CHECK(metric(&server, "roped_http_responses_total{code=\"503\"}") >= 1);
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
}

/* ------------------------------------------------------------ slow clients */

/* Connections that have sent half a body, all of them accepted. */
static void open_stuck(int *fd, int n)
{
    static const char half[] =
        "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 100000\r\n\r\nhalf";
    for (int i = 0; i < n; i++)
        fd[i] = open_raw(&server, half, sizeof half - 1);
    while (metric(&server, "roped_connections ") < n + 1)
        pause_seconds(0.02);
}

static void close_stuck(const int *fd, int n)
{
    for (int i = 0; i < n; i++)
        close(fd[i]);
}

/* More stuck bodies than the server has threads and lanes. */
TEST(clients_that_stall_hold_nobody_up)
{
    enum { N_STUCK = 24 };
    const char *flags[] = {"--http_threads",         "1",   "--lanes", "1",
                           "--body_timeout_seconds", "600", NULL};
    int stuck[N_STUCK];
    start(flags);
    open_stuck(stuck, N_STUCK);
    for (int i = 0; i < 100; i++)
        CHECK(call_ones(&server, 64, 256));
    expect_metric(&server, "roped_connections ", N_STUCK + 1);
    close_stuck(stuck, N_STUCK);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_stop(&server));
}

/* --------------------------------------------------- who serves connections */

/* What a descriptor of the server is: "socket:[...]", "anon_inode:...". */
static void name_of(int fd, char *name, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)server.pid, fd);
    ssize_t n = readlink(path, name, bytes - 1);
    name[n > 0 ? n : 0] = '\0';
}

/* Sockets that an epoll descriptor of the server watches. */
static int n_watched(int epoll)
{
    char path[64], line[128], name[64];
    int fd, n = 0;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", (int)server.pid, epoll);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "tfd: %d", &fd) != 1)
            continue;
        name_of(fd, name, sizeof name);
        n += strncmp(name, "socket:", 7) == 0;
    }
    if (file)
        fclose(file);
    return n;
}

/* Sockets that each of the server's epoll descriptors watches, together; and
 * how many of these watch any. */
static int count_watched(int *n_threads, int *least)
{
    enum { N_FDS = 128 };
    char name[64];
    int n_all = 0;
    *n_threads = 0;
    *least = INT_MAX;
    for (int fd = 0; fd < N_FDS; fd++) {
        name_of(fd, name, sizeof name);
        int n = strcmp(name, "anon_inode:[eventpoll]") == 0 ? n_watched(fd) : 0;
        n_all += n;
        *n_threads += n > 0;
        *least = n > 0 && n < *least ? n : *least;
    }
    return n_all;
}

/* Each thread has an epoll descriptor of its own. Connections have descriptors
 * in a row, but for those that the server opens for a moment: about evenly.
 * They are accepted, and count, a moment before a thread watches them. */
TEST(connections_are_dealt_out_to_all_threads)
{
    enum { N_THREADS = 4, N_CONNECTIONS = 16 };
    const char *flags[] = {"--http_threads", "4", "--body_timeout_seconds",
                           "600", NULL};
    const int expected = N_CONNECTIONS + 1; /* with that of metrics */
    int stuck[N_CONNECTIONS], n_threads, least, n_all = 0;
    start(flags);
    open_stuck(stuck, N_CONNECTIONS);
    for (int i = 0; i < 500 && n_all != expected; i++) {
        pause_seconds(0.01);
        n_all = count_watched(&n_threads, &least);
    }
    CHECK_INT(n_all, expected);
    CHECK_INT(n_threads, N_THREADS);
    CHECK(least >= N_CONNECTIONS / N_THREADS / 2);
    close_stuck(stuck, N_CONNECTIONS);
    CHECK(server_stop(&server));
}

/* Reads an answer to a request for health, waiting for up to 5 seconds. */
static bool is_answered(int fd)
{
    char text[512];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, 5000) > 0 && recv(fd, text, sizeof text, 0) > 0;
}

/* Requests that all wait for a thread when it looks: the server is stopped
 * while they are sent. */
TEST(as_many_as_wait_at_once_are_served)
{
    enum { MOST = 256 };
    static const char request[] =
        "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const char *flags[] = {"--http_threads", "1", NULL};
    int fd[MOST], n_answered = 0;
    if (getenv("ROPED_TEST_TLS"))
        return; /* raw connections */
    start(flags);
    for (int n = 0; n < MOST; n += MOST / 2) {
        for (int i = n; i < n + MOST / 2; i++) {
            fd[i] = open_raw(&server, request, sizeof request - 1);
            CHECK(is_answered(fd[i]));
        }
        kill(server.pid, SIGSTOP);
        CHECK_INT(waitpid(server.pid, NULL, WUNTRACED), server.pid);
        for (int i = 0; i < n + MOST / 2; i++)
            CHECK(send(fd[i], request, sizeof request - 1, 0) > 0);
        kill(server.pid, SIGCONT);
        for (int i = 0; i < n + MOST / 2 && is_answered(fd[i]); i++)
            n_answered++;
    }
    CHECK_INT(n_answered, MOST / 2 + MOST);
    close_stuck(fd, MOST);
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------------- the end */

static void *stop_amid_calls(void *context)
{
    double start_seconds = now_seconds();
    (void)context;
    while (atomic_load(&n_right) < 5 * N_CLIENTS &&
           now_seconds() - start_seconds < 30)
        pause_seconds(0.01);
    kill(server.pid, SIGTERM);
    return NULL;
}

/*
 * Calls until the server says goodbye. Without a drain delay the last thing
 * that a client sees is a 503 or a connection that does not open; an answer
 * that breaks off is wrong, and so is one with other values.
 */
static void *until_the_server_goes(void *context)
{
    size_t bytes;
    int64_t rows = 300 * (int64_t)(intptr_t)context;
    unsigned char *body = ones(rows, 512, &bytes);
    for (bool is_open = true; is_open;) {
        struct answer answer =
            ask(&server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
        const char *connection = answer_header(&answer, "Connection");
        is_open = answer.code == 200 &&
                  !(connection && strcasecmp(connection, "close") == 0);
        if (answer.code == 200 && are_ones(&answer, rows * 512))
            atomic_fetch_add(&n_right, 1);
        else if (answer.code == 503 || answer.code == 0)
            atomic_fetch_add(&n_refused, 1);
        else
            atomic_fetch_add(&n_wrong, 1);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

static void stop_under_load(const char *const *flags)
{
    pthread_t stopper;
    start(flags);
    pthread_create(&stopper, NULL, stop_amid_calls, NULL);
    run_clients(until_the_server_goes);
    pthread_join(stopper, NULL);
    CHECK(atomic_load(&n_right) >= 5 * N_CLIENTS);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(server_stop(&server));
}

TEST(sigterm_under_load_breaks_off_no_answer)
{
    stop_under_load(NULL);
}

/* A client that minds 'Connection: close' sees no failure at all. */
TEST(a_drain_delay_answers_every_call)
{
    const char *flags[] = {"--drain_delay_seconds", "2", NULL};
    stop_under_load(flags);
    CHECK_INT(atomic_load(&n_refused), 0);
}

TEST(while_draining_the_server_is_live_and_not_ready)
{
    const char *flags[] = {"--drain_delay_seconds", "2", NULL};
    start(flags);
    CHECK(server_is_alive(&server));
    kill(server.pid, SIGTERM);
    double start_seconds = now_seconds();
    while (server_is_alive(&server) && now_seconds() - start_seconds < 1)
        pause_seconds(0.02);
    expect_code(get(&server, "/v2/health/ready"), 503, "false", "ready");
    expect_code(get(&server, "/v2/health/live"), 200, "true", "live");
    CHECK(call_ones(&server, 4, 64));
    CHECK(server_stop(&server));
}
