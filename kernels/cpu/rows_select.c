/*
 * rows_select.c - which of the tables this processor can run.
 */
#include "cpu/rows.h"

#include <stddef.h>

extern const struct cpu_rows cpu_rows_portable;
#ifdef CPU_HAS_X86_ROWS
extern const struct cpu_rows cpu_rows_avx2, cpu_rows_avx512,
    cpu_rows_avx512bf16;

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi");
}
#endif

const struct cpu_rows *cpu_rows_at(int rank)
{
    const struct cpu_rows *usable[4];
    int n = 0;
#ifdef CPU_HAS_X86_ROWS
    __builtin_cpu_init();
    if (has_avx512() && __builtin_cpu_supports("avx512bf16"))
        usable[n++] = &cpu_rows_avx512bf16;
    if (has_avx512())
        usable[n++] = &cpu_rows_avx512;
    if (has_avx2())
        usable[n++] = &cpu_rows_avx2;
#endif
    usable[n++] = &cpu_rows_portable;
    return rank < n ? usable[rank] : NULL;
}
