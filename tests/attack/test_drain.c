/*
 * test_drain.c - SIGTERM amid load: no request is lost, not even one that was
 * sent on an idle connection just after it; and the listener closes, so that
 * new clients are refused instead of waiting.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_CLIENTS = 16, N_IDLE = 20, N_KINDS = 3 };
static struct http_request request[N_KINDS]; /* 1 KiB, 64 KiB, 1 MiB */

static struct load_child start_clients(int port, int n, double seconds,
                                       bool ends_refused)
{
    struct load load = {.port = port,
                        .n_clients = n,
                        .seconds = seconds,
                        .patience_seconds = 20,
                        .request = request,
                        .n_requests = N_KINDS,
                        .ends_refused = ends_refused};
    return load_start(&load);
}

static void expect_no_loss(const char *name, struct load_child *child,
                           double seconds)
{
    struct load_result *result = child->result;
    load_wait(child);
    load_print(name, result, seconds);
    CHECK(result->n_ok > 0);
    CHECK_INT(result->n_lost, 0);
    CHECK_INT(result->n_wrong, 0);
    CHECK_INT(result->n_ok + result->n_refused, result->n_sent);
    load_free(child);
}

/* -------------------------------------------------------- idle connections */

static struct bytes live;

/* Connections that have had an answer each. */
static void open_idle(const struct server *server, int *fd)
{
    for (int i = 0; i < N_IDLE; i++) {
        fd[i] = client_connect(server->port);
        attack_send(fd[i], live.start, live.n);
        struct exchange all = exchange_read(fd[i], 1, 5);
        CHECK_INT(exchange_code(&all), 200);
        exchange_free(&all);
    }
}

/* Asks again where the answer does not say that the connection closes: the
 * daemon had not seen the signal yet. True where it does in the end. */
static bool ask_until_told(int fd, bool *is_answered)
{
    for (int tries = 0; tries < 20; tries++) {
        if (tries > 0)
            attack_send(fd, live.start, live.n);
        struct exchange all = exchange_read(fd, 1, 5);
        bool is_told = exchange_code(&all) == 200 && all.answer[0].closes;
        *is_answered = exchange_code(&all) == 200;
        exchange_free(&all);
        if (is_told || !*is_answered)
            return is_told;
        pause_seconds(1e-3);
    }
    return false;
}

/* On the i-th, i + 1 ms after the signal. */
static void ask_idle(const int *fd, double since)
{
    int n_answered = 0, n_told = 0;
    for (int i = 0; i < N_IDLE; i++) {
        double left = since + (i + 1) * 1e-3 - now_seconds();
        pause_seconds(left > 0 ? left : 0);
        attack_send(fd[i], live.start, live.n);
    }
    for (int i = 0; i < N_IDLE; i++) {
        bool is_answered;
        n_told += ask_until_told(fd[i], &is_answered);
        n_answered += is_answered;
        close(fd[i]);
    }
    printf("%d idle connections asked 1 to %d ms after SIGTERM: %d answered, "
           "%d told to close\n",
           N_IDLE, N_IDLE, n_answered, n_told);
    CHECK_INT(n_answered, N_IDLE);
    CHECK_INT(n_told, N_IDLE);
}

/* Ends in time and with 0: a request lost at the very end is one, too. */
static void expect_end(struct server *server, double since, double most)
{
    while (!process_is_gone(server->pid) && now_seconds() - since < most)
        pause_seconds(0.01);
    double took = now_seconds() - since;
    printf("ended %.2f s after SIGTERM\n", took);
    fflush(stdout);
    CHECK(took < most);
    CHECK(server_stop(server));
}

static void drain(const char *delay)
{
    const char *flags[] = {"--drain_delay_seconds", delay, NULL};
    struct server server;
    int fd[N_IDLE];
    server_start(&server, flags);
    open_idle(&server, fd);
    struct load_child child = start_clients(server.port, N_CLIENTS, 20, true);
    pause_seconds(1);
    double since = now_seconds();
    kill(server.pid, SIGTERM);
    ask_idle(fd, since);
    expect_end(&server, since, 10);
    expect_no_loss("under load", &child, now_seconds() - since + 1);
}

TEST(idle_connections_are_answered_just_after_sigterm)
{
    const char *flags[] = {NULL};
    struct server server;
    int fd[N_IDLE];
    server_start(&server, flags);
    open_idle(&server, fd);
    double since = now_seconds();
    kill(server.pid, SIGTERM);
    ask_idle(fd, since);
    expect_end(&server, since, 10);
}

TEST(drain_under_load_loses_nothing)
{
    drain("0");
}

TEST(drain_with_a_delay_loses_nothing)
{
    drain("1");
}

/* ------------------------------------------------------------ the listener */

/* A body that never ends keeps the daemon draining meanwhile. */
TEST(new_clients_are_refused_while_it_drains)
{
    static const char half[] = "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost"
                               "\r\nContent-Length: 100000\r\n\r\nhalf";
    const char *flags[] = {"--drain_timeout_seconds", "3", NULL};
    struct server server;
    bool is_refused = false;
    server_start(&server, flags);
    int stuck = open_raw(&server, half, sizeof half - 1);
    expect_metric(&server, "roped_connections ", 2);
    double since = now_seconds(), refused_after = 0;
    kill(server.pid, SIGTERM);
    while (!is_refused && !process_is_gone(server.pid)) {
        int fd = client_connect(server.port);
        is_refused = fd < 0 && errno == ECONNREFUSED;
        if (fd >= 0)
            close(fd);
        pause_seconds(5e-3);
    }
    refused_after = now_seconds() - since;
    bool is_draining = !process_is_gone(server.pid);
    printf("new connections are refused %.2f s after SIGTERM, %s\n",
           refused_after, is_draining ? "while it drains" : "as it has ended");
    CHECK(is_refused && is_draining);
    CHECK(refused_after < 1.5); /* a SYN is sent again after a second */
    expect_end(&server, since, 10);
    close(stuck);
}

int main(void)
{
    static const int rows[N_KINDS] = {1, 64, 1024};
    for (int i = 0; i < N_KINDS; i++)
        request[i] = post_ones(rows[i], 256);
    request_plain(&live, "GET", "/v2/health/live", "");
    check_run();
    return check_done();
}
