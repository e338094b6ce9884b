/*
 * runner.c - one call on one backend, with guard bands.
 */
#include "kernel/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD = 0xA5, POISON = 0xFE };

/* A tensor's place on the device: guard, misalignment, data, guard. */
struct place {
    unsigned char *base; /* NULL: not placed */
    size_t offset, bytes, total;
};

struct places {
    struct place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS], aux;
    float *table;
    unsigned char *image; /* host copy of the largest place */
};

void *runner_alloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(EXIT_FAILURE);
    }
    return memory;
}

bool runner_open(struct runner *runner, const char *backend)
{
    struct roped_error err = {.text = ""};
    struct roped_backend_options options = {0};
    runner->api = &roped_backend_cpu;
    if (strcmp(backend, "cuda") == 0) {
#ifdef ROPED_HAS_CUDA
        runner->api = &roped_backend_cuda;
#else
        printf("skipped: built without the CUDA backend\n");
        return false;
#endif
    }
    if (runner->api->device_count(&err) == 0) {
        printf("skipped: no usable device: %s\n", err.text);
        return false;
    }
    if (runner->api->open(&options, &runner->backend, &err) ||
        runner->api->queue_open(runner->backend, &runner->queue, &err)) {
        fprintf(stderr, "cannot open %s: %s\n", backend, err.text);
        exit(EXIT_FAILURE);
    }
    return true;
}

void runner_close(struct runner *runner)
{
    runner->api->queue_close(runner->queue);
    runner->api->close(runner->backend);
}

static enum roped_status place_bytes(struct runner *runner,
                                     struct places *places, struct place *place,
                                     const void *data, size_t bytes,
                                     size_t misalign, struct roped_error *err)
{
    void *base;
    place->bytes = bytes;
    place->offset = GUARD_BYTES + misalign;
    place->total = place->offset + bytes + GUARD_BYTES;
    enum roped_status status =
        runner->api->device_alloc(runner->backend, place->total, &base, err);
    if (status)
        return status;
    place->base = base;
    memset(places->image, GUARD, place->total);
    if (data)
        memcpy(places->image + place->offset, data, bytes);
    else
        memset(places->image + place->offset, POISON, bytes);
    status = runner->api->upload(runner->queue, place->base, places->image,
                                 place->total, err);
    return status ? status : runner->api->wait(runner->queue, err);
}

/* Reads a place back into the image and checks its guards. */
static enum roped_status read_back(struct runner *runner, struct places *places,
                                   const struct place *place, const char *name,
                                   struct roped_error *err)
{
    enum roped_status status = runner->api->download(
        runner->queue, places->image, place->base, place->total, err);
    if (!status)
        status = runner->api->wait(runner->queue, err);
    if (status)
        return status;
    for (size_t i = 0; i < place->total; i++) {
        if (i == place->offset)
            i += place->bytes;
        if (places->image[i] != GUARD)
            return roped_fail(err, ROPED_INTERNAL,
                              "tensor '%s': byte %lld outside it was written",
                              name, (long long)i - (long long)place->offset);
    }
    return ROPED_OK;
}

/* The input whose memory an output is, or -1. */
static int shared_input(const struct roped_op *op, int output,
                        const struct runner_options *options)
{
    int input = op->out[output].in_place
                    ? roped_op_input(op, op->out[output].in_place)
                    : -1;
    if (input < 0)
        return -1;
    bool is_shared = op->in[input].flags & ROPED_UPDATED
                         ? !options->updates_apart
                         : options->in_place;
    return is_shared ? input : -1;
}

static enum roped_status
place_tensors(struct runner *runner, struct roped_call *call,
              const struct runner_options *options, struct places *places,
              struct roped_call *device, struct roped_error *err)
{
    const struct roped_op *op = call->op;
    enum roped_status status;
    size_t n = (size_t)options->misalign_elements;
    for (int i = 0; i < roped_op_inputs(op); i++) {
        const struct roped_tensor *tensor = &call->in[i];
        if (!roped_tensor_given(tensor))
            continue;
        status = place_bytes(runner, places, &places->in[i], tensor->data,
                             (size_t)roped_tensor_bytes(tensor),
                             n * roped_dtype_bytes(tensor->dtype), err);
        if (status)
            return status;
        device->in[i].data = places->in[i].base + places->in[i].offset;
    }
    for (int i = 0; i < roped_op_outputs(op); i++) {
        const struct roped_tensor *tensor = &call->out[i];
        if (!roped_tensor_given(tensor))
            continue;
        int input = shared_input(op, i, options);
        if (input >= 0) {
            device->out[i].data = device->in[input].data;
            continue;
        }
        status = place_bytes(runner, places, &places->out[i], NULL,
                             (size_t)roped_tensor_bytes(tensor),
                             n * roped_dtype_bytes(tensor->dtype), err);
        if (status)
            return status;
        device->out[i].data = places->out[i].base + places->out[i].offset;
    }
    return ROPED_OK;
}

static enum roped_status make_table(struct runner *runner,
                                    struct roped_call *device,
                                    struct places *places,
                                    struct roped_error *err)
{
    const struct roped_table_use *use = &device->table;
    void *memory;
    size_t bytes = (size_t)(use->rows * 2 * use->angles.n_pairs) * 4;
    enum roped_status status =
        runner->api->device_alloc(runner->backend, bytes, &memory, err);
    if (status)
        return status;
    places->table = memory;
    device->table.data = memory;
    /* in two parts, as a growing table is */
    int64_t half = use->rows / 2;
    status = runner->api->build_table(runner->queue, &use->angles, 0, half,
                                      places->table, err);
    if (status)
        return status;
    return runner->api->build_table(
        runner->queue, &use->angles, half, use->rows - half,
        places->table + half * 2 * use->angles.n_pairs, err);
}

static enum roped_status collect(struct runner *runner, struct roped_call *call,
                                 const struct runner_options *options,
                                 struct places *places, struct roped_error *err)
{
    const struct roped_op *op = call->op;
    bool is_written[ROPED_MAX_INPUTS] = {false};
    enum roped_status status;
    for (int i = 0; i < roped_op_outputs(op); i++) {
        if (!roped_tensor_given(&call->out[i]))
            continue;
        const struct place *place = &places->out[i];
        int input = shared_input(op, i, options);
        if (input >= 0) {
            place = &places->in[input];
            is_written[input] = true;
        }
        status = read_back(runner, places, place, op->out[i].name, err);
        if (status)
            return status;
        call->out[i].data = runner_alloc(place->bytes);
        memcpy(call->out[i].data, places->image + place->offset, place->bytes);
    }
    for (int i = 0; i < roped_op_inputs(op); i++) {
        if (!places->in[i].base)
            continue;
        status = read_back(runner, places, &places->in[i], op->in[i].name, err);
        if (status)
            return status;
        if (!is_written[i] &&
            memcmp(places->image + places->in[i].offset, call->in[i].data,
                   places->in[i].bytes) != 0)
            return roped_fail(err, ROPED_INTERNAL,
                              "tensor '%s': the launch changed its input",
                              op->in[i].name);
    }
    return ROPED_OK;
}

static size_t largest_place(const struct roped_call *call)
{
    int64_t largest = (int64_t)roped_call_aux_bytes(call);
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        if (roped_tensor_given(&call->in[i]) &&
            roped_tensor_bytes(&call->in[i]) > largest)
            largest = roped_tensor_bytes(&call->in[i]);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        if (roped_tensor_given(&call->out[i]) &&
            roped_tensor_bytes(&call->out[i]) > largest)
            largest = roped_tensor_bytes(&call->out[i]);
    return (size_t)largest + 4 * GUARD_BYTES;
}

static void free_places(struct runner *runner, struct places *places)
{
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        runner->api->device_free(runner->backend, places->in[i].base);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        runner->api->device_free(runner->backend, places->out[i].base);
    runner->api->device_free(runner->backend, places->aux.base);
    runner->api->device_free(runner->backend, places->table);
    free(places->image);
}

enum roped_status runner_run(struct runner *runner, struct roped_call *call,
                             const struct runner_options *options,
                             struct roped_error *err)
{
    static struct roped_call device;
    struct places places = {.image = runner_alloc(largest_place(call))};
    size_t aux_bytes = roped_call_aux_bytes(call);
    call->aux =
        aux_bytes ? aligned_alloc(64, (aux_bytes + 63) / 64 * 64) : NULL;
    enum roped_status status = roped_call_plan(call, err);
    device = *call;
    if (!status)
        status = place_tensors(runner, call, options, &places, &device, err);
    if (!status && aux_bytes) {
        status = place_bytes(runner, &places, &places.aux, call->aux, aux_bytes,
                             0, err);
        device.aux = places.aux.base + places.aux.offset;
    }
    if (!status && options->use_table && call->table.wanted)
        status = make_table(runner, &device, &places, err);
    if (!status)
        status = runner->api->launch(runner->queue, &device, err);
    if (!status)
        status = runner->api->wait(runner->queue, err);
    if (!status)
        status = collect(runner, call, options, &places, err);
    free_places(runner, &places);
    return status;
}

void runner_free_outputs(struct roped_call *call)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++) {
        free(call->out[i].data);
        call->out[i].data = NULL;
    }
    free(call->aux);
    call->aux = NULL;
}
