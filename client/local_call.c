/*
 * local_call.c - the CPU backend without a daemon: one queue, one call. All
 * memory is of this file, aligned as the backend wants it.
 */
#include "local_call.h"

#include <roped/backend.h>

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Aligned memory that ends with the call; with a copy of from, if that is
 * there. */
static enum roped_status add_block(struct local_call *local, size_t bytes,
                                   const void *from, void **out,
                                   struct roped_error *err)
{
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded);
    if (!memory)
        return roped_fail(err, ROPED_NO_MEMORY,
                          "no memory for %zu bytes of the call on the CPU",
                          bytes);
    local->block[local->n_blocks++] = memory;
    if (from && bytes)
        memcpy(memory, from, bytes);
    else
        memset(memory, 0, rounded);
    *out = memory;
    return ROPED_OK;
}

static enum roped_status copy_inputs(struct local_call *local,
                                     struct roped_error *err)
{
    struct roped_call *call = &local->call;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in && !status; i++) {
        struct roped_tensor *tensor = &call->in[i];
        if (roped_tensor_given(tensor))
            status = add_block(local, (size_t)roped_tensor_bytes(tensor),
                               tensor->data, &tensor->data, err);
    }
    return status;
}

/* An updated input is its output's memory. */
static enum roped_status place_outputs(struct local_call *local,
                                       struct roped_error *err)
{
    struct roped_call *call = &local->call;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in; i++) {
        int output = roped_op_updates(call->op, i);
        if (output >= 0 && roped_tensor_given(&call->in[i]))
            call->out[output].data = call->in[i].data;
    }
    for (int i = 0; i < call->n_out && !status; i++) {
        struct roped_tensor *tensor = &call->out[i];
        if (roped_tensor_given(tensor) && !tensor->data)
            status = add_block(local, (size_t)roped_tensor_bytes(tensor), NULL,
                               &tensor->data, err);
    }
    return status;
}

static enum roped_status plan(struct local_call *local, struct roped_error *err)
{
    struct roped_call *call = &local->call;
    enum roped_status status = roped_call_resolve(call, err);
    size_t aux_bytes = status ? 0 : roped_call_aux_bytes(call);
    if (aux_bytes)
        status = add_block(local, aux_bytes, NULL, &call->aux, err);
    return status ? status : roped_call_plan(call, err);
}

/* angles=table asks for one; else angles are computed, which is the same. */
static enum roped_status build_table(struct local_call *local,
                                     struct roped_queue *queue,
                                     struct roped_error *err)
{
    struct roped_table_use *use = &local->call.table;
    size_t bytes =
        (size_t)(use->rows * 2 * use->angles.n_pairs) * sizeof(float);
    void *table = NULL;
    if (!use->required)
        return ROPED_OK;
    enum roped_status status = add_block(local, bytes, NULL, &table, err);
    if (!status)
        status = roped_backend_cpu.build_table(queue, &use->angles, 0,
                                               use->rows, table, err);
    use->data = table;
    return status;
}

static enum roped_status launch(struct local_call *local,
                                struct roped_error *err)
{
    const struct roped_backend_api *api = &roped_backend_cpu;
    const struct roped_backend_options options = {.device = 0};
    struct roped_backend *backend;
    struct roped_queue *queue;
    enum roped_status status = api->open(&options, &backend, err);
    if (status)
        return status;
    status = api->queue_open(backend, &queue, err);
    if (!status) {
        status = build_table(local, queue, err);
        if (!status)
            status = api->launch(queue, &local->call, err);
        if (!status)
            status = api->wait(queue, err);
        api->queue_close(queue);
    }
    api->close(backend);
    return status;
}

enum roped_status local_call_run(struct local_call *local,
                                 const struct roped_call *call,
                                 struct roped_error *err)
{
    local->call = *call;
    local->n_blocks = 0;
    enum roped_status status = copy_inputs(local, err);
    if (!status)
        status = plan(local, err);
    if (!status)
        status = place_outputs(local, err);
    return status ? status : launch(local, err);
}

void local_call_free(struct local_call *local)
{
    while (local->n_blocks > 0)
        free(local->block[--local->n_blocks]);
}
