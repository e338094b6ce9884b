/*
 * test_angles.c - frequencies of the scaling variants at points that can be
 * worked out by hand; tables of other libraries are judged in tests/http.
 */
#include "check.h"

#include <roped/angles.h>

#include <math.h>
#include <string.h>

static struct roped_angle_params params;
static struct roped_angles angles;
static struct roped_error err;
static float storage[256];

static enum roped_status resolve(int64_t r, int64_t d, int64_t largest)
{
    return roped_angles_resolve(&params, NULL, r, d, largest, storage, &angles,
                                &err);
}

TEST(plain_frequencies_are_powers_of_the_base)
{
    roped_angle_params_init(&params);
    CHECK_OK(resolve(8, 8, 0), &err);
    CHECK_INT(angles.n_pairs, 4);
    CHECK_DOUBLE((double)storage[0], 1, 0);
    CHECK_DOUBLE((double)storage[2], 0.01, 1e-9);
    CHECK_DOUBLE((double)angles.attention_factor, 1, 0);
}

TEST(llama3_keeps_short_and_divides_long_wavelengths)
{
    roped_angle_params_init(&params);
    params.theta = 500000;
    params.scaling = ROPED_SCALING_LLAMA3;
    CHECK_INT(resolve(128, 128, 0), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "factor");
    params.factor = 8;
    params.low_freq_factor = 1;
    params.high_freq_factor = 4;
    params.original_max_position = 8192;
    CHECK_OK(resolve(128, 128, 0), &err);
    CHECK_DOUBLE((double)storage[0], 1, 0);
    double slowest = pow(500000, -126.0 / 128) / 8;
    CHECK_DOUBLE((double)storage[63] / slowest, 1, 1e-6);
}

/* As in a request's body, where what stands before them decides. */
TEST(factor_lists_begin_at_any_byte)
{
    static const float shorts[2] = {1, 2}, longs[2] = {3, 4};
    unsigned char body[2 * sizeof shorts + 1];
    const void *first = body + 1, *second = body + 1 + sizeof shorts;
    const struct roped_longrope_factors factors = {first, second, 2};
    memcpy(body + 1, shorts, sizeof shorts);
    memcpy(body + 1 + sizeof shorts, longs, sizeof longs);
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_LONGROPE;
    params.theta = 100;
    params.max_position = params.original_max_position = 16;
    CHECK_OK(roped_angles_resolve(&params, &factors, 4, 4, 15, storage, &angles,
                                  &err),
             &err);
    CHECK_DOUBLE((double)storage[1], 1 / (2 * 10.0), 1e-8);
}

/* Each step rounded to float32: a processor that multiplies and adds in one
 * step may not do so here. */
TEST(llama3_rounds_every_step_as_pytorch_does)
{
    int n_between = 0;
    for (int i = 0; i < 64; i++) {
        volatile float f = 1 / (float)pow(500000, 2 * i / 128.0);
        volatile float wavelength = 6.2831854820251465f / f;
        if (wavelength < 2048 || wavelength > 8192)
            continue;
        volatile float t = 8192 / wavelength;
        t = (t - 1) / 3;
        volatile float slow = (1 - t) * f, fast = t * f;
        slow = slow / 8;
        CHECK_DOUBLE((double)storage[i], (double)(slow + fast), 0);
        n_between++;
    }
    CHECK_INT(n_between, 6);
}

TEST(dynamic_grows_with_the_longest_position_only_beyond_the_maximum)
{
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_DYNAMIC;
    params.factor = 2;
    params.max_position = 1000;
    CHECK(roped_angles_depend_on_position(&params));
    CHECK_OK(resolve(64, 64, 10), &err);
    float plain = storage[31];
    CHECK_OK(resolve(64, 64, 999), &err);
    CHECK(storage[31] == plain);
    CHECK_OK(resolve(64, 64, 3999), &err);
    CHECK(storage[31] < plain);
    CHECK_INT(resolve(2, 2, 10), ROPED_BAD_PARAMETER);
}

TEST(yarn_has_an_attention_factor)
{
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_YARN;
    params.factor = 4;
    params.original_max_position = 4096;
    CHECK_OK(resolve(128, 128, 0), &err);
    CHECK_DOUBLE((double)angles.attention_factor, 0.1 * log(4) + 1, 1e-7);
    params.mscale = params.mscale_all_dim = 1;
    CHECK_OK(resolve(128, 128, 0), &err);
    CHECK_DOUBLE((double)angles.attention_factor, 1, 0);
    params.attention_factor = 1.5;
    CHECK_OK(resolve(128, 128, 0), &err);
    CHECK_DOUBLE((double)angles.attention_factor, 1.5, 0);
}

/* Frequencies of yarn; mscale counts without mscale_all_dim, and 0 does. */
TEST(deepseek_yarn_divides_two_magnitudes)
{
    float yarn[32];
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_YARN;
    params.factor = 40;
    params.original_max_position = 4096;
    params.mscale = 0.7;
    CHECK_OK(resolve(64, 64, 0), &err);
    memcpy(yarn, storage, sizeof yarn);
    CHECK_DOUBLE((double)angles.attention_factor, 0.1 * log(40) + 1, 1e-7);
    params.scaling = ROPED_SCALING_DEEPSEEK_YARN;
    CHECK_OK(resolve(64, 64, 0), &err);
    CHECK(memcmp(yarn, storage, sizeof yarn) == 0);
    CHECK_DOUBLE((double)angles.attention_factor, 0.07 * log(40) + 1, 1e-7);
    params.mscale_all_dim = 0.7;
    CHECK_OK(resolve(64, 64, 0), &err);
    CHECK_DOUBLE((double)angles.attention_factor, 1, 0);
    params.mscale = 0;
    CHECK_OK(resolve(64, 64, 0), &err);
    CHECK_DOUBLE((double)angles.attention_factor, 1 / (0.07 * log(40) + 1),
                 1e-7);
    params.original_max_position = ROPED_UNSET_INT;
    CHECK_INT(resolve(64, 64, 0), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "'original_max_position'");
}

TEST(proportional_rotates_the_whole_head)
{
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_PROPORTIONAL;
    CHECK_OK(resolve(16, 64, 0), &err);
    CHECK_INT(angles.n_pairs, 32);
    CHECK(storage[7] > 0);
    CHECK(storage[8] == 0 && storage[31] == 0);
}

TEST(the_same_numbers_are_the_same_key)
{
    static float other[256];
    struct roped_angles again;
    roped_angle_params_init(&params);
    CHECK_OK(resolve(64, 64, 0), &err);
    params.scaling = ROPED_SCALING_LINEAR;
    params.factor = 1;
    CHECK_OK(
        roped_angles_resolve(&params, NULL, 64, 64, 0, other, &again, &err),
        &err);
    CHECK(roped_angles_equal(&angles, &again));
    CHECK(roped_angles_hash(&angles) == roped_angles_hash(&again));
    other[5] = 0;
    CHECK(!roped_angles_equal(&angles, &again));
}

/* Each thread remembers what it resolved last: that must not show. */
TEST(what_was_resolved_before_does_not_matter)
{
    enum { CASES = 7 };
    static double first[CASES][128];
    float factor[CASES];
    for (int round = 0; round < 3; round++) {
        for (int repeat = 0; repeat < 2 * CASES; repeat++) {
            int i = round == 2 ? CASES - 1 - repeat / 2 : repeat / 2;
            static double found[128];
            memset(found, 0, sizeof found);
            roped_angle_params_init(&params);
            params.theta = i == 1 ? 500000 : 10000;
            params.angle_precision = i == 2 ? ROPED_ANGLE_F64 : ROPED_ANGLE_F32;
            params.scaling = i == 4   ? ROPED_SCALING_DYNAMIC
                             : i == 5 ? ROPED_SCALING_YARN
                             : i == 6 ? ROPED_SCALING_PROPORTIONAL
                                      : ROPED_SCALING_NONE;
            params.factor = 4;
            params.max_position = params.original_max_position = 1000;
            /* dynamic: the second time with another position */
            int64_t largest = repeat % 2 ? 3999 : 10;
            CHECK_OK(roped_angles_resolve(&params, NULL, i == 3 ? 32 : 64, 128,
                                          largest, found, &angles, &err),
                     &err);
            CHECK_INT(angles.n_pairs, i == 3 ? 16 : i == 6 ? 64 : 32);
            if (i == 4 && repeat % 2) { /* not what the call before had */
                CHECK(memcmp(found, first[i], sizeof found) != 0);
                continue;
            }
            if (round == 0 && repeat % 2 == 0) {
                memcpy(first[i], found, sizeof found);
                factor[i] = angles.attention_factor;
            }
            CHECK(memcmp(found, first[i], sizeof found) == 0);
            CHECK_DOUBLE((double)angles.attention_factor, (double)factor[i], 0);
        }
    }
    for (int i = 0; i < CASES; i++)
        for (int j = 0; j < i; j++)
            if (i != 4 || j != 0) /* short of the maximum dynamic is plain */
                CHECK(memcmp(first[i], first[j], sizeof first[i]) != 0);
}

static void set_axial(int scaling, int64_t first, int64_t second)
{
    roped_angle_params_init(&params);
    params.scaling = scaling;
    params.mrope_section =
        (struct roped_ints){.count = 2, .value = {first, second}};
}

TEST(axial_frequencies_begin_anew_in_each_section)
{
    static const double blocks[] = {1, 0.1, 0.01, 0.001, 1, 0.01};
    static const double turns[] = {1, 1, 0.01, 0.01};
    set_axial(ROPED_SCALING_AXIAL, 4, 2);
    CHECK_OK(resolve(12, 12, 0), &err);
    for (int i = 0; i < 6; i++)
        CHECK_DOUBLE((double)storage[i] / blocks[i], 1, 1e-6);
    set_axial(ROPED_SCALING_AXIAL, 2, 2);
    params.mrope_interleaved = 1;
    CHECK_OK(resolve(8, 8, 0), &err);
    for (int i = 0; i < 4; i++)
        CHECK_DOUBLE((double)storage[i] / turns[i], 1, 1e-6);
    set_axial(ROPED_SCALING_AXIAL, 3, 1);
    params.mrope_interleaved = 1;
    CHECK_INT(resolve(8, 8, 0), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "'mrope_section': 3 and 1, expected equal");
    params.mrope_section.count = 0;
    CHECK_INT(resolve(8, 8, 0), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "missing parameter 'mrope_section'");
}

TEST(dealt_frequencies_are_those_of_the_head_in_turns)
{
    static const double expected[] = {1, 0.01, 0.1, 0.001};
    set_axial(ROPED_SCALING_AXIAL_DEALT, 2, 2);
    CHECK_OK(resolve(8, 8, 0), &err);
    for (int i = 0; i < 4; i++)
        CHECK_DOUBLE((double)storage[i] / expected[i], 1, 1e-6);
}

TEST(sections_lie_in_blocks_or_take_turns)
{
    static const int blocks[] = {0, 0, 0, 0, 1, 1, 2, 2};
    static const int turns[] = {0, 1, 2, 0, 1, 2, 0, 0};
    roped_angle_params_init(&params);
    params.mrope_section = (struct roped_ints){.count = 3, .value = {4, 2, 2}};
    for (int i = 0; i < 8; i++)
        CHECK_INT(roped_angles_section(&params, i), blocks[i]);
    params.mrope_interleaved = 1;
    for (int i = 0; i < 8; i++)
        CHECK_INT(roped_angles_section(&params, i), turns[i]);
}

static enum roped_status check_turns(int64_t turns, int64_t n_pairs)
{
    params.mrope_turns = turns;
    return roped_angles_check_sections(&params, n_pairs, &err);
}

/* As Ernie 4.5 VL has height, width and time. */
TEST(first_sections_take_turns_and_others_follow)
{
    static const int sections[] = {0, 1, 0, 1, 2, 2, 2};
    roped_angle_params_init(&params);
    params.mrope_section = (struct roped_ints){.count = 3, .value = {2, 2, 3}};
    CHECK_OK(check_turns(2, 7), &err);
    for (int i = 0; i < 7; i++)
        CHECK_INT(roped_angles_section(&params, i), sections[i]);
    CHECK_INT(check_turns(2, 8), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "sum 7, expected");
    CHECK_INT(check_turns(1, 7), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "'mrope_turns': 1, expected 2 to 3");
    CHECK_INT(check_turns(4, 7), ROPED_BAD_PARAMETER);
    CHECK_INT(check_turns(3, 7), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "'mrope_section': 2 and 3, expected equal counts");
    params.mrope_interleaved = 1;
    CHECK_INT(check_turns(2, 7), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "both given, expected one");
}

TEST(axial_frequencies_begin_anew_where_sections_take_turns)
{
    static const double expected[] = {1, 1, 0.01, 0.01, 1, 0.1, 0.01, 0.001};
    roped_angle_params_init(&params);
    params.scaling = ROPED_SCALING_AXIAL;
    params.mrope_section = (struct roped_ints){.count = 3, .value = {2, 2, 4}};
    params.mrope_turns = 2;
    CHECK_OK(resolve(16, 16, 0), &err);
    for (int i = 0; i < 8; i++)
        CHECK_DOUBLE((double)storage[i] / expected[i], 1, 1e-6);
}
