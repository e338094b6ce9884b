/*
 * quantize_rows.h - the inner loops of quantize and dequantize on a block of
 * float32, at most CPU_BLOCK.
 */
#ifndef ROPED_CPU_QUANTIZE_ROWS_H
#define ROPED_CPU_QUANTIZE_ROWS_H

#include "cpu/rows.h"
#include "ops/quantize.h"

/* What codes are made of values that were divided by those of their tiles. */
struct cpu_codes {
    enum code_element element;
    float factor; /* e2m1: what values are multiplied by first, and rounded */
    float least;  /* int8; the most is 127 */
    bool is_streamed;
    int64_t ahead; /* bytes: how far ahead memory is asked for */
};

/* What values are made of codes. */
struct cpu_expansion {
    enum code_element element;
    enum roped_dtype to;
    bool is_streamed;
};

/* FP8 codes of what is divided by one number: fp8_steps.h. */
struct cpu_fp8_steps {
    _Alignas(64) int32_t more[16];
    int32_t base, room, most;
    float divisor; /* 0: there are none yet */
};

/* For each scale of NVFP4 the least words of bfloat16, or of float16, of the
 * codes 1 to 7, and one more; group_words.h. */
struct cpu_nibble_words {
    bool is_known[256];
    uint16_t least[128][8];
};

/* The same of floats: what they are multiplied by, and the least ones of 16
 * places; group_floats.h. */
struct cpu_nibble_floats {
    bool is_known[256];
    struct cpu_nibble_float {
        _Alignas(64) float least[16];
        float product;
    } of[128];
};

/* Of a thread, which begins with none; each for what it makes codes of. */
struct cpu_nibble_tables {
    struct cpu_nibble_words words;
    struct cpu_nibble_floats floats;
};

/* For each scale the values of the sixteen e2m1 codes, of F16 or BF16. */
struct cpu_nibble_values {
    bool is_known[256];
    uint16_t value[256][16];
};

struct cpu_quantize_rows {
    /* most[i / tile] becomes the bits of the largest magnitude, if that is
     * more: of numbers, or of all, where NaN is beyond Inf. tile: 16 or whole
     * CPU_LANES. */
    void (*largest)(const float *x, int64_t n, int64_t tile, bool counts_nan,
                    int32_t *most);
    /* The codes of x[i] * factor / divisor[i / tile], each step correctly
     * rounded, and these to nearest even and the nearest code; NaN as
     * kernels/README.md has it. Of e2m1 two a byte, n is even. */
    void (*encode)(const struct cpu_codes *how, void *to, const float *x,
                   int64_t n, int64_t tile, const float *divisor);
    /* The bits of the largest magnitudes of tiles of rows, of what is not NaN,
     * from F32, F16 or BF16; several tiles are of whole CPU_LANES, and most has
     * room for whole sixteens of them. NULL where an instruction set cannot
     * look up bytes, as the next one. */
    void (*largest_of)(enum roped_dtype dtype, const void *x, int64_t stride,
                       int64_t n_rows, int64_t n, int64_t tile, int32_t *most);
    /* The same of groups of 16 results of arithmetic, whose NaNs are quiet;
     * most has room for whole sixteens. */
    void (*largest_results)(const float *x, int64_t n, int32_t *most);
    /* As encode, int8 and FP8 of any number of values of these types, FP8 by
     * steps for each tile that are found where they are of another divisor.
     * That is at least 2^-60 and finite. */
    void (*encode_type)(const struct cpu_codes *how, enum roped_dtype dtype,
                        void *to, const void *x, int64_t n, int64_t tile,
                        const float *divisor, struct cpu_fp8_steps *steps);
    /* Scales of F32, by the bits of the largest magnitudes; of several there is
     * room for whole sixteens. */
    void (*numbers)(const struct code_rule *rule, const int32_t *largest,
                    int64_t n, float *scale);
    /* Scales of E8M0, by the same, and by what is divided. */
    void (*powers)(const struct code_rule *rule, const int32_t *largest,
                   int64_t n, uint8_t *code, float *divisor);

    /*
     * Groups of 32 and 16 bfloat16, at most CPU_BLOCK of them. NULL as
     * encode_type, all of these.
     *
     * Words in the place of F16 or F32, of groups of 32: most becomes other
     * bits, but of the same power, and codes are the same where the power is
     * 2^-111 or more, or all values are 0. asks_ahead: x is in memory.
     */
    void (*odd_words)(enum roped_dtype dtype, bool asks_ahead, uint16_t *to,
                      const void *x, int64_t n);

    /*
     * most[i / group] becomes the bits of the largest magnitude, as largest
     * has it. n: whole groups, of 16 also of F16.
     */
    void (*largest_groups)(enum roped_dtype dtype, const void *x, int64_t n,
                           int64_t group, bool counts_nan, int32_t *most);
    /* As encode, MXFP8 and MXFP4: divisors are powers of two, or NaN where
     * values are, 2^127 where one is Inf, and else quotients of MXFP4 are at
     * most 16. */
    void (*encode_powers)(const struct cpu_codes *how, void *to, const void *x,
                          int64_t n, const float *divisor);
    /* As encode, NVFP4, by the scales themselves, which are not NaN. What the
     * table does not know yet is added, always of one type. */
    void (*encode_nvfp4)(const struct cpu_codes *how, enum roped_dtype dtype,
                         void *to, const void *x, int64_t n,
                         const uint8_t *scale, struct cpu_nibble_words *table);
    /* The same of floats, or false, and nothing, where a scale has no table. */
    bool (*encode_nvfp4_floats)(const struct cpu_codes *how, void *to,
                                const float *x, int64_t n, const uint8_t *scale,
                                struct cpu_nibble_floats *table);
    /* Which of n scales, at most CPU_BLOCK / 16, is not known first; or n. */
    int64_t (*first_unknown)(const bool is_known[256], const uint8_t *scale,
                             int64_t n);
    /* As expand, e2m1 in F16 or BF16: all that these scales have is known. */
    void (*expand_nibbles)(void *to, const void *from, int64_t n, int64_t group,
                           const uint8_t *scale, bool is_streamed,
                           const struct cpu_nibble_values *table);

    /* The values of n codes times scale[i / tile], in F32, F16 or BF16; of
     * e2m1 n is even. */
    void (*expand)(const struct cpu_expansion *how, void *to, const void *from,
                   int64_t n, int64_t tile, const float *scale);
};

#endif
