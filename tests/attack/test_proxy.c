/*
 * test_proxy.c - three daemons behind the configurations of deploy/proxy: all
 * are restarted in turn under load without a loss, and what a client keeps in a
 * region is found again, because its name leads to one daemon. A proxy that is
 * not installed is left out, in so many words.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_DAEMONS = 3, N_CLIENTS = 24, N_KINDS = 3, N_NAMES = 12 };

static struct http_request request[N_KINDS]; /* 1 KiB, 64 KiB, 1 MiB */
static char folder[] = "/tmp/roped_proxy_XXXXXX";

struct proxy {
    const char *program, *file; /* of deploy/proxy */
    const char *before, *after; /* what makes the file a whole one */
    int port;
    pid_t pid;
    struct server server[N_DAEMONS];
};

/* ---------------------------------------------------------------- the file */

/* A copy of one line, with the ports of this test for those of the page. */
static void write_line(FILE *out, const struct proxy *proxy, char *line)
{
    static const char host[] = "127.0.0.1:";
    char *at;
    while ((at = strstr(line, host)) != NULL) {
        char *number = at + strlen(host);
        fwrite(line, 1, (size_t)(number - line), out);
        long i = strtol(number, &line, 10) - 8000;
        fprintf(out, "%d",
                i >= 0 && i < N_DAEMONS ? proxy->server[i].port : proxy->port);
    }
    fputs(line, out);
}

static bool write_config(const struct proxy *proxy, const char *path)
{
    char source[512], line[512];
    snprintf(source, sizeof source, ROPED_TEST_PROXIES "/%s", proxy->file);
    FILE *in = fopen(source, "r"), *out = fopen(path, "w");
    bool is_open = in && out;
    if (!is_open)
        CHECK_FAIL("%s, %s: %s", source, path, strerror(errno));
    if (is_open)
        fputs(proxy->before, out);
    while (is_open && fgets(line, sizeof line, in))
        write_line(out, proxy, line);
    if (is_open)
        fputs(proxy->after, out);
    if (in)
        fclose(in);
    if (out)
        fclose(out);
    return is_open;
}

/* --------------------------------------------------------------- the proxy */

static void run_program(const struct proxy *proxy, const char *config)
{
    char log[64];
    snprintf(log, sizeof log, "%s/log", folder);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (chdir(folder) != 0 || !freopen(log, "w", stderr) ||
        !freopen("/dev/null", "w", stdout))
        _exit(126);
    if (strcmp(proxy->file, "haproxy.cfg") == 0)
        execl(proxy->program, proxy->program, "-db", "-f", config, (char *)0);
    else
        execl(proxy->program, proxy->program, "-p", folder, "-e", log, "-c",
              config, (char *)0);
    _exit(127);
}

/* Until a request through the proxy is answered n times in a row. */
static bool await_proxy(int port, int n)
{
    double since = now_seconds();
    for (int i = 0; i < n && now_seconds() - since < 10; i++)
        if (attack_get(port, "/v2/health/live", 1) != 200) {
            i = -1;
            pause_seconds(0.05);
        }
    return now_seconds() - since < 10;
}

/* False where it is not installed. */
static bool proxy_start(struct proxy *proxy)
{
    const char *flags[] = {"--drain_delay_seconds", "2", NULL};
    char config[64];
    if (access(proxy->program, X_OK) != 0) {
        printf("no %s: %s is not tried\n", proxy->program, proxy->file);
        return false;
    }
    snprintf(config, sizeof config, "%s/config", folder);
    proxy->port = free_port();
    for (int i = 0; i < N_DAEMONS; i++)
        server_start(&proxy->server[i], flags);
    if (!write_config(proxy, config))
        return false;
    fflush(NULL);
    proxy->pid = fork();
    if (proxy->pid == 0)
        run_program(proxy, config);
    CHECK(await_proxy(proxy->port, 20));
    return true;
}

static void proxy_stop(struct proxy *proxy)
{
    int status;
    kill(proxy->pid, SIGTERM);
    waitpid(proxy->pid, &status, 0);
    for (int i = 0; i < N_DAEMONS; i++)
        CHECK(server_stop(&proxy->server[i]));
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
    pause_seconds(1); /* the proxy's health check sees it */
}

static void restart_all(struct proxy *proxy)
{
    struct load load = {.port = proxy->port,
                        .n_clients = N_CLIENTS,
                        .seconds = 90,
                        .patience_seconds = 20,
                        .request = request,
                        .n_requests = N_KINDS};
    struct load_child child = load_start(&load);
    struct load_result *result = child.result;
    double since = now_seconds();
    pause_seconds(0.5);
    for (int i = 0; i < N_DAEMONS; i++)
        restart(&proxy->server[i]);
    atomic_store(&result->is_over, true);
    load_wait(&child);
    load_print(proxy->file, result, now_seconds() - since);
    CHECK(result->n_ok > 0);
    CHECK_INT(result->n_lost, 0);
    CHECK_INT(result->n_wrong, 0);
    CHECK_INT(result->n_ok, result->n_sent);
    load_free(&child);
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

static void find_regions_again(struct proxy *proxy)
{
    int n_used = 0;
    for (int i = 0; i < N_NAMES; i++)
        CHECK_INT(ask_region(proxy->port, "PUT", i, "?bytes=64"), 201);
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < N_NAMES; i++)
            CHECK_INT(ask_region(proxy->port, "GET", i, ""), 200);
    for (int d = 0; d < N_DAEMONS; d++) {
        int n = 0;
        for (int i = 0; i < N_NAMES; i++)
            n += ask_region(proxy->server[d].port, "GET", i, "") == 200;
        printf("%s: daemon %d has the regions of %d clients\n", proxy->file, d,
               n);
        n_used += n > 0;
    }
    CHECK(n_used > 1); /* by name, and not all on one */
}

static void try_proxy(struct proxy *proxy)
{
    if (!proxy_start(proxy))
        return;
    find_regions_again(proxy);
    restart_all(proxy);
    proxy_stop(proxy);
}

TEST(haproxy_loses_nothing)
{
    struct proxy proxy = {.program = "/usr/sbin/haproxy",
                          .file = "haproxy.cfg",
                          .before = "",
                          .after = ""};
    try_proxy(&proxy);
}

TEST(nginx_loses_nothing)
{
    struct proxy proxy = {.program = "/usr/sbin/nginx",
                          .file = "nginx.conf",
                          .before = "daemon off; pid pid; worker_processes 1;\n"
                                    "events {}\nhttp { access_log off;\n"
                                    "client_body_temp_path body;\n"
                                    "proxy_temp_path proxy;\n"
                                    "fastcgi_temp_path fastcgi;\n"
                                    "uwsgi_temp_path uwsgi;\n"
                                    "scgi_temp_path scgi;\n",
                          .after = "}\n"};
    const char *program = getenv("ROPED_TEST_NGINX");
    if (program)
        proxy.program = program;
    try_proxy(&proxy);
}

int main(void)
{
    static const int rows[N_KINDS] = {1, 64, 1024};
    char command[64];
    if (!mkdtemp(folder) || chmod(folder, 0755) != 0) {
        perror(folder);
        return EXIT_FAILURE;
    }
    for (int i = 0; i < N_KINDS; i++)
        request[i] = post_ones(rows[i], 256);
    RUN(haproxy_loses_nothing);
    RUN(nginx_loses_nothing);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        perror(folder);
    return check_done();
}
