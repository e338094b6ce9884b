/*
 * codes.c - formats, what shares a scale, and where that scale is.
 */
#include "ops/codes.h"

#include <roped/numeric.h>

/* clang-format off */
const struct code_traits code_traits[CODES_FORMATS] = {
    [CODES_E4M3]  = {"e4m3",  CODE_E4M3, CODE_SCALE_F32,  ROPED_F8_E4M3, 0,  ROPED_E4M3_MAX},
    [CODES_E5M2]  = {"e5m2",  CODE_E5M2, CODE_SCALE_F32,  ROPED_F8_E5M2, 0,  ROPED_E5M2_MAX},
    [CODES_INT8]  = {"int8",  CODE_I8,   CODE_SCALE_F32,  ROPED_I8,      0,  127},
    [CODES_MXFP8] = {"mxfp8", CODE_E4M3, CODE_SCALE_E8M0, ROPED_F8_E4M3, 32, ROPED_E4M3_MAX},
    [CODES_MXFP4] = {"mxfp4", CODE_E2M1, CODE_SCALE_E8M0, ROPED_U8,      32, ROPED_E2M1_MAX},
    [CODES_NVFP4] = {"nvfp4", CODE_E2M1, CODE_SCALE_E4M3, ROPED_U8,      16, ROPED_E2M1_MAX},
};
/* clang-format on */

static int64_t tile_width_of(const struct code_params *params,
                             const struct code_traits *traits, int64_t width)
{
    if (traits->group)
        return traits->group;
    switch (params->granularity) {
    case CODES_GROUP:
        return params->group_size;
    case CODES_BLOCK:
        return CODES_BLOCK_SIDE;
    default:
        return width;
    }
}

struct code_tiles code_tiles_of(const struct code_params *params,
                                enum code_format format, int64_t n_rows,
                                int64_t width)
{
    const struct code_traits *traits = &code_traits[format];
    const bool is_micro = traits->group > 0;
    struct code_tiles tiles = {
        .n_rows = n_rows,
        .width = width,
        .tile_rows = 1,
        .tile_width = tile_width_of(params, traits, width),
        .scale_tile = 1,
        .is_swizzled = params->scale_layout == SCALES_SWIZZLED,
        .scale_bytes = traits->scale == CODE_SCALE_F32 ? 4 : 1};
    if (!is_micro && params->granularity == CODES_BLOCK)
        tiles.tile_rows = CODES_BLOCK_SIDE;
    tiles.n_tiles = (width + tiles.tile_width - 1) / tiles.tile_width;
    if (is_micro || params->granularity != CODES_TENSOR)
        tiles.scale_row = tiles.n_tiles;
    if (params->scale_layout < SCALES_COLUMNS || tiles.is_swizzled)
        return tiles;
    if (params->scale_layout == SCALES_COLUMNS_4)
        tiles.n_padding = (4 - tiles.n_rows % 4) % 4;
    tiles.scale_row = 1;
    tiles.scale_tile = tiles.n_rows + tiles.n_padding;
    return tiles;
}
