/*
 * test_listen.c - where the daemon listens: several places, Unix sockets,
 * sockets that a service manager passes, and admin_listen.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"
#include "load/certificates.h"
#include "load/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/roped_test_XXXXXX";
static char path[64], place[72]; /* of a Unix socket, and as listen has it */
static struct server server;

static struct http_request live;

/* The code of one answer; closes fd. 0: there was none. */
static int ask_over(int fd, const struct http_request *request)
{
    struct http_answer answer = {0};
    bool is_answered =
        fd >= 0 && client_exchange(fd, request, NULL, 0, &answer);
    if (fd >= 0)
        close(fd);
    return is_answered ? answer.code : 0;
}

/* The daemon with these flags ends with a code and says this. */
static void expect_end(const char *flags, int code, const char *part)
{
    char command[512], output[4096];
    snprintf(command, sizeof command, "%s --backend cpu %s 2>&1",
             ROPED_TEST_DAEMON, flags);
    int found = run_command(command, output, sizeof output);
    if (found != code || !strstr(output, part))
        CHECK_FAIL("roped %s: ended with %d and %s, expected %d and '%s'",
                   flags, found, output, code, part);
}

/* ------------------------------------------------------------ Unix sockets */

TEST(it_listens_in_several_places)
{
    const char *const flags[] = {"--listen", "127.0.0.1:0", "--listen", place,
                                 "--listen", "127.0.0.1:0", NULL};
    server_start(&server, flags);
    int other = server_port_of(&server, "tls=false");
    CHECK(other != 0 && other != server.port);
    CHECK_INT(ask_over(client_connect(server.port), &live), 200);
    CHECK_INT(ask_over(client_connect(other), &live), 200);
    CHECK_INT(ask_over(client_connect_path(path), &live), 200);
    CHECK(server_stop(&server));
    CHECK(access(path, F_OK) != 0);
}

TEST(a_call_goes_through_a_unix_socket)
{
    enum { ROWS = 4096, WIDTH = 1024 }; /* 16 MiB each way */
    char command[512], output[4096];
    const char *const flags[] = {"--listen", "127.0.0.1:0", "--listen", place,
                                 NULL};
    size_t bytes;
    server_start(&server, flags);
    void *body = ones(ROWS, WIDTH, &bytes);
    struct http_request call =
        request_make("POST", "/v1/rmsnorm?eps=0", "", body, bytes);
    CHECK_INT(ask_over(client_connect_path(path), &call), 200);
    request_free(&call);
    snprintf(command, sizeof command, "%s --server %s status 2>&1",
             ROPED_TEST_ROPECTL, place);
    CHECK_INT(run_command(command, output, sizeof output), 0);
    CHECK_CONTAINS(output, "ready");
    CHECK(server_stop(&server));
    CHECK_INT(run_command(command, output, sizeof output), 4);
    CHECK_CONTAINS(output, place);
}

TEST(what_cannot_be_listened_on_is_said_with_what_to_do)
{
    char text[256];
    const char *const flags[] = {"--listen", "127.0.0.1:0", NULL};
    server_start(&server, flags);
    snprintf(text, sizeof text, "--listen 127.0.0.1:%d", server.port);
    expect_end(text, 1, "Address already in use; 'ss -ltnp' shows which");
    expect_end(text, 1, "or choose another with --listen address:port");
    snprintf(text, sizeof text,
             "--listen 127.0.0.1:0 --admin-listen 127.0.0.1:%d", server.port);
    expect_end(text, 1, "with --admin_listen address:port");
    CHECK(server_stop(&server));
    expect_end("--listen 192.0.2.1:0", 1, "; 'ip address' shows");
}

static int mode_of(void)
{
    struct stat file = {.st_mode = 0};
    return stat(path, &file) == 0 ? (int)(file.st_mode & 0777) : -1;
}

TEST(the_file_says_who_may_connect)
{
    const char *flags[] = {"--listen", "127.0.0.1:0", "--listen", place,
                           NULL,       NULL,          NULL};
    char text[256];
    server_start(&server, flags);
    CHECK_INT(mode_of(), 0660);
    snprintf(text, sizeof text, "--listen %s", place);
    expect_end(text, 1, "Address already in use; if that is a socket");
    CHECK_INT(ask_over(client_connect_path(path), &live),
              200); /* it is still there */
    kill(server.pid, SIGKILL);
    waitpid(server.pid, NULL, 0);
    CHECK_INT(mode_of(), 0660); /* the file of a daemon that was killed */
    flags[4] = "--socket-mode";
    flags[5] = "600";
    server_start(&server, flags);
    CHECK_INT(mode_of(), 0600);
    CHECK(server_stop(&server));
    snprintf(text, sizeof text, "--listen %s --socket-mode 8", place);
    expect_end(text, 1, "socket_mode is '8', expected 0 to 0777");
    snprintf(text, sizeof text, "--listen %s --socket-group nobody-here",
             place);
    expect_end(text, 1, "socket_group is 'nobody-here', expected a group");
    CHECK(access(path, F_OK) != 0);
}

TEST(a_file_that_is_no_socket_is_left_alone)
{
    char text[256];
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    snprintf(text, sizeof text, "--listen %s", place);
    expect_end(text, 1, "Address already in use");
    CHECK_INT(access(path, F_OK), 0);
    unlink(path);
    expect_end("--listen unix:/none/x.sock", 1,
               "cannot listen on unix:/none/x.sock: No such file");
    expect_end("--listen ,", 1, "listen is ','");
}

/* Whoever got in is answered. */
TEST(a_stop_loses_nobody_at_a_unix_socket)
{
    int n_in = 0, n_answered = 0;
    const char *const flags[] = {"--listen", "127.0.0.1:0", "--listen", place,
                                 NULL};
    server_start(&server, flags);
    for (int i = 0;; i++) {
        int fd = client_connect_path(path);
        if (fd < 0)
            break;
        n_in++;
        n_answered += ask_over(fd, &live) == 200;
        if (i == 100)
            kill(server.pid, SIGTERM);
    }
    CHECK(errno == ENOENT || errno == ECONNREFUSED);
    CHECK_INT(n_answered, n_in);
    CHECK(n_in > 100);
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------- passed sockets */

enum { PASSED = 3 };

/* As systemd does: the socket is descriptor 3, and the pid is in the
 * environment. */
static pid_t start_with(int fd)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char own[16];
        int null = open("/dev/null", O_WRONLY);
        snprintf(own, sizeof own, "%d", (int)getpid());
        setenv("LISTEN_PID", own, 1);
        setenv("LISTEN_FDS", "1", 1);
        dup2(null, STDERR_FILENO);
        dup2(fd, PASSED);
        fcntl(PASSED, F_SETFD, 0); /* fd may be 3 itself */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
            execl(ROPED_TEST_DAEMON, ROPED_TEST_DAEMON, "--backend", "cpu",
                  NULL);
        _exit(127);
    }
    return pid;
}

static int end(pid_t pid)
{
    int status = -1;
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_passed_socket_outlives_the_daemon)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int status, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, bytes), 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    CHECK_INT(listen(fd, 16), 0);
    int port = ntohs(address.sin_port);
    pid_t pid = start_with(fd);
    CHECK_INT(ask_over(client_connect(port), &live), 200);
    CHECK_INT(end(pid), 0);
    int waiting = client_connect(port); /* between two daemons */
    pid = start_with(fd);
    CHECK_INT(ask_over(waiting, &live), 200);
    CHECK_INT(end(pid), 0);
    close(fd);
    pid = start_with(open("/dev/null", O_RDONLY | O_CLOEXEC));
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
}

/* -------------------------------------------------------------------- admin */

TEST(the_admin_place_has_health_and_metrics_alone)
{
    const char *const flags[] = {"--admin-listen", "127.0.0.1:0", NULL};
    struct server admin = {.port = 0};
    server_start(&server, flags);
    admin.port = server_port_of(&server, "admin=true");
    snprintf(admin.url, sizeof admin.url, "http://127.0.0.1:%d", admin.port);
    expect_code(get(&admin, "/v2/health/live"), 200, "", "live");
    expect_code(get(&admin, "/v2/health/ready"), 200, "", "ready");
    expect_code(get(&admin, "/metrics"), 200, "roped_", "metrics");
    expect_code(get(&admin, "/v1"), 404, "health and metrics alone", "/v1");
    expect_code(ask(&admin, "POST", "/v1/rmsnorm", "x", 1, NULL), 404,
                "health and metrics alone", "a call");
    CHECK(call_ones(&server, 2, 8));
    CHECK(server_stop(&server));
}

/* All connections that may be open are, and none of them is idle. */
TEST(the_admin_place_answers_a_full_daemon)
{
    static const char half[] = "GET /v2/health/live HTTP/1.1\r\nHost: a";
    const char *const flags[] = {
        "--max-connections", "2", "--http-threads", "1", "--admin-listen",
        "127.0.0.1:0",       NULL};
    int fd[3];
    server_start(&server, flags);
    for (int i = 0; i < 3; i++)
        fd[i] = open_raw(&server, half, sizeof half - 1);
    for (int i = 0; i < 20; i++)
        CHECK_INT(
            ask_over(client_connect(server_port_of(&server, "admin=true")),
                     &live),
            200);
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    CHECK(server_stop(&server));
}

/* ------------------------------------------------------------ healthcheck */

TEST(the_healthcheck_finds_a_place_without_tls)
{
    struct certificates certificates;
    char text[512];
    if (!certificates_make(&certificates)) {
        certificates_remove(&certificates);
        printf("left out: no openssl\n");
        return;
    }
    const char *const flags[] = {"--listen", "127.0.0.1:0",    "--listen",
                                 place,      "--admin-listen", "127.0.0.1:0",
                                 NULL};
    server_start_tls(&server, &certificates, flags);
    snprintf(text, sizeof text,
             "--healthcheck --listen 127.0.0.1:1 --listen %s --tls-cert-file x",
             place);
    expect_end(text, 0, "");
    snprintf(text, sizeof text,
             "--healthcheck --listen %s --admin-listen 127.0.0.1:%d",
             "unix:/no", server_port_of(&server, "admin=true"));
    expect_end(text, 0, "");
    expect_end("--healthcheck --listen 127.0.0.1:1 --tls-cert-file x", 1,
               "--healthcheck speaks no TLS: set admin_listen");
    CHECK(server_port_of(&server, "tls=true") == server.port);
    CHECK(server_stop(&server));
    certificates_remove(&certificates);
}

int main(void)
{
    live = request_make("GET", "/v2/health/live", "", NULL, 0);
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/roped.sock", folder);
    snprintf(place, sizeof place, "unix:%s", path);
    check_run();
    rmdir(folder);
    return check_done();
}
