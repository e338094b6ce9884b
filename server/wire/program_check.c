/*
 * program_check.c - a program resolved with the inputs that it declares.
 */
#include "wire/program_check.h"

#include <string.h>

bool program_check_can(const struct roped_program *definition)
{
    for (int i = 0; i < roped_program_inputs(definition); i++) {
        const struct roped_declared *declared =
            roped_program_declared(definition, i);
        if (!declared->dtype || !declared->has_shape)
            return false;
        for (int j = 0; j < declared->rank; j++)
            if (declared->symbol[j][0])
                return false;
    }
    for (int i = 0; i < roped_program_params(definition); i++)
        if (!roped_program_param_default(definition, i))
            return false;
    return roped_program_places(definition) == 0 &&
           roped_program_tables(definition) == 0;
}

enum roped_status program_check(const struct roped_program *definition,
                                void *memory, struct roped_error *err)
{
    struct roped_chain *chain = roped_chain_init(memory, definition);
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_program_inputs(definition) && !status; i++) {
        const struct roped_declared *declared =
            roped_program_declared(definition, i);
        struct roped_tensor tensor = {.dtype = declared->dtype,
                                      .rank = declared->rank};
        memcpy(tensor.dims, declared->dims, sizeof tensor.dims);
        status = roped_chain_input(
            chain, roped_program_input_name(definition, i), &tensor, NULL, err);
    }
    return status ? status : roped_chain_resolve(chain, err);
}
