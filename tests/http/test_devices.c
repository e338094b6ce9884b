/*
 * test_devices.c - one daemon with several devices. The same device twice is
 * two of them, so that any machine will do.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { N_CLIENTS = 8, H = 64 };
static struct server server;
static atomic_int n_right, n_wrong;

/* One lane each, so that a second call at once must go to the second. */
static const char *const twice[] = {"--devices", "0,0", "--lanes", "1", NULL};

static struct answer put(const char *path)
{
    return ask(&server, "PUT", path, NULL, 0, NULL);
}

static struct answer post(const char *path, const void *body, size_t bytes)
{
    return ask(&server, "POST", path, body, bytes, NULL);
}

static double jobs_of(int device)
{
    char name[64];
    snprintf(name, sizeof name, "roped_device_jobs_total{device=\"%d\"}",
             device);
    return metric(&server, name);
}

TEST(devices_are_listed_and_measured)
{
    server_start(&server, twice);
    expect_code(get(&server, "/v1/devices"), 200,
                "\"devices\":[{\"device\":0,\"index\":0,", "list");
    expect_code(get(&server, "/v1/devices"), 200, "{\"device\":1,\"index\":0,",
                "the second");
    CHECK(call_ones(&server, 4, H));
    expect_metric(&server, "roped_lanes{device=\"0\",state=\"idle\"}", 1);
    expect_metric(&server, "roped_lanes{device=\"1\",state=\"idle\"}", 1);
    expect_metric(&server, "roped_device_healthy{device=\"1\"}", 1);
    expect_metric(&server, "roped_device_errors_total{device=\"1\"}", 0);
    expect_metric(&server, "roped_device_jobs_total{device=\"0\"}", 1);
    expect_metric(&server, "roped_device_jobs_total{device=\"1\"}", 0);
    CHECK(metric(&server, "roped_device_busy_seconds_total{device=\"0\"}") > 0);
    struct answer answer = get(&server, "/metrics");
    CHECK_CONTAINS(answer.body, "roped_device_info{device=\"1\",index=\"0\"");
    answer_free(&answer);
    CHECK(server_stop(&server));
}

TEST(regions_are_on_a_device_and_calls_follow_them)
{
    size_t bytes;
    unsigned char *body = ones(4, H, &bytes);
    server_start(&server, twice);
    expect_code(put("/v1/regions/a?bytes=4096"), 201, "\"device\":0", "first");
    expect_code(put("/v1/regions/b?bytes=4096"), 201, "\"device\":1",
                "where there is more room");
    expect_code(put("/v1/regions/c?bytes=64&device=1"), 201, "\"device\":1",
                "where it was asked for");
    expect_code(put("/v1/regions/d?bytes=64&device=2"), 400,
                "region 'd': device 2, expected 0 <= device < 2", "no such");
    expect_code(put("/v1/regions/d?bytes=64&device=x"), 400,
                "parameter 'device': 'x'", "no number");
    expect_code(get(&server, "/v1/regions"), 200,
                "{\"name\":\"b\",\"kind\":\"resident\",\"bytes\":4096,"
                "\"device\":1}",
                "list");
    expect_metric(&server, "roped_device_region_bytes{device=\"0\"}", 4096);
    expect_metric(&server, "roped_device_region_bytes{device=\"1\"}", 4160);
    double before = jobs_of(1);
    expect_code(post("/v1/rmsnorm?eps=0&into.y=b", body, bytes), 200, "",
                "into the second");
    CHECK_DOUBLE(jobs_of(1), before + 1, 0);
    /* the result is there, and the next call finds it */
    struct answer answer = post("/v1/rmsnorm?eps=0&from.x=b&dtype.x=F32&"
                                "shape.x=4,64",
                                NULL, 0);
    CHECK(are_ones(&answer, (int64_t)4 * H));
    answer_free(&answer);
    CHECK_DOUBLE(jobs_of(1), before + 2, 0);
    expect_code(post("/v1/rmsnorm?eps=0&from.x=b&dtype.x=F32&shape.x=4,64&"
                     "into.y=a",
                     NULL, 0),
                400,
                "tensor 'y': in region 'a' of device 0, but tensor 'x' is in "
                "region 'b' of device 1",
                "two devices");
    free(body);
    CHECK(server_stop(&server));
}

static void *mixed_sizes(void *context)
{
    int64_t seed = (int64_t)(intptr_t)context;
    for (int i = 0; i < check_cases(60); i++) {
        int64_t rows = i % 10 == 0 ? 2000 : 1 + (seed * 7 + i) % 50;
        bool is_right = call_ones(&server, rows, 256);
        atomic_fetch_add(is_right ? &n_right : &n_wrong, 1);
    }
    return NULL;
}

/* Into a region of the client's own, made where room is, read back from it. */
static void *own_region(void *context)
{
    char path[160];
    size_t bytes;
    unsigned char *body = ones(8, H, &bytes);
    int number = (int)(intptr_t)context;
    snprintf(path, sizeof path, "/v1/regions/own%d?dtype=F32&shape=8,64",
             number);
    expect_code(put(path), 201, "", "own region");
    for (int i = 0; i < check_cases(60); i++) {
        snprintf(path, sizeof path, "/v1/rmsnorm?eps=0&into.y=own%d", number);
        expect_code(post(path, body, bytes), 200, "", "into it");
        snprintf(path, sizeof path, "/v1/rmsnorm?eps=0&from.x=own%d", number);
        struct answer answer = post(path, NULL, 0);
        bool is_right = are_ones(&answer, (int64_t)8 * H);
        atomic_fetch_add(is_right ? &n_right : &n_wrong, 1);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(many_clients_at_once_use_every_device)
{
    const char *flags[] = {"--devices",      "0,0", "--lanes", "1",
                           "--inline_bytes", "8k",  NULL};
    pthread_t thread[N_CLIENTS];
    server_start(&server, flags);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&thread[i], NULL, i % 2 ? own_region : mixed_sizes,
                       (void *)(intptr_t)i);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(thread[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK_INT(atomic_load(&n_right), N_CLIENTS * check_cases(60));
    CHECK(jobs_of(0) >= 1);
    CHECK(jobs_of(1) >= 1);
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    CHECK(server_stop(&server));
}

/* SIGTERM while both devices have work: every call that was taken is
 * answered, and the daemon ends well. */
static void *until_the_end(void *context)
{
    size_t bytes;
    unsigned char *body = ones(2000, 256, &bytes);
    (void)context;
    for (int code = 200; code == 200;) {
        struct answer answer = post("/v1/rmsnorm?eps=0", body, bytes);
        code = answer.code;
        if (code == 200)
            atomic_fetch_add(
                are_ones(&answer, 2000 * 256) ? &n_right : &n_wrong, 1);
        else if (code != 503 && code != 0)
            atomic_fetch_add(&n_wrong, 1);
        answer_free(&answer);
    }
    free(body);
    return NULL;
}

TEST(drain_waits_for_every_device)
{
    pthread_t thread[N_CLIENTS];
    atomic_store(&n_right, 0);
    server_start(&server, twice);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&thread[i], NULL, until_the_end, NULL);
    double start_seconds = now_seconds();
    while (atomic_load(&n_right) < 2 * N_CLIENTS &&
           now_seconds() - start_seconds < 60)
        sched_yield();
    kill(server.pid, SIGTERM);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(thread[i], NULL);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_right) >= 2 * N_CLIENTS);
    CHECK(server_stop(&server));
}

int main(void)
{
    RUN(devices_are_listed_and_measured);
    RUN(regions_are_on_a_device_and_calls_follow_them);
    RUN(many_clients_at_once_use_every_device);
    RUN(drain_waits_for_every_device);
    return check_done();
}
