/*
 * lane_program.c - the steps of a program's job: index values, plans and
 * tables of every step, placement, upload, launches, download, wait.
 *
 * A piece's host is where the caller has it, NULL for memory of the device; its
 * address is where the launches find it. Where the two differ it is copied.
 */
#include "exec/lane_program.h"

#include "exec/poison.h"

#include <string.h>

enum { VALUE_ALIGNMENT = 64, MAPPED_ALIGNMENT = 16, ARENA_ALIGNMENT = 256 };

static uint64_t round_up(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static bool is_aligned(const void *data, uint64_t alignment)
{
    return (uintptr_t)data % alignment == 0;
}

static int n_steps(const struct program_run *run)
{
    return roped_program_steps(run->program->definition);
}

/* ------------------------------------------------------ where the caller has
 * it */

/* The region of a piece and where it begins there; NULL: host memory of the
 * request. */
static const struct region *region_of(const struct program_run *run,
                                      const struct roped_piece *piece,
                                      uint64_t *offset)
{
    const struct exec_place *place = NULL;
    *offset = piece->area.offset;
    switch (piece->kind) {
    case ROPED_PIECE_PLACE:
    case ROPED_PIECE_VALUES:
        return run->place[piece->index];
    case ROPED_PIECE_INPUT:
        place = &run->in[piece->index];
        break;
    case ROPED_PIECE_OUTPUT:
        place = &run->out[piece->index];
        break;
    case ROPED_PIECE_ARENA:
        return NULL;
    }
    *offset = place->offset;
    return place->region;
}

/* Index values are copied out of their region: the copy is what plan checks and
 * what the kernels get. */
static enum roped_status find_home(struct lane *lane, struct exec_job *job,
                                   struct roped_piece *piece,
                                   unsigned char **values)
{
    const struct roped_backend_api *api = lane->device->api;
    struct program_run *run = job->run;
    uint64_t offset;
    const struct region *region = region_of(run, piece, &offset);
    unsigned char *data = region ? region_data(region) + offset : NULL;
    piece->address = NULL;
    piece->host = piece->kind == ROPED_PIECE_INPUT ? run->in_data[piece->index]
                  : piece->kind == ROPED_PIECE_OUTPUT
                      ? run->out_data[piece->index]
                      : NULL;
    if (!region)
        return ROPED_OK;
    bool is_host = region_info(region)->kind == REGION_SYSTEM;
    piece->host = is_host ? data : NULL;
    piece->address = is_host ? NULL : data;
    if (!piece->has_values)
        return ROPED_OK;
    piece->host = *values;
    piece->address = NULL;
    *values += round_up(piece->bytes, VALUE_ALIGNMENT);
    if (is_host && piece->bytes)
        memcpy(piece->host, data, (size_t)piece->bytes);
    return is_host ? ROPED_OK
                   : api->download(lane->queue, piece->host, data,
                                   (size_t)piece->bytes, &job->error);
}

static enum roped_status find_homes(struct lane *lane, struct exec_job *job)
{
    struct program_run *run = job->run;
    unsigned char *values = run->values;
    enum roped_status status = program_run_check_memory(run, &job->error);
    for (int i = 0; i < roped_chain_pieces(run->chain) && !status; i++)
        status =
            find_home(lane, job, roped_chain_piece(run->chain, i), &values);
    return values == run->values ? status
                                 : lane_await(lane, status, &job->error);
}

/* -------------------------------------------------------------------- plan */

static enum roped_status plan_step(struct lane *lane, struct exec_job *job,
                                   int step)
{
    struct program_run *run = job->run;
    struct roped_call *call = roped_chain_call(run->chain, step);
    enum roped_status status =
        roped_chain_plan(run->chain, step, lane->scratch, &job->error);
    if (status || !call->table.wanted)
        return status;
    return roped_program_blame(run->program->definition, step,
                               resident_use(lane->device->resident, lane->queue,
                                            &call->table, &run->rotary[step],
                                            &job->error),
                               &job->error);
}

static enum roped_status plan(struct lane *lane, struct exec_job *job)
{
    struct program_run *run = job->run;
    size_t aux_bytes = roped_chain_aux_bytes(run->chain);
    enum roped_status status = lane_need_scratch(lane, aux_bytes, &job->error);
    if (status)
        return status;
    poison_taken(lane->scratch, aux_bytes);
    status = find_homes(lane, job);
    for (int i = 0; i < n_steps(run) && !status; i++)
        status = plan_step(lane, job, i);
    return status;
}

/* --------------------------------------------------------------- placement */

/* What a run needs of the lane's arena: intermediates first, then copies of
 * what is in host memory, then aux. */
struct layout {
    uint64_t copies_at, aux_at, bytes;
    bool is_mapped; /* nothing is copied */
};

/* Is it in host memory, and used by launches? */
static bool is_at_home(const struct roped_piece *piece)
{
    return piece->kind != ROPED_PIECE_ARENA && !piece->address &&
           piece->bytes > 0;
}

/* May the device use it where it is, if all in all it is little? */
static bool is_mappable(const struct program_run *run,
                        const struct roped_piece *piece)
{
    uint64_t offset;
    const struct region *region = region_of(run, piece, &offset);
    return is_aligned(piece->host, MAPPED_ALIGNMENT) &&
           (!region || piece->has_values || region_is_pinned(region));
}

/* On the CPU everything is in place unless it is misaligned for its type; on a
 * GPU as placement_settle says. */
static struct layout lay_out(struct program_run *run,
                             const struct device *device)
{
    bool is_host = device->api->is_host;
    uint64_t bytes = 0, copied = 0;
    struct layout at = {.is_mapped = !is_host && run->is_pinned};
    for (int i = 0; i < roped_chain_pieces(run->chain); i++) {
        struct roped_piece *piece = roped_chain_piece(run->chain, i);
        if (!is_at_home(piece))
            continue;
        if (is_host && is_aligned(piece->host, piece->alignment)) {
            piece->address = piece->host;
            continue;
        }
        at.is_mapped &= is_mappable(run, piece);
        bytes += piece->bytes;
        copied += round_up(piece->bytes, ARENA_ALIGNMENT);
    }
    at.is_mapped &= bytes <= device->mapped_bytes;
    at.copies_at = roped_chain_arena_bytes(run->chain);
    at.aux_at = at.copies_at + (at.is_mapped ? 0 : copied);
    at.bytes = at.aux_at + (is_host || at.is_mapped
                                ? 0
                                : (uint64_t)roped_chain_aux_bytes(run->chain));
    return at;
}

/* Gives every piece its address. */
static void enter(struct lane *lane, struct exec_job *job,
                  const struct layout *at)
{
    struct roped_chain *chain = job->run->chain;
    unsigned char *next = lane->arena + at->copies_at;
    for (int i = 0; i < roped_chain_pieces(chain); i++) {
        struct roped_piece *piece = roped_chain_piece(chain, i);
        if (!is_at_home(piece))
            continue;
        piece->address = at->is_mapped ? piece->host : next;
        if (!at->is_mapped)
            next += round_up(piece->bytes, ARENA_ALIGNMENT);
    }
    roped_chain_enter(chain, lane->arena,
                      at->bytes > at->aux_at ? lane->arena + at->aux_at
                                             : lane->scratch);
}

/* ------------------------------------------------------------------ copies */

static bool is_copied(const struct roped_piece *piece)
{
    return piece->kind != ROPED_PIECE_ARENA && piece->bytes > 0 &&
           piece->host && piece->address != piece->host;
}

static enum roped_status upload(struct lane *lane, struct exec_job *job,
                                const struct layout *at)
{
    const struct roped_backend_api *api = lane->device->api;
    struct roped_chain *chain = job->run->chain;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_chain_pieces(chain) && !status; i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (is_copied(piece) && piece->is_read)
            status = api->upload(lane->queue, piece->address, piece->host,
                                 (size_t)piece->bytes, &job->error);
    }
    if (!status && at->bytes > at->aux_at)
        status =
            api->upload(lane->queue, lane->arena + at->aux_at, lane->scratch,
                        (size_t)(at->bytes - at->aux_at), &job->error);
    return status;
}

/* Tokens with a stride, without what is between them: others may write there.
 */
static enum roped_status download_piece(struct lane *lane, struct exec_job *job,
                                        const struct roped_piece *piece)
{
    const struct roped_backend_api *api = lane->device->api;
    const struct roped_chain *chain = job->run->chain;
    const struct roped_tensor *tensor =
        piece->kind == ROPED_PIECE_INPUT
            ? roped_chain_input_tensor(chain, piece->index)
            : roped_chain_output_tensor(chain, piece->index, NULL);
    size_t size = roped_dtype_bytes(tensor->dtype);
    if (!tensor->stride)
        return api->download(lane->queue, piece->host, piece->address,
                             (size_t)piece->bytes, &job->error);
    const struct roped_byte_rows rows = {(size_t)roped_tensor_tokens(tensor),
                                         (size_t)roped_tensor_token(tensor) *
                                             size,
                                         (size_t)tensor->stride * size};
    return api->download_rows(lane->queue, piece->host, piece->address, &rows,
                              &job->error);
}

static enum roped_status download(struct lane *lane, struct exec_job *job)
{
    struct roped_chain *chain = job->run->chain;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_chain_pieces(chain) && !status; i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (is_copied(piece) && piece->is_written)
            status = download_piece(lane, job, piece);
    }
    return status;
}

/* --------------------------------------------------------------------- run */

static bool has_copies(const struct program_run *run, const struct layout *at)
{
    for (int i = 0; i < roped_chain_pieces(run->chain); i++)
        if (is_copied(roped_chain_piece(run->chain, i)))
            return true;
    return at->bytes > at->aux_at;
}

static enum roped_status compute(struct lane *lane, struct exec_job *job,
                                 const struct layout *at, uint64_t start_ns)
{
    enum roped_status status = lane_mark(lane, job, LANE_MARK_START);
    if (!status)
        status = upload(lane, job, at);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_UPLOADED);
    if (!status)
        status = roped_chain_launch(job->run->chain, lane->device->api,
                                    lane->queue, &job->error);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_COMPUTED);
    if (!status)
        status = download(lane, job);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_DOWNLOADED);
    status = lane_await(lane, status, &job->error);
    if (!status)
        lane_read_timing(lane, job, start_ns);
    return status;
}

static enum roped_status run_steps(struct lane *lane, struct exec_job *job)
{
    uint64_t start_ns = lane_now_ns();
    enum roped_status status = plan(lane, job);
    uint64_t planned_ns = lane_now_ns();
    job->timing.plan_ns = planned_ns - start_ns;
    if (status)
        return status;
    struct layout at = lay_out(job->run, lane->device);
    status = lane_take_arena(lane, job, at.bytes);
    if (status)
        return status;
    enter(lane, job, &at);
    job->placement.has_copies = has_copies(job->run, &at);
    status = compute(lane, job, &at, planned_ns);
    return status ? status : program_run_check_memory(job->run, &job->error);
}

enum roped_status lane_program(struct lane *lane, struct exec_job *job)
{
    struct program_run *run = job->run;
    struct roped_error said;
    enum roped_status status = run_steps(lane, job);
    for (int i = 0; i < n_steps(run); i++) {
        resident_unuse(lane->device->resident, run->rotary[i]);
        run->rotary[i] = NULL;
    }
    if (status != ROPED_DEVICE)
        return status;
    said = job->error;
    return roped_fail(&job->error, status, "program '%s': %s",
                      run->program->name, said.text);
}
