/*
 * dtype.c - the table of element types, printed and looked up by name.
 */
#include <roped/dtype.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    size_t bytes;
    const char *name, *v2_name, *config_name;
} types[ROPED_DTYPE_COUNT] = {
    [ROPED_NO_DTYPE] = {0, "none", "none", "TYPE_INVALID"},
#define X(id, bytes, st, v2, config) [ROPED_##id] = {bytes, st, v2, config},
    ROPED_DTYPE_MAP(X)
#undef X
};

size_t roped_dtype_bytes(enum roped_dtype dtype)
{
    return types[dtype].bytes;
}

const char *roped_dtype_name(enum roped_dtype dtype)
{
    return types[dtype].name;
}

const char *roped_dtype_v2_name(enum roped_dtype dtype)
{
    return types[dtype].v2_name;
}

const char *roped_dtype_config_name(enum roped_dtype dtype)
{
    return types[dtype].config_name;
}

static bool is_name(const char *known, const char *name, size_t name_bytes)
{
    return strlen(known) == name_bytes && memcmp(known, name, name_bytes) == 0;
}

enum roped_dtype roped_dtype_from_name(const char *name, size_t name_bytes)
{
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++)
        if (is_name(types[i].name, name, name_bytes))
            return (enum roped_dtype)i;
    return ROPED_NO_DTYPE;
}

enum roped_dtype roped_dtype_from_v2_name(const char *name, size_t name_bytes)
{
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++)
        if (is_name(types[i].v2_name, name, name_bytes))
            return (enum roped_dtype)i; /* UINT8: U8 comes before the FP8s */
    return ROPED_NO_DTYPE;
}

enum roped_dtype roped_dtype_only(uint32_t set)
{
    return set && !(set & (set - 1)) ? (enum roped_dtype)__builtin_ctz(set)
                                     : ROPED_NO_DTYPE;
}

const char *roped_dtype_set_text(uint32_t set, char *text, size_t text_bytes)
{
    size_t at = 0;
    int left = __builtin_popcount(set);
    text[0] = '\0';
    /* widest first, as people list them */
    for (int i = ROPED_DTYPE_COUNT - 1; i > 0; i--) {
        if (!(set & ROPED_SET(i)) || at >= text_bytes)
            continue;
        left--;
        int length = snprintf(text + at, text_bytes - at, "%s%s", types[i].name,
                              left > 1    ? ", "
                              : left == 1 ? " or "
                                          : "");
        at += (size_t)length;
    }
    return text;
}
