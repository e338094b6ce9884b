/*
 * number.h - numbers as text and back, with a point whatever the locale of the
 * program is: under setlocale(LC_ALL, "de_DE.UTF-8") strtod wants 0,5 and
 * printf writes it. All of roped's libraries read and write through these.
 * Thread-safe; the locale of the thread is as it was when they return.
 */
#ifndef ROPED_NUMBER_H
#define ROPED_NUMBER_H

#include <roped/status.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As strtod. */
ROPED_API double roped_read_number(const char *text, char **end);

/* Digits alone, all of the text: at most INT64_MAX. false: it is none of that,
 * and *out is as it was. */
ROPED_API bool roped_read_size(const char *text, uint64_t *out);

/* As snprintf and vsnprintf. */
ROPED_API int roped_print(char *text, size_t bytes, const char *format, ...)
    ROPED_PRINTF(3, 4);
ROPED_API int roped_vprint(char *text, size_t bytes, const char *format,
                           va_list arguments) ROPED_PRINTF(3, 0);

#ifdef __cplusplus
}
#endif

#endif
