/*
 * test_kserve_tensor.c - what a request says about an input: datatype, shape.
 */
#include "wire/kserve_tensor.h"

#include "check.h"
#include "of_call.h"
#include "refusal.h"

/* Reads {"datatype":...,"shape":...} as rope's input q. */
static enum roped_status read_q(const char *json, struct roped_tensor *tensor,
                                struct roped_error *err)
{
    static const char *const names[] = {"datatype", "shape"};
    struct json_reader reader, member[2];
    struct roped_call call;
    memset(tensor, 0, sizeof *tensor);
    err->text[0] = '\0';
    roped_call_init(&call, roped_op_find("rope"));
    json_reader_init(&reader, json, strlen(json), JSON_V2_DEPTH, NULL, 0);
    CHECK_OK(json_check(&reader, err), err);
    json_find(&reader, names, 2, member);
    return kserve_read_tensor(OF_CALL(&call), roped_op_input(call.op, "q"),
                              &member[0], &member[1], tensor, err);
}

TEST(datatype_and_shape)
{
    struct roped_tensor tensor;
    struct roped_error err;
    CHECK_OK(read_q("{\"shape\":[2,0,4],\"datatype\":\"BF16\"}", &tensor, &err),
             &err);
    CHECK_INT(tensor.dtype, ROPED_BF16);
    CHECK_INT(tensor.rank, 3);
    CHECK_INT(tensor.dims[0], 2);
    CHECK_INT(tensor.dims[1], 0);
    CHECK_INT(tensor.dims[2], 4);
    CHECK_OK(read_q("{\"shape\":[9007199254740991],\"datatype\":\"FP16\"}",
                    &tensor, &err),
             &err);
    CHECK_INT(tensor.dims[0], 9007199254740991);
    CHECK_OK(read_q("{\"shape\":[],\"datatype\":\"FP32\"}", &tensor, &err),
             &err);
    CHECK_INT(tensor.rank, 0);
}

static void refuse(const char *json, const char *why)
{
    struct roped_tensor tensor;
    struct roped_error err;
    CHECK(is_refusal(read_q(json, &tensor, &err)));
    CHECK_CONTAINS(err.text, why);
}

TEST(datatypes_that_cannot_be)
{
    refuse("{\"shape\":[1]}", "Unable to parse 'datatype' of input 'q'");
    refuse("{\"shape\":[1],\"datatype\":32}", "Unable to parse 'datatype'");
    refuse("{\"shape\":[1],\"datatype\":\"FLOAT\"}",
           "invalid datatype for input q: 'FLOAT', expected FP32");
    refuse("{\"shape\":[1],\"datatype\":\"INT32\"}",
           "inference input 'q' data-type is 'INT32', but model 'rope' expects "
           "'FP32");
}

static void refuse_shape(const char *shape, const char *why)
{
    char json[128];
    snprintf(json, sizeof json, "{\"datatype\":\"FP32\",\"shape\":%s}", shape);
    refuse(json, why);
}

TEST(shapes_that_cannot_be)
{
    refuse_shape("[16,1152921504606846978]",
                 "causes total element count to exceed maximum size of");
    refuse_shape("[4,1152921504606846978]", "byte size overflow for input 'q'");
    refuse_shape("[1,9007199254740993]", "expected less than 2^53");
    refuse_shape("[0,1152921504606846978]", "expected less than 2^53");
    refuse_shape("[9223372036854775807]", "expected an integer of 0 or more");
    refuse_shape("[1e300]", "expected an integer of 0 or more");
    refuse_shape("[-1]", "dim 0 is -1, expected an integer of 0 or more");
    refuse_shape("[1.5]", "dim 0 is 1.5");
    refuse_shape("[NaN]", "dim 0 is nan");
    refuse_shape("[Infinity]", "dim 0 is inf");
    refuse_shape("[\"1\"]", "dim 0 is '1'");
    refuse_shape("[1,[2]]", "dim 1 is an array");
    refuse_shape("[1,1,1,1,1,1,1,1,1]", "rank 9, expected at most 8");
    refuse_shape("4", "Unable to parse 'shape' of input 'q': 4");
    refuse_shape("null", "Unable to parse 'shape' of input 'q': null");
}
