/*
 * timing.c - one face for timing on either backend.
 */
#include "bench/timing_internal.h"
#include "cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct timing {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    struct roped_queue *queue;
    void *stream;      /* CUDA only */
    struct pool *pool; /* CPU only: for copies */
};

static void stop(const char *what, const struct roped_error *err)
{
    fprintf(stderr, "bench_ops: %s: %s\n", what, err->text);
    exit(EXIT_FAILURE);
}

static void open_queue(struct timing *timing)
{
    struct roped_error err = {.text = ""};
#ifdef ROPED_HAS_CUDA
    if (timing->api == &roped_backend_cuda) {
        timing->stream = timing_cuda_stream_new();
        if (timing->api->queue_wrap(timing->backend, timing->stream,
                                    &timing->queue, &err))
            stop("stream", &err);
        return;
    }
#endif
    if (timing->api->queue_open(timing->backend, &timing->queue, &err))
        stop("queue", &err);
}

struct timing *timing_open(const char *backend, int n_threads)
{
    struct roped_error err = {.text = "built without the CUDA backend"};
    struct roped_backend_options options = {.n_threads = n_threads};
    struct roped_device_info info;
    struct timing *timing = calloc(1, sizeof *timing);
    if (!timing)
        stop("memory", &err);
    if (strcmp(backend, "cpu") == 0)
        timing->api = &roped_backend_cpu;
#ifdef ROPED_HAS_CUDA
    if (strcmp(backend, "cuda") == 0)
        timing->api = &roped_backend_cuda;
#endif
    if (!timing->api || timing->api->device_count(&err) == 0)
        stop(backend, &err);
    if (timing->api->open(&options, &timing->backend, &err))
        stop(backend, &err);
    timing->api->info(timing->backend, &info);
    if (timing->api == &roped_backend_cpu)
        timing->pool = timing_cpu_pool_new(info.n_units);
    printf("# %s: %s, %s\n", backend, info.name, info.detail);
    open_queue(timing);
    return timing;
}

void timing_use_cpu_time(struct timing *timing)
{
    if (timing->pool)
        timing_cpu_use_cpu_time(pool_threads(timing->pool));
}

void timing_close(struct timing *timing)
{
    timing->api->queue_close(timing->queue);
#ifdef ROPED_HAS_CUDA
    if (timing->stream)
        timing_cuda_stream_free(timing->stream);
#endif
    timing_cpu_pool_free(timing->pool);
    timing->api->close(timing->backend);
    free(timing);
}

const struct roped_backend_api *timing_api(const struct timing *timing)
{
    return timing->api;
}

struct roped_backend *timing_backend(const struct timing *timing)
{
    return timing->backend;
}

struct roped_queue *timing_queue(const struct timing *timing)
{
    return timing->queue;
}

size_t timing_cache_bytes(const struct timing *timing)
{
#ifdef ROPED_HAS_CUDA
    if (timing->stream)
        return timing_cuda_cache_bytes();
#endif
    (void)timing;
    return timing_cpu_cache_bytes();
}

enum roped_status timing_measure(struct timing *timing, timing_work_fn *work,
                                 void *context, int n_sets, int n_launches,
                                 double *seconds, double *spread,
                                 struct roped_error *err)
{
#ifdef ROPED_HAS_CUDA
    if (timing->stream)
        return timing_cuda_measure(timing->queue, timing->stream, work, context,
                                   n_sets, n_launches, seconds, spread, err);
#endif
    return timing_cpu_measure(timing->queue, work, context, n_sets, n_launches,
                              seconds, spread, err);
}

enum roped_status timing_copy(void *context, int set, struct roped_queue *queue,
                              struct roped_error *err)
{
    const struct timing_copy *copy = context;
    (void)queue;
#ifdef ROPED_HAS_CUDA
    if (copy->timing->stream)
        return timing_cuda_copy(copy->to[set], copy->from[set], copy->bytes,
                                copy->timing->stream, err);
#endif
    (void)err;
    timing_cpu_copy(copy->timing->pool, copy->to[set], copy->from[set],
                    copy->bytes, false);
    return ROPED_OK;
}

bool timing_in_pairs(const struct timing *timing)
{
    return timing->pool != NULL;
}

enum roped_status
timing_measure_pair(struct timing *timing, timing_work_fn *work, void *context,
                    const struct timing_copy *copy, int n_sets, int n_launches,
                    struct timing_pair *out, struct roped_error *err)
{
    return timing_cpu_measure_pair(timing->queue, work, context, timing->pool,
                                   copy, n_sets, n_launches, out, err);
}
