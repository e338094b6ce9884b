/*
 * bench_launches.c - how many small launches a second a device takes from
 * threads that launch on queues of their own, and then wait: the limit of small
 * calls, whoever makes them. The call is rmsnorm of 512 bytes that lie in host
 * memory, as a daemon's small calls do.
 *
 *     bench_launches [BACKEND [SECONDS]]
 */
#include <roped/library.h>
#include <roped/op.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_THREADS = 16, MOST_LAUNCHES = 16, COLUMNS = 256 };

static const struct roped_backend_api *api;
static struct roped_backend *backend;
static pthread_barrier_t start_line;
static atomic_bool is_over;

struct client {
    pthread_t thread;
    int n_launches; /* between two waits */
    struct roped_queue *queue;
    struct roped_call call;
    void *memory;
    long launched;
};

static void check(enum roped_status status, const struct roped_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench_launches: %s\n", err->text);
    exit(EXIT_FAILURE);
}

static void open_client(struct client *client)
{
    struct roped_error err;
    struct roped_call *call = &client->call;
    check(api->queue_open(backend, &client->queue, &err), &err);
    check(api->host_alloc(backend, 4 * COLUMNS, &client->memory, &err), &err);
    roped_call_init(call, roped_op_find("rmsnorm"));
    call->in[0] = (struct roped_tensor){.dtype = ROPED_BF16,
                                        .rank = 2,
                                        .dims = {1, COLUMNS},
                                        .data = client->memory};
    check(roped_call_resolve(call, &err), &err);
    call->out[0].data = (char *)client->memory + 2 * COLUMNS;
    check(roped_call_plan(call, &err), &err);
}

static void close_client(struct client *client)
{
    api->queue_close(client->queue);
    api->host_free(backend, client->memory);
}

static void *run(void *context)
{
    struct client *client = context;
    struct roped_error err;
    pthread_barrier_wait(&start_line);
    while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
        for (int i = 0; i < client->n_launches; i++)
            check(api->launch(client->queue, &client->call, &err), &err);
        check(api->wait(client->queue, &err), &err);
        client->launched += client->n_launches;
    }
    return NULL;
}

/* Launches a second. */
static double rate(int n_threads, int n_launches, double seconds)
{
    static struct client client[MOST_THREADS];
    struct timespec nap = {(time_t)seconds,
                           (long)((seconds - (double)(time_t)seconds) * 1e9)};
    long launched = 0;
    atomic_store(&is_over, false);
    pthread_barrier_init(&start_line, NULL, (unsigned)n_threads + 1);
    for (int i = 0; i < n_threads; i++) {
        client[i] = (struct client){.n_launches = n_launches};
        open_client(&client[i]);
        pthread_create(&client[i].thread, NULL, run, &client[i]);
    }
    pthread_barrier_wait(&start_line);
    nanosleep(&nap, NULL);
    atomic_store(&is_over, true);
    for (int i = 0; i < n_threads; i++) {
        pthread_join(client[i].thread, NULL);
        launched += client[i].launched;
        close_client(&client[i]);
    }
    pthread_barrier_destroy(&start_line);
    return (double)launched / seconds;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cuda";
    double seconds = argc > 2 ? atof(argv[2]) : 0.5;
    struct roped_backend_options options = {0, 1};
    struct roped_error err;
    api = roped_kernels_backend(name);
    if (seconds <= 0) {
        fprintf(stderr, "bench_launches: SECONDS: '%s', expected more than 0\n",
                argv[2]);
        return EXIT_FAILURE;
    }
    if (!api) {
        fprintf(stderr, "bench_launches: this build has no backend '%s'\n",
                name);
        return EXIT_FAILURE;
    }
    check(api->open(&options, &backend, &err), &err);
    printf("launches a second, %s\nlaunches before a wait", name);
    for (int threads = 1; threads <= MOST_THREADS; threads *= 2)
        printf("%5d thread%s", threads, threads > 1 ? "s" : " ");
    for (int n = 1; n <= MOST_LAUNCHES; n *= 4) {
        printf("\n%22d", n);
        for (int threads = 1; threads <= MOST_THREADS; threads *= 2)
            printf("%12.0f", rate(threads, n, seconds));
    }
    printf("\n");
    api->close(backend);
    return EXIT_SUCCESS;
}
