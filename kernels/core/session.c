/*
 * session.c - calls through functions of plain arguments. A work is a call
 * with the memory that a launch needs beside its tensors.
 */
#include <roped/session.h>

#include "core/call_internal.h"
#include "core/session_internal.h"

#include <roped/library.h>

#include <stdlib.h>
#include <string.h>

struct roped_work {
    struct roped_session *session;
    struct roped_call call;
    bool is_prepared;
    bool is_trusting; /* roped_work_trust */
    bool is_passing;  /* launch_on: a table would serve one launch */
    int64_t out_stride[ROPED_MAX_OUTPUTS]; /* apart from their inputs */

    /* of the operator: the input whose place an output may have, or -1, and
     * whether it is that input after the call */
    int shared[ROPED_MAX_OUTPUTS];
    bool is_updated[ROPED_MAX_OUTPUTS];

    /* by prepare */
    void *host_aux;   /* call.aux of the plan */
    void *device_aux; /* its copy, for launches */
    void *table;      /* cos and sin of every position, device memory */
    int64_t in_span[ROPED_MAX_INPUTS]; /* bytes; 0: not given, or empty */
    int64_t out_span[ROPED_MAX_OUTPUTS];
};

/* --------------------------------------------------------------- session */

static enum roped_status open_queue(struct roped_session *session, void *stream,
                                    struct roped_error *err)
{
    const struct roped_backend_api *api = session->api;
    if (api->queue_wrap)
        return api->queue_wrap(session->backend, stream, &session->queue, err);
    if (stream)
        return roped_fail(err, ROPED_INVALID,
                          "stream: given, expected none on backend '%s'",
                          api->name);
    return api->queue_open(session->backend, &session->queue, err);
}

/* What programs with OpenMP go by, and what Ray, torchrun and batch systems set
 * where a host has several processes. 0: every core. */
static int wanted_threads(void)
{
    enum { MOST = 1024 };
    const char *text = getenv("OMP_NUM_THREADS"); /* "4", or "4,2" */
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= MOST ? (int)n : 0;
}

enum roped_status roped_session_open(const char *backend, int device,
                                     void *stream, struct roped_session **out,
                                     struct roped_error *err)
{
    const struct roped_backend_options options = {
        .device = device, .n_threads = wanted_threads()};
    const struct roped_backend_api *api = roped_kernels_backend(backend);
    if (!api)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          "backend '%.32s' is not in this build of the library",
                          backend);
    struct roped_session *session = calloc(1, sizeof *session);
    if (!session)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a session");
    session->api = api;
    enum roped_status status = api->open(&options, &session->backend, err);
    if (!status)
        status = open_queue(session, stream, err);
    if (status) {
        roped_session_close(session);
        return status;
    }
    *out = session;
    return ROPED_OK;
}

void roped_session_close(struct roped_session *session)
{
    if (!session)
        return;
    if (session->queue)
        session->api->queue_close(session->queue);
    if (session->backend)
        session->api->close(session->backend);
    free(session);
}

enum roped_status roped_session_wait(struct roped_session *session,
                                     struct roped_error *err)
{
    return session->api->wait(session->queue, err);
}

/* ------------------------------------------------- what the caller states */

enum roped_status roped_work_new(struct roped_session *session, const char *op,
                                 struct roped_work **out,
                                 struct roped_error *err)
{
    const struct roped_op *found = roped_op_find(op);
    if (!found)
        return roped_fail(err, ROPED_NO_OPERATOR, "no operator '%.64s'", op);
    struct roped_work *work = calloc(1, sizeof *work);
    if (!work)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a call of %s",
                          found->name);
    work->session = session;
    roped_call_init(&work->call, found);
    for (int i = 0; i < work->call.n_out; i++)
        work->shared[i] = roped_op_shared(found, i);
    for (int i = 0; i < work->call.n_in; i++)
        if (roped_op_updates(found, i) >= 0)
            work->is_updated[roped_op_updates(found, i)] = true;
    *out = work;
    return ROPED_OK;
}

enum roped_status roped_work_param(struct roped_work *work, const char *name,
                                   const char *text, struct roped_error *err)
{
    work->is_prepared = false;
    return roped_call_set_text(&work->call, name, text, err);
}

enum roped_status roped_work_input(struct roped_work *work, const char *name,
                                   const char *dtype, int rank,
                                   const int64_t *dims, void *data,
                                   struct roped_error *err)
{
    struct roped_tensor tensor = {
        .dtype = roped_dtype_from_name(dtype, strlen(dtype)),
        .rank = rank,
        .data = data,
    };
    if (tensor.dtype == ROPED_NO_DTYPE)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor '%.64s': unknown type '%.16s', expected a "
                          "name such as F32, BF16 or I64",
                          name, dtype);
    for (int i = 0; i < rank && i < ROPED_MAX_RANK; i++)
        tensor.dims[i] = dims[i];
    work->is_prepared = false;
    return roped_call_bind(&work->call, name, &tensor, err);
}

/* A bound input of this name, or NULL. */
static struct roped_tensor *
bound_input(struct roped_work *work, const char *name, struct roped_error *err)
{
    struct roped_call *call = &work->call;
    int index = roped_op_input(call->op, name);
    if (index >= 0 && roped_tensor_given(&call->in[index]))
        return &call->in[index];
    (void)roped_fail(err, ROPED_UNKNOWN_NAME,
                     "tensor '%.64s': not an input of this call of %s", name,
                     call->op->name);
    return NULL;
}

enum roped_status roped_work_input_stride(struct roped_work *work,
                                          const char *name, int64_t stride,
                                          struct roped_error *err)
{
    struct roped_tensor *tensor = bound_input(work, name, err);
    if (!tensor)
        return ROPED_INVALID;
    tensor->stride = stride;
    work->is_prepared = false;
    return ROPED_OK;
}

enum roped_status roped_work_move_input(struct roped_work *work,
                                        const char *name, void *data,
                                        struct roped_error *err)
{
    struct roped_call *call = &work->call;
    struct roped_tensor *tensor = bound_input(work, name, err);
    if (!tensor)
        return ROPED_INVALID;
    int index = (int)(tensor - call->in);
    if (!data && roped_tensor_bytes(tensor) > 0)
        return roped_fail(err, ROPED_INVALID, "tensor '%.64s': no data", name);
    int updated = roped_op_updates(call->op, index);
    tensor->data = data;
    if (updated >= 0)
        call->out[updated].data = data;
    if (call->op->in[index].flags & ROPED_INDEX)
        work->is_prepared = false;
    return ROPED_OK;
}

/* --------------------------------------------------------------- prepare */

static void free_prepared(struct roped_work *work)
{
    const struct roped_session *session = work->session;
    session->api->host_free(session->backend, work->host_aux);
    session->api->device_free(session->backend, work->device_aux);
    session->api->device_free(session->backend, work->table);
    work->host_aux = work->device_aux = work->table = NULL;
    work->is_prepared = false;
}

void roped_work_free(struct roped_work *work)
{
    if (!work)
        return;
    free_prepared(work);
    free(work);
}

static enum roped_status check_inputs(const struct roped_call *call,
                                      struct roped_error *err)
{
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *tensor = &call->in[i];
        if (roped_tensor_given(tensor) && !tensor->data &&
            roped_tensor_bytes(tensor) > 0)
            return roped_fail(err, ROPED_INVALID, "tensor '%s': no data",
                              call->op->in[i].name);
    }
    return ROPED_OK;
}

/* Host copies of index tensors, into values; the caller frees them. */
static enum roped_status read_indexes(const struct roped_work *work,
                                      void **values, struct roped_error *err)
{
    const struct roped_session *session = work->session;
    const struct roped_call *call = &work->call;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in && !status; i++) {
        if (!(call->op->in[i].flags & ROPED_INDEX) ||
            !roped_tensor_given(&call->in[i]))
            continue;
        size_t bytes = (size_t)roped_tensor_bytes(&call->in[i]);
        values[i] = malloc(bytes ? bytes : 1);
        if (!values[i])
            return roped_fail(err, ROPED_NO_MEMORY,
                              "no memory for the values of '%s'",
                              call->op->in[i].name);
        status = session->api->download(session->queue, values[i],
                                        call->in[i].data, bytes, err);
    }
    return status ? status : session->api->wait(session->queue, err);
}

/* Plans on the host copies, then puts the caller's memory back in. */
static enum roped_status plan_on(struct roped_call *call, void *const *values,
                                 struct roped_error *err)
{
    void *own[ROPED_MAX_INPUTS];
    for (int i = 0; i < call->n_in; i++) {
        own[i] = call->in[i].data;
        if (values[i])
            call->in[i].data = values[i];
    }
    enum roped_status status = roped_call_plan(call, err);
    for (int i = 0; i < call->n_in; i++)
        call->in[i].data = own[i];
    return status;
}

static enum roped_status plan(struct roped_work *work, struct roped_error *err)
{
    void *values[ROPED_MAX_INPUTS] = {NULL};
    enum roped_status status = ROPED_OK;
    if (!work->session->api->is_host && work->call.host_values)
        status = read_indexes(work, values, err);
    if (!status)
        status = plan_on(&work->call, values, err);
    for (int i = 0; i < work->call.n_in; i++)
        free(values[i]);
    return status;
}

static enum roped_status place_aux(struct roped_work *work, size_t bytes,
                                   struct roped_error *err)
{
    const struct roped_session *session = work->session;
    enum roped_status status = session->api->device_alloc(
        session->backend, bytes, &work->device_aux, err);
    if (!status)
        status = session->api->upload(session->queue, work->device_aux,
                                      work->host_aux, bytes, err);
    work->call.aux = work->device_aux;
    return status;
}

static enum roped_status build_table(struct roped_work *work,
                                     struct roped_error *err)
{
    const struct roped_session *session = work->session;
    struct roped_table_use *use = &work->call.table;
    size_t bytes =
        (size_t)(use->rows * 2 * use->angles.n_pairs) * sizeof(float);
    if (!use->wanted || (work->is_passing && !use->required))
        return ROPED_OK;
    enum roped_status status =
        session->api->device_alloc(session->backend, bytes, &work->table, err);
    if (!status)
        status = session->api->build_table(session->queue, &use->angles, 0,
                                           use->rows, work->table, err);
    use->data = work->table;
    return status;
}

static bool has_indexes(const struct roped_call *call)
{
    for (int i = 0; i < call->n_in; i++)
        if (call->op->in[i].flags & ROPED_INDEX &&
            roped_tensor_given(&call->in[i]))
            return true;
    return false;
}

static enum roped_status prepare(struct roped_work *work,
                                 struct roped_error *err)
{
    const struct roped_session *session = work->session;
    struct roped_call *call = &work->call;
    call->host_values = !work->is_trusting || call_needs_values(call);
    enum roped_status status = roped_call_resolve(call, err);
    if (!status)
        status = check_inputs(call, err);
    if (status)
        return status;
    size_t aux_bytes = roped_call_aux_bytes(call);
    if (aux_bytes)
        status = session->api->host_alloc(session->backend, aux_bytes,
                                          &work->host_aux, err);
    call->aux = work->host_aux;
    if (!status)
        status = plan(work, err);
    if (!status)
        status = build_table(work, err);
    if (!status && aux_bytes)
        status = place_aux(work, aux_bytes, err);
    return status ? status : session->api->wait(session->queue, err);
}

/* Updated inputs are written where they are. */
static void place_updated(struct roped_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        int output = roped_op_updates(call->op, i);
        if (output >= 0 && roped_tensor_given(&call->in[i]))
            call->out[output].data = call->in[i].data;
    }
}

static void measure(struct roped_work *work)
{
    const struct roped_call *call = &work->call;
    for (int i = 0; i < call->n_in; i++)
        work->in_span[i] = roped_tensor_given(&call->in[i])
                               ? roped_tensor_span(&call->in[i])
                               : 0;
    for (int i = 0; i < call->n_out; i++)
        work->out_span[i] = roped_tensor_given(&call->out[i])
                                ? roped_tensor_span(&call->out[i])
                                : 0;
}

enum roped_status roped_work_prepare(struct roped_work *work,
                                     struct roped_error *err)
{
    free_prepared(work);
    enum roped_status status = prepare(work, err);
    if (status) {
        free_prepared(work);
        return status;
    }
    place_updated(&work->call);
    measure(work);
    work->is_prepared = true;
    return ROPED_OK;
}

/* --------------------------------------------------------------- outputs */

int roped_work_output_shape(const struct roped_work *work, const char *name,
                            const char **dtype, int64_t *dims)
{
    int index = roped_op_output(work->call.op, name);
    if (!work->is_prepared || index < 0 ||
        !roped_tensor_given(&work->call.out[index]))
        return -1;
    const struct roped_tensor *tensor = &work->call.out[index];
    if (dtype)
        *dtype = roped_dtype_name(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++)
        dims[i] = tensor->dims[i];
    return tensor->rank;
}

static enum roped_status check_prepared(const struct roped_work *work,
                                        struct roped_error *err)
{
    if (work->is_prepared)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID, "%s: not prepared",
                      work->call.op->name);
}

/* In the place of its input it has that one's stride, elsewhere its own. */
static enum roped_status place_output(struct roped_work *work, int index,
                                      void *data, struct roped_error *err)
{
    struct roped_call *call = &work->call;
    int input = work->shared[index];
    bool is_shared = input >= 0 && call->in[input].data == data;
    int64_t before = call->out[index].stride;
    call->out[index].data = data;
    enum roped_status status = roped_call_set_stride(
        call, index,
        is_shared ? call->in[input].stride : work->out_stride[index], err);
    if (!status && call->out[index].stride != before)
        work->out_span[index] = roped_tensor_span(&call->out[index]);
    return status;
}

static enum roped_status not_made(const struct roped_call *call,
                                  const char *name, struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "output '%.64s': this call of %s does not make it", name,
                      call->op->name);
}

enum roped_status roped_work_output_stride(struct roped_work *work,
                                           const char *name, int64_t stride,
                                           struct roped_error *err)
{
    struct roped_call *call = &work->call;
    int index = roped_op_output(call->op, name);
    if (index < 0)
        return not_made(call, name, err);
    work->out_stride[index] = stride;
    if (!work->is_prepared || !roped_tensor_given(&call->out[index]))
        return ROPED_OK;
    return place_output(work, index, call->out[index].data, err);
}

enum roped_status roped_work_output(struct roped_work *work, const char *name,
                                    void *data, struct roped_error *err)
{
    struct roped_call *call = &work->call;
    enum roped_status status = check_prepared(work, err);
    if (status)
        return status;
    int index = roped_op_output(call->op, name);
    if (index < 0 || !roped_tensor_given(&call->out[index]))
        return not_made(call, name, err);
    return place_output(work, index, data, err);
}

/* --------------------------------------------------------------- overlap */

/* Are the tokens of one tensor in the gaps between those of the other? */
static bool are_interleaved(const struct roped_tensor *a,
                            const struct roped_tensor *b)
{
    uint64_t a_size = roped_dtype_bytes(a->dtype),
             b_size = roped_dtype_bytes(b->dtype),
             stride = (uint64_t)a->stride * a_size;
    if (stride == 0 || stride != (uint64_t)b->stride * b_size)
        return false;
    uint64_t between =
        ((uintptr_t)b->data % stride + stride - (uintptr_t)a->data % stride) %
        stride;
    return between >= (uint64_t)roped_tensor_token(a) * a_size &&
           between + (uint64_t)roped_tensor_token(b) * b_size <= stride;
}

static bool overlap(const struct roped_tensor *a, int64_t a_span,
                    const struct roped_tensor *b, int64_t b_span)
{
    uintptr_t a_start = (uintptr_t)a->data, b_start = (uintptr_t)b->data;
    return a_start < b_start + (uintptr_t)b_span &&
           b_start < a_start + (uintptr_t)a_span && a_span && b_span &&
           !are_interleaved(a, b);
}

static enum roped_status refuse_overlap(const struct roped_call *call,
                                        int output, const char *kind,
                                        const char *other,
                                        struct roped_error *err)
{
    const struct roped_port *port = &call->op->out[output];
    bool may_share = roped_op_shared(call->op, output) >= 0;
    return roped_fail(err, ROPED_INVALID,
                      "output '%s': its memory overlaps that of %s '%s', "
                      "expected a place of its own%s%s%s",
                      port->name, kind, other,
                      may_share ? ", or the very place of '" : "",
                      may_share ? port->in_place : "", may_share ? "'" : "");
}

/* What is written here is nothing else that the call reads or writes, but for
 * the input whose place it may have. Updated inputs are their outputs. */
static enum roped_status check_overlap(const struct roped_work *work,
                                       int output, struct roped_error *err)
{
    const struct roped_call *call = &work->call;
    const struct roped_tensor *place = &call->out[output];
    int shared = work->shared[output];
    for (int i = 0; i < call->n_in; i++)
        if (overlap(place, work->out_span[output], &call->in[i],
                    work->in_span[i]) &&
            !(i == shared && call->in[i].data == place->data))
            return refuse_overlap(call, output, "input", call->op->in[i].name,
                                  err);
    for (int i = 0; i < output; i++)
        if (overlap(place, work->out_span[output], &call->out[i],
                    work->out_span[i]))
            return refuse_overlap(call, output, "output", call->op->out[i].name,
                                  err);
    return ROPED_OK;
}

enum roped_status roped_work_launch(struct roped_work *work,
                                    struct roped_error *err)
{
    const struct roped_call *call = &work->call;
    enum roped_status status = check_prepared(work, err);
    if (status)
        return status;
    for (int i = 0; i < call->n_out; i++) {
        const struct roped_tensor *tensor = &call->out[i];
        if (roped_tensor_given(tensor) && !tensor->data &&
            roped_tensor_bytes(tensor) > 0)
            return roped_fail(err, ROPED_INVALID, "output '%s': no data",
                              call->op->out[i].name);
        if (work->out_span[i] && !work->is_updated[i])
            status = check_overlap(work, i, err);
        if (status)
            return status;
    }
    return work->session->api->launch(work->session->queue, call, err);
}

/* ------------------------------------------------ all of it in one call */

void roped_work_trust(struct roped_work *work)
{
    work->is_trusting = true;
    work->is_prepared = false;
}

static void place_inputs(struct roped_call *call, void *const *data)
{
    for (int i = 0; i < call->n_in; i++)
        call->in[i].data = data[i];
}

enum roped_status roped_work_launch_on(struct roped_work *work,
                                       void *const *data,
                                       struct roped_error *err)
{
    struct roped_call *call = &work->call;
    enum roped_status status = ROPED_OK;
    place_inputs(call, data);
    work->is_passing = true;
    if (!work->is_prepared || (call->host_values && has_indexes(call)))
        status = roped_work_prepare(work, err);
    else
        status = check_inputs(call, err);
    if (status)
        return status;
    for (int i = 0; i < call->n_out && !status; i++)
        if (roped_tensor_given(&call->out[i]))
            status = place_output(work, i, data[call->n_in + i], err);
    place_updated(call);
    return status ? status : roped_work_launch(work, err);
}
