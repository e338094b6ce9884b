/*
 * guard.c - the handler of SIGBUS. What it reads are atomics, what it calls is
 * mmap, a bare system call.
 */
#include "exec/guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

/*
 * version is odd while start and bytes change, so that a reader that finds it
 * even and the same before and after has a pair that belongs together. start
 * is 0 where the place is free. A guard is removed after the last use of its
 * memory: a fault always finds its own as it was.
 */
static struct {
    atomic_uint version;
    atomic_uintptr_t start;
    atomic_size_t bytes;
    atomic_bool is_broken;
} guards[GUARD_MAX];

static struct sigaction previous;

/* Is address in range i? The range, then. */
static bool find_range(int i, uintptr_t address, uintptr_t *start,
                       size_t *bytes)
{
    unsigned version = atomic_load(&guards[i].version);
    *start = atomic_load(&guards[i].start);
    *bytes = atomic_load(&guards[i].bytes);
    return version % 2 == 0 && atomic_load(&guards[i].version) == version &&
           *start != 0 && address >= *start && address - *start < *bytes;
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    uintptr_t start;
    size_t bytes;
    (void)context;
    for (int i = 0; i < GUARD_MAX; i++) {
        if (!find_range(i, (uintptr_t)info->si_addr, &start, &bytes))
            continue;
        atomic_store(&guards[i].is_broken, true);
        if (mmap((void *)start, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                 0) != MAP_FAILED)
            return;
    }
    /* not ours: the access is repeated, and met by whoever was here before */
    sigaction(signal_number, &previous, NULL);
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault,
                               .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
}

int guard_add(void *start, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    for (int i = 0; i < GUARD_MAX; i++) {
        unsigned version = atomic_load(&guards[i].version);
        if (version % 2 || atomic_load(&guards[i].start) != 0 ||
            !atomic_compare_exchange_strong(&guards[i].version, &version,
                                            version + 1))
            continue;
        atomic_store(&guards[i].start, (uintptr_t)start);
        atomic_store(&guards[i].bytes, bytes);
        atomic_store(&guards[i].is_broken, false);
        atomic_store(&guards[i].version, version + 2);
        return i;
    }
    return -1;
}

bool guard_is_broken(int guard)
{
    return atomic_load(&guards[guard].is_broken);
}

void guard_remove(int guard)
{
    atomic_fetch_add(&guards[guard].version, 1);
    atomic_store(&guards[guard].start, 0);
    atomic_fetch_add(&guards[guard].version, 1);
}
