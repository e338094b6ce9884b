/*
 * fake_nvml.c - see fake_nvml.h. The signatures are those of NVIDIA's nvml.h.
 */
#include "fake_nvml.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };

atomic_int fake_nvml_starts;
atomic_int fake_nvml_watts = 350;
atomic_int fake_nvml_temperature = 61;
atomic_int fake_nvml_is_stuck;

struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out);

int nvmlInit_v2(void)
{
    atomic_fetch_add(&fake_nvml_starts, 1);
    return 0;
}

int nvmlShutdown(void)
{
    atomic_fetch_sub(&fake_nvml_starts, 1);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    static char device_0, device_1;
    if (strcmp(uuid, "GPU-fake-0") != 0 && strcmp(uuid, "GPU-fake-1") != 0)
        return NOT_FOUND;
    *device = uuid[strlen(uuid) - 1] == '0' ? &device_0 : &device_1;
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    (void)device;
    while (atomic_load(&fake_nvml_is_stuck))
        usleep(1000);
    *celsius = (unsigned)atomic_load(&fake_nvml_temperature);
    return sensor == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    int watts = atomic_load(&fake_nvml_watts);
    (void)device;
    *milliwatts = (unsigned)watts * 1000 + 500;
    return watts < 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out)
{
    (void)device;
    *out = (struct utilization){75, 20};
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out)
{
    (void)device;
    if (out->version != (sizeof *out | 2 << 24))
        return VERSION_MISMATCH;
    *out = (struct memory){out->version, 80ull << 30, 1ull << 30, 59ull << 30,
                           20ull << 30};
    return 0;
}
