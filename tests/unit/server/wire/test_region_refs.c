/*
 * test_region_refs.c - regions in a query string: names, offsets, shapes and
 * types, and what is refused.
 */
#include "wire/region_refs.h"

#include "check.h"
#include "refusal.h"

static struct region_refs refs;
static struct roped_error err;

static enum roped_status read_one(const char *name, const char *value,
                                  bool *is_region)
{
    err.text[0] = '\0';
    const struct signature signature =
        signature_of_op(roped_op_find("rmsnorm"));
    return region_refs_read(&refs, &signature, name, value, is_region, &err);
}

static void take(const char *name, const char *value)
{
    bool is_region = false;
    CHECK_OK(read_one(name, value, &is_region), &err);
    CHECK(is_region);
}

static void refuse(const char *name, const char *value, const char *why)
{
    bool is_region = false;
    CHECK(is_refusal(read_one(name, value, &is_region)));
    CHECK_CONTAINS(err.text, why);
}

TEST(other_parameters_are_left_alone)
{
    static const char *const names[] = {"eps",   "from",  "fromx",
                                        "shape", "dtype", ""};
    refs.n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool is_region = true;
        CHECK_OK(read_one(names[i], "1", &is_region), &err);
        CHECK(!is_region);
    }
    CHECK_INT(refs.n, 0);
}

TEST(a_place_is_a_region_and_an_offset)
{
    refs.n = 0;
    take("from.x", "a");
    take("from.weight", "w:0:128");
    take("into.y", "out:9223372036854775807");
    CHECK_INT(refs.n, 3);
    CHECK_TEXT(refs.ref[0].region, "a");
    CHECK_INT(refs.ref[0].offset, 0);
    CHECK_INT(refs.ref[0].bytes, 0);
    CHECK(!refs.ref[0].has_shape && !refs.ref[0].tensor.dtype);
    CHECK_TEXT(refs.ref[1].region, "w:0"); /* the last colon counts */
    CHECK_INT(refs.ref[1].port, 1);
    CHECK_INT(refs.ref[1].offset, 128);
    CHECK(refs.ref[2].is_output);
    CHECK_INT(refs.ref[2].offset, INT64_MAX);
}

TEST(shape_and_type_come_in_any_order)
{
    refs.n = 0;
    take("shape.x", "4,64");
    take("from.x", "a:64");
    take("dtype.x", "BF16");
    take("shape.weight", "");
    CHECK_INT(refs.n, 2);
    const struct region_ref *x = &refs.ref[0];
    CHECK_TEXT(x->region, "a");
    CHECK(x->has_shape);
    CHECK_INT(x->tensor.rank, 2);
    CHECK_INT(x->tensor.dims[0], 4);
    CHECK_INT(x->tensor.dims[1], 64);
    CHECK_INT(x->tensor.dtype, ROPED_BF16);
    CHECK(refs.ref[1].has_shape); /* a scalar */
    CHECK_INT(refs.ref[1].tensor.rank, 0);
    CHECK_TEXT(refs.ref[1].region, "");
}

TEST(strides_are_of_inputs_and_outputs)
{
    refs.n = 0;
    take("stride.x", "6144");
    take("from.x", "a:64");
    take("into_stride.y", "80");
    CHECK_INT(refs.n, 2);
    CHECK(refs.ref[0].has_stride && refs.ref[1].has_stride);
    CHECK_INT(refs.ref[0].tensor.stride, 6144);
    CHECK(refs.ref[1].is_output);
    CHECK_INT(refs.ref[1].tensor.stride, 80);
    refuse("stride.x", "80", "'stride.x' is given twice");
    refuse("stride.weight", "0",
           "parameter 'stride.weight': '0', expected elements from one token "
           "to the next, above 0");
    refuse("stride.weight", "-8", "'-8'");
    refuse("stride.y", "8", "unknown tensor 'y', rmsnorm takes x, weight");
    refuse("into_stride.x", "8", "unknown tensor 'x', rmsnorm returns y");
}

TEST(what_is_wrong_is_named)
{
    char long_name[100];
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    refs.n = 0;
    refuse("from.q", "a", "unknown tensor 'q', rmsnorm takes x, weight");
    refuse("into.x", "a", "unknown tensor 'x', rmsnorm returns y");
    refuse("shape.y", "1", "unknown tensor 'y'");
    refuse("from.", "a", "unknown tensor ''");
    refuse("from.x", "", "parameter 'from.x': ''");
    refuse("from.x", ":4", "parameter 'from.x': ':4'");
    refuse("from.x", "a:", "expected a region, or region:offset");
    refuse("from.x", "a:-4", "'a:-4'");
    refuse("from.x", "a:4k", "'a:4k'");
    refuse("from.x", "a:9223372036854775808", "offset in bytes");
    refuse("from.x", long_name, "expected a region");
    refuse("dtype.x", "float32", "expected a type as safetensors spells it");
    refuse("shape.x", "4,", "dims separated by commas");
    refuse("shape.x", ",4", "dims separated by commas");
    refuse("shape.x", "4,-1", "dims separated by commas");
    refuse("shape.weight", "1,1,1,1,1,1,1,1,1", "at most 8 dims");
}

TEST(nothing_is_given_twice)
{
    refs.n = 0;
    take("from.x", "a");
    refuse("from.x", "a", "'from.x' is given twice");
    take("shape.x", "1");
    refuse("shape.x", "1", "'shape.x' is given twice");
    take("dtype.x", "F32");
    refuse("dtype.x", "F32", "'dtype.x' is given twice");
    take("into.y", "a");
    refuse("into.y", "b:4", "'into.y' is given twice");
}
