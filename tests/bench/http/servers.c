/*
 * servers.c - starting and stopping.
 */
#include "bench/http/servers.h"

#include "load/client.h"
#include "load/proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 60000, STOP_MS = 20000, MAX_ARGUMENTS = 48 };

static cpu_set_t all_cpus;
static int n_started;

static void die(const char *what)
{
    fprintf(stderr, "bench_http: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* -------------------------------------------------------------------- CPUs */

void pin_self(int cpu)
{
    cpu_set_t set;
    if (CPU_COUNT(&all_cpus) == 0)
        sched_getaffinity(0, sizeof all_cpus, &all_cpus);
    CPU_ZERO(&set);
    if (cpu >= 0)
        CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, cpu >= 0 ? &set : &all_cpus);
}

void pick_cpus(int *servers, int *clients)
{
    int found[2] = {ANY_CPU, ANY_CPU}, n = 0;
    pin_self(ANY_CPU);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET((size_t)cpu, &all_cpus))
            found[n++] = cpu;
    *servers = n == 2 ? found[0] : ANY_CPU;
    *clients = n == 2 ? found[1] : ANY_CPU;
}

/* ---------------------------------------------------------------- children */

/* In the child: dies with its parent, says nothing but to its log. */
static void become(struct server *server, const char *const *arguments, int out,
                   int cpu)
{
    char log[96];
    snprintf(log, sizeof log, "%s.log", server->files);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(126);
    dup2(fd, STDERR_FILENO);
    dup2(out >= 0 ? out : fd, STDOUT_FILENO);
    pin_self(cpu);
    execvp(arguments[0], (char *const *)(uintptr_t)arguments);
    _exit(127);
}

static void name_files(struct server *server)
{
    memset(server, 0, sizeof *server);
    snprintf(server->files, sizeof server->files, "/tmp/roped_bench_%d_%d",
             (int)getpid(), n_started++);
}

static void start(struct server *server, const char *const *arguments, int out,
                  int cpu)
{
    fflush(NULL);
    pin_self(ANY_CPU);
    server->pid = fork();
    if (server->pid < 0)
        die("fork");
    if (server->pid == 0)
        become(server, arguments, out, cpu);
}

static void print_log(const struct server *server)
{
    char line[512], path[96];
    snprintf(path, sizeof path, "%s.log", server->files);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        fputs(line, stderr);
    if (file)
        fclose(file);
}

/* Ends the run if the child has ended. */
static void check_alive(struct server *server, const char *what)
{
    int status;
    if (waitpid(server->pid, &status, WNOHANG) != server->pid)
        return;
    print_log(server);
    fprintf(stderr, "bench_http: %s ended with status %d\n", what, status);
    exit(EXIT_FAILURE);
}

/* Waits until somebody listens. */
static void await(struct server *server, const char *what)
{
    for (int i = 0; i < START_MS / 10; i++) {
        int fd = server->port ? client_open(server->port) : -1;
        if (fd >= 0) {
            close(fd);
            return;
        }
        check_alive(server, what);
        pause_seconds(0.01);
    }
    print_log(server);
    fprintf(stderr, "bench_http: %s did not start\n", what);
    exit(EXIT_FAILURE);
}

void server_stop(struct server *server)
{
    char path[96];
    static const char *const suffix[] = {".log", ".port", ".conf"};
    if (server->pid == 0)
        return;
    kill(server->pid, SIGTERM);
    for (int i = 0; i < STOP_MS / 10; i++) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            break;
        }
        pause_seconds(0.01);
    }
    if (server->pid) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++) {
        snprintf(path, sizeof path, "%s%s", server->files, suffix[i]);
        unlink(path);
    }
    memset(server, 0, sizeof *server);
}

uint64_t server_rss_bytes(const struct server *server)
{
    char path[64];
    unsigned long long size = 0, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)server->pid);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &size, &resident) != 2)
            resident = 0;
        fclose(file);
    }
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

double server_cpu_seconds(const struct server *server)
{
    clockid_t clock;
    struct timespec time = {0};
    if (clock_getcpuclockid(server->pid, &clock) == 0)
        clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------- the three */

void server_raw(struct server *server, int cpu)
{
    const char *const arguments[] = {"/proc/self/exe", "raw-server", NULL};
    char text[16] = "";
    int ends[2];
    name_files(server);
    if (pipe(ends) != 0)
        die("pipe");
    start(server, arguments, ends[1], cpu);
    close(ends[1]);
    for (size_t at = 0; at + 1 < sizeof text && !strchr(text, '\n');) {
        ssize_t n = read(ends[0], text + at, sizeof text - 1 - at);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    close(ends[0]);
    server->port = (uint16_t)strtol(text, NULL, 10);
    await(server, "the raw server");
}

static uint16_t read_port(const char *path)
{
    char text[16] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    bool is_read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return is_read ? (uint16_t)strtol(text, NULL, 10) : 0;
}

void server_roped(struct server *server, const char *binary,
                  const char *backend, const char *const *flags, int cpu)
{
    char port_file[96];
    name_files(server);
    snprintf(port_file, sizeof port_file, "%s.port", server->files);
    const char *arguments[MAX_ARGUMENTS] = {
        binary,      "--listen", "127.0.0.1:0", "--port-file", port_file,
        "--backend", backend,    "--log-level", "warn"};
    int n = 9;
    for (; flags && *flags && n < MAX_ARGUMENTS - 1; flags++)
        arguments[n++] = *flags;
    unlink(port_file);
    start(server, arguments, -1, cpu);
    for (int i = 0; i < START_MS / 10 && server->port == 0; i++) {
        pause_seconds(0.01);
        check_alive(server, binary);
        server->port = read_port(port_file);
    }
    await(server, binary);
}

/* The server block, with TLS where there is a folder. */
static void write_site(FILE *file, uint16_t port, const char *folder)
{
    if (folder)
        fprintf(file,
                "  server { listen 127.0.0.1:%u ssl;\n"
                "    ssl_certificate %s/server.pem;\n"
                "    ssl_certificate_key %s/server.key;\n"
                "    ssl_protocols TLSv1.2 TLSv1.3; client_max_body_size 0;\n"
                "    location /files/ { alias %s/; }\n"
                "    location / { return 200; } }\n",
                (unsigned)port, folder, folder, folder);
    else
        fprintf(file,
                "  server { listen 127.0.0.1:%u; location / { return 200; } "
                "}\n",
                (unsigned)port);
}

bool server_nginx(struct server *server, const char *folder, int cpu)
{
    char conf[96];
    const char *program = proxy_find_program("nginx");
    name_files(server);
    if (!program)
        return false;
    snprintf(conf, sizeof conf, "%s.conf", server->files);
    FILE *file = fopen(conf, "w");
    if (!file)
        die(conf);
    uint16_t port = free_port();
    fprintf(file,
            "daemon off;\nmaster_process off;\nworker_processes 1;\n"
            "pid %s.pid;\nerror_log stderr crit;\n"
            "events { worker_connections 4096; }\n"
            "http {\n  access_log off;\n"
            "  client_body_temp_path /tmp;\n  proxy_temp_path /tmp;\n"
            "  fastcgi_temp_path /tmp;\n  uwsgi_temp_path /tmp;\n"
            "  scgi_temp_path /tmp;\n"
            "  keepalive_timeout 75;\n  keepalive_requests 1000000000;\n",
            server->files);
    write_site(file, port, folder);
    fputs("}\n", file);
    fclose(file);
    const char *const arguments[] = {program, "-e", "stderr", "-c", conf, NULL};
    start(server, arguments, -1, cpu);
    server->port = port;
    await(server, "nginx");
    return true;
}
