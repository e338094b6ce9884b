/*
 * test_terminal.c - ropectl on a terminal, which is one side of a pty, beside
 * ropectl in a pipe: colours, bars, and top, which must give the terminal back.
 */
#include "check.h"
#include "http/harness.h"

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT_BYTES = 1 << 18 };
static const char enter[] = "\033[?1049h", leave[] = "\033[?1049l",
                  show_cursor[] = "\033[?25h", bold[] = "\033[1m";

static struct server server;

static int columns = 100; /* of the next terminal */

/* A program on a terminal of so many columns and some rows. */
struct terminal {
    pid_t pid;
    int fd;
    size_t bytes;
    char output[OUTPUT_BYTES];
};

static void terminal_run(struct terminal *terminal, const char *program,
                         const char *arguments, int rows)
{
    struct winsize size = {.ws_row = (unsigned short)rows,
                           .ws_col = (unsigned short)columns};
    char command[512];
    snprintf(command, sizeof command, "exec %s %s", program, arguments);
    terminal->bytes = 0;
    terminal->output[0] = '\0';
    terminal->pid = forkpty(&terminal->fd, NULL, NULL, &size);
    if (terminal->pid == 0) {
        setenv("TERM", "xterm", 1);
        setenv("ROPED_URL", server.url, 0);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    if (terminal->pid < 0) { /* as a pid -1 is everybody */
        const bool is_missing = errno == ENOENT || errno == ENODEV;
        printf("%s: no pseudo-terminal here, /dev/pts: %s\n",
               is_missing ? "skipped" : "failed", strerror(errno));
        (void)server_stop(&server);
        exit(is_missing ? CHECK_SKIP : EXIT_FAILURE);
    }
}

static void terminal_start(struct terminal *terminal, const char *arguments,
                           int rows)
{
    terminal_run(terminal, ROPED_TEST_ROPECTL, arguments, rows);
}

/* Reads until part has come, the program has ended, or seconds have passed;
 * true where part is there. */
static bool terminal_read(struct terminal *terminal, const char *part,
                          double seconds)
{
    struct pollfd pollfd = {terminal->fd, POLLIN, 0};
    for (int left = (int)(seconds * 50); left > 0; left--) {
        if (part && strstr(terminal->output, part))
            return true;
        if (poll(&pollfd, 1, 20) == 0)
            continue;
        ssize_t n = read(terminal->fd, terminal->output + terminal->bytes,
                         OUTPUT_BYTES - 1 - terminal->bytes);
        if (n <= 0)
            break;
        terminal->bytes += (size_t)n;
        terminal->output[terminal->bytes] = '\0';
    }
    return part && strstr(terminal->output, part);
}

/* Reads the rest; what the program ended with, as waitpid says it. */
static int terminal_end(struct terminal *terminal)
{
    int status = -1;
    terminal_read(terminal, NULL, 20);
    CHECK(waitpid(terminal->pid, &status, 0) == terminal->pid);
    close(terminal->fd);
    return status;
}

/* What a program in a pipe wrote, standard error too. */
static void in_pipe(const char *arguments, char *output, size_t size)
{
    char command[512];
    snprintf(command, sizeof command,
             "TERM=xterm ROPED_URL=%s " ROPED_TEST_ROPECTL " %s 2>&1",
             server.url, arguments);
    CHECK_INT(run_command(command, output, size), 0);
}

TEST(names_are_bold_on_a_terminal_only)
{
    static struct terminal terminal;
    char output[8192];
    terminal_start(&terminal, "status", 40);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK_CONTAINS(terminal.output, "\033[1mready");
    terminal_start(&terminal, "status --output json", 40);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK(!strchr(terminal.output, '\033'));
    in_pipe("status", output, sizeof output);
    CHECK(!strchr(output, '\033'));
    setenv("NO_COLOR", "1", 1);
    terminal_start(&terminal, "status", 40);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK(!strchr(terminal.output, '\033'));
    unsetenv("NO_COLOR");
}

/* The line behind this, to its end. */
static void line_behind(const char *output, const char *start, char *line,
                        size_t size)
{
    const char *found = strstr(output, start);
    CHECK(found != NULL);
    found = found ? found + strlen(start) : "";
    snprintf(line, size, "%.*s", (int)strcspn(found, "\r\n"), found);
}

/* As whoever starts it copies it; --listen and --lanes are of the daemon. */
static void greets(const char *arguments, const char *url)
{
    static struct terminal terminal;
    char line[1024], output[4096];
    terminal_run(&terminal, ROPED_TEST_DAEMON, arguments, 40);
    CHECK(terminal_read(&terminal, "[3,4]}]}'\r\n", 20));
    CHECK_CONTAINS(terminal.output, " until Ctrl-C\r\n");
    CHECK_CONTAINS(terminal.output, url);
    line_behind(terminal.output, "in a shell    ", line, sizeof line);
    CHECK_INT(run_command(line, output, sizeof output), 0);
    CHECK_CONTAINS(output, "\"data\":[0.8485281");
    line_behind(terminal.output, "in a browser  ", line, sizeof line);
    if (strstr(url, "http://127")) {
        char command[1100];
        snprintf(command, sizeof command,
                 "curl -sS -H 'Accept: text/html' -o /dev/null "
                 "-w '%%{content_type}' %s",
                 line);
        CHECK_INT(run_command(command, output, sizeof output), 0);
        CHECK_CONTAINS(output, "text/html");
    }
    CHECK(write(terminal.fd, "\003", 1) == 1);
    CHECK_INT(terminal_end(&terminal), 0);
}

TEST(the_daemon_greets_on_a_terminal_only)
{
    static struct terminal terminal;
    char output[8192];
    greets("--backend cpu --listen 127.0.0.1:0", "http://127.0.0.1:");
    greets("--backend cpu --listen 0.0.0.0:0", "http://127.0.0.1:");
    greets("--backend cpu --listen unix:/tmp/roped_greeting.sock",
           "curl -sS --unix-socket /tmp/roped_greeting.sock http://localhost/");
    terminal_run(&terminal, ROPED_TEST_DAEMON,
                 "--backend cpu --listen 127.0.0.1:0 --log_format json", 40);
    CHECK(terminal_read(&terminal, "\"listening\"", 20));
    CHECK(!terminal_read(&terminal, "curl", 0.2));
    CHECK(write(terminal.fd, "\003", 1) == 1);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK_INT(run_command("timeout -s INT 1 " ROPED_TEST_DAEMON
                          " --backend cpu --listen 127.0.0.1:0 2>&1",
                          output, sizeof output),
              124);
    CHECK_CONTAINS(output, "event=listening");
    CHECK(!strstr(output, "curl"));
}

TEST(bench_has_a_bar_on_a_terminal_only)
{
    static struct terminal terminal;
    char output[8192];
    terminal_start(&terminal, "bench rmsnorm h=64 --seconds 1.2", 40);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK_CONTAINS(terminal.output, "\rmeasuring [=");
    CHECK_CONTAINS(terminal.output, "calls_per_second");
    in_pipe("bench rmsnorm h=64 --seconds 1.2", output, sizeof output);
    CHECK(!strstr(output, "measuring"));
}

/* Sends an answer's half, waits, and sends the rest. */
static void *answer_slowly(void *context)
{
    static char half[1 << 16];
    char request[4096];
    int socket = accept(*(int *)context, NULL, NULL);
    int n = snprintf(half, sizeof half,
                     "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                     2 * sizeof half);
    CHECK(read(socket, request, sizeof request) > 0);
    CHECK(write(socket, half, (size_t)n) == n);
    memset(half, 'x', sizeof half);
    CHECK(write(socket, half, sizeof half) == sizeof half);
    nanosleep(&(struct timespec){2, 0}, NULL);
    CHECK(write(socket, half, sizeof half) == sizeof half);
    close(socket);
    return NULL;
}

TEST(transfers_that_take_a_while_have_a_bar)
{
    static struct terminal terminal;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    char arguments[128];
    pthread_t thread;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, bytes) == 0 &&
          listen(listener, 1) == 0 &&
          getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
    CHECK(pthread_create(&thread, NULL, answer_slowly, &listener) == 0);
    snprintf(arguments, sizeof arguments,
             "--server http://127.0.0.1:%d regions get x /dev/null",
             ntohs(address.sin_port));
    terminal_start(&terminal, arguments, 40);
    CHECK_INT(terminal_end(&terminal), 0);
    pthread_join(thread, NULL);
    close(listener);
    CHECK_CONTAINS(terminal.output, "\rreceiving [============>");
    CHECK_CONTAINS(terminal.output, " 50% 64.0 of 128.0 KiB, ");
    CHECK_CONTAINS(terminal.output, "iB/s\033[K");
}

/* ---------------------------------------------------------------------- top */

TEST(top_prints_as_often_as_it_is_told)
{
    static char output[65536];
    const char *end = output;
    in_pipe("top --count 2 --interval 0.1", output, sizeof output);
    CHECK(!strchr(output, '\033'));
    CHECK(strncmp(output, "look ", 5) == 0);
    CHECK(strstr(output + 1, "\nlook ") &&
          !strstr(strstr(output + 1, "\nlook ") + 1, "\nlook "));
    in_pipe("top --count 3 --interval 0.1 --output json", output,
            sizeof output);
    for (int i = 0; i < 3; i++) {
        cJSON *document = cJSON_ParseWithOpts(end, &end, false);
        cJSON *operators = cJSON_GetObjectItem(document, "operators");
        CHECK(cJSON_GetArraySize(operators) > 10);
        CHECK(*end == '\n');
        cJSON_Delete(document);
    }
    CHECK(strcmp(end, "\n") == 0);
}

/* A number of the document's first operator, or of an object. */
static double number(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

TEST(top_counts_what_is_done)
{
    static char output[65536];
    char command[256];
    snprintf(command, sizeof command,
             "exec " ROPED_TEST_ROPECTL " --server %s bench rmsnorm h=64 "
             "--seconds 3 >/dev/null",
             server.url);
    FILE *bench = popen(command, "r");
    in_pipe("top --count 1 --interval 1 --output json", output, sizeof output);
    cJSON *document = cJSON_Parse(output);
    const cJSON *busiest = cJSON_GetObjectItem(document, "operators")->child;
    CHECK(strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(busiest, "name")),
                 "rmsnorm") == 0);
    CHECK(number(busiest, "calls_per_second") > 10);
    CHECK(number(busiest, "p50_ms") > 0);
    CHECK(number(busiest, "p99_ms") >= number(busiest, "p90_ms"));
    CHECK(number(busiest, "p90_ms") >= number(busiest, "p50_ms"));
    CHECK(number(busiest, "p99_ms") < 1e4);
    CHECK(
        cJSON_IsNull(cJSON_GetObjectItem(busiest->next, "p50_ms"))); /* idle */
    CHECK_DOUBLE(number(cJSON_GetObjectItem(document, "per_second"), "calls"),
                 number(busiest, "calls_per_second"), 1e-6);
    cJSON_Delete(document);
    CHECK(pclose(bench) == 0);
}

TEST(top_gives_the_terminal_back)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    static struct terminal terminal;
    for (int i = 0; i < 3; i++) {
        terminal_start(&terminal, "top --interval 0.2", 10);
        CHECK(terminal_read(&terminal, "devices", 10));
        CHECK_CONTAINS(terminal.output, enter);
        CHECK(!strstr(terminal.output, leave));
        if (signals[i] == SIGINT)
            CHECK(write(terminal.fd, "\003", 1) == 1); /* Ctrl-C */
        else
            kill(terminal.pid, signals[i]);
        int status = terminal_end(&terminal);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        const char *last = strstr(terminal.output, leave);
        CHECK(last && strstr(terminal.output, show_cursor));
        CHECK(last && strcmp(last, leave) == 0); /* nothing behind it */
    }
    terminal_start(&terminal, "top --interval 0.1 --count 2", 10);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK_CONTAINS(terminal.output, leave);
}

TEST(top_can_be_stopped_and_continued)
{
    static struct terminal terminal;
    int status = 0;
    terminal_start(&terminal, "top --interval 0.2", 10);
    CHECK(terminal_read(&terminal, "devices", 10));
    kill(terminal.pid, SIGTSTP);
    CHECK(waitpid(terminal.pid, &status, WUNTRACED) == terminal.pid);
    CHECK(WIFSTOPPED(status));
    CHECK(terminal_read(&terminal, leave, 10));
    CHECK(!strstr(strstr(terminal.output, leave), enter));
    kill(terminal.pid, SIGCONT);
    terminal.bytes = 0;
    CHECK(terminal_read(&terminal, "devices", 10));
    CHECK_CONTAINS(terminal.output, enter);
    kill(terminal.pid, SIGTERM);
    terminal_end(&terminal);
}

/* A frame is no longer than the screen, so that nothing scrolls away. */
TEST(top_fits_the_screen)
{
    static struct terminal terminal;
    terminal_start(&terminal, "top --interval 0.1 --count 1", 10);
    CHECK_INT(terminal_end(&terminal), 0);
    int n_lines = 0;
    for (const char *at = terminal.output; (at = strstr(at, "\r\n")); at++)
        n_lines++;
    CHECK_INT(n_lines, 9);
    CHECK_CONTAINS(terminal.output, bold);
}

/* Cells of the longest line of a frame; escape sequences take none. */
static int longest_line(const char *at)
{
    int most = 0, n = 0;
    for (; *at; at++) {
        if (*at == '\033')
            while (*at && !(*at >= 'A' && *at <= 'Z') &&
                   !(*at >= 'a' && *at <= 'z'))
                at++;
        else
            n = *at == '\r' || *at == '\n' ? 0 : n + ((*at & 0xC0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

TEST(top_is_as_wide_as_the_terminal)
{
    static struct terminal terminal;
    static const int widths[] = {80, 200};
    for (int i = 0; i < 2; i++) {
        columns = widths[i];
        terminal_start(&terminal, "top --interval 0.1 --count 1", 60);
        CHECK_INT(terminal_end(&terminal), 0);
        CHECK(longest_line(terminal.output) <= widths[i]);
        CHECK((longest_line(terminal.output) > 80) == (widths[i] > 80));
        CHECK_CONTAINS(terminal.output, "kernel_ms");
        CHECK_CONTAINS(terminal.output, "table_bytes"); /* of a long list */
        CHECK_CONTAINS(terminal.output, "\033[1mok");
        CHECK_CONTAINS(terminal.output, "sorted by calls/s: arrows");
    }
    columns = 100;
}

TEST(top_takes_keys)
{
    static struct terminal terminal;
    static const char *const presses[][2] = {
        {"e", "sorted by errors/s"},       {"n", "sorted by operator"},
        {"\033[D", "sorted by kernel_ms"}, {"\033[C", "sorted by operator"},
        {"p", "sorted by p99_ms"},         {"x", "sorted by p99_ms"}};
    terminal_start(&terminal, "top --interval 0.3", 60);
    CHECK(terminal_read(&terminal, "binary_backward", 10));
    for (size_t i = 0; i < sizeof presses / sizeof *presses; i++) {
        terminal.bytes = 0;
        terminal.output[0] = '\0';
        CHECK(write(terminal.fd, presses[i][0], strlen(presses[i][0])) > 0);
        CHECK(terminal_read(&terminal, presses[i][1], 10));
        if (presses[i][0][0] == 'n') { /* from a to r */
            const char *first = strstr(terminal.output, "add_rmsnorm"),
                       *last = strstr(terminal.output, "rope_quantize");
            CHECK(first && last && first < last);
        }
    }
    CHECK(write(terminal.fd, "q", 1) == 1);
    CHECK_INT(terminal_end(&terminal), 0); /* and not a signal */
    CHECK_CONTAINS(terminal.output, leave);
    /* before the first look; and the terminal echoes again */
    terminal_run(&terminal, "",
                 "sh -c '" ROPED_TEST_ROPECTL " top --interval 60; stty -a'",
                 60);
    CHECK(terminal_read(&terminal, enter, 10));
    CHECK(write(terminal.fd, "q", 1) == 1);
    CHECK_INT(terminal_end(&terminal), 0);
    CHECK_CONTAINS(terminal.output, "isig icanon ");
    CHECK_CONTAINS(terminal.output, " echo ");
}

TEST(top_sees_a_restart)
{
    static struct terminal terminal;
    char arguments[128], port[32];
    struct server other;
    server_start(&other, NULL);
    snprintf(arguments, sizeof arguments,
             "--server http://127.0.0.1:%d top --interval 0.2", other.port);
    terminal_start(&terminal, arguments, 30);
    CHECK(terminal_read(&terminal, "state up", 10));
    CHECK(server_stop(&other));
    CHECK(terminal_read(&terminal, "state unreachable", 10));
    CHECK(terminal_read(&terminal, "could not connect", 1));
    snprintf(port, sizeof port, "127.0.0.1:%d", other.port);
    const char *flags[] = {"--listen", port, NULL};
    nanosleep(&(struct timespec){1, 100000000}, NULL); /* another start time */
    server_start(&other, flags);
    CHECK(terminal_read(&terminal, "state restarted", 10));
    CHECK(write(terminal.fd, "\003", 1) == 1);
    terminal_end(&terminal);
    CHECK_CONTAINS(terminal.output, leave);
    CHECK(server_stop(&other));
}

TEST(top_refuses_what_it_cannot_do)
{
    static struct terminal terminal;
    terminal_start(&terminal, "top --server http://127.0.0.1:1", 30);
    int status = terminal_end(&terminal);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4);
    CHECK(!strstr(terminal.output, enter));
    terminal_start(&terminal, "top --intervall 2", 30);
    status = terminal_end(&terminal);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    CHECK_CONTAINS(terminal.output, "did you mean 'interval'?");
    terminal_start(&terminal, "top --count 1.5", 30);
    status = terminal_end(&terminal);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

int main(void)
{
    unsetenv("NO_COLOR");
    server_start(&server, NULL);
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
