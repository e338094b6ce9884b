/*
 * lane_program.c - the steps of a program's job: index values, plans and
 * tables of every step, placement, upload, launches, download, wait.
 *
 * A piece's host is where the caller has it, NULL for memory of the device; its
 * address is where the launches find it. Where the two differ it is copied.
 *
 * Where the lane has recordings, what is in memory of the request is at the
 * same address in each run of its kind, so that one recording serves all: a
 * little of it in the lane's scratch, behind aux, which the device reaches in
 * place; more of it in the arena. Of the scratch, what is only read is sent to
 * the arena by one copy where there are many steps, such as the positions that
 * every layer reads. Runs whose steps are timed are launched in order, one step
 * after the other.
 */
#include "exec/lane_program.h"

#include "exec/poison.h"
#include "exec/recordings.h"

#include <string.h>

enum { VALUE_ALIGNMENT = 64, MAPPED_ALIGNMENT = 16, ARENA_ALIGNMENT = 256 };

/* Up to so much the processor copies sooner than a copy of the device's has
 * started. */
enum { STAGED_BYTES = 64 << 10 };

/* Fewer steps read over the bus what they read in scratch sooner than a copy of
 * it is on the device. */
enum { SENT_STEPS = 8 };

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

/* Is it repeated by a recording? One launch alone gains next to nothing, and
 * the queue of an inbox is another one. Marks between steps are in none. */
static bool is_recorded(const struct lane *lane, const struct exec_job *job)
{
    return lane->recordings && n_steps(job->run) > 1 && !job->inbox &&
           !job->run->step_ns;
}

/* Bytes of scratch behind aux for what is in memory of the host; 0: it is not
 * staged there. */
static size_t stage_bytes(const struct lane *lane, const struct exec_job *job)
{
    struct program_run *run = job->run;
    uint64_t bytes = 0, most = lane->device->mapped_bytes;
    if (!is_recorded(lane, job))
        return 0;
    for (int i = 0; i < roped_chain_pieces(run->chain); i++) {
        const struct roped_piece *piece = roped_chain_piece(run->chain, i);
        uint64_t offset;
        const struct region *region = region_of(run, piece, &offset);
        if (piece->kind != ROPED_PIECE_ARENA &&
            (!region || piece->has_values ||
             region_info(region)->kind == REGION_SYSTEM))
            bytes += round_up(piece->bytes, VALUE_ALIGNMENT);
    }
    most = most < STAGED_BYTES ? most : STAGED_BYTES;
    return bytes <= most ? (size_t)bytes : 0;
}

/* -------------------------------------------------------------------- plan */

/* A step's table serves those behind it that want no more of it, as the layers
 * of one model do: *last is the last step that has one. */
static enum roped_status plan_step(struct lane *lane, struct exec_job *job,
                                   int step,
                                   const struct roped_table_use **last)
{
    struct program_run *run = job->run;
    struct roped_call *call = roped_chain_call(run->chain, step);
    struct roped_table_use *use = &call->table;
    enum roped_status status =
        roped_chain_plan(run->chain, step, lane->scratch, &job->error);
    if (status || !use->wanted)
        return status;
    if (*last && (*last)->data && (*last)->rows >= use->rows &&
        roped_angles_equal(&(*last)->angles, &use->angles)) {
        use->data = (*last)->data;
        return ROPED_OK;
    }
    *last = use;
    return roped_program_blame(run->program->definition, step,
                               resident_use(lane->device->resident, lane->queue,
                                            use, &run->rotary[step],
                                            &job->error),
                               &job->error);
}

static enum roped_status plan(struct lane *lane, struct exec_job *job,
                              size_t staged)
{
    struct program_run *run = job->run;
    size_t aux_bytes = roped_chain_aux_bytes(run->chain);
    const struct roped_table_use *last = NULL;
    enum roped_status status =
        lane_need_scratch(lane, aux_bytes + staged, &job->error);
    if (status)
        return status;
    poison_taken(lane->scratch, aux_bytes);
    status = find_homes(lane, job);
    for (int i = 0; i < n_steps(run) && !status; i++)
        status = plan_step(lane, job, i, &last);
    return status;
}

/* --------------------------------------------------------------- placement */

/* What a run needs of the lane's arena: intermediates first, then copies of
 * what is in host memory, then those bytes of scratch that are sent to it. */
struct layout {
    uint64_t copies_at, aux_at, bytes;
    uint64_t read_bytes; /* staged and only read: right behind aux */
    bool is_mapped;      /* nothing is copied */
    bool is_staged; /* what is copied is in scratch, and bytes of the host's */
};

static uint64_t sent_bytes(const struct layout *at)
{
    return at->bytes - at->aux_at;
}

static bool is_only_read(const struct roped_piece *piece)
{
    return piece->is_read && !piece->is_written && piece->writer < 0;
}

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
 * GPU as placement_settle says, unless it is recorded. */
static struct layout lay_out(const struct lane *lane, struct exec_job *job,
                             size_t staged)
{
    struct program_run *run = job->run;
    const struct device *device = lane->device;
    bool is_host = device->api->is_host;
    uint64_t bytes = 0, copied = 0;
    struct layout at = {.is_staged = staged > 0,
                        .is_mapped = !is_host && run->is_pinned &&
                                     !is_recorded(lane, job)};
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
        if (at.is_staged && is_only_read(piece))
            at.read_bytes += round_up(piece->bytes, VALUE_ALIGNMENT);
    }
    at.is_mapped &= bytes <= device->mapped_bytes;
    bool is_in_place = at.is_mapped || at.is_staged;
    bool is_sent =
        at.is_staged ? n_steps(run) >= SENT_STEPS : !is_host && !at.is_mapped;
    at.copies_at = roped_chain_arena_bytes(run->chain);
    at.aux_at = at.copies_at + (is_in_place ? 0 : copied);
    at.bytes =
        at.aux_at +
        (is_sent ? roped_chain_aux_bytes(run->chain) + at.read_bytes : 0);
    return at;
}

/* Where launches find aux, and what is only read behind it. */
static unsigned char *aux_of(const struct lane *lane, const struct layout *at)
{
    return sent_bytes(at) ? lane->arena + at->aux_at : lane->scratch;
}

static void *take(unsigned char **next, const struct roped_piece *piece,
                  uint64_t alignment)
{
    void *taken = *next;
    *next += round_up(piece->bytes, alignment);
    return taken;
}

/* Gives every piece its address. */
static void enter(struct lane *lane, struct exec_job *job,
                  const struct layout *at)
{
    struct roped_chain *chain = job->run->chain;
    size_t aux_bytes = roped_chain_aux_bytes(chain);
    unsigned char *read = aux_of(lane, at) + aux_bytes,
                  *staged = (unsigned char *)lane->scratch + aux_bytes +
                            at->read_bytes,
                  *copied = lane->arena + at->copies_at;
    for (int i = 0; i < roped_chain_pieces(chain); i++) {
        struct roped_piece *piece = roped_chain_piece(chain, i);
        if (!is_at_home(piece))
            continue;
        if (at->is_mapped)
            piece->address = piece->host;
        else if (!at->is_staged)
            piece->address = take(&copied, piece, ARENA_ALIGNMENT);
        else
            piece->address = take(is_only_read(piece) ? &read : &staged, piece,
                                  VALUE_ALIGNMENT);
    }
    roped_chain_enter(chain, lane->arena, aux_of(lane, at));
}

/* ------------------------------------------------------------------ copies */

static bool is_copied(const struct roped_piece *piece)
{
    return piece->kind != ROPED_PIECE_ARENA && piece->bytes > 0 &&
           piece->host && piece->address != piece->host;
}

/* What is sent is as far behind scratch as it will be behind aux. */
static unsigned char *staging_of(const struct lane *lane,
                                 const struct layout *at,
                                 const struct roped_piece *piece)
{
    unsigned char *address = piece->address;
    return sent_bytes(at) && is_only_read(piece)
               ? (unsigned char *)lane->scratch + (address - aux_of(lane, at))
               : address;
}

static enum roped_status upload(struct lane *lane, struct exec_job *job,
                                const struct layout *at)
{
    const struct roped_backend_api *api = lane->device->api;
    struct roped_chain *chain = job->run->chain;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_chain_pieces(chain) && !status; i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (!is_copied(piece) || !piece->is_read)
            continue;
        if (at->is_staged)
            memcpy(staging_of(lane, at, piece), piece->host,
                   (size_t)piece->bytes);
        else
            status = api->upload(lane->queue, piece->address, piece->host,
                                 (size_t)piece->bytes, &job->error);
    }
    if (!status && sent_bytes(at))
        status = api->upload(lane->queue, aux_of(lane, at), lane->scratch,
                             (size_t)sent_bytes(at), &job->error);
    return status;
}

/* Tokens with a stride, without what is between them: others may write there.
 */
static struct roped_byte_rows rows_of(const struct roped_chain *chain,
                                      const struct roped_piece *piece)
{
    const struct roped_tensor *tensor =
        piece->kind == ROPED_PIECE_INPUT
            ? roped_chain_input_tensor(chain, piece->index)
            : roped_chain_output_tensor(chain, piece->index, NULL);
    size_t size = roped_dtype_bytes(tensor->dtype);
    if (!tensor->stride)
        return (struct roped_byte_rows){1, (size_t)piece->bytes, 0};
    return (struct roped_byte_rows){(size_t)roped_tensor_tokens(tensor),
                                    (size_t)roped_tensor_token(tensor) * size,
                                    (size_t)tensor->stride * size};
}

static enum roped_status download_piece(struct lane *lane, struct exec_job *job,
                                        const struct roped_piece *piece)
{
    const struct roped_backend_api *api = lane->device->api;
    const struct roped_byte_rows rows = rows_of(job->run->chain, piece);
    if (!rows.stride_bytes)
        return api->download(lane->queue, piece->host, piece->address,
                             (size_t)piece->bytes, &job->error);
    return api->download_rows(lane->queue, piece->host, piece->address, &rows,
                              &job->error);
}

static enum roped_status download(struct lane *lane, struct exec_job *job,
                                  const struct layout *at)
{
    struct roped_chain *chain = job->run->chain;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_chain_pieces(chain) && !status && !at->is_staged;
         i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (is_copied(piece) && piece->is_written)
            status = download_piece(lane, job, piece);
    }
    return status;
}

/* After the device has done it. */
static void copy_staged(struct roped_chain *chain)
{
    for (int i = 0; i < roped_chain_pieces(chain); i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (!is_copied(piece) || !piece->is_written)
            continue;
        const struct roped_byte_rows rows = rows_of(chain, piece);
        for (size_t row = 0; row < rows.n; row++)
            memcpy((unsigned char *)piece->host + row * rows.stride_bytes,
                   (unsigned char *)piece->address + row * rows.stride_bytes,
                   rows.row_bytes);
    }
}

/* --------------------------------------------------------------------- run */

/* That would be timed: marks cost more than what little is staged. */
static bool has_copies(const struct program_run *run, const struct layout *at)
{
    if (at->is_staged)
        return false;
    for (int i = 0; i < roped_chain_pieces(run->chain); i++)
        if (is_copied(roped_chain_piece(run->chain, i)))
            return true;
    return sent_bytes(at) > 0;
}

/* A step between two marks, or by the clock of the host. It has the device for
 * itself, so that its time is its own. */
static enum roped_status launch_timed(struct lane *lane, struct exec_job *job,
                                      int step)
{
    const struct roped_backend_api *api = lane->device->api;
    const struct program_run *run = job->run;
    struct roped_error *err = &job->error;
    uint64_t start_ns = lane_now_ns();
    enum roped_status status =
        api->mark ? api->mark(lane->queue, LANE_MARK_BEFORE_STEP, err)
                  : ROPED_OK;
    if (!status)
        status = roped_program_blame(
            run->program->definition, step,
            api->launch(lane->queue, roped_chain_call(run->chain, step), err),
            err);
    if (!status && api->mark)
        status = api->mark(lane->queue, LANE_MARK_AFTER_STEP, err);
    status = lane_await(lane, status, err);
    uint64_t took_ns = lane_now_ns() - start_ns;
    if (!status && api->mark)
        took_ns =
            (uint64_t)(api->seconds_between(lane->queue, LANE_MARK_BEFORE_STEP,
                                            LANE_MARK_AFTER_STEP) *
                       1e9);
    run->step_ns[step] = status ? 0 : took_ns;
    return status;
}

static enum roped_status launch(struct lane *lane, struct exec_job *job)
{
    const struct program_run *run = job->run;
    enum roped_status status = ROPED_OK;
    if (run->step_ns) {
        for (int i = 0; i < n_steps(run) && !status; i++)
            status = launch_timed(lane, job, i);
        return status;
    }
    if (is_recorded(lane, job))
        return recordings_launch(lane->recordings, run->program, run->chain,
                                 &job->error);
    return roped_chain_launch(run->chain, lane->device->api, lane->queue,
                              &job->error);
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
        status = launch(lane, job);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_COMPUTED);
    if (!status)
        status = download(lane, job, at);
    if (!status)
        status = lane_mark(lane, job, LANE_MARK_DOWNLOADED);
    status = lane_await(lane, status, &job->error);
    if (!status && at->is_staged)
        copy_staged(job->run->chain);
    if (!status)
        lane_read_timing(lane, job, start_ns);
    return status;
}

static enum roped_status run_steps(struct lane *lane, struct exec_job *job)
{
    uint64_t start_ns = lane_now_ns();
    size_t staged = stage_bytes(lane, job);
    enum roped_status status = plan(lane, job, staged);
    uint64_t planned_ns = lane_now_ns();
    job->timing.plan_ns = planned_ns - start_ns;
    if (status)
        return status;
    struct layout at = lay_out(lane, job, staged);
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
