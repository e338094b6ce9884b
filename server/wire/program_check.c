/*
 * program_check.c - a program resolved with the inputs that it declares.
 */
#include "wire/program_check.h"

#include <string.h>

/* Sizes that most operators take in the place of any name: heads, rows. */
enum { ONE_SIZE = 64, ANOTHER_SIZE = 128 };

bool program_check_can(const struct roped_program *definition)
{
    for (int i = 0; i < roped_program_inputs(definition); i++) {
        const struct roped_declared *declared =
            roped_program_declared(definition, i);
        if (!declared->dtype || !declared->has_shape)
            return false;
    }
    for (int i = 0; i < roped_program_params(definition); i++)
        if (!roped_program_param_default(definition, i))
            return false;
    return roped_program_places(definition) == 0 &&
           roped_program_tables(definition) == 0;
}

bool program_check_is_sized(const struct roped_program *definition)
{
    for (int i = 0; i < roped_program_inputs(definition); i++) {
        const struct roped_declared *declared =
            roped_program_declared(definition, i);
        for (int j = 0; j < declared->rank; j++)
            if (declared->symbol[j][0])
                return false;
    }
    return program_check_can(definition);
}

/* Every dim that has a name has this size. */
static enum roped_status resolve(const struct roped_program *definition,
                                 struct roped_chain *chain, int64_t size,
                                 struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_program_inputs(definition) && !status; i++) {
        const struct roped_declared *declared =
            roped_program_declared(definition, i);
        struct roped_tensor tensor = {.dtype = declared->dtype,
                                      .rank = declared->rank};
        for (int j = 0; j < declared->rank; j++)
            tensor.dims[j] = declared->symbol[j][0] ? size : declared->dims[j];
        status = roped_chain_input(
            chain, roped_program_input_name(definition, i), &tensor, NULL, err);
    }
    return status ? status : roped_chain_resolve(chain, err);
}

enum roped_status program_check_chain(const struct roped_program *definition,
                                      struct roped_chain *chain,
                                      struct roped_error *err)
{
    return resolve(definition, chain, 0, err);
}

enum roped_status program_check(const struct roped_program *definition,
                                void *memory, struct roped_error *err)
{
    return resolve(definition, roped_chain_init(memory, definition), 0, err);
}

int program_check_index(struct roped_chain *chain)
{
    int first = -1;
    for (int i = 0; i < roped_chain_pieces(chain) && first < 0; i++) {
        const struct roped_piece *piece = roped_chain_piece(chain, i);
        if (piece->kind == ROPED_PIECE_INPUT && piece->has_values)
            first = piece->index;
    }
    return first;
}

bool program_check_outputs(const struct roped_program *definition, void *memory,
                           struct roped_tensor outputs[ROPED_PROGRAM_OUTPUTS])
{
    int n = roped_program_outputs(definition);
    struct roped_error err;
    if (!program_check_can(definition))
        return false;
    struct roped_chain *chain = roped_chain_init(memory, definition);
    enum roped_status status = resolve(definition, chain, ONE_SIZE, &err);
    for (int i = 0; i < (status ? 0 : n); i++)
        outputs[i] = *roped_chain_output_tensor(chain, i, NULL);
    if (status || program_check_is_sized(definition))
        return !status;
    chain = roped_chain_init(memory, definition);
    status = resolve(definition, chain, ANOTHER_SIZE, &err);
    for (int i = 0; i < (status ? 0 : n); i++) {
        const struct roped_tensor *other =
            roped_chain_output_tensor(chain, i, NULL);
        for (int j = 0; j < other->rank; j++)
            if (outputs[i].dims[j] != other->dims[j])
                outputs[i].dims[j] = -1;
    }
    return !status;
}
