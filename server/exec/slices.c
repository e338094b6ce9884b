/*
 * slices.c - cutting a call, and running its slices on two queues.
 *
 * A queue does what it is given in turn: upload, launch and download of one
 * slice, then of the next but one. The other queue does the same half a step
 * later, by itself: its upload waits for the link, and runs beside the first
 * one's download.
 */
#include "exec/slices.h"

#include "exec/lane.h"

enum {
    SLICE_BYTES = 4 << 20, /* each way: 80 us on the link of an H200, beside 10
                              to start its copies and its kernel */
    LEAST_SLICES = 4,
    MOST_SLICES = 16,
    ALIGNMENT = 256
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* A tensor of the job, in a slice of its call. */
static struct roped_tensor *tensor_of(struct roped_call *slice,
                                      const struct placed *p)
{
    return p->is_output ? &slice->out[p->port - slice->op->out]
                        : &slice->in[p->port - slice->op->in];
}

/* -------------------------------------------------------------------- plan */

/* Bytes that are copied one way. */
static uint64_t copied_bytes(const struct placement *all, bool is_output)
{
    uint64_t bytes = 0;
    for (int i = 0; i < all->n; i++)
        if (all->port[i].where == IN_ARENA &&
            all->port[i].is_output == is_output)
            bytes += all->port[i].bytes;
    return bytes;
}

/* As many slices as the way with fewer bytes has use for. */
static int64_t count(const struct placement *all)
{
    uint64_t in = copied_bytes(all, false), out = copied_bytes(all, true);
    uint64_t n = (in < out ? in : out) / SLICE_BYTES;
    return n < LEAST_SLICES ? 0 : n > MOST_SLICES ? MOST_SLICES : (int64_t)n;
}

/* The first slice is the largest. */
static bool make_room(struct slices *slices, const struct exec_job *job)
{
    const struct placement *all = &job->placement;
    struct roped_call first;
    if (roped_call_slice(&job->call, 0, slices->step, &first, NULL))
        return false;
    slices->aux_bytes = round_up(all->aux_bytes);
    slices->side_bytes = slices->aux_bytes;
    for (int i = 0; i < all->n; i++) {
        const struct placed *p = &all->port[i];
        bool is_copied = p->where == IN_ARENA;
        slices->room[i] =
            is_copied
                ? round_up((uint64_t)roped_tensor_bytes(tensor_of(&first, p)))
                : 0;
        slices->side_bytes += slices->room[i];
    }
    return true;
}

struct slices slices_of(const struct exec_job *job, const struct device *device)
{
    const struct placement *all = &job->placement;
    struct slices slices;
    slices.n = 0;
    int64_t n = device->api->is_host || all->uses_inbox ? 0 : count(all);
    if (n == 0)
        return slices;
    slices.rows = roped_call_rows(&job->call);
    if (slices.rows < n)
        return slices;
    slices.step = (slices.rows + n - 1) / n;
    if (make_room(&slices, job))
        slices.n = (int)((slices.rows + slices.step - 1) / slices.step);
    return slices;
}

uint64_t slices_arena_bytes(const struct slices *slices)
{
    return 2 * slices->side_bytes;
}

/* Each slice has its own: it is read when its upload is due. */
size_t slices_scratch_bytes(const struct slices *slices)
{
    return (size_t)slices->n * (size_t)slices->aux_bytes;
}

/* --------------------------------------------------------------------- run */

/* One slice on its way through a queue. */
struct slice {
    const struct slices *all;
    const struct roped_backend_api *api;
    struct roped_queue *queue;
    unsigned char *memory; /* of the device, for its side */
    int number;
    struct roped_call call;
};

static enum roped_status upload(struct slice *slice, struct exec_job *job)
{
    const struct placement *all = &job->placement;
    unsigned char *at = slice->memory;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < all->n && !status; i++) {
        const struct placed *p = &all->port[i];
        struct roped_tensor *tensor = tensor_of(&slice->call, p);
        uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
        bool is_there = bytes == p->bytes && slice->number > 1; /* not cut */
        if (!slice->all->room[i])
            continue;
        if (!p->is_output && !is_there)
            status = slice->api->upload(slice->queue, at, tensor->data,
                                        (size_t)bytes, &job->error);
        tensor->data = at;
        at += slice->all->room[i];
    }
    if (!status && all->aux_bytes > 0)
        status = slice->api->upload(slice->queue, at, slice->call.aux,
                                    (size_t)all->aux_bytes, &job->error);
    slice->call.aux = at;
    return status;
}

static enum roped_status download(struct slice *slice, struct exec_job *job)
{
    const struct placement *all = &job->placement;
    uint64_t rows = (uint64_t)slice->all->rows;
    uint64_t begin = (uint64_t)(slice->number * slice->all->step);
    enum roped_status status = ROPED_OK;
    for (int i = all->n_in; i < all->n && !status; i++) {
        const struct placed *p = &all->port[i];
        const struct roped_tensor *tensor = tensor_of(&slice->call, p);
        if (slice->all->room[i])
            status = slice->api->download(
                slice->queue,
                (unsigned char *)p->home + p->bytes / rows * begin,
                tensor->data, (size_t)roped_tensor_bytes(tensor), &job->error);
    }
    return status;
}

static enum roped_status run_slice(struct slice *slice, struct lane *lane,
                                   struct exec_job *job)
{
    const struct slices *all = slice->all;
    struct roped_error *err = &job->error;
    int64_t begin = slice->number * all->step, end = begin + all->step;
    enum roped_status status =
        roped_call_slice(&job->call, begin, end < all->rows ? end : all->rows,
                         &slice->call, err);
    if (status)
        return status;
    slice->call.aux = (unsigned char *)lane->scratch +
                      (size_t)slice->number * (size_t)all->aux_bytes;
    status = roped_call_plan(&slice->call, err);
    slice->call.table.data = job->call.table.data;
    if (!status)
        status = upload(slice, job);
    if (!status)
        status = slice->api->launch(slice->queue, &slice->call, err);
    return status ? status : download(slice, job);
}

static enum roped_status await(const struct roped_backend_api *api,
                               struct roped_queue *queue,
                               enum roped_status status,
                               struct roped_error *err)
{
    enum roped_status waited = api->wait(queue, status ? NULL : err);
    return status ? status : waited;
}

enum roped_status slices_run(const struct slices *slices, struct lane *lane,
                             struct exec_job *job)
{
    const struct device *device = lane->device;
    enum roped_status status = ROPED_OK;
    if (!lane->second)
        status = device->api->queue_open(device->backend, &lane->second,
                                         &job->error);
    if (status)
        return status;
    for (int i = 0; i < slices->n && !status; i++) {
        struct slice slice = {.all = slices,
                              .api = device->api,
                              .queue = i % 2 ? lane->second : lane->queue,
                              .memory = lane->arena +
                                        (i % 2 ? slices->side_bytes : 0),
                              .number = i};
        status = run_slice(&slice, lane, job);
    }
    status = await(device->api, lane->queue, status, &job->error);
    return await(device->api, lane->second, status, &job->error);
}
