/*
 * test_streamed_rows.c - rows that are streamed have the bits of others, and
 * touch nothing beside them, wherever they begin: on every instruction set.
 */
#include "check.h"

#include "cpu/rows.h"

#include <roped/numeric.h>

static const struct cpu_rows *rows; /* under test */

enum { N = 3, MOST_WIDTH = 2100, UNWRITTEN = 0xA5, GUARD = 64 };

static _Alignas(64) unsigned char from[2 * N * MOST_WIDTH * sizeof(float)],
    to[sizeof from], again[sizeof from + 1024];

static void fill(enum roped_dtype dtype, int64_t n)
{
    uint64_t state = 5;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float x = (float)((double)(state >> 32) * 0x1p-30 - 2);
        if (dtype == ROPED_F32)
            ((float *)from)[i] = x;
        else
            ((uint16_t *)from)[i] = dtype == ROPED_F16 ? roped_float_to_f16(x)
                                                       : roped_float_to_bf16(x);
    }
}

static void check_guards(const unsigned char *x, size_t bytes)
{
    for (size_t i = 1; i <= GUARD; i++) {
        CHECK_INT(*(x - i), UNWRITTEN);
        CHECK_INT(x[bytes + i - 1], UNWRITTEN);
    }
}

struct form {
    bool has_mean, has_sum, is_added;
};

/* Sums and norms that begin at any element of a line, each at another. */
static void check_rows(enum roped_dtype dtype, int64_t width, struct form form,
                       size_t first)
{
    const float scale[N] = {0.5f, 1.25f, 3};
    const struct cpu_mean mean[N] = {{0.25f, 0}, {0, 0}, {-1, 0}};
    const size_t size = roped_dtype_bytes(dtype);
    const size_t bytes = N * (size_t)width * size;
    unsigned char *y = again + GUARD + first * size;
    unsigned char *sum = y + bytes + GUARD + 12 * size;
    struct cpu_norm norm = {.width = width,
                            .from = dtype,
                            .to = dtype,
                            .type = dtype,
                            .bias = 1,
                            .is_added = form.is_added};
    struct cpu_norm_rows some = {
        .n = N,
        .x = from,
        .residual = form.has_sum || form.is_added ? from + bytes : NULL,
        .sum = form.has_sum ? to + bytes : NULL,
        .y = to,
        .mean = form.has_mean ? mean : NULL,
        .s = scale};
    fill(dtype, 2 * N * width);
    rows->normalize(&norm, &some);
    memset(again, UNWRITTEN, sizeof again);
    some.y = y;
    some.sum = form.has_sum ? sum : NULL;
    norm.is_streamed = true;
    rows->normalize(&norm, &some);
    rows->fence();
    CHECK(memcmp(to, y, bytes) == 0);
    check_guards(y, bytes);
    if (!form.has_sum)
        return;
    CHECK(memcmp(to + bytes, sum, bytes) == 0);
    check_guards(sum, bytes);
}

TEST(streamed_rows_may_begin_anywhere)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    static const int64_t widths[] = {7,    128,  255,  256,  300,
                                     1000, 1021, 1030, 1056, 2089};
    static const struct form forms[] = {{false, false, false},
                                        {false, true, false},
                                        {false, false, true},
                                        {true, false, false},
                                        {true, true, false}};
    for (int t = 0; t < 3; t++)
        for (int w = 0; w < 10; w++)
            for (int f = 0; f < 5; f++)
                for (size_t first = 0; first < 40; first += 13)
                    check_rows(types[t], widths[w], forms[f], first);
}

int main(void)
{
    for (int rank = 0; (rows = cpu_rows_at(rank)) != NULL; rank++) {
        printf("%s:\n", rows->name);
        check_run();
    }
    return check_done();
}
