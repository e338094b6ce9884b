/*
 * rows.c - the table of one instruction set's functions; built, like the
 * rows_*.c beside it, once per instruction set.
 */
#include "cpu/activation_rows.h"
#include "cpu/binary_rows.h"
#include "cpu/compare_rows.h"
#include "cpu/norm_gradient_rows.h"
#include "cpu/quantize_rows.h"
#include "cpu/rows_isa.h"

#define TEXT_(a) #a
#define TEXT(a)  TEXT_(a)

static void scale(float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void fence_streams(void)
{
    fence();
}

extern const struct cpu_activation_rows ISA(cpu_activation_rows);
extern const struct cpu_binary_rows ISA(cpu_binary_rows);
extern const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows);
extern const struct cpu_compare_rows ISA(cpu_compare_rows);
extern const struct cpu_quantize_rows ISA(cpu_quantize_rows);
extern const struct cpu_rows ISA(cpu_rows);
const struct cpu_rows ISA(cpu_rows) = {
    .name = TEXT(CPU_ISA),
    .convert = ISA(cpu_convert),
    .widen = ISA(cpu_widen),
    .round = ISA(cpu_round),
    .normal = ISA(cpu_normal),
#if defined(HAS_BYTE_TABLES)
    .normal_words = ISA(cpu_normal_words),
#endif
    .scale = scale,
    .rotate = ISA(cpu_rotate),
    .angles = ISA(cpu_angles),
    .inverse_rms = ISA(cpu_inverse_rms),
    .inverse_deviation = ISA(cpu_inverse_deviation),
    .add = ISA(cpu_add),
    .sum = ISA(cpu_sum),
    .fill_weight = ISA(cpu_fill_weight),
    .normalize = ISA(cpu_normalize),
    .largest = ISA(cpu_largest),
    .normalize_scaled = ISA(cpu_normalize_scaled),
    .normalize_groups = ISA(cpu_normalize_groups),
    .fence = fence_streams,
    .binary = &ISA(cpu_binary_rows),
    .activation = &ISA(cpu_activation_rows),
    .quantize = &ISA(cpu_quantize_rows),
    .norm_gradient = &ISA(cpu_norm_gradient_rows),
    .compare = &ISA(cpu_compare_rows),
};
