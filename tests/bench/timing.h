/*
 * timing.h - how long a piece of work takes on a backend, with the one-pass
 * copy of the same bytes as the limit beside it.
 *
 * CUDA: the work is captured into a graph, once per set of buffers, as many
 * times as make the graph long enough to hide its launch; the figure is the
 * median of replays divided by the count. CPU: the median of repeats by clock;
 * work and copy alternate, because other programs use the cores too.
 */
#ifndef ROPED_TESTS_BENCH_TIMING_H
#define ROPED_TESTS_BENCH_TIMING_H

#include <roped/backend.h>

enum { TIMING_REPLAYS = 31 };

struct timing;

/* Enqueues the work on buffer set number set. */
typedef enum roped_status timing_work_fn(void *context, int set,
                                         struct roped_queue *queue,
                                         struct roped_error *err);

/* "cpu" or "cuda"; exits with a line where that is impossible. */
struct timing *timing_open(const char *backend, int n_threads);
void timing_close(struct timing *timing);

/* CPU backend: measure CPU time per thread, not time that passes. */
void timing_use_cpu_time(struct timing *timing);

const struct roped_backend_api *timing_api(const struct timing *timing);
struct roped_backend *timing_backend(const struct timing *timing);
struct roped_queue *timing_queue(const struct timing *timing);

/* Bytes of the last-level cache: buffers rotate past a multiple of it. */
size_t timing_cache_bytes(const struct timing *timing);

/*
 * Median seconds of one execution of work over sets 0 .. n_sets - 1 in turn,
 * n_launches of them per measurement. spread is (upper - lower quartile) /
 * median.
 */
enum roped_status timing_measure(struct timing *timing, timing_work_fn *work,
                                 void *context, int n_sets, int n_launches,
                                 double *seconds, double *spread,
                                 struct roped_error *err);

/* A copy of bytes as a work function: reads from, writes to. */
struct timing_copy {
    struct timing *timing;
    const void *const *from;
    void *const *to;
    size_t bytes;
};
timing_work_fn timing_copy;

struct timing_pair {
    double seconds, spread;           /* as timing_measure */
    double copy_seconds, copy_spread; /* of the faster way to copy */
    double share; /* median of copy time / work time, pair by pair */
};

/* Does this backend measure work and copy together, by the function below? */
bool timing_in_pairs(const struct timing *timing);
enum roped_status
timing_measure_pair(struct timing *timing, timing_work_fn *work, void *context,
                    const struct timing_copy *copy, int n_sets, int n_launches,
                    struct timing_pair *out, struct roped_error *err);

#endif
