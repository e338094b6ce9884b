/*
 * healthcheck.h - roped --healthcheck: for supervisors that run a command.
 */
#ifndef ROPED_HEALTHCHECK_H
#define ROPED_HEALTHCHECK_H

#include "config.h"

/* EXIT_SUCCESS where the daemon at the configured address is ready; else says
 * why not on standard error. */
int healthcheck(const struct config *config);

#endif
