/*
 * dtype.h - element types: one table, every spelling of a type derives from it.
 *
 * FP8 has no name in KServe v2: there it travels as UINT8 plus the hint
 * content_datatype = F8_E4M3 / F8_E5M2 (the safetensors spelling).
 */
#ifndef ROPED_DTYPE_H
#define ROPED_DTYPE_H

#include <roped/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* id, bytes, safetensors name, KServe v2 name, v2 model-config name */
#define ROPED_DTYPE_MAP(X)                                                     \
    X(BOOL, 1, "BOOL", "BOOL", "TYPE_BOOL")                                    \
    X(U8, 1, "U8", "UINT8", "TYPE_UINT8")                                      \
    X(I8, 1, "I8", "INT8", "TYPE_INT8")                                        \
    X(F8_E5M2, 1, "F8_E5M2", "UINT8", "TYPE_UINT8")                            \
    X(F8_E4M3, 1, "F8_E4M3", "UINT8", "TYPE_UINT8")                            \
    X(I16, 2, "I16", "INT16", "TYPE_INT16")                                    \
    X(U16, 2, "U16", "UINT16", "TYPE_UINT16")                                  \
    X(F16, 2, "F16", "FP16", "TYPE_FP16")                                      \
    X(BF16, 2, "BF16", "BF16", "TYPE_BF16")                                    \
    X(I32, 4, "I32", "INT32", "TYPE_INT32")                                    \
    X(U32, 4, "U32", "UINT32", "TYPE_UINT32")                                  \
    X(F32, 4, "F32", "FP32", "TYPE_FP32")                                      \
    X(F64, 8, "F64", "FP64", "TYPE_FP64")                                      \
    X(I64, 8, "I64", "INT64", "TYPE_INT64")                                    \
    X(U64, 8, "U64", "UINT64", "TYPE_UINT64")

enum roped_dtype {
    ROPED_NO_DTYPE, /* 0: an absent tensor */
#define X(id, bytes, st, v2, config) ROPED_##id,
    ROPED_DTYPE_MAP(X)
#undef X
        ROPED_DTYPE_COUNT
};

/* A set of types: bit i is type i. */
#define ROPED_SET(dtype) (1u << (unsigned)(dtype))
#define ROPED_FLOATS                                                           \
    (ROPED_SET(ROPED_F32) | ROPED_SET(ROPED_F16) | ROPED_SET(ROPED_BF16))
#define ROPED_INDEXES (ROPED_SET(ROPED_I32) | ROPED_SET(ROPED_I64))
#define ROPED_FP8S    (ROPED_SET(ROPED_F8_E4M3) | ROPED_SET(ROPED_F8_E5M2))

/* The one member of a set, or ROPED_NO_DTYPE where it has none or several. */
ROPED_API enum roped_dtype roped_dtype_only(uint32_t set);

/* Bytes of one element; 0 for ROPED_NO_DTYPE. */
ROPED_API size_t roped_dtype_bytes(enum roped_dtype dtype);

/* Spellings, static memory: "BF16" | "BF16" | "TYPE_BF16". */
ROPED_API const char *roped_dtype_name(enum roped_dtype dtype);
ROPED_API const char *roped_dtype_v2_name(enum roped_dtype dtype);
ROPED_API const char *roped_dtype_config_name(enum roped_dtype dtype);

/*
 * The type with this safetensors / v2 spelling (case matters), or
 * ROPED_NO_DTYPE. name need not be NUL-terminated. "UINT8" is ROPED_U8.
 */
ROPED_API enum roped_dtype roped_dtype_from_name(const char *name,
                                                 size_t name_bytes);
ROPED_API enum roped_dtype roped_dtype_from_v2_name(const char *name,
                                                    size_t name_bytes);

/*
 * Writes the members of a set into text, "F32, F16 or BF16", and returns text.
 */
ROPED_API const char *roped_dtype_set_text(uint32_t set, char *text,
                                           size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif
