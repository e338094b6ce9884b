/*
 * machine.h - what the processor that we run on is.
 */
#ifndef ROPED_CPU_MACHINE_H
#define ROPED_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Cores that this process may use: its affinity, cut by a cgroup's quota. */
int machine_usable_cores(void);

/* Bytes of the last-level cache that one core sees; 32 MiB where unknown. */
int64_t machine_cache_bytes(void);

/* "AMD EPYC", or "CPU". */
void machine_model_name(char *name, size_t bytes);

#endif
