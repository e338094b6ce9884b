/*
 * io.c - reading and writing to the end.
 *
 * DESIGN. A file is opened without waiting, and read only where poll says that
 * there is something: a FIFO that nobody writes would hold up open, and one
 * whose writer stops would hold up read. poll waits for a FIFO's first writer,
 * and finds the end behind its last.
 *
 * A call that was interrupted is made again, MOST_TRIES times in a row at most:
 * a system where that never ends gives a reason, and no loop.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_BYTES = 4096, MOST_TRIES = 1000 };

/* Makes a call until it was not interrupted. */
#define TRY(result, call)                                                      \
    do {                                                                       \
        int tries_ = 0;                                                        \
        do                                                                     \
            (result) = (call);                                                 \
        while ((result) < 0 && errno == EINTR && ++tries_ < MOST_TRIES);       \
    } while (0)

/* ------------------------------------------------------ standard descriptors
 */

bool io_open_standard(void)
{
    static const int how[] = {[STDIN_FILENO] = O_RDONLY,
                              [STDOUT_FILENO] = O_RDONLY, /* writing fails */
                              [STDERR_FILENO] = O_RDWR};
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        int flags, opened;
        TRY(flags, fcntl(fd, F_GETFD));
        if (flags >= 0 || errno != EBADF)
            continue;
        TRY(opened, open("/dev/null", how[fd])); /* the lowest that is free */
        if (opened != fd)
            return false;
    }
    return true;
}

bool io_flush_output(void)
{
    bool has_failed = ferror(stdout);
    if (fflush(stdout) != 0)
        return false;
    errno = EIO; /* of a write before, whose own is not known any more */
    if (has_failed)
        return false;
    int copy = dup(STDOUT_FILENO); /* what a network file system tells last */
    return copy < 0 || close(copy) == 0 || errno == EINTR;
}

/* ---------------------------------------------------------------- writing */

bool io_write(int fd, const void *data, size_t bytes)
{
    for (const char *from = data; bytes > 0;) {
        ssize_t n;
        TRY(n, write(fd, from, bytes));
        if (n < 0)
            return false;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

enum roped_status io_write_file(const char *key, const char *path,
                                const void *data, size_t bytes,
                                struct roped_error *err)
{
    char temporary[4096];
    int fd, n = snprintf(temporary, sizeof temporary, "%s.new", path);
    if (n >= (int)sizeof temporary)
        return roped_fail(err, ROPED_INVALID, "cannot write %s '%.128s...': %s",
                          key, path, strerror(ENAMETOOLONG));
    TRY(fd, open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    bool is_written = fd >= 0 && io_write(fd, data, bytes);
    int why = errno;
    /* an interrupted close has closed it all the same */
    if (fd >= 0 && close(fd) != 0 && errno != EINTR && is_written) {
        is_written = false;
        why = errno;
    }
    if (is_written && rename(temporary, path) == 0)
        return ROPED_OK;
    why = is_written ? errno : why;
    if (fd >= 0)
        (void)unlink(temporary);
    return roped_fail(err, ROPED_INVALID, "cannot write %s '%s': %s", key, path,
                      strerror(why));
}

void io_wake(int event_fd)
{
    uint64_t one = 1;
    (void)io_write(event_fd, &one, sizeof one);
}

/* ---------------------------------------------------------------- reading */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Makes room for one more byte and a NUL. realloc would leave what was read
 * where it was. */
static bool make_room(struct io_file *file)
{
    if (file->bytes + 1 < file->capacity)
        return true;
    size_t capacity = file->capacity ? 2 * file->capacity : FIRST_BYTES;
    char *text = malloc(capacity);
    if (!text)
        return false;
    if (file->text) {
        memcpy(text, file->text, file->bytes);
        explicit_bzero(file->text, file->bytes);
        free(file->text);
    }
    file->text = text;
    file->capacity = capacity;
    return true;
}

/* One read. Less than 0, with errno; ETIME: nothing came until then. */
static ssize_t read_some(int fd, struct io_file *file, int64_t until_ms)
{
    struct pollfd wait = {fd, POLLIN, 0};
    int64_t left_ms = until_ms - now_ms();
    int n_ready;
    ssize_t n;
    TRY(n_ready, poll(&wait, 1, left_ms > 0 ? (int)left_ms : 0));
    if (n_ready == 0)
        errno = ETIME;
    if (n_ready <= 0)
        return -1;
    TRY(n,
        read(fd, file->text + file->bytes, file->capacity - 1 - file->bytes));
    return n;
}

/* Why it cannot be read; NULL: it was. */
static const char *read_all(int fd, struct io_file *file)
{
    _Static_assert(IO_MOST_BYTES == 4 << 20 && IO_MOST_SECONDS == 5, "as said");
    int64_t until_ms = now_ms() + IO_MOST_SECONDS * 1000;
    ssize_t n = 1;
    while (n != 0) {
        if (!make_room(file))
            return strerror(ENOMEM);
        n = read_some(fd, file, until_ms);
        if (n < 0 && errno == EAGAIN) /* another has read it meanwhile */
            continue;
        if (n < 0)
            return errno == ETIME ? "it has not ended within 5 s"
                                  : strerror(errno);
        file->bytes += (size_t)n;
        if (file->bytes > IO_MOST_BYTES)
            return "it goes on after 4194304 bytes, the most that is read";
    }
    file->text[file->bytes] = '\0';
    return NULL;
}

enum roped_status io_read_file(const char *key, const char *path,
                               struct io_file *out, struct roped_error *err)
{
    struct stat status;
    int fd;
    *out = (struct io_file){.text = NULL};
    TRY(fd, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    const char *why = NULL;
    if (fd < 0 || fstat(fd, &status) != 0)
        why = strerror(errno);
    else
        out->mode = status.st_mode;
    if (!why)
        why = read_all(fd, out);
    if (fd >= 0)
        close(fd);
    return why ? roped_fail(err, ROPED_INVALID, "cannot read %s '%.255s': %s",
                            key, path, why)
               : ROPED_OK;
}

void io_free_file(struct io_file *file)
{
    if (file->text)
        explicit_bzero(file->text, file->capacity);
    free(file->text);
    *file = (struct io_file){.text = NULL};
}
