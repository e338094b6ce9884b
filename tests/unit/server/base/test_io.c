/*
 * test_io.c - files that never end, never come or are none; writes that take a
 * part; standard descriptors that are closed.
 */
#include "check.h"
#include "clock.h"
#include "io.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/roped_io_XXXXXX";
static char path[64];
static struct roped_error err;
static struct io_file file;

static void make_path(void)
{
    unlink(path);
    snprintf(path, sizeof path, "%s/file", folder);
    unlink(path);
}

static void write_bytes(size_t bytes, char fill)
{
    char *text = malloc(bytes + 1);
    make_path();
    memset(text, fill, bytes);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0640);
    CHECK(fd >= 0 && io_write(fd, text, bytes));
    close(fd);
    free(text);
}

static bool reads(const char *of)
{
    io_free_file(&file);
    err.text[0] = '\0';
    return io_read_file("a_key", of, &file, &err) == ROPED_OK;
}

TEST(a_file_is_read_whole)
{
    static const size_t sizes[] = {0,    1,    4094, 4095,         4096,
                                   4097, 8191, 8192, IO_MOST_BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_bytes(sizes[i], 'x');
        CHECK(reads(path));
        CHECK_INT(file.bytes, sizes[i]);
        CHECK(file.text && strlen(file.text) == sizes[i]);
        CHECK_INT(file.mode & 0777, 0640);
    }
    CHECK(file.text[0] == 'x' && file.text[IO_MOST_BYTES - 1] == 'x');
}

static void expect_error(const char *of, const char *why)
{
    char text[512];
    double since = now_seconds();
    CHECK(!reads(of));
    CHECK(now_seconds() - since < IO_MOST_SECONDS / 2.0);
    snprintf(text, sizeof text, "cannot read a_key '%s': %s", of, why);
    CHECK_TEXT(err.text, text);
    CHECK_INT(err.status, ROPED_INVALID);
}

TEST(what_is_no_file_or_has_no_end_is_refused)
{
    static const char endless[] =
        "it goes on after 4194304 bytes, the most that is read";
    write_bytes(IO_MOST_BYTES + 1, 'x');
    expect_error(path, endless);
    make_path();
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK_INT(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
    expect_error(path, endless);
    expect_error("/dev/zero", endless);
    expect_error("/dev/urandom", endless);
    expect_error("/", "Is a directory");
    expect_error("/nowhere/none", "No such file or directory");
    CHECK(reads("/dev/null") && file.bytes == 0);
    CHECK(reads("/proc/self/status") && strstr(file.text, "VmRSS:"));
}

/* Writes "ab" into the FIFO, a byte at a time; in between it waits. */
static void *drip(void *seconds)
{
    double pause = *(const double *)seconds;
    int fd = open(path, O_WRONLY);
    pause_seconds(pause);
    CHECK(io_write(fd, "a", 1));
    pause_seconds(pause);
    (void)io_write(fd, "b", 1);
    close(fd);
    return NULL;
}

static double read_fifo(double pause)
{
    pthread_t writer;
    make_path();
    CHECK_INT(mkfifo(path, 0600), 0);
    pthread_create(&writer, NULL, drip, &pause);
    double since = now_seconds();
    (void)reads(path);
    double seconds = now_seconds() - since;
    pthread_join(writer, NULL);
    return seconds;
}

TEST(a_fifo_is_waited_for_but_not_for_ever)
{
    double seconds = read_fifo(0.2);
    CHECK(seconds > 0.3 && seconds < 3);
    CHECK_TEXT(file.text, "ab");
    seconds = read_fifo(IO_MOST_SECONDS - 1); /* each in time, not together */
    CHECK(seconds > IO_MOST_SECONDS - 0.5 && seconds < IO_MOST_SECONDS + 2);
    CHECK_CONTAINS(err.text, "it has not ended within 5 s");
}

/* Reads slowly what the pipe has no room for. */
static void *read_slowly(void *pipe)
{
    static char rest[1 << 20];
    size_t bytes = 0;
    for (ssize_t n; (n = read(*(int *)pipe, rest, 1000)) > 0;)
        bytes += (size_t)n;
    return (void *)(uintptr_t)bytes;
}

TEST(a_write_goes_on_until_all_is_written)
{
    enum { BYTES = 1 << 20 };
    static const char data[BYTES];
    int ends[2];
    void *received;
    pthread_t reader;
    CHECK_INT(pipe(ends), 0);
    pthread_create(&reader, NULL, read_slowly, &ends[0]);
    CHECK(io_write(ends[1], data, BYTES));
    close(ends[1]);
    pthread_join(reader, &received);
    close(ends[0]);
    CHECK_INT((uintptr_t)received, BYTES);
    int full = open("/dev/full", O_WRONLY);
    CHECK(!io_write(full, data, 1));
    close(full);
}

TEST(a_file_is_written_whole_or_not)
{
    char text[512];
    make_path();
    CHECK_OK(io_write_file("a_key", path, "8000\n", 5, &err), &err);
    CHECK(reads(path));
    CHECK_TEXT(file.text, "8000\n");
    CHECK_INT(io_write_file("a_key", "/nowhere/none", "1", 1, &err),
              ROPED_INVALID);
    CHECK_TEXT(err.text, "cannot write a_key '/nowhere/none': No such file or "
                         "directory");
    snprintf(text, sizeof text, "%s.new", path);
    CHECK_INT(access(text, F_OK), -1);
}

TEST(an_eventfd_wakes)
{
    int fd = eventfd(0, EFD_NONBLOCK);
    eventfd_t value = 0;
    io_wake(fd);
    CHECK_INT(eventfd_read(fd, &value), 0);
    CHECK_INT(value, 1);
    close(fd);
}

/* In a process with these descriptors closed, bit i the i-th: 0 where all of
 * them are as promised, else the line that says otherwise. */
static int check_standard(unsigned closed)
{
    struct stat null, now;
    if (stat("/dev/null", &null) != 0)
        return __LINE__ & 127;
    for (int fd = 0; fd < 3; fd++)
        if (closed >> fd & 1)
            close(fd);
    if (!io_open_standard())
        return __LINE__ & 127;
    for (int fd = 0; fd < 3; fd++)
        if ((closed >> fd & 1) &&
            (fstat(fd, &now) != 0 || now.st_rdev != null.st_rdev))
            return __LINE__ & 127;
    if ((closed & 2) && write(STDOUT_FILENO, "x", 1) != -1)
        return __LINE__ & 127;
    if ((closed & 4) && write(STDERR_FILENO, "x", 1) != 1)
        return __LINE__ & 127;
    return open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : __LINE__ & 127;
}

TEST(standard_descriptors_are_open_afterwards)
{
    for (unsigned closed = 0; closed < 8; closed++) {
        int status = -1;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            _exit(check_standard(closed));
        waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
    }
}

int main(void)
{
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    signal(SIGPIPE, SIG_IGN);
    check_run();
    io_free_file(&file);
    unlink(path);
    rmdir(folder);
    return check_done();
}
