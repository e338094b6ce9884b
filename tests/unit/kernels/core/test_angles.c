/*
 * test_angles.c - frequencies of the scaling variants at points that can be
 * worked out by hand; tables of other libraries are judged in tests/http.
 */
#include "check.h"

#include <roped/angles.h>

#include <math.h>

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
    CHECK_INT(resolve(128, 128, 0), ROPED_INVALID);
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
    CHECK_INT(resolve(2, 2, 10), ROPED_INVALID);
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

int main(void)
{
    RUN(plain_frequencies_are_powers_of_the_base);
    RUN(llama3_keeps_short_and_divides_long_wavelengths);
    RUN(dynamic_grows_with_the_longest_position_only_beyond_the_maximum);
    RUN(yarn_has_an_attention_factor);
    RUN(proportional_rotates_the_whole_head);
    RUN(the_same_numbers_are_the_same_key);
    return check_done();
}
