/*
 * log.c - lines on standard error that never make the daemon wait.
 *
 * DESIGN. Whoever reads the log may stop: a stuck pipe, a full disk. A line is
 * then dropped and counted, and the first line that goes through again is
 * preceded by one that says how many are missing. O_NONBLOCK would be the short
 * way, but it belongs to the open file, which other processes share. So a line
 * is written only where poll says that standard error takes data, under a lock,
 * so that no other thread of the daemon fills it in between. A line is at most
 * PIPE_BUF: a pipe that is ready takes all of it at once. So does a socket,
 * which is ready while a good part of its buffer is free. A regular file is
 * always ready, and fails where the disk is full. A call that was interrupted
 * is made again, and what a file did not take of a line is written after it.
 *
 * LIMITS. A write may still wait where another process fills the same pipe
 * between poll and write, on a terminal with less room than a line, and on a
 * file system that hangs.
 */
#include "log.h"

#include "log_json.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TRIES = 100 }; /* of one line: under the lock nothing may hang */

/* A line that is being made. text[0] is a line feed, and written only where
 * the line before was cut off. */
struct line {
    char text[2048];
    size_t bytes;
};
_Static_assert(sizeof((struct line *)0)->text <= PIPE_BUF,
               "a pipe must take a line whole");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_told; /* under lock: dropped lines that the log tells of */
static bool is_cut_off; /* under lock: the log ends in half a line */
static atomic_uint_least64_t n_dropped;

static atomic_int least_severe = LOG_INFO;
static bool writes_json;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store(&least_severe, (int)level);
}

void log_set_json(bool is_json)
{
    writes_json = is_json;
}

enum log_level log_level(void)
{
    return (enum log_level)atomic_load(&least_severe);
}

const char *log_level_text(enum log_level level)
{
    return level_names[level];
}

enum log_level log_level_from_text(const char *text)
{
    for (int i = 0; i <= LOG_DEBUG; i++)
        if (strcmp(text, level_names[i]) == 0)
            return (enum log_level)i;
    return LOG_INFO;
}

uint64_t log_dropped(void)
{
    return atomic_load_explicit(&n_dropped, memory_order_relaxed);
}

static void line_start(struct line *line, enum log_level level,
                       const char *event)
{
    char date[32];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    int n = snprintf(line->text, sizeof line->text,
                     "\ntime=%s.%03ldZ level=%s event=%s ", date,
                     now.tv_nsec / 1000000, level_names[level], event);
    line->bytes = (size_t)n;
}

/* Its pairs are complete: the form that is wanted, and the line feed. */
static void line_end(struct line *line)
{
    if (writes_json) {
        struct line json = {.text = "\n"};
        line->text[line->bytes] = '\0';
        json.bytes =
            1 + log_json(line->text + 1, json.text + 1, sizeof json.text - 2);
        *line = json;
    }
    line->text[line->bytes++] = '\n';
}

/* True: it takes data now, without a wait. */
static bool takes_data(void)
{
    struct pollfd stream = {.fd = STDERR_FILENO, .events = POLLOUT};
    int n = -1;
    for (int i = 0; i < MOST_TRIES && n < 0; i++) {
        n = poll(&stream, 1, 0);
        if (n < 0 && errno != EINTR)
            break;
    }
    return n == 1 && (stream.revents & POLLOUT);
}

/* Under lock. False: it did not go through, at least not whole. */
static bool put(const struct line *line)
{
    const char *from = is_cut_off ? line->text : line->text + 1;
    size_t bytes = (size_t)(line->text + line->bytes - from);
    for (int i = 0; i < MOST_TRIES && bytes > 0 && takes_data(); i++) {
        ssize_t n = write(STDERR_FILENO, from, bytes);
        if (n < 0 && errno != EINTR)
            break;
        if (n <= 0)
            continue;
        from += n;
        bytes -= (size_t)n;
        is_cut_off = bytes > 0;
    }
    return bytes == 0;
}

/* Under lock. Tells of lines that are missing before the one that follows. */
static bool put_dropped(void)
{
    struct line line;
    uint64_t n = log_dropped();
    if (n == n_told || atomic_load(&least_severe) < LOG_WARN)
        return true;
    line_start(&line, LOG_WARN, "log_dropped");
    line.bytes +=
        (size_t)snprintf(line.text + line.bytes, sizeof line.text - line.bytes,
                         "lines=%llu", (unsigned long long)(n - n_told));
    line_end(&line);
    if (!put(&line))
        return false;
    n_told = n;
    return true;
}

void log_line(enum log_level level, const char *event, const char *format, ...)
{
    struct line line;
    va_list arguments;
    if ((int)level > atomic_load(&least_severe))
        return;
    line_start(&line, level, event);
    size_t room = sizeof line.text - line.bytes - 1;
    va_start(arguments, format);
    int n = vsnprintf(line.text + line.bytes, room, format, arguments);
    va_end(arguments);
    if (n > 0)
        line.bytes += (size_t)n < room ? (size_t)n : room - 1;
    line_end(&line);
    pthread_mutex_lock(&lock);
    if (!put_dropped() || !put(&line))
        atomic_fetch_add_explicit(&n_dropped, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

void log_for_people(const char *text)
{
    struct line line;
    if (writes_json || atomic_load(&least_severe) < LOG_INFO ||
        !isatty(STDERR_FILENO))
        return;
    line.bytes = (size_t)snprintf(line.text, sizeof line.text, "\n%s", text);
    if (line.bytes >= sizeof line.text)
        line.bytes = sizeof line.text - 1;
    pthread_mutex_lock(&lock);
    (void)put(&line);
    pthread_mutex_unlock(&lock);
}

const char *log_quote(const char *text, char *out, unsigned long out_bytes)
{
    size_t at = 0;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char piece[5] = {(char)c};
        size_t bytes = 1;
        if (c < 0x20 || c >= 0x7F)
            bytes = (size_t)snprintf(piece, sizeof piece, "\\x%02x", c);
        else if (c == '"' || c == '\\')
            bytes = (size_t)snprintf(piece, sizeof piece, "\\%c", c);
        if (at + bytes >= out_bytes)
            break;
        memcpy(out + at, piece, bytes);
        at += bytes;
    }
    out[at] = '\0';
    return out;
}
