/*
 * test_faults.c - the daemon with an allocation or a system call that fails,
 * each in its turn: in its start it gets ready or ends with a reason; amid
 * requests it answers or closes, and serves on; in its end it ends all the
 * same. It never hangs or crashes.
 *
 * Where a function is called more often than there is time for, the calls that
 * fail are spread evenly; each line says how many of how many were tried.
 *
 * EAGAIN of recv and send is left out, and so is that they move less than they
 * could: with edge-triggered epoll it means that an event will follow, and an
 * injected one has none. EIO of an eventfd is left out: there is none, and
 * libmicrohttpd panics. EINTR of futex is left out: glibc aborts.
 */
#include "attack/attack.h"
#include "attack/fault.h"
#include "attack/fault_script.h"
#include "check.h"
#include "http/service.h"
#include "shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_LOG = 1 << 16 };

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
    {FAULT_map_file, ENOMEM, false},
    {FAULT_mremap, ENOMEM, false},
    {FAULT_pthread_create, EAGAIN, false},
    {FAULT_fopen, EMFILE, false},
    {FAULT_fopen, EINTR, false},
    {FAULT_open, EMFILE, false},
    {FAULT_open, ENFILE, false},
    {FAULT_open, EINTR, false},
    {FAULT_close, EINTR, false},
    {FAULT_read, EIO, false},
    {FAULT_read, EINTR, false},
    {FAULT_read, FAULT_SHORT, false},
    {FAULT_pread, EIO, false},
    {FAULT_pread, EINTR, false},
    {FAULT_pread, FAULT_SHORT, false},
    {FAULT_log, EINTR, false}, /* before those that lose a line */
    {FAULT_log, FAULT_SHORT, false},
    {FAULT_log, EIO, false},
    {FAULT_log, ENOSPC, false},
    {FAULT_store, ENOSPC, false},
    {FAULT_store, EINTR, false},
    {FAULT_store, FAULT_SHORT, false},
    {FAULT_write, EINTR, false},
    {FAULT_memfd_create, EMFILE, false},
    {FAULT_shm_open, EMFILE, false},
    {FAULT_shm_open, EINTR, false},
    {FAULT_socket, EMFILE, false},
    {FAULT_setsockopt, ENOBUFS, false},
    {FAULT_bind, EADDRINUSE, false},
    {FAULT_listen, EADDRINUSE, false},
    {FAULT_getsockname, ENOBUFS, false},
    {FAULT_eventfd, EMFILE, false},
    {FAULT_epoll_create1, EMFILE, false},
    {FAULT_epoll_ctl, ENOMEM, true},
    {FAULT_epoll_pwait, EINTR, false},
    {FAULT_poll, EINTR, false},
    {FAULT_poll, ENOMEM, false},
    {FAULT_sigtimedwait, EINTR, false},
    {FAULT_accept4, EMFILE, false},
    {FAULT_accept4, ENFILE, false},
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

/* The call is to be made again, or goes on: nobody notices. A key of shared
 * memory is a name in memory, where no opening is interrupted. */
static bool is_harmless(const struct fault *fault)
{
    return (fault->error == EINTR || fault->error == FAULT_SHORT) &&
           fault->call != FAULT_shm_open;
}

/* The fault that is being tried, for what is said of it. */
static char trying[128];

/* ------------------------------------------------------------------- files */

static struct fault_page *page;
static char page_path[64], port_path[64], log_path[64], token_path[64],
    config_path[64], shared_key[SHARED_KEY_BYTES];

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    close(fd);
}

static void make_files(void)
{
    int pid = (int)getpid();
    snprintf(page_path, sizeof page_path, "/tmp/roped_fault_%d.page", pid);
    snprintf(port_path, sizeof port_path, "/tmp/roped_fault_%d.port", pid);
    snprintf(log_path, sizeof log_path, "/tmp/roped_fault_%d.log", pid);
    snprintf(token_path, sizeof token_path, "/tmp/roped_fault_%d.token", pid);
    snprintf(config_path, sizeof config_path, "/tmp/roped_fault_%d.conf", pid);
    int fd = open(page_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *page) != 0) {
        perror(page_path);
        exit(EXIT_FAILURE);
    }
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    write_text(token_path, "secret\n");
    write_text(config_path, "allow_client_shm = true\nlog_requests = true\n");
    close(shared_memory_make(shared_key, 4096));
}

static void remove_files(void)
{
    unlink(page_path);
    unlink(port_path);
    unlink(log_path);
    unlink(token_path);
    unlink(config_path);
    shm_unlink(shared_key);
}

/* The end of it. */
static const char *read_log(void)
{
    static char text[MOST_LOG];
    int fd = open(log_path, O_RDONLY);
    if (lseek(fd, -(off_t)(sizeof text - 1), SEEK_END) < 0)
        (void)lseek(fd, 0, SEEK_SET); /* it is shorter */
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return text;
}

/* -------------------------------------------------------------- the daemon */

/* loses_device: one that restarts itself at its first call. */
static pid_t spawn(bool loses_device)
{
    const char *program = getenv("ROPED_TEST_BIN");
    const char *backend = getenv("ROPED_TEST_BACKEND");
    if (!program)
        program = ROPED_TEST_DAEMON;
    if (!backend)
        backend = "cpu";
    const char *arguments[] = {loses_device ? ROPED_TEST_FAULT_DAEMON : program,
                               "--listen",
                               "127.0.0.1:0",
                               "--backend",
                               loses_device ? "cuda" : backend,
                               "--port_file",
                               port_path,
                               "--inline_bytes", /* so that lanes run, too */
                               "64k",
                               "--drain_idle_seconds",
                               "0.1",
                               "--config",
                               config_path,
                               "--bearer_token_file",
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
    if (loses_device)
        setenv("ROPED_TEST_FAULT", "launch 1 sticky", 1);
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

/* The files are read again, then every request is answered, or its connection
 * is closed. Returns how many were answered with 2xx. */
static int run_script(pid_t pid, int port)
{
    int n_ok = 0;
    kill(pid, SIGHUP);
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

static const char *error_name(const struct fault *fault)
{
    return fault->error == FAULT_SHORT ? "half" : strerrorname_np(fault->error);
}

static void print_tally(const char *when, const struct fault *fault,
                        const struct tally *tally)
{
    printf("%-8s %-14s %-12s tried %3lu of %4lu calls: %3lu failed, %3lu "
           "ended the daemon\n",
           when, call_names[fault->call], error_name(fault), tally->n_tried,
           tally->n_calls, tally->n_failed, tally->n_ended);
}

/* How often each of them came about, at any time. */
static unsigned long n_failed_of[N_FAULTS];

/* A time of the daemon's life. */
struct period {
    const char *name;
    unsigned long most_tries; /* of one fault */
    void (*try)(const struct fault *fault, unsigned long n,
                struct tally *tally);
};

/* Tries a fault in calls 1 to n. */
static struct tally try_calls(const struct period *period,
                              const struct fault *fault, unsigned long n)
{
    const char *when = period->name;
    struct tally tally = {.n_calls = n,
                          .n_tried =
                              n < period->most_tries ? n : period->most_tries};
    for (unsigned long i = 0; i < tally.n_tried; i++) {
        unsigned long at = 1 + i * n / tally.n_tried;
        snprintf(trying, sizeof trying, "%s: %s call %lu of %lu failed with %s",
                 when, call_names[fault->call], at, n, error_name(fault));
        period->try(fault, at, &tally);
        disarm();
        tally.n_failed += atomic_load(&page->n_failed);
    }
    if (n > 0)
        print_tally(when, fault, &tally);
    return tally;
}

/* Tries every fault in the calls that were counted. A few do not come about:
 * threads call as often as their timing has it. Most must. */
static void try_all(const struct period *period, const unsigned long *counts)
{
    unsigned long n_tried = 0, n_failed = 0;
    double since = now_seconds();
    for (int i = 0; i < N_FAULTS; i++) {
        struct tally tally =
            try_calls(period, &faults[i], counts[faults[i].call]);
        n_tried += tally.n_tried;
        n_failed += tally.n_failed;
        n_failed_of[i] += tally.n_failed;
    }
    printf("%s: %lu faults in %lu tries, %.1f s\n", period->name, n_failed,
           n_tried, now_seconds() - since);
    CHECK(n_failed > n_tried / 2);
}

/* ------------------------------------------------------------------- start */

static void expect_reason(const struct fault *fault, int code)
{
    const char *log = read_log();
    const char *error = strstr(log, "error=\"");
    bool has_reason = error ? error[7] != '"' : strstr(log, "roped: ") != NULL;
    if (code <= 0 || !has_reason || is_harmless(fault))
        CHECK_FAIL("%s: it ended with %d, expected another code than 0, a "
                   "reason, and a fault that does harm; its log:\n%s",
                   trying, code, log);
}

static void try_start(const struct fault *fault, unsigned long n,
                      struct tally *tally)
{
    for (int i = 0; i < N_FAULT_CALLS; i++)
        atomic_store(&page->n_calls[i], 0);
    arm(fault, n);
    pid_t pid = spawn(false);
    int port = await_port(pid);
    disarm();
    if (port == 0) {
        tally->n_ended++;
        expect_reason(fault, await_end(pid));
        return;
    }
    expect_service(port);
    stop(pid);
}

TEST(a_fault_in_the_start_ends_it_or_not)
{
    unsigned long counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "start without a fault");
    pid_t pid = spawn(false);
    int port = await_port(pid);
    read_counts(counts);
    CHECK(port > 0);
    expect_service(port);
    stop(pid);
    try_all(&(struct period){"start", 100, try_start}, counts);
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
    CHECK_INT(run_script(server.pid, server.port), N_REQUESTS);
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

/* Where a fault before this one kept the script from it. */
static void forget_memory(void)
{
    struct exchange all = send_request(server.port, &requests[UNREGISTER]);
    exchange_free(&all);
}

static void try_requests(const struct fault *fault, unsigned long n,
                         struct tally *tally)
{
    forget_memory();
    arm(fault, n);
    int n_ok = run_script(server.pid, server.port);
    disarm();
    if (is_harmless(fault) && n_ok < N_REQUESTS)
        CHECK_FAIL("%s: %d of %d requests were answered", trying, n_ok,
                   N_REQUESTS);
    if (is_harmless(fault) && fault->call == FAULT_log &&
        strstr(read_log(), "event=log_dropped"))
        CHECK_FAIL("%s: a line is lost", trying);
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
    CHECK_INT(run_script(server.pid, server.port), N_REQUESTS);
    read_counts(counts);
    for (int i = 0; i < N_FAULT_CALLS; i++)
        counts[i] -= before[i];
}

/* Waits until so many are open, that which asks included. */
static void expect_connections(int n)
{
    char part[64];
    bool is_right = false;
    snprintf(part, sizeof part, "\nroped_connections %d\n", n);
    for (int i = 0; i < 500 && !is_right; i++) {
        struct exchange all = send_request(server.port, &requests[METRICS]);
        is_right = bytes_contain(all.in.start, all.in.n, part);
        exchange_free(&all);
        if (!is_right)
            pause_seconds(0.01);
    }
    CHECK(is_right);
}

TEST(a_fault_amid_requests_is_answered_or_closes)
{
    unsigned long counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "requests without a fault");
    start_server();
    count_script(counts);
    try_all(&(struct period){"requests", 60, try_requests}, counts);
    snprintf(trying, sizeof trying, "after all faults");
    expect_connections(1);
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
    try_all(&(struct period){"end", 100, try_end}, counts);
}

/* -------------------------------------------------------------- restarting */

/* A call meets a device that is lost, and the daemon executes itself anew. */
static bool lose_device(int port)
{
    static const int names[] = {PUT, REGISTER};
    for (int i = 0; i < 2; i++) {
        struct exchange all = send_request(port, &requests[names[i]]);
        exchange_free(&all);
    }
    struct exchange all = send_request(port, &requests[SMALL]);
    bool is_lost = exchange_code(&all) >= 500;
    exchange_free(&all);
    return is_lost;
}

/* Until calls are answered again; false: it has ended, or never does. A process
 * that could not read what it was handed has another port. */
static bool comes_back(pid_t pid)
{
    double until = now_seconds() + patience_seconds;
    while (!process_is_gone(pid) && now_seconds() < until) {
        if (is_served(read_port()))
            return true;
        pause_seconds(5e-3);
    }
    return false;
}

static void try_restart(const struct fault *fault, unsigned long n,
                        struct tally *tally)
{
    disarm();
    pid_t pid = spawn(true);
    int port = await_port(pid);
    arm(fault, n);
    (void)lose_device(port);
    bool is_back = comes_back(pid);
    disarm();
    if (is_back) {
        if (is_harmless(fault) && !strstr(read_log(), "event=restarted"))
            CHECK_FAIL("%s: the handover is lost", trying);
        stop(pid);
        return;
    }
    tally->n_ended++;
    expect_reason(fault, await_end(pid));
}

TEST(a_fault_amid_a_restart_ends_it_or_not)
{
    unsigned long before[N_FAULT_CALLS], counts[N_FAULT_CALLS];
    snprintf(trying, sizeof trying, "restart without a fault");
    disarm();
    pid_t pid = spawn(true);
    int port = await_port(pid);
    read_counts(before);
    CHECK(lose_device(port));
    CHECK(comes_back(pid));
    read_counts(counts);
    CHECK(strstr(read_log(), "event=restarted restarts=1 lost=2"));
    stop(pid);
    for (int i = 0; i < N_FAULT_CALLS; i++)
        counts[i] -= before[i];
    try_all(&(struct period){"restart", 2, try_restart}, counts);
}

/* A call of the daemon's own that has been given another name would be tried no
 * more. */
TEST(every_call_of_files_was_interrupted)
{
    for (int i = 0; i < N_FAULTS; i++)
        if (is_harmless(&faults[i]) && faults[i].call < FAULT_socket &&
            n_failed_of[i] == 0)
            CHECK_FAIL("%s never failed with %s", call_names[faults[i].call],
                       error_name(&faults[i]));
}

int main(void)
{
    double since = now_seconds();
    make_files();
    make_requests(shared_key);
    check_run();
    for (int i = 0; i < N_REQUESTS; i++) {
        bytes_free(&requests[i].bytes);
        bytes_free(&requests[i].answer);
    }
    remove_files();
    printf("%.1f s\n", now_seconds() - since);
    return check_done();
}
