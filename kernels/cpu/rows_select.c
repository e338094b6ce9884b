/*
 * rows_select.c - which instruction set this processor has.
 */
#include "cpu/rows.h"

extern const struct cpu_rows cpu_rows_portable;
#ifdef CPU_HAS_X86_ROWS
extern const struct cpu_rows cpu_rows_avx2, cpu_rows_avx512;
#endif

const struct cpu_rows *cpu_rows_select(void)
{
#ifdef CPU_HAS_X86_ROWS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vbmi"))
        return &cpu_rows_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return &cpu_rows_avx2;
#endif
    return &cpu_rows_portable;
}
