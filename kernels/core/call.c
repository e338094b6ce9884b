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

/* Does a shape of this rank fit the pattern? */
static bool rank_fits(const struct roped_shape_pattern *pattern, int rank)
{
    int n_packs = 0;
    for (int i = 0; i < pattern->count; i++)
        n_packs += pattern->dim[i].is_pack;
    return n_packs ? rank >= pattern->count - n_packs : rank == pattern->count;
}

static bool form_is_asked_for(const struct roped_call *call, int form)
{
    const struct roped_form *wanted = &call->op->form[form];
    if (!wanted->name || !wanted->param)
        return true;
    int index = roped_op_param(call->op, wanted->param);
    int32_t value;
    if (index < 0)
        return false;
    memcpy(&value, call->params + call->op->param[index].offset, sizeof value);
    return value == wanted->value;
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
    int n_possible = 0;
    for (int form = 0; form < n_forms; form++)
        n_possible += is_possible[form] = form_is_asked_for(call, form);
    for (int i = 0; i < call->n_in && n_possible > 1; i++) {
        struct roped_shape_pattern pattern;
        bool fits[ROPED_MAX_FORMS] = {false};
        int n_fits = 0;
        if (!roped_tensor_given(&call->in[i]) || !strchr(op->in[i].shape, '|'))
            continue;
        for (int form = 0; form < n_forms; form++) {
            if (!is_possible[form])
                continue;
            enum roped_status status =
                roped_port_pattern(&op->in[i], form, &pattern, err);
            if (status)
                return status;
            fits[form] = rank_fits(&pattern, call->in[i].rank);
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

/* ---------------------------------------------------------------- shapes */

static int find_dim(const struct roped_call *call, const char *name)
{
    for (int i = 0; i < call->n_dims; i++)
        if (name_is(call->dim[i].name, name))
            return i;
    return -1;
}

int64_t roped_call_dim(const struct roped_call *call, const char *symbol)
{
    int i = find_dim(call, symbol);
    return i < 0 ? -1 : call->dim[i].size;
}

/* "[n hq d]" of a port in this call's form. */
static const char *pattern_text(const struct roped_call *call,
                                const struct roped_port *port, char *text,
                                size_t bytes)
{
    struct roped_shape_pattern pattern;
    size_t at = (size_t)snprintf(text, bytes, "[");
    if (roped_port_pattern(port, call->form, &pattern, NULL))
        pattern.count = 0;
    for (int i = 0; i < pattern.count && at < bytes; i++) {
        const struct roped_dim_pattern *dim = &pattern.dim[i];
        if (dim->name[0])
            at +=
                (size_t)snprintf(text + at, bytes - at, "%s%s%s", i ? ", " : "",
                                 dim->is_pack ? "..." : "", dim->name);
        else
            at += (size_t)snprintf(text + at, bytes - at, "%s%lld",
                                   i ? ", " : "", (long long)dim->size);
    }
    if (at < bytes)
        snprintf(text + at, bytes - at, "]");
    return text;
}

static enum roped_status wrong_rank(const struct roped_call *call, int input,
                                    struct roped_error *err)
{
    char found[128], expected[96];
    const char *form = call->op->form[call->form].name;
    const struct roped_tensor *tensor = &call->in[input];
    return roped_fail(
        err, ROPED_BAD_SHAPE,
        "tensor '%s': shape %s, expected rank of %s%s%s%s",
        call->op->in[input].name,
        roped_shape_text(tensor->dims, tensor->rank, found, sizeof found),
        pattern_text(call, &call->op->in[input], expected, sizeof expected),
        form ? " (form " : "", form ? form : "", form ? ")" : "");
}

static enum roped_status bind_dim(struct roped_call *call, int input, int at,
                                  const struct roped_dim_pattern *pattern,
                                  struct roped_error *err)
{
    const char *port = call->op->in[input].name;
    int64_t size = call->in[input].dims[at];
    if (!pattern->name[0]) {
        if (size == pattern->size)
            return ROPED_OK;
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is %lld, expected %lld", port,
                          at, (long long)size, (long long)pattern->size);
    }
    int i = find_dim(call, pattern->name);
    if (i >= 0) {
        if (call->dim[i].size == size)
            return ROPED_OK;
        return roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': dim %d is %lld, expected %s = %lld (set by '%s')",
            port, at, (long long)size, pattern->name,
            (long long)call->dim[i].size, call->dim[i].setter);
    }
    if (call->n_dims == ROPED_MAX_DIMS)
        return roped_fail(err, ROPED_INTERNAL, "too many dims in %s",
                          call->op->name);
    i = call->n_dims++;
    memcpy(call->dim[i].name, pattern->name, sizeof call->dim[i].name);
    call->dim[i].size = size;
    call->dim[i].setter = port;
    return ROPED_OK;
}

/* What states the dims of a pack, and the words of a message for it. */
struct setter {
    const char *kind, *name; /* "tensor 'x'" */
    const char *verb;
};

/* Binds a pack, or holds it to the dims that it has. */
static enum roped_status bind_pack(struct roped_call *call, const char *name,
                                   const int64_t *dims, int rank,
                                   const struct setter *setter,
                                   struct roped_error *err)
{
    char found[128], expected[128];
    int i = find_dim(call, name);
    if (i >= 0) {
        if (call->dim[i].rank == rank &&
            memcmp(call->dim[i].dims, dims, (size_t)rank * sizeof *dims) == 0)
            return ROPED_OK;
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "%s '%s': %s %s, expected %s (set by '%s')",
                          setter->kind, setter->name, setter->verb,
                          roped_shape_text(dims, rank, found, sizeof found),
                          roped_shape_text(call->dim[i].dims, call->dim[i].rank,
                                           expected, sizeof expected),
                          call->dim[i].setter);
    }
    struct roped_tensor pack = {.dtype = ROPED_U8, .rank = rank};
    memcpy(pack.dims, dims, (size_t)rank * sizeof *dims);
    i = call->n_dims++;
    snprintf(call->dim[i].name, sizeof call->dim[i].name, "%s", name);
    call->dim[i].is_pack = true;
    call->dim[i].rank = rank;
    call->dim[i].setter = setter->name;
    memcpy(call->dim[i].dims, dims, (size_t)rank * sizeof *dims);
    int64_t n_bytes;
    return roped_tensor_size(&pack, setter->name, &call->dim[i].size, &n_bytes,
                             err);
}

/* Shapes stated by parameters: each binds a pack as an input would. */
static enum roped_status bind_shape_params(struct roped_call *call,
                                           struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    const struct roped_param *param = call->op->param;
    for (int i = 0; i < call->n_params && !status; i++, param++) {
        const struct setter setter = {"parameter", param->name, "shape"};
        struct roped_tensor shape = {.dtype = ROPED_U8};
        struct roped_ints ints;
        int64_t n_elements, n_bytes;
        if (!param->shape || !(call->given & (1ull << i)))
            continue;
        memcpy(&ints, call->params + param->offset, sizeof ints);
        shape.rank = ints.count;
        memcpy(shape.dims, ints.value, sizeof shape.dims);
        status =
            roped_tensor_size(&shape, param->name, &n_elements, &n_bytes, err);
        if (!status)
            status = bind_pack(call, param->shape, shape.dims, shape.rank,
                               &setter, err);
    }
    return status;
}

/* How many dims at the front of a tensor number its tokens. */
static int count_step_dims(const struct roped_op *op,
                           const struct roped_port *port,
                           const struct roped_shape_pattern *pattern, int rank)
{
    int n = 0;
    if (!(port->flags & ROPED_STRIDED))
        return 0;
    for (int i = 0; i < pattern->count; i++) {
        if (!op_numbers_tokens(op, pattern->dim[i].name))
            break;
        n += pattern->dim[i].is_pack ? rank - (pattern->count - 1) : 1;
    }
    return n;
}

/* A step does not let tokens overlap, nor their addresses overflow. */
static enum roped_status check_step(const struct roped_port *port,
                                    const struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    int64_t bytes, token = roped_tensor_token(tensor);
    long long step = tensor->step;
    if (step == 0)
        return ROPED_OK;
    if (!(port->flags & ROPED_STRIDED))
        return roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': stride %lld, expected none: it is packed", port->name,
            step);
    if (step < token || step < 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': stride %lld, expected at least %lld, "
                          "the elements of a token",
                          port->name, step, (long long)token);
    if (__builtin_mul_overflow(roped_tensor_tokens(tensor), tensor->step,
                               &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)roped_dtype_bytes(tensor->dtype),
                               &bytes))
        return roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': stride %lld takes its %lld tokens beyond "
            "2^63 - 1 bytes",
            port->name, step, (long long)roped_tensor_tokens(tensor));
    return ROPED_OK;
}

static enum roped_status bind_shape(struct roped_call *call, int input,
                                    struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    const struct roped_tensor *tensor = &call->in[input];
    enum roped_status status =
        roped_port_pattern(&call->op->in[input], call->form, &pattern, err);
    if (status)
        return status;
    if (!rank_fits(&pattern, tensor->rank))
        return wrong_rank(call, input, err);
    const struct setter setter = {"tensor", call->op->in[input].name,
                                  pattern.count > 1 ? "leading dims" : "shape"};
    for (int i = 0, at = 0; i < pattern.count && !status; i++) {
        int rank =
            pattern.dim[i].is_pack ? tensor->rank - (pattern.count - 1) : 1;
        if (pattern.dim[i].is_pack)
            status = bind_pack(call, pattern.dim[i].name, tensor->dims + at,
                               rank, &setter, err);
        else
            status = bind_dim(call, input, at, &pattern.dim[i], err);
        at += rank;
    }
    call->in[input].step_dims =
        count_step_dims(call->op, &call->op->in[input], &pattern, tensor->rank);
    return status ? status : check_step(&call->op->in[input], tensor, err);
}

/* Not the type that its variable has; an input or a parameter gave it that. */
static enum roped_status wrong_type(const struct roped_call *call, int input,
                                    enum roped_dtype expected,
                                    struct roped_error *err)
{
    const struct roped_op *op = call->op;
    const char *name = op->in[input].type, *setter = "";
    for (int i = 0; i < call->n_params; i++)
        if (op->param[i].kind == ROPED_PARAM_DTYPE &&
            name_is(op->param[i].type, name))
            setter = op->param[i].name;
    for (int i = input - 1; i >= 0; i--)
        if (roped_tensor_given(&call->in[i]) && name_is(op->in[i].type, name))
            setter = op->in[i].name;
    return roped_fail(
        err, ROPED_BAD_TYPE, "tensor '%s': %s, expected %s, the type of '%s'",
        op->in[input].name, roped_dtype_name(call->in[input].dtype),
        roped_dtype_name(expected), setter);
}

static enum roped_status bind_type(struct roped_call *call, int input,
                                   struct roped_error *err)
{
    const struct roped_op *op = call->op;
    enum roped_dtype found = call->in[input].dtype;
    int v = 0;
    while (!name_is(op->type[v].name, op->in[input].type))
        v++;
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

/* What no input binds: types without a choice, and those of parameters. */
static void bind_other_types(struct roped_call *call)
{
    const struct roped_op *op = call->op;
    for (int v = 0; v < ROPED_MAX_TYPES; v++)
        call->type[v] = roped_dtype_only(op->type[v].set);
    for (int i = 0; i < call->n_params; i++) {
        int32_t dtype;
        int v = 0;
        if (op->param[i].kind != ROPED_PARAM_DTYPE)
            continue;
        while (!name_is(op->type[v].name, op->param[i].type))
            v++;
        memcpy(&dtype, call->params + op->param[i].offset, sizeof dtype);
        call->type[v] = (enum roped_dtype)dtype;
    }
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

/* No input or parameter of the call has bound this dim: who could have? */
static enum roped_status unbound_dim(const struct roped_call *call,
                                     const char *name, struct roped_error *err)
{
    const struct roped_op *op = call->op;
    const char *param = NULL, *input = "";
    struct roped_shape_pattern pattern;
    for (int i = 0; i < call->n_params; i++)
        if (op->param[i].shape && strcmp(op->param[i].shape, name) == 0)
            param = op->param[i].name;
    for (int i = roped_op_inputs(op) - 1; i >= 0; i--) {
        if (roped_port_pattern(&op->in[i], call->form, &pattern, err))
            return ROPED_INTERNAL;
        for (int j = 0; j < pattern.count; j++)
            if (strcmp(pattern.dim[j].name, name) == 0)
                input = op->in[i].name;
    }
    return roped_fail(err, ROPED_INVALID, "missing tensor '%s'%s%s%s", input,
                      param ? " or parameter '" : "", param ? param : "",
                      param ? "'" : "");
}

/* Divides the size of a dim by a parameter, as its pattern says. */
static enum roped_status divide_dim(const struct roped_call *call,
                                    const struct roped_dim_pattern *pattern,
                                    int64_t divisor, int64_t *size,
                                    struct roped_error *err)
{
    if (divisor == 0) {
        *size = 1;
        return ROPED_OK;
    }
    if (*size % divisor)
        return roped_fail(
            err, ROPED_BAD_PARAMETER,
            "parameter '%s': %lld, expected a divisor of %s = %lld (set "
            "by '%s')",
            pattern->by, (long long)divisor, pattern->name, (long long)*size,
            call->dim[find_dim(call, pattern->name)].setter);
    *size /= divisor;
    return ROPED_OK;
}

/* Appends a dim that an input has bound, divided or rounded up where the
 * pattern says so. */
static enum roped_status infer_dim(const struct roped_call *call,
                                   const struct roped_dim_pattern *pattern,
                                   struct roped_tensor *tensor,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    int bound = find_dim(call, pattern->name);
    if (bound < 0)
        return unbound_dim(call, pattern->name, err);
    int64_t size = call->dim[bound].size, divisor;
    if (pattern->by[0]) {
        int param = roped_op_param(call->op, pattern->by);
        memcpy(&divisor, call->params + call->op->param[param].offset,
               sizeof divisor);
        if (divisor == 0 && !pattern->is_kept)
            return ROPED_OK;
        status = divide_dim(call, pattern, divisor, &size, err);
    }
    if (pattern->unit && size <= INT64_MAX - pattern->unit) /* else too large */
        size += (pattern->unit - size % pattern->unit) % pattern->unit;
    tensor->dims[tensor->rank++] = size;
    return status;
}

/* Appends the dims of a pack. */
static enum roped_status infer_pack(const struct roped_call *call,
                                    const struct roped_dim_pattern *pattern,
                                    struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    int bound = find_dim(call, pattern->name);
    if (bound < 0)
        return unbound_dim(call, pattern->name, err);
    for (int i = 0; i < call->dim[bound].rank; i++)
        tensor->dims[tensor->rank++] = call->dim[bound].dims[i];
    return ROPED_OK;
}

static enum roped_status infer_output(struct roped_call *call, int output,
                                      struct roped_error *err)
{
    const struct roped_op *op = call->op;
    const struct roped_port *port = &op->out[output];
    struct roped_tensor *tensor = &call->out[output];
    struct roped_shape_pattern pattern;
    int64_t n_elements, n_bytes;
    int v = 0;
    if (!is_made(call, port))
        return ROPED_OK;
    enum roped_status status =
        roped_port_pattern(port, call->form, &pattern, err);
    for (int i = 0; i < pattern.count && !status; i++) {
        const struct roped_dim_pattern *dim = &pattern.dim[i];
        if (!dim->name[0])
            tensor->dims[tensor->rank++] = dim->size;
        else if (dim->is_pack)
            status = infer_pack(call, dim, tensor, err);
        else
            status = infer_dim(call, dim, tensor, err);
    }
    if (status)
        return status;
    tensor->step_dims = count_step_dims(op, port, &pattern, tensor->rank);
    while (!name_is(op->type[v].name, port->type))
        v++;
    tensor->dtype = call->type[v];
    return roped_tensor_size(tensor, port->name, &n_elements, &n_bytes, err);
}

enum roped_status roped_call_set_step(struct roped_call *call, int output,
                                      int64_t step, struct roped_error *err)
{
    struct roped_tensor *tensor = &call->out[output];
    tensor->step = step;
    return check_step(&call->op->out[output], tensor, err);
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
    enum roped_status status = choose_form(call, err);
    for (int i = 0; i < n_inputs && !status; i++) {
        if (!roped_tensor_given(&call->in[i]))
            continue;
        status = bind_type(call, i, err);
        if (!status)
            status = bind_shape(call, i, err);
    }
    if (!status)
        status = bind_shape_params(call, err);
    for (int i = 0; i < call->n_out && !status; i++)
        status = infer_output(call, i, err);
    if (!status && op->rule)
        status = op->rule(call, err);
    return status;
}

/* ---------------------------------------------------------------- values */

/* The largest value of an index tensor, taken as unsigned: one below 0 is above
 * any bound. A loop for each type: calls of thousands of tokens wait for it. */
static uint64_t largest_index(const struct roped_tensor *tensor)
{
    int64_t n = roped_tensor_elements(tensor);
    const char *data = tensor->data;
    uint64_t most = 0;
    if (tensor->dtype == ROPED_I64) {
        for (int64_t i = 0; i < n; i++) {
            uint64_t value;
            memcpy(&value, data + 8 * i, sizeof value);
            most = value > most ? value : most;
        }
        return most;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t narrow;
        memcpy(&narrow, data + 4 * i, sizeof narrow);
        uint64_t value = (uint64_t)(int64_t)narrow;
        most = value > most ? value : most;
    }
    return most;
}

int64_t call_find_outside(const struct roped_tensor *tensor, int64_t end,
                          int64_t *largest)
{
    int64_t n = roped_tensor_elements(tensor);
    uint64_t most = largest_index(tensor);
    *largest = n > 0 ? (int64_t)most : -1;
    if (n == 0 || most < (uint64_t)end)
        return -1;
    int64_t i = 0;
    while ((uint64_t)call_index_at(tensor, i) < (uint64_t)end)
        i++;
    return i;
}

size_t roped_call_aux_bytes(const struct roped_call *call)
{
    return call->op->aux_bytes ? call->op->aux_bytes(call) : 0;
}

enum roped_status roped_call_plan(struct roped_call *call,
                                  struct roped_error *err)
{
    memset(&call->table, 0, sizeof call->table);
    return call->op->plan(call, err);
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
