/*
 * fake_backend.c - a device that misbehaves on command.
 */
#include "unit/server/exec/fake_backend.h"

#include <pthread.h>
#include <stdio.h>

atomic_int fake_fail_at, fake_n_live;
atomic_int fake_n_launches, fake_n_copies;
atomic_llong fake_device_bytes;
atomic_bool fake_is_dead;
const char *fake_uuid = "";
atomic_int fake_dead_index;

/* Which device is whose: the CPU backend's structure is its own. */
enum { MAX_OPEN = 8 };
static struct roped_backend *opened[MAX_OPEN];
static int opened_index[MAX_OPEN];

roped_launch_fn *fake_kernel;

/* Launches are held until n_let_go grows. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opens = PTHREAD_COND_INITIALIZER;
static bool gate_is_shut;
static unsigned n_let_go;

static void shut_gate(bool is_shut, unsigned n_more)
{
    pthread_mutex_lock(&gate);
    gate_is_shut = is_shut;
    n_let_go += n_more;
    pthread_cond_broadcast(&gate_opens);
    pthread_mutex_unlock(&gate);
}

void fake_hold(void)
{
    shut_gate(true, 0);
}

void fake_pass(void)
{
    shut_gate(false, 0);
}

void fake_let_go(void)
{
    shut_gate(false, 1);
}

/* Counts a launch, which is then seen to be held. */
static void pass_gate(void)
{
    pthread_mutex_lock(&gate);
    unsigned came_at = n_let_go;
    bool is_held = gate_is_shut;
    atomic_fetch_add(&fake_n_launches, 1);
    while (is_held && n_let_go == came_at)
        pthread_cond_wait(&gate_opens, &gate);
    pthread_mutex_unlock(&gate);
}

void fake_reset(void)
{
    fake_let_go();
    atomic_store(&fake_fail_at, 0);
    atomic_store(&fake_is_dead, false);
    atomic_store(&fake_dead_index, -1);
    atomic_store(&fake_device_bytes, 0);
    atomic_store(&fake_n_launches, 0);
    atomic_store(&fake_n_copies, 0);
    fake_kernel = NULL;
}

static enum roped_status maybe_fail(enum roped_status status,
                                    struct roped_error *err)
{
    if (atomic_load(&fake_is_dead))
        return roped_fail(err, ROPED_DEVICE, "the fake device is dead");
    if (atomic_load(&fake_fail_at) > 0 &&
        atomic_fetch_sub(&fake_fail_at, 1) == 1)
        return roped_fail(err, status, "the fake device failed");
    return ROPED_OK;
}

static enum roped_status fake_alloc(struct roped_backend *backend, size_t bytes,
                                    void **out, struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_NO_MEMORY, err);
    if (!status)
        status = roped_backend_cpu.device_alloc(backend, bytes, out, err);
    if (!status)
        atomic_fetch_add(&fake_n_live, 1);
    return status;
}

static enum roped_status fake_device_alloc(struct roped_backend *backend,
                                           size_t bytes, void **out,
                                           struct roped_error *err)
{
    long long most = atomic_load(&fake_device_bytes);
    if (most && bytes > (size_t)most)
        return roped_fail(err, ROPED_NO_MEMORY, "the fake device is full");
    return fake_alloc(backend, bytes, out, err);
}

static void fake_free(struct roped_backend *backend, void *memory)
{
    if (memory)
        atomic_fetch_sub(&fake_n_live, 1);
    roped_backend_cpu.device_free(backend, memory);
}

/* Every handle is FAKE_FOREIGN_BYTES, but for one that nobody exported. */
static enum roped_status fake_foreign_open(struct roped_backend *backend,
                                           const void *handle, void **out,
                                           uint64_t *bytes,
                                           struct roped_error *err)
{
    if (*(const unsigned char *)handle == 0xFF)
        return roped_fail(err, ROPED_DEVICE, "no such handle");
    *bytes = FAKE_FOREIGN_BYTES;
    return fake_alloc(backend, FAKE_FOREIGN_BYTES, out, err);
}

static enum roped_status fake_upload(struct roped_queue *queue, void *device,
                                     const void *host, size_t bytes,
                                     struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    atomic_fetch_add(&fake_n_copies, 1);
    return status ? status
                  : roped_backend_cpu.upload(queue, device, host, bytes, err);
}

static enum roped_status fake_fetch(struct roped_queue *queue, void *device,
                                    const struct roped_backend *other,
                                    const void *from, size_t bytes,
                                    struct roped_error *err)
{
    (void)other;
    return fake_upload(queue, device, from, bytes, err);
}

static enum roped_status fake_download(struct roped_queue *queue, void *host,
                                       const void *device, size_t bytes,
                                       struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    atomic_fetch_add(&fake_n_copies, 1);
    return status ? status
                  : roped_backend_cpu.download(queue, host, device, bytes, err);
}

static enum roped_status fake_download_rows(struct roped_queue *queue,
                                            void *host, const void *device,
                                            const struct roped_byte_rows *rows,
                                            struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    atomic_fetch_add(&fake_n_copies, 1);
    return status ? status
                  : roped_backend_cpu.download_rows(queue, host, device, rows,
                                                    err);
}

static enum roped_status fake_clear(struct roped_queue *queue, void *device,
                                    size_t bytes, struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    return status ? status : roped_backend_cpu.clear(queue, device, bytes, err);
}

static enum roped_status fake_launch(struct roped_queue *queue,
                                     const struct roped_call *call,
                                     struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    pass_gate();
    if (!status && fake_kernel)
        return fake_kernel(call, queue, err);
    return status ? status : roped_backend_cpu.launch(queue, call, err);
}

static enum roped_status fake_build(struct roped_queue *queue,
                                    const struct roped_angles *angles,
                                    int64_t first_row, int64_t rows,
                                    float *device, struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    return status ? status
                  : roped_backend_cpu.build_table(queue, angles, first_row,
                                                  rows, device, err);
}

static enum roped_status fake_wait(struct roped_queue *queue,
                                   struct roped_error *err)
{
    enum roped_status status = maybe_fail(ROPED_DEVICE, err);
    return status ? status : roped_backend_cpu.wait(queue, err);
}

static bool fake_is_healthy(struct roped_backend *backend,
                            struct roped_error *why)
{
    int dead = atomic_load(&fake_dead_index);
    bool is_dead = atomic_load(&fake_is_dead);
    for (int i = 0; i < MAX_OPEN && dead >= 0; i++)
        is_dead |= opened[i] == backend && opened_index[i] == dead;
    if (is_dead)
        roped_fail(why, ROPED_DEVICE, "the device is dead");
    return !is_dead;
}

static int fake_count(struct roped_error *err)
{
    (void)err;
    return 1;
}

static enum roped_status fake_open(const struct roped_backend_options *options,
                                   struct roped_backend **out,
                                   struct roped_error *err)
{
    int i = 0;
    enum roped_status status = roped_backend_cpu.open(options, out, err);
    while (i < MAX_OPEN - 1 && opened[i])
        i++;
    if (!status) {
        opened[i] = *out;
        opened_index[i] = options->device;
    }
    return status;
}

static void fake_close(struct roped_backend *backend)
{
    for (int i = 0; i < MAX_OPEN; i++)
        if (opened[i] == backend)
            opened[i] = NULL;
    roped_backend_cpu.close(backend);
}

static void fake_info(struct roped_backend *backend,
                      struct roped_device_info *out)
{
    roped_backend_cpu.info(backend, out);
    snprintf(out->uuid, sizeof out->uuid, "%s", fake_uuid);
}

static enum roped_status fake_queue_open(struct roped_backend *backend,
                                         struct roped_queue **out,
                                         struct roped_error *err)
{
    return roped_backend_cpu.queue_open(backend, out, err);
}

static void fake_queue_close(struct roped_queue *queue)
{
    roped_backend_cpu.queue_close(queue);
}

struct roped_backend_api fake_api = {
    .name = "fake",
    .device_count = fake_count,
    .open = fake_open,
    .close = fake_close,
    .info = fake_info,
    .is_healthy = fake_is_healthy,
    .host_alloc = fake_alloc,
    .host_free = fake_free,
    .device_alloc = fake_device_alloc,
    .device_free = fake_free,
    .foreign_open = fake_foreign_open,
    .foreign_close = fake_free,
    .queue_open = fake_queue_open,
    .queue_close = fake_queue_close,
    .upload = fake_upload,
    .download = fake_download,
    .download_rows = fake_download_rows,
    .fetch = fake_fetch,
    .clear = fake_clear,
    .launch = fake_launch,
    .build_table = fake_build,
    .wait = fake_wait,
};
