/*
 * fault.c - preloaded into the daemon by test_faults.c: counts calls of the
 * allocator and of the system, and makes one of them fail.
 *
 * Loaded before anything else, so that the allocator's functions may use
 * nothing that allocates. <sys/socket.h> stays out: its prototypes differ
 * between feature sets, and what is here passes everything on as it is.
 */
#include "attack/fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* NOLINTBEGIN(readability-identifier-naming): glibc's */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
/* NOLINTEND(readability-identifier-naming) */

static struct fault_page here, *page = &here;
static FILE *(*real_fopen)(const char *path, const char *mode);
static int (*real_shm_open)(const char *name, int flags, mode_t mode);
static int (*real_pthread_create)(pthread_t *thread, const pthread_attr_t *how,
                                  void *(*run)(void *), void *context);

/* Other libraries may call these before map_page does. */
static void find_real(void)
{
    if (real_fopen)
        return;
    *(void **)&real_pthread_create = dlsym(RTLD_NEXT, "pthread_create");
    *(void **)&real_shm_open = dlsym(RTLD_NEXT, "shm_open");
    *(void **)&real_fopen = dlsym(RTLD_NEXT, "fopen");
}

__attribute__((constructor)) static void map_page(void)
{
    find_real();
    const char *path = getenv(FAULT_ENVIRONMENT);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = (void *)syscall(SYS_mmap, NULL, sizeof *page,
                                   PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    close(fd);
    if (mapped != MAP_FAILED)
        page = mapped;
}

/* Counts a call. True, with errno: it is the one that fails. */
static bool must_fail(enum fault_call call)
{
    unsigned long n = atomic_fetch_add(&page->n_calls[call], 1) + 1;
    if (n != atomic_load(&page->fail_at) ||
        (int)call != atomic_load(&page->call))
        return false;
    atomic_fetch_add(&page->n_failed, 1);
    errno = atomic_load(&page->error);
    return true;
}

/* ------------------------------------------------------------------ memory */

void *malloc(size_t bytes)
{
    return must_fail(FAULT_malloc) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return must_fail(FAULT_calloc) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return must_fail(FAULT_realloc) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return must_fail(FAULT_aligned) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    if (must_fail(FAULT_aligned))
        return ENOMEM;
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd,
           off_t offset)
{
    if (must_fail(flags & MAP_ANONYMOUS ? FAULT_mmap : FAULT_map_file))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

void *mremap(void *memory, size_t bytes, size_t new_bytes, int flags, ...)
{
    if (must_fail(FAULT_mremap))
        return MAP_FAILED;
    return (void *)syscall(SYS_mremap, memory, bytes, new_bytes, flags, NULL);
}

/* ------------------------------------------------------- threads and files */

int pthread_create(pthread_t *thread, const pthread_attr_t *how,
                   void *(*run)(void *), void *context)
{
    find_real();
    if (must_fail(FAULT_pthread_create))
        return errno;
    return real_pthread_create(thread, how, run, context);
}

FILE *fopen(const char *path, const char *mode)
{
    find_real();
    return must_fail(FAULT_fopen) ? NULL : real_fopen(path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int); /* there or not: as the kernel reads it */
    va_end(more);
    return must_fail(FAULT_open)
               ? -1
               : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int close(int fd)
{
    /* a descriptor is gone even where closing it was interrupted */
    int code = (int)syscall(SYS_close, fd);
    return must_fail(FAULT_close) ? -1 : code;
}

int shm_open(const char *name, int flags, mode_t mode)
{
    find_real();
    return must_fail(FAULT_shm_open) ? -1 : real_shm_open(name, flags, mode);
}

int memfd_create(const char *name, unsigned flags)
{
    return must_fail(FAULT_memfd_create)
               ? -1
               : (int)syscall(SYS_memfd_create, name, flags);
}

/* How much a call may move: all, half of it, or with errno -1. The value of an
 * eventfd is never cut in two. */
static ssize_t allowed(enum fault_call call, size_t bytes)
{
    if (!must_fail(call))
        return (ssize_t)bytes;
    if (atomic_load(&page->error) != FAULT_SHORT)
        return -1;
    return (ssize_t)(bytes > sizeof(uint64_t) ? bytes / 2 : bytes);
}

ssize_t read(int fd, void *to, size_t bytes)
{
    ssize_t n = allowed(FAULT_read, bytes);
    return n < 0 ? -1 : syscall(SYS_read, fd, to, n);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t from)
{
    ssize_t n = allowed(FAULT_pread, bytes);
    return n < 0 ? -1 : syscall(SYS_pread64, fd, to, n, from);
}

/* What a write to it counts as. */
static enum fault_call kind_of(int fd)
{
    struct stat status;
    if (fd == STDERR_FILENO)
        return FAULT_log;
    if (fstat(fd, &status) != 0 || S_ISSOCK(status.st_mode))
        return FAULT_writev;
    return S_ISREG(status.st_mode) ? FAULT_store : FAULT_write;
}

/* The daemon has a write() of its own, which is a writev of one piece: that one
 * goes before the one below. */
ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    enum fault_call call = kind_of(fd);
    ssize_t bytes = allowed(call, pieces[0].iov_len);
    const struct iovec piece = {pieces[0].iov_base, (size_t)bytes};
    if (bytes < 0)
        return -1;
    bool is_whole = (size_t)bytes == pieces[0].iov_len;
    return syscall(SYS_writev, fd, is_whole ? pieces : &piece,
                   is_whole ? n : 1);
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    const struct iovec piece = {(void *)(uintptr_t)from, bytes};
    return writev(fd, &piece, 1);
}

/* ------------------------------------------------------------ system calls */

/* NOLINTBEGIN(bugprone-macro-parentheses): types */
#define PASS(call, n, ...)                                                     \
    return must_fail(FAULT_##call) ? -1 : syscall(n, __VA_ARGS__)
#define PASS_INT(call, n, ...)                                                 \
    return must_fail(FAULT_##call) ? -1 : (int)syscall(n, __VA_ARGS__)
/* NOLINTEND(bugprone-macro-parentheses) */

int socket(int domain, int type, int protocol);
int setsockopt(int fd, int level, int name, const void *value, unsigned bytes);
int bind(int fd, const void *address, unsigned bytes);
int listen(int fd, int backlog);
int getsockname(int fd, void *address, unsigned *bytes);
int accept4(int fd, void *address, unsigned *bytes, int flags);
int eventfd(unsigned value, int flags);
int epoll_create1(int flags);
int epoll_ctl(int fd, int operation, int of, void *event);
int epoll_pwait(int fd, void *events, int n, int timeout_ms, const void *mask);
int sigtimedwait(const void *signals, void *info, const void *limit);
int poll(void *fds, unsigned long n, int timeout_ms);
ssize_t recv(int fd, void *to, size_t bytes, int flags);
ssize_t send(int fd, const void *from, size_t bytes, int flags);
ssize_t sendmsg(int fd, const void *message, int flags);

int socket(int domain, int type, int protocol)
{
    PASS_INT(socket, SYS_socket, domain, type, protocol);
}

int setsockopt(int fd, int level, int name, const void *value, unsigned bytes)
{
    PASS_INT(setsockopt, SYS_setsockopt, fd, level, name, value, bytes);
}

int bind(int fd, const void *address, unsigned bytes)
{
    PASS_INT(bind, SYS_bind, fd, address, bytes);
}

int listen(int fd, int backlog)
{
    PASS_INT(listen, SYS_listen, fd, backlog);
}

int getsockname(int fd, void *address, unsigned *bytes)
{
    PASS_INT(getsockname, SYS_getsockname, fd, address, bytes);
}

int accept4(int fd, void *address, unsigned *bytes, int flags)
{
    PASS_INT(accept4, SYS_accept4, fd, address, bytes, flags);
}

int eventfd(unsigned value, int flags)
{
    PASS_INT(eventfd, SYS_eventfd2, value, flags);
}

int epoll_create1(int flags)
{
    PASS_INT(epoll_create1, SYS_epoll_create1, flags);
}

int epoll_ctl(int fd, int operation, int of, void *event)
{
    PASS_INT(epoll_ctl, SYS_epoll_ctl, fd, operation, of, event);
}

/* The daemon has an epoll_wait() of its own, which calls this. */
int epoll_pwait(int fd, void *events, int n, int timeout_ms, const void *mask)
{
    PASS_INT(epoll_pwait, SYS_epoll_pwait, fd, events, n, timeout_ms, mask, 8L);
}

int sigtimedwait(const void *signals, void *info, const void *limit)
{
    PASS_INT(sigtimedwait, SYS_rt_sigtimedwait, signals, info, limit, 8L);
}

int poll(void *fds, unsigned long n, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    PASS_INT(poll, SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &limit, NULL, 8L);
}

ssize_t recv(int fd, void *to, size_t bytes, int flags)
{
    PASS(recv, SYS_recvfrom, fd, to, bytes, flags, NULL, NULL);
}

ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
    PASS(send, SYS_sendto, fd, from, bytes, flags, NULL, 0L);
}

ssize_t sendmsg(int fd, const void *message, int flags)
{
    PASS(sendmsg, SYS_sendmsg, fd, message, flags);
}

/* ------------------------------------------------- calls of a Release build */

/* Those that a hardened build makes instead, with the room that there is. */
ssize_t read_checked(int fd, void *to, size_t bytes,
                     size_t room) __asm__("__read_chk");
ssize_t pread_checked(int fd, void *to, size_t bytes, off_t from,
                      size_t room) __asm__("__pread_chk");
ssize_t recv_checked(int fd, void *to, size_t bytes, size_t room,
                     int flags) __asm__("__recv_chk");
int poll_checked(void *fds, unsigned long n, int timeout_ms,
                 size_t room) __asm__("__poll_chk");
int open_checked(const char *path, int flags) __asm__("__open_2");

static void check_room(size_t bytes, size_t room)
{
    if (bytes > room)
        abort();
}

ssize_t read_checked(int fd, void *to, size_t bytes, size_t room)
{
    check_room(bytes, room);
    return read(fd, to, bytes);
}

ssize_t pread_checked(int fd, void *to, size_t bytes, off_t from, size_t room)
{
    check_room(bytes, room);
    return pread(fd, to, bytes, from);
}

ssize_t recv_checked(int fd, void *to, size_t bytes, size_t room, int flags)
{
    check_room(bytes, room);
    return recv(fd, to, bytes, flags);
}

int poll_checked(void *fds, unsigned long n, int timeout_ms, size_t room)
{
    check_room(n * 8, room);
    return poll(fds, n, timeout_ms);
}

int open_checked(const char *path, int flags)
{
    return open(path, flags, 0);
}
