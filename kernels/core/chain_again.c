/*
 * chain_again.c - a chain that is used for another run. What it was resolved to
 * holds as long as it is given the same again: parameters, types, shapes,
 * strides, areas and tables. Where data lies is not part of that.
 */
#include "core/chain_internal.h"

#include <string.h>

void roped_chain_again(struct roped_chain *chain)
{
    const struct roped_program *program = chain->program;
    memset(chain->param, 0, sizeof chain->param);
    memset(chain->into, 0, sizeof chain->into);
    memset(chain->set, 0, (size_t)program->tables.n * sizeof *chain->set);
    for (int i = 0; i < program->n_inputs; i++) {
        chain->input[i].tensor = (struct roped_tensor){.dtype = ROPED_NO_DTYPE};
        chain->input[i].area = (struct roped_area){.id = NULL};
    }
    for (int i = 0; i < program->places.n; i++) {
        struct chain_name *place = &chain->name[program->places.at[i]];
        place->tensor = (struct roped_tensor){.dtype = ROPED_NO_DTYPE};
        place->area = (struct roped_area){.id = NULL};
    }
}

/* -------------------------------------------------------------------- texts */

/* Parameters one behind the other, each with its NUL and a byte before it that
 * says whether there is one; false: they do not fit. */
static bool write_params(const struct roped_chain *chain,
                         char text[CHAIN_PARAM_BYTES])
{
    size_t at = 0;
    memset(text, 0, CHAIN_PARAM_BYTES);
    for (int i = 0; i < chain->program->n_params; i++) {
        const char *value = chain->param[i];
        size_t bytes = value ? strlen(value) + 1 : 0;
        if (bytes + 1 > CHAIN_PARAM_BYTES - at)
            return false;
        text[at++] = value ? 1 : 2;
        if (value)
            memcpy(text + at, value, bytes);
        at += bytes;
    }
    return true;
}

/* ------------------------------------------------------------------ compare */

static bool is_same_tensor(const struct roped_tensor *a,
                           const struct roped_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           a->stride == b->stride &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

static bool is_same_area(const struct roped_area *a, const struct roped_area *b)
{
    return a->id == b->id && a->offset == b->offset && a->bytes == b->bytes;
}

static bool has_same_tensors(const struct roped_chain *chain)
{
    const struct roped_program *program = chain->program;
    for (int i = 0; i < program->n_inputs; i++)
        if (!is_same_tensor(&chain->input[i].tensor,
                            &chain->before->input[i].tensor) ||
            !is_same_area(&chain->input[i].area, &chain->before->input[i].area))
            return false;
    for (int i = 0; i < program->n_outputs; i++)
        if (!is_same_area(&chain->into[i].area, &chain->before->into[i].area) ||
            chain->into[i].stride != chain->before->into[i].stride)
            return false;
    for (int i = 0; i < program->places.n; i++) {
        const struct chain_name *place = &chain->name[program->places.at[i]];
        if (!is_same_tensor(&place->tensor, &chain->place_before[i].tensor) ||
            !is_same_area(&place->area, &chain->place_before[i].area))
            return false;
    }
    return true;
}

/* By what they say too: one may be gone, and another where it was. */
static bool has_same_sets(const struct roped_chain *chain)
{
    for (int i = 0; i < chain->program->tables.n; i++)
        if (chain->set[i] != chain->set_before[i].at ||
            (chain->set[i] && memcmp(chain->set[i], &chain->set_before[i].set,
                                     sizeof *chain->set[i]) != 0))
            return false;
    return true;
}

bool chain_is_as_before(struct roped_chain *chain)
{
    char text[CHAIN_PARAM_BYTES];
    const struct chain_before *before = chain->before;
    if (!before->is_resolved || before->is_trusting != chain->is_trusting ||
        !has_same_tensors(chain) || !has_same_sets(chain) ||
        !write_params(chain, text) ||
        memcmp(text, before->param, sizeof text) != 0)
        return false;
    for (int i = 0; i < chain->program->n_inputs; i++)
        chain->input[i].tensor.stride_dims =
            before->input[i].tensor.stride_dims;
    return true;
}

void chain_note(struct roped_chain *chain)
{
    const struct roped_program *program = chain->program;
    struct chain_before *before = chain->before;
    before->is_resolved = write_params(chain, before->param);
    before->is_trusting = chain->is_trusting;
    memcpy(before->input, chain->input,
           (size_t)program->n_inputs * sizeof *before->input);
    memcpy(before->into, chain->into,
           (size_t)program->n_outputs * sizeof *before->into);
    for (int i = 0; i < program->places.n; i++)
        chain->place_before[i] = chain->name[program->places.at[i]];
    for (int i = 0; i < program->tables.n; i++) {
        chain->set_before[i].at = chain->set[i];
        if (chain->set[i])
            memcpy(&chain->set_before[i].set, chain->set[i],
                   sizeof *chain->set[i]);
    }
}
