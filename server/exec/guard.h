/*
 * guard.h - memory that somebody else can take away. A client may truncate the
 * file behind a shared mapping at any moment; touching the pages beyond its
 * end then raises SIGBUS, and no check before the access can prevent that.
 *
 * The first guard installs a handler. A fault inside a guarded range replaces
 * the range by private zeros, marks the guard broken, and goes on; any other
 * SIGBUS ends the process as it would have without.
 */
#ifndef ROPED_EXEC_GUARD_H
#define ROPED_EXEC_GUARD_H

#include <stdbool.h>
#include <stddef.h>

enum { GUARD_MAX = 256 };

/* Guards whole pages from start on; returns a number for the others, or -1
 * where GUARD_MAX ranges are guarded. */
int guard_add(void *start, size_t bytes);

/* Has a fault been met there? It stays so. */
bool guard_is_broken(int guard);

/* Before the memory is unmapped. */
void guard_remove(int guard);

#endif
