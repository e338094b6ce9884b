/*
 * runner.c - one call on one backend, with guard bands.
 */
#include "kernel/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD = 0xA5, POISON = 0xFE };

/* Memory on the device that begins and ends with a guard. */
struct block {
    unsigned char *base; /* NULL: nothing is here */
    size_t bytes;
};

/* A tensor's place in a block: n tokens, a stride apart. */
struct place {
    struct block *block; /* NULL: not placed */
    size_t offset, token, stride;
    size_t n;
};

struct places {
    struct place in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS], aux;
    struct block in_block[ROPED_MAX_INPUTS], out_block[ROPED_MAX_OUTPUTS];
    struct block aux_block;
    float *table;
    unsigned char *image; /* host copy of the largest block */
    size_t image_bytes;
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

int64_t runner_many_bytes(const struct runner *runner)
{
    return (int64_t)(runner->api->is_host ? 4 : 320) << 20;
}

/* Between the tokens of a place, and the packed ones of data. */
static unsigned char *token_at(const struct places *places,
                               const struct place *place, size_t i)
{
    return places->image + place->offset + i * place->stride;
}

static void scatter(const struct places *places, const struct place *place,
                    const void *data)
{
    for (size_t i = 0; i < place->n; i++)
        if (data)
            memcpy(token_at(places, place, i),
                   (const unsigned char *)data + i * place->token,
                   place->token);
        else
            memset(token_at(places, place, i), POISON, place->token);
}

/* Takes the tokens out of the image: what is left there is guards. */
static void gather(const struct places *places, const struct place *place,
                   void *data)
{
    for (size_t i = 0; i < place->n; i++) {
        memcpy((unsigned char *)data + i * place->token,
               token_at(places, place, i), place->token);
        memset(token_at(places, place, i), GUARD, place->token);
    }
}

static size_t end_of(const struct place *place)
{
    return place->offset +
           (place->n ? (place->n - 1) * place->stride + place->token : 0);
}

/* An image of guards, for the block of this place. */
static void begin_image(struct places *places, const struct place *last,
                        size_t guard_bytes)
{
    struct block *block = last->block;
    block->bytes = end_of(last) + guard_bytes;
    if (block->bytes > places->image_bytes) {
        free(places->image);
        places->image = runner_alloc(block->bytes);
        places->image_bytes = block->bytes;
    }
    memset(places->image, GUARD, block->bytes);
}

static enum roped_status upload_image(struct runner *runner,
                                      struct places *places,
                                      struct block *block,
                                      struct roped_error *err)
{
    void *base;
    enum roped_status status =
        runner->api->device_alloc(runner->backend, block->bytes, &base, err);
    if (status)
        return status;
    block->base = base;
    status = runner->api->upload(runner->queue, base, places->image,
                                 block->bytes, err);
    return status ? status : runner->api->wait(runner->queue, err);
}

static enum roped_status download_image(struct runner *runner,
                                        struct places *places,
                                        const struct block *block,
                                        struct roped_error *err)
{
    enum roped_status status = runner->api->download(
        runner->queue, places->image, block->base, block->bytes, err);
    return status ? status : runner->api->wait(runner->queue, err);
}

/* All tokens have been gathered: is the rest as it was? */
static enum roped_status check_guards(const struct places *places,
                                      const struct place *place,
                                      const char *name, struct roped_error *err)
{
    for (size_t i = 0; i < place->block->bytes; i++)
        if (places->image[i] != GUARD)
            return roped_fail(err, ROPED_INTERNAL,
                              "tensor '%s': byte %lld outside it was written",
                              name, (long long)i - (long long)place->offset);
    return ROPED_OK;
}

/* ----------------------------------------------------------------- layout */

/* A place of its own for a tensor; index: that of its port. */
static struct place place_of(const struct roped_port *port, int index,
                             const struct roped_tensor *tensor,
                             const struct runner_options *options,
                             struct block *block)
{
    size_t element = roped_dtype_bytes(tensor->dtype);
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    size_t misalign = (size_t)options->misalign_elements * element;
    struct place place = {block, GUARD_BYTES + misalign, bytes, bytes, 1};
    if (!options->has_strides || !(port->flags & ROPED_STRIDED))
        return place;
    place.n = (size_t)roped_tensor_tokens(tensor);
    place.token = (size_t)roped_tensor_token(tensor) * element;
    place.stride = place.token + (size_t)(options->gap * (index + 1)) * element;
    return place;
}

/* x or what is above it, a multiple of step. */
static size_t multiple_of(size_t step, size_t x)
{
    return (x + step - 1) / step * step;
}

/* Inputs with strides become slices of the rows of the first one's block. Where
 * types differ, a place and the row are multiples of the widest element. */
static void fuse_inputs(const struct roped_call *call,
                        const struct runner_options *options,
                        struct places *places)
{
    size_t end = 0, widest = 1;
    const struct place *first = NULL;
    for (int i = 0; i < call->n_in; i++) {
        struct place *place = &places->in[i];
        if (!place->block || !(call->op->in[i].flags & ROPED_STRIDED))
            continue;
        size_t element = roped_dtype_bytes(call->in[i].dtype);
        widest = element > widest ? element : widest;
        first = first ? first : place;
        place->block = first->block;
        place->offset = place == first
                            ? first->offset
                            : multiple_of(element, first->offset + end);
        end = place->offset + place->token - first->offset;
    }
    end = multiple_of(widest, end) + (size_t)options->gap * widest;
    for (int i = 0; first && i < call->n_in; i++)
        if (places->in[i].block == first->block)
            places->in[i].stride = end;
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

static void *data_of(const struct place *place)
{
    return place->block->base + place->offset;
}

static int64_t stride_of(const struct place *place,
                         const struct roped_port *port,
                         const struct roped_tensor *tensor,
                         const struct runner_options *options)
{
    bool has_stride = options->has_strides && (port->flags & ROPED_STRIDED);
    return has_stride
               ? (int64_t)(place->stride / roped_dtype_bytes(tensor->dtype))
               : 0;
}

/* Uploads the block that begins with input first. */
static enum roped_status place_input_block(struct runner *runner,
                                           const struct roped_call *call,
                                           const struct runner_options *options,
                                           struct places *places, int first,
                                           struct roped_error *err)
{
    struct block *block = places->in[first].block;
    const struct place *last = &places->in[first];
    for (int i = first; i < call->n_in; i++)
        if (places->in[i].block == block)
            last = &places->in[i];
    begin_image(places, last, options->is_tight ? 0 : GUARD_BYTES);
    for (int i = first; i < call->n_in; i++)
        if (places->in[i].block == block)
            scatter(places, &places->in[i], call->in[i].data);
    return upload_image(runner, places, block, err);
}

static enum roped_status
place_inputs(struct runner *runner, const struct roped_call *call,
             const struct runner_options *options, struct places *places,
             struct roped_call *device, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]))
            places->in[i] = place_of(&call->op->in[i], i, &call->in[i], options,
                                     &places->in_block[i]);
    if (options->is_fused)
        fuse_inputs(call, options, places);
    for (int i = 0; i < call->n_in && !status; i++) {
        const struct place *place = &places->in[i];
        if (!place->block)
            continue;
        if (place->block == &places->in_block[i])
            status = place_input_block(runner, call, options, places, i, err);
        device->in[i].data = data_of(place);
        device->in[i].stride =
            stride_of(place, &call->op->in[i], &call->in[i], options);
    }
    return status;
}

static enum roped_status
place_outputs(struct runner *runner, const struct roped_call *call,
              const struct runner_options *options, struct places *places,
              struct roped_call *device, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    struct runner_options own = *options;
    own.has_strides = options->has_strides && !options->packs_outputs;
    for (int i = 0; i < call->n_out && !status; i++) {
        const struct roped_port *port = &call->op->out[i];
        struct place *place = &places->out[i];
        int input = shared_input(call->op, i, options);
        if (!roped_tensor_given(&call->out[i]))
            continue;
        if (input >= 0) {
            *place = places->in[input];
        } else {
            *place =
                place_of(port, i, &call->out[i], &own, &places->out_block[i]);
            begin_image(places, place, GUARD_BYTES);
            scatter(places, place, NULL);
            status = upload_image(runner, places, place->block, err);
        }
        device->out[i].data = data_of(place);
        device->out[i].stride =
            stride_of(place, port, &call->out[i], input >= 0 ? options : &own);
    }
    return status;
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

/* The tensors of a block, from the image of it. */
static enum roped_status collect_block(struct roped_call *call,
                                       const struct runner_options *options,
                                       struct places *places,
                                       const struct block *block,
                                       struct roped_error *err)
{
    bool is_written[ROPED_MAX_INPUTS] = {false};
    for (int i = 0; i < call->n_out; i++) {
        const struct place *place = &places->out[i];
        int input = shared_input(call->op, i, options);
        if (place->block != block)
            continue;
        call->out[i].data = runner_alloc(place->n * place->token);
        gather(places, place, call->out[i].data);
        if (input >= 0)
            is_written[input] = true;
    }
    for (int i = 0; i < call->n_in; i++) {
        const struct place *place = &places->in[i];
        size_t bytes = place->n * place->token;
        if (place->block != block || is_written[i])
            continue;
        void *now = runner_alloc(bytes);
        gather(places, place, now);
        bool has_changed = bytes && memcmp(now, call->in[i].data, bytes) != 0;
        free(now);
        if (has_changed)
            return roped_fail(err, ROPED_INTERNAL,
                              "tensor '%s': the launch changed its input",
                              call->op->in[i].name);
    }
    return ROPED_OK;
}

static enum roped_status collect_from(struct runner *runner,
                                      struct roped_call *call,
                                      const struct runner_options *options,
                                      struct places *places,
                                      const struct place *place,
                                      const char *name, struct roped_error *err)
{
    enum roped_status status =
        download_image(runner, places, place->block, err);
    if (!status)
        status = collect_block(call, options, places, place->block, err);
    return status ? status : check_guards(places, place, name, err);
}

static enum roped_status collect(struct runner *runner, struct roped_call *call,
                                 const struct runner_options *options,
                                 struct places *places, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < call->n_out && !status; i++)
        if (places->out_block[i].base)
            status = collect_from(runner, call, options, places,
                                  &places->out[i], call->op->out[i].name, err);
    for (int i = 0; i < call->n_in && !status; i++)
        if (places->in_block[i].base)
            status = collect_from(runner, call, options, places, &places->in[i],
                                  call->op->in[i].name, err);
    return status;
}

static enum roped_status place_aux(struct runner *runner,
                                   struct roped_call *device, size_t bytes,
                                   struct places *places,
                                   struct roped_error *err)
{
    places->aux =
        (struct place){&places->aux_block, GUARD_BYTES, bytes, bytes, 1};
    begin_image(places, &places->aux, GUARD_BYTES);
    scatter(places, &places->aux, device->aux);
    enum roped_status status =
        upload_image(runner, places, &places->aux_block, err);
    if (!status)
        device->aux = data_of(&places->aux);
    return status;
}

static void free_places(struct runner *runner, struct places *places)
{
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        runner->api->device_free(runner->backend, places->in_block[i].base);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        runner->api->device_free(runner->backend, places->out_block[i].base);
    runner->api->device_free(runner->backend, places->aux_block.base);
    runner->api->device_free(runner->backend, places->table);
    free(places->image);
}

/* A slice of host, planned there, with the addresses of the same slice of
 * device. */
static enum roped_status launch_slice(struct runner *runner,
                                      const struct roped_call *host,
                                      const struct roped_call *device,
                                      int64_t begin, int64_t end,
                                      struct roped_error *err)
{
    static struct roped_call slice, placed;
    struct places places = {.image = NULL};
    enum roped_status status = roped_call_slice(host, begin, end, &slice, err);
    if (!status)
        status = roped_call_slice(device, begin, end, &placed, err);
    if (status)
        return status;
    size_t aux_bytes = roped_call_aux_bytes(&slice);
    void *aux = slice.aux = runner_alloc(aux_bytes);
    status = roped_call_plan(&slice, err);
    memcpy(slice.in, placed.in, sizeof slice.in);
    memcpy(slice.out, placed.out, sizeof slice.out);
    slice.table.data = device->table.data;
    if (!status && aux_bytes)
        status = place_aux(runner, &slice, aux_bytes, &places, err);
    if (!status)
        status = runner->api->launch(runner->queue, &slice, err);
    if (!status)
        status = runner->api->wait(runner->queue, err);
    free_places(runner, &places);
    free(aux);
    return status;
}

static enum roped_status launch(struct runner *runner,
                                const struct roped_call *host,
                                const struct roped_call *device,
                                const struct runner_options *options,
                                struct roped_error *err)
{
    int64_t rows = options->cuts ? roped_call_rows(host) : 0;
    enum roped_status status = ROPED_OK;
    if (rows == 0)
        return runner->api->launch(runner->queue, device, err);
    for (int64_t begin = 0, end; begin < rows && !status; begin = end) {
        end = begin + random_int(options->cuts, 1, rows - begin);
        status = launch_slice(runner, host, device, begin, end, err);
    }
    return status;
}

enum roped_status runner_run(struct runner *runner, struct roped_call *call,
                             const struct runner_options *options,
                             struct roped_error *err)
{
    static struct roped_call device;
    struct places places = {.image = NULL};
    size_t aux_bytes = roped_call_aux_bytes(call);
    call->aux =
        aux_bytes ? aligned_alloc(64, (aux_bytes + 63) / 64 * 64) : NULL;
    enum roped_status status = roped_call_plan(call, err);
    device = *call;
    if (!status)
        status = place_inputs(runner, call, options, &places, &device, err);
    if (!status)
        status = place_outputs(runner, call, options, &places, &device, err);
    if (!status && aux_bytes)
        status = place_aux(runner, &device, aux_bytes, &places, err);
    if (!status && options->use_table && call->table.wanted)
        status = make_table(runner, &device, &places, err);
    if (!status)
        status = launch(runner, call, &device, options, err);
    if (!status)
        status = runner->api->wait(runner->queue, err);
    if (!status)
        status = collect(runner, call, options, &places, err);
    free_places(runner, &places);
    return status;
}

const char *runner_options_text(const struct runner_options *options,
                                char *text, size_t bytes)
{
    snprintf(text, bytes, "misaligned %d in place %d caches apart %d",
             options->misalign_elements, options->in_place,
             options->updates_apart);
    size_t at = strlen(text);
    if (options->is_tight)
        at += (size_t)snprintf(text + at, bytes - at, " inputs end memory");
    if (options->cuts)
        at += (size_t)snprintf(text + at, bytes - at, " in slices");
    if (options->has_strides)
        snprintf(text + at, bytes - at, " strides %s + %d, outputs %s",
                 options->is_fused ? "of one row" : "apart", options->gap,
                 options->packs_outputs ? "packed" : "likewise");
    return text;
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
