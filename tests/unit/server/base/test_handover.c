/*
 * test_handover.c - what one process writes the next reads, and what is no
 * handover is none: no socket stays open, nothing is believed.
 */
#include "check.h"
#include "handover.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct roped_error err;

static const struct handover_name names[] = {
    {"resident", "", "kv", "lost when device 0 was reset: 100 %"},
    {"system", "alice", "a b%20\n\xc3\xa9",
     "lost when device 0 was reset: 100 %"},
    {"table", "-", "%", "another"}};
enum { N_NAMES = sizeof names / sizeof *names };

static int listening_socket(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
          listen(fd, 1) == 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* As the old process does: the number of the memfd is in the environment. */
static int write_one(int socket)
{
    struct handover handover = {.backend = "cuda",
                                .n_restarts = 7,
                                .n_times = 2,
                                .time_seconds = {5, 1ull << 40},
                                .n_sockets = 1};
    struct handover_writer writer;
    handover.socket[0] = (struct handover_socket){
        socket, "listen", "unix:/tmp/a b.sock", UINT64_MAX, 3};
    CHECK_OK(handover_open(&handover, &writer, &err), &err);
    for (int i = 0; i < N_NAMES; i++)
        handover_write_name(&writer, &names[i]);
    CHECK_OK(handover_finish(&writer, &err), &err);
    setenv(HANDOVER_VARIABLE, strchr(writer.entry, '=') + 1, 1);
    return writer.fd;
}

TEST(what_is_written_is_read)
{
    struct handover read;
    int socket = listening_socket(), fd = write_one(socket);
    handover_read(&read);
    CHECK(getenv(HANDOVER_VARIABLE) == NULL);
    CHECK(!is_open(fd));
    CHECK_TEXT(read.backend, "cuda");
    CHECK_INT(read.n_restarts, 7);
    CHECK_INT(read.n_times, 2);
    CHECK_INT(read.time_seconds[1], 1ll << 40);
    CHECK_INT(read.n_names, N_NAMES);
    for (int i = 0; i < N_NAMES && i < read.n_names; i++) {
        CHECK_TEXT(read.name[i].kind, names[i].kind);
        CHECK_TEXT(read.name[i].tenant, names[i].tenant);
        CHECK_TEXT(read.name[i].name, names[i].name);
        CHECK_TEXT(read.name[i].why, names[i].why);
    }
    CHECK(handover_take(&read, "listen", "127.0.0.1:0") == NULL);
    CHECK(handover_take(&read, "admin_listen", "unix:/tmp/a b.sock") == NULL);
    struct handover_socket *taken =
        handover_take(&read, "listen", "unix:/tmp/a b.sock");
    CHECK(taken && taken->fd == socket && taken->inode == 3 &&
          taken->device == UINT64_MAX);
    CHECK_INT(fcntl(socket, F_GETFD), FD_CLOEXEC);
    handover_free(&read);
    CHECK(!is_open(socket)); /* nobody took it */
}

TEST(nothing_is_handed_over)
{
    struct handover read;
    unsetenv(HANDOVER_VARIABLE);
    handover_read(&read);
    CHECK_INT(read.n_restarts + (uint64_t)read.n_names, 0);
    CHECK_TEXT(read.backend, "");
    handover_free(&read);
}

/* Hands these bytes over; true: they are believed. */
static bool is_believed(const char *text, size_t bytes)
{
    char number[16];
    struct handover read;
    int fd = memfd_create("test", 0);
    CHECK_INT(write(fd, text, bytes), bytes);
    snprintf(number, sizeof number, "%d", fd);
    setenv(HANDOVER_VARIABLE, number, 1);
    handover_read(&read);
    bool is_there = read.backend[0] != '\0';
    CHECK(getenv(HANDOVER_VARIABLE) == NULL);
    CHECK(is_there || (read.n_sockets == 0 && read.n_names == 0));
    handover_free(&read);
    return is_there;
}

TEST(a_part_of_it_is_none)
{
    static char text[4096];
    int socket = listening_socket(), fd = write_one(socket);
    ssize_t bytes = pread(fd, text, sizeof text, 0);
    unsetenv(HANDOVER_VARIABLE);
    close(fd);
    CHECK(bytes > 200);
    for (ssize_t i = 0; i < bytes; i++)
        CHECK(!is_believed(text, (size_t)i));
    /* the first that had the socket's line closed it */
    CHECK(!is_open(socket));
}

TEST(what_is_malformed_is_none)
{
    static const char *const lines[] = {"",
                                        "backend",
                                        "backend cuda cuda",
                                        "backend aaaaaaaaaaaaaaaaaaaaaaaaa",
                                        "restarts x",
                                        "restarts -1",
                                        "restarts 99999999999999999999999",
                                        "socket 0 listen 127.0.0.1:0 0 0",
                                        "socket 99 listen 127.0.0.1:0 0 0",
                                        "lost resident a b",
                                        "why a%2\nlost resident a b",
                                        "why a%00\nlost resident a b",
                                        "why a\nlost resident a",
                                        "why a\nlost resident a b c",
                                        "end\nbackend cuda"};
    char text[512];
    int n = snprintf(text, sizeof text,
                     "roped-handover 1\nbackend cuda\nrestarts 1\nend\n");
    CHECK(is_believed(text, (size_t)n));
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        n = snprintf(text, sizeof text,
                     "roped-handover 1\nbackend cuda\n%s\nend\n", lines[i]);
        if (is_believed(text, (size_t)n))
            CHECK_FAIL("'%s' is believed", lines[i]);
    }
    CHECK(!is_believed("roped-handover 1\nend\n", 21));
    CHECK(!is_believed("roped-handover 2\nbackend cuda\nend\n", 34));
}
