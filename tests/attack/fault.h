/*
 * fault.h - the page through which test_faults.c tells fault.c, preloaded into
 * the daemon, which call is to fail, and reads how many there were.
 */
#ifndef ROPED_TESTS_ATTACK_FAULT_H
#define ROPED_TESTS_ATTACK_FAULT_H

#include <stdatomic.h>

#define FAULT_ENVIRONMENT "ROPED_TEST_FAULTS"

/*
 * The functions that can fail. ALIGNED: aligned_alloc and posix_memalign; MMAP:
 * of anonymous memory; MAP_FILE: of shared memory. A write counts by what it
 * goes to: LOG is standard error, STORE a file, WRITE an eventfd or another,
 * WRITEV a socket.
 */
#define FAULT_CALLS(X)                                                         \
    X(malloc)                                                                  \
    X(calloc)                                                                  \
    X(realloc)                                                                 \
    X(aligned)                                                                 \
    X(mmap)                                                                    \
    X(map_file)                                                                \
    X(mremap)                                                                  \
    X(pthread_create)                                                          \
    X(fopen)                                                                   \
    X(open)                                                                    \
    X(close)                                                                   \
    X(read)                                                                    \
    X(pread)                                                                   \
    X(log)                                                                     \
    X(store)                                                                   \
    X(write)                                                                   \
    X(memfd_create)                                                            \
    X(shm_open)                                                                \
    X(socket)                                                                  \
    X(setsockopt)                                                              \
    X(bind)                                                                    \
    X(listen)                                                                  \
    X(getsockname)                                                             \
    X(eventfd)                                                                 \
    X(epoll_create1)                                                           \
    X(epoll_ctl)                                                               \
    X(epoll_pwait)                                                             \
    X(poll)                                                                    \
    X(sigtimedwait)                                                            \
    X(accept4)                                                                 \
    X(recv)                                                                    \
    X(send)                                                                    \
    X(sendmsg)                                                                 \
    X(writev)

enum fault_call {
#define X(name) FAULT_##name,
    FAULT_CALLS(X)
#undef X
        N_FAULT_CALLS
};

/* In the place of an error: the call is made, for half of the bytes. */
enum { FAULT_SHORT = -1 };

/* The fail_at-th call since the process started, counted per function, fails
 * once. Set fail_at last; 0: none. */
struct fault_page {
    atomic_ulong n_calls[N_FAULT_CALLS];
    atomic_int call;
    atomic_int error;
    atomic_ulong fail_at;
    atomic_ulong n_failed;
};

#endif
