/*
 * log.h - one line per event on standard error, logfmt:
 *     time=2026-11-20T12:00:00.123Z level=info event=listening
 * address=127.0.0.1 port=8000 Thread-safe: a line is one write.
 */
#ifndef ROPED_LOG_H
#define ROPED_LOG_H

#include <roped/status.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
enum log_level log_level(void);
enum log_level log_level_from_text(const char *text); /* unknown: LOG_INFO */
const char *log_level_text(enum log_level level);     /* "info" */

/*
 * event is a bare word; format makes the rest of the line, key=value pairs.
 * Values that may hold spaces go through %s inside \"...\" written by
 * log_quote.
 */
void log_line(enum log_level level, const char *event, const char *format, ...)
    ROPED_PRINTF(3, 4);

/* Writes text as a quoted logfmt value into out and returns out. */
const char *log_quote(const char *text, char *out, unsigned long out_bytes);

#endif
