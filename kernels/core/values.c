/*
 * values.c - values of index tensors, held to what their ports say they hold.
 */
#include "core/call_internal.h"

#include <math.h>
#include <stdio.h>

/* ---------------------------------------------------------- what inputs hold
 */

/* Of every registered operator, read once: a plan has no time for it. */
static struct roped_holds registered[ROPED_OP_COUNT][ROPED_MAX_INPUTS];

__attribute__((constructor)) static void read_registered(void)
{
    for (int i = 0; i < ROPED_OP_COUNT; i++)
        for (int j = 0; j < roped_op_inputs(roped_op_at(i)); j++)
            if (roped_op_at(i)->in[j].holds &&
                roped_port_holds(&roped_op_at(i)->in[j], &registered[i][j],
                                 NULL))
                registered[i][j].kind = ROPED_HOLDS_ANYTHING;
}

/* An operator that is not in the table, as those of tests, is read now, into
 * *own. */
static enum roped_status holds_of(const struct roped_port *port,
                                  const struct roped_holds *known,
                                  struct roped_holds *own,
                                  const struct roped_holds **out,
                                  struct roped_error *err)
{
    *out = known ? known : own;
    return known ? ROPED_OK : roped_port_holds(port, own, err);
}

/* ------------------------------------------------------------------ checks */

/* The largest of the first n values, taken as unsigned: one below 0 is above
 * any bound. A loop for each type: calls of thousands of tokens wait for it. */
static uint64_t largest_index(const struct roped_tensor *tensor, int64_t n)
{
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

int64_t roped_call_below(const struct roped_call *call,
                         const struct roped_holds *holds, int *which)
{
    for (*which = 0; *which < holds->n_below; (*which)++) {
        struct roped_dim_size found = dims_size(call, &holds->below[*which]);
        if (found.state == ROPED_DIM_SIZED)
            return found.size;
        if (found.state == ROPED_DIM_TOO_LARGE) /* of nothing, in each place */
            return INT64_MAX;
    }
    *which = -1;
    return 0;
}

/* "slots = 8 (set by 'k_cache')", or "16777216". */
static const char *below_text(const struct roped_call *call,
                              const struct roped_holds *holds, int64_t below,
                              int which, char *text, size_t bytes)
{
    char dim[64];
    const char *name = which < 0 ? "" : holds->below[which].name;
    if (name[0])
        snprintf(text, bytes, "%lld, %s (set by '%s')", (long long)below,
                 roped_dim_text(&holds->below[which], dim, sizeof dim),
                 dims_setter(call, name));
    else
        snprintf(text, bytes, "%lld", (long long)below);
    return text;
}

/* How many values of an input count. */
static int64_t count_of(const struct roped_call *call, int input,
                        const struct roped_holds *holds)
{
    int64_t n = roped_tensor_elements(&call->in[input]);
    if (!holds->up_to[0])
        return n;
    const struct roped_tensor *ends =
        &call->in[roped_op_input(call->op, holds->up_to)];
    int64_t n_ends = roped_tensor_given(ends) ? roped_tensor_elements(ends) : 0;
    int64_t end = n_ends ? call_index_at(ends, n_ends - 1) : n;
    return end < 0 ? 0 : end < n ? end : n;
}

static enum roped_status check_indexes(struct roped_call *call, int input,
                                       const struct roped_holds *holds,
                                       struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[input];
    char text[160];
    int which;
    int64_t n = count_of(call, input, holds), largest = -1;
    int64_t below = roped_call_below(call, holds, &which);
    int64_t least = holds->may_be_none ? -1 : 0;
    uint64_t most = largest_index(tensor, n);
    call->held[input].has_none = n > 0 && most >= (uint64_t)below;
    call->held[input].largest = n > 0 ? (int64_t)most : -1;
    if (!call->held[input].has_none)
        return ROPED_OK;
    for (int64_t i = 0; i < n; i++) { /* some are -1, or wrong */
        int64_t value = call_index_at(tensor, i);
        if (value < least || value >= below)
            return roped_fail(
                err, ROPED_BAD_VALUE,
                "tensor '%s': %s %lld at index %lld, expected 0 <= %s < %s%s",
                call->op->in[input].name, holds->noun, (long long)value,
                (long long)i, holds->noun,
                below_text(call, holds, below, which, text, sizeof text),
                holds->may_be_none ? ", or -1" : "");
        largest = value > largest ? value : largest;
    }
    call->held[input].largest = largest;
    return ROPED_OK;
}

static enum roped_status check_starts(const struct roped_call *call, int input,
                                      const struct roped_holds *holds,
                                      struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[input];
    char dim[64] = "";
    int which;
    int64_t n = roped_tensor_elements(tensor), last = 0;
    int64_t end = roped_call_below(call, holds, &which);
    if (which >= 0)
        roped_dim_text(&holds->below[which], dim, sizeof dim);
    for (int64_t i = 0; i < n; i++) {
        int64_t next = call_index_at(tensor, i);
        bool is_last = i == n - 1 && !holds->is_within;
        if (i == 0 && next != 0)
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor '%s': value %lld at index 0, expected 0",
                              call->op->in[input].name, (long long)next);
        if (next < last || next > end)
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor '%s': value %lld at index %lld, expected "
                              "%lld to %s = %lld",
                              call->op->in[input].name, (long long)next,
                              (long long)i, (long long)last, dim,
                              (long long)end);
        if (is_last && next != end)
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor '%s': value %lld at index %lld, expected "
                              "%s = %lld",
                              call->op->in[input].name, (long long)next,
                              (long long)i, dim, (long long)end);
        last = next;
    }
    return ROPED_OK;
}

static enum roped_status check_numbers(const struct roped_call *call, int input,
                                       struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[input];
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, (const char *)tensor->data + 4 * i, sizeof value);
        if (!(isfinite(value) && value > 0))
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor '%s': value %g at index %lld, expected a "
                              "finite number above 0",
                              call->op->in[input].name, (double)value,
                              (long long)i);
    }
    return ROPED_OK;
}

/* Does nothing lead to the values of this input? */
static bool is_unread(const struct roped_call *call,
                      const struct roped_holds *holds)
{
    const struct roped_tensor *reader =
        holds->reader[0] ? &call->in[roped_op_input(call->op, holds->reader)]
                         : NULL;
    return reader && roped_tensor_given(reader) &&
           roped_tensor_elements(reader) == 0;
}

static enum roped_status check_input(struct roped_call *call, int input,
                                     const struct roped_holds *holds,
                                     struct roped_error *err)
{
    switch (is_unread(call, holds) ? ROPED_HOLDS_ANYTHING : holds->kind) {
    case ROPED_HOLDS_INDEXES:
        return check_indexes(call, input, holds, err);
    case ROPED_HOLDS_STARTS:
        return check_starts(call, input, holds, err);
    case ROPED_HOLDS_NUMBERS:
        return check_numbers(call, input, err);
    case ROPED_HOLDS_ANYTHING:
        break;
    }
    return ROPED_OK;
}

/* An input of which another one says how many values count comes after it. */
enum roped_status values_check(struct roped_call *call, struct roped_error *err)
{
    struct roped_holds own, own_late;
    const struct roped_holds *holds, *late = NULL;
    int op_index = roped_op_index(call->op), late_input = -1;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in && !status; i++) {
        const struct roped_port *port = &call->op->in[i];
        if (!port->holds || !roped_tensor_given(&call->in[i]))
            continue;
        status = holds_of(port, op_index < 0 ? NULL : &registered[op_index][i],
                          &own, &holds, err);
        if (!status && holds->up_to[0]) {
            own_late = *holds;
            late = &own_late;
            late_input = i;
        } else if (!status) {
            status = check_input(call, i, holds, err);
        }
    }
    return status || !late ? status : check_input(call, late_input, late, err);
}
