/*
 * fault_backend.c - a backend over another whose Nth call of a kind fails: all
 * of the daemon's device work passes through here. Only daemons of tests have
 * it.
 *
 * ROPED_TEST_FAULT="launch 3 sticky" in the environment: the third launch
 * fails, and so does all that comes after it on every device of the process, of
 * which that one is unhealthy. "passing" instead: it fails once. A process that
 * took another's place has no fault, unless a fourth word says "again".
 *
 * ROPED_TEST_FAULT="launch 300 slow": each launch takes 300 ms, and none fails.
 *
 * Over CUDA (FAULT_CRASHES) a sticky launch is a kernel that writes where
 * nothing is, and what fails then fails by itself.
 */
#undef roped_backend_cuda /* the wrapper's name in main.c, which links here */

#include <roped/backend.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const struct roped_backend_api FAULT_INNER;
static const struct roped_backend_api *const inner = &FAULT_INNER;

/* What can fail, by the name of its function. */
#define KINDS(X)                                                               \
    X(device_count)                                                            \
    X(open)                                                                    \
    X(host_alloc)                                                              \
    X(host_lock)                                                               \
    X(device_alloc)                                                            \
    X(foreign_open)                                                            \
    X(queue_open)                                                              \
    X(upload)                                                                  \
    X(download)                                                                \
    X(fetch)                                                                   \
    X(clear)                                                                   \
    X(launch)                                                                  \
    X(record)                                                                  \
    X(record_end)                                                              \
    X(replay)                                                                  \
    X(build_table)                                                             \
    X(wait)                                                                    \
    X(mark)

enum kind {
#define X(name) KIND_##name,
    KINDS(X)
#undef X
        N_KINDS
};

static const char *const kind_names[N_KINDS] = {
#define X(name) #name,
    KINDS(X)
#undef X
};

static struct {
    bool is_set; /* before main, as the next two */
    enum kind kind;
    int n;
    bool is_sticky, is_slow;
    atomic_int calls[N_KINDS];
    atomic_bool has_failed; /* for good */

    pthread_mutex_t lock; /* guards the following */
    struct roped_backend *lost;
    struct roped_error why;
    struct roped_backend *first; /* that was opened */
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Before main, which takes the handover out of the environment. */
__attribute__((constructor)) static void read_fault(void)
{
    char kind[32] = "", how[16] = "", again[16] = "";
    const char *text = getenv("ROPED_TEST_FAULT");
    if (!text ||
        sscanf(text, "%31s %d %15s %15s", kind, &fault.n, how, again) < 3)
        return;
    if (getenv("ROPED_HANDOVER") && !again[0])
        return;
    for (int i = 0; i < N_KINDS; i++)
        if (strcmp(kind, kind_names[i]) == 0) {
            fault.kind = (enum kind)i;
            fault.is_set = true;
        }
    fault.is_sticky = strcmp(how, "sticky") == 0;
    fault.is_slow = strcmp(how, "slow") == 0;
    if (!fault.is_set) {
        fprintf(stderr, "ROPED_TEST_FAULT=%s: no such kind\n", text);
        exit(EXIT_FAILURE);
    }
}

static enum roped_status fail(enum kind kind, struct roped_error *err)
{
    bool is_memory = !fault.is_sticky &&
                     (kind == KIND_host_alloc || kind == KIND_device_alloc);
    return roped_fail(err, is_memory ? ROPED_NO_MEMORY : ROPED_DEVICE,
                      "%s: injected fault", kind_names[kind]);
}

static void lose(struct roped_backend *backend, enum kind kind)
{
    pthread_mutex_lock(&fault.lock);
    fault.lost = backend ? backend : fault.first;
    (void)fail(kind, &fault.why);
    pthread_mutex_unlock(&fault.lock);
    atomic_store(&fault.has_failed, true);
}

static void take_time(void)
{
    struct timespec time = {fault.n / 1000, fault.n % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Counts a call; true: it is the one. */
static bool is_the_one(enum kind kind)
{
    if (fault.is_slow && kind == fault.kind)
        take_time();
    if (!fault.is_set || fault.is_slow || kind != fault.kind ||
        1 + atomic_fetch_add(&fault.calls[kind], 1) != fault.n)
        return false;
    fprintf(stderr, "event=fault kind=%s n=%d\n", kind_names[kind], fault.n);
    return true;
}

/* ROPED_OK where the call is to go on to the inner backend. */
static enum roped_status enter(enum kind kind, struct roped_backend *backend,
                               struct roped_error *err)
{
    if (atomic_load(&fault.has_failed))
        return fail(kind, err);
    if (!is_the_one(kind))
        return ROPED_OK;
    if (fault.is_sticky)
        lose(backend, kind);
    return fail(kind, err);
}

/* ------------------------------------------------------------------ queues */

struct fault_queue {
    struct roped_queue *inner;
    struct roped_backend *backend;
};

static struct fault_queue *of(struct roped_queue *queue)
{
    return (struct fault_queue *)queue;
}

static enum roped_status fault_queue_open(struct roped_backend *backend,
                                          struct roped_queue **out,
                                          struct roped_error *err)
{
    enum roped_status status = enter(KIND_queue_open, backend, err);
    struct fault_queue *queue = status ? NULL : calloc(1, sizeof *queue);
    if (status)
        return status;
    if (!queue)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a queue");
    queue->backend = backend;
    status = inner->queue_open(backend, &queue->inner, err);
    if (status)
        free(queue);
    else
        *out = (struct roped_queue *)queue;
    return status;
}

static void fault_queue_close(struct roped_queue *queue)
{
    if (!queue)
        return;
    inner->queue_close(of(queue)->inner);
    free(queue);
}

static enum roped_status fault_upload(struct roped_queue *queue, void *device,
                                      const void *host, size_t bytes,
                                      struct roped_error *err)
{
    enum roped_status status = enter(KIND_upload, of(queue)->backend, err);
    return status ? status
                  : inner->upload(of(queue)->inner, device, host, bytes, err);
}

static enum roped_status fault_download(struct roped_queue *queue, void *host,
                                        const void *device, size_t bytes,
                                        struct roped_error *err)
{
    enum roped_status status = enter(KIND_download, of(queue)->backend, err);
    return status ? status
                  : inner->download(of(queue)->inner, host, device, bytes, err);
}

static enum roped_status fault_download_rows(struct roped_queue *queue,
                                             void *host, const void *device,
                                             const struct roped_byte_rows *rows,
                                             struct roped_error *err)
{
    enum roped_status status = enter(KIND_download, of(queue)->backend, err);
    return status ? status
                  : inner->download_rows(of(queue)->inner, host, device, rows,
                                         err);
}

static enum roped_status fault_fetch(struct roped_queue *queue, void *device,
                                     const struct roped_backend *other,
                                     const void *from, size_t bytes,
                                     struct roped_error *err)
{
    enum roped_status status = enter(KIND_fetch, of(queue)->backend, err);
    return status ? status
                  : inner->fetch(of(queue)->inner, device, other, from, bytes,
                                 err);
}

static enum roped_status fault_clear(struct roped_queue *queue, void *device,
                                     size_t bytes, struct roped_error *err)
{
    enum roped_status status = enter(KIND_clear, of(queue)->backend, err);
    return status ? status : inner->clear(of(queue)->inner, device, bytes, err);
}

#ifdef FAULT_CRASHES
/* fault_crash.cu: a kernel on the queue that writes where nothing is. */
void fault_crash(struct roped_queue *queue);
#endif

static enum roped_status fault_launch(struct roped_queue *queue,
                                      const struct roped_call *call,
                                      struct roped_error *err)
{
#ifdef FAULT_CRASHES
    if (fault.is_sticky && fault.kind == KIND_launch) {
        if (is_the_one(KIND_launch))
            fault_crash(of(queue)->inner);
        return inner->launch(of(queue)->inner, call, err);
    }
#endif
    enum roped_status status = enter(KIND_launch, of(queue)->backend, err);
    return status ? status : inner->launch(of(queue)->inner, call, err);
}

static enum roped_status fault_record(struct roped_queue *queue,
                                      struct roped_error *err)
{
    enum roped_status status = enter(KIND_record, of(queue)->backend, err);
    return status ? status : inner->record(of(queue)->inner, err);
}

/* Ends it in any case. */
static enum roped_status fault_record_end(struct roped_queue *queue,
                                          struct roped_recording **out,
                                          struct roped_error *err)
{
    enum roped_status status = enter(KIND_record_end, of(queue)->backend, err);
    enum roped_status ended = inner->record_end(
        of(queue)->inner, status ? NULL : out, status ? NULL : err);
    return status ? status : ended;
}

static enum roped_status fault_replay(struct roped_queue *queue,
                                      struct roped_recording *recording,
                                      struct roped_error *err)
{
    enum roped_status status = enter(KIND_replay, of(queue)->backend, err);
    return status ? status : inner->replay(of(queue)->inner, recording, err);
}

static void fault_recording_free(struct roped_queue *queue,
                                 struct roped_recording *recording)
{
    inner->recording_free(of(queue)->inner, recording);
}

static enum roped_status fault_build_table(struct roped_queue *queue,
                                           const struct roped_angles *angles,
                                           int64_t first_row, int64_t rows,
                                           float *device,
                                           struct roped_error *err)
{
    enum roped_status status = enter(KIND_build_table, of(queue)->backend, err);
    return status ? status
                  : inner->build_table(of(queue)->inner, angles, first_row,
                                       rows, device, err);
}

/* Waits in any case: what it failed for uses the caller's memory. */
static enum roped_status fault_wait(struct roped_queue *queue,
                                    struct roped_error *err)
{
    enum roped_status waited = inner->wait(of(queue)->inner, err);
    enum roped_status status = enter(KIND_wait, of(queue)->backend, err);
    return status ? status : waited;
}

static enum roped_status fault_mark(struct roped_queue *queue, int at,
                                    struct roped_error *err)
{
    enum roped_status status = enter(KIND_mark, of(queue)->backend, err);
    return status ? status : inner->mark(of(queue)->inner, at, err);
}

static double fault_seconds_between(struct roped_queue *queue, int first,
                                    int last)
{
    return inner->seconds_between(of(queue)->inner, first, last);
}

/* ----------------------------------------------------------------- devices */

static int fault_device_count(struct roped_error *err)
{
    return enter(KIND_device_count, NULL, err) ? 0 : inner->device_count(err);
}

static enum roped_status fault_open(const struct roped_backend_options *options,
                                    struct roped_backend **out,
                                    struct roped_error *err)
{
    enum roped_status status = enter(KIND_open, NULL, err);
    if (!status)
        status = inner->open(options, out, err);
    if (status)
        return status;
    pthread_mutex_lock(&fault.lock);
    if (!fault.first)
        fault.first = *out;
    pthread_mutex_unlock(&fault.lock);
    return ROPED_OK;
}

static void fault_close(struct roped_backend *backend)
{
    inner->close(backend);
}

static void fault_info(struct roped_backend *backend,
                       struct roped_device_info *out)
{
    inner->info(backend, out);
}

static bool fault_is_healthy(struct roped_backend *backend,
                             struct roped_error *why)
{
    if (!atomic_load(&fault.has_failed))
        return inner->is_healthy(backend, why);
    pthread_mutex_lock(&fault.lock);
    bool is_lost = backend == fault.lost;
    if (is_lost && why)
        *why = fault.why;
    pthread_mutex_unlock(&fault.lock);
    return !is_lost;
}

static enum roped_status fault_host_alloc(struct roped_backend *backend,
                                          size_t bytes, void **out,
                                          struct roped_error *err)
{
    enum roped_status status = enter(KIND_host_alloc, backend, err);
    return status ? status : inner->host_alloc(backend, bytes, out, err);
}

static void fault_host_free(struct roped_backend *backend, void *memory)
{
    inner->host_free(backend, memory);
}

static enum roped_status fault_device_alloc(struct roped_backend *backend,
                                            size_t bytes, void **out,
                                            struct roped_error *err)
{
    enum roped_status status = enter(KIND_device_alloc, backend, err);
    return status ? status : inner->device_alloc(backend, bytes, out, err);
}

static void fault_device_free(struct roped_backend *backend, void *memory)
{
    inner->device_free(backend, memory);
}

/* Where the inner backend has none, locking is nothing. */
static enum roped_status fault_host_lock(struct roped_backend *backend,
                                         void *memory, size_t bytes,
                                         struct roped_error *err)
{
    enum roped_status status = enter(KIND_host_lock, backend, err);
    if (status || !inner->host_lock)
        return status;
    return inner->host_lock(backend, memory, bytes, err);
}

static void fault_host_unlock(struct roped_backend *backend, void *memory)
{
    if (inner->host_unlock)
        inner->host_unlock(backend, memory);
}

/* Where the inner backend has none, any handle is of some zeros. */
static enum roped_status fault_foreign_open(struct roped_backend *backend,
                                            const void *handle, void **out,
                                            uint64_t *bytes,
                                            struct roped_error *err)
{
    enum { FOREIGN_BYTES = 4096 };
    enum roped_status status = enter(KIND_foreign_open, backend, err);
    if (status)
        return status;
    if (inner->foreign_open)
        return inner->foreign_open(backend, handle, out, bytes, err);
    *bytes = FOREIGN_BYTES;
    *out = calloc(1, FOREIGN_BYTES);
    return *out ? ROPED_OK : roped_fail(err, ROPED_NO_MEMORY, "no memory");
}

static void fault_foreign_close(struct roped_backend *backend, void *memory)
{
    if (inner->foreign_close)
        inner->foreign_close(backend, memory);
    else
        free(memory);
}

const struct roped_backend_api fault_api = {
    .name = "cuda",
    .is_host = false,
    .device_count = fault_device_count,
    .open = fault_open,
    .close = fault_close,
    .info = fault_info,
    .is_healthy = fault_is_healthy,
    .host_alloc = fault_host_alloc,
    .host_free = fault_host_free,
    .host_lock = fault_host_lock,
    .host_unlock = fault_host_unlock,
    .device_alloc = fault_device_alloc,
    .device_free = fault_device_free,
    .foreign_open = fault_foreign_open,
    .foreign_close = fault_foreign_close,
    .queue_open = fault_queue_open,
    .queue_close = fault_queue_close,
    .upload = fault_upload,
    .download = fault_download,
    .download_rows = fault_download_rows,
    .fetch = fault_fetch,
    .clear = fault_clear,
    .launch = fault_launch,
    .record = fault_record,
    .record_end = fault_record_end,
    .replay = fault_replay,
    .recording_free = fault_recording_free,
    .build_table = fault_build_table,
    .wait = fault_wait,
    .mark = fault_mark,
    .seconds_between = fault_seconds_between,
};
