/*
 * log.h - one line per event on standard error, logfmt or JSON:
 *     time=2026-11-20T12:00:00.123Z level=info event=signal name=TERM
 * Thread-safe: a line is one write. A line that standard error does not take at
 * once is dropped and counted: nothing here waits for whoever reads the log.
 */
#ifndef ROPED_LOG_H
#define ROPED_LOG_H

#include <roped/status.h>

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
enum log_level log_level(void);
enum log_level log_level_from_text(const char *text); /* unknown: LOG_INFO */
const char *log_level_text(enum log_level level);     /* "info" */

void log_set_json(bool is_json); /* before threads start */

/*
 * event is a bare word; format makes the rest of the line, key=value pairs.
 * Values that may hold spaces go through %s inside \"...\" written by
 * log_quote.
 */
void log_line(enum log_level level, const char *event, const char *format, ...)
    ROPED_PRINTF(3, 4);

/* Lines that are no events, for a person who looks at the daemon's start: at
 * most 2 KB, where standard error is a terminal, info is logged, and not as
 * JSON. */
void log_for_people(const char *text);

/* Lines dropped since the process started. Where lines go through again, one
 * says how many are missing: level=warn event=log_dropped lines=N. */
uint64_t log_dropped(void);

/*
 * Writes text into out as a logfmt value to put between quotes, and returns
 * out. Quotes and backslashes get a backslash; bytes that may control a
 * terminal, and all others beyond printable ASCII, become \xNN. What does not
 * fit into out_bytes (at least 1) is cut off before the byte it belongs to.
 */
const char *log_quote(const char *text, char *out, unsigned long out_bytes);

#endif
