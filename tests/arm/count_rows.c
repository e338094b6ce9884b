/*
 * count_rows.c - runs one row function of the CPU backend some times, for
 * tests/arm/count.sh:
 *   count_rows                  names the cases, with elements per time
 *   count_rows CASE TIMES
 * ROWS is the table of functions that it was linked with.
 */
#include "cpu/rows.h"

#include <roped/numeric.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct cpu_rows ROWS;

enum { N_ROWS = 32, WIDTH = 4096, HEAD = 128, N_PAIRS = HEAD / 2 };

static _Alignas(64) float from[N_ROWS * WIDTH], to[N_ROWS * WIDTH];
static uint16_t weight[WIDTH];
static float c[N_PAIRS], s[N_PAIRS], rms[N_ROWS], divisor[N_ROWS];
static float scales[N_ROWS * WIDTH / 16];

static float next_value(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1;
}

static void fill(enum roped_dtype dtype)
{
    for (int i = 0; i < N_ROWS * WIDTH; i++) {
        float value = next_value();
        if (dtype == ROPED_F32)
            from[i] = value;
        else if (dtype == ROPED_F16)
            ((uint16_t *)from)[i] = roped_float_to_f16(value);
        else
            ((uint16_t *)from)[i] = roped_float_to_bf16(value);
    }
    for (int i = 0; i < WIDTH; i++)
        weight[i] = roped_float_to_bf16(1 + next_value() / 8);
    for (int i = 0; i < N_PAIRS; i++) {
        c[i] = cosf((float)i);
        s[i] = sinf((float)i);
    }
    for (int i = 0; i < N_ROWS; i++) {
        rms[i] = 1.7f;
        divisor[i] = 0.0123f;
    }
}

/* One token of 32 heads. */
static void rotate(enum roped_dtype dtype, enum rope_style style)
{
    struct cpu_heads heads = {.from = dtype,
                              .to = dtype,
                              .style = style,
                              .n_heads = N_ROWS,
                              .width = HEAD,
                              .from_pitch = HEAD,
                              .to_pitch = HEAD,
                              .n_pairs = N_PAIRS,
                              .scale = 1};
    ROWS.rotate(&heads, to, from, &(struct cpu_pairs){0, N_PAIRS, c, s});
}

enum kind { NEOX, GPTJ, NORM, FP8, FP8_DYNAMIC, FP8_GROUPS };

static void normalize(enum roped_dtype dtype, enum kind kind)
{
    static const struct cpu_fp8_scale bound = {1e6f, 448, 1e-6f};
    struct cpu_scales out = {scales, WIDTH / 128, 1};
    struct cpu_norm norm = {.width = WIDTH,
                            .from = dtype,
                            .to = kind == NORM ? dtype : ROPED_F8_E4M3,
                            .type = dtype,
                            .weight_dtype = ROPED_BF16,
                            .weight = weight};
    struct cpu_norm_rows rows = {
        .n = N_ROWS, .x = from, .y = to, .s = rms, .divisor = divisor};
    ROWS.inverse_rms(dtype, WIDTH, &rows, 1e-6f, rms);
    if (kind == FP8_DYNAMIC)
        ROWS.largest(&norm, &rows, scales);
    if (kind == FP8_GROUPS)
        ROWS.normalize_groups(&norm, &rows, 128, &bound, &out);
    else
        ROWS.normalize(&norm, &rows);
}

static const struct {
    const char *name;
    enum roped_dtype dtype;
    enum kind kind;
} cases[] = {
    {"rope_bf16_neox", ROPED_BF16, NEOX},
    {"rope_bf16_gptj", ROPED_BF16, GPTJ},
    {"rope_f16_neox", ROPED_F16, NEOX},
    {"rmsnorm_bf16", ROPED_BF16, NORM},
    {"rmsnorm_f16", ROPED_F16, NORM},
    {"rmsnorm_quantize_bf16_static", ROPED_BF16, FP8},
    {"rmsnorm_quantize_bf16_dynamic", ROPED_BF16, FP8_DYNAMIC},
    {"rmsnorm_quantize_bf16_by_128", ROPED_BF16, FP8_GROUPS},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void run(int i)
{
    if (cases[i].kind <= GPTJ)
        rotate(cases[i].dtype, cases[i].kind == GPTJ ? ROPE_GPTJ : ROPE_NEOX);
    else
        normalize(cases[i].dtype, cases[i].kind);
}

int main(int argc, char **argv)
{
    int i = 0;
    if (argc != 3) {
        for (; i < N_CASES; i++)
            printf("%s %d\n", cases[i].name,
                   N_ROWS * (cases[i].kind <= GPTJ ? HEAD : WIDTH));
        return 0;
    }
    while (i < N_CASES && strcmp(cases[i].name, argv[1]) != 0)
        i++;
    if (i == N_CASES) {
        fprintf(stderr, "count_rows: no case '%s'\n", argv[1]);
        return 2;
    }
    fill(cases[i].dtype);
    for (long n = strtol(argv[2], NULL, 10); n > 0; n--)
        run(i);
    return 0;
}
