/*
 * shared_memory.h - memory that a client shares with the daemon.
 */
#ifndef ROPED_TESTS_SHARED_MEMORY_H
#define ROPED_TESTS_SHARED_MEMORY_H

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHARED_KEY_BYTES = 64 };

/*
 * Makes an object of zeros and its key, which begins with /roped_test_. The
 * caller closes the one and unlinks the other. Where a machine lets nobody
 * write to /dev/shm the program ends here, skipped.
 */
static inline int shared_memory_make(char key[SHARED_KEY_BYTES], size_t bytes)
{
    static int n_made;
    snprintf(key, SHARED_KEY_BYTES, "/roped_test_%d_%d", (int)getpid(),
             n_made++);
    shm_unlink(key);
    int fd = shm_open(key, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        printf("skipped: no shared memory to be had: %s\n", strerror(errno));
        exit(CHECK_SKIP);
    }
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

#endif
