/*
 * in_process.c - kernels without the daemon: rmsnorm, then rope in place, on
 * memory of this program, checked against plain loops.
 *
 *     in_process [cpu|cuda]
 *     cc in_process.c -lroped_kernels -lm
 *
 * Exit 0: right. 1: not. 77: there is no such device.
 */
#include <roped/library.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 5, N_HEADS = 4, HEAD = 8, HIDDEN = N_HEADS * HEAD };
enum { FIRST_POSITION = 1000 };

static const double eps = 1e-5, theta = 500000;

/* An open device; every function of it is behind api. */
struct device {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    struct roped_queue *queue;
};

static void must(enum roped_status status, const struct roped_error *err)
{
    if (status == ROPED_OK)
        return;
    fprintf(stderr, "in_process: %s: %s\n", roped_status_token(status),
            err->text);
    exit(EXIT_FAILURE);
}

static struct device open_device(const char *name)
{
    struct roped_error err = {.text = "not in this build of the library"};
    struct roped_backend_options options = {.device = 0};
    struct device device = {.api = roped_kernels_backend(name)};
    if (!device.api || device.api->device_count(&err) == 0) {
        printf("skipped: %s: %s\n", name, err.text);
        exit(77);
    }
    must(device.api->open(&options, &device.backend, &err), &err);
    must(device.api->queue_open(device.backend, &device.queue, &err), &err);
    return device;
}

static void close_device(struct device *device)
{
    device->api->queue_close(device->queue);
    device->api->close(device->backend);
}

/* Device memory with a copy of these bytes. */
static void *to_device(const struct device *device, const void *host,
                       size_t bytes)
{
    struct roped_error err;
    void *memory;
    must(device->api->device_alloc(device->backend, bytes, &memory, &err),
         &err);
    must(device->api->upload(device->queue, memory, host, bytes, &err), &err);
    return memory;
}

/*
 * Rows of x in device memory, normalised where they are. Nothing in this call
 * is read on the host, so device pointers can be bound from the start.
 */
static void rmsnorm(const struct device *device, float *x, float *weight)
{
    struct roped_error err;
    struct roped_call call;
    struct roped_tensor rows = {ROPED_F32, 2, {N_TOKENS, HIDDEN}, x};
    struct roped_tensor gain = {ROPED_F32, 1, {HIDDEN}, weight};
    struct roped_value value = {.kind = ROPED_VALUE_FLOAT, .number = eps};
    roped_call_init(&call, roped_op_find("rmsnorm"));
    must(roped_call_set_param(&call, "eps", &value, &err), &err);
    must(roped_call_bind(&call, "x", &rows, &err), &err);
    must(roped_call_bind(&call, "weight", &gain, &err), &err);
    must(roped_call_resolve(&call, &err), &err);
    must(roped_call_plan(&call, &err), &err);
    call.out[roped_op_output(call.op, "y")].data = x;
    must(device->api->launch(device->queue, &call, &err), &err);
}

/*
 * Heads of q in device memory, rotated where they are. plan reads positions on
 * the host and writes what the launch needs into aux; then both are replaced by
 * what the device can reach.
 */
static void rope(const struct device *device, float *q, int32_t *positions)
{
    struct roped_error err;
    struct roped_call call;
    struct roped_tensor heads = {ROPED_F32, 3, {N_TOKENS, N_HEADS, HEAD}, q};
    struct roped_tensor at = {ROPED_I32, 1, {N_TOKENS}, positions};
    roped_call_init(&call, roped_op_find("rope"));
    must(roped_call_set_text(&call, "theta", "500000", &err), &err);
    must(roped_call_bind(&call, "q", &heads, &err), &err);
    must(roped_call_bind(&call, "positions", &at, &err), &err);
    must(roped_call_resolve(&call, &err), &err);
    size_t aux_bytes = roped_call_aux_bytes(&call);
    void *aux = aligned_alloc(64, (aux_bytes + 63) / 64 * 64);
    if (!aux)
        exit(EXIT_FAILURE);
    call.aux = aux;
    must(roped_call_plan(&call, &err), &err);
    void *device_aux = to_device(device, aux, aux_bytes);
    void *device_positions =
        to_device(device, positions, N_TOKENS * sizeof *positions);
    call.aux = device_aux;
    call.in[roped_op_input(call.op, "positions")].data = device_positions;
    call.out[roped_op_output(call.op, "q")].data = q;
    must(device->api->launch(device->queue, &call, &err), &err);
    must(device->api->wait(device->queue, &err), &err);
    device->api->device_free(device->backend, device_positions);
    device->api->device_free(device->backend, device_aux);
    free(aux);
}

/* The same with plain loops, in double. */
static void expect(const float *x, const float *weight,
                   const int32_t *positions, double *out)
{
    for (int i = 0; i < N_TOKENS; i++) {
        double squares = 0;
        for (int j = 0; j < HIDDEN; j++)
            squares += (double)x[i * HIDDEN + j] * x[i * HIDDEN + j];
        double scale = 1 / sqrt(squares / HIDDEN + eps);
        for (int j = 0; j < HIDDEN; j++)
            out[i * HIDDEN + j] = x[i * HIDDEN + j] * scale * weight[j];
        for (int j = 0; j < N_HEADS * HEAD / 2; j++) {
            int pair = j % (HEAD / 2);
            double *first = &out[i * HIDDEN + j / (HEAD / 2) * HEAD + pair];
            double *second = first + HEAD / 2, before = *first;
            double angle = positions[i] * pow(theta, -2.0 * pair / HEAD);
            *first = before * cos(angle) - *second * sin(angle);
            *second = *second * cos(angle) + before * sin(angle);
        }
    }
}

/* Frequencies are float32: at position 1000, angles are off by up to 2e-6. */
static int compare(const float *found, const double *expected)
{
    double worst = 0;
    for (int i = 0; i < N_TOKENS * HIDDEN; i++) {
        double off = fabs(found[i] - expected[i]);
        worst = off > worst ? off : worst; /* fmax stops GCC 12 for aarch64 */
    }
    printf("rmsnorm and rope of %d x %d: off by at most %.2g\n", N_TOKENS,
           HIDDEN, worst);
    return worst < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static float x[N_TOKENS * HIDDEN], weight[HIDDEN], found[N_TOKENS * HIDDEN];
    static double expected[N_TOKENS * HIDDEN];
    int32_t positions[N_TOKENS];
    struct roped_error err;
    struct device device = open_device(argc > 1 ? argv[1] : "cpu");
    for (int i = 0; i < N_TOKENS * HIDDEN; i++)
        x[i] = (float)sin(i * 0.7 + 0.1);
    for (int i = 0; i < HIDDEN; i++)
        weight[i] = 1 + 0.01f * (float)i;
    for (int i = 0; i < N_TOKENS; i++)
        positions[i] = FIRST_POSITION + i;

    float *device_x = to_device(&device, x, sizeof x);
    float *device_weight = to_device(&device, weight, sizeof weight);
    rmsnorm(&device, device_x, device_weight);
    rope(&device, device_x, positions);
    must(
        device.api->download(device.queue, found, device_x, sizeof found, &err),
        &err);
    must(device.api->wait(device.queue, &err), &err);

    device.api->device_free(device.backend, device_x);
    device.api->device_free(device.backend, device_weight);
    close_device(&device);
    expect(x, weight, positions, expected);
    return compare(found, expected);
}
