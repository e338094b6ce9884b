/*
 * test_activation_rows.c - gelu is that of float64 wherever it is a normal
 * number, in each piece that a table has, on every instruction set.
 */
#include "check.h"

#include "cpu/activation_rows.h"

#include <float.h>
#include <math.h>

static const struct cpu_rows *rows; /* under test */

static const struct act_and_mul_plan gelu = {.activation = ACT_GELU,
                                             .limit = INFINITY};

static void activate(const float *x, float *y)
{
    const struct cpu_gated gated = {.dtype = ROPED_F32,
                                    .to_dtype = ROPED_F32,
                                    .rounds = ROPED_F32,
                                    .gate = x,
                                    .to = y};
    rows->activation->gate(&gelu, &gated, CPU_BLOCK);
}

static double exact_gelu(double x)
{
    return x * 0.5 * erfc(-x * 0.70710678118654752);
}

TEST(gelu_is_that_of_float64)
{
    static float x[CPU_BLOCK], y[CPU_BLOCK];
    for (int block = 0; block < 100; block++) {
        const float first = -13.0f + 0.19f * (float)block; /* to 6 */
        for (int i = 0; i < CPU_BLOCK; i++)
            x[i] = first + 0.19f / CPU_BLOCK * (float)i;
        activate(x, y);
        for (int i = 0; i < CPU_BLOCK; i++) {
            const double expected = exact_gelu((double)x[i]);
            const double off = fabs((double)y[i] - expected);
            if (off > 1e-6 * fabs(expected) + 0x1p-149)
                CHECK_FAIL("%s: gelu of %a is %a, expected %a", rows->name,
                           (double)x[i], (double)y[i], expected);
        }
    }
}

TEST(gelu_ends_as_it_must)
{
    static float x[CPU_BLOCK] = {INFINITY, -INFINITY, NAN,    0,
                                 -0.0f,    -FLT_MAX,  FLT_MAX};
    static float y[CPU_BLOCK];
    activate(x, y);
    CHECK(y[0] == INFINITY);
    CHECK(y[1] == 0 && signbit(y[1]));
    CHECK(isnan(y[2]));
    CHECK(y[3] == 0 && !signbit(y[3]));
    CHECK(y[4] == 0 && signbit(y[4]));
    CHECK(y[5] == 0 && signbit(y[5]));
    CHECK(y[6] == FLT_MAX);
}

int main(void)
{
    for (int rank = 0; (rows = cpu_rows_at(rank)) != NULL; rank++) {
        printf("%s:\n", rows->name);
        check_run();
    }
    return check_done();
}
