/*
 * models.c - the list of models, and parts of operators as models.
 */
#include "wire/models.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

_Static_assert(ROPED_MAX_INPUTS <= 32, "a bit per input");

void models_init(struct models *models, bool has_demos)
{
    models->n = 0;
    for (int i = 0; i < ROPED_OP_COUNT; i++)
        models->op[models->n++] = roped_op_at(i);
    for (int i = 0; i < DEMO_COUNT && has_demos; i++)
        models->op[models->n++] = demo_at(i);
}

bool models_has_version(const char *version)
{
    return version[0] == '\0' || strcmp(version, "1") == 0;
}

int models_index(const struct models *models, const struct roped_op *op)
{
    int i = 0;
    while (i < models->n - 1 && models->op[i] != op)
        i++;
    return i;
}

/* The operator as a whole. */
static void model_init(struct model *model, const struct roped_op *op)
{
    model->signature = signature_of_op(op);
    model->is_whole = true;
    model->inputs = (uint32_t)((1ull << roped_op_inputs(op)) - 1);
    size_t length = strlen(op->name);
    assert(length < sizeof model->name);
    memcpy(model->name, op->name, length + 1);
}

void model_of_program(struct model *model, const char *name,
                      const struct roped_program *program)
{
    memset(model, 0, sizeof *model);
    model->is_whole = true;
    snprintf(model->name, sizeof model->name, "%s", name);
    model->signature = (struct signature){.name = name, .program = program};
}

bool model_has_input(const struct model *model, int port)
{
    return port >= 0 && (!model->signature.op || model->inputs >> port & 1);
}

bool model_has_output(const struct model *model, int port)
{
    const struct roped_op *op = model->signature.op;
    const char *needed = op ? op->out[port].requires_ : NULL;
    if (!needed || model->is_whole)
        return true;
    int param = roped_op_param(op, needed);
    return model_has_input(model, roped_op_input(op, needed)) ||
           (param >= 0 && op->param[param].init != 0);
}

/* "q,k" or "required,k": each once, and none missing. */
static bool read_inputs(const char *list, struct model *model)
{
    char name[ROPED_NAME_BYTES];
    const struct roped_op *op = model->signature.op;
    model->is_whole = false;
    model->inputs = 0;
    for (;;) {
        size_t length = strcspn(list, ",");
        if (length >= sizeof name)
            return false;
        memcpy(name, list, length);
        name[length] = '\0';
        int port = roped_op_input(op, name);
        uint32_t bits = strcmp(name, "required") == 0 ? roped_op_needed(op)
                        : port >= 0                   ? 1u << port
                                                      : 0;
        if (bits == 0 || (model->inputs & bits))
            return false;
        model->inputs |= bits;
        if (list[length] == '\0')
            break;
        list += length + 1;
    }
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (!(op->in[i].flags & ROPED_OPTIONAL) && !model_has_input(model, i))
            return false;
    return true;
}

bool models_find(const struct models *models, const char *name,
                 struct model *out)
{
    size_t length = strcspn(name, ":");
    for (int i = 0; i < models->n; i++) {
        const struct roped_op *op = models->op[i];
        if (strncmp(op->name, name, length) != 0 || op->name[length] != '\0')
            continue;
        model_init(out, op);
        if (name[length] == '\0')
            return true;
        snprintf(out->name, sizeof out->name, "%s", name);
        return read_inputs(name + length + 1, out);
    }
    return false;
}
