/*
 * handover.c - writing and reading the lines of a handover.
 */
#include "handover.h"

#include "io.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_LINE "roped-handover 1"

enum { MOST_BYTES = 16 << 20 };

/* ---------------------------------------------------------------- writing */

static void write_word(FILE *file, const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "abcdefghijklmnopqrstuvwxyz0123456789._-:/[]";
    fputc(' ', file);
    if (!text[0])
        fputc('%', file);
    for (; *text; text++)
        if (strchr(plain, *text))
            fputc(*text, file);
        else
            fprintf(file, "%%%02X", (unsigned)(unsigned char)*text);
}

static void write_line(FILE *file, const char *first, const char *word)
{
    fputs(first, file);
    write_word(file, word);
    fputc('\n', file);
}

static void write_socket(FILE *file, const struct handover_socket *socket)
{
    fprintf(file, "socket %d", socket->fd);
    write_word(file, socket->key);
    write_word(file, socket->text);
    fprintf(file, " %" PRIu64 " %" PRIu64 "\n", socket->device, socket->inode);
}

static enum roped_status fail_to_write(struct roped_error *err)
{
    return roped_fail(err, ROPED_INTERNAL, "cannot write the handover: %s",
                      strerror(errno));
}

enum roped_status handover_open(const struct handover *handover,
                                struct handover_writer *out,
                                struct roped_error *err)
{
    *out = (struct handover_writer){.why = NULL};
    out->file = open_memstream(&out->text, &out->bytes);
    if (!out->file)
        return fail_to_write(err);
    fputs(FIRST_LINE "\n", out->file);
    write_line(out->file, "backend", handover->backend);
    fprintf(out->file, "restarts %" PRIu64 "\n", handover->n_restarts);
    for (int i = 0; i < handover->n_times; i++)
        fprintf(out->file, "restarted %" PRIu64 "\n",
                handover->time_seconds[i]);
    for (int i = 0; i < handover->n_sockets; i++)
        write_socket(out->file, &handover->socket[i]);
    return ROPED_OK;
}

void handover_write_name(struct handover_writer *writer,
                         const struct handover_name *name)
{
    if (!writer->why || strcmp(writer->why, name->why) != 0)
        write_line(writer->file, "why", name->why);
    writer->why = name->why;
    fputs("lost", writer->file);
    write_word(writer->file, name->kind);
    write_word(writer->file, name->tenant);
    write_word(writer->file, name->name);
    fputc('\n', writer->file);
}

enum roped_status handover_finish(struct handover_writer *writer,
                                  struct roped_error *err)
{
    fputs("end\n", writer->file);
    bool is_whole = !ferror(writer->file);
    is_whole &= fclose(writer->file) == 0;
    /* not closed by exec: it is for the next process */
    writer->fd = is_whole ? memfd_create("roped_handover", 0) : -1;
    enum roped_status status =
        writer->fd >= 0 && io_write(writer->fd, writer->text, writer->bytes)
            ? ROPED_OK
            : fail_to_write(err);
    free(writer->text);
    snprintf(writer->entry, sizeof writer->entry, HANDOVER_VARIABLE "=%d",
             writer->fd);
    return status;
}

/* ---------------------------------------------------------------- reading */

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Turns a word into what it stands for, where it is; false: it is none. */
static bool decode(char *word)
{
    char *out = word;
    if (strcmp(word, "%") == 0)
        word++;
    while (*word) {
        if (*word != '%') {
            *out++ = *word++;
            continue;
        }
        int high = hex_digit(word[1]), low = high < 0 ? -1 : hex_digit(word[2]);
        if (low < 0 || (high == 0 && low == 0))
            return false;
        *out++ = (char)(16 * high + low);
        word += 3;
    }
    *out = '\0';
    return true;
}

/* Takes the next word off a line; NULL: there is none, or it is malformed. */
static char *next_word(char **line)
{
    char *word = *line;
    if (!word || !*word)
        return NULL;
    *line = strchr(word, ' ');
    if (*line)
        *(*line)++ = '\0';
    return decode(word) ? word : NULL;
}

static bool next_number(char **line, uint64_t *out)
{
    char *end, *word = next_word(line);
    if (!word || *word < '0' || *word > '9')
        return false;
    errno = 0;
    *out = strtoull(word, &end, 10);
    return *end == '\0' && errno == 0;
}

static bool next_text(char **line, char *out, size_t bytes)
{
    const char *word = next_word(line);
    return word && (size_t)snprintf(out, bytes, "%s", word) < bytes;
}

static bool read_backend(struct handover *out, char *line)
{
    return next_text(&line, out->backend, sizeof out->backend) && !line;
}

static bool read_restarts(struct handover *out, char *line)
{
    return next_number(&line, &out->n_restarts) && !line;
}

static bool read_restarted(struct handover *out, char *line)
{
    return out->n_times < HANDOVER_TIMES &&
           next_number(&line, &out->time_seconds[out->n_times++]) && !line;
}

/* Also keeps it from the processes of others. */
static bool listens(int fd)
{
    int is_listening = 0;
    socklen_t bytes = sizeof is_listening;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) ==
               0 &&
           is_listening && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static bool read_socket(struct handover *out, char *line)
{
    struct handover_socket *socket = &out->socket[out->n_sockets];
    uint64_t fd;
    if (out->n_sockets == HANDOVER_SOCKETS || !next_number(&line, &fd) ||
        fd > INT_MAX || !listens((int)fd))
        return false;
    socket->fd = (int)fd;
    out->n_sockets++;
    return next_text(&line, socket->key, sizeof socket->key) &&
           next_text(&line, socket->text, sizeof socket->text) &&
           next_number(&line, &socket->device) &&
           next_number(&line, &socket->inode) && !line;
}

static bool read_name(struct handover *out, char *line, const char *why)
{
    struct handover_name *name = &out->name[out->n_names];
    name->why = why;
    name->kind = next_word(&line);
    name->tenant = next_word(&line);
    name->name = next_word(&line);
    out->n_names++;
    return why && name->kind && name->tenant && name->name && !line;
}

static bool read_line(struct handover *out, char *line, const char **why)
{
    const char *first = next_word(&line);
    if (!first)
        return false;
    if (strcmp(first, "backend") == 0)
        return read_backend(out, line);
    if (strcmp(first, "restarts") == 0)
        return read_restarts(out, line);
    if (strcmp(first, "restarted") == 0)
        return read_restarted(out, line);
    if (strcmp(first, "socket") == 0)
        return read_socket(out, line);
    if (strcmp(first, "lost") == 0)
        return read_name(out, line, *why);
    *why = strcmp(first, "why") == 0 ? next_word(&line) : NULL;
    return *why && !line;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

/* Reads all lines; returns the number of the one that is wrong, or 0. */
static int read_lines(struct handover *out)
{
    const char *why = NULL;
    char *end, *line = out->text;
    for (int number = 1;; number++, line = end + 1) {
        end = strchr(line, '\n');
        if (!end)
            return number;
        *end = '\0';
        if (number > 1 && strcmp(line, "end") == 0)
            return out->backend[0] && !end[1] ? 0 : number;
        if (number == 1 ? strcmp(line, FIRST_LINE) != 0
                        : !read_line(out, line, &why))
            return number;
    }
}

static bool read_whole(int fd, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = pread(fd, text + at, bytes - at, (off_t)at);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* The whole of a memfd, as text; NULL: it is none. */
static char *read_file(int fd)
{
    struct stat file;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
        file.st_size > MOST_BYTES)
        return NULL;
    size_t bytes = (size_t)file.st_size;
    char *text = malloc(bytes + 1);
    if (text && read_whole(fd, text, bytes)) {
        text[bytes] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

static int read_from(const char *variable, struct handover *out)
{
    char *end;
    long fd = strtol(variable, &end, 10);
    if (*end || end == variable || fd <= STDERR_FILENO || fd > INT_MAX)
        return 1;
    out->text = read_file((int)fd);
    close((int)fd);
    if (!out->text)
        return 1;
    out->name = calloc((size_t)count_lines(out->text) + 1, sizeof *out->name);
    return out->name ? read_lines(out) : 1;
}

/* A handover that cannot be read may have named sockets: clients would wait in
 * their backlogs for ever. Those that the service manager passes stay. */
static void close_unknown_sockets(void)
{
    enum { MOST_DESCRIPTORS = 1024 };
    const char *passed = getenv("LISTEN_FDS");
    long n_passed = passed ? strtol(passed, NULL, 10) : 0;
    for (int fd = STDERR_FILENO + 1; fd < MOST_DESCRIPTORS; fd++)
        if (fd > STDERR_FILENO + n_passed && listens(fd))
            close(fd);
}

void handover_read(struct handover *out)
{
    const char *variable = getenv(HANDOVER_VARIABLE);
    memset(out, 0, sizeof *out);
    if (!variable)
        return;
    int wrong = read_from(variable, out);
    if (wrong) {
        log_line(LOG_WARN, "handover",
                 "line=%d message=\"" HANDOVER_VARIABLE
                 " names no handover that can be read: started without it\"",
                 wrong);
        handover_free(out);
        close_unknown_sockets();
    }
    unsetenv(HANDOVER_VARIABLE);
}

void handover_close_sockets(struct handover *handover)
{
    for (int i = 0; i < handover->n_sockets; i++)
        if (handover->socket[i].fd >= 0)
            close(handover->socket[i].fd);
    handover->n_sockets = 0;
}

void handover_free(struct handover *handover)
{
    handover_close_sockets(handover);
    free(handover->name);
    free(handover->text);
    memset(handover, 0, sizeof *handover);
}

struct handover_socket *handover_take(struct handover *handover,
                                      const char *key, const char *text)
{
    for (int i = 0; i < handover->n_sockets; i++) {
        struct handover_socket *socket = &handover->socket[i];
        if (socket->fd >= 0 && strcmp(socket->key, key) == 0 &&
            strcmp(socket->text, text) == 0)
            return socket;
    }
    return NULL;
}
