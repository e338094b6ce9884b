/*
 * greeting.h - what a person who starts the daemon in a terminal reads first.
 */
#ifndef ROPED_HTTP_GREETING_H
#define ROPED_HTTP_GREETING_H

#include "config.h"

#include <stdint.h>

/* Where standard error is a terminal: the URL, the page, and a call to copy.
 * port: of the first TCP socket, 0: there is none. */
void greeting_write(const struct config *config, uint16_t port,
                    const char *version);

#endif
