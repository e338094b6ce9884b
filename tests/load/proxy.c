/*
 * proxy.c - a configuration is the page's own file with other ports in it.
 */
#include "load/proxy.h"

#include "load/client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ENOUGH_ANSWERS = 20, /* in a row: each daemon is known to be there */
    START_SECONDS = 10,
    PAGE_PORT = 8000 /* of the first daemon, in the files */
};

const struct proxy_kind proxy_haproxy = {
    .file = "haproxy.cfg",
    .port = "127.0.0.1:",
    .command = {"haproxy", "-db", "-f", "haproxy.cfg"}};

const struct proxy_kind proxy_nginx = {
    .file = "nginx.conf",
    .port = "127.0.0.1:",
    .before = "daemon off; master_process off; pid pid;\n"
              "events {}\nhttp { access_log off;\n"
              "client_body_temp_path body; proxy_temp_path proxy;\n"
              "fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;\n"
              "scgi_temp_path scgi;\n",
    .after = "}\n",
    .command = {"nginx", "-p", ".", "-e", "log", "-c", "nginx.conf"}};

const struct proxy_kind proxy_envoy = {.file = "envoy.yaml",
                                       .port = "port_value: ",
                                       .command = {"envoy", "-c", "envoy.yaml",
                                                   "--disable-hot-restart",
                                                   "-l", "warning"}};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "proxy: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

const char *proxy_find_program(const char *name)
{
    static char path[512];
    const char *folders = getenv("PATH");
    char all[4096];
    snprintf(all, sizeof all, "%s:/usr/sbin:/usr/local/sbin",
             folders ? folders : "");
    for (char *rest, *at = strtok_r(all, ":", &rest); at;
         at = strtok_r(NULL, ":", &rest)) {
        snprintf(path, sizeof path, "%s/%s", at, name);
        if (access(path, X_OK) == 0)
            return path;
    }
    return NULL;
}

/* ---------------------------------------------------------------- the file */

/* A copy of one line, with the ports of this run for those of the page. */
static void write_line(FILE *out, char *line, const struct proxy *proxy,
                       const uint16_t daemons[PROXY_DAEMONS])
{
    const char *mark = proxy->kind->port;
    char *at;
    while ((at = strstr(line, mark)) != NULL) {
        char *number = at + strlen(mark);
        fwrite(line, 1, (size_t)(number - line), out);
        long i = strtol(number, &line, 10) - PAGE_PORT;
        fprintf(out, "%d",
                i >= 0 && i < PROXY_DAEMONS ? daemons[i] : proxy->port);
    }
    fputs(line, out);
}

static void write_config(const struct proxy *proxy,
                         const uint16_t daemons[PROXY_DAEMONS])
{
    const struct proxy_kind *kind = proxy->kind;
    char source[512], path[64], line[512];
    snprintf(source, sizeof source, ROPED_TEST_PROXIES "/%s", kind->file);
    snprintf(path, sizeof path, "%s/%s", proxy->folder, kind->file);
    FILE *in = fopen(source, "r"), *out = fopen(path, "w");
    if (!in || !out)
        die(in ? path : source);
    if (kind->before)
        fputs(kind->before, out);
    while (fgets(line, sizeof line, in))
        write_line(out, line, proxy, daemons);
    if (kind->after)
        fputs(kind->after, out);
    fclose(in);
    fclose(out);
}

/* ------------------------------------------------------------- the process */

static void run_program(const struct proxy *proxy, const char *program)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (chdir(proxy->folder) != 0 || !freopen("log", "w", stderr) ||
        !freopen("/dev/null", "w", stdout))
        _exit(126);
    execv(program, proxy->kind->command);
    _exit(127);
}

static bool is_answered(uint16_t port)
{
    struct http_request request =
        request_make("GET", "/v2/health/live", "", NULL, 0);
    struct http_answer answer = {0};
    int fd = client_open(port);
    bool is_whole = fd >= 0 && client_exchange(fd, &request, NULL, 0, &answer);
    if (fd >= 0)
        close(fd);
    return is_whole && answer.code == 200;
}

static void await(const struct proxy *proxy)
{
    double since = now_seconds();
    for (int n = 0; n < ENOUGH_ANSWERS;) {
        bool is_there = is_answered(proxy->port);
        n = is_there ? n + 1 : 0;
        if (!is_there)
            pause_seconds(0.05);
        if (now_seconds() - since > START_SECONDS) {
            fprintf(stderr, "proxy: %s with %s does not answer; %s/log\n",
                    proxy->kind->command[0], proxy->kind->file, proxy->folder);
            exit(EXIT_FAILURE);
        }
    }
}

bool proxy_start(struct proxy *proxy, const struct proxy_kind *kind,
                 const uint16_t daemons[PROXY_DAEMONS])
{
    const char *program = proxy_find_program(kind->command[0]);
    if (!program) {
        printf("no %s: %s is not tried\n", kind->command[0], kind->file);
        return false;
    }
    *proxy = (struct proxy){
        .kind = kind, .port = free_port(), .folder = "/tmp/roped_proxy_XXXXXX"};
    if (!mkdtemp(proxy->folder) || chmod(proxy->folder, 0755) != 0)
        die(proxy->folder);
    write_config(proxy, daemons);
    fflush(NULL);
    proxy->pid = fork();
    if (proxy->pid < 0)
        die("fork");
    if (proxy->pid == 0)
        run_program(proxy, program);
    await(proxy);
    return true;
}

void proxy_stop(struct proxy *proxy)
{
    char command[64];
    kill(proxy->pid, SIGTERM);
    waitpid(proxy->pid, NULL, 0);
    snprintf(command, sizeof command, "rm -r %s", proxy->folder);
    if (system(command) != 0)
        perror(proxy->folder);
}
