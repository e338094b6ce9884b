/*
 * slice.c - calls that are parts of another one: some of its rows.
 */
#include "core/name.h"

#include <roped/op.h>

#include <string.h>

static bool is_angle_input(const struct roped_call *call, const char *name)
{
    int input = roped_op_input(call->op, name);
    return input >= 0 && roped_tensor_given(&call->in[input]);
}

/* Does a position depend on rows before it? One that is the index of its token
 * is moved along by 'offset'. */
static bool has_ragged_positions(const struct roped_call *call)
{
    return call->op->angles_offset != ROPED_NO_ANGLES &&
           is_angle_input(call, "indptr");
}

static bool has_implicit_positions(const struct roped_call *call)
{
    return call->op->angles_offset != ROPED_NO_ANGLES &&
           !is_angle_input(call, "positions") && !is_angle_input(call, "cos");
}

static bool depends_on(const struct roped_dim_pattern *dim, const char *symbol)
{
    bool is_it = name_is(dim->name, symbol);
    for (int i = 0; i < dim->n_steps; i++)
        is_it |= name_is(dim->step[i].name, symbol);
    return is_it;
}

/* How many dims at the front of a tensor are its rows: 1, or those of a pack;
 * 0: it has none, and every slice has all of it; -1: they are further behind.
 */
static int row_dims(const struct roped_call *call,
                    const struct roped_port *port,
                    const struct roped_tensor *tensor)
{
    struct roped_shape_pattern pattern;
    if (roped_call_pattern(call, port, tensor->rank, &pattern, NULL))
        return -1;
    for (int i = 0, at = 0; i < pattern.count; i++) {
        int n = pattern.dim[i].is_pack ? tensor->rank - (pattern.count - 1) : 1;
        if (depends_on(&pattern.dim[i], call->op->rows))
            return at == 0 && pattern.dim[i].n_steps == 0 ? n : -1;
        at += n;
    }
    return 0;
}

int64_t roped_call_rows(const struct roped_call *call)
{
    const struct roped_op *op = call->op;
    int64_t rows = op->rows ? roped_call_dim(call, op->rows) : 0;
    if (rows <= 0 || has_ragged_positions(call))
        return 0;
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]) &&
            row_dims(call, &op->in[i], &call->in[i]) < 0)
            return 0;
    for (int i = 0; i < call->n_out; i++)
        if (roped_tensor_given(&call->out[i]) &&
            row_dims(call, &op->out[i], &call->out[i]) <= 0)
            return 0;
    return rows;
}

static void *data_at(const struct roped_tensor *tensor, int64_t row,
                     int64_t rows)
{
    int64_t row_bytes =
        tensor->stride
            ? tensor->stride * (int64_t)roped_dtype_bytes(tensor->dtype)
            : roped_tensor_bytes(tensor) / rows;
    if (!tensor->data) /* which an empty one may lack */
        return NULL;
    return (unsigned char *)tensor->data + row_bytes * row;
}

/* The rows of an input. */
static struct roped_tensor cut(const struct roped_tensor *tensor, int n_dims,
                               int64_t begin, int64_t end, int64_t rows)
{
    struct roped_tensor out = *tensor;
    out.rank = tensor->rank - n_dims + 1;
    out.dims[0] = end - begin;
    memcpy(out.dims + 1, tensor->dims + n_dims,
           (size_t)(tensor->rank - n_dims) * sizeof *out.dims);
    out.data = data_at(tensor, begin, rows);
    return out;
}

static void move_offset(struct roped_call *call, int64_t begin)
{
    int param = roped_op_param(call->op, "offset");
    int64_t offset;
    unsigned char *at = call->params + call->op->param[param].offset;
    memcpy(&offset, at, sizeof offset);
    offset += begin;
    memcpy(at, &offset, sizeof offset);
}

enum roped_status roped_call_slice(const struct roped_call *call, int64_t begin,
                                   int64_t end, struct roped_call *out,
                                   struct roped_error *err)
{
    int64_t rows = roped_call_rows(call);
    roped_call_init(out, call->op);
    memcpy(out->params, call->params, sizeof out->params);
    out->given = call->given;
    out->angle_set = call->angle_set;
    out->host_values = call->host_values;
    out->largest_position = call->table.rows - 1;
    if (has_implicit_positions(call))
        move_offset(out, begin);
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *in = &call->in[i];
        int n =
            roped_tensor_given(in) ? row_dims(call, &call->op->in[i], in) : 0;
        out->in[i] = n > 0 ? cut(in, n, begin, end, rows) : *in;
    }
    enum roped_status status = roped_call_resolve(out, err);
    for (int i = 0; i < out->n_out && !status; i++)
        if (roped_tensor_given(&out->out[i])) {
            out->out[i].data = data_at(&call->out[i], begin, rows);
            out->out[i].stride = call->out[i].stride;
        }
    return status;
}
