/*
 * chain_key.c - what the launches of a run depend on, as bytes: two runs with
 * the same ones launch the same kernels with the same arguments.
 *
 * What memory holds is not in there. Everything else that a backend reads of a
 * call is: parameters, plan, and the shape, type, stride and address of each
 * tensor. Addresses of tables come last, since a table moves when it grows.
 */
#include "core/chain_internal.h"

#include <string.h>

struct writer {
    unsigned char *at; /* NULL: bytes are counted alone */
    size_t bytes;
};

static void put(struct writer *writer, const void *data, size_t bytes)
{
    if (writer->at)
        memcpy(writer->at + writer->bytes, data, bytes);
    writer->bytes += bytes;
}

static void put_number(struct writer *writer, uint64_t number)
{
    put(writer, &number, sizeof number);
}

/* Not as a struct, whose unused dims may be anything. */
static void put_tensor(struct writer *writer, const struct roped_tensor *tensor)
{
    put_number(writer, (uint64_t)tensor->dtype << 32 |
                           (uint64_t)tensor->stride_dims << 16 |
                           (uint64_t)tensor->rank);
    put(writer, tensor->dims, (size_t)tensor->rank * sizeof *tensor->dims);
    put_number(writer, (uint64_t)tensor->stride);
    put_number(writer, (uint64_t)(uintptr_t)tensor->data);
}

/* A tensor that is not given is its type alone. */
static void put_tensors(struct writer *writer,
                        const struct roped_tensor *tensor, int n)
{
    for (int i = 0; i < n; i++) {
        if (roped_tensor_given(&tensor[i]))
            put_tensor(writer, &tensor[i]);
        else
            put_number(writer, 0);
    }
}

static void put_call(struct writer *writer, const struct roped_call *call)
{
    put_number(writer, (uint64_t)roped_op_index(call->op) << 32 |
                           (uint64_t)call->form << 2 |
                           (uint64_t)call->host_values << 1 |
                           (call->table.data != NULL));
    put_tensors(writer, call->in, call->n_in);
    put_tensors(writer, call->out, call->n_out);
    put_number(writer, (uint64_t)(uintptr_t)call->aux);
    put(writer, call->params, call->op->params_bytes);
    put(writer, call->plan, call->op->plan_bytes);
}

size_t roped_chain_key(const struct roped_chain *chain, void *key)
{
    struct writer writer = {key, 0};
    int n_steps = chain->program->steps.n;
    for (int i = 0; i < n_steps; i++)
        put_call(&writer, &chain->call[i]);
    for (int i = 0; i < n_steps; i++)
        put_number(&writer, (uint64_t)(uintptr_t)chain->call[i].table.data);
    return writer.bytes;
}

bool roped_chain_repeats(const struct roped_chain *chain)
{
    for (int i = 0; i < chain->program->steps.n; i++) {
        const struct roped_call *call = &chain->call[i];
        for (int j = 0; j < call->n_in; j++)
            if (call->op->in[j].flags & ROPED_PLANNED &&
                roped_tensor_given(&call->in[j]))
                return false;
    }
    return true;
}
