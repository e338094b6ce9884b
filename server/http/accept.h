/*
 * accept.h - what a client would rather have, by its Accept header.
 */
#ifndef ROPED_HTTP_ACCEPT_H
#define ROPED_HTTP_ACCEPT_H

#include <stdbool.h>

/* Does it want HTML more than plain text and JSON? Browsers do; who takes
 * anything does not. NULL: there is no header. */
bool accept_prefers_html(const char *accept);

#endif
