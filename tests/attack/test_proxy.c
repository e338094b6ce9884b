/*
 * test_proxy.c - three daemons behind the configurations of deploy/proxy: all
 * are restarted in turn under load without a loss, and what a client keeps in a
 * region is found again, because its name leads to one daemon, and to the same
 * one once that is back; no body waits for Nagle's algorithm. A proxy that is
 * not installed is left out, in so many words.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"
#include "load/proxy.h"

#include <string.h>
#include <unistd.h>

enum {
    N_CLIENTS = 24,
    N_KINDS = 3,
    N_NAMES = 12,
    N_CALLS = 40,
    HOME_SECONDS = 20 /* until a daemon that is back is used again */
};

static struct http_request request[N_KINDS]; /* 1 KiB, 64 KiB, 1 MiB */

struct site {
    struct proxy proxy;
    struct server server[PROXY_DAEMONS];
};

static const char *file_of(const struct site *site)
{
    return site->proxy.kind->file;
}

/* -------------------------------------------------------------- stickiness */

/* The code of a request for the region of the i-th client, sent by name. */
static int ask_region(int port, const char *method, int i, const char *query)
{
    char target[64], headers[64];
    struct bytes bytes = {0};
    snprintf(target, sizeof target, "/v1/regions/of_%d%s", i, query);
    snprintf(headers, sizeof headers, "X-Roped-Client: client-%d\r\n", i);
    request_plain(&bytes, method, target, headers);
    int fd = client_connect(port);
    attack_send(fd, bytes.start, bytes.n);
    struct exchange all = exchange_read(fd, 1, 5);
    int code = exchange_code(&all);
    exchange_free(&all);
    close(fd);
    bytes_free(&bytes);
    return code;
}

/* daemon: which of them each client was led to. */
static void find_regions_again(struct site *site, int daemon[N_NAMES])
{
    int n_used = 0, port = site->proxy.port;
    for (int i = 0; i < N_NAMES; i++)
        CHECK_INT(ask_region(port, "PUT", i, "?bytes=64"), 201);
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < N_NAMES; i++)
            CHECK_INT(ask_region(port, "GET", i, ""), 200);
    for (int d = 0; d < PROXY_DAEMONS; d++) {
        int n = 0;
        for (int i = 0; i < N_NAMES; i++)
            if (ask_region(site->server[d].port, "GET", i, "") == 200) {
                daemon[i] = d;
                n++;
            }
        printf("%s: daemon %d has the regions of %d clients\n", file_of(site),
               d, n);
        n_used += n > 0;
    }
    CHECK(n_used > 1); /* by name, and not all on one */
}

/* --------------------------------------------------------- rolling restart */

/* As a supervisor does: the same port, once the old one has ended. */
static void restart(struct server *server)
{
    char listen[32];
    const char *flags[] = {"--listen", listen, "--drain_delay_seconds", "2",
                           NULL};
    snprintf(listen, sizeof listen, "127.0.0.1:%d", server->port);
    CHECK(server_stop(server));
    server_start(server, flags);
}

/* Until the proxy leads a client home to a daemon that is back: the daemon
 * alone has a region of that name. A busy machine takes longer than a health
 * check. */
static void await_home(const struct site *site, int d, const int home[N_NAMES])
{
    int i = 0, port = site->server[d].port, code = 0;
    while (i < N_NAMES && home[i] != d)
        i++;
    if (i == N_NAMES) { /* nobody's home: what its health check takes */
        pause_seconds(1);
        return;
    }
    CHECK_INT(ask_region(port, "PUT", i, "?bytes=64"), 201);
    for (double since = now_seconds();
         code != 200 && now_seconds() - since < HOME_SECONDS;) {
        pause_seconds(0.05);
        code = ask_region(site->proxy.port, "GET", i, "");
    }
    CHECK_INT(code, 200);
    CHECK_INT(ask_region(port, "DELETE", i, ""), 200);
}

static void restart_all(struct site *site, const int home[N_NAMES])
{
    struct load load = {.port = site->proxy.port,
                        .n_clients = N_CLIENTS,
                        .seconds = 90,
                        .patience_seconds = 20,
                        .request = request,
                        .n_requests = N_KINDS};
    struct load_child child = load_start(&load);
    struct load_result *result = child.result;
    double since = now_seconds();
    pause_seconds(0.5);
    for (int i = 0; i < PROXY_DAEMONS; i++) {
        restart(&site->server[i]);
        await_home(site, i, home);
    }
    atomic_store(&result->is_over, true);
    load_wait(&child);
    load_print(file_of(site), result, now_seconds() - since);
    CHECK(result->n_ok > 0);
    CHECK_INT(result->n_lost, 0);
    CHECK_INT(result->n_wrong, 0);
    CHECK_INT(result->n_ok, result->n_sent);
    load_free(&child);
}

/* ----------------------------------------------------------------- delays */

/* How many of some calls with a body take more than 20 ms. */
static int count_slow(const struct site *site)
{
    struct http_request call = post_ones(40, 256);
    int n_slow = 0, fd = client_open(site->proxy.port);
    for (int i = 0; i < N_CALLS; i++) {
        struct http_answer answer = {0};
        double since = now_seconds();
        CHECK(client_exchange(fd, &call, NULL, 0, &answer));
        CHECK_INT(answer.code, 200);
        n_slow += now_seconds() - since > 0.02;
    }
    close(fd);
    request_free(&call);
    printf("%s: %d of %d calls of 40 KiB take more than 20 ms\n", file_of(site),
           n_slow, N_CALLS);
    return n_slow;
}

/* Where Nagle's algorithm delays bodies, most calls take 40 ms, whenever they
 * are made; on a busy machine many do for a while. */
static void call_without_delay(const struct site *site)
{
    enum { N_TRIES = 5 };
    int n_slow = N_CALLS;
    for (int i = 0; i < N_TRIES && n_slow >= N_CALLS / 2; i++)
        n_slow = count_slow(site);
    CHECK(n_slow < N_CALLS / 2);
}

static void try_proxy(const struct proxy_kind *kind)
{
    static const char *const flags[] = {"--drain_delay_seconds", "2", NULL};
    struct site site = {0};
    uint16_t ports[PROXY_DAEMONS];
    for (int i = 0; i < PROXY_DAEMONS; i++) {
        server_start(&site.server[i], flags);
        ports[i] = (uint16_t)site.server[i].port;
    }
    if (proxy_start(&site.proxy, kind, ports)) {
        int before[N_NAMES], after[N_NAMES];
        call_without_delay(&site);
        find_regions_again(&site, before);
        restart_all(&site, before);
        find_regions_again(&site, after);
        CHECK(memcmp(before, after, sizeof before) == 0);
        proxy_stop(&site.proxy);
    }
    for (int i = 0; i < PROXY_DAEMONS; i++)
        CHECK(server_stop(&site.server[i]));
}

TEST(haproxy_loses_nothing)
{
    try_proxy(&proxy_haproxy);
}

TEST(nginx_loses_nothing)
{
    try_proxy(&proxy_nginx);
}

TEST(envoy_loses_nothing)
{
    try_proxy(&proxy_envoy);
}

/* As roped's clients send a call that may run twice: a proxy sends it again
 * where a daemon closes a connection that it had kept. */
static struct http_request post_safely(int rows)
{
    static const char header[] = "X-Roped-Retry: safe\r\n\r\n";
    struct http_request call = post_ones(rows, 256);
    memcpy(call.head + call.head_bytes - 2, header, sizeof header);
    call.head_bytes += sizeof header - 3;
    return call;
}

int main(void)
{
    static const int rows[N_KINDS] = {1, 64, 1024};
    for (int i = 0; i < N_KINDS; i++)
        request[i] = post_safely(rows[i]);
    check_run();
    return check_done();
}
