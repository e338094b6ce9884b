/*
 * printable.h - text of a server or a file as a terminal may show it. Whatever
 * the client library says and whatever ropectl writes goes through here.
 *
 * "caf\xc3\xa9" stays as it is. "\033[31mred\r\n" becomes
 * "\u001b[31mred\u000d\u000a": control characters, those that change the
 * direction of text or are not seen, and what is no UTF-8 (\ufffd) are spelled
 * as in JSON, so that JSON which went through here is the same document.
 */
#ifndef ROPED_CLIENT_PRINTABLE_H
#define ROPED_CLIENT_PRINTABLE_H

#include <roped/status.h>

#include <stddef.h>

/* As much of it as fits, NUL-terminated and ending in a whole character or
 * escape; returns the bytes of all of it, as snprintf does. */
size_t printable_copy(const char *text, char *to, size_t room);

/* What a function that failed has said, in place; returns its status. */
enum roped_status printable_error(enum roped_status status,
                                  struct roped_error *err);

#endif
