/*
 * test_faults.c - the daemon with an allocation or a system call that fails,
 * each in its turn: in its start it gets ready or ends with a reason; amid
 * requests it answers or closes, and serves on; in its end it ends all the
 * same. It never hangs or crashes.
 *
 * Where a function is called more often than there is time for, the calls that
 * fail are spread evenly; each line says how many of how many were tried.
 *
 * EAGAIN of recv and send is left out: with edge-triggered epoll it means that
 * an event will follow, and an injected one has none.
 */
#include "attack/attack.h"
#include "attack/fault.h"
#include "check.h"
#include "http/service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TRIES = 100, MOST_LOG = 1 << 16 };

static const double patience_seconds = 5;

static const char *const call_names[] = {
#define X(name) #name,
    FAULT_CALLS(X)
#undef X
};

/* libmicrohttpd has no way on without epoll_ctl: it calls the daemon's panic
 * function, which ends the process with 1 and a line. */
static const struct fault {
    enum fault_call call;
    int error;
    bool may_end; /* amid requests */
} faults[] = {
    {FAULT_malloc, ENOMEM, false},
    {FAULT_calloc, ENOMEM, false},
    {FAULT_realloc, ENOMEM, false},
    {FAULT_aligned, ENOMEM, false},
    {FAULT_mmap, ENOMEM, false},
    {FAULT_mremap, ENOMEM, false},
    {FAULT_pthread_create, EAGAIN, false},
    {FAULT_fopen, EMFILE, false},
    {FAULT_socket, EMFILE, false},
    {FAULT_setsockopt, ENOBUFS, false},
    {FAULT_bind, EADDRINUSE, false},
    {FAULT_listen, EADDRINUSE, false},
    {FAULT_getsockname, ENOBUFS, false},
    {FAULT_eventfd, EMFILE, false},
    {FAULT_epoll_create1, EMFILE, false},
    {FAULT_epoll_ctl, ENOMEM, true},
    {FAULT_epoll_wait, EINTR, false},
    {FAULT_poll, EINTR, false},
    {FAULT_poll, ENOMEM, false},
    {FAULT_accept4, EMFILE, false},
    {FAULT_accept4, ECONNABORTED, false},
    {FAULT_accept4, EINTR, false},
    {FAULT_recv, ECONNRESET, false},
    {FAULT_recv, EINTR, false},
    {FAULT_send, EPIPE, false},
    {FAULT_send, EINTR, false},
    {FAULT_sendmsg, EPIPE, false},
    {FAULT_sendmsg, EINTR, false},
    {FAULT_writev, EPIPE, false},
    {FAULT_writev, EINTR, false},
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

/* The fault that is being tried, for what is said of it. */
static char trying[128];

/* ------------------------------------------------------------------- files */

static struct fault_page *page;
static char page_path[64], port_path[64], log_path[64], token_path[64];

static void make_files(void)
{
    int pid = (int)getpid();
    snprintf(page_path, sizeof page_path, "/tmp/roped_fault_%d.page", pid);
    snprintf(port_path, sizeof port_path, "/tmp/roped_fault_%d.port", pid);
    snprintf(log_path, sizeof log_path, "/tmp/roped_fault_%d.log", pid);
    snprintf(token_path, sizeof token_path, "/tmp/roped_fault_%d.token", pid);
    int fd = open(page_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int token = open(token_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *page) != 0 ||
        write(token, "secret\n", 7) != 7) {
        perror(page_path);
        exit(EXIT_FAILURE);
    }
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    close(token);
}

static void remove_files(void)
{
    unlink(page_path);
    unlink(port_path);
    unlink(log_path);
    unlink(token_path);
}

static const char *read_log(void)
{
    static char text[MOST_LOG];
    int fd = open(log_path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return text;
}

/* -------------------------------------------------------------- the daemon */

static pid_t spawn(bool has_token)
{
    const char *program = getenv("ROPED_TEST_BIN");
    const char *backend = getenv("ROPED_TEST_BACKEND");
    const char *arguments[] = {program ? program : ROPED_TEST_DAEMON,
                               "--listen",
                               "127.0.0.1:0",
                               "--backend",
                               backend ? backend : "cpu",
                               "--port_file",
                               port_path,
                               "--inline_bytes", /* so that lanes run, too */
                               "64k",
                               "--drain_idle_seconds",
                               "0.1",
                               has_token ? "--bearer_token_file" : NULL,
                               token_path,
                               NULL};
    unlink(port_path);
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (log < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(126);
    dup2(log, STDERR_FILENO);
    close(log);
    setenv(FAULT_ENVIRONMENT, page_path, 1);
    setenv("LD_PRELOAD", ROPED_TEST_FAULT, 1);
    execv(arguments[0], (char *const *)(uintptr_t)arguments);
    _exit(127);
}

static int read_port(void)
{
    char text[16] = "";
    FILE *file = fopen(port_path, "r");
    if (file && !fgets(text, sizeof text, file))
        text[0] = '\0';
    if (file)
        fclose(file);
    return (int)strtol(text, NULL, 10);
}

/* Its port once it listens; 0: it has ended, or does neither in time. */
static int await_port(pid_t pid)
{
    double until = now_seconds() + patience_seconds;
    int port = 0;
    while ((port = read_port()) == 0 && !process_is_gone(pid) &&
           now_seconds() < until)
        pause_seconds(2e-3);
    return port;
}

/* Its exit code once it has ended by itself. Fails the test, and ends it, where
 * it does not in time, and where a signal ended it. */
static int await_end(pid_t pid)
{
    double until = now_seconds() + patience_seconds;
    int status = -1;
    while (!process_is_gone(pid) && now_seconds() < until)
        pause_seconds(2e-3);
    if (!process_is_gone(pid)) {
        CHECK_FAIL("%s: the daemon hangs", trying);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return 0;
    }
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status))
        CHECK_FAIL("%s: signal %d ended the daemon; its log:\n%s", trying,
                   WTERMSIG(status), read_log());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void stop(pid_t pid)
{
    kill(pid, SIGTERM);
    int code = await_end(pid);
    if (code != 0)
        CHECK_FAIL("%s: SIGTERM ended it with %d; its log:\n%s", trying, code,
                   read_log());
}

/* ---------------------------------------------------------------- requests */

static struct request {
    const char *method, *target, *name;
    bool is_fixed; /* every 200 has the same body */
    struct bytes bytes, answer;
} requests[] = {
    {.method = "GET", .target = "/v2/health/live", .name = "health"},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm of 1 KiB", true, {0}, {0}},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm of 1 MiB", true, {0}, {0}},
    {.method = "POST", .target = "/v2/models/rmsnorm/infer", .name = "infer"},
    {.method = "PUT", .target = "/v1/regions/r", .name = "region put"},
    {"GET", "/v1/regions/r", "region get", true, {0}, {0}},
    {.method = "DELETE", .target = "/v1/regions/r", .name = "region delete"},
    {.method = "GET", .target = "/metrics", .name = "metrics"},
    {"POST", "/v1/rmsnorm?eps=0", "rmsnorm in chunks", true, {0}, {0}},
};
enum { HEALTH, SMALL, LARGE, INFER, PUT, CHUNKED = 8, N_REQUESTS };

static void make_request(struct request *request, const void *body, size_t n)
{
    bytes_format(&request->bytes,
                 "%s %s HTTP/1.1\r\nHost: localhost\r\n"
                 "Authorization: Bearer secret\r\nContent-Length: %zu\r\n\r\n",
                 request->method, request->target, n);
    bytes_add(&request->bytes, body, n);
}

/* Its body grows in the daemon, which does not know how long it will be. */
static void make_chunked(struct request *request, const unsigned char *body,
                         size_t n)
{
    enum { PIECE = 50000 };
    bytes_format(&request->bytes,
                 "%s %s HTTP/1.1\r\nHost: localhost\r\n"
                 "Authorization: Bearer secret\r\nExpect: 100-continue\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n",
                 request->method, request->target);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t piece = n - at < PIECE ? n - at : PIECE;
        bytes_format(&request->bytes, "%zx\r\n", piece);
        bytes_add(&request->bytes, body + at, piece);
        bytes_text(&request->bytes, "\r\n");
    }
    bytes_text(&request->bytes, "0\r\n\r\n");
}

static void make_requests(void)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],"
        "\"data\":[1,1,1,1]}]}";
    for (int i = 0; i < N_REQUESTS; i++) {
        size_t n = 0;
        unsigned char *body = NULL;
        if (i == SMALL || i == LARGE || i == PUT || i == CHUNKED)
            body = ones(i == LARGE || i == CHUNKED ? 1024 : 1, 256, &n);
        if (i == CHUNKED)
            make_chunked(&requests[i], body, n);
        else if (i == INFER)
            make_request(&requests[i], json, sizeof json - 1);
        else
            make_request(&requests[i], body, n);
        free(body);
    }
}

/* On a new connection, which does not make the test wait for ever. */
static struct exchange send_request(int port, const struct request *request)
{
    struct timeval limit = {(time_t)patience_seconds, 0};
    struct exchange all = {0};
    int fd = client_connect(port);
    if (fd < 0) { /* the daemon has ended */
        all.is_closed = true;
        return all;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    attack_send(fd, request->bytes.start, request->bytes.n);
    all = exchange_read(fd, 1, patience_seconds);
    close(fd);
    return all;
}

/* A fixed answer is the first one that came. */
static bool is_right(struct request *request, const struct exchange *all)
{
    if (exchange_code(all) != 200 || !request->is_fixed)
        return true;
    const struct found_answer *answer = &all->answer[0];
    if (!request->answer.start)
        bytes_add(&request->answer, answer->body, answer->body_bytes);
    return answer->body && answer->body_bytes == request->answer.n &&
           memcmp(answer->body, request->answer.start, request->answer.n) == 0;
}

/* Every request is answered, or its connection is closed. Returns how many
 * were answered with 2xx. */
static int run_script(int port)
{
    int n_ok = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        struct exchange all = send_request(port, &requests[i]);
        int code = exchange_code(&all);
        if (code == 0 && !all.is_closed)
            CHECK_FAIL("%s: no answer to %s", trying, requests[i].name);
        if (all.is_malformed || !is_right(&requests[i], &all))
            CHECK_FAIL("%s: wrong answer to %s", trying, requests[i].name);
        n_ok += code >= 200 && code < 300;
        exchange_free(&all);
    }
    return n_ok;
}

/* Are health and calls answered as without a fault? */
static bool is_served(int port)
{
    static const int most_telling[] = {HEALTH, SMALL, LARGE};
    bool is_all_right = true;
    for (int i = 0; i < 3 && is_all_right; i++) {
        struct request *request = &requests[most_telling[i]];
        struct exchange all = send_request(port, request);
        is_all_right = exchange_code(&all) == 200 && is_right(request, &all);
        exchange_free(&all);
    }
    return is_all_right;
}

static void expect_service(int port)
{
    if (!is_served(port))
        CHECK_FAIL("%s: afterwards it does not serve; its log:\n%s", trying,
                   read_log());
}

/* ------------------------------------------------------------------ faults */

/* How often a fault was tried, and what came of it. */
struct tally {
    unsigned long n_calls, n_tried, n_failed, n_ended;
};

static void disarm(void)
{
    atomic_store(&page->fail_at, 0);
}

/* From now on, the n-th call fails. */
static void arm(const struct fault *fault, unsigned long n)
{
    disarm();
    atomic_store(&page->n_failed, 0);
    atomic_store(&page->call, (int)fault->call);
    atomic_store(&page->error, fault->error);
    atomic_store(&page->fail_at, atomic_load(&page->n_calls[fault->call]) + n);
}

static void read_counts(unsigned long *counts)
{
    for (int i = 0; i < N_FAULT_CALLS; i++)
        counts[i] = atomic_load(&page->n_calls[i]);
}

static void print_tally(const char *when, const struct fault *fault,
                        const struct tally *tally)
{
    printf("%-8s %-14s %-12s tried %3lu of %4lu calls: %3lu failed, %3lu "
           "ended the daemon\n",
           when, call_names[fault->call], strerrorname_np(fault->error),
           tally->n_tried, tally->n_calls, tally->n_failed, tally->n_ended);
}

/* Tries a fault in calls 1 to n. */
static struct tally try_calls(const char *when, const struct fault *fault,
                              unsigned long n,
                              void (*try)(const struct fault *fault,
                                          unsigned long n, struct tally *tally))
{
    struct tally tally = {.n_calls = n,
                          .n_tried = n < MOST_TRIES ? n : MOST_TRIES};
    for (unsigned long i = 0; i < tally.n_tried; i++) {
        unsigned long at = 1 + i * n / tally.n_tried;
        snprintf(trying, sizeof trying, "%s: %s call %lu of %lu failed with %s",
                 when, call_names[fault->call], at, n,
                 strerrorname_np(fault->error));
        try(fault, at, &tally);
        disarm();
        tally.n_failed += atomic_load(&page->n_failed);
    }
    if (n > 0)
        print_tally(when, fault, &tally);
    return tally;
}

/* Tries every fault in the calls that were counted. A few do not come about:
 * threads call as often as their timing has it. Most must. */
static void try_all(const char *when, const unsigned long *counts,
                    void (*try)(const struct fault *fault, unsigned long n,
                                struct tally *tally))
{
    unsigned long n_tried = 0, n_failed = 0;
    for (int i = 0; i < N_FAULTS; i++) {
        struct tally tally =
            try_calls(when, &faults[i], counts[faults[i].call], try);
        n_tried += tally.n_tried;
        n_failed += tally.n_failed;
    }
    printf("%s: %lu faults in %lu tries\n", when, n_failed, n_tried);
    CHECK(n_failed > n_tried / 2);
}

/* ------------------------------------------------------------------- start */

static void expect_reason(int code)
{
    const char *log = read_log();
    const char *error = strstr(log, "error=\"");
    bool has_reason = error ? error[7] != '"' : strstr(log, "roped: ") != NULL;
    if (code <= 0 || !has_reason)
        CHECK_FAIL("%s: it ended with %d, expected another code than 0 and a "
                   "reason; its log:\n%s",
                   trying, code, log);
}

static void try_start(const struct fault *fault, unsigned long n,
                      struct tally *tally)
{
    for (int i = 0; i < N_FAULT_CALLS; i++)
        atomic_store(&page->n_calls[i], 0);
    arm(fault, n);
    pid_t pid = spawn(true);
    int port = await_port(pid);
    disarm();
    if (port == 0) {
        tally->n_ended++;
        expect_reason(await_end(pid));
        return;
    }
    expect_service(port);
    stop(pid);
}

TEST(a_fault_in_the_start_ends_it_or_not)
{
    unsigned long counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "start without a fault");
    pid_t pid = spawn(true);
    int port = await_port(pid);
    read_counts(counts);
    CHECK(port > 0);
    expect_service(port);
    stop(pid);
    try_all("start", counts, try_start);
}

/* ---------------------------------------------------------- amid requests */

static struct server server;

static void start_server(void)
{
    disarm();
    server.pid = spawn(false);
    server.port = await_port(server.pid);
    if (server.port == 0) {
        fprintf(stderr, "the daemon does not start:\n%s", read_log());
        exit(EXIT_FAILURE);
    }
    snprintf(server.url, sizeof server.url, "http://127.0.0.1:%d", server.port);
    CHECK_INT(run_script(server.port), N_REQUESTS);
}

/* The daemon has ended with this code, and may. */
static void expect_panic(const struct fault *fault, int code)
{
    const char *log = read_log();
    if (!fault->may_end || code != EXIT_FAILURE ||
        !strstr(log, "libmicrohttpd failed"))
        CHECK_FAIL("%s: the daemon ended with %d; its log:\n%s", trying, code,
                   log);
}

static void try_requests(const struct fault *fault, unsigned long n,
                         struct tally *tally)
{
    arm(fault, n);
    run_script(server.port);
    disarm();
    if (is_served(server.port))
        return;
    tally->n_ended++;
    expect_panic(fault, await_end(server.pid)); /* it is about to */
    start_server();
}

/* Calls of each function in one script, as the daemon does it when warm. */
static void count_script(unsigned long *counts)
{
    unsigned long before[N_FAULT_CALLS];
    read_counts(before);
    CHECK_INT(run_script(server.port), N_REQUESTS);
    read_counts(counts);
    for (int i = 0; i < N_FAULT_CALLS; i++)
        counts[i] -= before[i];
}

TEST(a_fault_amid_requests_is_answered_or_closes)
{
    unsigned long counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "requests without a fault");
    start_server();
    count_script(counts);
    try_all("requests", counts, try_requests);
    snprintf(trying, sizeof trying, "after all faults");
    expect_metric(&server, "roped_connections ", 1);
    stop(server.pid);
}

/* ----------------------------------------------------------------- the end */

/* One that the daemon has taken over: it has answered. */
static int connect_and_ask(void)
{
    struct bytes request = {0};
    int fd = client_connect(server.port);
    request_plain(&request, "GET", "/v2/health/live", "");
    (void)attack_send(fd, request.start, request.n);
    struct exchange all = exchange_read(fd, 1, 5);
    CHECK_INT(exchange_code(&all), 200);
    exchange_free(&all);
    bytes_free(&request);
    return fd;
}

/* A connection that is open makes it drain; the fault is armed with SIGTERM. */
static void try_end(const struct fault *fault, unsigned long n,
                    struct tally *tally)
{
    start_server();
    int fd = connect_and_ask();
    arm(fault, n);
    kill(server.pid, SIGTERM);
    int code = await_end(server.pid);
    disarm();
    close(fd);
    if (code == 0)
        return;
    tally->n_ended++;
    expect_panic(fault, code);
}

TEST(a_fault_in_the_end_does_not_keep_it)
{
    unsigned long before[N_FAULT_CALLS], counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "end without a fault");
    start_server();
    int fd = connect_and_ask();
    read_counts(before);
    stop(server.pid);
    read_counts(counts);
    close(fd);
    for (int i = 0; i < N_FAULT_CALLS; i++)
        counts[i] -= before[i];
    try_all("end", counts, try_end);
}

int main(void)
{
    double since = now_seconds();
    make_files();
    make_requests();
    RUN(a_fault_in_the_start_ends_it_or_not);
    RUN(a_fault_amid_requests_is_answered_or_closes);
    RUN(a_fault_in_the_end_does_not_keep_it);
    for (int i = 0; i < N_REQUESTS; i++) {
        bytes_free(&requests[i].bytes);
        bytes_free(&requests[i].answer);
    }
    remove_files();
    printf("%.1f s\n", now_seconds() - since);
    return check_done();
}
