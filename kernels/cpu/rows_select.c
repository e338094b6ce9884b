/*
 * rows_select.c - which of the tables this processor can run.
 */
#include "cpu/rows.h"

#include <stddef.h>

#ifdef CPU_HAS_ARM_ROWS
#include <asm/hwcap.h>
#include <sys/auxv.h>

extern const struct cpu_rows cpu_rows_neon, cpu_rows_neonbf16;
#else
extern const struct cpu_rows cpu_rows_portable;
#endif
#ifdef CPU_HAS_X86_ROWS
#include <cpuid.h>

extern const struct cpu_rows cpu_rows_avx2, cpu_rows_avx512,
    cpu_rows_avx512bf16;

/* Clang 14 knows no such name for __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           has_f16c();
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

int cpu_rows_rank;

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
#ifdef CPU_HAS_ARM_ROWS
    if (getauxval(AT_HWCAP2) & HWCAP2_BF16)
        usable[n++] = &cpu_rows_neonbf16;
    usable[n++] = &cpu_rows_neon;
#else
    usable[n++] = &cpu_rows_portable;
#endif
    return rank < n ? usable[rank] : NULL;
}
