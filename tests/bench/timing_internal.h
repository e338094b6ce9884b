/*
 * timing_internal.h - what timing.c, timing_cpu.c and timing_cuda.cu share.
 */
#ifndef ROPED_TESTS_BENCH_TIMING_INTERNAL_H
#define ROPED_TESTS_BENCH_TIMING_INTERNAL_H

#include "bench/timing.h"

#ifdef __cplusplus
extern "C" {
#endif

double timing_clock_seconds(void);
void timing_cpu_copy(void *to, const void *from, size_t bytes, int n_threads);
size_t timing_cpu_cache_bytes(void);
void timing_median(double *sample, int n, double *median, double *spread);
enum roped_status timing_cpu_measure(struct roped_queue *queue,
                                     timing_work_fn *work, void *context,
                                     int n_sets, int n_launches,
                                     double *seconds, double *spread,
                                     struct roped_error *err);

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
