/*
 * handover.h - what a daemon that starts itself anew hands to the process that
 * takes its place: the sockets where it listens, the names of what it had, and
 * when it did so before.
 *
 * FORM. Lines of words in a memfd, whose number is in the environment. In a
 * word everything but letters, digits and "._-:/[]" is %XX, and an empty one is
 * a lone %. There is no secret among them.
 *
 *     roped-handover 1
 *     backend cuda
 *     restarts 3
 *     restarted 86400                          seconds of CLOCK_BOOTTIME
 *     socket 7 listen 127.0.0.1:0 0 0          and a Unix socket's file
 *     why lost%20when%20device%200%20...
 *     lost resident tenant name                for the last reason above
 *     end
 */
#ifndef ROPED_HANDOVER_H
#define ROPED_HANDOVER_H

#include "config.h"

#include <roped/op.h>
#include <roped/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define HANDOVER_VARIABLE "ROPED_HANDOVER"

enum {
    HANDOVER_SOCKETS = 16,
    HANDOVER_TIMES = 5, /* of the latest restarts */
    HANDOVER_WORD_BYTES = 16
};

/* A socket that listens, and the setting that asks for it. */
struct handover_socket {
    int fd; /* -1: it was taken */
    char key[HANDOVER_WORD_BYTES];
    char text[CONFIG_TEXT_BYTES];
    uint64_t device, inode; /* of a Unix socket's file; 0: none is ours */
};

/* A name that means nothing any more. */
struct handover_name {
    const char *kind, *tenant, *name, *why;
};

struct handover {
    char backend[HANDOVER_WORD_BYTES]; /* that was in use; "": nothing was
                                          handed over */
    uint64_t n_restarts;               /* since the daemon was started */
    int n_times;
    uint64_t time_seconds[HANDOVER_TIMES]; /* oldest first */
    int n_sockets;
    struct handover_socket socket[HANDOVER_SOCKETS];
    int n_names; /* read, not written: see handover_write_name */
    struct handover_name *name;
    char *text; /* behind them */
};

/* Takes what this process was handed, and the variable out of the environment.
 * All zero where that is nothing, or malformed, which is a line in the log;
 * then sockets that listen are closed. */
void handover_read(struct handover *out);

/* Closes the sockets that nobody has taken; the same, and frees. */
void handover_close_sockets(struct handover *handover);
void handover_free(struct handover *handover);

/* The socket for this place of a setting, which is then the caller's, or NULL:
 * there is none. */
struct handover_socket *handover_take(struct handover *handover,
                                      const char *key, const char *text);

/*
 * Writes it: open, then each name, then finish. A file that could not be
 * written whole is known at the end. The environment of this process stays as
 * it is, since other threads may read it: exec adds the entry.
 */
struct handover_writer {
    FILE *file; /* of text, which goes into a memfd at the end */
    char *text;
    size_t bytes;
    const char *why; /* that was written last */
    int fd;          /* of the memfd, once it is finished */
    char entry[32];  /* of the next environment, then */
};
ROPED_MUST_CHECK enum roped_status
handover_open(const struct handover *handover, struct handover_writer *out,
              struct roped_error *err);
void handover_write_name(struct handover_writer *writer,
                         const struct handover_name *name);
ROPED_MUST_CHECK enum roped_status
handover_finish(struct handover_writer *writer, struct roped_error *err);

#endif
