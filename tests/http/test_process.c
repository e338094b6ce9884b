/*
 * test_process.c - the daemon as a process among others: a log that nobody
 * reads, signals, what it says when it starts open to all, and --healthcheck.
 * Its standard error is a pipe of the test's, which the harness has no part in.
 */
#include "check.h"
#include "http/process.h"

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { LOG_LIMIT = 4096 };

/* -------------------------------------------------------------------- log */

TEST(a_log_that_nobody_reads_stops_nobody)
{
    enum { N_REQUESTS = 2000 };
    char rest[1 << 16];
    int n_answered = 0;
    start("--log_requests", "true");
    for (int i = 0; i < N_REQUESTS; i++) {
        struct answer answer = get(&server, "/v2/health/live");
        n_answered += answer.code == 200;
        answer_free(&answer);
    }
    CHECK_INT(n_answered, N_REQUESTS);
    struct answer metrics = get(&server, "/metrics");
    CHECK_INT(metrics.code, 200);
    const char *value = strstr(metrics.body, "\nroped_log_dropped_total ");
    CHECK(value && strtod(strchr(value, ' '), NULL) > 0);
    answer_free(&metrics);
    fcntl(log_fd, F_SETFL, O_NONBLOCK);
    while (read(log_fd, rest, sizeof rest) > 0)
        ;
    fcntl(log_fd, F_SETFL, 0);
    CHECK(server_is_alive(&server));
    await_line("level=warn event=log_dropped lines=");
    await_line("event=request");
    stop();
}

/* ---------------------------------------------------------------- signals */

static const struct {
    int number;
    const char *line;
} ignored[] = {{SIGHUP, "event=signal name=HUP "},
               {SIGUSR1, "event=signal name=USR1 "},
               {SIGUSR2, "event=signal name=USR2 "},
               {SIGALRM, "event=signal name=ALRM "}};
enum { N_IGNORED = sizeof ignored / sizeof *ignored };

TEST(signals_that_mean_nothing_are_noted)
{
    start("--lanes", "1");
    for (int i = 0; i < N_IGNORED; i++) {
        kill(server.pid, ignored[i].number);
        await_line(ignored[i].line);
        CHECK(server_is_alive(&server));
    }
    stop();
}

/* They neither cut the delay short nor start it again. */
TEST(a_drain_goes_on_through_signals_that_mean_nothing)
{
    const struct timespec pause = {0, 20000000};
    char text[1 << 16] = "";
    int status = -1;
    start("--drain_delay_seconds", "1");
    double began = now_seconds();
    kill(server.pid, SIGTERM);
    await_line("event=signal name=TERM ");
    for (int i = 0; i < N_IGNORED; i++) {
        kill(server.pid, ignored[i].number);
        await_line(ignored[i].line);
    }
    expect_code(get(&server, "/v2/health/live"), 200, "", "while draining");
    while (waitpid(server.pid, &status, WNOHANG) == 0) {
        kill(server.pid, SIGHUP);
        nanosleep(&pause, NULL);
    }
    CHECK(now_seconds() - began >= 1);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    await_end(text, sizeof text);
    CHECK_CONTAINS(text, "hurried=false");
}

/* As SIGTERM and SIGINT: what is open is served on, and the exit code is 0. */
TEST(quit_drains)
{
    char text[1 << 16];
    start("--drain_delay_seconds", "0.3");
    kill(server.pid, SIGQUIT);
    await_line("event=signal name=QUIT message=\"stopping\"");
    expect_code(get(&server, "/v2/health/live"), 200, "", "while draining");
    CHECK_INT(await_end(text, sizeof text), 0);
    CHECK_CONTAINS(text, "hurried=false");
    CHECK_CONTAINS(text, "event=stopped");
}

TEST(a_daemon_that_was_stopped_goes_on)
{
    start("--lanes", "1");
    for (int i = 0; i < 3; i++) {
        kill(server.pid, SIGTSTP);
        pause_seconds(0.05);
        kill(server.pid, SIGCONT);
        CHECK(call_ones(&server, 4, 8));
    }
    stop();
}

/* A child does this before it becomes the daemon: its log may be no longer. */
static void limit_files(void)
{
    const struct rlimit limit = {LOG_LIMIT, LOG_LIMIT};
    setrlimit(RLIMIT_FSIZE, &limit);
    int fd = open("/tmp", O_TMPFILE | O_WRONLY, 0600);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

TEST(a_log_that_may_not_grow_stops_nobody)
{
    start_unheard(limit_files);
    for (int i = 0; i < 100; i++)
        expect_code(get(&server, "/v2/health/live"), 200, "", "a full log");
    CHECK(metric(&server, "roped_log_dropped_total ") > 0);
    CHECK(server_stop(&server));
}

TEST(a_second_stop_hurries_the_drain)
{
    char text[1 << 16];
    start("--drain_delay_seconds", "600");
    kill(server.pid, SIGTERM);
    await_line("event=signal name=TERM ");
    kill(server.pid, SIGINT);
    CHECK_INT(await_end(text, sizeof text), 0);
    CHECK_CONTAINS(text, "event=signal name=INT ");
    CHECK_CONTAINS(text, "hurried=true");
}

/* ----------------------------------------------------------------- access */

TEST(a_request_is_logged_with_its_trace)
{
    static const char *const headers[] = {
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "X-Request-Id: abc", NULL};
    start("--log_requests", "true");
    expect_code(ask(&server, "GET", "/v2/health/live", NULL, 0, headers), 200,
                "", "live");
    const char *line = await_line("event=request");
    CHECK_CONTAINS(line, "route=/v2/health/live ");
    CHECK_CONTAINS(line, " code=200 ");
    CHECK_CONTAINS(line,
                   "id=\"abc\" trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\" "
                   "parent_id=\"00f067aa0ba902b7\"");
    stop();
}

TEST(a_refused_request_is_logged_with_its_error_and_client)
{
    start("--log_requests", "true");
    expect_code(ask(&server, "POST", "/v1/rmsnorm?epsilon=1", "", 0, NULL), 400,
                "", "refused");
    const char *line = await_line("event=request");
    CHECK_CONTAINS(line, " code=400 ");
    CHECK_CONTAINS(line, " client=\"127.0.0.1:");
    CHECK_CONTAINS(line, " error_code=unknown_name error=\"unknown parameter ");
    stop();
}

TEST(a_slow_call_is_logged_with_its_phases)
{
    static float x[1 << 20];
    struct tensor_file file = {.n = 0};
    size_t bytes;
    start("--slow_request_ms", "1");
    file_add(&file, "x", ROPED_F32, 2, (int64_t[]){1 << 10, 1 << 10}, x);
    unsigned char *body = file_write(&file, &bytes);
    expect_code(ask(&server, "POST", "/v1/rmsnorm", body, bytes, NULL), 200, "",
                "4 MiB in over a millisecond");
    free(body);
    const char *line = await_line("event=slow");
    CHECK_CONTAINS(line, "op=rmsnorm total_ms=");
    CHECK_CONTAINS(line, " receive_ms=");
    CHECK_CONTAINS(line, " kernel_ms=");
    CHECK_CONTAINS(line, " client=\"127.0.0.1:");
    stop();
}

/* One request, and its line; what it does not say is in none. */
static void expect_refusal(const char *header, int code, const char *error)
{
    const char *const headers[] = {header, "X-Request-Id: abc", NULL};
    char part[64];
    expect_code(ask(&server, "GET", "/v1", NULL, 0, headers), code, "", header);
    snprintf(part, sizeof part, "level=warn event=refused code=%d ", code);
    const char *line = await_line("event=refused");
    CHECK_CONTAINS(line, part);
    CHECK_CONTAINS(line, error);
    CHECK_CONTAINS(line, "client=\"127.0.0.1:");
    CHECK_CONTAINS(line, "method=\"GET\" route=/v1 id=\"abc\"");
    CHECK(!strstr(line, "sesame"));
}

TEST(a_refused_access_is_one_line)
{
    char path[] = "/tmp/roped_test_XXXXXX", rest[1 << 16];
    int fd = mkstemp(path);
    CHECK_INT(write(fd, "open-sesame\n", 12), 12);
    close(fd);
    start("--bearer_token_file", path);
    expect_refusal("Authorization: Bearer open-sesam", 401, "bearer token");
    expect_code(get(&server, "/nowhere"), 401, "", "no route either");
    CHECK_CONTAINS(await_line("event=refused"), "route=none");
    expect_code(get(&server, "/v2/health/live"), 200, "", "nobody is refused");
    kill(server.pid, SIGTERM);
    CHECK_INT(await_end(rest, sizeof rest), 0);
    CHECK(!strstr(rest, "event=refused"));
    unlink(path);
    start("--lanes", "1");
    expect_refusal("Origin: http://other.example", 403, "other.example");
    expect_refusal("Host: other.example", 421, "other.example");
    stop();
}

/* ------------------------------------------------------------------- open */

/* The log of a start that fails before anything listens: there is no device
 * 63. */
static const char *log_of_start(const char *listen, const char *token_file)
{
    static char text[1 << 16];
    const char *flags[] = {"--listen",  listen,      "--bearer_token_file",
                           token_file,  "--backend", "cpu",
                           "--devices", "63",        NULL};
    int fd;
    pid_t pid = spawn(flags, &fd);
    CHECK_INT(read_to_end(pid, fd, text, sizeof text), EXIT_FAILURE);
    return text;
}

TEST(a_daemon_that_is_open_to_others_says_so)
{
    CHECK_CONTAINS(log_of_start("0.0.0.0:0", ""),
                   "level=warn event=open message=\"anyone who reaches "
                   "0.0.0.0:0 may use this daemon: set bearer_token_file or "
                   "tls_client_ca_file, or listen on 127.0.0.1\"");
    CHECK_CONTAINS(log_of_start("[::]:0", ""), "event=open");
    CHECK_CONTAINS(log_of_start(":0", ""), "event=open");
    CHECK(!strstr(log_of_start("127.0.0.1:0", ""), "event=open"));
    CHECK(!strstr(log_of_start("[::1]:0", ""), "event=open"));
    CHECK(!strstr(log_of_start("unix:/tmp/none", ""), "event=open"));
    CHECK_CONTAINS(log_of_start("127.0.0.1:0,0.0.0.0:1", "/dev/null"),
                   "event=open message=\"anyone between a client and 0.0.0.0:1 "
                   "reads its token and tensors: set tls_cert_file, or listen "
                   "on 127.0.0.1\"");
}

TEST(the_log_may_be_json)
{
    setenv("ROPED_LOG_FORMAT", "json", 1);
    const char *text = log_of_start("0.0.0.0:0", "");
    unsetenv("ROPED_LOG_FORMAT");
    CHECK_CONTAINS(text, "\"level\":\"warn\",\"event\":\"open\",\"message\":"
                         "\"anyone who reaches 0.0.0.0:0 may");
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        size_t bytes = strcspn(line, "\n");
        CHECK(strncmp(line, "{\"time\":\"20", 11) == 0);
        CHECK(bytes > 2 && strncmp(line + bytes - 2, "\"}", 2) == 0);
    }
}

/* ---------------------------------------------------------- service manager */

/* A socket that hears what the daemon tells whoever started it. */
static int open_notices(char path[64])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {10, 0};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(path, 64, "/tmp/roped_notices_%d", (int)getpid());
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    return fd;
}

static const char *next_notice(int fd)
{
    static char text[64];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

TEST(a_service_manager_hears_that_it_is_there_lives_and_stops)
{
    char path[64];
    const char *notice;
    int fd = open_notices(path);
    setenv("NOTIFY_SOCKET", path, 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
    start("--lanes", "1");
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    CHECK_TEXT(next_notice(fd), "READY=1");
    CHECK_TEXT(next_notice(fd), "WATCHDOG=1");
    double since = now_seconds();
    CHECK_TEXT(next_notice(fd), "WATCHDOG=1");
    CHECK(now_seconds() - since < 1);
    stop();
    do
        notice = next_notice(fd);
    while (strcmp(notice, "WATCHDOG=1") == 0);
    CHECK_TEXT(notice, "STOPPING=1");
    close(fd);
    unlink(path);
}

/* ------------------------------------------------------------ healthcheck */

static pid_t spawn_check(const char *host, int port, int *fd)
{
    char listen[64];
    const char *flags[] = {"--healthcheck", "--listen", listen, NULL};
    snprintf(listen, sizeof listen, "%s:%d", host, port);
    return spawn(flags, fd);
}

/* Its exit code and what it says of a port of the host. */
static void expect_check(const char *host, int port, int code, const char *part)
{
    char text[4096];
    int fd;
    pid_t pid = spawn_check(host, port, &fd);
    int found = read_to_end(pid, fd, text, sizeof text);
    if (found != code || !strstr(text, part))
        CHECK_FAIL("--healthcheck of %s:%d ended with %d and '%s', expected %d "
                   "and '%s'",
                   host, port, found, text, code, part);
}

TEST(a_daemon_that_is_ready_is_healthy)
{
    start("--lanes", "1");
    expect_check("127.0.0.1", server.port, 0, "");
    expect_check("0.0.0.0", server.port, 0, "");
    expect_check("localhost", server.port, 0, "");
    stop();
}

/* A port of 127.0.0.1; nothing listens there yet. */
static int open_port(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, bytes), 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* --healthcheck asks 0.0.0.0, and this is what it gets. */
static void expect_answer(const char *answer, const char *part)
{
    char request[4096] = "", text[4096], expected[64];
    size_t bytes = 0;
    int port, said, listener = open_port(&port);
    CHECK_INT(listen(listener, 1), 0);
    pid_t pid = spawn_check("0.0.0.0", port, &said);
    int fd = accept(listener, NULL, NULL);
    while (!strstr(request, "\r\n\r\n")) {
        ssize_t n = recv(fd, request + bytes, sizeof request - 1 - bytes, 0);
        if (n <= 0)
            break;
        bytes += (size_t)n;
    }
    send(fd, answer, strlen(answer), MSG_NOSIGNAL);
    close(fd);
    close(listener);
    CHECK_INT(read_to_end(pid, said, text, sizeof text), EXIT_FAILURE);
    CHECK_CONTAINS(text, part);
    snprintf(expected, sizeof expected, "127.0.0.1:%d", port);
    CHECK_CONTAINS(text, expected);
    snprintf(expected, sizeof expected, "\r\nHost: 127.0.0.1:%d\r\n", port);
    CHECK_CONTAINS(request, expected);
    CHECK_CONTAINS(request, "GET /v2/health/ready HTTP/1.1\r\n");
}

TEST(what_is_not_healthy_says_why)
{
    int port, fd = open_port(&port);
    expect_check("127.0.0.1", port, EXIT_FAILURE, "Connection refused");
    expect_check("0.0.0.0", port, EXIT_FAILURE, "cannot connect to 127.0.0.1:");
    expect_check("[::]", port, EXIT_FAILURE, "[::1]:");
    close(fd);
    expect_answer("HTTP/1.1 503 Service Unavailable\r\n\r\n",
                  "answered 503, expected 200");
    expect_answer("", "closed the connection without an HTTP answer");
    expect_answer("SSH-2.0-x\r\n", "without an HTTP answer");
}

int main(void)
{
    alarm(STUCK_SECONDS);
    check_run();
    return check_done();
}
