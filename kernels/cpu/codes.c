/*
 * codes.c - scales of tiles, and codes of values that were divided by them.
 */
#include "cpu/codes.h"

#include <roped/numeric.h>

#include <math.h>
#include <string.h>

int64_t code_scale_at(const struct code_tiles *tiles, int64_t strip,
                      int64_t tile)
{
    if (!tiles->is_swizzled)
        return strip * tiles->scale_row + tile * tiles->scale_tile;
    return (strip / 128 * cpu_ceil_div(tiles->n_tiles, 4) + tile / 4) * 512 +
           strip % 32 * 16 + strip / 32 % 4 * 4 + tile % 4;
}

/* Where a tile's scale is, to go on from. */
struct place {
    int64_t strip, tile, at;
};

static struct place place_of(const struct code_tiles *tiles, int64_t strip,
                             int64_t tile)
{
    return (struct place){strip, tile, code_scale_at(tiles, strip, tile)};
}

/* The tile beside it, or the first of those below. */
static void go_on(const struct code_tiles *tiles, struct place *place)
{
    enum { FOUR = 4, TO_NEXT_FOUR = 512 - FOUR + 1 };
    if (++place->tile == tiles->n_tiles)
        *place = place_of(tiles, place->strip + 1, 0);
    else if (!tiles->is_swizzled)
        place->at += tiles->scale_tile;
    else
        place->at += place->tile % FOUR == 0 ? TO_NEXT_FOUR : 1;
}

/* Do scales lie in the order of their tiles? */
static bool is_in_order(const struct code_tiles *tiles)
{
    return !tiles->is_swizzled && tiles->scale_tile == 1 &&
           tiles->scale_row == tiles->n_tiles;
}

void code_scale_bytes(const struct code_tiles *tiles, const void *scales,
                      int64_t strip, int64_t tile, int64_t n, uint8_t *code)
{
    const uint8_t *from = scales;
    if (is_in_order(tiles)) {
        memcpy(code, from + code_scale_at(tiles, strip, tile), (size_t)n);
        return;
    }
    struct place place = place_of(tiles, strip, tile);
    for (int64_t i = 0; i < n; i++, go_on(tiles, &place))
        code[i] = from[place.at];
}

void code_scale_values(const struct cpu_rows *rows, enum code_scale kind,
                       const struct code_tiles *tiles, const void *scales,
                       int64_t strip, int64_t tile, int64_t n, float *value)
{
    const struct cpu_expansion as_floats = {CODE_E4M3, ROPED_F32, false};
    const float one = 1;
    uint8_t code[CPU_MOST_TILES];
    if (kind != CODE_SCALE_F32)
        code_scale_bytes(tiles, scales, strip, tile, n, code);
    struct place place = place_of(tiles, strip, tile);
    for (int64_t i = 0; kind == CODE_SCALE_F32 && i < n; i++) {
        value[i] = ((const float *)scales)[place.at];
        go_on(tiles, &place);
    }
    for (int64_t i = 0; kind == CODE_SCALE_E8M0 && i < n; i++)
        value[i] = roped_e8m0_to_float(code[i]);
    if (kind == CODE_SCALE_E4M3)
        rows->quantize->expand(&as_floats, value, code, n, CPU_BLOCK, &one);
}

bool code_counts_nan(const struct code_rule *rule)
{
    return rule->scale == CODE_SCALE_E8M0;
}

static void e4m3_of(const struct cpu_rows *rows, const struct code_rule *rule,
                    const int32_t *largest, int64_t n, uint8_t *code)
{
    const struct cpu_conversion how = {ROPED_F32, ROPED_F8_E4M3, 1, false};
    float scale[CPU_MOST_TILES];
    for (int64_t i = 0; i < n; i++)
        scale[i] = roped_bits_float((uint32_t)largest[i]) / rule->largest *
                   rule->global_scale;
    rows->convert(&how, code, scale, n);
}

void code_divisors(const struct cpu_rows *rows, const uint8_t *code, int64_t n,
                   float *divisor)
{
    const struct cpu_expansion values = {CODE_E4M3, ROPED_F32, false};
    const float one = 1;
    rows->quantize->expand(&values, divisor, code, n, CPU_BLOCK, &one);
    for (int64_t i = 0; i < n; i++)
        divisor[i] = divisor[i] == 0 ? INFINITY : divisor[i];
}

/* n scales, bytes or floats as the tiles have them. */
static void store_scales(const struct code_scales *to, const void *scale,
                         int64_t n)
{
    const struct code_tiles *tiles = to->tiles;
    const size_t bytes = (size_t)tiles->scale_bytes;
    struct place place = place_of(tiles, to->strip, to->first);
    float *value = (float *)to->data + place.at;
    if (is_in_order(tiles) && bytes == 1) {
        memcpy((uint8_t *)to->data + place.at, scale, (size_t)n);
        return;
    }
    /* one by one: memcpy loads parts of two vectors that were stored, and waits
     * until they are written, behind all that was streamed before */
    if (is_in_order(tiles)) {
        for (int64_t i = 0; i < n; i++)
            value[i] = ((const float *)scale)[i];
        return;
    }
    for (int64_t i = 0; i < n; i++, go_on(tiles, &place))
        if (bytes == 1)
            ((uint8_t *)to->data)[place.at] = ((const uint8_t *)scale)[i];
        else
            ((float *)to->data)[place.at] = ((const float *)scale)[i];
}

void code_scales_store(const struct cpu_rows *rows,
                       const struct code_rule *rule, const int32_t *largest,
                       int64_t n, const struct code_scales *to, float *divisor,
                       uint8_t *code)
{
    switch (rule->scale) {
    case CODE_SCALE_E8M0:
        rows->quantize->powers(rule, largest, n, code, divisor);
        store_scales(to, code, n);
        break;
    case CODE_SCALE_E4M3:
        e4m3_of(rows, rule, largest, n, code);
        store_scales(to, code, n);
        if (divisor)
            code_divisors(rows, code, n, divisor);
        break;
    default:
        rows->quantize->numbers(rule, largest, n, divisor);
        store_scales(to, divisor, n);
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
