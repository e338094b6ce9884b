/*
 * fake_backend.h - the CPU backend behind a table of functions that can fail
 * at the n-th call, stay on the device, or die for good: what a GPU may do.
 */
#ifndef ROPED_TESTS_FAKE_BACKEND_H
#define ROPED_TESTS_FAKE_BACKEND_H

#include <roped/backend.h>

#include <stdatomic.h>

extern struct roped_backend_api fake_api; /* is_host false: copies happen */

extern atomic_int fake_fail_at;    /* the n-th call from now fails; 0: none */
extern atomic_bool fake_is_dead;   /* not healthy, and every call fails */
extern atomic_int fake_dead_index; /* this device alone is not healthy; -1 */
extern atomic_llong fake_device_bytes; /* largest allocation; 0: any */
extern atomic_int fake_n_live;         /* allocations not freed */
extern atomic_int fake_n_launches;
extern const char *fake_uuid;        /* of every device; not reset */
extern atomic_int fake_n_copies;     /* uploads, downloads, fetches */
extern roped_launch_fn *fake_kernel; /* launched instead, for operators of
                                        tests; NULL: the CPU backend's */

enum { FAKE_FOREIGN_BYTES = 4096 }; /* of another process's memory */

void fake_reset(void);

/* What is launched from now on stays on the device until it is let go: tests
 * see what happens meanwhile without a guess at how long that takes. */
void fake_hold(void);
void fake_pass(void);   /* what is launched now ends; who is held stays */
void fake_let_go(void); /* all that is held ends, and nothing is held */

#endif
