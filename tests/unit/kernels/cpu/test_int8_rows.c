/*
 * test_int8_rows.c - int8 codes are those of quotients, on every instruction
 * set.
 */
#include "check.h"

#include "cpu/quantize_rows.h"

#include <roped/numeric.h>

#include <math.h>

static const struct cpu_rows *rows; /* under test */

static uint64_t state = 7;

static uint32_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static _Alignas(64) float number[CPU_BLOCK + 16];
static _Alignas(64) uint16_t word[CPU_BLOCK];
static _Alignas(64) int8_t code[CPU_BLOCK + 64];

static int code_of(float x, float divisor, float least)
{
    const float q = x / divisor;
    const float bounded = isnan(q) ? 0 : q < least ? least : q > 127 ? 127 : q;
    return (int)rintf(bounded);
}

static void check_code(int64_t i, float x, float divisor, float least)
{
    if (code[i] != code_of(x, divisor, least))
        CHECK_FAIL("%s: %a / %a is %d, expected %d", rows->name, (double)x,
                   (double)divisor, code[i], code_of(x, divisor, least));
}

/* As floats, and as words where there are loops for them. */
static void check_codes(int64_t n, int64_t tile, const float *divisor,
                        float least, bool is_streamed)
{
    const struct cpu_codes how = {
        .element = CODE_I8, .least = least, .is_streamed = is_streamed};
    const enum roped_dtype dtypes[] = {ROPED_F16, ROPED_BF16};
    for (int i = 0; i < 64; i++)
        code[n + i] = 0x55;
    rows->quantize->encode(&how, code, number, n, tile, divisor);
    rows->fence();
    for (int64_t i = 0; i < n; i++)
        check_code(i, number[i], divisor[i / tile], least);
    for (int64_t k = 0; rows->quantize->encode_type && k < 2; k++) {
        for (int64_t i = 0; i < n; i++)
            word[i] = k ? roped_float_to_bf16(number[i])
                        : roped_float_to_f16(number[i]);
        rows->quantize->encode_type(&how, dtypes[k], code, word, n, tile,
                                    divisor, NULL);
        rows->fence();
        for (int64_t i = 0; i < n; i++)
            check_code(i,
                       k ? roped_bf16_to_float(word[i])
                         : roped_f16_to_float(word[i]),
                       divisor[i / tile], least);
    }
    for (int i = 0; i < 64; i++)
        CHECK_INT(code[n + i], 0x55);
}

/* Next to what is half-way between two codes, a few that are as large as any,
 * and those that are no number. */
static float number_near(float divisor)
{
    const float rare[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, -NAN};
    const uint32_t r = random_word();
    const float half_way = (float)(int)(r % 262) - 131 + 0.5f;
    if (r >> 16 & 0xFF)
        return roped_bits_float(roped_float_bits(half_way * divisor) +
                                (r >> 24) % 7 - 3);
    if (r >> 24 & 1)
        return rare[random_word() % 6];
    return roped_bits_float(random_word());
}

/* Powers of two, tame ones and others. */
static float divisor_of(int i)
{
    const float rare[] = {0,        INFINITY, NAN,       -1.5f,
                          0x1p-70f, 0x1p100f, 0x1p-149f, 0x1.8p127f};
    const float power = ldexpf(1, (int)(random_word() % 130) - 65);
    if (i % 4 == 0)
        return power;
    if (i % 4 == 1)
        return rare[random_word() % 8];
    return roped_bits_float(roped_float_bits(i % 4 == 2 ? power : 1) |
                            (random_word() & 0x7FFFFF));
}

TEST(codes_of_int8_are_those_of_quotients)
{
    for (int turn = 0; turn < 400; turn++) {
        const int64_t tiles[] = {CPU_BLOCK, 128, 64, 32, 16};
        const int64_t tile = tiles[turn % 5];
        const int64_t n = CPU_BLOCK - turn / 5 % 9 * 48;
        float divisor[CPU_BLOCK / 16];
        for (int64_t i = 0; i * tile < CPU_BLOCK; i++)
            divisor[i] = divisor_of(turn + (int)i);
        for (int64_t i = 0; i < n; i++)
            number[i] = number_near(turn % 7 ? divisor[i / tile] : 0.37f);
        check_codes(n, tile, divisor, turn % 3 ? -127 : -128, turn % 2);
    }
}

/* One of them in each place of a step. */
TEST(a_number_that_is_half_way_may_be_anywhere)
{
    const float divisor = 1.7f;
    for (int64_t at = 0; at < 130; at++) {
        for (int64_t i = 0; i < 192; i++)
            number[i] = (float)(random_word() % 100) - 50;
        number[at] = at % 2 ? NAN : -2.5f * divisor;
        check_codes(192, CPU_BLOCK, &divisor, -127, false);
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
