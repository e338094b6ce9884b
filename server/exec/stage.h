/*
 * stage.h - a body on its way to a device while it still arrives.
 *
 * A stage is device memory that mirrors the first bytes of one host block, and
 * a queue of the backend on which chunks of it are copied as they are complete.
 * The call then runs on that queue: what it reads is ordered behind the copies
 * by the queue itself, and nobody waits on the host. The host block keeps all
 * of the body, so a stage that fails, or that a call cannot use, costs nothing
 * but the time: the lane uploads as ever. Index values are checked in the host
 * block; nobody writes there once its bytes have arrived, so what was copied
 * is what is checked.
 *
 * THREADS. One at a time: that of the connection, then the lane's. A copy may
 * be under way until stage_wait has returned: before that neither its memory
 * nor the host block may be used for anything else.
 */
#ifndef ROPED_EXEC_STAGE_H
#define ROPED_EXEC_STAGE_H

#include "exec/device.h"
#include "exec/executor.h"

/* Marks on the queue of a stage, around its last chunk; lanes use others. */
enum { STAGE_MARK_LAST = 6, STAGE_MARK_END = 7 };

struct stage {
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
    struct executor *exec;

    struct stage *next; /* idle ones */
};

/* What a stage for so many bytes takes of the device's budget. */
uint64_t stage_capacity(uint64_t bytes);

/* Claims and allocates; NULL where there is no room. Takes its time. */
struct stage *stage_new(struct device *device, uint64_t bytes);
void stage_free(struct stage *stage);

/* For a body that ends at bytes of host, of which nothing before first is of
 * use to a device. bytes is at most the capacity. */
void stage_begin(struct stage *stage, const void *host, uint64_t first,
                 uint64_t bytes, uint64_t chunk_bytes);

/* The body has arrived up to end: starts to copy every whole chunk, and the
 * rest with the last byte. Does not wait for the device. */
void stage_advance(struct stage *stage, uint64_t end);

/* Where bytes at data of the host block are on the device; NULL where they are
 * not, or not all. To be used on the stage's queue. */
unsigned char *stage_find(const struct stage *stage, const void *data,
                          uint64_t bytes);

/* Blocks until no copy is under way. */
ROPED_MUST_CHECK enum roped_status stage_wait(struct stage *stage,
                                              struct roped_error *err);

#endif
