/*
 * test_nibble_floats.c - NVFP4 codes by the least floats of a scale are those
 * of quotients, on every instruction set that has such tables; largest values.
 */
#include "check.h"

#include "cpu/quantize_rows.h"

#include <roped/numeric.h>

#include <math.h>
#include <string.h>

enum { GROUP = 16, N_SCALES = 127, N_GROUPS = CPU_BLOCK / GROUP };

static const struct cpu_rows *rows; /* under test */

static uint64_t state = 11;

static uint32_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static _Alignas(64) float x[CPU_BLOCK];
static _Alignas(64) uint8_t code[CPU_BLOCK];

/* A few floats from where a code begins, or anything. */
static float near_code(float factor, float d)
{
    const float half_way[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    const uint32_t some = random_word();
    const float begin = half_way[some % 7] * d / factor;
    const uint32_t bits = roped_float_bits(begin) + (some >> 4) % 9 - 4;
    return roped_bits_float(some % 8 == 7 ? random_word()
                                          : bits | (some & 0x80000000u));
}

/* Such a group has nothing that becomes more than 0, but for NaN. */
static float in_empty_group(int64_t i)
{
    return i % 2 ? -0.0f : i % 3 ? NAN : 0x1p-140f;
}

/* Codes of n floats, a group by each scale from one on; what lies behind
 * stays. Is there a table for all of them? */
static bool check_codes(float factor, int64_t n, int scale, bool is_streamed)
{
    static struct cpu_nibble_floats table;
    const struct cpu_codes how = {CODE_E2M1, factor, 0, is_streamed};
    uint8_t scales[N_GROUPS];
    float by[N_GROUPS];
    memset(table.is_known, 0, sizeof table.is_known);
    for (int64_t i = 0; i < n; i++) {
        const int64_t group = i / GROUP;
        scales[group] = (uint8_t)((scale + group) % N_SCALES);
        by[group] = roped_e4m3_to_float(scales[group]);
        x[i] =
            by[group] == 0 ? in_empty_group(i) : near_code(factor, by[group]);
        by[group] = by[group] == 0 ? INFINITY : by[group];
    }
    memset(code, 0x55, sizeof code);
    if (!rows->quantize->encode_nvfp4_floats(&how, code, x, n, scales, &table))
        return false;
    rows->fence();
    for (int64_t i = 0; i < n; i++) {
        const int found = code[i / 2] >> (i % 2 * 4) & 0xF;
        const float product = x[i] * factor, d = by[i / GROUP];
        const int expected = roped_float_to_e2m1(product / d);
        if (found != expected) {
            CHECK_FAIL("%s: %a * %a / %a is %#x, expected %#x", rows->name,
                       (double)x[i], (double)factor, (double)d, found,
                       expected);
            break;
        }
    }
    CHECK_INT(code[n / 2], 0x55);
    return true;
}

TEST(codes_by_the_least_floats_of_a_scale_are_those_of_quotients)
{
    const float factors[] = {1, 0.37f, 448, 1.000001f, 12345.678f, 3e-20f};
    if (!rows->quantize->encode_nvfp4_floats)
        return;
    for (int turn = 0; turn < 600; turn++)
        CHECK(check_codes(factors[turn % 6], CPU_BLOCK, turn, turn & 1));
    for (int64_t n = GROUP; n < 300; n += GROUP)
        CHECK(check_codes(1.7f, n, (int)n, false));
}

/* Some have no table, and whoever asks divides. */
TEST(factors_that_are_almost_none_or_too_many)
{
    const float factors[] = {0x1p-126f, 0x1p-149f, 0x1.8p127f, 0x1p100f};
    int n_tables = 0;
    if (!rows->quantize->encode_nvfp4_floats)
        return;
    for (int turn = 0; turn < 400; turn++)
        n_tables += check_codes(factors[turn % 4], GROUP, turn, turn & 1);
    CHECK(n_tables < 400);
}

/* NaN, which is quiet, has no magnitude, and a group may have no others. */
TEST(largest_results_of_groups_are_those_of_numbers)
{
    static float value[CPU_BLOCK];
    if (!rows->quantize->largest_results)
        return;
    for (int64_t n = GROUP; n <= CPU_BLOCK; n += GROUP) {
        int32_t found[N_GROUPS];
        for (int64_t i = 0; i < n; i++) {
            const float some[] = {NAN, -NAN, INFINITY, 0, -0.0f, -0x1p-149f};
            const uint32_t r = random_word();
            const uint32_t few = i / GROUP % 5 ? 32 : 2;
            value[i] = r % few ? near_code(1, 1) : some[(r >> 8) % 6];
            if (isnan(value[i]) || i / GROUP % 11 == 7)
                value[i] = NAN;
        }
        rows->quantize->largest_results(value, n, found);
        for (int64_t i = 0; i < n / GROUP; i++) {
            float most = 0;
            for (int64_t j = i * GROUP; j < (i + 1) * GROUP; j++)
                most = fabsf(value[j]) > most ? fabsf(value[j]) : most;
            CHECK_INT(found[i], (int32_t)roped_float_bits(most));
        }
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
