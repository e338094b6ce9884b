/*
 * test_log.c - log lines: logfmt, one write each, filtered by level. Standard
 * error becomes a socket that keeps the borders of writes.
 */
#include "check.h"
#include "log.h"

#include <pthread.h>
#include <regex.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_THREADS = 4, N_LINES = 50 };

static int receiver = -1, real_stderr = -1;

static void capture(void)
{
    int pair[2];
    int size = 1 << 20;
    CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    real_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    receiver = pair[0];
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
    close(receiver);
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
    CHECK_TEXT(log_quote("a\nlevel=error", out, sizeof out), "a level=error");
    CHECK_TEXT(log_quote("\x01\x7f", out, sizeof out), "  ");
    log_quote("\"\"\"\"\"\"\"\"", small, sizeof small);
    CHECK_INT(strlen(small) % 2, 0); /* never half an escape */
    CHECK(strlen(small) < sizeof small);
}

int main(void)
{
    RUN(a_line_is_logfmt_and_one_write);
    RUN(lines_below_the_level_are_not_written);
    RUN(a_line_that_is_too_long_is_cut_and_still_ends);
    RUN(lines_of_several_threads_do_not_mix);
    RUN(quoting_keeps_a_value_in_one_piece);
    return check_done();
}
