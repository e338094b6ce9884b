/*
 * test_log.c - log lines: logfmt, one write each, filtered by level; and that
 * no reader, or none, can stop who writes them. Standard error becomes a socket
 * that keeps the borders of writes, a pipe, or a file. Checks print there, so
 * they come after release().
 */
#include "check.h"
#include "log.h"
#include "log_json.h"

#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_THREADS = 4, N_LINES = 50 };
enum { STUCK_SECONDS = 60 }; /* a test that waits so long has failed */

static int receiver = -1, real_stderr = -1;

/* Standard error goes to fd from here, and fd is no more. */
static void redirect(int fd)
{
    CHECK(fd >= 0);
    real_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static void capture(void)
{
    int pair[2];
    int size = 1 << 20;
    CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    redirect(pair[1]);
    receiver = pair[0];
}

/* A small pipe, ready while one of its four pages is free; the other end does
 * not block. */
static void capture_pipe(void)
{
    int ends[2];
    CHECK_INT(pipe(ends), 0);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 4 * 4096) > 0);
    CHECK_INT(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    redirect(ends[1]);
    receiver = ends[0];
}

/* What one write put there, or "" where there is nothing. */
static const char *next_write(void)
{
    static char text[8192];
    ssize_t n = recv(receiver, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void release(void)
{
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    if (receiver >= 0)
        close(receiver);
    receiver = -1;
    log_set_level(LOG_INFO);
}

static bool matches(const char *text, const char *pattern)
{
    regex_t regex;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool is_match = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return is_match;
}

TEST(a_line_is_logfmt_and_one_write)
{
    capture();
    log_line(LOG_WARN, "queue", "depth=%d op=%s", 7, "rope");
    char line[8192], more[8192];
    snprintf(line, sizeof line, "%s", next_write());
    snprintf(more, sizeof more, "%s", next_write());
    release();
    CHECK(matches(line, "^time=20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:"
                        "[0-9]{2}\\.[0-9]{3}Z level=warn event=queue depth=7 "
                        "op=rope\n$"));
    CHECK_TEXT(more, "");
}

static void expect_json(const char *line, size_t size, const char *expected)
{
    char out[256];
    CHECK(size <= sizeof out);
    out[log_json(line, out, size)] = '\0';
    CHECK_TEXT(out, expected);
}

TEST(pairs_become_members)
{
    expect_json("a=1 b=-0.5 c=true d=x e=\"y z\"", 200,
                "{\"a\":1,\"b\":-0.5,\"c\":true,\"d\":\"x\",\"e\":\"y z\"}");
    expect_json("mode=0600 at=1. v=1.2.3 none= n=-", 200,
                "{\"mode\":\"0600\",\"at\":\"1.\",\"v\":\"1.2.3\","
                "\"none\":\"\",\"n\":\"-\"}");
    expect_json("t=\"a\\\"b\\\\c\\x0a\\x9b\" u=\"\"", 200,
                "{\"t\":\"a\\\"b\\\\c\\u000a\\u009b\",\"u\":\"\"}");
    expect_json("cut=\"ab\\x", 200, "{\"cut\":\"abx\"}");
    expect_json("cut=\"ab\\", 200, "{\"cut\":\"ab\"}");
    expect_json("", 2, "{}");
    expect_json("a=1 long=\"123456789\" b=2", 14, "{\"a\":1,\"b\":2}");
}

TEST(a_line_may_be_json)
{
    char line[8192], out[300], text[300] = "";
    for (int c = 1; c < 256; c++)
        text[c - 1] = (char)c;
    capture();
    log_set_json(true);
    log_line(LOG_WARN, "queue", "depth=%d op=%s text=\"%s\"", 7, "rope",
             log_quote(text, out, sizeof out));
    log_set_json(false);
    snprintf(line, sizeof line, "%s", next_write());
    release();
    CHECK(matches(line, "^\\{\"time\":\"20[^\"]+Z\",\"level\":\"warn\","
                        "\"event\":\"queue\",\"depth\":7,\"op\":\"rope\","
                        "\"text\":\"(\\\\u00[01][0-9a-f]){31}[^\n]*\"\\}\n$"));
}

TEST(lines_below_the_level_are_not_written)
{
    char error[8192], none[8192];
    capture();
    log_set_level(LOG_ERROR);
    log_line(LOG_WARN, "a", "n=1");
    log_line(LOG_DEBUG, "b", "n=2");
    log_line(LOG_ERROR, "c", "n=3");
    snprintf(error, sizeof error, "%s", next_write());
    snprintf(none, sizeof none, "%s", next_write());
    release();
    CHECK_CONTAINS(error, "level=error event=c n=3\n");
    CHECK_TEXT(none, "");
    CHECK_INT(log_level_from_text("debug"), LOG_DEBUG);
    CHECK_INT(log_level_from_text("shout"), LOG_INFO);
}

TEST(a_line_that_is_too_long_is_cut_and_still_ends)
{
    char line[8192];
    static char text[4000];
    memset(text, 'x', sizeof text - 1);
    capture();
    log_line(LOG_INFO, "long", "text=%s", text);
    snprintf(line, sizeof line, "%s", next_write());
    release();
    size_t n = strlen(line);
    CHECK(n > 2000 && n < sizeof text);
    CHECK(n > 0 && line[n - 1] == '\n');
    CHECK(strchr(line, '\n') == line + n - 1);
}

static void *write_lines(void *context)
{
    for (int i = 0; i < N_LINES; i++)
        log_line(LOG_INFO, "thread", "who=%d n=%d", *(int *)context, i);
    return NULL;
}

TEST(lines_of_several_threads_do_not_mix)
{
    pthread_t thread[N_THREADS];
    int who[N_THREADS], n_whole = 0;
    capture();
    for (int i = 0; i < N_THREADS; i++) {
        who[i] = i;
        pthread_create(&thread[i], NULL, write_lines, &who[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N_THREADS * N_LINES; i++)
        n_whole += matches(next_write(), "^time=[^ ]+ level=info event=thread "
                                         "who=[0-9] n=[0-9]+\n$");
    release();
    CHECK_INT(n_whole, N_THREADS * N_LINES);
}

TEST(quoting_keeps_a_value_in_one_piece)
{
    char out[64], small[8];
    CHECK_TEXT(log_quote("NVIDIA H200", out, sizeof out), "NVIDIA H200");
    CHECK_TEXT(log_quote("a\"b\\c", out, sizeof out), "a\\\"b\\\\c");
    CHECK_TEXT(log_quote("a\nlevel=error", out, sizeof out),
               "a\\x0alevel=error");
    log_quote("\"\"\"\"\"\"\"\"", small, sizeof small);
    CHECK_INT(strlen(small) % 2, 0); /* never half an escape */
    CHECK(strlen(small) < sizeof small);
}

/* ESC starts the commands of a terminal; so does 0x9B alone on one of 8 bits.
 */
TEST(quoting_leaves_a_terminal_nothing_to_obey)
{
    char out[1024], all[256] = "";
    CHECK_TEXT(log_quote("\x1b[2J \x9b 2J", out, sizeof out),
               "\\x1b[2J \\x9b 2J");
    CHECK_TEXT(log_quote("\x01\x1f\x7f\x80\xff", out, sizeof out),
               "\\x01\\x1f\\x7f\\x80\\xff");
    CHECK_TEXT(log_quote("~ !", out, sizeof out), "~ !");
    for (int c = 1; c < 256; c++)
        all[c - 1] = (char)c;
    log_quote(all, out, sizeof out);
    for (size_t i = 0; out[i]; i++)
        CHECK(out[i] >= 0x20 && out[i] < 0x7F);
    CHECK_INT(strlen(out), 93 + 2 * 2 + (31 + 1 + 128) * 4);
}

TEST(quoting_cuts_between_characters)
{
    char out[16];
    for (size_t size = 1; size < sizeof out; size++) {
        memset(out, '#', sizeof out);
        log_quote("a\x1b\"\x80z", out, size);
        size_t n = strlen(out);
        CHECK(n == 0 || n == 1 || n == 5 || n == 7 || n == 11 || n == 12);
        CHECK(n < size && strncmp(out, "a\\x1b\\\"\\x80z", n) == 0);
        for (size_t i = size; i < sizeof out; i++)
            CHECK_INT(out[i], '#');
    }
}

/* How many whole lines are in the pipe; all of them must be. */
static int drain_pipe(char *last, size_t size)
{
    static char text[1 << 16];
    size_t bytes = 0;
    int n_lines = 0;
    for (ssize_t n;
         (n = read(receiver, text + bytes, sizeof text - 1 - bytes)) > 0;)
        bytes += (size_t)n;
    text[bytes] = '\0';
    last[0] = '\0';
    for (char *line = text, *end; *line; line = end + 1, n_lines++) {
        end = strchr(line, '\n');
        if (!end || strncmp(line, "time=", 5) != 0)
            return -1;
        snprintf(last, size, "%.*s", (int)(end - line), line);
    }
    return n_lines;
}

TEST(a_pipe_that_nobody_reads_takes_lines_away_not_time)
{
    enum { N = 1000 };
    char last[256], told[64];
    uint64_t before = log_dropped();
    alarm(STUCK_SECONDS); /* kills a test that hangs */
    capture_pipe();
    for (int i = 0; i < N; i++)
        log_line(LOG_INFO, "stuck", "n=%d", i);
    uint64_t n_dropped = log_dropped() - before;
    int n_written = drain_pipe(last, sizeof last);
    log_line(LOG_INFO, "again", "n=1");
    char more[8192];
    ssize_t n = read(receiver, more, sizeof more - 1);
    more[n > 0 ? n : 0] = '\0';
    log_line(LOG_INFO, "again", "n=2");
    int n_more = drain_pipe(last, sizeof last);
    release();
    alarm(0);
    CHECK(n_written > 10 && n_written < N);
    CHECK_INT(n_written + (int)n_dropped, N);
    snprintf(told, sizeof told, " level=warn event=log_dropped lines=%d\n",
             (int)n_dropped);
    CHECK_CONTAINS(more, told);
    CHECK_CONTAINS(strchr(more, '\n') ? strchr(more, '\n') : "",
                   " level=info event=again n=1\n");
    CHECK_INT(n_more, 1); /* they are told of once */
    CHECK_CONTAINS(last, "event=again n=2");
    CHECK_INT(log_dropped() - before, n_dropped);
}

TEST(threads_may_share_a_pipe_that_nobody_reads)
{
    pthread_t thread[N_THREADS];
    int who[N_THREADS];
    char last[256];
    uint64_t before = log_dropped();
    alarm(STUCK_SECONDS);
    capture_pipe();
    for (int i = 0; i < N_THREADS; i++) {
        who[i] = i;
        pthread_create(&thread[i], NULL, write_lines, &who[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
    int n_written = drain_pipe(last, sizeof last);
    release();
    alarm(0);
    CHECK(n_written > 10);
    CHECK_INT(n_written + (int)(log_dropped() - before), N_THREADS * N_LINES);
}

TEST(a_full_disk_and_a_reader_that_is_gone_are_counted)
{
    capture(); /* so that the lines of tests before this one are told of */
    log_line(LOG_INFO, "before", "n=0");
    release();
    uint64_t before = log_dropped();
    signal(SIGPIPE, SIG_IGN);
    redirect(open("/dev/full", O_WRONLY));
    log_line(LOG_INFO, "full", "n=1");
    log_line(LOG_INFO, "full", "n=2");
    uint64_t n_full = log_dropped() - before;
    release();
    capture_pipe();
    close(receiver);
    receiver = -1;
    log_line(LOG_INFO, "gone", "n=3");
    release();
    CHECK_INT(n_full, 2);
    CHECK_INT(log_dropped() - before, 3);
    capture();
    log_line(LOG_INFO, "back", "n=4");
    char told[8192], line[8192];
    snprintf(told, sizeof told, "%s", next_write());
    snprintf(line, sizeof line, "%s", next_write());
    release();
    CHECK_CONTAINS(told, "event=log_dropped lines=3\n");
    CHECK_CONTAINS(line, "event=back n=4\n");
}

/* A disk that gets full within a line, and has room later. */
TEST(a_line_after_half_a_line_stands_alone)
{
    char path[] = "/tmp/roped_log_XXXXXX", text[4096];
    int fd = mkstemp(path);
    struct rlimit limit, small;
    uint64_t before = log_dropped();
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    redirect(dup(fd));
    setrlimit(RLIMIT_FSIZE, &small);
    log_line(LOG_INFO, "first", "fits=true");
    log_line(LOG_INFO, "second", "fits=false");
    setrlimit(RLIMIT_FSIZE, &limit);
    log_line(LOG_INFO, "third", "fits=true");
    release();
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    CHECK_INT(log_dropped() - before, 1);
    CHECK(matches(text, "^time=[^ ]+ level=info event=first fits=true\n"
                        "time=[^\n]*\n"
                        "time=[^ ]+ level=warn event=log_dropped lines=1\n"
                        "time=[^ ]+ level=info event=third fits=true\n$"));
    close(fd);
    unlink(path);
}
