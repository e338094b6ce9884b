/*
 * program_run.c - the rules of a program's regions, and what a run costs.
 */
#include "exec/program_run.h"

#include "exec/executor.h"

#include <string.h>

enum { VALUE_ALIGNMENT = 64 };

static size_t round_up(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Where what is behind a run begins. */
struct layout {
    size_t place, known, table, rotary, chain, bytes;
};

static struct layout lay_out(const struct roped_program *definition)
{
    struct layout at;
    size_t pointer = sizeof(void *);
    at.place = round_up(sizeof(struct program_run));
    at.known = at.place + pointer * (size_t)roped_program_places(definition);
    at.table = at.known + pointer * (size_t)roped_program_places(definition);
    at.rotary = at.table + pointer * (size_t)roped_program_tables(definition);
    at.chain =
        round_up(at.rotary + pointer * (size_t)roped_program_steps(definition));
    at.bytes = at.chain + roped_chain_bytes(definition);
    return at;
}

size_t program_run_bytes(const struct program *program)
{
    return lay_out(program->definition).bytes;
}

struct program_run *program_run_init(void *memory, struct program *program)
{
    struct layout at = lay_out(program->definition);
    unsigned char *bytes = memory;
    struct program_run *run = memory;
    memset(run, 0, at.chain);
    run->program = program;
    run->place = (void *)(bytes + at.place);
    run->known = (void *)(bytes + at.known);
    run->table = (void *)(bytes + at.table);
    run->rotary = (void *)(bytes + at.rotary);
    run->chain = roped_chain_init(bytes + at.chain, program->definition);
    run->device = REGION_ANY_DEVICE;
    return run;
}

void program_run_again(struct program_run *run)
{
    memset(run->in, 0, sizeof run->in);
    memset(run->out, 0, sizeof run->out);
    memset(run->in_data, 0, sizeof run->in_data);
    memset(run->out_data, 0, sizeof run->out_data);
    run->values = NULL;
    run->step_ns = NULL;
    run->is_pinned = false;
    run->device = REGION_ANY_DEVICE;
    roped_chain_again(run->chain);
}

enum roped_status program_run_take_places(struct program_run *run,
                                          struct regions *regions,
                                          const struct tenant *tenant,
                                          struct roped_error *err)
{
    const struct roped_program *definition = run->program->definition;
    int n = roped_program_places(definition);
    size_t bytes = (size_t)n * sizeof *run->place;
    if (n == 0)
        return ROPED_OK;
    if (run->known_by == tenant && run->known_at &&
        regions_take_again(regions, run->known, n, run->known_at)) {
        memcpy(run->place, run->known, bytes);
        return ROPED_OK;
    }
    run->known_at = 0;
    uint64_t generation = regions_generation(regions);
    for (int i = 0; i < n; i++) {
        enum roped_status status = regions_take(
            regions, tenant, roped_program_place_name(definition, i),
            &run->place[i], err);
        if (status)
            return roped_program_blame(definition,
                                       roped_program_place_step(definition, i),
                                       status, err);
    }
    memcpy(run->known, run->place, bytes);
    run->known_by = tenant;
    run->known_at = generation;
    return ROPED_OK;
}

void program_run_fini(struct program_run *run, struct regions *regions,
                      struct tables *tables)
{
    const struct roped_program *definition = run->program->definition;
    for (int i = 0; i < roped_program_inputs(definition); i++) {
        regions_give(regions, run->in[i].region);
        run->in[i].region = NULL;
    }
    for (int i = 0; i < roped_program_outputs(definition); i++) {
        regions_give(regions, run->out[i].region);
        run->out[i].region = NULL;
    }
    regions_give_all(regions, run->place, roped_program_places(definition));
    for (int i = 0; i < roped_program_tables(definition); i++) {
        tables_give(tables, run->table[i]);
        run->table[i] = NULL;
    }
}

struct roped_area program_run_area(const struct exec_place *place)
{
    return (struct roped_area){place->region, place->offset,
                               region_info(place->region)->bytes};
}

/* ------------------------------------------------------------------- rules */

/* Every region in the memory of a device is on the same one. */
static enum roped_status check_device(struct program_run *run,
                                      const struct region *region,
                                      const char *name, struct roped_error *err)
{
    int device = region_info(region)->device;
    if (device == REGION_ANY_DEVICE || run->device == device)
        return ROPED_OK;
    if (run->device == REGION_ANY_DEVICE) {
        run->device = device;
        return ROPED_OK;
    }
    return roped_fail(err, ROPED_INVALID,
                      "'%s': region '%s' of device %d, but others of the "
                      "program are on device %d, expected one device for all "
                      "(PUT with device=N)",
                      name, region_info(region)->name, device, run->device);
}

static enum roped_status check_place(struct program_run *run, int place,
                                     struct roped_error *err)
{
    const struct region *region = run->place[place];
    const char *name =
        roped_program_place_name(run->program->definition, place);
    if (region_info(region)->kind == REGION_SYSTEM)
        return roped_fail(err, ROPED_INVALID,
                          "'@%s': shared memory of the host, expected memory "
                          "of the device; an input or output of the program "
                          "may be there",
                          name);
    return check_device(run, region, name, err);
}

static enum roped_status check_tensor(struct program_run *run,
                                      const struct exec_place *place,
                                      const char *name,
                                      const struct roped_tensor *tensor,
                                      uint64_t span, struct roped_error *err)
{
    size_t size = roped_dtype_bytes(tensor->dtype);
    enum roped_status status =
        region_check_range(place->region, name, place->offset, span, err);
    if (!status)
        status = check_device(run, place->region, name, err);
    if (status || region_info(place->region)->kind == REGION_SYSTEM ||
        place->offset % size == 0)
        return status;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu in region '%s', expected a "
                      "multiple of %zu, the size of %s",
                      name, (unsigned long long)place->offset,
                      region_info(place->region)->name, size,
                      roped_dtype_name(tensor->dtype));
}

/* An input's or an output's piece: its region holds all that steps use. */
static enum roped_status check_piece(struct program_run *run,
                                     const struct roped_piece *piece,
                                     struct roped_error *err)
{
    const struct roped_program *definition = run->program->definition;
    bool is_input = piece->kind == ROPED_PIECE_INPUT;
    if (!is_input && piece->kind != ROPED_PIECE_OUTPUT)
        return ROPED_OK;
    const struct exec_place *place =
        is_input ? &run->in[piece->index] : &run->out[piece->index];
    if (!place->region)
        return ROPED_OK;
    return is_input
               ? check_tensor(
                     run, place,
                     roped_program_input_name(definition, piece->index),
                     roped_chain_input_tensor(run->chain, piece->index),
                     piece->bytes, err)
               : check_tensor(
                     run, place,
                     roped_program_output_name(definition, piece->index),
                     roped_chain_output_tensor(run->chain, piece->index, NULL),
                     piece->bytes, err);
}

/* Is it copied to a value's memory first? What is checked is what runs. */
static bool is_copied_value(const struct program_run *run,
                            const struct roped_piece *piece)
{
    return piece->kind == ROPED_PIECE_VALUES ||
           (piece->kind == ROPED_PIECE_INPUT && piece->has_values &&
            run->in[piece->index].region);
}

/* Is it in host memory, as the caller has it? */
static bool is_in_host(const struct program_run *run,
                       const struct roped_piece *piece)
{
    const struct region *region = NULL;
    if (piece->kind == ROPED_PIECE_INPUT)
        region = run->in[piece->index].region;
    else if (piece->kind == ROPED_PIECE_OUTPUT)
        region = run->out[piece->index].region;
    else
        return piece->kind == ROPED_PIECE_VALUES;
    return !region || region_info(region)->kind == REGION_SYSTEM;
}

enum roped_status program_run_check(struct program_run *run,
                                    struct roped_error *err)
{
    int n_places = roped_program_places(run->program->definition);
    enum roped_status status = ROPED_OK;
    run->device = REGION_ANY_DEVICE;
    run->value_bytes = run->host_bytes = 0;
    for (int i = 0; i < n_places && !status; i++)
        status = check_place(run, i, err);
    for (int i = 0; i < roped_chain_pieces(run->chain) && !status; i++) {
        const struct roped_piece *piece = roped_chain_piece(run->chain, i);
        status = check_piece(run, piece, err);
        if (is_copied_value(run, piece))
            run->value_bytes += (piece->bytes + VALUE_ALIGNMENT - 1) /
                                VALUE_ALIGNMENT * VALUE_ALIGNMENT;
        if (is_in_host(run, piece))
            run->host_bytes += piece->bytes;
    }
    return status;
}

bool program_run_keeps(const struct program_run *run, int output)
{
    int at;
    (void)roped_chain_output_tensor(run->chain, output, &at);
    const struct roped_piece *piece = roped_chain_piece(run->chain, at);
    return piece->kind == ROPED_PIECE_PLACE || run->out[output].region ||
           (piece->kind == ROPED_PIECE_INPUT && run->in[piece->index].region);
}

/* -------------------------------------------------------------------- cost */

void program_run_measure(struct exec_job *job, bool is_host)
{
    const struct program_run *run = job->run;
    job->bytes = roped_chain_moved_bytes(run->chain);
    job->device = run->device;
    job->work_bytes =
        is_host
            ? job->bytes
            : placement_work_bytes(run->host_bytes, job->bytes, run->is_pinned);
}

enum roped_status program_run_check_memory(const struct program_run *run,
                                           struct roped_error *err)
{
    const struct roped_program *definition = run->program->definition;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_program_inputs(definition) && !status; i++)
        if (run->in[i].region)
            status = region_check(run->in[i].region, err);
    for (int i = 0; i < roped_program_outputs(definition) && !status; i++)
        if (run->out[i].region)
            status = region_check(run->out[i].region, err);
    return status;
}
