/*
 * gpu.h - temperature, power, memory and utilization of NVIDIA GPUs, as their
 * driver's management library (NVML) has them. It is loaded at the first
 * reading of a GPU; where there is none, nothing is known.
 *
 * A driver that is ill may never answer. So a thread of its own asks, and who
 * reads waits for a tenth of a second at most.
 */
#ifndef ROPED_METRICS_GPU_H
#define ROPED_METRICS_GPU_H

#include <roped/backend.h>

enum { GPU_MOST = 64 }; /* GPUs that are read */

/* NAN: not known */
struct gpu_reading {
    double temperature_celsius, power_watts;
    double utilization; /* 0 to 1: of a time of up to a second, that in which a
                           kernel of anybody ran */
    double memory_used_bytes, memory_bytes; /* by anybody; in all */
};

struct gpu_monitor;

/* NULL: no memory. Starts no thread and loads nothing yet. */
struct gpu_monitor *gpu_monitor_new(void);

/* Waits for the thread; one that the driver has not answered for a second is
 * left behind, with what it uses. */
void gpu_monitor_free(struct gpu_monitor *monitor);

/*
 * What is known of the GPU of this uuid ("GPU-...", as struct roped_device_info
 * has it; any other text: nothing is), not older than 2 seconds. Several
 * threads may read.
 */
struct gpu_reading gpu_monitor_read(struct gpu_monitor *monitor,
                                    const char *uuid);

#endif
