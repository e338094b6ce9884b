/*
 * codes.h - rows of codes and their scales, as quantize makes and dequantize
 * takes them: formats, what shares a scale, and where that scale is.
 */
#ifndef ROPED_OPS_CODES_H
#define ROPED_OPS_CODES_H

#include <roped/op.h>

enum code_format { CODES_E4M3, CODES_E5M2, CODES_INT8 };

/* What shares a scale. */
enum code_granularity { CODES_TENSOR, CODES_ROW, CODES_GROUP, CODES_BLOCK };
enum { CODES_BLOCK_SIDE = 128 };

/* Order of the scales of n rows with g groups each; g is 1 for whole rows. */
enum scale_layout {
    SCALES_ROWS,     /* [n, g]; whole rows: [n] */
    SCALES_ROWS_2D,  /* [n, g]; whole rows: [n, 1] */
    SCALES_COLUMNS,  /* [g, n] */
    SCALES_COLUMNS_4 /* [g, n rounded up to a multiple of 4], 0 beyond n */
};

struct code_params {
    double dequant_scale;
    int64_t group_size;
    int32_t format;       /* enum code_format */
    int32_t granularity;  /* enum code_granularity */
    int32_t scale_layout; /* enum scale_layout */
    int32_t reserved;
};

/* Tiles of rows share a scale; the one scale of a tensor is that of each of its
 * rows. */
struct code_tiles {
    int64_t n_rows, width; /* of all */
    int64_t tile_rows, tile_width;
    int64_t n_tiles;    /* beside each other */
    int64_t scale_row;  /* elements to the scale of the tile below */
    int64_t scale_tile; /* to that of the tile beside it */
    int64_t n_padding;  /* zeros behind the last of each column */
};

/* Of a tensor of rows of values. */
struct code_tiles code_tiles_of(const struct code_params *params,
                                const struct roped_tensor *rows);

/* clang-format off */
#define CODES_AT(params, member) offsetof(struct params, codes.member)
#define CODES_FORMATS    "e4m3|e5m2|int8"
#define CODES_FORMATS_OF "F8_E4M3|F8_E5M2|I8"
#define CODES_TYPES      (ROPED_FP8S | ROPED_SET(ROPED_I8))

#define CODES_SCALES_SHAPE \
    "[granularity=tensor] 1" \
    "|[granularity=block] rows^128/128 h^128/128" \
    "|[granularity=row scale_layout=rows] rows" \
    "|[granularity=row scale_layout=rows_2d] rows 1" \
    "|[granularity=row scale_layout=columns] 1 rows" \
    "|[granularity=row scale_layout=columns_4] 1 rows^4" \
    "|[scale_layout=columns] h/group_size rows" \
    "|[scale_layout=columns_4] h/group_size rows^4" \
    "|rows h/group_size"

/* What has no meaning beside another granularity. */
#define CODES_GIVEN \
    {.with_param = "scale_layout", .needs = "granularity=row,group"}, \
    {.with_param = "group_size", .needs = "granularity=group"}, \
    {.with_param = "group_size", .needs = "group_size=16,32,64,128"}

#define CODES_TILE_PARAMS(params, where) \
    {"granularity", ROPED_PARAM_CHOICE, CODES_AT(params, granularity), 0, CODES_ROW, .choices = "tensor|row|group|block", .doc = where "what has a scale: all, each row, each group of it, each block of 128 rows and 128 columns, fewer at the edges"}, \
    {"group_size", ROPED_PARAM_INT, CODES_AT(params, group_size), 0, 128, 16, 128, .doc = "granularity=group: columns of a group, 16, 32, 64 or 128"}
#define CODES_LAYOUT_PARAM(params) \
    {"scale_layout", ROPED_PARAM_CHOICE, CODES_AT(params, scale_layout), .choices = "rows|rows_2d|columns|columns_4", .doc = "row and group: rows: [n] or [n, g]; rows_2d: [n, 1] or [n, g]; columns: [g, n]; columns_4: [g, n rounded up to 4 with zeros], for TMA"}
/* clang-format on */

#endif
