/*
 * log.c - logfmt lines on standard error, each a single write.
 */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int least_severe = LOG_INFO;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store(&least_severe, (int)level);
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

void log_line(enum log_level level, const char *event, const char *format, ...)
{
    char line[2048], date[32];
    struct timespec now;
    struct tm utc;
    va_list arguments;
    if ((int)level > atomic_load(&least_severe))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    int at = snprintf(line, sizeof line, "time=%s.%03ldZ level=%s event=%s ",
                      date, now.tv_nsec / 1000000, level_names[level], event);
    va_start(arguments, format);
    int more =
        vsnprintf(line + at, sizeof line - (size_t)at - 1, format, arguments);
    va_end(arguments);
    size_t bytes = (size_t)at + (more > 0 ? (size_t)more : 0);
    if (bytes > sizeof line - 2)
        bytes = sizeof line - 2;
    line[bytes++] = '\n';
    if (write(STDERR_FILENO, line, bytes) < 0)
        return; /* nowhere left to complain */
}

const char *log_quote(const char *text, char *out, unsigned long out_bytes)
{
    size_t at = 0;
    for (; *text && at + 3 < out_bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            out[at++] = '\\';
        out[at++] = (char)(c < 0x20 || c == 0x7F ? ' ' : c);
    }
    out[at] = '\0';
    return out;
}
