/*
 * chain.c - a run of a program: what it is given, and its steps one after
 * another. A chain is one block of memory of its caller's.
 */
#include "core/chain_internal.h"

#include "core/name.h"

#include <string.h>

enum { CHAIN_ALIGNMENT = 16 };

/* ------------------------------------------------------------------ memory */

static int most_pieces(const struct roped_program *program)
{
    return program->n_inputs + program->places.n + program->refs.n;
}

/* Takes n of bytes of what is left of a block; NULL: only counts them. */
static void *take(unsigned char *block, size_t *at, int n, size_t bytes)
{
    void *taken = block ? block + *at : NULL;
    *at += ((size_t)n * bytes + CHAIN_ALIGNMENT - 1) / CHAIN_ALIGNMENT *
           CHAIN_ALIGNMENT;
    return taken;
}

static size_t lay_out(struct roped_chain *chain, unsigned char *block,
                      const struct roped_program *program)
{
    size_t at = 0;
    int n_steps = program->steps.n, n_pieces = most_pieces(program);
    (void)take(block, &at, 1, sizeof *chain);
    chain->call = take(block, &at, n_steps, sizeof *chain->call);
    chain->name = take(block, &at, program->names.n, sizeof *chain->name);
    chain->use = take(block, &at, program->refs.n, sizeof *chain->use);
    chain->set = take(block, &at, program->tables.n, sizeof *chain->set);
    chain->aux_at = take(block, &at, n_steps, sizeof *chain->aux_at);
    chain->piece = take(block, &at, n_pieces, sizeof *chain->piece);
    chain->active = take(block, &at, n_pieces, sizeof *chain->active);
    chain->before = take(block, &at, 1, sizeof *chain->before);
    chain->place_before =
        take(block, &at, program->places.n, sizeof *chain->place_before);
    chain->set_before =
        take(block, &at, program->tables.n, sizeof *chain->set_before);
    return at;
}

size_t roped_chain_bytes(const struct roped_program *program)
{
    struct roped_chain chain;
    return lay_out(&chain, NULL, program);
}

struct roped_chain *roped_chain_init(void *memory,
                                     const struct roped_program *program)
{
    struct roped_chain *chain = memory;
    memset(chain, 0, sizeof *chain);
    lay_out(chain, memory, program);
    chain->program = program;
    chain->before->is_resolved = false;
    memset(chain->name, 0, (size_t)program->names.n * sizeof *chain->name);
    memset(chain->set, 0, (size_t)program->tables.n * sizeof *chain->set);
    return chain;
}

/* ------------------------------------------------------------- what is given
 */

enum roped_status roped_chain_param(struct roped_chain *chain, const char *name,
                                    const char *text, struct roped_error *err)
{
    int param = roped_program_find_param(chain->program, name);
    if (param < 0)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "unknown parameter '%.64s': the program has none of "
                          "that name",
                          name);
    if (chain->param[param])
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is given twice", name);
    chain->param[param] = text;
    return ROPED_OK;
}

/* Beyond the first, in which sizes are named. */
static enum roped_status unknown_input(const struct roped_program *program,
                                       const char *name,
                                       struct roped_error *err)
{
    char names[256] = "";
    size_t at = 0;
    for (int i = 0; i < program->n_inputs && at + 3 < sizeof names; i++) {
        const char *input = roped_program_input_name(program, i);
        size_t length = strlen(input);
        if (at + length + 3 > sizeof names)
            break;
        if (i)
            memcpy(names + at, ", ", 3);
        at += i ? 2 : 0;
        memcpy(names + at, input, length + 1);
        at += length;
    }
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unknown tensor '%.64s': the program takes %s", name,
                      names[0] ? names : "none");
}

enum roped_status roped_chain_input(struct roped_chain *chain, const char *name,
                                    const struct roped_tensor *tensor,
                                    const struct roped_area *area,
                                    struct roped_error *err)
{
    int64_t n_elements, n_bytes;
    int index = roped_program_find_input(chain->program, name);
    if (index < 0)
        return unknown_input(chain->program, name, err);
    struct chain_input *input = &chain->input[index];
    if (roped_tensor_given(&input->tensor))
        return roped_fail(err, ROPED_INVALID, "tensor '%.64s' is given twice",
                          name);
    if (tensor->rank < 0 || tensor->rank > ROPED_MAX_RANK)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%.64s': rank %d, expected at most %d", name,
                          tensor->rank, ROPED_MAX_RANK);
    enum roped_status status =
        roped_tensor_size(tensor, name, &n_elements, &n_bytes, err);
    if (status)
        return status;
    input->tensor = *tensor;
    if (area)
        input->area = *area;
    return ROPED_OK;
}

void roped_chain_area(struct roped_chain *chain, int input,
                      const struct roped_area *area)
{
    chain->input[input].area = *area;
}

void roped_chain_place(struct roped_chain *chain, int place,
                       const struct roped_tensor *tensor,
                       const struct roped_area *area)
{
    struct chain_name *name = &chain->name[chain->program->places.at[place]];
    name->tensor = *tensor;
    name->tensor.data = NULL;
    name->area = *area;
    name->area.offset = 0;
}

void roped_chain_into(struct roped_chain *chain, int output,
                      const struct roped_area *area, int64_t stride)
{
    chain->into[output] = (struct chain_into){*area, stride};
}

const char *chain_value(const struct roped_chain *chain, int param,
                        struct roped_error *err)
{
    const struct program_param *known = &chain->program->param[param];
    const char *text =
        chain->param[param] ? chain->param[param] : known->otherwise;
    if (!text)
        (void)roped_fail(err, ROPED_BAD_PARAMETER,
                         "parameter '%s' of the program is not given, and has "
                         "no default",
                         known->name);
    return text;
}

const char *roped_chain_table_name(const struct roped_chain *chain, int table,
                                   struct roped_error *err)
{
    const char *name = chain->program->tables.at[table];
    if (name[0] != '$')
        return name;
    return chain_value(chain,
                       roped_program_find_param(chain->program, name + 1), err);
}

void roped_chain_table(struct roped_chain *chain, int table,
                       const struct roped_angle_set *set)
{
    chain->set[table] = set;
}

void roped_chain_trust(struct roped_chain *chain)
{
    chain->is_trusting = true;
}

/* ---------------------------------------------------------------- declared */

/* Named sizes: the first input that has one says it. */
struct sizes {
    int n;
    struct {
        const char *name, *input;
        int64_t size;
    } size[ROPED_PROGRAM_INPUTS * ROPED_MAX_RANK];
};

static enum roped_status check_dim(struct sizes *sizes, const char *input,
                                   const struct roped_declared *declared,
                                   int dim, int64_t found,
                                   struct roped_error *err)
{
    const char *symbol = declared->symbol[dim];
    for (int i = 0; symbol[0] && i < sizes->n; i++) {
        if (!name_is(sizes->size[i].name, symbol))
            continue;
        if (sizes->size[i].size == found)
            return ROPED_OK;
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is %lld, expected %s = %lld "
                          "(set by '%s')",
                          input, dim, (long long)found, symbol,
                          (long long)sizes->size[i].size, sizes->size[i].input);
    }
    if (symbol[0]) {
        sizes->size[sizes->n].name = symbol;
        sizes->size[sizes->n].input = input;
        sizes->size[sizes->n++].size = found;
        return ROPED_OK;
    }
    if (declared->dims[dim] == found)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor '%s': dim %d is %lld, expected %lld, as the "
                      "program says",
                      input, dim, (long long)found,
                      (long long)declared->dims[dim]);
}

static enum roped_status check_input(const struct roped_chain *chain, int index,
                                     struct sizes *sizes,
                                     struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct roped_declared *declared = &program->declared[index];
    const struct roped_tensor *tensor = &chain->input[index].tensor;
    const char *name = roped_program_input_name(program, index);
    enum roped_status status = ROPED_OK;
    if (!roped_tensor_given(tensor))
        return roped_fail(err, ROPED_INVALID, "missing tensor '%s'", name);
    if (declared->dtype && declared->dtype != tensor->dtype)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor '%s': %s, expected %s, as the program says",
                          name, roped_dtype_name(tensor->dtype),
                          roped_dtype_name(declared->dtype));
    if (declared->has_shape && declared->rank != tensor->rank)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': rank %d, expected %d, as the program "
                          "says",
                          name, tensor->rank, declared->rank);
    for (int i = 0; i < tensor->rank && declared->has_shape && !status; i++)
        status = check_dim(sizes, name, declared, i, tensor->dims[i], err);
    return status;
}

enum roped_status chain_check_inputs(const struct roped_chain *chain,
                                     struct roped_error *err)
{
    struct sizes sizes;
    enum roped_status status = ROPED_OK;
    sizes.n = 0;
    for (int i = 0; i < chain->program->n_inputs && !status; i++)
        status = check_input(chain, i, &sizes, err);
    return status;
}

/* --------------------------------------------------------- what was resolved
 */

int roped_chain_pieces(const struct roped_chain *chain)
{
    return chain->n_pieces;
}

struct roped_piece *roped_chain_piece(struct roped_chain *chain, int piece)
{
    return &chain->piece[piece];
}

const struct roped_tensor *
roped_chain_input_tensor(const struct roped_chain *chain, int input)
{
    return &chain->input[input].tensor;
}

const struct roped_tensor *
roped_chain_output_tensor(const struct roped_chain *chain, int output,
                          int *piece)
{
    const struct chain_name *made =
        &chain->name[chain->program->output[output]];
    if (piece)
        *piece = made->piece;
    return &made->tensor;
}

struct roped_call *roped_chain_call(struct roped_chain *chain, int step)
{
    return &chain->call[step];
}

uint64_t roped_chain_arena_bytes(const struct roped_chain *chain)
{
    return chain->arena_bytes;
}

size_t roped_chain_aux_bytes(const struct roped_chain *chain)
{
    return chain->aux_bytes;
}

uint64_t roped_chain_moved_bytes(const struct roped_chain *chain)
{
    return chain->moved_bytes;
}

/* --------------------------------------------------------------------- run */

enum roped_status roped_chain_plan(struct roped_chain *chain, int step,
                                   void *aux, struct roped_error *err)
{
    const struct program_step *of = &chain->program->steps.at[step];
    struct roped_call *call = &chain->call[step];
    for (int i = of->first_ref; i < of->first_ref + of->n_refs; i++) {
        const struct program_ref *ref = &chain->program->refs.at[i];
        const struct chain_use *use = &chain->use[i];
        if (ref->is_output || !(of->op->in[ref->port].flags & ROPED_INDEX))
            continue;
        unsigned char *host = chain->piece[use->piece].host;
        call->in[ref->port].data = host ? host + use->offset : NULL;
    }
    call->aux = aux ? (unsigned char *)aux + chain->aux_at[step] : NULL;
    return roped_program_blame(chain->program, step, roped_call_plan(call, err),
                               err);
}

static void enter_step(struct roped_chain *chain, int step, void *arena,
                       void *aux)
{
    const struct program_step *of = &chain->program->steps.at[step];
    struct roped_call *call = &chain->call[step];
    for (int i = of->first_ref; i < of->first_ref + of->n_refs; i++) {
        const struct program_ref *ref = &chain->program->refs.at[i];
        const struct chain_use *use = &chain->use[i];
        if (use->piece < 0) /* not made */
            continue;
        const struct roped_piece *piece = &chain->piece[use->piece];
        unsigned char *base = piece->address;
        if (piece->kind == ROPED_PIECE_ARENA) /* none, where all are empty */
            base = arena ? (unsigned char *)arena + piece->area.offset : NULL;
        struct roped_tensor *tensor =
            ref->is_output ? &call->out[ref->port] : &call->in[ref->port];
        tensor->data = base ? base + use->offset : NULL;
    }
    for (int i = 0; i < call->n_in; i++) {
        int output = of->op->in[i].flags & ROPED_UPDATED
                         ? roped_op_updates(of->op, i)
                         : -1;
        if (output >= 0 && roped_tensor_given(&call->in[i]))
            call->out[output].data = call->in[i].data;
    }
    if (call->aux)
        call->aux = (unsigned char *)aux + chain->aux_at[step];
}

void roped_chain_enter(struct roped_chain *chain, void *arena, void *aux)
{
    for (int i = 0; i < chain->program->steps.n; i++)
        enter_step(chain, i, arena, aux);
}

enum roped_status roped_chain_launch(const struct roped_chain *chain,
                                     const struct roped_backend_api *api,
                                     struct roped_queue *queue,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < chain->program->steps.n && !status; i++)
        status = roped_program_blame(
            chain->program, i, api->launch(queue, &chain->call[i], err), err);
    return status;
}
