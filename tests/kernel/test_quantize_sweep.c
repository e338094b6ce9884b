/*
 * test_quantize_sweep.c - quantize on one backend (argument: cpu or cuda)
 * against float64: every type, granularity and layout of scales, odd and wide
 * rows, misaligned and strided memory, tiny and huge values; and what NaN, Inf
 * and zeros give.
 */
#include "check.h"
#include "kernel/norm_case.h"
#include "kernel/rotary_case.h"

#include "ops/quantize.h"

#include <math.h>
#include <stdio.h>

static struct runner runner;
static struct random_source source = {41};
static const char *const dtypes[] = {"e4m3", "e5m2", "int8"};

TEST(every_type_granularity_and_width_is_right)
{
    static const int64_t widths[] = {16, 128, 576, 2048, 2304, 16384, 40960};
    static const int64_t odd[] = {1, 3, 100, 1001, 2056, 2049, 20001};
    static const double scales[] = {1e-30, 1e-3, 1, 1e4, 1e30};
    static const char *const params[] = {
        "granularity=tensor",
        "granularity=row",
        "granularity=row&scale_layout=columns_4",
        "granularity=row&scale_layout=rows_2d&scale_rounding=power_of_two",
        "granularity=block",
        "granularity=block&scale_rounding=power_of_two",
        "dynamic=false&dequant_scale=0.25",
        "dynamic=false&dequant_scale=3e-44",
        "scale_ub=0.5",
        "granularity=group&group_size=16",
        "granularity=group&group_size=16&scale_layout=columns_4",
        "granularity=group&group_size=32&scale_layout=columns",
        "granularity=group&group_size=64",
        "granularity=group&scale_rounding=power_of_two",
    };
    enum { PARAMS = sizeof params / sizeof *params, GROUPS = 9 };
    for (int p = 0; p < PARAMS; p++)
        for (int i = 0; i < 7 * 3 * 3; i++) {
            char text[96];
            bool is_odd = p < GROUPS && random_once_in(&source, 2);
            int64_t h = (is_odd ? odd : widths)[i / 9];
            if (p >= GROUPS && h % 128)
                h = 384;
            snprintf(text, sizeof text, "output_dtype=%s&%s", dtypes[i % 3],
                     params[p]);
            struct norm_case c = {
                .op = "quantize",
                .x = norm_type_pairs[i / 3 % 3][0],
                .rows = random_int(&source, 0, h > 4096 ? 3 : 300),
                .hidden = h,
                .scale = scales[random_int(&source, 0, 4)],
                .params = text,
                .options = {.misalign_elements =
                                random_once_in(&source, 3) ? 1 : 0}};
            norm_case_run(&runner, &source, &c);
        }
}

TEST(nan_inf_and_zeros_are_what_the_pages_say)
{
    static struct roped_call call;
    struct roped_error err;
    for (int type = 0; type < 3; type++) {
        char text[64];
        snprintf(text, sizeof text, "output_dtype=%s", dtypes[type]);
        struct norm_case c = {.op = "quantize",
                              .x = ROPED_F32,
                              .rows = 3,
                              .hidden = 4,
                              .params = text};
        norm_case_build(&call, &source, &c);
        float *x = call.in[QUANTIZE_X].data;
        const float values[] = {NAN, 1, -2,       0, 0,         -0.0f,
                                0,   0, INFINITY, 1, -INFINITY, NAN};
        memcpy(x, values, sizeof values);
        CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
        const uint8_t *y = call.out[QUANTIZE_Y].data;
        const float *scales = call.out[QUANTIZE_SCALES].data;
        static const uint8_t codes[3][12] = {
            {0x7F, 0x76, 0xFE, 0, 0, 0x80, 0, 0, 0x7E, 0, 0xFE, 0x7F},
            {0x7F, 0x77, 0xFB, 0, 0, 0x80, 0, 0, 0x7B, 0, 0xFB, 0x7F},
            {0, 64, (uint8_t)-127, 0, 0, 0, 0, 0, 127, 0, (uint8_t)-127, 0}};
        for (int i = 0; i < 12; i++)
            CHECK_INT(y[i], codes[type][i]);
        CHECK(scales[1] == (type == 0   ? 1 / (512 * 448.0f)
                            : type == 1 ? 1 / (512 * 57344.0f)
                                        : 1));
        CHECK(isfinite(scales[0]) && isfinite(scales[2]));
        runner_free_outputs(&call);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
