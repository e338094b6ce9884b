/*
 * queued_backend.h - a device without a GPU that keeps time as one does: every
 * queue is a thread, and upload, download, clear and launch return before they
 * have happened. It computes with the CPU backend, in memory of its own that
 * starts as garbage. A sanitizer sees whoever touches memory that a copy still
 * reads or writes. What would be an illegal address on a GPU fails: memory of
 * one device in a launch on another, or in a copy that is not a fetch.
 *
 * An upload that is told to fail fails at once, or, with queued_fails_late, in
 * the next wait, and is not done; so does all that follows it on its queue
 * until then.
 *
 * A recording has its calls by value, as a graph has: what is repeated is what
 * was recorded, at the addresses that it had then.
 */
#ifndef ROPED_TESTS_QUEUED_BACKEND_H
#define ROPED_TESTS_QUEUED_BACKEND_H

#include <roped/backend.h>

#include <stdatomic.h>

extern const struct roped_backend_api queued_api;

extern atomic_int queued_fail_upload; /* the n-th from now; 0: none */
extern atomic_bool queued_fails_late;
extern atomic_bool queued_is_held;       /* no upload starts while it is set */
extern atomic_bool queued_is_integrated; /* what the device says of itself */
extern atomic_bool queued_cannot_record;
extern atomic_llong queued_device_bytes; /* largest allocation; 0: any */
extern atomic_int
    queued_n_live; /* device allocations, queues, recordings, open */
extern atomic_int queued_n_uploads, queued_n_downloads; /* asked for */
extern atomic_llong queued_uploaded_bytes;              /* copied */
extern atomic_llong queued_fetched_bytes;               /* between devices */

/* Nothing fails, nothing is held, counts are 0 but for queued_n_live.
 * queued_is_integrated stays. */
void queued_reset(void);

#endif
