/*
 * codes.c - scales of tiles, and codes of values that were divided by them.
 */
#include "cpu/codes.h"

#include <roped/numeric.h>

#include <string.h>

int64_t code_scale_at(const struct code_tiles *tiles, int64_t strip,
                      int64_t tile)
{
    if (!tiles->is_swizzled)
        return strip * tiles->scale_row + tile * tiles->scale_tile;
    return (strip / 128 * cpu_ceil_div(tiles->n_tiles, 4) + tile / 4) * 512 +
           strip % 32 * 16 + strip / 32 % 4 * 4 + tile % 4;
}

float code_scale_value(enum code_scale kind, const void *scales, int64_t at)
{
    const uint8_t *code = scales;
    switch (kind) {
    case CODE_SCALE_E8M0:
        return roped_e8m0_to_float(code[at]);
    case CODE_SCALE_E4M3:
        return roped_e4m3_to_float(code[at]);
    default:
        return ((const float *)scales)[at];
    }
}

int32_t code_bound(const struct code_rule *rule)
{
    return rule->scale == CODE_SCALE_E8M0 ? CPU_COUNTS_ALL : CPU_COUNTS_NUMBERS;
}

static float number_of(const struct code_rule *rule, int32_t largest)
{
    const struct cpu_fp8_scale how = {rule->scale_ub, rule->largest,
                                      rule->least_scale};
    float scale = cpu_fp8_scale_of(&how, roped_bits_float((uint32_t)largest));
    if (scale == 0)
        scale = 1;
    if (rule->power_of_two)
        scale = roped_bits_float((roped_float_bits(scale) + 0x7FFFFFu) &
                                 0x7F800000u);
    return scale;
}

static uint8_t e8m0_of(const struct code_rule *rule, int32_t largest)
{
    if (largest >= 0x7F800000)
        return largest > 0x7F800000 || rule->infinity == INFINITY_IS_NAN ? 0xFF
                                                                         : 0xFE;
    const uint32_t exponent = ((uint32_t)largest + rule->round_bits) >> 23;
    const int32_t code = (int32_t)exponent -
                         (int32_t)(roped_float_bits(rule->largest) >> 23) + 127;
    return (uint8_t)(code < 0 ? 0 : code);
}

struct cpu_quotient code_scale_store(const struct code_rule *rule,
                                     int32_t largest, void *scales, int64_t at)
{
    const float a = roped_bits_float((uint32_t)largest);
    uint8_t *code = scales;
    switch (rule->scale) {
    case CODE_SCALE_E8M0:
        code[at] = e8m0_of(rule, largest);
        return (struct cpu_quotient){1, roped_e8m0_to_float(code[at])};
    case CODE_SCALE_E4M3:
        code[at] = roped_float_to_e4m3(a / rule->largest * rule->global_scale);
        if (code[at] == 0)
            return (struct cpu_quotient){0, 1};
        return (struct cpu_quotient){rule->global_scale,
                                     roped_e4m3_to_float(code[at])};
    default:
        return (struct cpu_quotient){1, ((float *)scales)[at] =
                                            number_of(rule, largest)};
    }
}

void code_store(const struct cpu_rows *rows, const struct code_rule *rule,
                void *to, const float *x, int64_t n, bool is_streamed)
{
    const struct cpu_conversion how = {
        ROPED_F32, rule->element == CODE_E5M2 ? ROPED_F8_E5M2 : ROPED_F8_E4M3,
        1, is_streamed};
    switch (rule->element) {
    case CODE_I8:
        rows->quantize->to_i8(to, x, n, rule->least_code);
        break;
    case CODE_E2M1:
        rows->quantize->to_e2m1(to, x, n);
        break;
    default:
        rows->convert(&how, to, x, n);
    }
}

void code_clear_padding(const struct code_tiles *tiles,
                        const struct roped_tensor *scales)
{
    const size_t bytes = (size_t)tiles->scale_bytes;
    if (tiles->is_swizzled) {
        memset(scales->data, 0, (size_t)roped_tensor_bytes(scales));
        return;
    }
    for (int64_t i = 0; i < tiles->n_tiles && tiles->n_padding; i++)
        memset(
            cpu_at(scales->data, i * tiles->scale_tile + tiles->n_rows, bytes),
            0, (size_t)tiles->n_padding * bytes);
}
