/*
 * inbox.h - where a device receives a body while it still arrives.
 *
 * An inbox is device memory that mirrors the first bytes of one host block, and
 * a queue of the backend on which chunks of it are copied as they are complete.
 * The call then runs on that queue: what it reads is ordered behind the copies
 * by the queue itself, and nobody waits on the host. The host block keeps all
 * of the body, so an inbox that fails, or that a call cannot use, costs nothing
 * but the time: the lane uploads as ever. Index values are checked in the host
 * block; nobody writes there once its bytes have arrived, so what was copied
 * is what is checked.
 *
 * THREADS. One at a time: that of the connection, then the lane's. A copy may
 * be under way until inbox_wait has returned: before that neither its memory
 * nor the host block may be used for anything else.
 *
 * WHOSE. Inboxes are made by whoever runs a call, after one whose body found
 * none, so that a body which arrives never allocates on a device or waits for
 * it. They stay for the next body until a lane needs their memory. An inbox is
 * in its device's list of idle ones, guarded by the executor's lock, or belongs
 * to one job, or to the task that waits for what a client which went away has
 * left under way; device->n_inboxes counts all of them.
 */
#ifndef ROPED_EXEC_INBOX_H
#define ROPED_EXEC_INBOX_H

#include "exec/device.h"
#include "exec/executor.h"

/* Marks on the queue of an inbox, around its last chunk; lanes use others. */
enum { INBOX_MARK_LAST = 6, INBOX_MARK_END = 7 };

struct inbox {
    struct device *device;
    struct roped_queue *queue;
    unsigned char *memory;
    uint64_t capacity; /* claimed of the device's budget */

    /* of the body that has it */
    const unsigned char *host;
    uint64_t first, sent, bytes; /* [first, sent) of bytes is copied, or will
                                    be: what the queue has got */
    uint64_t chunk_bytes;
    bool has_failed;

    /* of an abandoned one */
    struct exec_job end; /* waits for it */
    struct memory_block block;

    struct inbox *next; /* idle ones */
};

/* What an inbox for so many bytes takes of the device's budget. */
uint64_t inbox_capacity(uint64_t bytes);

/* Claims and allocates; NULL where there is no room. Takes its time. */
struct inbox *inbox_new(struct device *device, uint64_t bytes);
void inbox_free(struct inbox *inbox);

/* For a body that ends at bytes of host, of which nothing before first is of
 * use to a device. bytes is at most the capacity. */
void inbox_begin(struct inbox *inbox, const void *host, uint64_t first,
                 uint64_t bytes, uint64_t chunk_bytes);

/* The body has arrived up to end: starts to copy every whole chunk, and the
 * rest with the last byte. Does not wait for the device. */
void inbox_advance(struct inbox *inbox, uint64_t end);

/* Where bytes at data of the host block are on the device; NULL where they are
 * not, or not all. To be used on the inbox's queue. */
unsigned char *inbox_find(const struct inbox *inbox, const void *data,
                          uint64_t bytes);

/* Blocks until no copy is under way. */
ROPED_MUST_CHECK enum roped_status inbox_wait(struct inbox *inbox,
                                              struct roped_error *err);

/* ---- those of a device */

/* An idle one for a body of so many bytes, or NULL. Under lock. */
struct inbox *inbox_take(struct device *device, uint64_t bytes);

/* Its body is gone, and no copy is under way. */
void inbox_put_back(struct inbox *inbox);

/* After a call has run here: makes the inbox that its body of so many bytes
 * lacked, if there is room. Takes its time. */
void inbox_grow(struct device *device, uint64_t bytes);

/* Frees those without a body. */
void inbox_free_idle(struct device *device);

#endif
