/*
 * backend.c - the CPU as a device: memory is host memory, launches run at once
 * on the caller's thread and the backend's pool.
 */
#include "cpu/cpu_internal.h"
#include "cpu/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static roped_launch_fn *const launches[ROPED_OP_COUNT] = {
#define ROPED_OP(id) [ROPED_OP_ID_##id] = roped_cpu_##id,
#include <roped/ops.def>
#undef ROPED_OP
};

static int device_count(struct roped_error *err)
{
    (void)err;
    return 1;
}

/*
 * Half of the last-level cache, or what the threads own of the caches if that
 * is less: a virtual machine of two cores may report the 300 MiB of its host.
 * There rmsnorm past the caches is as fast as through them at 4 MB, read and
 * written, by a quarter faster at 16 MB, and twice as fast from 128 MB on;
 * on 16 cores faster by a tenth from 16 MB on (NOTES.md).
 */
static int64_t large_bytes(int n_threads)
{
    enum { OWN_BYTES = 4 << 20 };
    int64_t half = machine_cache_bytes() / 2;
    int64_t own = (int64_t)n_threads * OWN_BYTES;
    return half < own ? half : own;
}

static enum roped_status
open_backend(const struct roped_backend_options *options,
             struct roped_backend **out, struct roped_error *err)
{
    int n_threads =
        options->n_threads ? options->n_threads : machine_usable_cores();
    struct roped_backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a backend");
    backend->rows = cpu_rows_at(cpu_rows_rank);
    backend->large_bytes = large_bytes(n_threads);
    enum roped_status status = pool_open(n_threads, &backend->pool, err);
    if (status) {
        free(backend);
        return status;
    }
    *out = backend;
    return ROPED_OK;
}

static void close_backend(struct roped_backend *backend)
{
    if (!backend)
        return;
    pool_close(backend->pool);
    cpu_free_kept();
    free(backend);
}

static void info(struct roped_backend *backend, struct roped_device_info *out)
{
    memset(out, 0, sizeof *out);
    machine_model_name(out->name, sizeof out->name);
    out->n_units = pool_threads(backend->pool);
    snprintf(out->detail, sizeof out->detail, "%s, %d threads",
             backend->rows->name, out->n_units);
    out->memory_bytes =
        (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
}

static bool is_healthy(struct roped_backend *backend, struct roped_error *why)
{
    (void)backend;
    (void)why;
    return true;
}

static enum roped_status allocate(struct roped_backend *backend, size_t bytes,
                                  void **out, struct roped_error *err)
{
    (void)backend;
    return cpu_alloc(bytes, out, err);
}

static void release(struct roped_backend *backend, void *memory)
{
    (void)backend;
    cpu_free(memory);
}

static enum roped_status queue_open(struct roped_backend *backend,
                                    struct roped_queue **out,
                                    struct roped_error *err)
{
    struct roped_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a queue");
    queue->backend = backend;
    *out = queue;
    return ROPED_OK;
}

static void queue_close(struct roped_queue *queue)
{
    if (!queue)
        return;
    cpu_free(queue->scratch);
    free(queue);
}

enum roped_status cpu_scratch(struct roped_queue *queue, size_t bytes,
                              void **out, struct roped_error *err)
{
    if (bytes > queue->scratch_bytes) {
        void *memory;
        enum roped_status status = cpu_alloc(bytes, &memory, err);
        if (status)
            return status;
        cpu_free(queue->scratch);
        queue->scratch = memory;
        queue->scratch_bytes = bytes;
    }
    *out = queue->scratch;
    return ROPED_OK;
}

static enum roped_status copy(struct roped_queue *queue, void *to,
                              const void *from, size_t bytes,
                              struct roped_error *err)
{
    (void)queue;
    (void)err;
    if (bytes)
        memcpy(to, from, bytes);
    return ROPED_OK;
}

bool cpu_is_large(const struct roped_queue *queue, int64_t bytes)
{
    return bytes >= queue->backend->large_bytes;
}

struct fenced_loop {
    const struct cpu_rows *rows;
    pool_loop_fn *loop;
    void *context;
};

static void run_fenced(void *context, int64_t begin, int64_t end)
{
    const struct fenced_loop *fenced = context;
    fenced->loop(fenced->context, begin, end);
    fenced->rows->fence();
}

int64_t cpu_segments(const struct roped_queue *queue, int64_t n)
{
    enum { SEGMENTS_PER_THREAD = 4 };
    return cpu_smaller(n, (int64_t)pool_threads(queue->backend->pool) *
                              SEGMENTS_PER_THREAD);
}

void cpu_for(struct roped_queue *queue, int64_t bytes, int64_t n,
             pool_loop_fn *loop, void *context)
{
    struct fenced_loop fenced = {queue->backend->rows, loop, context};
    pool_for(queue->backend->pool, n, bytes, run_fenced, &fenced);
}

static enum roped_status copy_rows(struct roped_queue *queue, void *to,
                                   const void *from,
                                   const struct roped_byte_rows *rows,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (size_t i = 0; i < rows->n && !status; i++)
        status = copy(queue, (char *)to + i * rows->stride_bytes,
                      (const char *)from + i * rows->stride_bytes,
                      rows->row_bytes, err);
    return status;
}

static enum roped_status clear(struct roped_queue *queue, void *memory,
                               size_t bytes, struct roped_error *err)
{
    (void)queue;
    (void)err;
    if (bytes)
        memset(memory, 0, bytes);
    return ROPED_OK;
}

/* An updated input whose output is other memory: what the call keeps. */
static void copy_updated(const struct roped_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *in = &call->in[i];
        int output = roped_op_updates(call->op, i);
        if (output < 0 || !roped_tensor_given(in))
            continue;
        size_t bytes = (size_t)roped_tensor_bytes(in);
        if (bytes && call->out[output].data != in->data)
            memcpy(call->out[output].data, in->data, bytes);
    }
}

static enum roped_status launch(struct roped_queue *queue,
                                const struct roped_call *call,
                                struct roped_error *err)
{
    copy_updated(call);
    return launches[roped_op_index(call->op)](call, queue, err);
}

static enum roped_status wait_queue(struct roped_queue *queue,
                                    struct roped_error *err)
{
    (void)queue;
    (void)err;
    return ROPED_OK;
}

static enum roped_status mark(struct roped_queue *queue, int at,
                              struct roped_error *err)
{
    struct timespec now;
    (void)err;
    clock_gettime(CLOCK_MONOTONIC, &now);
    queue->mark_seconds[at] = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    return ROPED_OK;
}

static double seconds_between(struct roped_queue *queue, int first, int last)
{
    return queue->mark_seconds[last] - queue->mark_seconds[first];
}

const struct roped_backend_api roped_backend_cpu = {
    .name = "cpu",
    .is_host = true,
    .device_count = device_count,
    .open = open_backend,
    .close = close_backend,
    .info = info,
    .is_healthy = is_healthy,
    .host_alloc = allocate,
    .host_free = release,
    .device_alloc = allocate,
    .device_free = release,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .upload = copy,
    .download = copy,
    .download_rows = copy_rows,
    .clear = clear,
    .launch = launch,
    .build_table = cpu_build_table,
    .wait = wait_queue,
    .mark = mark,
    .seconds_between = seconds_between,
};
