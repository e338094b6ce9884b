/*
 * call.c - a call on an operator, from what the client sent to a plan: names
 * and types when bound, forms and shapes when resolved, values when planned.
 */
#include "core/call_internal.h"
#include "core/name.h"

#include <stdio.h>
#include <string.h>

void roped_call_init(struct roped_call *call, const struct roped_op *op)
{
    memset(call, 0, sizeof *call);
    call->op = op;
    call->n_in = roped_op_inputs(op);
    call->n_out = roped_op_outputs(op);
    call->n_params = roped_op_params(op);
    call->host_values = true;
    call->largest_position = -1;
    call_default_params(call);
}

enum roped_status roped_call_use_angles(struct roped_call *call,
                                        const struct roped_angle_set *set,
                                        struct roped_error *err)
{
    if (call->op->angles_offset == ROPED_NO_ANGLES)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "unknown parameter 'table': %s takes no angles",
                          call->op->name);
    if (call->angle_set)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'table' is given twice");
    call->angle_set = set;
    return ROPED_OK;
}

const struct roped_angle_params *
roped_call_angles(const struct roped_call *call)
{
    if (call->angle_set)
        return &call->angle_set->params;
    return (const void *)(call->params + call->op->angles_offset);
}

void roped_angle_params_init(struct roped_angle_params *params)
{
    struct roped_call call; /* every rotary operator has the same rows */
    roped_call_init(&call, roped_op_find("rope"));
    *params = *roped_call_angles(&call);
}

static enum roped_status unknown_tensor(const struct roped_call *call,
                                        const char *name,
                                        struct roped_error *err)
{
    char names[256] = "";
    size_t at = 0;
    for (int i = 0; i < call->n_in && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                               i ? ", " : "", call->op->in[i].name);
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unknown tensor '%.64s': %s takes %s", name,
                      call->op->name, names);
}

enum roped_status roped_call_bind(struct roped_call *call, const char *name,
                                  const struct roped_tensor *tensor,
                                  struct roped_error *err)
{
    char set[96];
    int64_t n_elements, n_bytes;
    int index = roped_op_input(call->op, name);
    if (index < 0)
        return unknown_tensor(call, name, err);
    const struct roped_port *port = &call->op->in[index];
    if (roped_tensor_given(&call->in[index]))
        return roped_fail(err, ROPED_INVALID, "tensor '%s' is given twice",
                          port->name);
    uint32_t types = roped_op_types(call->op, port);
    if (!(types & ROPED_SET(tensor->dtype)))
        return roped_fail(err, ROPED_BAD_TYPE, "tensor '%s': %s, expected %s",
                          port->name, roped_dtype_name(tensor->dtype),
                          roped_dtype_set_text(types, set, sizeof set));
    if (tensor->rank < 0 || tensor->rank > ROPED_MAX_RANK)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': rank %d, expected at most %d",
                          port->name, tensor->rank, ROPED_MAX_RANK);
    enum roped_status status =
        roped_tensor_size(tensor, port->name, &n_elements, &n_bytes, err);
    if (!status)
        call->in[index] = *tensor;
    return status;
}

/* ----------------------------------------------------------------- forms */

/* Which forms are asked for: those without a parameter, and those whose
 * parameter has their value. Forms that share one stand side by side. */
static int asked_forms(const struct roped_call *call,
                       bool is_possible[ROPED_MAX_FORMS])
{
    const struct roped_op *op = call->op;
    int n_forms = roped_op_forms(op), n = 0;
    const char *param = NULL;
    int32_t value = 0;
    for (int i = 0; i < n_forms; i++) {
        const struct roped_form *form = &op->form[i];
        if (form->name && form->param &&
            (!param || strcmp(form->param, param) != 0)) {
            param = form->param;
            memcpy(&value,
                   call->params + op->param[roped_op_param(op, param)].offset,
                   sizeof value);
        }
        n += is_possible[i] =
            !form->name || !form->param || value == form->value;
    }
    return n;
}

/*
 * The first form whose parameter and whose ranks fit, judged by the inputs
 * that have alternatives, in order: the first one that tells forms apart
 * chooses, and later ones are held to it by bind_shapes.
 */
static enum roped_status choose_form(struct roped_call *call,
                                     struct roped_error *err)
{
    const struct roped_op *op = call->op;
    int n_forms = roped_op_forms(op);
    bool is_possible[ROPED_MAX_FORMS];
    int n_possible = asked_forms(call, is_possible);
    for (int i = 0; i < call->n_in && n_possible > 1; i++) {
        struct roped_shape_pattern pattern;
        bool fits[ROPED_MAX_FORMS] = {false};
        int n_fits = 0;
        if (!roped_tensor_given(&call->in[i]) ||
            roped_port_is_guarded(&op->in[i]) || !strchr(op->in[i].shape, '|'))
            continue;
        for (int form = 0; form < n_forms; form++) {
            if (!is_possible[form])
                continue;
            enum roped_status status =
                roped_port_pattern(&op->in[i], form, &pattern, err);
            if (status)
                return status;
            fits[form] = shape_fits(&pattern, call->in[i].rank);
            n_fits += fits[form];
        }
        if (n_fits == 0)
            break; /* bind_shapes names what is wrong */
        memcpy(is_possible, fits, sizeof is_possible);
        n_possible = n_fits;
    }
    call->form = 0;
    while (call->form < n_forms - 1 && !is_possible[call->form])
        call->form++;
    return ROPED_OK;
}

/* ----------------------------------------------------------------- types */

/* What gave a type variable its type: the first of the inputs before 'end' that
 * has it, or a parameter. */
static const char *type_setter(const struct roped_call *call, int end,
                               const char *name)
{
    const struct roped_op *op = call->op;
    for (int i = 0; i < end; i++)
        if (roped_tensor_given(&call->in[i]) && name_is(op->in[i].type, name))
            return op->in[i].name;
    for (int i = 0; i < call->n_params; i++)
        if (op->param[i].kind == ROPED_PARAM_DTYPE &&
            name_is(op->param[i].type, name))
            return op->param[i].name;
    for (int v = 0; v < ROPED_MAX_TYPES && op->type[v].name; v++)
        if (op->type[v].by && name_is(op->type[v].name, name))
            return op->type[v].by;
    return "";
}

/* Not the type that its variable has; an input or a parameter gave it that. */
static enum roped_status wrong_type(const struct roped_call *call, int input,
                                    enum roped_dtype expected,
                                    struct roped_error *err)
{
    const struct roped_port *port = &call->op->in[input];
    return roped_fail(
        err, ROPED_BAD_TYPE, "tensor '%s': %s, expected %s, the type of '%s'",
        port->name, roped_dtype_name(call->in[input].dtype),
        roped_dtype_name(expected), type_setter(call, input, port->type));
}

static enum roped_status bind_type(struct roped_call *call, int input,
                                   struct roped_error *err)
{
    const struct roped_op *op = call->op;
    enum roped_dtype found = call->in[input].dtype;
    int v = op_type(op, op->in[input].type);
    if (call->type[v] == ROPED_NO_DTYPE)
        call->type[v] = found;
    if (call->type[v] == found)
        return ROPED_OK;
    return wrong_type(call, input, call->type[v], err);
}

enum roped_status call_type_of(const struct roped_call *call, int first,
                               int last, int32_t *dtype,
                               struct roped_error *err)
{
    int set_by = first;
    *dtype = ROPED_NO_DTYPE;
    for (int i = first; i <= last; i++) {
        enum roped_dtype found = call->in[i].dtype;
        if (found == ROPED_NO_DTYPE || (int32_t)found == *dtype)
            continue;
        if (*dtype != ROPED_NO_DTYPE)
            return roped_fail(err, ROPED_INTERNAL,
                              "tensors '%s' and '%s' of %s are read as one "
                              "type, but are %s and %s",
                              call->op->in[set_by].name, call->op->in[i].name,
                              call->op->name,
                              roped_dtype_name((enum roped_dtype) * dtype),
                              roped_dtype_name(found));
        *dtype = (int32_t)found;
        set_by = i;
    }
    return ROPED_OK;
}

/* The type that a choice parameter chooses for a variable. */
static enum roped_dtype chosen_type(const struct roped_call *call,
                                    const struct roped_type *type)
{
    int32_t choice;
    int param = roped_op_param(call->op, type->by);
    memcpy(&choice, call->params + call->op->param[param].offset,
           sizeof choice);
    return type_of_choice(type, choice);
}

/* What no input binds: types without a choice, and those of parameters. */
static void bind_other_types(struct roped_call *call)
{
    const struct roped_op *op = call->op;
    for (int v = 0; v < ROPED_MAX_TYPES && op->type[v].name; v++)
        call->type[v] = op->type[v].by ? chosen_type(call, &op->type[v])
                                       : roped_dtype_only(op->type[v].set);
    for (int i = 0; i < call->n_params; i++) {
        int32_t dtype;
        if (op->param[i].kind != ROPED_PARAM_DTYPE)
            continue;
        memcpy(&dtype, call->params + op->param[i].offset, sizeof dtype);
        call->type[op_type(op, op->param[i].type)] = (enum roped_dtype)dtype;
    }
}

/* Types that depend on another one: "the type of q, or F32". */
static enum roped_status check_types(const struct roped_call *call,
                                     struct roped_error *err)
{
    const struct roped_op *op = call->op;
    char set[96];
    for (int v = 0; v < ROPED_MAX_TYPES && op->type[v].name; v++) {
        const struct roped_type *type = &op->type[v];
        if (!type->beside || call->type[v] == ROPED_NO_DTYPE)
            continue;
        enum roped_dtype other = call->type[op_type(op, type->beside)];
        uint32_t beside = ROPED_SET(other);
        if (other == ROPED_NO_DTYPE || type->any_beside & beside ||
            ROPED_SET(call->type[v]) & (beside | type->also))
            continue;
        return roped_fail(
            err, ROPED_BAD_TYPE,
            "tensor '%s': %s, expected %s beside '%s' of %s",
            type_setter(call, call->n_in, type->name),
            roped_dtype_name(call->type[v]),
            roped_dtype_set_text(beside | type->also, set, sizeof set),
            type_setter(call, call->n_in, type->beside),
            roped_dtype_name(other));
    }
    return ROPED_OK;
}

/* Is this output made: is its input given, is its parameter true? */
static bool is_made(const struct roped_call *call, const struct roped_port *out)
{
    int32_t is_true;
    if (!out->requires_)
        return true;
    int input = roped_op_input(call->op, out->requires_);
    if (input >= 0)
        return roped_tensor_given(&call->in[input]);
    int param = roped_op_param(call->op, out->requires_);
    memcpy(&is_true, call->params + call->op->param[param].offset,
           sizeof is_true);
    return is_true != 0;
}

static enum roped_status infer_output(struct roped_call *call, int output,
                                      struct roped_error *err)
{
    const struct roped_op *op = call->op;
    struct roped_tensor *tensor = &call->out[output];
    if (!is_made(call, &op->out[output]))
        return ROPED_OK;
    tensor->dtype = call->type[op_type(op, op->out[output].type)];
    return dims_infer(call, output, err);
}

enum roped_status roped_call_set_stride(struct roped_call *call, int output,
                                        int64_t stride, struct roped_error *err)
{
    struct roped_tensor *tensor = &call->out[output];
    tensor->stride = stride;
    return dims_check_stride(&call->op->out[output], tensor, err);
}

enum roped_status roped_call_resolve(struct roped_call *call,
                                     struct roped_error *err)
{
    const struct roped_op *op = call->op;
    int n_inputs = call->n_in;
    for (int i = 0; i < n_inputs; i++)
        if (!roped_tensor_given(&call->in[i]) &&
            !(op->in[i].flags & ROPED_OPTIONAL))
            return roped_fail(err, ROPED_INVALID, "missing tensor '%s'",
                              op->in[i].name);
    call->n_dims = 0;
    memset(call->out, 0, sizeof call->out);
    bind_other_types(call);
    bool has_packs = dims_state(call);
    enum roped_status status = choose_form(call, err);
    if (!status)
        status = given_check_form(call, err);
    for (int i = 0; i < n_inputs && !status; i++) {
        if (!roped_tensor_given(&call->in[i]))
            continue;
        status = bind_type(call, i, err);
        if (!status)
            status = dims_bind(call, i, err);
    }
    if (!status)
        status = check_types(call, err);
    if (!status)
        status = given_check(call, err);
    if (!status && has_packs)
        status = dims_bind_params(call, err);
    for (int i = 0; i < call->n_out && !status; i++)
        status = infer_output(call, i, err);
    if (!status && op->rule)
        status = op->rule(call, err);
    return status;
}

/* ---------------------------------------------------------------- values */

size_t roped_call_aux_bytes(const struct roped_call *call)
{
    return call->op->aux_bytes ? call->op->aux_bytes(call) : 0;
}

enum roped_status roped_call_plan(struct roped_call *call,
                                  struct roped_error *err)
{
    memset(&call->table, 0, sizeof call->table);
    memset(call->plan, 0, call->op->plan_bytes); /* its padding too */
    enum roped_status status =
        call->host_values ? values_check(call, err) : ROPED_OK;
    return status ? status : call->op->plan(call, err);
}

bool call_needs_values(const struct roped_call *call)
{
    for (int i = 0; i < call->n_in; i++)
        if (call->op->in[i].flags & ROPED_INDEX &&
            call->in[i].dtype == ROPED_F32)
            return true;
    return call->op->angles_offset != ROPED_NO_ANGLES &&
           roped_angles_depend_on_position(roped_call_angles(call));
}

/* Adds a tensor's bytes; INT64_MAX where the sum is more: each of them may be
 * nearly that. */
static int64_t add_bytes(int64_t bytes, const struct roped_tensor *tensor)
{
    int64_t more = roped_tensor_given(tensor) ? roped_tensor_bytes(tensor) : 0;
    return more > INT64_MAX - bytes ? INT64_MAX : bytes + more;
}

int64_t roped_call_bytes(const struct roped_call *call)
{
    int64_t bytes = 0;
    for (int i = 0; i < call->n_in; i++)
        bytes = add_bytes(bytes, &call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        bytes = add_bytes(bytes, &call->out[i]);
    return bytes;
}
