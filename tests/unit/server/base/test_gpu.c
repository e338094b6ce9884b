/*
 * test_gpu.c - what NVML says of GPUs, with a library of the test in its place:
 * read, not known, changed, and without an answer.
 */
#include "check.h"
#include "fake_nvml.h"
#include "gpu.h"

#include <math.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The first reading may come too early: the library is loaded meanwhile. */
static struct gpu_reading read_soon(struct gpu_monitor *monitor,
                                    const char *uuid)
{
    struct gpu_reading reading = gpu_monitor_read(monitor, uuid);
    for (int i = 0; i < 50 && isnan(reading.temperature_celsius); i++) {
        usleep(20000);
        reading = gpu_monitor_read(monitor, uuid);
    }
    return reading;
}

TEST(a_gpu_is_read)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    CHECK_INT(atomic_load(&fake_nvml_starts), 0);
    struct gpu_reading reading = read_soon(monitor, "GPU-fake-0");
    CHECK_INT(atomic_load(&fake_nvml_starts), 1);
    CHECK_INT(reading.temperature_celsius, 61);
    CHECK(reading.power_watts == 350.5);
    CHECK(reading.utilization == 0.75);
    CHECK_INT(reading.memory_used_bytes, 20ll << 30);
    CHECK_INT(reading.memory_bytes, 80ll << 30);
    CHECK_INT(read_soon(monitor, "GPU-fake-1").temperature_celsius, 61);
    gpu_monitor_free(monitor);
    CHECK_INT(atomic_load(&fake_nvml_starts), 0);
}

/* Neither of the CPU, nor of a GPU that NVML does not have; and where it does
 * not say one thing, the others are known. */
TEST(what_is_not_known_is_nan)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    CHECK(isnan(gpu_monitor_read(monitor, "").temperature_celsius));
    CHECK_INT(atomic_load(&fake_nvml_starts), 0);
    CHECK(isnan(gpu_monitor_read(monitor, "GPU-none").memory_bytes));
    CHECK(isnan(gpu_monitor_read(monitor, "GPU-0123456789012345678901234567890"
                                          "123456789")
                    .temperature_celsius));
    atomic_store(&fake_nvml_watts, -1);
    struct gpu_reading reading = read_soon(monitor, "GPU-fake-0");
    atomic_store(&fake_nvml_watts, 350);
    CHECK(isnan(reading.power_watts));
    CHECK_INT(reading.temperature_celsius, 61);
    gpu_monitor_free(monitor);
}

TEST(more_gpus_than_there_is_room_for_are_not_known)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    for (int i = 0; i < GPU_MOST; i++) {
        char uuid[32];
        snprintf(uuid, sizeof uuid, "GPU-%d", i);
        (void)gpu_monitor_read(monitor, uuid);
    }
    CHECK(isnan(gpu_monitor_read(monitor, "GPU-fake-0").temperature_celsius));
    gpu_monitor_free(monitor);
}

TEST(a_reading_follows_the_gpu)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    CHECK_INT(read_soon(monitor, "GPU-fake-0").temperature_celsius, 61);
    atomic_store(&fake_nvml_temperature, 80);
    usleep(600000);
    CHECK_INT(gpu_monitor_read(monitor, "GPU-fake-0").temperature_celsius, 80);
    atomic_store(&fake_nvml_temperature, 61);
    gpu_monitor_free(monitor);
}

/* A driver that hangs costs readers a tenth of a second once, then nothing;
 * what is old is not shown, and when it answers again all is as before. */
TEST(a_driver_without_an_answer_holds_nobody)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    CHECK_INT(read_soon(monitor, "GPU-fake-0").temperature_celsius, 61);
    atomic_store(&fake_nvml_is_stuck, 1);
    usleep(600000);
    double start = now();
    CHECK_INT(gpu_monitor_read(monitor, "GPU-fake-0").temperature_celsius, 61);
    CHECK(now() - start < 0.5);
    usleep(1600000);
    start = now();
    for (int i = 0; i < 100; i++)
        CHECK(
            isnan(gpu_monitor_read(monitor, "GPU-fake-0").temperature_celsius));
    CHECK(now() - start < 0.5);
    atomic_store(&fake_nvml_is_stuck, 0);
    CHECK_INT(read_soon(monitor, "GPU-fake-0").temperature_celsius, 61);
    gpu_monitor_free(monitor);
}

/* Not even the end: what the thread uses stays until it is back. */
TEST(an_end_does_not_wait_for_the_driver)
{
    struct gpu_monitor *monitor = gpu_monitor_new();
    atomic_store(&fake_nvml_is_stuck, 1);
    (void)gpu_monitor_read(monitor, "GPU-fake-0");
    double start = now();
    gpu_monitor_free(monitor);
    CHECK(now() - start < 3);
    atomic_store(&fake_nvml_is_stuck, 0);
    for (int i = 0; i < 500 && atomic_load(&fake_nvml_starts) > 0; i++)
        usleep(10000);
    CHECK_INT(atomic_load(&fake_nvml_starts), 0);
    usleep(50000); /* the thread is at its very end */
}

static void *read_often(void *argument)
{
    for (int i = 0; i < 200; i++) {
        struct gpu_reading reading = gpu_monitor_read(argument, "GPU-fake-0");
        CHECK(isnan(reading.temperature_celsius) ||
              reading.temperature_celsius == 61);
        (void)gpu_monitor_read(argument, "GPU-fake-1");
        usleep(5000);
    }
    return NULL;
}

TEST(many_may_read)
{
    pthread_t thread[4];
    struct gpu_monitor *monitor = gpu_monitor_new();
    for (int i = 0; i < 4; i++)
        CHECK_INT(pthread_create(&thread[i], NULL, read_often, monitor), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    gpu_monitor_free(monitor);
}
