/*
 * slices.c - cutting a call, and running its slices on several queues.
 *
 * A queue does what it is given in turn: upload, launch and download of one
 * slice, then of the next that is its own. The other queues do the same a step
 * later, by themselves: an upload waits for the link, and runs beside the
 * download of another queue.
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

/* Is a tensor copied whose tokens have a stride? Then it is in one piece. */
static bool copies_strides(const struct placement *all)
{
    for (int i = 0; i < all->n; i++)
        if (all->port[i].where == IN_ARENA && all->port[i].tensor->stride)
            return true;
    return false;
}

/* As many slices as the way with fewer bytes has use for. */
static int64_t count(const struct placement *all)
{
    uint64_t in = copied_bytes(all, false), out = copied_bytes(all, true);
    uint64_t n = (in < out ? in : out) / SLICE_BYTES;
    return n < LEAST_SLICES || copies_strides(all) ? 0
           : n > MOST_SLICES                       ? MOST_SLICES
                                                   : (int64_t)n;
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
    bool is_small = all->arena_bytes < 2 * LEAST_SLICES * SLICE_BYTES;
    int64_t n =
        is_small || device->api->is_host || all->uses_inbox ? 0 : count(all);
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
    return SLICE_SIDES * slices->side_bytes;
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

static enum roped_status upload(struct slice *slice, const struct lane *lane,
                                struct exec_job *job)
{
    const struct placement *all = &job->placement;
    unsigned char *at = slice->memory;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < all->n && !status; i++) {
        const struct placed *p = &all->port[i];
        struct roped_tensor *tensor = tensor_of(&slice->call, p);
        uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
        bool is_there =
            bytes == p->bytes && slice->number >= SLICE_SIDES; /* not cut */
        if (!slice->all->room[i])
            continue;
        if (!p->is_output && !is_there)
            status = lane_bring(lane, slice->queue, p, at, tensor->data,
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
        status = upload(slice, lane, job);
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

static enum roped_status open_sides(struct lane *lane, struct roped_error *err)
{
    const struct device *device = lane->device;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < SLICE_SIDES - 1 && !status; i++)
        if (!lane->side[i])
            status =
                device->api->queue_open(device->backend, &lane->side[i], err);
    return status;
}

enum roped_status slices_run(const struct slices *slices, struct lane *lane,
                             struct exec_job *job)
{
    const struct roped_backend_api *api = lane->device->api;
    enum roped_status status = open_sides(lane, &job->error);
    if (status)
        return status;
    for (int i = 0; i < slices->n && !status; i++) {
        int side = i % SLICE_SIDES;
        struct slice slice = {
            .all = slices,
            .api = api,
            .queue = side ? lane->side[side - 1] : lane->queue,
            .memory = lane->arena + (uint64_t)side * slices->side_bytes,
            .number = i};
        status = run_slice(&slice, lane, job);
    }
    status = await(api, lane->queue, status, &job->error);
    for (int i = 0; i < SLICE_SIDES - 1; i++)
        status = await(api, lane->side[i], status, &job->error);
    return status;
}
