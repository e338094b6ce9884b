/*
 * rows_select.c - which instruction set this processor has.
 */
#include "cpu/binary_rows.h"
#include "cpu/rows.h"

enum isa { PORTABLE, AVX2, AVX512 };

extern const struct cpu_rows cpu_rows_portable;
extern const struct cpu_binary_rows cpu_binary_rows_portable;
#ifdef CPU_HAS_X86_ROWS
extern const struct cpu_rows cpu_rows_avx2, cpu_rows_avx512;
extern const struct cpu_binary_rows cpu_binary_rows_avx2,
    cpu_binary_rows_avx512;
#endif

static enum isa find_isa(void)
{
#ifdef CPU_HAS_X86_ROWS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return AVX2;
#endif
    return PORTABLE;
}

const struct cpu_rows *cpu_rows_select(void)
{
    static const struct cpu_rows *const tables[] = {
        [PORTABLE] = &cpu_rows_portable,
#ifdef CPU_HAS_X86_ROWS
        [AVX2] = &cpu_rows_avx2,
        [AVX512] = &cpu_rows_avx512,
#endif
    };
    return tables[find_isa()];
}

const struct cpu_binary_rows *cpu_binary_rows_select(void)
{
    static const struct cpu_binary_rows *const tables[] = {
        [PORTABLE] = &cpu_binary_rows_portable,
#ifdef CPU_HAS_X86_ROWS
        [AVX2] = &cpu_binary_rows_avx2,
        [AVX512] = &cpu_binary_rows_avx512,
#endif
    };
    return tables[find_isa()];
}
