/*
 * machine.c - cores, cache and name of the processor, as Linux tells them.
 */
#include "cpu/machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

int machine_usable_cores(void)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file) {
        double quota, period;
        if (fscanf(file, "%lf %lf", &quota, &period) == 2 && period > 0) {
            int allowed = (int)(quota / period + 0.5);
            if (allowed >= 1 && allowed < cores)
                cores = allowed;
        }
        fclose(file);
    }
    return cores;
}

/*
 * From sysfs: in virtual machines glibc's sysconf adds up the caches of all the
 * host's cores.
 */
int64_t machine_cache_bytes(void)
{
    int64_t largest = 0;
    for (int index = 0; index < 8; index++) {
        char path[80];
        long kilobytes = 0;
        snprintf(path, sizeof path,
                 "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        FILE *file = fopen(path, "re");
        if (!file)
            break;
        if (fscanf(file, "%ldK", &kilobytes) == 1 &&
            (int64_t)kilobytes << 10 > largest)
            largest = (int64_t)kilobytes << 10;
        fclose(file);
    }
    return largest ? largest : 32 << 20;
}

void machine_model_name(char *name, size_t bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, bytes, "CPU");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        snprintf(name, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file)
        fclose(file);
}
