/*
 * queued_backend.c - queues that are threads.
 */
#include "unit/server/exec/queued_backend.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef QUEUED_PAUSE_US
#define QUEUED_PAUSE_US 0
#endif

enum { RING = 256, GARBAGE = 0xA5 };

atomic_int queued_fail_upload, queued_n_live;
atomic_int queued_n_uploads, queued_n_downloads;
atomic_bool queued_fails_late, queued_is_held, queued_is_integrated;
atomic_bool queued_cannot_record;
atomic_llong queued_device_bytes, queued_uploaded_bytes, queued_fetched_bytes;

enum what {
    UPLOAD,
    DOWNLOAD,
    DOWNLOAD_ROWS,
    FETCH,
    CLEAR,
    LAUNCH,
    REPLAY,
    MARK,
    FAIL
};

/* Calls as they were when they were recorded. */
struct recording {
    int n;
    struct roped_call *call;
};

struct command {
    enum what what;
    void *to;
    const void *from;
    size_t bytes;
    struct roped_call call;
    const struct recording *recording;
    struct roped_byte_rows rows;
    int mark;
};

struct queue {
    struct roped_backend *backend;
    struct roped_queue *cpu; /* its thread's */
    pthread_t thread;
    double seconds[ROPED_MAX_MARKS];
    struct recording *records; /* launches go there; NULL: they are done */

    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t changed;
    int n_asked, n_done;
    bool is_closing;
    enum roped_status status; /* of what went wrong since the last wait */
    struct roped_error error;
    struct command ring[RING]; /* a slot is its writer's, then the thread's */
};

void queued_reset(void)
{
    atomic_store(&queued_fail_upload, 0);
    atomic_store(&queued_fails_late, false);
    atomic_store(&queued_is_held, false);
    atomic_store(&queued_cannot_record, false);
    atomic_store(&queued_device_bytes, 0);
    atomic_store(&queued_n_uploads, 0);
    atomic_store(&queued_n_downloads, 0);
    atomic_store(&queued_uploaded_bytes, 0);
    atomic_store(&queued_fetched_bytes, 0);
}

static struct queue *of(struct roped_queue *queue)
{
    return (struct queue *)queue;
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* -------------------------------------------------------- memory of devices */

/* All that is allocated on devices, so that each is seen to use its own. */
struct allocation {
    const struct roped_backend *backend;
    const unsigned char *start;
    size_t bytes;
    struct allocation *next;
};

static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations; /* guarded by it */

static void note_allocation(const struct roped_backend *backend,
                            const void *start, size_t bytes)
{
    struct allocation *made = malloc(sizeof *made);
    if (!made)
        abort();
    pthread_mutex_lock(&allocations_lock);
    *made = (struct allocation){backend, start, bytes, allocations};
    allocations = made;
    pthread_mutex_unlock(&allocations_lock);
}

static void forget_allocation(const void *start)
{
    pthread_mutex_lock(&allocations_lock);
    struct allocation **link = &allocations;
    while (*link && (*link)->start != start)
        link = &(*link)->next;
    struct allocation *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&allocations_lock);
    free(gone);
}

/* The device that has it, or NULL: the host. */
static const struct roped_backend *owner_of(const void *memory)
{
    const unsigned char *at = memory;
    pthread_mutex_lock(&allocations_lock);
    const struct allocation *found = allocations;
    while (found && (at < found->start || at >= found->start + found->bytes))
        found = found->next;
    const struct roped_backend *owner = found ? found->backend : NULL;
    pthread_mutex_unlock(&allocations_lock);
    return owner;
}

/* A GPU that touches what is not in its reach is lost. */
static enum roped_status expect_owner(const void *memory, size_t bytes,
                                      const struct roped_backend *owner,
                                      struct roped_error *err)
{
    if (bytes == 0 || owner_of(memory) == owner)
        return ROPED_OK;
    return roped_fail(err, ROPED_DEVICE, "an illegal address: memory of %s",
                      owner_of(memory) ? "another device" : "the host");
}

static enum roped_status expect_reach(const struct queue *queue,
                                      const struct roped_tensor *tensor, int n,
                                      struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < n && !status; i++)
        if (roped_tensor_given(&tensor[i]) && owner_of(tensor[i].data))
            status = expect_owner(tensor[i].data,
                                  (size_t)roped_tensor_bytes(&tensor[i]),
                                  queue->backend, err);
    return status;
}

/* ------------------------------------------------------------- the thread */

/* A copy takes a while to start. */
static void await_release(void)
{
    struct timespec pause = {0, QUEUED_PAUSE_US * 1000};
    if (QUEUED_PAUSE_US)
        nanosleep(&pause, NULL);
    while (atomic_load(&queued_is_held))
        sched_yield();
}

/* Nothing may come from nowhere: an empty tensor has no address. */
static void copy(const struct command *command)
{
    if (command->bytes)
        memcpy(command->to, command->from, command->bytes);
}

static enum roped_status repeat(struct queue *queue,
                                const struct recording *recording,
                                struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < recording->n && !status; i++) {
        const struct roped_call *call = &recording->call[i];
        status = expect_reach(queue, call->in, call->n_in, err);
        if (!status)
            status = expect_reach(queue, call->out, call->n_out, err);
        if (!status)
            status = roped_backend_cpu.launch(queue->cpu, call, err);
    }
    return status;
}

static enum roped_status execute(struct queue *queue,
                                 const struct command *command,
                                 struct roped_error *err)
{
    switch (command->what) {
    case UPLOAD:
        await_release();
        copy(command);
        atomic_fetch_add(&queued_uploaded_bytes, (long long)command->bytes);
        return ROPED_OK;
    case DOWNLOAD:
        copy(command);
        return ROPED_OK;
    case DOWNLOAD_ROWS:
        for (size_t i = 0; i < command->rows.n; i++)
            memcpy((char *)command->to + i * command->rows.stride_bytes,
                   (const char *)command->from + i * command->rows.stride_bytes,
                   command->rows.row_bytes);
        return ROPED_OK;
    case FETCH:
        await_release();
        memcpy(command->to, command->from, command->bytes);
        atomic_fetch_add(&queued_fetched_bytes, (long long)command->bytes);
        return ROPED_OK;
    case CLEAR:
        if (command->bytes)
            memset(command->to, 0, command->bytes);
        return ROPED_OK;
    case LAUNCH:
        return roped_backend_cpu.launch(queue->cpu, &command->call, err);
    case REPLAY:
        return repeat(queue, command->recording, err);
    case MARK:
        queue->seconds[command->mark] = now_seconds();
        return ROPED_OK;
    case FAIL:
        break;
    }
    return roped_fail(err, ROPED_DEVICE, "the device failed at a copy");
}

static void *run_queue(void *context)
{
    struct queue *queue = context;
    struct roped_error error;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (!queue->is_closing && queue->n_done == queue->n_asked)
            pthread_cond_wait(&queue->changed, &queue->lock);
        if (queue->n_done == queue->n_asked)
            break;
        const struct command *command = &queue->ring[queue->n_done % RING];
        enum roped_status status = queue->status;
        pthread_mutex_unlock(&queue->lock);
        if (!status)
            status = execute(queue, command, &error);
        pthread_mutex_lock(&queue->lock);
        if (status && !queue->status) {
            queue->status = status;
            queue->error = error;
        }
        queue->n_done++;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* ------------------------------------------------------------------ asking */

static void ask(struct queue *queue, const struct command *command)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->n_asked - queue->n_done == RING)
        pthread_cond_wait(&queue->changed, &queue->lock);
    queue->ring[queue->n_asked % RING] = *command;
    queue->n_asked++;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static enum roped_status upload(struct roped_queue *queue, void *device,
                                const void *host, size_t bytes,
                                struct roped_error *err)
{
    struct command command = {
        .what = UPLOAD, .to = device, .from = host, .bytes = bytes};
    enum roped_status status =
        expect_owner(device, bytes, of(queue)->backend, err);
    if (!status)
        status = expect_owner(host, bytes, NULL, err);
    if (status)
        return status;
    atomic_fetch_add(&queued_n_uploads, 1);
    if (atomic_load(&queued_fail_upload) > 0 &&
        atomic_fetch_sub(&queued_fail_upload, 1) == 1) {
        if (!atomic_load(&queued_fails_late))
            return roped_fail(err, ROPED_DEVICE, "the device failed");
        command.what = FAIL;
    }
    ask(of(queue), &command);
    return ROPED_OK;
}

static enum roped_status download(struct roped_queue *queue, void *host,
                                  const void *device, size_t bytes,
                                  struct roped_error *err)
{
    enum roped_status status =
        expect_owner(device, bytes, of(queue)->backend, err);
    if (status)
        return status;
    atomic_fetch_add(&queued_n_downloads, 1);
    ask(of(queue),
        &(struct command){
            .what = DOWNLOAD, .to = host, .from = device, .bytes = bytes});
    return ROPED_OK;
}

static enum roped_status download_rows(struct roped_queue *queue, void *host,
                                       const void *device,
                                       const struct roped_byte_rows *rows,
                                       struct roped_error *err)
{
    enum roped_status status = expect_owner(device, rows->n * rows->row_bytes,
                                            of(queue)->backend, err);
    if (status)
        return status;
    atomic_fetch_add(&queued_n_downloads, 1);
    ask(of(queue),
        &(struct command){
            .what = DOWNLOAD_ROWS, .to = host, .from = device, .rows = *rows});
    return ROPED_OK;
}

static enum roped_status fetch(struct roped_queue *queue, void *device,
                               const struct roped_backend *other,
                               const void *from, size_t bytes,
                               struct roped_error *err)
{
    enum roped_status status =
        expect_owner(device, bytes, of(queue)->backend, err);
    if (!status)
        status = expect_owner(from, bytes, other, err);
    if (status)
        return status;
    ask(of(queue),
        &(struct command){
            .what = FETCH, .to = device, .from = from, .bytes = bytes});
    return ROPED_OK;
}

static enum roped_status clear(struct roped_queue *queue, void *device,
                               size_t bytes, struct roped_error *err)
{
    enum roped_status status =
        expect_owner(device, bytes, of(queue)->backend, err);
    if (status)
        return status;
    ask(of(queue),
        &(struct command){.what = CLEAR, .to = device, .bytes = bytes});
    return ROPED_OK;
}

/* As a GPU does, which has no code of a kernel before its first launch. */
static atomic_bool has_launched[ROPED_OP_COUNT];

static enum roped_status launch(struct roped_queue *queue,
                                const struct roped_call *call,
                                struct roped_error *err)
{
    struct recording *records = of(queue)->records;
    enum roped_status status =
        expect_reach(of(queue), call->in, call->n_in, err);
    if (!status)
        status = expect_reach(of(queue), call->out, call->n_out, err);
    if (status)
        return status;
    if (records) {
        if (!atomic_load(&has_launched[roped_op_index(call->op)]))
            return roped_fail(err, ROPED_DEVICE, "a kernel is not loaded");
        struct roped_call *all = realloc(
            records->call, (size_t)(records->n + 1) * sizeof *records->call);
        if (!all)
            abort();
        records->call = all;
        records->call[records->n++] = *call;
        return ROPED_OK;
    }
    atomic_store(&has_launched[roped_op_index(call->op)], true);
    ask(of(queue), &(struct command){.what = LAUNCH, .call = *call});
    return ROPED_OK;
}

static void recording_free(struct roped_queue *queue,
                           struct roped_recording *freed)
{
    struct recording *recording = (struct recording *)freed;
    (void)queue;
    free(recording->call);
    free(recording);
    atomic_fetch_sub(&queued_n_live, 1);
}

static enum roped_status record(struct roped_queue *queue,
                                struct roped_error *err)
{
    if (atomic_load(&queued_cannot_record))
        return roped_fail(err, ROPED_UNSUPPORTED, "nothing is recorded");
    if (!(of(queue)->records = calloc(1, sizeof(struct recording))))
        abort();
    atomic_fetch_add(&queued_n_live, 1);
    return ROPED_OK;
}

static enum roped_status record_end(struct roped_queue *queue,
                                    struct roped_recording **out,
                                    struct roped_error *err)
{
    struct roped_recording *made = (struct roped_recording *)of(queue)->records;
    (void)err;
    of(queue)->records = NULL;
    if (out)
        *out = made;
    else
        recording_free(queue, made);
    return ROPED_OK;
}

static enum roped_status replay(struct roped_queue *queue,
                                struct roped_recording *recording,
                                struct roped_error *err)
{
    (void)err;
    ask(of(queue),
        &(struct command){.what = REPLAY,
                          .recording = (const struct recording *)recording});
    return ROPED_OK;
}

static enum roped_status mark(struct roped_queue *queue, int at,
                              struct roped_error *err)
{
    (void)err;
    ask(of(queue), &(struct command){.what = MARK, .mark = at});
    return ROPED_OK;
}

static double seconds_between(struct roped_queue *queue, int first, int last)
{
    return of(queue)->seconds[last] - of(queue)->seconds[first];
}

static enum roped_status wait_queue(struct roped_queue *asked,
                                    struct roped_error *err)
{
    struct queue *queue = of(asked);
    pthread_mutex_lock(&queue->lock);
    while (queue->n_done < queue->n_asked)
        pthread_cond_wait(&queue->changed, &queue->lock);
    enum roped_status status = queue->status;
    if (status)
        roped_fail(err, status, "%s", queue->error.text);
    queue->status = ROPED_OK;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* Reads its angles before it returns, as its contract says. */
static enum roped_status build_table(struct roped_queue *queue,
                                     const struct roped_angles *angles,
                                     int64_t first_row, int64_t rows,
                                     float *device, struct roped_error *err)
{
    enum roped_status status = wait_queue(queue, err);
    return status ? status
                  : roped_backend_cpu.build_table(of(queue)->cpu, angles,
                                                  first_row, rows, device, err);
}

/* ------------------------------------------------------------- open, close */

static void queue_close(struct roped_queue *asked)
{
    struct queue *queue = of(asked);
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->is_closing = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    roped_backend_cpu.queue_close(queue->cpu);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    free(queue);
    atomic_fetch_sub(&queued_n_live, 1);
}

static enum roped_status queue_open(struct roped_backend *backend,
                                    struct roped_queue **out,
                                    struct roped_error *err)
{
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a queue");
    queue->backend = backend;
    enum roped_status status =
        roped_backend_cpu.queue_open(backend, &queue->cpu, err);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    if (!status && pthread_create(&queue->thread, NULL, run_queue, queue) != 0)
        status = roped_fail(err, ROPED_NO_MEMORY, "no thread for a queue");
    if (status) {
        free(queue);
        return status;
    }
    atomic_fetch_add(&queued_n_live, 1);
    *out = (struct roped_queue *)queue;
    return ROPED_OK;
}

static enum roped_status device_alloc(struct roped_backend *backend,
                                      size_t bytes, void **out,
                                      struct roped_error *err)
{
    long long most = atomic_load(&queued_device_bytes);
    if (most && bytes > (size_t)most)
        return roped_fail(err, ROPED_NO_MEMORY, "the device is full");
    enum roped_status status =
        roped_backend_cpu.device_alloc(backend, bytes, out, err);
    if (status)
        return status;
    memset(*out, GARBAGE, bytes);
    note_allocation(backend, *out, bytes);
    atomic_fetch_add(&queued_n_live, 1);
    return ROPED_OK;
}

static void device_free(struct roped_backend *backend, void *memory)
{
    if (memory)
        atomic_fetch_sub(&queued_n_live, 1);
    forget_allocation(memory);
    roped_backend_cpu.device_free(backend, memory);
}

static int device_count(struct roped_error *err)
{
    (void)err;
    return 2;
}

/* The rest is the CPU backend's, behind its table. */
static enum roped_status open_backend(const struct roped_backend_options *from,
                                      struct roped_backend **out,
                                      struct roped_error *err)
{
    return roped_backend_cpu.open(from, out, err);
}

static void close_backend(struct roped_backend *backend)
{
    roped_backend_cpu.close(backend);
}

static void info(struct roped_backend *backend, struct roped_device_info *out)
{
    roped_backend_cpu.info(backend, out);
    out->is_integrated = atomic_load(&queued_is_integrated);
}

static bool is_healthy(struct roped_backend *backend, struct roped_error *why)
{
    return roped_backend_cpu.is_healthy(backend, why);
}

static enum roped_status host_alloc(struct roped_backend *backend, size_t bytes,
                                    void **out, struct roped_error *err)
{
    return roped_backend_cpu.host_alloc(backend, bytes, out, err);
}

static void host_free(struct roped_backend *backend, void *memory)
{
    roped_backend_cpu.host_free(backend, memory);
}

const struct roped_backend_api queued_api = {
    .name = "queued",
    .device_count = device_count,
    .open = open_backend,
    .close = close_backend,
    .info = info,
    .is_healthy = is_healthy,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .device_alloc = device_alloc,
    .device_free = device_free,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .upload = upload,
    .download = download,
    .download_rows = download_rows,
    .fetch = fetch,
    .clear = clear,
    .launch = launch,
    .record = record,
    .record_end = record_end,
    .replay = replay,
    .recording_free = recording_free,
    .build_table = build_table,
    .wait = wait_queue,
    .mark = mark,
    .seconds_between = seconds_between,
};
