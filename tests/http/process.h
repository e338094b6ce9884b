/*
 * process.h - a daemon whose standard error is a pipe of the test's, which the
 * harness has no part in. Include it after check.h.
 */
#ifndef ROPED_TESTS_HTTP_PROCESS_H
#define ROPED_TESTS_HTTP_PROCESS_H

#include "http/service.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STUCK_SECONDS = 300 }; /* a test program that takes so long has failed */

static struct server server; /* server.log is "": there is no such file */
static int log_fd = -1;

static void (*before_exec)(void); /* in the child, or NULL */

/* Starts roped with these flags; *out reads its standard error. */
static inline pid_t spawn(const char *const *flags, int *out)
{
    enum { MAX_ARGUMENTS = 16 };
    const char *program = getenv("ROPED_TEST_BIN");
    const char *arguments[MAX_ARGUMENTS] = {program ? program
                                                    : ROPED_TEST_DAEMON};
    int ends[2], n = 1;
    for (; *flags && n < MAX_ARGUMENTS - 1; flags++)
        arguments[n++] = *flags;
    CHECK_INT(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
            _exit(126);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (before_exec)
            before_exec();
        execv(arguments[0], (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    close(ends[1]);
    *out = ends[0];
    return pid;
}

/* What it writes until it ends; returns its exit code. */
static inline int read_to_end(pid_t pid, int fd, char *text, size_t size)
{
    int status = -1;
    size_t bytes = 0;
    for (ssize_t n; (n = read(fd, text + bytes, size - 1 - bytes)) > 0;)
        bytes += (size_t)n;
    text[bytes] = '\0';
    close(fd);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Waits for a line of the daemon's log with part in it. */
static inline const char *await_line(const char *part)
{
    static char line[4096];
    size_t n = 0;
    char c;
    while (read(log_fd, &c, 1) == 1) {
        if (c != '\n' && n < sizeof line - 1) {
            line[n++] = c;
            continue;
        }
        line[n] = '\0';
        if (strstr(line, part))
            return line;
        n = 0;
    }
    CHECK_FAIL("the log ended without '%s'", part);
    return "";
}

/* A daemon on a free port of 127.0.0.1. */
static inline void start(const char *key, const char *value)
{
    const char *flags[] = {"--listen", "127.0.0.1:0", "--backend", "cpu",
                           key,        value,         NULL};
    memset(&server, 0, sizeof server);
    server.pid = spawn(flags, &log_fd);
    const char *port = strstr(await_line("event=listening"), " port=");
    server.port = port ? (int)strtol(port + 6, NULL, 10) : 0;
    snprintf(server.url, sizeof server.url, "http://127.0.0.1:%d", server.port);
}

static inline void stop(void)
{
    CHECK(server_stop(&server));
    close(log_fd);
}

/* Reads the port from the file that the daemon writes. */
static inline void await_port(const char *path)
{
    double until = now_seconds() + 10;
    server.port = 0;
    while (server.port == 0 && now_seconds() < until) {
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%d", &server.port) != 1)
            pause_seconds(0.01);
        if (file)
            fclose(file);
    }
    CHECK(server.port > 0);
    snprintf(server.url, sizeof server.url, "http://127.0.0.1:%d", server.port);
}

/* One that nobody hears, and whose child does something before it is exec'd. */
static inline void start_unheard(void (*prepare)(void))
{
    char path[64];
    int said;
    snprintf(path, sizeof path, "/tmp/roped_unheard_%d", (int)getpid());
    const char *flags[] = {
        "--listen", "127.0.0.1:0", "--backend", "cpu", "--log_requests",
        "true",     "--port_file", path,        NULL};
    unlink(path);
    before_exec = prepare;
    memset(&server, 0, sizeof server);
    server.pid = spawn(flags, &said);
    before_exec = NULL;
    close(said);
    await_port(path);
    unlink(path);
}

/* The exit code of the daemon, which is ending; text: the rest of its log. */
static inline int await_end(char *text, size_t size)
{
    return read_to_end(server.pid, log_fd, text, size);
}

#endif
