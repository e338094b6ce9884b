/*
 * session_program.c - programs through functions of plain arguments: a chain
 * with the memory that its launches need beside its tensors.
 */
#include <roped/session.h>

#include "core/session_internal.h"

#include <roped/program.h>

#include <stdlib.h>
#include <string.h>

struct roped_run {
    struct roped_session *session;
    const struct roped_program *program;
    struct roped_chain *chain;
    void *input[ROPED_PROGRAM_INPUTS]; /* the caller's memory */
    void **place;                      /* of each place; NULL: not given */
    bool is_prepared, is_trusting;

    /* by prepare */
    void *arena, *device_aux; /* device memory */
    void *host_aux;
    void **table; /* of each step: cos and sin, device memory */
};

enum roped_status roped_run_new(struct roped_session *session,
                                const struct roped_program *program,
                                struct roped_run **out, struct roped_error *err)
{
    struct roped_run *run = calloc(1, sizeof *run);
    size_t n_places = (size_t)roped_program_places(program);
    size_t n_steps = (size_t)roped_program_steps(program);
    if (!run)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a run");
    run->session = session;
    run->program = program;
    run->place = calloc(n_places + 1, sizeof *run->place);
    run->table = calloc(n_steps + 1, sizeof *run->table);
    void *memory = malloc(roped_chain_bytes(program));
    if (memory)
        run->chain = roped_chain_init(memory, program);
    if (!run->place || !run->table || !memory) {
        roped_run_free(run);
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a run");
    }
    *out = run;
    return ROPED_OK;
}

static void free_prepared(struct roped_run *run)
{
    const struct roped_session *session = run->session;
    session->api->host_free(session->backend, run->host_aux);
    session->api->device_free(session->backend, run->device_aux);
    session->api->device_free(session->backend, run->arena);
    for (int i = 0; run->table && i < roped_program_steps(run->program); i++) {
        session->api->device_free(session->backend, run->table[i]);
        run->table[i] = NULL;
    }
    run->host_aux = run->device_aux = run->arena = NULL;
    run->is_prepared = false;
}

void roped_run_free(struct roped_run *run)
{
    if (!run)
        return;
    free_prepared(run);
    free(run->chain);
    free(run->place);
    free(run->table);
    free(run);
}

/* ------------------------------------------------- what the caller states */

enum roped_status roped_run_param(struct roped_run *run, const char *name,
                                  const char *text, struct roped_error *err)
{
    run->is_prepared = false;
    return roped_chain_param(run->chain, name, text, err);
}

static enum roped_status read_tensor(const char *name, const char *dtype,
                                     int rank, const int64_t *dims,
                                     struct roped_tensor *tensor,
                                     struct roped_error *err)
{
    *tensor = (struct roped_tensor){
        .dtype = roped_dtype_from_name(dtype, strlen(dtype)), .rank = rank};
    if (tensor->dtype == ROPED_NO_DTYPE)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor '%.64s': unknown type '%.16s', expected a "
                          "name such as F32, BF16 or I64",
                          name, dtype);
    for (int i = 0; i < rank && i < ROPED_MAX_RANK; i++)
        tensor->dims[i] = dims[i];
    return ROPED_OK;
}

enum roped_status roped_run_input(struct roped_run *run, const char *name,
                                  const char *dtype, int rank,
                                  const int64_t *dims, int64_t stride,
                                  void *data, struct roped_error *err)
{
    struct roped_tensor tensor;
    enum roped_status status =
        read_tensor(name, dtype, rank, dims, &tensor, err);
    tensor.stride = stride;
    run->is_prepared = false;
    if (!status)
        status = roped_chain_input(run->chain, name, &tensor, NULL, err);
    if (status)
        return status;
    if (!data && roped_tensor_bytes(&tensor) > 0)
        return roped_fail(err, ROPED_INVALID, "tensor '%.64s': no data", name);
    run->input[roped_program_find_input(run->program, name)] = data;
    return ROPED_OK;
}

/* The piece of an input that has been prepared, or NULL. */
static struct roped_piece *input_piece(struct roped_run *run, int input)
{
    for (int i = 0; i < roped_chain_pieces(run->chain); i++) {
        struct roped_piece *piece = roped_chain_piece(run->chain, i);
        if (piece->kind == ROPED_PIECE_INPUT && piece->index == input)
            return piece;
    }
    return NULL;
}

enum roped_status roped_run_move_input(struct roped_run *run, const char *name,
                                       void *data, struct roped_error *err)
{
    int input = roped_program_find_input(run->program, name);
    const struct roped_tensor *tensor =
        input < 0 ? NULL : roped_chain_input_tensor(run->chain, input);
    if (!tensor || !roped_tensor_given(tensor))
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "tensor '%.64s': not an input of this run", name);
    if (!data && roped_tensor_bytes(tensor) > 0)
        return roped_fail(err, ROPED_INVALID, "tensor '%.64s': no data", name);
    run->input[input] = data;
    if (!run->is_prepared)
        return ROPED_OK;
    struct roped_piece *piece = input_piece(run, input);
    piece->address = data;
    run->is_prepared = !piece->has_values || run->is_trusting;
    roped_chain_enter(run->chain, run->arena, run->device_aux);
    return ROPED_OK;
}

enum roped_status roped_run_place(struct roped_run *run, const char *name,
                                  const char *dtype, int rank,
                                  const int64_t *dims, void *data,
                                  uint64_t bytes, struct roped_error *err)
{
    struct roped_tensor tensor = {.dtype = ROPED_NO_DTYPE};
    const struct roped_area area = {data, 0, bytes};
    int place = 0, n = roped_program_places(run->program);
    while (place < n &&
           strcmp(roped_program_place_name(run->program, place), name) != 0)
        place++;
    if (place == n)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "'@%.64s': the program has no place of that name",
                          name);
    enum roped_status status =
        dtype ? read_tensor(name, dtype, rank, dims, &tensor, err) : ROPED_OK;
    if (!status && !data)
        status = roped_fail(err, ROPED_INVALID, "'@%.64s': no data", name);
    if (status)
        return status;
    run->is_prepared = false;
    run->place[place] = data;
    roped_chain_place(run->chain, place, &tensor, &area);
    return ROPED_OK;
}

void roped_run_trust(struct roped_run *run)
{
    run->is_prepared = false;
    run->is_trusting = true;
    roped_chain_trust(run->chain);
}

/* --------------------------------------------------------------- prepare */

static enum roped_status check_given(const struct roped_run *run,
                                     struct roped_error *err)
{
    for (int i = 0; i < roped_program_places(run->program); i++)
        if (!run->place[i])
            return roped_fail(err, ROPED_INVALID, "missing place '@%s'",
                              roped_program_place_name(run->program, i));
    if (roped_program_tables(run->program) == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_UNSUPPORTED,
                      "parameter 'table': named tables are the daemon's, "
                      "expected the parameters of the angles");
}

/* Says where pieces are that are not the run's own, and reads what plan needs
 * of them. */
static enum roped_status find_pieces(struct roped_run *run,
                                     struct roped_error *err)
{
    const struct roped_session *session = run->session;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_chain_pieces(run->chain) && !status; i++) {
        struct roped_piece *piece = roped_chain_piece(run->chain, i);
        if (piece->kind == ROPED_PIECE_INPUT)
            piece->address = run->input[piece->index];
        else if (piece->kind == ROPED_PIECE_PLACE ||
                 piece->kind == ROPED_PIECE_VALUES)
            piece->address =
                (unsigned char *)run->place[piece->index] + piece->area.offset;
        if (!piece->has_values)
            continue;
        piece->host = malloc(piece->bytes ? (size_t)piece->bytes : 1);
        if (!piece->host)
            return roped_fail(err, ROPED_NO_MEMORY, "no memory for values");
        status =
            session->api->download(session->queue, piece->host, piece->address,
                                   (size_t)piece->bytes, err);
    }
    return status ? status : session->api->wait(session->queue, err);
}

static void free_values(struct roped_run *run)
{
    for (int i = 0; i < roped_chain_pieces(run->chain); i++) {
        free(roped_chain_piece(run->chain, i)->host);
        roped_chain_piece(run->chain, i)->host = NULL;
    }
}

static enum roped_status build_table(struct roped_run *run, int step,
                                     struct roped_error *err)
{
    const struct roped_session *session = run->session;
    struct roped_table_use *use = &roped_chain_call(run->chain, step)->table;
    size_t bytes =
        (size_t)(use->rows * 2 * use->angles.n_pairs) * sizeof(float);
    if (!use->wanted)
        return ROPED_OK;
    enum roped_status status = session->api->device_alloc(
        session->backend, bytes, &run->table[step], err);
    if (!status)
        status = session->api->build_table(session->queue, &use->angles, 0,
                                           use->rows, run->table[step], err);
    use->data = run->table[step];
    return status;
}

static enum roped_status plan(struct roped_run *run, struct roped_error *err)
{
    enum roped_status status = find_pieces(run, err);
    for (int i = 0; i < roped_program_steps(run->program) && !status; i++) {
        status = roped_chain_plan(run->chain, i, run->host_aux, err);
        if (!status)
            status = build_table(run, i, err);
    }
    free_values(run);
    return status;
}

static enum roped_status prepare(struct roped_run *run, struct roped_error *err)
{
    const struct roped_session *session = run->session;
    enum roped_status status = roped_chain_resolve(run->chain, err);
    if (status)
        return status;
    size_t aux_bytes = roped_chain_aux_bytes(run->chain);
    size_t arena_bytes = (size_t)roped_chain_arena_bytes(run->chain);
    if (aux_bytes)
        status = session->api->host_alloc(session->backend, aux_bytes,
                                          &run->host_aux, err);
    if (!status)
        status = plan(run, err);
    if (!status && arena_bytes)
        status = session->api->device_alloc(session->backend, arena_bytes,
                                            &run->arena, err);
    if (!status && aux_bytes)
        status = session->api->device_alloc(session->backend, aux_bytes,
                                            &run->device_aux, err);
    if (!status && aux_bytes)
        status = session->api->upload(session->queue, run->device_aux,
                                      run->host_aux, aux_bytes, err);
    return status ? status : session->api->wait(session->queue, err);
}

enum roped_status roped_run_prepare(struct roped_run *run,
                                    struct roped_error *err)
{
    free_prepared(run);
    enum roped_status status = check_given(run, err);
    if (!status)
        status = prepare(run, err);
    if (status) {
        free_prepared(run);
        return status;
    }
    roped_chain_enter(run->chain, run->arena, run->device_aux);
    run->is_prepared = true;
    return ROPED_OK;
}

/* --------------------------------------------------------------- outputs */

int roped_run_output_shape(const struct roped_run *run, const char *name,
                           const char **dtype, int64_t *dims)
{
    int output = roped_program_find_output(run->program, name);
    if (!run->is_prepared || output < 0)
        return -1;
    const struct roped_tensor *tensor =
        roped_chain_output_tensor(run->chain, output, NULL);
    if (dtype)
        *dtype = roped_dtype_name(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++)
        dims[i] = tensor->dims[i];
    return tensor->rank;
}

static enum roped_status check_prepared(const struct roped_run *run,
                                        struct roped_error *err)
{
    if (run->is_prepared)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID, "the program is not prepared");
}

enum roped_status roped_run_output(struct roped_run *run, const char *name,
                                   void *data, struct roped_error *err)
{
    int output = roped_program_find_output(run->program, name), at;
    enum roped_status status = check_prepared(run, err);
    if (status)
        return status;
    if (output < 0)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "output '%.64s': the program has none of that name",
                          name);
    (void)roped_chain_output_tensor(run->chain, output, &at);
    struct roped_piece *piece = roped_chain_piece(run->chain, at);
    if (piece->kind != ROPED_PIECE_OUTPUT)
        return roped_fail(err, ROPED_INVALID,
                          "output '%.64s': an input that was updated, expected "
                          "no memory of its own",
                          name);
    piece->address = data;
    roped_chain_enter(run->chain, run->arena, run->device_aux);
    return ROPED_OK;
}

enum roped_status roped_run_launch(struct roped_run *run,
                                   struct roped_error *err)
{
    enum roped_status status = check_prepared(run, err);
    for (int i = 0; i < roped_program_outputs(run->program) && !status; i++) {
        int at;
        (void)roped_chain_output_tensor(run->chain, i, &at);
        const struct roped_piece *piece = roped_chain_piece(run->chain, at);
        if (piece->kind == ROPED_PIECE_OUTPUT && !piece->address &&
            piece->bytes > 0)
            return roped_fail(err, ROPED_INVALID, "output '%s': no data",
                              roped_program_output_name(run->program, i));
    }
    return status ? status
                  : roped_chain_launch(run->chain, run->session->api,
                                       run->session->queue, err);
}
