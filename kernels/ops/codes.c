/*
 * codes.c - what shares a scale, and where that scale is.
 */
#include "ops/codes.h"

struct code_tiles code_tiles_of(const struct code_params *params,
                                const struct roped_tensor *rows)
{
    const int64_t width = rows->dims[rows->rank - 1];
    struct code_tiles tiles = {.n_rows = roped_tensor_elements(rows) / width,
                               .width = width,
                               .tile_rows = 1,
                               .tile_width = width,
                               .scale_tile = 1};
    if (params->granularity == CODES_GROUP)
        tiles.tile_width = params->group_size;
    if (params->granularity == CODES_BLOCK)
        tiles.tile_rows = tiles.tile_width = CODES_BLOCK_SIDE;
    tiles.n_tiles = (width + tiles.tile_width - 1) / tiles.tile_width;
    if (params->granularity != CODES_TENSOR)
        tiles.scale_row = tiles.n_tiles;
    if (params->scale_layout < SCALES_COLUMNS)
        return tiles;
    if (params->scale_layout == SCALES_COLUMNS_4)
        tiles.n_padding = (4 - tiles.n_rows % 4) % 4;
    tiles.scale_row = 1;
    tiles.scale_tile = tiles.n_rows + tiles.n_padding;
    return tiles;
}
