/*
 * codes.h - rows of codes and their scales, as quantize makes and dequantize
 * takes them: formats, what shares a scale, and where that scale is.
 */
#ifndef ROPED_OPS_CODES_H
#define ROPED_OPS_CODES_H

#include "ops/scale.h"

enum code_format {
    CODES_E4M3,
    CODES_E5M2,
    CODES_INT8,
    CODES_MXFP8,
    CODES_MXFP4,
    CODES_NVFP4,
    CODES_FORMATS
};

/* One code. Two e2m1 share a byte, the first in the low bits. */
enum code_element { CODE_E4M3, CODE_E5M2, CODE_I8, CODE_E2M1 };

/* A scale: a number; an exponent, 2^(code - 127), 0xFF is NaN; or FP8, which is
 * divided by global_scale to be one. */
enum code_scale { CODE_SCALE_F32, CODE_SCALE_E8M0, CODE_SCALE_E4M3 };

/* What a format is. */
struct code_traits {
    const char *name;
    enum code_element element;
    enum code_scale scale;
    enum roped_dtype dtype; /* of codes */
    int64_t group;          /* columns that share a scale; 0: any */
    float largest;          /* magnitude of a code */
};
extern const struct code_traits code_traits[CODES_FORMATS];

/* What shares a scale. */
enum code_granularity { CODES_TENSOR, CODES_ROW, CODES_GROUP, CODES_BLOCK };
enum { CODES_BLOCK_SIDE = 128 };

/* Order of the scales of n rows with g groups each; g is 1 for whole rows. */
enum scale_layout {
    SCALES_ROWS,      /* [n, g]; whole rows: [n] */
    SCALES_ROWS_2D,   /* [n, g]; whole rows: [n, 1] */
    SCALES_COLUMNS,   /* [g, n] */
    SCALES_COLUMNS_4, /* [g, n rounded up to a multiple of 4], 0 beyond n */
    SCALES_SWIZZLED   /* n rounded up to 128, g to 4: tiles of 128 x 4, as
                         cuBLASLt takes them, 0 beyond n and g */
};

struct code_params {
    double dequant_scale;
    double global_scale;
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
    int32_t is_swizzled;
    int32_t scale_bytes;
};

/* Bytes of n codes of rows. */
static inline int64_t code_bytes(enum code_element element, int64_t n)
{
    return element == CODE_E2M1 ? n / 2 : n;
}

/* Of rows of so many values in that format. */
struct code_tiles code_tiles_of(const struct code_params *params,
                                enum code_format format, int64_t n_rows,
                                int64_t width);

/* clang-format off */
#define CODES_AT(params, member) offsetof(struct params, codes.member)
#define CODES_CHOICES   "e4m3|e5m2|int8|mxfp8|mxfp4|nvfp4"
#define CODES_DTYPES    "F8_E4M3|F8_E5M2|I8|F8_E4M3|U8|U8"
#define CODES_TYPES     (ROPED_FP8S | ROPED_SET(ROPED_I8) | ROPED_SET(ROPED_U8))
#define SCALES_DTYPES   "F32|F32|F32|U8|U8|F8_E4M3"
#define SCALES_TYPES    (ROPED_SET(ROPED_F32) | ROPED_SET(ROPED_U8) | ROPED_SET(ROPED_F8_E4M3))

/* dtype: the parameter that says the format. */
#define CODES_PLAIN(dtype)  dtype "=e4m3,e5m2,int8"
#define CODES_MX(dtype)     dtype "=mxfp8,mxfp4"
#define CODES_NV(dtype)     dtype "=nvfp4"
#define CODES_MICRO(dtype)  dtype "=mxfp8,mxfp4,nvfp4"

#define CODES_SHAPE(dtype) "[" dtype "=mxfp4,nvfp4] ...rows h/2|...rows h"
#define SCALES_OF_GROUPS(condition, group) \
    "[" condition "scale_layout=swizzled] rows^128 h/" group "^4" \
    "|[" condition "scale_layout=columns] h/" group " rows" \
    "|[" condition "scale_layout=columns_4] h/" group " rows^4"
#define SCALES_OF_MICRO(dtype) \
    SCALES_OF_GROUPS(CODES_NV(dtype) " ", "16") \
    "|[" CODES_NV(dtype) "] rows h/16|" \
    SCALES_OF_GROUPS(CODES_MX(dtype) " ", "32") \
    "|[" CODES_MX(dtype) "] rows h/32"
#define SCALES_SHAPE(dtype) \
    SCALES_OF_MICRO(dtype) \
    "|[" CODES_PLAIN(dtype) " granularity=tensor] 1" \
    "|[" CODES_PLAIN(dtype) " granularity=block] rows^128/128 h^128/128" \
    "|[" CODES_PLAIN(dtype) " granularity=row scale_layout=rows] rows" \
    "|[" CODES_PLAIN(dtype) " granularity=row scale_layout=rows_2d] rows 1" \
    "|[" CODES_PLAIN(dtype) " granularity=row scale_layout=columns] 1 rows" \
    "|[" CODES_PLAIN(dtype) " granularity=row scale_layout=columns_4] 1 rows^4" \
    "|[scale_layout=columns] h/group_size rows" \
    "|[scale_layout=columns_4] h/group_size rows^4" \
    "|rows h/group_size"

/* What has no meaning beside another format or granularity. */
#define CODES_GIVEN(dtype, global_scale) \
    {.when = CODES_PLAIN(dtype), .with_param = "scale_layout", .needs = "granularity=row,group"}, \
    {.when = CODES_PLAIN(dtype), .with_param = "group_size", .needs = "granularity=group"}, \
    {.when = CODES_MICRO(dtype), .with_param = "granularity", .needs = "granularity=group"}, \
    {.when = CODES_MX(dtype), .with_param = "group_size", .needs = "group_size=32"}, \
    {.when = CODES_NV(dtype), .with_param = "group_size", .needs = "group_size=16"}, \
    {.with_param = "group_size", .needs = "group_size=16,32,64,128"}, \
    CODES_MICRO_GIVEN(dtype, global_scale)
#define CODES_MICRO_GIVEN(dtype, global_scale) \
    {.when = "scale_layout=swizzled", .with_param = "scale_layout", .needs = CODES_MICRO(dtype)}, \
    {.with_param = "global_scale", .needs = CODES_NV(dtype)}, \
    {.when = CODES_PLAIN(dtype) ",mxfp8,mxfp4", .none = ROPED_INPUT(global_scale)}

#define CODES_TILE_PARAMS(params, where) \
    {"granularity", ROPED_PARAM_CHOICE, CODES_AT(params, granularity), 0, CODES_ROW, .choices = "tensor|row|group|block", .doc = where "what has a scale: all, each row, each group of it, each block of 128 rows and 128 columns, fewer at the edges; of mxfp8, mxfp4 and nvfp4 always groups"}, \
    {"group_size", ROPED_PARAM_INT, CODES_AT(params, group_size), 0, 128, 16, 128, .doc = "granularity=group: columns of a group, 16, 32, 64 or 128; of mxfp8 and mxfp4 32, of nvfp4 16"}
#define CODES_LAYOUT_PARAM(params, where) \
    {"scale_layout", ROPED_PARAM_CHOICE, CODES_AT(params, scale_layout), .choices = "rows|rows_2d|columns|columns_4|swizzled", .doc = where "rows: [n] or [n, g]; rows_2d: [n, 1] or [n, g]; columns: [g, n]; columns_4: [g, n rounded up to 4 with zeros], for TMA; swizzled: mxfp8, mxfp4 and nvfp4: tiles of 128 x 4 with zeros beyond n and g, as cuBLASLt and Blackwell take them"}
#define CODES_GLOBAL_PARAM(params) \
    {"global_scale", ROPED_PARAM_FLOAT, CODES_AT(params, global_scale), ROPED_ABOVE_MIN, 1, 0, FLT_MAX, .doc = "nvfp4: what values were multiplied by before their scales were found, 2688 / largest of the tensor as FlashInfer, vLLM and TransformerEngine have it"}
/* clang-format on */

#endif
