/*
 * test_sum_rows.c - sums of rows before their norm have the bits of every step
 * by itself, on every instruction set.
 */
#include "check.h"

#include "cpu/rows.h"

#include <roped/numeric.h>

#include <math.h>
#include <string.h>

static const struct cpu_rows *rows; /* under test */

enum { MOST = 200, GUARD = 64, BYTES = 4 };

/* Elements of any type, each with room for a float, from a line on. */
struct row {
    _Alignas(64) uint8_t data[(MOST + GUARD) * BYTES];
};
static struct row x, residual, addend, sum, kept, expected_sum, expected_kept;

static uint32_t random_word(void)
{
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float value_of(enum roped_dtype dtype, const struct row *row, int64_t i)
{
    float value;
    uint16_t code;
    memcpy(&value, row->data + 4 * i, 4 * (dtype == ROPED_F32));
    memcpy(&code, row->data + 2 * i, sizeof code);
    return dtype == ROPED_F32   ? value
           : dtype == ROPED_F16 ? roped_f16_to_float(code)
                                : roped_bf16_to_float(code);
}

static void set_value(enum roped_dtype dtype, struct row *row, int64_t i,
                      float value)
{
    const uint16_t code = dtype == ROPED_F16 ? roped_float_to_f16(value)
                                             : roped_float_to_bf16(value);
    if (dtype == ROPED_F32)
        memcpy(row->data + 4 * i, &value, sizeof value);
    else
        memcpy(row->data + 2 * i, &code, sizeof code);
}

static float rounded(enum roped_dtype dtype, float value)
{
    struct row row;
    set_value(dtype, &row, 0, value);
    return value_of(dtype, &row, 0);
}

/* A step, which a compiler may not fuse with the next one. */
static float step(const struct cpu_sum *how, enum roped_dtype dtype,
                  float value)
{
    volatile float result = value;
    return how->rounds ? rounded(dtype, result) : result;
}

static float term(const struct cpu_sum *how, enum roped_dtype dtype,
                  const struct row *row, float scale, int64_t i)
{
    const float value = value_of(dtype, row, i);
    return scale == 1 ? value : step(how, dtype, value * scale);
}

static float sum_at(const struct cpu_sum *how, bool has_addend, int64_t i)
{
    const enum roped_dtype of_sum = how->residual_dtype;
    const float a = term(how, how->dtype, &x, how->x_scale, i);
    const float b = term(how, of_sum, &residual, how->residual_scale, i);
    const float c = term(how, how->dtype, &addend, how->addend_scale, i);
    float z = a + b;
    if (has_addend && how->residual_first)
        z = step(how, of_sum, z) + c;
    else if (has_addend)
        z = step(how, how->dtype, a + c) + b;
    return how->sum_scale == 1 ? z : step(how, of_sum, z) * how->sum_scale;
}

static void check_sum(const struct cpu_sum *how, int64_t n, bool has_addend,
                      bool has_kept)
{
    const struct cpu_terms terms = {x.data, residual.data,
                                    has_addend ? addend.data : NULL, sum.data,
                                    has_kept ? kept.data : NULL};
    memset(&sum, 0x55, sizeof sum);
    memset(&kept, 0x55, sizeof kept);
    expected_sum = sum;
    expected_kept = kept;
    for (int64_t i = 0; i < n; i++) {
        const float z = sum_at(how, has_addend, i);
        set_value(how->residual_dtype, &expected_sum, i, z);
        if (has_kept)
            set_value(how->kept_dtype, &expected_kept, i, z);
    }
    rows->sum(how, &terms, n);
    rows->fence();
    if (memcmp(&sum, &expected_sum, sizeof sum) ||
        memcmp(&kept, &expected_kept, sizeof kept))
        CHECK_FAIL("%s: %d, %d of %s and %s", rows->name, (int)n, how->rounds,
                   roped_dtype_name(how->dtype),
                   roped_dtype_name(how->residual_dtype));
}

static void fill(enum roped_dtype dtype, struct row *row)
{
    for (int64_t i = 0; i < MOST; i++)
        set_value(dtype, row, i,
                  ldexpf((float)(int32_t)random_word(),
                         (int)(random_word() % 12) - 34));
}

TEST(sums_have_the_bits_of_their_steps)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    static const float scales[] = {1, 0.22f, -3.1f, 1};
    for (int turn = 0; turn < 6000 && !check_failures; turn++) {
        const uint32_t word = random_word();
        const enum roped_dtype dtype = types[turn % 3];
        const bool is_wide = word & 1;
        const struct cpu_sum how = {.dtype = dtype,
                                    .residual_dtype =
                                        is_wide ? ROPED_F32 : dtype,
                                    .kept_dtype = word & 2 ? ROPED_F32 : dtype,
                                    .x_scale = scales[word >> 2 & 3],
                                    .residual_scale = scales[word >> 4 & 3],
                                    .addend_scale = scales[word >> 6 & 3],
                                    .sum_scale = scales[word >> 8 & 3],
                                    .rounds = word >> 10 & 1,
                                    .residual_first = word >> 11 & 1,
                                    .is_streamed = word >> 12 & 1};
        fill(dtype, &x);
        fill(how.residual_dtype, &residual);
        fill(dtype, &addend);
        check_sum(&how, turn % (MOST + 1), word >> 13 & 1, word >> 14 & 1);
    }
}

/* A sum may take the place of what it is made of. */
TEST(sums_take_the_place_of_their_terms)
{
    const struct cpu_sum how = {ROPED_BF16, ROPED_BF16, ROPED_F32, 1, 1, 1, 1};
    for (int turn = 0; turn < 2; turn++) {
        struct row *const place = turn ? &residual : &x;
        fill(ROPED_BF16, &x);
        fill(ROPED_BF16, &residual);
        for (int64_t i = 0; i < MOST; i++)
            set_value(ROPED_BF16, &expected_sum, i, sum_at(&how, false, i));
        const struct cpu_terms terms = {x.data, residual.data, NULL,
                                        place->data, NULL};
        rows->sum(&how, &terms, MOST);
        CHECK(!memcmp(place, &expected_sum, MOST * sizeof(uint16_t)));
    }
}

int main(void)
{
    for (int rank = 0; (rows = cpu_rows_at(rank)) != NULL; rank++) {
        printf("%s:\n", rows->name);
        check_run();
    }
    return check_done();
}
