/*
 * poison.h - what memory holds that nobody has written yet. In builds for
 * tests (ROPED_POISON) it is full of the byte that the environment variable of
 * that name says, 0xA5 for example: two daemons with two such bytes answer a
 * call differently where an answer depends on memory that nobody wrote. Without
 * the variable memory stays as it is. Host memory that was given back is
 * poisoned for AddressSanitizer in any case. In all other builds nothing
 * happens here, and it costs nothing.
 */
#ifndef ROPED_EXEC_POISON_H
#define ROPED_EXEC_POISON_H

#include <roped/backend.h>

#ifdef ROPED_POISON

/* Host memory that somebody takes, and gives back: its first few bytes are the
 * list's that keeps it. */
void poison_taken(void *memory, size_t bytes);
void poison_given(void *memory, size_t bytes);

/* Memory of a device (or of the host, where that is the device). The queue has
 * done it before anything that follows. */
ROPED_MUST_CHECK enum roped_status
poison_device(const struct roped_backend_api *api, struct roped_queue *queue,
              void *memory, uint64_t bytes, struct roped_error *err);

#else

static inline void poison_taken(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}

static inline void poison_given(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}

static inline enum roped_status
poison_device(const struct roped_backend_api *api, struct roped_queue *queue,
              void *memory, uint64_t bytes, struct roped_error *err)
{
    (void)api;
    (void)queue;
    (void)memory;
    (void)bytes;
    (void)err;
    return ROPED_OK;
}

#endif

#endif
