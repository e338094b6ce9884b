/*
 * chain_key.c - what the launches of a run depend on, as words: two runs with
 * the same ones launch the same kernels with the same arguments.
 *
 * What memory holds is not in there. Everything else that a backend reads of a
 * call is: parameters, plan, and the shape, type, stride and address of each
 * tensor. Addresses of tables come last, since a table moves when it grows.
 */
#include "core/chain_internal.h"

#include <string.h>

/* Where there is no room words are counted alone. */
struct writer {
    uint64_t *key;
    size_t room, n;
};

static void put(struct writer *writer, uint64_t word)
{
    if (writer->n < writer->room)
        writer->key[writer->n] = word;
    writer->n++;
}

static void put_bytes(struct writer *writer, const void *data, size_t bytes)
{
    size_t words = (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    if (words && writer->n + words <= writer->room) {
        writer->key[writer->n + words - 1] = 0;
        memcpy(writer->key + writer->n, data, bytes);
    }
    writer->n += words;
}

/* A tensor that is not given is its type alone; and dims that are not used may
 * be anything. */
static void put_tensors(struct writer *writer,
                        const struct roped_tensor *tensor, int n)
{
    for (int i = 0; i < n; i++, tensor++) {
        put(writer, (uint64_t)tensor->dtype << 32 |
                        (uint64_t)tensor->stride_dims << 16 |
                        (uint64_t)tensor->rank);
        if (!roped_tensor_given(tensor))
            continue;
        for (int dim = 0; dim < tensor->rank; dim++)
            put(writer, (uint64_t)tensor->dims[dim]);
        put(writer, (uint64_t)tensor->stride);
        put(writer, (uint64_t)(uintptr_t)tensor->data);
    }
}

static void put_call(struct writer *writer, const struct roped_call *call)
{
    put(writer,
        (uint64_t)roped_op_index(call->op) << 32 | (uint64_t)call->form << 2 |
            (uint64_t)call->host_values << 1 | (call->table.data != NULL));
    put_tensors(writer, call->in, call->n_in);
    put_tensors(writer, call->out, call->n_out);
    put(writer, (uint64_t)(uintptr_t)call->aux);
    put_bytes(writer, call->params, call->op->params_bytes);
    put_bytes(writer, call->plan, call->op->plan_bytes);
}

size_t roped_chain_key(const struct roped_chain *chain, uint64_t *key,
                       size_t room)
{
    struct writer writer = {key, room, 0};
    int n_steps = chain->program->steps.n;
    for (int i = 0; i < n_steps; i++)
        put_call(&writer, &chain->call[i]);
    for (int i = 0; i < n_steps; i++)
        put(&writer, (uint64_t)(uintptr_t)chain->call[i].table.data);
    return writer.n;
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
