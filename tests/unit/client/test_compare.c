/*
 * test_compare.c - what is within the tolerance of a type, and what is over.
 */
#include "compare.h"

#include "check.h"

#include <math.h>

enum { WIDTH = 4, MOST = 4096 };

/* Two rows of 1 2 3 1000 and 1 2 3 4, element i of the second one changed. */
static struct comparison compare_f32(int i, float got)
{
    float expected[2][WIDTH] = {{1, 2, 3, 1000}, {1, 2, 3, 4}},
          changed[2][WIDTH];
    struct roped_tensor a = {ROPED_F32, 2, {2, WIDTH}, changed},
                        b = {ROPED_F32, 2, {2, WIDTH}, expected};
    memcpy(changed, expected, sizeof changed);
    changed[i / WIDTH][i % WIDTH] = got;
    return compare_tensors(&a, &b, NULL);
}

TEST(f32_is_measured_by_its_row)
{
    struct comparison same = compare_f32(0, 1);
    CHECK_INT(same.n_differing, 0);
    CHECK_INT(same.worst, -1);
    CHECK(same.is_within);
    struct comparison near = compare_f32(0, 1.001f); /* 1e-3 of 1000 */
    CHECK(near.is_within);
    CHECK_INT(near.n_differing, 1);
    CHECK_INT(near.worst, 0);
    CHECK_DOUBLE(near.tolerance, 2e-3, 1e-6);
    CHECK(!compare_f32(0, 1.003f).is_within);
    CHECK(compare_f32(4, 1.000007f).is_within); /* the other row's 4 */
    struct comparison far = compare_f32(4, 1.00001f);
    CHECK(!far.is_within);
    CHECK_INT(far.worst, 4);
    CHECK_DOUBLE(far.difference, 1e-5, 1e-2);
    CHECK_DOUBLE(far.expected, 1, 1e-12);
}

TEST(what_is_no_number_is_far_off)
{
    CHECK(!compare_f32(5, NAN).is_within);
    CHECK(!compare_f32(5, INFINITY).is_within);
    CHECK(isinf(compare_f32(5, -INFINITY).difference));
    float nan[1] = {NAN}, other[1] = {-NAN};
    struct roped_tensor a = {ROPED_F32, 1, {1}, nan},
                        b = {ROPED_F32, 1, {1}, other};
    CHECK(compare_tensors(&a, &b, NULL).is_within);
}

TEST(zeros_have_no_tolerance_for_numbers)
{
    float zero[2] = {0, 0}, minus[2] = {-0.0f, 0}, small[2] = {1e-30f, 0};
    struct roped_tensor a = {ROPED_F32, 1, {2}, zero},
                        b = {ROPED_F32, 1, {2}, minus},
                        c = {ROPED_F32, 1, {2}, small};
    struct comparison found = compare_tensors(&b, &a, NULL);
    CHECK_INT(found.n_differing, 1); /* by its sign bit */
    CHECK(found.is_within);
    CHECK(!compare_tensors(&c, &a, NULL).is_within);
}

TEST(sums_are_measured_by_their_terms)
{
    float expected[2] = {0, 1}, got[2] = {1.5e-6f, 1}, terms[2] = {-1, 1};
    struct roped_tensor a = {ROPED_F32, 1, {2}, got},
                        b = {ROPED_F32, 1, {2}, expected},
                        c = {ROPED_F32, 1, {2}, terms};
    CHECK(compare_tensors(&a, &b, &c).is_within);
    terms[0] = 0.1f;
    CHECK(!compare_tensors(&a, &b, &c).is_within);
}

/* A row of one narrow value beside itself, units more. */
static struct comparison compare_narrow(enum roped_dtype dtype, uint16_t code,
                                        int units)
{
    uint16_t expected[2] = {code, 0}, got[2] = {(uint16_t)(code + units), 0};
    struct roped_tensor a = {dtype, 1, {2}, got}, b = {dtype, 1, {2}, expected};
    return compare_tensors(&a, &b, NULL);
}

TEST(narrow_types_may_be_two_units_apart)
{
    static const uint16_t codes[] = {0x3f80, 0x4000, 0xbf81, 0x0001, 0x7f00};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        CHECK(compare_narrow(ROPED_BF16, codes[i], 2).is_within);
        CHECK(!compare_narrow(ROPED_BF16, codes[i], 3).is_within);
    }
    CHECK(compare_narrow(ROPED_F16, 0x3c00, 2).is_within); /* 1 */
    CHECK(!compare_narrow(ROPED_F16, 0x3c00, 3).is_within);
    CHECK(compare_narrow(ROPED_F16, 0x0001, 2).is_within); /* subnormal */
    CHECK(!compare_narrow(ROPED_F16, 0x0001, 3).is_within);
}

/* n codes, of which some are changed by steps. */
static struct comparison compare_codes(enum roped_dtype dtype, int n,
                                       int n_changed, int steps)
{
    static unsigned char expected[MOST], got[MOST];
    struct roped_tensor a = {dtype, 1, {n}, got}, b = {dtype, 1, {n}, expected};
    for (int i = 0; i < n; i++) {
        expected[i] = 0x38;
        got[i] = (unsigned char)(0x38 + (i < n_changed ? steps : 0));
    }
    return compare_tensors(&a, &b, NULL);
}

TEST(fp8_is_counted_in_codes)
{
    static const enum roped_dtype types[] = {ROPED_F8_E4M3, ROPED_F8_E5M2,
                                             ROPED_U8};
    for (int i = 0; i < 3; i++) {
        struct comparison one = compare_codes(types[i], 10, 1, 1);
        CHECK(one.is_within);
        CHECK_INT(one.n_differing, 1);
        CHECK_DOUBLE(one.difference, 1, 0);
        CHECK(!compare_codes(types[i], 10, 1, 2).is_within);
        CHECK(!compare_codes(types[i], 10, 2, 1).is_within);
        CHECK(compare_codes(types[i], 4000, 5, -1).is_within);
        CHECK(!compare_codes(types[i], 4000, 6, 1).is_within);
    }
    unsigned char most[1] = {0x7e}, nan[1] = {0x7f}, up[1] = {0x01},
                  down[1] = {0x81};
    struct roped_tensor a = {ROPED_F8_E4M3, 1, {1}, most},
                        b = {ROPED_F8_E4M3, 1, {1}, nan},
                        c = {ROPED_F8_E4M3, 1, {1}, up},
                        d = {ROPED_F8_E4M3, 1, {1}, down};
    CHECK(!compare_tensors(&b, &a, NULL).is_within); /* NaN beside 448 */
    CHECK_DOUBLE(compare_tensors(&c, &d, NULL).difference, 2, 0);
    struct roped_tensor renamed = c;
    renamed.dtype = ROPED_U8; /* --fp8 u8 */
    CHECK_INT(compare_tensors(&renamed, &c, NULL).n_differing, 0);
}

TEST(integers_are_the_same_or_wrong)
{
    int32_t expected[1] = {7}, got[1] = {8};
    struct roped_tensor a = {ROPED_I32, 1, {1}, got},
                        b = {ROPED_I32, 1, {1}, expected};
    CHECK(!compare_tensors(&a, &b, NULL).is_within);
    struct roped_tensor none = {ROPED_F32, 2, {3, 0}, NULL};
    CHECK(compare_tensors(&none, &none, NULL).is_within);
}
