/*
 * test_launches.c - the device takes every launch of calls that nobody listed:
 * of random calls with other sizes, up to what a card's memory holds, at any
 * address and stride. Nothing is computed and no GPU is needed (no_device.h).
 *   test_launches KERNELS [CALLS] [SEED] [COUNTS]
 * KERNELS says what each kernel has (tests/gpu/launches.sh writes it); COUNTS
 * is written: how often each kernel was launched.
 */
#include "calls/no_device.h"
#include "calls/random_call.h"
#include "check.h"

#include <roped/backend.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { VARIATIONS = 50, AUX_BYTES = 1 << 22, SHARED_BYTES = 228 << 10 };
static const uint64_t most_bytes = 140ull << 30;

static const struct roped_backend_api *const api = &roped_backend_cuda;
static struct roped_backend *backend;
static struct roped_queue *queue;
static unsigned char *memory;
static unsigned char aux[AUX_BYTES] __attribute__((aligned(64)));

/* A call and other sizes for its symbols; packs become longer at their front.
 */
struct stretch {
    const struct roped_call *call;
    int64_t size[ROPED_MAX_DIMS], more;
    bool is_strided, is_shifted;
};

/* Of any magnitude; or of rows of which shared memory holds a few, just so. */
static int64_t any_size(struct random_source *source)
{
    const int64_t room =
        SHARED_BYTES / random_int(source, 1, 4) - random_int(source, 0, 2600);
    const int64_t elements = room >> random_int(source, 0, 2);
    switch (random_int(source, 0, 3)) {
    case 0:
        return random_magnitude(source, 16);
    case 1:
        return 8 * random_magnitude(source, 12);
    case 2:
        return elements;
    default:
        return elements / 8 * 8;
    }
}

static void choose(struct stretch *stretch, const struct roped_call *call,
                   struct random_source *source)
{
    stretch->call = call;
    for (int i = 0; i < call->n_dims; i++)
        stretch->size[i] = call->dim[i].size;
    for (int64_t n = random_int(source, 0, 2); n > 0 && call->n_dims > 0; n--)
        stretch->size[random_int(source, 0, call->n_dims - 1)] =
            any_size(source);
    stretch->more =
        random_once_in(source, 2) ? random_magnitude(source, 16) : 1;
    stretch->is_strided = random_once_in(source, 3);
    stretch->is_shifted = random_once_in(source, 2);
}

static bool size_of(const void *context, const char *symbol, int64_t *size)
{
    const struct stretch *stretch = context;
    const struct roped_call *call = stretch->call;
    for (int i = 0; i < call->n_dims; i++)
        if (strcmp(call->dim[i].name, symbol) == 0) {
            *size = stretch->size[i];
            return true;
        }
    for (int i = 0; i < call->n_params; i++) {
        const struct roped_param *param = &call->op->param[i];
        if (param->kind == ROPED_PARAM_INT &&
            strcmp(param->name, symbol) == 0) {
            memcpy(size, call->params + param->offset, sizeof *size);
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- the call */

/* The dims that an input has now; false: they follow from nothing. */
static bool set_dims(const struct stretch *stretch, int input,
                     struct roped_tensor *tensor)
{
    const struct roped_tensor *old = &stretch->call->in[input];
    struct roped_shape_pattern pattern;
    struct roped_error err;
    if (roped_call_pattern(stretch->call, &stretch->call->op->in[input],
                           old->rank, &pattern, &err))
        return false;
    const int of_pack = old->rank - (pattern.count - 1);
    *tensor = (struct roped_tensor){.dtype = old->dtype};
    for (int i = 0; i < pattern.count; i++) {
        if (!pattern.dim[i].is_pack) {
            struct roped_dim_size found =
                roped_dim_evaluate(&pattern.dim[i], size_of, stretch);
            if (found.state != ROPED_DIM_SIZED)
                return false;
            tensor->dims[tensor->rank++] = found.size;
            continue;
        }
        for (int j = 0; j < of_pack; j++) {
            int64_t size = old->dims[tensor->rank];
            bool is_longer = j == 0 && size != 1;
            tensor->dims[tensor->rank++] =
                is_longer ? size * stretch->more : size;
        }
    }
    return true;
}

static void set_stride(struct roped_tensor *tensor, int n_outer,
                       struct random_source *source)
{
    int64_t inner = 1;
    for (int i = n_outer; i < tensor->rank; i++)
        inner *= tensor->dims[i];
    if (n_outer > 0 && n_outer < tensor->rank)
        tensor->stride =
            inner + (random_once_in(source, 2) ? 8 * random_int(source, 0, 8)
                                               : random_int(source, 0, 70));
}

static bool set_inputs(const struct stretch *stretch, struct roped_call *call,
                       struct random_source *source)
{
    double bytes = 0;
    for (int i = 0; i < call->n_in; i++) {
        struct roped_tensor *tensor = &call->in[i];
        double of_one = (double)sizeof(double);
        if (!roped_tensor_given(&stretch->call->in[i]))
            continue;
        if (!set_dims(stretch, i, tensor))
            return false;
        if (stretch->is_strided && call->op->in[i].flags & ROPED_STRIDED)
            set_stride(tensor, stretch->call->in[i].stride_dims, source);
        for (int j = 0; j < tensor->rank; j++)
            of_one *= (double)tensor->dims[j];
        bytes += of_one;
    }
    return bytes < (double)most_bytes;
}

/* Addresses for a tensor, behind those of the one before. */
static void place(const struct stretch *stretch, struct roped_tensor *tensor,
                  uint64_t *at, struct random_source *source)
{
    const int64_t element = (int64_t)roped_dtype_bytes(tensor->dtype);
    const int64_t n = roped_tensor_elements(tensor);
    const int64_t shift =
        stretch->is_shifted ? random_int(source, 0, 15) / element * element : 0;
    tensor->data = memory + *at + shift;
    *at += (uint64_t)(2 * n * element + 4096) / 256 * 256;
}

static bool place_all(const struct stretch *stretch, struct roped_call *call,
                      struct random_source *source)
{
    uint64_t at = 0;
    for (int i = 0; i < call->n_in; i++) {
        struct roped_tensor *tensor = &call->in[i];
        const struct roped_tensor *old = &stretch->call->in[i];
        if (!roped_tensor_given(tensor))
            continue;
        place(stretch, tensor, &at, source);
        if (!(call->op->in[i].flags & ROPED_INDEX) ||
            tensor->dtype != ROPED_F32)
            continue;
        /* plan reads these, wherever positions are */
        if (roped_tensor_bytes(tensor) != roped_tensor_bytes(old))
            return false;
        tensor->data = old->data;
    }
    for (int i = 0; i < call->n_out; i++)
        if (roped_tensor_given(&call->out[i]))
            place(stretch, &call->out[i], &at, source);
    for (int i = 0; i < call->n_in; i++) {
        int output = roped_op_updates(call->op, i);
        if (output >= 0 && roped_tensor_given(&call->in[i]))
            call->out[output].data = call->in[i].data;
    }
    return true;
}

/* The call of such sizes, planned; false: the library does not take it. */
static bool make(const struct stretch *stretch, struct roped_call *call,
                 struct random_source *source)
{
    const struct roped_call *old = stretch->call;
    struct roped_error err;
    roped_call_init(call, old->op);
    memcpy(call->params, old->params, sizeof call->params);
    call->given = old->given;
    call->angle_set = old->angle_set;
    call->host_values = false;
    call->largest_position =
        random_once_in(source, 2) ? -1 : random_int(source, 0, 100000);
    if (!set_inputs(stretch, call, source) || roped_call_resolve(call, &err) ||
        !place_all(stretch, call, source) ||
        roped_call_aux_bytes(call) > AUX_BYTES)
        return false;
    call->aux = aux;
    if (roped_call_plan(call, &err))
        return false;
    if (call->table.wanted && random_once_in(source, 2))
        call->table.data = (const float *)memory;
    return true;
}

/* ---------------------------------------------------------------- the test */

static void say(const struct random_call *made, const struct roped_call *call,
                const struct roped_error *err)
{
    char text[4096];
    printf("%s\n   ", random_call_text(made, text, sizeof text));
    for (int i = 0; i < call->n_in; i++) {
        const struct roped_tensor *tensor = &call->in[i];
        if (!roped_tensor_given(tensor))
            continue;
        printf(" %s", call->op->in[i].name);
        for (int j = 0; j < tensor->rank; j++)
            printf("%s%" PRId64, j ? "x" : " ", tensor->dims[j]);
        printf(" stride %" PRId64 " at %d,", tensor->stride,
               (int)((uintptr_t)tensor->data % 16));
    }
    printf("\n    %s\n", err->text);
}

int main(int argc, char **argv)
{
    static struct random_call made;
    static struct roped_call call;
    static struct stretch stretch;
    const struct roped_backend_options options = {.device = 0};
    const long n_calls = argc > 2 ? strtol(argv[2], NULL, 10) : 20000;
    struct random_source source = {argc > 3 ? strtoull(argv[3], NULL, 10) : 1};
    struct roped_error err = {.text = ""};
    long n_launched = 0, n_failed = 0;
    int n_used;
    if (argc < 2) {
        fprintf(stderr, "usage: %s KERNELS [CALLS] [SEED] [COUNTS]\n", *argv);
        return EXIT_FAILURE;
    }
    no_device_begin(argv[1]);
    memory = no_device_addresses(8 * most_bytes);
    if (api->open(&options, &backend, &err) ||
        api->queue_open(backend, &queue, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return EXIT_FAILURE;
    }
    for (long i = 0; i < n_calls; i++) {
        random_call_make_sound(&made, roped_op_at((int)(i % roped_op_count())),
                               (enum random_widths)random_int(&source, 0, 2),
                               &source);
        for (int j = 0; j < VARIATIONS; j++) {
            choose(&stretch, &made.call, &source);
            if (!make(&stretch, &call, &source))
                continue;
            enum roped_status status = api->launch(queue, &call, &err);
            n_launched++;
            if (status && status != ROPED_TOO_LARGE && n_failed++ < 20)
                say(&made, &call, &err);
        }
        random_call_free(&made);
    }
    const int n_kernels = no_device_kernels(&n_used);
    printf("%ld calls, %ld not taken; %d of %d kernels\n", n_launched, n_failed,
           n_used, n_kernels);
    if (argc > 4)
        no_device_write(argv[4]);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
