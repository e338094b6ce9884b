/*
 * random_program.c - random calls become the steps of a program.
 */
#include "calls/random_program.h"

#include <roped/library.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct roped_error err;

static void must(enum roped_status status)
{
    if (!status)
        return;
    fprintf(stderr, "failed: %s\n", err.text);
    abort();
}

/* ------------------------------------------------------------------ memory */

/* Of a GPU, whose calls reach no other memory of the host; or NULL. */
static const struct roped_backend_api *gpu;
static struct roped_backend *backend;

struct roped_session *random_program_open(const char *name)
{
    const struct roped_backend_options options = {0};
    const struct roped_backend_api *api = roped_kernels_backend(name);
    struct roped_session *session;
    if (!api || api->device_count(&err) == 0)
        return NULL;
    must(roped_session_open(name, 0, NULL, &session, &err));
    gpu = api->is_host ? NULL : api;
    if (gpu)
        must(gpu->open(&options, &backend, &err));
    return session;
}

void random_program_close(struct roped_session *session)
{
    roped_session_close(session);
    if (gpu)
        gpu->close(backend);
}

/* What a separate call reads and writes; as large as it is, for the
 * sanitizers. */
static void *take(size_t bytes)
{
    void *memory;
    bytes += bytes == 0;
    if (!gpu)
        return malloc(bytes);
    must(gpu->host_alloc(backend, bytes, &memory, &err));
    return memory;
}

static void give(void *memory)
{
    if (!gpu)
        free(memory);
    else if (memory)
        gpu->host_free(backend, memory);
}

static void *copy(const void *from, size_t bytes)
{
    void *to = take(bytes);
    if (bytes && from)
        memcpy(to, from, bytes);
    return to;
}

/* ------------------------------------------------------------------ values */

static int new_value(struct random_program *made, enum random_value_kind kind,
                     const struct roped_tensor *tensor)
{
    int at = made->n_values++;
    struct random_value *value = &made->value[at];
    *value = (struct random_value){.kind = kind, .tensor = *tensor};
    value->tensor.data = NULL;
    value->tensor.stride = 0;
    value->bytes = (size_t)roped_tensor_bytes(tensor);
    snprintf(value->name, sizeof value->name, "%s%d",
             kind == VALUE_PLACE ? "@p" : "v", at);
    made->n_inputs += kind == VALUE_INPUT;
    return at;
}

static bool is_alike(const struct roped_tensor *a, const struct roped_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

static bool is_in_step(const struct random_step *step, int value)
{
    for (int i = 0; i < step->n_in; i++)
        if (step->in[i].value == value)
            return true;
    return false;
}

/* One that was made or is in a place and fits, or -1. */
static int find_value(const struct random_program *made,
                      const struct random_step *step,
                      const struct roped_tensor *tensor, bool is_updated,
                      struct random_source *source)
{
    int start =
        made->n_values ? (int)random_int(source, 0, made->n_values - 1) : 0;
    for (int i = 0; i < made->n_values; i++) {
        int at = (start + i) % made->n_values;
        const struct random_value *value = &made->value[at];
        bool is_free = !is_in_step(step, at);
        if (!value->is_used_up && !value->is_index &&
            is_alike(&value->tensor, tensor) && is_free &&
            (!is_updated || value->kind != VALUE_INPUT || is_free))
            return at;
    }
    return -1;
}

/* ------------------------------------------------------------------- steps */

/* What the step's input is. */
static int choose_input(struct random_program *made, struct random_step *step,
                        int port, struct random_source *source)
{
    const struct roped_tensor *tensor = &step->call.in[port];
    unsigned flags = step->call.op->in[port].flags;
    bool is_index = flags & ROPED_INDEX;
    int at =
        is_index || random_once_in(source, 4)
            ? -1
            : find_value(made, step, tensor, flags & ROPED_UPDATED, source);
    if (at >= 0)
        return at;
    bool is_place = made->n_inputs >= made->most || random_once_in(source, 3);
    at = new_value(made, is_place ? VALUE_PLACE : VALUE_INPUT, tensor);
    made->value[at].before = copy(tensor->data, made->value[at].bytes);
    made->value[at].after = copy(tensor->data, made->value[at].bytes);
    made->value[at].is_index = is_index;
    return at;
}

/* Where an output goes: a name, a place, or nowhere (-1). */
static int choose_output(struct random_program *made,
                         const struct roped_tensor *tensor,
                         struct random_source *source)
{
    if (random_once_in(source, 6))
        return -1;
    bool is_place = random_once_in(source, 4);
    int at = new_value(made, is_place ? VALUE_PLACE : VALUE_MADE, tensor);
    struct random_value *value = &made->value[at];
    value->after = take(value->bytes);
    if (is_place) {
        value->before = take(value->bytes);
        memset(value->before, 0xA5, value->bytes);
    }
    return at;
}

static struct roped_work *work_of(struct random_program *made,
                                  const struct random_step *step,
                                  struct roped_session *session)
{
    const struct roped_op *op = step->call.op;
    struct roped_work *work;
    must(roped_work_new(session, op->name, &work, &err));
    for (int i = 0; i < roped_op_params(op); i++)
        if (step->call.has_param[i])
            must(roped_work_param(work, op->param[i].name, step->call.param[i],
                                  &err));
    for (int i = 0; i < step->n_in; i++) {
        const struct random_value *value = &made->value[step->in[i].value];
        must(roped_work_input(work, op->in[step->in[i].port].name,
                              roped_dtype_name(value->tensor.dtype),
                              value->tensor.rank, value->tensor.dims,
                              value->after, &err));
    }
    must(roped_work_prepare(work, &err));
    return work;
}

/* The updated value goes on under another name, or in its place. */
static void update(struct random_program *made, struct random_step *step,
                   int output, int value)
{
    struct random_value *from = &made->value[value];
    if (from->kind == VALUE_PLACE)
        return;
    from->is_used_up = true;
    int at = new_value(made, VALUE_MADE, &from->tensor);
    made->value[at].after =
        copy(made->value[value].after, made->value[value].bytes);
    step->out[step->n_out].port = output;
    step->out[step->n_out++].value = at;
}

/* Runs the step as a call, on what its inputs are by now. */
static void run_step(struct random_program *made, struct random_step *step,
                     struct roped_session *session,
                     struct random_source *source)
{
    const struct roped_op *op = step->call.op;
    void *unnamed[ROPED_MAX_OUTPUTS] = {NULL};
    struct roped_work *work = work_of(made, step, session);
    for (int i = 0; i < step->call.call.n_out; i++) {
        const struct roped_tensor *tensor = &step->call.call.out[i];
        if (!roped_tensor_given(tensor) || random_call_updates(op, i))
            continue;
        int at = choose_output(made, tensor, source);
        unnamed[i] = at < 0 ? take((size_t)roped_tensor_bytes(tensor)) : NULL;
        must(roped_work_output(work, op->out[i].name,
                               at < 0 ? unnamed[i] : made->value[at].after,
                               &err));
        if (at < 0)
            continue;
        step->out[step->n_out].port = i;
        step->out[step->n_out++].value = at;
    }
    must(roped_work_launch(work, &err));
    must(roped_session_wait(session, &err));
    roped_work_free(work);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        give(unnamed[i]);
    int n_in = step->n_in;
    for (int i = 0; i < n_in; i++) {
        int output = op->in[step->in[i].port].flags & ROPED_UPDATED
                         ? roped_op_updates(op, step->in[i].port)
                         : -1;
        if (output >= 0)
            update(made, step, output, step->in[i].value);
    }
}

/* The call of the step before again: its shapes, and other values. */
static void call_again(struct random_call *call, const struct random_call *old)
{
    *call = *old;
    for (int i = 0; i < ROPED_MAX_INPUTS; i++) {
        size_t bytes = (size_t)roped_tensor_bytes(&old->in[i]);
        if (!roped_tensor_given(&call->in[i]))
            continue;
        call->in[i].data = malloc(bytes ? bytes : 1);
        if (bytes)
            memcpy(call->in[i].data, old->in[i].data, bytes);
    }
}

/* A daemon takes angles from a table or computes them, as it has one. */
static void fix_angles(struct random_call *call)
{
    int param = roped_op_param(call->op, "angles");
    if (param < 0 || call->has_param[param])
        return;
    call->has_param[param] = true;
    snprintf(call->param[param], sizeof call->param[param], "compute");
    random_call_judge(call);
    if (!call->status)
        return;
    call->has_param[param] = false; /* it is given cos and sin */
    random_call_judge(call);
}

/* A program's steps share positions, so each may want the longest table: with
 * positions that are far, minutes of nothing but cosines. */
static bool is_near(const struct random_call *call)
{
    return call->call.table.rows <= 8192;
}

static void make_call(struct random_program *made, struct random_call *call,
                      struct random_source *source)
{
    if (made->n_steps > 0 && !random_once_in(source, 3)) {
        call_again(call,
                   &made->step[random_int(source, 0, made->n_steps - 1)].call);
        return;
    }
    for (;;) {
        random_call_make(
            call, roped_op_at((int)random_int(source, 0, roped_op_count() - 1)),
            source);
        if (!call->status)
            fix_angles(call);
        if (!call->status && is_near(call))
            return;
        random_call_free(call);
    }
}

void random_program_make(struct random_program *made,
                         struct roped_session *session, int most,
                         struct random_source *source)
{
    memset(made, 0, sizeof *made);
    made->most = most;
    int n_steps = (int)random_int(source, 1, RANDOM_STEPS);
    while (made->n_steps < n_steps &&
           made->n_values + ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS <
               RANDOM_VALUES) {
        struct random_step *step = &made->step[made->n_steps];
        make_call(made, &step->call, source);
        for (int i = 0; i < roped_op_inputs(step->call.op); i++) {
            if (!roped_tensor_given(&step->call.in[i]))
                continue;
            int at = choose_input(made, step, i, source);
            step->in[step->n_in].port = i;
            step->in[step->n_in++].value = at;
        }
        run_step(made, step, session, source);
        made->n_steps++;
    }
    for (int i = 0; i < made->n_values; i++) {
        struct random_value *value = &made->value[i];
        value->is_output = value->kind == VALUE_MADE && !value->is_used_up &&
                           made->n_outputs < made->most &&
                           !random_once_in(source, 3);
        made->n_outputs += value->is_output;
    }
}

void random_program_free(struct random_program *made)
{
    for (int i = 0; i < made->n_values; i++) {
        give(made->value[i].before);
        give(made->value[i].after);
    }
    for (int i = 0; i < made->n_steps; i++)
        random_call_free(&made->step[i].call);
}
