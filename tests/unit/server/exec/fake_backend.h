/*
 * fake_backend.h - the CPU backend behind a table of functions that can fail
 * at the n-th call, take their time, or die for good: what a GPU may do.
 */
#ifndef ROPED_TESTS_FAKE_BACKEND_H
#define ROPED_TESTS_FAKE_BACKEND_H

#include <roped/backend.h>

#include <stdatomic.h>

extern struct roped_backend_api fake_api; /* is_host false: copies happen */

extern atomic_int fake_fail_at;  /* the n-th call from now fails; 0: none */
extern atomic_int fake_slow_ms;  /* each launch takes this long */
extern atomic_bool fake_is_dead; /* not healthy, and every call fails */
extern atomic_llong fake_device_bytes; /* largest allocation; 0: any */
extern atomic_int fake_n_live;         /* allocations not freed */
extern atomic_int fake_n_launches;
extern atomic_int fake_n_copies;     /* uploads and downloads */
extern roped_launch_fn *fake_kernel; /* launched instead, for operators of
                                        tests; NULL: the CPU backend's */

enum { FAKE_FOREIGN_BYTES = 4096 }; /* of another process's memory */

void fake_reset(void);

#endif
