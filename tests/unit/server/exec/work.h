/*
 * work.h - jobs for tests of the executor: an rmsnorm whose right answer is
 * known, with its memory, and an executor on the fake device.
 */
#ifndef ROPED_TESTS_WORK_H
#define ROPED_TESTS_WORK_H

#include "exec/executor.h"
#include "unit/server/exec/fake_backend.h"

#include <pthread.h>

enum { MAX_ROWS = 16, HIDDEN = 64 };

struct work {
    struct exec_job job;
    int rows;
    float x[MAX_ROWS * HIDDEN], y[MAX_ROWS * HIDDEN];
    atomic_int n_done;
};

uint64_t after_ms(int64_t ms); /* CLOCK_MONOTONIC */
void pause_ms(long ms);

/* Ample memory, nothing mapped; and an executor made of options, or exits. */
struct exec_options work_options(int n_lanes, int queue_depth);
struct executor *work_open(const struct exec_options *options);

/* Drains and closes; whatever is left on the device fails the test. */
void work_close(struct executor *exec);

/* A region of so many bytes in the memory of a device; the caller holds the
 * only reference. NULL: the test has failed. */
struct region *work_region(struct executor *exec, const char *name,
                           uint64_t bytes, int device);

/* A job of so many rows: 2 * rows * HIDDEN * 4 bytes go in and out. */
void work_make(struct work *work, int rows);

/* True once done has run, and only once; false after 20 s. */
bool work_wait(struct work *work);

/* Until no lane is busy and no job waits. A lane calls done before it idles:
 * who wants one for a job inline, or what it gives back, waits for that too. */
void work_wait_idle(struct executor *exec);

/* True once the device has started n launches; false after 20 s. */
bool work_wait_launches(int n);

/* A thread that lets the device go on once a job has ended. */
pthread_t work_let_go_after(struct work *work);

/* Is every output what it must be? */
bool work_is_right(const struct work *work);

#endif
