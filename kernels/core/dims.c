/*
 * dims.c - sizes of dims: what parameters and inputs say of them, and the
 * shapes of outputs that follow.
 */
#include "core/call_internal.h"
#include "core/name.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------- names */

static int find_dim(const struct roped_call *call, const char *name)
{
    for (int i = 0; i < call->n_dims; i++)
        if (name_is(call->dim[i].name, name))
            return i;
    return -1;
}

/* The dim that says this one's size: itself, or the one that it has the size of
 * where nothing else says it; -1: nothing does. */
static int bound_dim(const struct roped_call *call, const char *name)
{
    int i = find_dim(call, name);
    if (i >= 0 && call->dim[i].size < 0)
        i = call->dim[i].otherwise ? find_dim(call, call->dim[i].otherwise)
                                   : -1;
    return i >= 0 && call->dim[i].size >= 0 ? i : -1;
}

int64_t roped_call_dim(const struct roped_call *call, const char *symbol)
{
    int i = bound_dim(call, symbol);
    return i < 0 ? -1 : call->dim[i].size;
}

/* A dim symbol, or an int parameter. */
static bool size_of(const void *context, const char *name, int64_t *size)
{
    const struct roped_call *call = context;
    int i = bound_dim(call, name);
    if (i >= 0) {
        *size = call->dim[i].size;
        return true;
    }
    const struct roped_param *param = call->op->param;
    const struct roped_param *end = param + call->n_params;
    while (param < end &&
           (param->kind != ROPED_PARAM_INT || !name_is(param->name, name)))
        param++;
    if (param == end)
        return false;
    memcpy(size, call->params + param->offset, sizeof *size);
    return true;
}

struct roped_dim_size dims_size(const struct roped_call *call,
                                const struct roped_dim_pattern *dim)
{
    return roped_dim_evaluate(dim, size_of, call);
}

const char *dims_setter(const struct roped_call *call, const char *symbol)
{
    int i = bound_dim(call, symbol);
    return i < 0 ? "" : call->dim[i].setter;
}

/* A dim that is not there yet, of no known size. */
static int add_dim(struct roped_call *call, const char *name)
{
    if (call->n_dims == ROPED_MAX_DIMS)
        return -1;
    int i = call->n_dims++;
    size_t length = strlen(name);
    if (length >= sizeof call->dim[i].name)
        return -1;
    memcpy(call->dim[i].name, name, length + 1);
    call->dim[i].size = -1;
    call->dim[i].otherwise = NULL;
    call->dim[i].is_pack = false;
    call->dim[i].rank = 0;
    return i;
}

static enum roped_status too_many_dims(const struct roped_call *call,
                                       struct roped_error *err)
{
    return roped_fail(err, ROPED_INTERNAL, "too many dims in %s",
                      call->op->name);
}

/* ---------------------------------------------------------------- messages */

/* "[n, hq*d]" of a pattern. */
static const char *pattern_text(const struct roped_shape_pattern *pattern,
                                char *text, size_t bytes)
{
    char dim[64];
    size_t at = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < pattern->count && at < bytes; i++)
        at +=
            (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "",
                             roped_dim_text(&pattern->dim[i], dim, sizeof dim));
    if (at < bytes)
        snprintf(text + at, bytes - at, "]");
    return text;
}

static enum roped_status wrong_rank(const struct roped_call *call, int input,
                                    const struct roped_shape_pattern *pattern,
                                    struct roped_error *err)
{
    char found[128], expected[96];
    const struct roped_form *form = &call->op->form[call->form];
    const struct roped_tensor *tensor = &call->in[input];
    return roped_fail(
        err, ROPED_BAD_SHAPE,
        "tensor '%s': shape %s, expected rank of %s%s%s%s",
        call->op->in[input].name,
        roped_shape_text(tensor->dims, tensor->rank, found, sizeof found),
        pattern_text(pattern, expected, sizeof expected),
        form->name ? " (form " : "", form->name ? form->name : "",
        form->name ? ")" : "");
}

/* Which dim of an input is this symbol; -1: none. */
static int place_in(const struct roped_call *call, int input, const char *name)
{
    struct roped_shape_pattern pattern;
    if (roped_call_pattern(call, &call->op->in[input], call->in[input].rank,
                           &pattern, NULL))
        return -1;
    int i = pattern.count - 1;
    while (i >= 0 && strcmp(pattern.dim[i].name, name) != 0)
        i--;
    return i;
}

/* The first input with this symbol: who could say its size. */
static const char *input_with(const struct roped_call *call, const char *name)
{
    for (int i = 0; i < call->n_in; i++)
        if (place_in(call, i, name) >= 0)
            return call->op->in[i].name;
    return "";
}

/* No input or parameter of the call has bound this dim: who could have? */
static enum roped_status unbound_dim(const struct roped_call *call,
                                     const char *port, const char *name,
                                     struct roped_error *err)
{
    const struct roped_op *op = call->op;
    for (int i = 0; i < call->n_params; i++) {
        if (!op->param[i].shape || strcmp(op->param[i].shape, name) != 0)
            continue;
        if (op->param[i].kind == ROPED_PARAM_INT)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "missing parameter '%s': tensor '%s' needs it",
                              op->param[i].name, port);
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s' or parameter '%s'",
                          input_with(call, name), op->param[i].name);
    }
    return roped_fail(err, ROPED_INVALID, "missing tensor '%s'",
                      input_with(call, name));
}

/* A dim does not come out even: blames the parameter that it is divided by,
 * else what bound its symbol. */
static enum roped_status uneven_dim(const struct roped_call *call,
                                    const char *port,
                                    const struct roped_dim_pattern *dim,
                                    const struct roped_dim_size *found,
                                    struct roped_error *err)
{
    char text[64];
    const char *by = dim->step[found->step].name;
    int bound = bound_dim(call, dim->name), at = 0;
    const char *setter = call->dim[bound].setter;
    long long size = (long long)call->dim[bound].size;
    roped_dim_text(dim, text, sizeof text);
    if (roped_op_param(call->op, by) >= 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s': %lld, expected a divisor of %s = "
                          "%lld (set by '%s')",
                          by, (long long)found->number, dim->name, size,
                          setter);
    int input = roped_op_input(call->op, setter);
    if (input < 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s': %lld, expected a multiple of %lld: "
                          "'%s' has %s",
                          setter, size, (long long)found->number, port, text);
    at = place_in(call, input, call->dim[bound].name);
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor '%s': dim %d is %lld, expected a multiple of "
                      "%lld: '%s' has %s",
                      setter, at < 0 ? 0 : at, size, (long long)found->number,
                      port, text);
}

/* A dim that has no size, of an output or of an input. */
static enum roped_status no_size(const struct roped_call *call,
                                 const char *port,
                                 const struct roped_dim_pattern *dim,
                                 const struct roped_dim_size *found,
                                 struct roped_error *err)
{
    char text[64];
    switch (found->state) {
    case ROPED_DIM_UNEVEN:
        return uneven_dim(call, port, dim, found, err);
    case ROPED_DIM_UNKNOWN:
        return unbound_dim(
            call, port,
            found->step < 0 ? dim->name : dim->step[found->step].name, err);
    default:
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': %s is beyond 2^63 - 1", port,
                          roped_dim_text(dim, text, sizeof text));
    }
}

/* ------------------------------------------------------------------ inputs */

/* A named table has rows, as a table that is given as a tensor has. */
static void state_rows(struct roped_call *call)
{
    int dim =
        call->angle_set && call->angle_set->rows ? add_dim(call, "rows") : -1;
    if (dim < 0)
        return;
    call->dim[dim].size = call->angle_set->rows;
    call->dim[dim].setter = call->angle_set->name;
}

bool dims_state(struct roped_call *call)
{
    const struct roped_param *param = call->op->param;
    bool has_packs = false;
    state_rows(call);
    for (int i = 0; i < call->n_params; i++, param++) {
        int64_t size;
        if (!param->shape)
            continue;
        has_packs |= param->kind == ROPED_PARAM_INTS;
        if (param->kind != ROPED_PARAM_INT)
            continue;
        memcpy(&size, call->params + param->offset, sizeof size);
        int dim =
            size > 0 || param->otherwise ? add_dim(call, param->shape) : -1;
        if (dim < 0)
            continue;
        call->dim[dim].size = size > 0 ? size : -1;
        call->dim[dim].setter = param->name;
        call->dim[dim].otherwise = param->otherwise;
    }
    return has_packs;
}

/* A dim whose symbol has a size: it is that size, or what the steps make of it.
 */
static enum roped_status hold_dim(const struct roped_call *call, int input,
                                  int at, const struct roped_dim_pattern *dim,
                                  struct roped_error *err)
{
    char text[64];
    const char *port = call->op->in[input].name;
    struct roped_dim_size expected = roped_dim_evaluate(dim, size_of, call);
    int64_t size = call->in[input].dims[at];
    if (expected.state != ROPED_DIM_SIZED)
        return no_size(call, port, dim, &expected, err);
    if (size == expected.size)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor '%s': dim %d is %lld, expected %s = %lld (set by "
                      "'%s')",
                      port, at, (long long)size,
                      roped_dim_text(dim, text, sizeof text),
                      (long long)expected.size, dims_setter(call, dim->name));
}

/* The size of a dim's symbol, from that of the dim. */
static enum roped_status solve_dim(const struct roped_call *call, int input,
                                   int at, const struct roped_dim_pattern *dim,
                                   int64_t *size, struct roped_error *err)
{
    char text[64];
    const char *port = call->op->in[input].name;
    int64_t found = call->in[input].dims[at];
    struct roped_dim_size solved = roped_dim_solve(dim, found, size_of, call);
    *size = solved.size;
    if (solved.state == ROPED_DIM_SIZED)
        return ROPED_OK;
    if (solved.state == ROPED_DIM_ONE_WAY)
        return unbound_dim(call, port, dim->name, err);
    roped_dim_text(dim, text, sizeof text);
    if (solved.state == ROPED_DIM_UNEVEN) {
        const char *by = dim->step[solved.step].name;
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is %lld, expected a multiple of "
                          "%s%s%lld: it is %s",
                          port, at, (long long)found, by, by[0] ? " = " : "",
                          (long long)solved.number, text);
    }
    if (solved.state == ROPED_DIM_TOO_LARGE && solved.size < 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is %lld, expected at least "
                          "%lld: it is %s",
                          port, at, (long long)found, (long long)solved.number,
                          text);
    return no_size(call, port, dim, &solved, err);
}

static enum roped_status bind_dim(struct roped_call *call, int input, int at,
                                  const struct roped_dim_pattern *dim,
                                  struct roped_error *err)
{
    const char *port = call->op->in[input].name;
    int64_t size = call->in[input].dims[at];
    if (!dim->name[0]) {
        if (size == dim->size)
            return ROPED_OK;
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is %lld, expected %lld", port,
                          at, (long long)size, (long long)dim->size);
    }
    int bound = bound_dim(call, dim->name);
    if (bound >= 0 && dim->n_steps == 0 && call->dim[bound].size == size)
        return ROPED_OK;
    if (bound >= 0)
        return hold_dim(call, input, at, dim, err);
    enum roped_status status =
        dim->n_steps ? solve_dim(call, input, at, dim, &size, err) : ROPED_OK;
    if (status)
        return status;
    if (size == 0 && op_lists(call->op->widths, dim->name))
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim %d is 0, expected %s above 0", port,
                          at, dim->name);
    int i = find_dim(call, dim->name);
    i = i < 0 ? add_dim(call, dim->name) : i;
    if (i < 0)
        return too_many_dims(call, err);
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
    i = add_dim(call, name);
    if (i < 0)
        return too_many_dims(call, err);
    call->dim[i].is_pack = true;
    call->dim[i].rank = rank;
    call->dim[i].setter = setter->name;
    memcpy(call->dim[i].dims, dims, (size_t)rank * sizeof *dims);
    int64_t n_bytes;
    return roped_tensor_size(&pack, setter->name, &call->dim[i].size, &n_bytes,
                             err);
}

enum roped_status dims_bind_params(struct roped_call *call,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    const struct roped_param *param = call->op->param;
    for (int i = 0; i < call->n_params && !status; i++, param++) {
        const struct setter setter = {"parameter", param->name, "shape"};
        struct roped_tensor shape = {.dtype = ROPED_U8};
        struct roped_ints ints;
        int64_t n_elements, n_bytes;
        if (!param->shape || param->kind != ROPED_PARAM_INTS ||
            !(call->given & (1ull << i)))
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
static int count_stride_dims(const struct roped_op *op,
                             const struct roped_port *port,
                             const struct roped_shape_pattern *pattern,
                             int rank)
{
    int n = 0;
    if (!(port->flags & ROPED_STRIDED))
        return 0;
    for (int i = 0; i < pattern->count; i++) {
        if (!op_lists(op->tokens, pattern->dim[i].name))
            break;
        n += pattern->dim[i].is_pack ? rank - (pattern->count - 1) : 1;
    }
    return n;
}

enum roped_status dims_check_stride(const struct roped_port *port,
                                    const struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    int64_t bytes, token = roped_tensor_token(tensor);
    if (tensor->stride == 0)
        return ROPED_OK;
    if (!(port->flags & ROPED_STRIDED))
        return roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': stride %lld, expected none: it is packed", port->name,
            (long long)tensor->stride);
    if (tensor->stride < token || tensor->stride < 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': stride %lld, expected at least %lld, "
                          "the elements of a token",
                          port->name, (long long)tensor->stride,
                          (long long)token);
    if (__builtin_mul_overflow(roped_tensor_tokens(tensor), tensor->stride,
                               &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)roped_dtype_bytes(tensor->dtype),
                               &bytes))
        return roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': stride %lld takes its %lld tokens beyond "
            "2^63 - 1 bytes",
            port->name, (long long)tensor->stride,
            (long long)roped_tensor_tokens(tensor));
    return ROPED_OK;
}

static bool has_dims_of(const struct roped_tensor *tensor,
                        const struct roped_tensor *other)
{
    return tensor->rank == other->rank &&
           memcmp(tensor->dims, other->dims,
                  (size_t)tensor->rank * sizeof *tensor->dims) == 0;
}

enum roped_status dims_bind(struct roped_call *call, int input,
                            struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    const struct roped_port *port = &call->op->in[input];
    const struct roped_tensor *tensor = &call->in[input];
    int like = shape_leader(call, port);
    if (like >= 0 && like != input && has_dims_of(tensor, &call->in[like])) {
        call->in[input].stride_dims = call->in[like].stride_dims;
        return dims_check_stride(port, tensor, err);
    }
    enum roped_status status =
        roped_call_pattern(call, port, tensor->rank, &pattern, err);
    if (status)
        return status;
    if (!shape_fits(&pattern, tensor->rank))
        return wrong_rank(call, input, &pattern, err);
    const struct setter setter = {"tensor", port->name,
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
    call->in[input].stride_dims =
        count_stride_dims(call->op, port, &pattern, tensor->rank);
    return status ? status : dims_check_stride(port, tensor, err);
}

/* ----------------------------------------------------------------- outputs */

static enum roped_status too_many_ranks(const struct roped_port *port,
                                        struct roped_error *err)
{
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor '%s': over %d dims, expected at most %d",
                      port->name, ROPED_MAX_RANK, ROPED_MAX_RANK);
}

static bool append_dim(struct roped_tensor *tensor, int64_t size)
{
    if (tensor->rank == ROPED_MAX_RANK)
        return false;
    tensor->dims[tensor->rank++] = size;
    return true;
}

/* Appends the dims of a pack. */
static enum roped_status infer_pack(const struct roped_call *call,
                                    const struct roped_port *port,
                                    const struct roped_dim_pattern *pattern,
                                    struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    int bound = find_dim(call, pattern->name);
    if (bound < 0)
        return unbound_dim(call, port->name, pattern->name, err);
    for (int i = 0; i < call->dim[bound].rank; i++)
        if (!append_dim(tensor, call->dim[bound].dims[i]))
            return too_many_ranks(port, err);
    return ROPED_OK;
}

/* Appends a dim, if there is one. */
static enum roped_status infer_dim(const struct roped_call *call,
                                   const struct roped_port *port,
                                   const struct roped_dim_pattern *dim,
                                   struct roped_tensor *tensor,
                                   struct roped_error *err)
{
    if (dim->is_pack)
        return infer_pack(call, port, dim, tensor, err);
    int bound = dim->n_steps == 0 ? bound_dim(call, dim->name) : -1;
    if (bound >= 0)
        return append_dim(tensor, call->dim[bound].size)
                   ? ROPED_OK
                   : too_many_ranks(port, err);
    struct roped_dim_size found = roped_dim_evaluate(dim, size_of, call);
    if (found.state == ROPED_DIM_NONE)
        return ROPED_OK;
    if (found.state != ROPED_DIM_SIZED)
        return no_size(call, port->name, dim, &found, err);
    return append_dim(tensor, found.size) ? ROPED_OK
                                          : too_many_ranks(port, err);
}

enum roped_status dims_infer(struct roped_call *call, int output,
                             struct roped_error *err)
{
    const struct roped_port *port = &call->op->out[output];
    struct roped_tensor *tensor = &call->out[output];
    struct roped_shape_pattern pattern;
    int64_t n_elements, n_bytes;
    int like = shape_leader(call, port);
    if (like >= 0) { /* whose alternative it has, and so its dims */
        tensor->rank = call->in[like].rank;
        memcpy(tensor->dims, call->in[like].dims, sizeof tensor->dims);
        tensor->stride_dims = call->in[like].stride_dims;
        return ROPED_OK;
    }
    enum roped_status status =
        roped_call_pattern(call, port, -1, &pattern, err);
    for (int i = 0; i < pattern.count && !status; i++)
        status = infer_dim(call, port, &pattern.dim[i], tensor, err);
    if (status)
        return status;
    tensor->stride_dims =
        count_stride_dims(call->op, port, &pattern, tensor->rank);
    return roped_tensor_size(tensor, port->name, &n_elements, &n_bytes, err);
}
