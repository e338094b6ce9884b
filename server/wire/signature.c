/*
 * signature.c - operators and programs, seen alike.
 */
#include "wire/signature.h"

#include <stdio.h>
#include <string.h>

int signature_count(const struct signature *signature, bool is_output)
{
    if (signature->op)
        return is_output ? roped_op_outputs(signature->op)
                         : roped_op_inputs(signature->op);
    return is_output ? roped_program_outputs(signature->program)
                     : roped_program_inputs(signature->program);
}

const char *signature_tensor(const struct signature *signature, bool is_output,
                             int index)
{
    if (signature->op)
        return is_output ? signature->op->out[index].name
                         : signature->op->in[index].name;
    return is_output ? roped_program_output_name(signature->program, index)
                     : roped_program_input_name(signature->program, index);
}

int signature_find(const struct signature *signature, bool is_output,
                   const char *name)
{
    if (signature->op)
        return is_output ? roped_op_output(signature->op, name)
                         : roped_op_input(signature->op, name);
    return is_output ? roped_program_find_output(signature->program, name)
                     : roped_program_find_input(signature->program, name);
}

bool signature_is_optional(const struct signature *signature, int input)
{
    return signature->op && signature->op->in[input].flags & ROPED_OPTIONAL;
}

const char *signature_list(const struct signature *signature, bool is_output,
                           char *text, size_t bytes)
{
    size_t at = 0;
    int n = signature_count(signature, is_output);
    snprintf(text, bytes, "none");
    for (int i = 0; i < n; i++) {
        const char *name = signature_tensor(signature, is_output, i);
        if (at + strlen(name) + 3 > bytes)
            break;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "",
                               name);
    }
    return text;
}

/* ---------------------------------------------------------------- described */

static enum roped_dtype widest(uint32_t set)
{
    enum roped_dtype best = ROPED_NO_DTYPE;
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++)
        if ((set & ROPED_SET(i)) &&
            roped_dtype_bytes((enum roped_dtype)i) > roped_dtype_bytes(best))
            best = (enum roped_dtype)i;
    return best;
}

enum roped_dtype signature_stated_type(const struct roped_op *op,
                                       const struct roped_port *port)
{
    struct roped_call defaults;
    for (int i = 0; i < roped_op_params(op); i++) {
        const struct roped_param *param = &op->param[i];
        int32_t dtype;
        if (param->kind != ROPED_PARAM_DTYPE ||
            strcmp(param->type, port->type) != 0)
            continue;
        roped_call_init(&defaults, op);
        memcpy(&dtype, defaults.params + param->offset, sizeof dtype);
        return (enum roped_dtype)dtype;
    }
    return widest(roped_op_types(op, port));
}

uint32_t signature_types(const struct signature *signature, int input)
{
    if (signature->op)
        return roped_op_types(signature->op, &signature->op->in[input]);
    enum roped_dtype dtype =
        roped_program_declared(signature->program, input)->dtype;
    /* else resolve says which, and names the step */
    return dtype ? ROPED_SET(dtype) : ~ROPED_SET(ROPED_NO_DTYPE);
}

/* As the port of an operator says it; a pack is one dim of the first form. */
static void describe_port(const struct roped_op *op,
                          const struct roped_port *port,
                          struct signature_tensor *out)
{
    struct roped_shape_pattern pattern;
    out->types = roped_op_types(op, port);
    out->dtype = signature_stated_type(op, port);
    out->is_strided = port->flags & ROPED_STRIDED;
    snprintf(out->shape, sizeof out->shape, "%s", port->shape);
    if (roped_port_pattern(port, 0, &pattern, NULL))
        pattern.count = 0;
    out->rank = pattern.count;
    for (int i = 0; i < pattern.count; i++) {
        out->dims[i] = pattern.dim[i].name[0] ? -1 : pattern.dim[i].size;
        out->packs |= (uint32_t)pattern.dim[i].is_pack << i;
    }
}

/* A dim or, where it has one, its name, of a shape in words. */
static void add_dim(struct signature_tensor *out, int64_t size,
                    const char *name)
{
    size_t at = strlen(out->shape), room = sizeof out->shape - at;
    const char *space = out->rank ? " " : "";
    if (name[0])
        snprintf(out->shape + at, room, "%s%s", space, name);
    else
        snprintf(out->shape + at, room, "%s%lld", space, (long long)size);
    out->dims[out->rank++] = name[0] ? -1 : size;
}

static void forget_shape(struct signature_tensor *out)
{
    out->shape[0] = '\0';
    out->rank = 0;
    out->packs = 0;
}

/* What the program says of an input beside that. */
static void describe_declared(const struct roped_declared *declared,
                              struct signature_tensor *out)
{
    if (declared->dtype) {
        out->dtype = declared->dtype;
        out->types = ROPED_SET(declared->dtype);
    }
    if (declared->has_shape)
        forget_shape(out);
    for (int i = 0; i < (declared->has_shape ? declared->rank : 0); i++)
        add_dim(out, declared->dims[i], declared->symbol[i]);
}

/* What follows from that for an output. */
static void describe_known(const struct roped_tensor *known,
                           struct signature_tensor *out)
{
    out->dtype = known->dtype;
    out->types = ROPED_SET(known->dtype);
    forget_shape(out);
    for (int i = 0; i < known->rank; i++)
        add_dim(out, known->dims[i], known->dims[i] < 0 ? "?" : "");
}

void signature_describe(const struct signature *signature, bool is_output,
                        int index, struct signature_tensor *out)
{
    const struct roped_program *program = signature->program;
    const struct roped_op *op = signature->op;
    const struct roped_port *port;
    memset(out, 0, sizeof *out);
    if (op)
        port = is_output ? &op->out[index] : &op->in[index];
    else
        port = is_output ? roped_program_output_port(program, index, &op)
                         : roped_program_input_port(program, index, &op);
    describe_port(op, port, out);
    out->name = signature_tensor(signature, is_output, index);
    out->is_output = is_output;
    out->is_optional = !is_output && signature_is_optional(signature, index);
    if (!signature->op && !is_output)
        describe_declared(roped_program_declared(program, index), out);
    if (signature->outputs && is_output)
        describe_known(&signature->outputs[index], out);
}

/* ------------------------------------------------------------------ request */

const struct roped_tensor *signature_input(const struct signature *signature,
                                           int input)
{
    return signature->call ? &signature->call->in[input]
                           : roped_chain_input_tensor(signature->chain, input);
}

bool signature_has_input(const struct signature *signature, int input)
{
    return roped_tensor_given(signature_input(signature, input));
}

enum roped_status signature_bind(const struct signature *signature,
                                 const char *name,
                                 const struct roped_tensor *tensor,
                                 struct roped_error *err)
{
    if (signature->call)
        return roped_call_bind(signature->call, name, tensor, err);
    enum roped_status status =
        roped_chain_input(signature->chain, name, tensor, NULL, err);
    if (!status)
        signature->in_data[signature_find(signature, false, name)] =
            tensor->data;
    return status;
}

void signature_set_data(const struct signature *signature, int input,
                        void *data)
{
    if (signature->call)
        signature->call->in[input].data = data;
    else
        signature->in_data[input] = data;
}

enum roped_status signature_set_text(const struct signature *signature,
                                     const char *name, const char *text,
                                     struct roped_error *err)
{
    return signature->call
               ? roped_call_set_text(signature->call, name, text, err)
               : roped_chain_param(signature->chain, name, text, err);
}

/* Where the data of an output of a run is, or will be. */
static void **run_data(const struct signature *signature, int output,
                       const struct roped_tensor **tensor)
{
    int at;
    *tensor = roped_chain_output_tensor(signature->chain, output, &at);
    const struct roped_piece *piece = roped_chain_piece(signature->chain, at);
    return piece->kind == ROPED_PIECE_INPUT ? &signature->in_data[piece->index]
                                            : &signature->out_data[output];
}

bool signature_output(const struct signature *signature, int output,
                      struct roped_tensor *out)
{
    const struct roped_tensor *tensor;
    if (signature->call) {
        *out = signature->call->out[output];
    } else {
        void **data = run_data(signature, output, &tensor);
        *out = *tensor;
        out->data = *data;
    }
    return roped_tensor_given(out);
}

void signature_place(const struct signature *signature, int output, void *data)
{
    const struct roped_tensor *tensor;
    if (signature->call) {
        signature->call->out[output].data = data;
        return;
    }
    void **at = run_data(signature, output, &tensor);
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    if (at != &signature->out_data[output] && bytes)
        memcpy(data, *at, bytes);
    *at = data;
}
