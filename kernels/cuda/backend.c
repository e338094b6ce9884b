/*
 * backend.c - a CUDA device as roped sees it: memory, streams, waiting, and
 * what errors mean. Knows no operator; launches come from ops.def.
 *
 * THREADS: CUDA keeps the current device per thread, and a queue may be used
 * by another thread than the one that opened it, so every entry that touches
 * the device sets it first (tens of nanoseconds where it is set already). The
 * health flag is the only state that threads share.
 */
#include "cuda/check.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct roped_backend {
    /* set at open */
    int device;
    int n_multiprocessors;
    int l2_bytes;
    int shared_bytes;
    int can_overlap;
    struct roped_device_info info;

    atomic_uint_least64_t peers_met; /* a bit for each device, see fetch */
    atomic_bool is_broken;
    struct roped_error why; /* guarded by broken_lock; empty: another of the
                               process was the first */
};

static pthread_mutex_t broken_lock = PTHREAD_MUTEX_INITIALIZER;
static bool has_broken; /* under broken_lock: any of the process */

static roped_launch_fn *const launches[ROPED_OP_COUNT] = {
#define ROPED_OP(id) [ROPED_OP_ID_##id] = roped_cuda_##id,
#include <roped/ops.def>
#undef ROPED_OP
};

/* ----------------------------------------------------------------- errors */

/* Errors after which every later call of this process fails too. */
static bool is_sticky(cudaError_t code)
{
    switch ((int)code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

/* One device takes the others along, whose errors say nothing new. */
static void note_broken(struct roped_backend *backend, const struct roped_error *why)
{
    pthread_mutex_lock(&broken_lock);
    if (!has_broken)
        backend->why = *why;
    has_broken = true;
    atomic_store(&backend->is_broken, true);
    pthread_mutex_unlock(&broken_lock);
}

enum roped_status roped_cuda_fail(struct roped_backend *backend, cudaError_t code, const char *what,
                                  struct roped_error *err)
{
    bool is_memory = code == cudaErrorMemoryAllocation;
    struct roped_error said;
    (void)cudaGetLastError(); /* or the next launch would report it again */
    (void)roped_fail(&said, is_memory ? ROPED_NO_MEMORY : ROPED_DEVICE, "%.*s: %s (%d), %s",
                     (int)strcspn(what, "("), what, cudaGetErrorName(code), (int)code,
                     cudaGetErrorString(code));
    if (backend && is_sticky(code))
        note_broken(backend, &said);
    if (err)
        *err = said;
    return said.status;
}

/* Why a machine has no usable device, in words its owner can act on. */
static const char *why_no_device(cudaError_t code)
{
    switch ((int)code) {
    case cudaErrorStubLibrary:
        return "libcuda.so is the toolkit's stub, not the one of a driver";
    case cudaErrorInsufficientDriver:
        return "no NVIDIA driver, or one too old for this build's CUDA";
    case cudaErrorNoDevice:
        return "the NVIDIA driver finds no device";
    case cudaErrorSystemDriverMismatch:
        return "libcuda.so and the kernel module are of different versions";
    case cudaErrorCompatNotSupportedOnDevice:
        return "the CUDA compatibility package does not support this device";
    case cudaErrorSystemNotReady:
        return "the system is not ready: is nvidia-fabricmanager running";
    default:
        return cudaGetErrorString(code);
    }
}

static int device_count(struct roped_error *err)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0)
        return count;
    (void)cudaGetLastError();
    if (code == cudaSuccess)
        code = cudaErrorNoDevice;
    roped_fail(err, ROPED_DEVICE, "no CUDA device: %s (%s, %d)", why_no_device(code),
               cudaGetErrorName(code), (int)code);
    return 0;
}

/* ------------------------------------------------------------- open, close */

static void describe(const struct cudaDeviceProp *found, int driver, struct roped_device_info *out)
{
    const unsigned char *id = (const void *)found->uuid.bytes;
    int at = snprintf(out->uuid, sizeof out->uuid, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(out->uuid + at, sizeof out->uuid - (size_t)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, found->name);
    snprintf(out->detail, sizeof out->detail, "sm_%d%d, driver %d.%d", found->major, found->minor,
             driver / 1000, driver % 1000 / 10);
    out->memory_bytes = found->totalGlobalMem;
    out->n_units = found->multiProcessorCount;
    out->is_integrated = found->integrated;
}

static enum roped_status fill_backend(struct roped_backend *backend,
                                      const struct roped_backend_options *options,
                                      struct roped_error *err)
{
    struct cudaDeviceProp found;
    int driver = 0;
    CHECK_RETURN(backend, cudaSetDevice(options->device), err);
    CHECK_RETURN(backend, cudaGetDeviceProperties(&found, options->device), err);
    CHECK_RETURN(backend, cudaDriverGetVersion(&driver), err);
    backend->device = options->device;
    backend->n_multiprocessors = found.multiProcessorCount;
    backend->l2_bytes = found.l2CacheSize;
    backend->shared_bytes = (int)found.sharedMemPerMultiprocessor;
    backend->can_overlap = found.major >= 9;
    describe(&found, driver, &backend->info);
    if (!found.unifiedAddressing || !found.canMapHostMemory)
        return roped_fail(err, ROPED_DEVICE,
                          "device %d, %s: no unified addressing, which mapped "
                          "host memory needs",
                          options->device, backend->info.name);
    cudaError_t code = roped_cuda_probe();
    if (code == cudaErrorNoKernelImageForDevice) {
        (void)cudaGetLastError();
        return roped_fail(err, ROPED_DEVICE,
                          "device %d, %s: sm_%d%d, this build has code for "
                          "other devices only",
                          options->device, backend->info.name, found.major, found.minor);
    }
    if (code != cudaSuccess)
        return roped_cuda_fail(backend, code, "cudaFuncGetAttributes", err);
    return ROPED_OK;
}

static enum roped_status open_backend(const struct roped_backend_options *options,
                                      struct roped_backend **out, struct roped_error *err)
{
    int n_devices = device_count(err);
    if (n_devices == 0)
        return ROPED_DEVICE;
    if (options->device < 0 || options->device >= n_devices)
        return roped_fail(err, ROPED_INVALID, "device: %d, expected 0 <= device < %d",
                          options->device, n_devices);
    struct roped_backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a backend");
    atomic_init(&backend->is_broken, false);
    enum roped_status status = fill_backend(backend, options, err);
    if (status) {
        free(backend);
        return status;
    }
    *out = backend;
    return ROPED_OK;
}

/* The context stays: others in this process may use it. */
static void close_backend(struct roped_backend *backend)
{
    free(backend);
}

static void info(struct roped_backend *backend, struct roped_device_info *out)
{
    *out = backend->info;
}

static bool is_healthy(struct roped_backend *backend, struct roped_error *why)
{
    if (!atomic_load(&backend->is_broken))
        return true;
    pthread_mutex_lock(&broken_lock);
    if (why)
        *why = backend->why;
    pthread_mutex_unlock(&broken_lock);
    return false;
}

/* ----------------------------------------------------------------- memory */

cudaError_t roped_cuda_use(struct roped_backend *backend)
{
    return cudaSetDevice(backend->device);
}

static enum roped_status host_alloc(struct roped_backend *backend, size_t bytes, void **out,
                                    struct roped_error *err)
{
    CHECK_RETURN(backend, cudaSetDevice(backend->device), err);
    CHECK_RETURN(backend,
                 cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped),
                 err);
    return ROPED_OK;
}

static void host_free(struct roped_backend *backend, void *memory)
{
    if (memory && cudaSetDevice(backend->device) == cudaSuccess)
        (void)cudaFreeHost(memory);
    (void)cudaGetLastError();
}

static enum roped_status host_lock(struct roped_backend *backend, void *memory, size_t bytes,
                                   struct roped_error *err)
{
    int same_address = 0;
    CHECK_RETURN(backend, cudaSetDevice(backend->device), err);
    CHECK_RETURN(backend,
                 cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                        backend->device),
                 err);
    if (!same_address)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          "device %d cannot use page-locked memory of others in place",
                          backend->device);
    CHECK_RETURN(backend,
                 cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                 err);
    return ROPED_OK;
}

static void host_unlock(struct roped_backend *backend, void *memory)
{
    if (cudaSetDevice(backend->device) == cudaSuccess)
        (void)cudaHostUnregister(memory);
    (void)cudaGetLastError();
}

/* Whatever else is on the device has part of its memory too. */
static enum roped_status allocate(struct roped_backend *backend, size_t bytes, void **out,
                                  struct roped_error *err)
{
    struct roped_error why;
    size_t n_free = 0, n_all = 0;
    cudaError_t code = cudaMalloc(out, bytes ? bytes : 1);
    if (code == cudaSuccess)
        return ROPED_OK;
    enum roped_status status = roped_cuda_fail(backend, code, "cudaMalloc", &why);
    if (status == ROPED_NO_MEMORY && cudaMemGetInfo(&n_free, &n_all) == cudaSuccess)
        return roped_fail(err, status, "%zu bytes of %zu are free, %zu are needed (%s)", n_free,
                          n_all, bytes, why.text);
    (void)cudaGetLastError();
    return roped_fail(err, status, "%s", why.text);
}

static enum roped_status device_alloc(struct roped_backend *backend, size_t bytes, void **out,
                                      struct roped_error *err)
{
    CHECK_RETURN(backend, cudaSetDevice(backend->device), err);
    return allocate(backend, bytes, out, err);
}

static void device_free(struct roped_backend *backend, void *memory)
{
    if (memory && cudaSetDevice(backend->device) == cudaSuccess)
        (void)cudaFree(memory);
    (void)cudaGetLastError();
}

/* ----------------------------------------------------------------- queues */

static void queue_close(struct roped_queue *queue)
{
    if (!queue)
        return;
    if (cudaSetDevice(queue->device) == cudaSuccess) {
        for (int i = 0; i < ROPED_MAX_MARKS; i++)
            if (queue->mark[i])
                (void)cudaEventDestroy(queue->mark[i]);
        if (queue->scratch)
            (void)cudaFree(queue->scratch);
        if (queue->owns_stream && queue->stream)
            (void)cudaStreamDestroy(queue->stream);
    }
    (void)cudaGetLastError();
    free(queue);
}

static enum roped_status new_queue(struct roped_backend *backend, cudaStream_t stream,
                                   bool owns_stream, struct roped_queue **out,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    struct roped_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a queue");
    queue->backend = backend;
    queue->device = backend->device;
    queue->n_multiprocessors = backend->n_multiprocessors;
    queue->l2_bytes = backend->l2_bytes;
    queue->shared_bytes = backend->shared_bytes;
    queue->can_overlap = backend->can_overlap;
    queue->stream = stream;
    queue->owns_stream = owns_stream;
    CHECK_GOTO(backend, cudaSetDevice(queue->device), err, failed);
    if (owns_stream)
        CHECK_GOTO(backend, cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking), err,
                   failed);
    *out = queue;
    return ROPED_OK;
failed:
    queue_close(queue);
    return status;
}

static enum roped_status queue_open(struct roped_backend *backend, struct roped_queue **out,
                                    struct roped_error *err)
{
    return new_queue(backend, NULL, true, out, err);
}

static enum roped_status queue_wrap(struct roped_backend *backend, void *stream,
                                    struct roped_queue **out, struct roped_error *err)
{
    return new_queue(backend, stream, false, out, err);
}

/* Counters first, at zero, by a stream that no capture knows. */
static enum roped_status new_scratch(struct roped_queue *queue, struct roped_error *err)
{
    enum { COUNTER_BYTES = ROPED_CUDA_COUNTERS * (int)sizeof(uint32_t) };
    cudaStream_t stream = NULL;
    enum roped_status status =
        allocate(queue->backend, COUNTER_BYTES + ROPED_CUDA_SCRATCH_BYTES, &queue->scratch, err);
    if (status)
        return status;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(queue->scratch, 0, COUNTER_BYTES, stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(stream);
    if (stream)
        (void)cudaStreamDestroy(stream);
    if (code == cudaSuccess)
        return ROPED_OK;
    status = roped_cuda_fail(queue->backend, code, "scratch memory", err);
    (void)cudaFree(queue->scratch);
    queue->scratch = NULL;
    return status;
}

/*
 * The first launch that needs it may be inside a capture, in which cudaMalloc
 * is refused unless this thread says that it means it.
 */
enum roped_status roped_cuda_scratch(struct roped_queue *queue, int64_t bytes, int64_t n_counters,
                                     float **out, uint32_t **counters, struct roped_error *err)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (bytes > ROPED_CUDA_SCRATCH_BYTES || n_counters > ROPED_CUDA_COUNTERS)
        return roped_fail(err, ROPED_INTERNAL,
                          "a launch wants %lld bytes of scratch memory and %lld counters",
                          (long long)bytes, (long long)n_counters);
    if (!queue->scratch) {
        CHECK_RETURN(queue->backend, cudaThreadExchangeStreamCaptureMode(&mode), err);
        enum roped_status status = new_scratch(queue, err);
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
        if (status)
            return status;
    }
    *counters = queue->scratch;
    *out = (float *)(*counters + ROPED_CUDA_COUNTERS);
    return ROPED_OK;
}

static enum roped_status upload(struct roped_queue *queue, void *device, const void *host,
                                size_t bytes, struct roped_error *err)
{
    if (bytes == 0)
        return ROPED_OK;
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    CHECK_RETURN(queue->backend,
                 cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, queue->stream), err);
    return ROPED_OK;
}

static enum roped_status download(struct roped_queue *queue, void *host, const void *device,
                                  size_t bytes, struct roped_error *err)
{
    if (bytes == 0)
        return ROPED_OK;
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    CHECK_RETURN(queue->backend,
                 cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue->stream), err);
    return ROPED_OK;
}

static enum roped_status download_rows(struct roped_queue *queue, void *host, const void *device,
                                       const struct roped_byte_rows *rows, struct roped_error *err)
{
    if (rows->n * rows->row_bytes == 0)
        return ROPED_OK;
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    CHECK_RETURN(queue->backend,
                 cudaMemcpy2DAsync(host, rows->stride_bytes, device, rows->stride_bytes,
                                   rows->row_bytes, rows->n, cudaMemcpyDeviceToHost, queue->stream),
                 err);
    return ROPED_OK;
}

/*
 * Once for each pair of devices that a copy wants: from then on it goes directly,
 * where they can reach each other. Without this, or where they cannot, the driver
 * takes every such copy by way of the host.
 */
static void meet_peer(struct roped_backend *backend, int peer)
{
    int is_reachable = 0;
    uint64_t bit = peer < 64 ? UINT64_C(1) << peer : 0;
    if (peer == backend->device || bit == 0 || atomic_load(&backend->peers_met) & bit)
        return;
    if (cudaDeviceCanAccessPeer(&is_reachable, backend->device, peer) == cudaSuccess &&
        is_reachable)
        (void)cudaDeviceEnablePeerAccess(peer, 0);
    (void)cudaGetLastError(); /* also that another thread was first */
    atomic_fetch_or(&backend->peers_met, bit);
}

static enum roped_status fetch(struct roped_queue *queue, void *device,
                               const struct roped_backend *other, const void *from, size_t bytes,
                               struct roped_error *err)
{
    if (bytes == 0)
        return ROPED_OK;
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    meet_peer(queue->backend, other->device);
    CHECK_RETURN(
        queue->backend,
        cudaMemcpyPeerAsync(device, queue->device, from, other->device, bytes, queue->stream), err);
    return ROPED_OK;
}

static enum roped_status clear(struct roped_queue *queue, void *device, size_t bytes,
                               struct roped_error *err)
{
    if (bytes == 0)
        return ROPED_OK;
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    CHECK_RETURN(queue->backend, cudaMemsetAsync(device, 0, bytes, queue->stream), err);
    return ROPED_OK;
}

/* An updated input whose output is other memory: what the call keeps. */
static enum roped_status copy_updated(struct roped_queue *queue, const struct roped_call *call,
                                      struct roped_error *err)
{
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *in = &call->in[i];
        int output = roped_op_updates(call->op, i);
        if (output < 0 || !roped_tensor_given(in))
            continue;
        void *to = call->out[output].data;
        size_t bytes = (size_t)roped_tensor_bytes(in);
        if (bytes && to != in->data)
            CHECK_RETURN(queue->backend,
                         cudaMemcpyAsync(to, in->data, bytes, cudaMemcpyDefault, queue->stream),
                         err);
    }
    return ROPED_OK;
}

static enum roped_status launch(struct roped_queue *queue, const struct roped_call *call,
                                struct roped_error *err)
{
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    enum roped_status status = copy_updated(queue, call, err);
    if (status)
        return status;
    return launches[roped_op_index(call->op)](call, queue, err);
}

static enum roped_status build_table(struct roped_queue *queue, const struct roped_angles *angles,
                                     int64_t first_row, int64_t rows, float *device,
                                     struct roped_error *err)
{
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    return roped_cuda_build_table(queue, angles, first_row, rows, device, err);
}

/* ---------------------------------------------------------------- waiting */

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Of this thread, whose naps the kernel may stretch by as much: 50 us unless somebody asks for
 * less. Returns what it was. */
static unsigned long set_timer_slack(unsigned long ns)
{
    int before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    (void)prctl(PR_SET_TIMERSLACK, ns, 0, 0, 0);
    return before > 0 ? (unsigned long)before : 0;
}

/*
 * Polls for as long as going to sleep and being woken would cost, then between
 * naps that are short beside what was waited so far: a small call (10 to 40 us)
 * ends the moment the device is done, a program of 200 us less than 20 us
 * later, a large copy costs its core a few hundredths. A thread that sleeps on
 * an event costs less, and is woken late: on the host of an H200 a call that
 * copies 64 MiB each way took 3.5 ms with an event, 3.0 with naps or without.
 */
static enum roped_status wait_queue(struct roped_queue *queue, struct roped_error *err)
{
    static const double poll_seconds = 100e-6, longest_nap = 50e-6;
    struct roped_backend *backend = queue->backend;
    CHECK_RETURN(backend, cudaSetDevice(queue->device), err);
    double start = now_seconds();
    unsigned long slack = 0;
    cudaError_t code;
    while ((code = cudaStreamQuery(queue->stream)) == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* not ready is no error */
        double waited = now_seconds() - start, nap = fmin(waited / 32, longest_nap);
        if (waited < poll_seconds)
            continue;
        if (!slack)
            slack = set_timer_slack(1);
        (void)nanosleep(&(struct timespec){0, (long)(nap * 1e9)}, NULL);
    }
    if (slack)
        (void)set_timer_slack(slack);
    if (code != cudaSuccess)
        return roped_cuda_fail(backend, code, "cudaStreamQuery", err);
    return ROPED_OK;
}

static enum roped_status mark(struct roped_queue *queue, int at, struct roped_error *err)
{
    assert(at >= 0 && at < ROPED_MAX_MARKS);
    CHECK_RETURN(queue->backend, cudaSetDevice(queue->device), err);
    if (!queue->mark[at])
        CHECK_RETURN(queue->backend, cudaEventCreate(&queue->mark[at]), err);
    CHECK_RETURN(queue->backend, cudaEventRecord(queue->mark[at], queue->stream), err);
    return ROPED_OK;
}

static double seconds_between(struct roped_queue *queue, int first, int last)
{
    float milliseconds = 0;
    if (!queue->mark[first] || !queue->mark[last] ||
        cudaEventElapsedTime(&milliseconds, queue->mark[first], queue->mark[last]) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (double)milliseconds * 1e-3;
}

const struct roped_backend_api roped_backend_cuda = {
    .name = "cuda",
    .is_host = false,
    .device_count = device_count,
    .open = open_backend,
    .close = close_backend,
    .info = info,
    .is_healthy = is_healthy,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_lock = host_lock,
    .host_unlock = host_unlock,
    .device_alloc = device_alloc,
    .device_free = device_free,
    .foreign_open = roped_cuda_foreign_open,
    .foreign_close = roped_cuda_foreign_close,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .queue_wrap = queue_wrap,
    .upload = upload,
    .download = download,
    .download_rows = download_rows,
    .fetch = fetch,
    .clear = clear,
    .launch = launch,
    .record = roped_cuda_record,
    .record_end = roped_cuda_record_end,
    .replay = roped_cuda_replay,
    .recording_free = roped_cuda_recording_free,
    .build_table = build_table,
    .wait = wait_queue,
    .mark = mark,
    .seconds_between = seconds_between,
};
