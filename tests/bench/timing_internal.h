/*
 * timing_internal.h - what timing.c, timing_cpu.c and timing_cuda.cu share.
 */
#ifndef ROPED_TESTS_BENCH_TIMING_INTERNAL_H
#define ROPED_TESTS_BENCH_TIMING_INTERNAL_H

#include "bench/timing.h"

struct pool; /* kernels/cpu/pool.h */

#ifdef __cplusplus
extern "C" {
#endif

/*
 * From now on a second is a second of this process's CPU time, divided by
 * n_threads: what work that fills so many threads takes on cores of its own,
 * measured on a machine where other programs want them too.
 */
void timing_cpu_use_cpu_time(int n_threads);
/* Threads for copies, as many as the backend has. */
struct pool *timing_cpu_pool_new(int n_threads);
void timing_cpu_pool_free(struct pool *pool);

/* The two ways to copy: memcpy, or stores around the caches. */
void timing_cpu_copy(struct pool *pool, void *to, const void *from,
                     size_t bytes, bool is_streamed);
size_t timing_cpu_cache_bytes(void);
void timing_median(double *sample, int n, double *median, double *spread);
enum roped_status timing_cpu_measure(struct roped_queue *queue,
                                     timing_work_fn *work, void *context,
                                     int n_sets, int n_launches,
                                     double *seconds, double *spread,
                                     struct roped_error *err);
enum roped_status timing_cpu_measure_pair(
    struct roped_queue *queue, timing_work_fn *work, void *context,
    struct pool *pool, const struct timing_copy *copy, int n_sets,
    int n_launches, struct timing_pair *out, struct roped_error *err);

/* The CUDA side; streams are cudaStream_t. */
void *timing_cuda_stream_new(void);
void timing_cuda_stream_free(void *stream);
size_t timing_cuda_cache_bytes(void);
enum roped_status timing_cuda_copy(void *to, const void *from, size_t bytes,
                                   void *stream, struct roped_error *err);
enum roped_status timing_cuda_measure(struct roped_queue *queue, void *stream,
                                      timing_work_fn *work, void *context,
                                      int n_sets, int n_launches,
                                      double *seconds, double *spread,
                                      struct roped_error *err);

#ifdef __cplusplus
}
#endif

#endif
