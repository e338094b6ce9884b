/*
 * io.h - files and descriptors by system calls that may be interrupted, do a
 * part of what was asked, or never end.
 */
#ifndef ROPED_IO_H
#define ROPED_IO_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Call it before anything opens a file. Standard descriptors that are closed
 * are opened on /dev/null, so that no socket and no file gets one of their
 * numbers, and with it what is written to the log. What is written to a
 * standard output that was closed fails, as if it still were. False, with
 * errno: /dev/null cannot be opened.
 */
bool io_open_standard(void);

/* At the end. False, with errno: some of what was written to standard output
 * is lost. */
bool io_flush_output(void);

/* Writes all of it to a descriptor that blocks. False, with errno. */
bool io_write(int fd, const void *data, size_t bytes);

/* Writes a file that takes the place of the one before whole: a reader never
 * sees half of it. */
ROPED_MUST_CHECK enum roped_status io_write_file(const char *key,
                                                 const char *path,
                                                 const void *data, size_t bytes,
                                                 struct roped_error *err);

/* Wakes whoever waits for an eventfd. */
void io_wake(int event_fd);

enum {
    IO_MOST_BYTES = 4 << 20, /* of a file that is read whole */
    IO_MOST_SECONDS = 5      /* until it has ended */
};

/* A file that was read whole; text ends in a NUL that bytes does not count. */
struct io_file {
    char *text;
    size_t bytes, capacity;
    mode_t mode; /* as fstat says */
};

/*
 * Reads a file whole; a FIFO, a device or a pipe as well. Neither the file nor
 * whoever writes it makes this wait for longer than IO_MOST_SECONDS, or take
 * more memory than three times IO_MOST_BYTES. The error starts with 'cannot
 * read KEY 'PATH': '. Free it with io_free_file, also where this failed: what
 * was read may be a secret, and is overwritten.
 */
ROPED_MUST_CHECK enum roped_status io_read_file(const char *key,
                                                const char *path,
                                                struct io_file *out,
                                                struct roped_error *err);
void io_free_file(struct io_file *file);

#endif
