/*
 * gpu.c - a thread that asks NVML when somebody wants to read.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double fresh_seconds = 0.5, old_seconds = 2; /* of a reading */
static const double wait_seconds = 0.1; /* for one, since it was asked for */
static const double end_seconds = 1;    /* for the thread, at the end */

/* ------------------------------------------------------------------- NVML */

/* Of nvml.h, whose binary interface NVIDIA keeps. 0 is success. */
typedef void *nvml_device;
struct nvml_utilization {
    unsigned gpu, memory; /* percent */
};
struct nvml_memory { /* nvmlMemory_v2_t: used is without the driver's own */
    unsigned version;
    unsigned long long total, reserved, free, used;
};
enum {
    NVML_TEMPERATURE_GPU = 0,
    NVML_MEMORY_VERSION = sizeof(struct nvml_memory) | 2 << 24
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, nvml_device *device);
    int (*temperature)(nvml_device device, int sensor, unsigned *celsius);
    int (*power)(nvml_device device, unsigned *milliwatts);
    int (*utilization)(nvml_device device, struct nvml_utilization *out);
    int (*memory)(nvml_device device, struct nvml_memory *out);
};

/* False: there is no such library, or it does not start. */
static bool nvml_open(struct nvml *nvml)
{
    const struct {
        const char *name;
        void *function; /* of a pointer to a function */
    } symbols[] = {{"nvmlInit_v2", &nvml->init},
                   {"nvmlShutdown", &nvml->shutdown},
                   {"nvmlDeviceGetHandleByUUID", &nvml->find},
                   {"nvmlDeviceGetTemperature", &nvml->temperature},
                   {"nvmlDeviceGetPowerUsage", &nvml->power},
                   {"nvmlDeviceGetUtilizationRates", &nvml->utilization},
                   {"nvmlDeviceGetMemoryInfo_v2", &nvml->memory}};
    bool is_whole = true;
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; nvml->library && i < sizeof symbols / sizeof *symbols;
         i++) {
        void *found = dlsym(nvml->library, symbols[i].name);
        memcpy(symbols[i].function, &found, sizeof found);
        is_whole = is_whole && found;
    }
    if (nvml->library && is_whole && nvml->init() == 0)
        return true;
    if (nvml->library)
        dlclose(nvml->library);
    nvml->library = NULL;
    return false;
}

static void nvml_close(struct nvml *nvml)
{
    if (!nvml->library)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
}

static struct gpu_reading nothing(void)
{
    return (struct gpu_reading){NAN, NAN, NAN, NAN, NAN};
}

static struct gpu_reading nvml_read(const struct nvml *nvml, const char *uuid)
{
    struct gpu_reading out = nothing();
    struct nvml_utilization utilization;
    struct nvml_memory memory = {.version = NVML_MEMORY_VERSION};
    unsigned celsius, milliwatts;
    nvml_device device;
    if (!nvml->library || nvml->find(uuid, &device) != 0)
        return out;
    if (nvml->temperature(device, NVML_TEMPERATURE_GPU, &celsius) == 0)
        out.temperature_celsius = celsius;
    if (nvml->power(device, &milliwatts) == 0)
        out.power_watts = milliwatts * 1e-3;
    if (nvml->utilization(device, &utilization) == 0)
        out.utilization = utilization.gpu * 1e-2;
    if (nvml->memory(device, &memory) == 0) {
        out.memory_used_bytes = (double)memory.used;
        out.memory_bytes = (double)memory.total;
    }
    return out;
}

/* ----------------------------------------------------------------- thread */

struct gpu {
    char uuid[sizeof((struct roped_device_info *)0)->uuid];
    struct gpu_reading reading;
    double read_at; /* seconds of the monotonic clock */
};

struct gpu_monitor {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t asked, answered;
    pthread_t thread;
    bool has_thread, is_ending, has_ended;
    bool is_left;    /* to the thread, which frees it */
    double asked_at; /* 0: nobody waits */
    int n;
    struct gpu gpu[GPU_MOST];
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Reads every GPU, without the lock while NVML works. */
static void read_all(struct gpu_monitor *monitor, const struct nvml *nvml)
{
    for (int i = 0; i < monitor->n && !monitor->is_ending; i++) {
        struct gpu *gpu = &monitor->gpu[i]; /* its uuid never changes */
        pthread_mutex_unlock(&monitor->lock);
        struct gpu_reading reading = nvml_read(nvml, gpu->uuid);
        pthread_mutex_lock(&monitor->lock);
        gpu->reading = reading;
        gpu->read_at = now();
    }
}

static void destroy(struct gpu_monitor *monitor)
{
    pthread_cond_destroy(&monitor->answered);
    pthread_cond_destroy(&monitor->asked);
    pthread_mutex_destroy(&monitor->lock);
    free(monitor);
}

static void *run(void *argument)
{
    struct gpu_monitor *monitor = argument;
    struct nvml nvml = {.library = NULL};
    nvml_open(&nvml);
    pthread_mutex_lock(&monitor->lock);
    while (!monitor->is_ending) {
        if (monitor->asked_at != 0)
            read_all(monitor, &nvml);
        monitor->asked_at = 0;
        pthread_cond_broadcast(&monitor->answered);
        while (monitor->asked_at == 0 && !monitor->is_ending)
            pthread_cond_wait(&monitor->asked, &monitor->lock);
    }
    pthread_mutex_unlock(&monitor->lock);
    nvml_close(&nvml);
    pthread_mutex_lock(&monitor->lock);
    monitor->has_ended = true;
    const bool is_left = monitor->is_left;
    pthread_cond_broadcast(&monitor->answered);
    pthread_mutex_unlock(&monitor->lock);
    if (is_left)
        destroy(monitor);
    return NULL;
}

/* Waits for 'answered' until then. False: that time has come. */
static bool wait_until(struct gpu_monitor *monitor, double when)
{
    struct timespec time = {.tv_sec = (time_t)when,
                            .tv_nsec = (long)(fmod(when, 1) * 1e9)};
    return pthread_cond_timedwait(&monitor->answered, &monitor->lock, &time) ==
           0;
}

struct gpu_monitor *gpu_monitor_new(void)
{
    pthread_condattr_t monotonic;
    struct gpu_monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor)
        return NULL;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&monitor->lock, NULL);
    pthread_cond_init(&monitor->asked, NULL);
    pthread_cond_init(&monitor->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return monitor;
}

/* Ends the thread; false: it has not ended, and the monitor is its own now. */
static bool end_thread(struct gpu_monitor *monitor)
{
    const double end = now() + end_seconds;
    pthread_mutex_lock(&monitor->lock);
    monitor->is_ending = true;
    pthread_cond_signal(&monitor->asked);
    while (!monitor->has_ended && wait_until(monitor, end))
        ;
    const pthread_t thread = monitor->thread;
    const bool has_ended = monitor->has_ended;
    monitor->is_left = !has_ended;
    pthread_mutex_unlock(&monitor->lock);
    if (has_ended)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    return has_ended;
}

void gpu_monitor_free(struct gpu_monitor *monitor)
{
    if (!monitor || (monitor->has_thread && !end_thread(monitor)))
        return;
    destroy(monitor);
}

/* The GPU of a uuid, added where there is room; or NULL. */
static struct gpu *find(struct gpu_monitor *monitor, const char *uuid)
{
    int i = 0;
    while (i < monitor->n && strcmp(monitor->gpu[i].uuid, uuid) != 0)
        i++;
    if (i == GPU_MOST || strlen(uuid) >= sizeof monitor->gpu[i].uuid)
        return NULL;
    if (i == monitor->n) {
        monitor->gpu[i].reading = nothing();
        memcpy(monitor->gpu[i].uuid, uuid, strlen(uuid) + 1);
        monitor->n++;
    }
    return &monitor->gpu[i];
}

/* A reading that is due is waited for, unless it has been due for long. */
static void refresh(struct gpu_monitor *monitor, const struct gpu *gpu)
{
    if (gpu->read_at != 0 && now() - gpu->read_at < fresh_seconds)
        return;
    if (!monitor->has_thread)
        monitor->has_thread =
            pthread_create(&monitor->thread, NULL, run, monitor) == 0;
    if (!monitor->has_thread)
        return;
    if (monitor->asked_at == 0) {
        monitor->asked_at = now();
        pthread_cond_signal(&monitor->asked);
    }
    const double until = monitor->asked_at + wait_seconds;
    while (monitor->asked_at != 0 && wait_until(monitor, until))
        ;
}

struct gpu_reading gpu_monitor_read(struct gpu_monitor *monitor,
                                    const char *uuid)
{
    struct gpu_reading out = nothing();
    if (strncmp(uuid, "GPU-", 4) != 0)
        return out;
    pthread_mutex_lock(&monitor->lock);
    struct gpu *gpu = find(monitor, uuid);
    if (gpu) {
        refresh(monitor, gpu);
        if (gpu->read_at != 0 && now() - gpu->read_at < old_seconds)
            out = gpu->reading;
    }
    pthread_mutex_unlock(&monitor->lock);
    return out;
}
