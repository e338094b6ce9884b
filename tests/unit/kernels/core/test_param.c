/*
 * test_param.c - parameters from text and from typed values.
 */
#include "check.h"

#include "ops/rmsnorm.h"
#include "ops/rope.h"

#include <roped/op.h>

#include <math.h>

static struct roped_call call;
static struct roped_error err;

static const struct rope_params *rope(void)
{
    return (const void *)call.params;
}

static enum roped_status set(const char *name, const char *text)
{
    roped_call_init(&call, roped_op_find("rope"));
    return roped_call_set_text(&call, name, text, &err);
}

TEST(defaults_are_in_place)
{
    roped_call_init(&call, roped_op_find("rope"));
    CHECK_DOUBLE(rope()->angles.theta, 10000, 0);
    CHECK(isnan(rope()->angles.factor));
    CHECK(rope()->angles.max_position == ROPED_UNSET_INT);
    CHECK_INT(rope()->angles.truncate, 1);
    CHECK_DOUBLE(rope()->angles.beta_fast, 32, 0);
}

TEST(text_is_parsed_strictly)
{
    CHECK_OK(set("theta", "5e5"), &err);
    CHECK_DOUBLE(rope()->angles.theta, 500000, 0);
    CHECK_OK(set("style", "gptj"), &err);
    CHECK_INT(rope()->style, ROPE_GPTJ);
    CHECK_OK(set("mrope_section", "16,24,24"), &err);
    CHECK_INT(rope()->angles.mrope_section.value[2], 24);
    CHECK_OK(set("inverse", "true"), &err);
    CHECK_INT(rope()->inverse, 1);
    static const char *const wrong[][2] = {{"theta", "0x10"},
                                           {"theta", "inf"},
                                           {"theta", "1 "},
                                           {"theta", "-1"},
                                           {"theta", ""},
                                           {"head_dim", "1.5"},
                                           {"style", "Neox"},
                                           {"inverse", "yes"},
                                           {"mrope_section", "1,"},
                                           {"offset", "-1"},
                                           {"offset", "99999999999999999999"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_INT(set(wrong[i][0], wrong[i][1]), ROPED_BAD_PARAMETER);
        CHECK_CONTAINS(err.text, wrong[i][0]);
    }
}

TEST(lists_of_integers_have_a_length)
{
    struct roped_ints shape;
    CHECK_INT(set("mrope_section", "1,2,3,4,5"), ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "up to 4 integers");
    roped_call_init(&call, roped_op_find("binary_backward"));
    CHECK_OK(roped_call_set_text(&call, "a_shape", "1,2,3,4,5,6,7,8", &err),
             &err);
    memcpy(&shape, call.params + call.op->param[1].offset, sizeof shape);
    CHECK_INT(shape.count, 8);
    CHECK_INT(shape.value[7], 8);
    CHECK_OK(roped_call_set_text(&call, "b_shape", "", &err), &err);
    CHECK(roped_call_gave(&call, "b_shape"));
    roped_call_init(&call, roped_op_find("binary_backward"));
    CHECK_INT(roped_call_set_text(&call, "a_shape", "1,2,3,4,5,6,7,8,9", &err),
              ROPED_BAD_PARAMETER);
    CHECK_INT(roped_call_set_text(&call, "a_shape", ",", &err),
              ROPED_BAD_PARAMETER);
    CHECK_INT(roped_call_set_text(&call, "a_shape", "-1", &err),
              ROPED_BAD_PARAMETER);
}

TEST(a_parameter_is_given_once)
{
    CHECK_OK(set("theta", "5"), &err);
    CHECK(roped_call_gave(&call, "theta"));
    CHECK(!roped_call_gave(&call, "factor"));
    CHECK_INT(roped_call_set_text(&call, "theta", "5", &err),
              ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "twice");
}

TEST(typed_values_fit_their_kind)
{
    struct roped_value two = {.kind = ROPED_VALUE_INT, .integer = 2};
    struct roped_value half = {.kind = ROPED_VALUE_FLOAT, .number = 0.5};
    struct roped_value yes = {.kind = ROPED_VALUE_BOOL, .integer = 1};
    roped_call_init(&call, roped_op_find("rmsnorm"));
    const struct rmsnorm_params *params = (const void *)call.params;
    CHECK_OK(roped_call_set_param(&call, "eps", &two, &err), &err);
    CHECK_DOUBLE(params->eps, 2, 0);
    CHECK_INT(roped_call_set_param(&call, "rounding", &two, &err),
              ROPED_BAD_PARAMETER);
    CHECK_INT(roped_call_set_param(&call, "weight_bias", &yes, &err),
              ROPED_BAD_PARAMETER);
    roped_call_init(&call, roped_op_find("rope"));
    CHECK_INT(roped_call_set_param(&call, "head_dim", &half, &err),
              ROPED_BAD_PARAMETER);
    CHECK_OK(roped_call_set_param(&call, "inverse", &yes, &err), &err);
}
