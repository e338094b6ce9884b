/*
 * test_dtype.c - names of types, and the narrow formats code by code.
 */
#include "check.h"

#include <roped/dtype.h>
#include <roped/numeric.h>
#include <roped/tensor.h>

#include <math.h>

TEST(names_find_their_types)
{
    CHECK_INT(roped_dtype_from_name("BF16", 4), ROPED_BF16);
    CHECK_INT(roped_dtype_from_name("bf16", 4), ROPED_NO_DTYPE);
    CHECK_INT(roped_dtype_from_name("FP32", 4), ROPED_NO_DTYPE);
    CHECK_INT(roped_dtype_from_name("F8_E4M3", 7), ROPED_F8_E4M3);
    CHECK_INT(roped_dtype_from_v2_name("FP32", 4), ROPED_F32);
    CHECK_INT(roped_dtype_from_v2_name("UINT8", 5), ROPED_U8);
    CHECK_TEXT(roped_dtype_v2_name(ROPED_F8_E5M2), "UINT8");
    CHECK_INT(roped_dtype_bytes(ROPED_I64), 8);
}

TEST(sets_read_as_people_write_them)
{
    char text[96];
    CHECK_TEXT(roped_dtype_set_text(ROPED_SET(ROPED_F32), text, sizeof text),
               "F32");
    CHECK_TEXT(roped_dtype_set_text(ROPED_INDEXES, text, sizeof text),
               "I64 or I32");
}

/* The value of a code, from the format's definition. */
static double decoded(unsigned code, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = code & ((1u << mantissa_bits) - 1);
    double fraction = ldexp(mantissa, -mantissa_bits);
    if (exponent == 0)
        return ldexp(fraction, 1 - bias);
    return ldexp(1 + fraction, exponent - bias);
}

TEST(a_set_of_one_type_names_it)
{
    CHECK_INT(roped_dtype_only(ROPED_SET(ROPED_F32)), ROPED_F32);
    CHECK_INT(roped_dtype_only(ROPED_SET(ROPED_U64)), ROPED_U64);
    CHECK_INT(roped_dtype_only(ROPED_FLOATS), ROPED_NO_DTYPE);
    CHECK_INT(roped_dtype_only(0), ROPED_NO_DTYPE);
}

TEST(fp8_codes_decode_and_round_trip)
{
    for (unsigned code = 0; code < 0x7F; code++) {
        float e4m3 = roped_e4m3_to_float((uint8_t)code);
        CHECK_DOUBLE((double)e4m3, decoded(code, 4, 3), 0);
        CHECK_INT(roped_float_to_e4m3(e4m3), code);
        CHECK_INT(roped_float_to_e4m3(-e4m3), code | 0x80);
        if (code >= 0x7C)
            continue; /* e5m2 has Inf and NaN from here */
        float e5m2 = roped_e5m2_to_float((uint8_t)code);
        CHECK_DOUBLE((double)e5m2, decoded(code, 5, 2), 0);
        CHECK_INT(roped_float_to_e5m2(e5m2), code);
    }
}

/* Halfway between two codes goes to the even one; anything else to the
 * nearer. */
TEST(fp8_rounds_to_nearest_even)
{
    for (unsigned code = 0; code + 1 < 0x7F; code++) {
        double low = decoded(code, 4, 3), high = decoded(code + 1, 4, 3);
        float middle = (float)((low + high) / 2);
        CHECK_INT(roped_float_to_e4m3(middle), code % 2 ? code + 1 : code);
        CHECK_INT(roped_float_to_e4m3(nextafterf(middle, 0)), code);
        CHECK_INT(roped_float_to_e4m3(nextafterf(middle, INFINITY)), code + 1);
    }
}

TEST(fp8_saturates_and_keeps_nan)
{
    CHECK_INT(roped_float_to_e4m3(449), 0x7E);
    CHECK_INT(roped_float_to_e4m3(-INFINITY), 0xFE);
    CHECK_INT(roped_float_to_e5m2(INFINITY), 0x7B);
    CHECK_INT(roped_float_to_e4m3(NAN), 0x7F);
    CHECK_INT(roped_float_to_e5m2(-NAN), 0x7F);
    CHECK_INT(roped_float_to_e4m3(-0.0f), 0x80);
}

TEST(f16_and_bf16_round_trip)
{
    for (unsigned code = 0; code < 0x10000; code++) {
        float f16 = roped_f16_to_float((uint16_t)code);
        float bf16 = roped_bf16_to_float((uint16_t)code);
        if (!isnan(f16))
            CHECK_INT(roped_float_to_f16(f16), code);
        if (!isnan(bf16))
            CHECK_INT(roped_float_to_bf16(bf16), code);
    }
    CHECK(isnan(roped_bf16_to_float(roped_float_to_bf16(NAN))));
    CHECK(isnan(roped_f16_to_float(roped_float_to_f16(NAN))));
    CHECK_INT(roped_float_to_f16(65520), 0x7C00);
    CHECK_INT(roped_float_to_f16(65519), 0x7BFF);
}

TEST(sizes_that_overflow_are_refused)
{
    struct roped_error err;
    int64_t n, bytes;
    struct roped_tensor tensor = {
        ROPED_F32, 3, {1ll << 31, 1ll << 31, 2}, NULL};
    CHECK_INT(roped_tensor_size(&tensor, "x", &n, &bytes, &err),
              ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "'x'");
    tensor.dims[1] = 0;
    CHECK_OK(roped_tensor_size(&tensor, "x", &n, &bytes, &err), &err);
    CHECK_INT(n, 0);
    tensor.dims[1] = -1;
    CHECK_INT(roped_tensor_size(&tensor, "x", &n, &bytes, &err),
              ROPED_BAD_SHAPE);
}
