/*
 * test_kserve_data.c - values of tensors that are in the JSON: what of each
 * type can be said there, and back.
 */
#include "wire/kserve_data.h"

#include "check.h"
#include "refusal.h"

#include <math.h>

enum { MAX_VALUES = 4 };

/* Reads json as n values of dtype. */
static enum roped_status read_values(enum roped_dtype dtype, int64_t n,
                                     const char *json, void *values,
                                     struct roped_error *err)
{
    struct roped_tensor tensor = {dtype, 1, {n}, values};
    struct json_reader reader;
    err->text[0] = '\0';
    json_reader_init(&reader, json, strlen(json), JSON_V2_DEPTH, NULL, 0);
    return kserve_read_values(&tensor, "x", &reader, err);
}

static void refuse(enum roped_dtype dtype, int64_t n, const char *json,
                   const char *why)
{
    struct roped_error err;
    CHECK(is_refusal(read_values(dtype, n, json, NULL, &err)));
    CHECK_CONTAINS(err.text, why);
}

TEST(values_reach_both_ends)
{
    static const struct {
        enum roped_dtype dtype;
        const char *ends, *below, *above;
    } types[] = {
        {ROPED_BOOL, "[0,1]", "[-1]", "[2]"},
        {ROPED_U8, "[0,255]", "[-1]", "[256]"},
        {ROPED_I8, "[-128,127]", "[-129]", "[128]"},
        {ROPED_U16, "[0,65535]", "[-1]", "[65536]"},
        {ROPED_I16, "[-32768,32767]", "[-32769]", "[32768]"},
        {ROPED_U32, "[0,4294967295]", "[-1]", "[4294967296]"},
        {ROPED_I32, "[-2147483648,2147483647]", "[-2147483649]",
         "[2147483648]"},
        {ROPED_U64, "[0,9007199254740992]", "[-1]", "[9007199254740994]"},
        {ROPED_I64, "[-9007199254740992,9007199254740992]",
         "[-9007199254740994]", "[9007199254740994]"},
        /* half a unit beyond FLT_MAX rounds to infinity */
        {ROPED_F32, "[-3.4028235677973362e38,3.4028235677973362e38]",
         "[-3.4028235677973366e38]", "[3.4028235677973366e38]"},
        {ROPED_F64, "[-1.7976931348623157e308,1.7976931348623157e308]",
         "[-1e309]", "[1e309]"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        unsigned char values[2 * sizeof(double)];
        struct roped_error err;
        CHECK_OK(read_values(types[i].dtype, 2, types[i].ends, values, &err),
                 &err);
        refuse(types[i].dtype, 1, types[i].below, "at index 0, expected a");
        refuse(types[i].dtype, 1, types[i].above, "at index 0, expected a");
    }
    refuse(ROPED_I32, 2, "[0,0.5]", "value 0.5 at index 1, expected a number");
}

TEST(arrays_may_be_nested_or_flat)
{
    static const char *const texts[] = {"[1,-2,2.5,4e2]", "[[1,-2],[2.5,4e2]]",
                                        "[[],[[1],-2],2.5,[[[4e2]]]]"};
    static const float expected[MAX_VALUES] = {1, -2, 2.5F, 400};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        float values[MAX_VALUES];
        struct roped_error err;
        CHECK_OK(read_values(ROPED_F32, MAX_VALUES, texts[i], values, &err),
                 &err);
        for (int j = 0; j < MAX_VALUES; j++)
            CHECK_DOUBLE(values[j], expected[j], 0);
    }
}

TEST(nan_and_infinity_are_to_be_sent_binary)
{
    refuse(ROPED_F32, 2, "[0,NaN]",
           "tensor 'x': value NaN at index 1 is not valid JSON: send the "
           "tensor binary (binary_data_size)");
    refuse(ROPED_F64, 1, "[[Infinity]]", "tensor 'x': value Infinity at index");
    refuse(ROPED_I64, 1, "[-Infinity]",
           "value -Infinity at index 0 is not valid JSON");
    refuse(ROPED_F32, 1, "[1e999]", "value inf at index 0, expected a number");
    refuse(ROPED_F64, 1, "[-1e999]",
           "value -inf at index 0, expected a number");
}

static void check_written(const struct roped_tensor *tensor,
                          const char *expected)
{
    struct roped_error err = {.text = ""};
    struct buffer buffer;
    buffer_init(&buffer);
    enum roped_status status = kserve_write_values(&buffer, tensor, "y", &err);
    CHECK_TEXT(status ? err.text : buffer.text, expected);
    CHECK(status == ROPED_OK || is_refusal(status));
    buffer_fini(&buffer);
}

TEST(what_json_cannot_say_is_not_written)
{
    float narrow[] = {0.5F, (float)NAN, (float)INFINITY};
    double wide[] = {-(double)INFINITY, 0.1};
    struct roped_tensor tensor = {ROPED_F32, 1, {1}, narrow};
    check_written(&tensor, "[0.5]");
    tensor.dims[0] = 3;
    check_written(&tensor, "output 'y': element 1 is NaN, which JSON cannot "
                           "say: ask for it with binary_data");
    narrow[1] = 2;
    check_written(&tensor, "output 'y': element 2 is Infinity, which JSON "
                           "cannot say: ask for it with binary_data");
    tensor = (struct roped_tensor){ROPED_F64, 1, {2}, wide};
    check_written(&tensor, "output 'y': element 0 is -Infinity, which JSON "
                           "cannot say: ask for it with binary_data");
    wide[0] = -1e-300;
    check_written(&tensor, "[-1e-300,0.1]");
}
