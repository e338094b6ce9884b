/*
 * test_language.c - what a descriptor can say of shapes and types: the steps of
 * a dim, alternatives with conditions, types by choice. Three operators that do
 * not exist (act_and_mul, quantize, dequantize) are described in it, and their
 * calls have the right shapes without a line of code.
 */
#include "check.h"

#include <roped/op.h>

#include <stdio.h>

static struct roped_call call;
static struct roped_error err;

/* -------------------------------------------------------------------- dims */

static struct roped_dim_pattern first_dim(const char *shape)
{
    struct roped_port port = {"x", "T", shape, 0};
    struct roped_shape_pattern pattern = {.count = 0};
    CHECK_OK(roped_port_pattern(&port, 0, &pattern, &err), &err);
    CHECK_INT(pattern.count, 1);
    return pattern.dim[0];
}

/* h is 100, d 64, n 3, group_size 16, none 0. */
static bool size_of(const void *context, const char *name, int64_t *size)
{
    static const struct {
        const char *name;
        int64_t size;
    } sizes[] = {
        {"h", 100}, {"d", 64}, {"n", 3}, {"group_size", 16}, {"none", 0}};
    (void)context;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) {
            *size = sizes[i].size;
            return true;
        }
    return false;
}

static int64_t size_of_dim(const char *text)
{
    struct roped_dim_pattern dim = first_dim(text);
    struct roped_dim_size found = roped_dim_evaluate(&dim, size_of, NULL);
    return found.state == ROPED_DIM_SIZED ? found.size : -(int)found.state;
}

TEST(steps_are_taken_from_left_to_right)
{
    CHECK_INT(size_of_dim("h"), 100);
    CHECK_INT(size_of_dim("16"), 16);
    CHECK_INT(size_of_dim("2h"), 200);
    CHECK_INT(size_of_dim("h/2"), 50);
    CHECK_INT(size_of_dim("n*d"), 192);
    CHECK_INT(size_of_dim("n+1"), 4);
    CHECK_INT(size_of_dim("n+d"), 67);
    CHECK_INT(size_of_dim("n+absent"), 3);
    CHECK_INT(size_of_dim("d/group_size"), 4);
    CHECK_INT(size_of_dim("h^128"), 128);
    CHECK_INT(size_of_dim("h^64/64"), 2); /* rounded up */
    CHECK_INT(size_of_dim("d/16^3"), 6);
    CHECK_INT(size_of_dim("d//none"), 1);
    CHECK_INT(size_of_dim("d/none"), -ROPED_DIM_NONE);
    CHECK_INT(size_of_dim("h/16"), -ROPED_DIM_UNEVEN);
    CHECK_INT(size_of_dim("n*absent"), -ROPED_DIM_UNKNOWN);
    CHECK_INT(size_of_dim("absent"), -ROPED_DIM_UNKNOWN);
    CHECK_INT(size_of_dim("h*9223372036854775807"), -ROPED_DIM_TOO_LARGE);
}

/* The symbol of a dim of this size. */
static int64_t solved(const char *text, int64_t size)
{
    struct roped_dim_pattern dim = first_dim(text);
    struct roped_dim_size found = roped_dim_solve(&dim, size, size_of, NULL);
    return found.state == ROPED_DIM_SIZED ? found.size : -(int)found.state;
}

TEST(a_dim_of_an_input_says_what_its_symbol_is)
{
    CHECK_INT(solved("x", 7), 7);
    CHECK_INT(solved("2x", 8), 4);
    CHECK_INT(solved("2x", 7), -ROPED_DIM_UNEVEN);
    CHECK_INT(solved("x/2", 8), 16);
    CHECK_INT(solved("x*d", 128), 2);
    CHECK_INT(solved("x*d", 100), -ROPED_DIM_UNEVEN);
    CHECK_INT(solved("x*absent", 100), -ROPED_DIM_UNKNOWN);
    CHECK_INT(solved("x+1", 1), 0);
    CHECK_INT(solved("x+1", 0), -ROPED_DIM_TOO_LARGE);
    CHECK_INT(solved("x/group_size", 3), 48);
    CHECK_INT(solved("x/2", INT64_MAX), -ROPED_DIM_TOO_LARGE);
    CHECK_INT(solved("x^4", 8), -ROPED_DIM_ONE_WAY);
}

TEST(dims_are_written_as_they_are_read)
{
    static const char *const dims[] = {
        "h",      "16",           "...rows",
        "2h",     "h/2",          "n*d",
        "b+1",    "h/group_size", "h//group_size",
        "rows^4", "h/16^4",       "h^128/128"};
    char text[64];
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        struct roped_dim_pattern dim = first_dim(dims[i]);
        CHECK_TEXT(roped_dim_text(&dim, text, sizeof text), dims[i]);
    }
}

TEST(bad_dims_are_found)
{
    static const char *const bad[] = {
        "h!", "h/",  "h^", "h/0",       "3/2",      "3*h",  "...h/2", "*h",
        "h+", "h-1", "..", "h/2/2/2/2", "2h*2*2*2", "h/2x", "n[h]",   "N"};
    struct roped_shape_pattern pattern;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct roped_port port = {"x", "T", bad[i], 0};
        if (roped_port_pattern(&port, 0, &pattern, &err) != ROPED_INTERNAL)
            CHECK_FAIL("'%s' was taken for a shape", bad[i]);
    }
}

/* --------------------------------------------------------- three operators */

static enum roped_status no_plan(struct roped_call *planned,
                                 struct roped_error *error)
{
    (void)planned;
    (void)error;
    return ROPED_OK;
}

struct act_params {
    int32_t activation, gated;
};

enum { ACT_X, ACT_GATE, ACT_UP };

/* clang-format off */
static const struct roped_op act_and_mul = {
    .name = "act_and_mul", .since = "1", .summary = "y = act(gate) * up",
    .type = {{"T", ROPED_FLOATS}},
    .given = {
        {.one_of = ROPED_INPUT(ACT_X) | ROPED_INPUT(ACT_GATE)},
        {.without = ROPED_INPUT(ACT_X), .all = ROPED_INPUT(ACT_GATE) | ROPED_INPUT(ACT_UP)},
        {.with = ROPED_INPUT(ACT_UP), .all = ROPED_INPUT(ACT_GATE)},
        {.when = "gated=false", .none = ROPED_INPUT(ACT_GATE)},
    },
    .in = {
        [ACT_X] = {"x", "T", "[gated=true] ...rows 2h|...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "gate and up, or one"},
        [ACT_GATE] = {"gate", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "gate"},
        [ACT_UP] = {"up", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "up"},
    },
    .out = {{"y", "T", "...rows h", ROPED_STRIDED, .doc = "act(gate) * up"}},
    .params_bytes = sizeof(struct act_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"activation", ROPED_PARAM_CHOICE, offsetof(struct act_params, activation), .choices = "silu|gelu|relu2", .doc = "act"},
        {"gated", ROPED_PARAM_BOOL, offsetof(struct act_params, gated), .init = 1, .doc = "is there an up?"},
    },
    .rows = "rows", .tokens = "rows", .widths = "h", .plan = no_plan,
};

struct quantize_params {
    int64_t group_size;
    int32_t dtype, granularity, scale_layout, reserved;
};

#define AT(member) offsetof(struct quantize_params, member)
#define DTYPES "e4m3|e5m2|int8|mxfp8|mxfp4|nvfp4"
#define CODES  ROPED_FP8S | ROPED_SET(ROPED_I8) | ROPED_SET(ROPED_U8)
#define CODES_OF "F8_E4M3|F8_E5M2|I8|F8_E4M3|U8|U8"
#define SCALES ROPED_SET(ROPED_F32) | ROPED_SET(ROPED_U8) | ROPED_SET(ROPED_F8_E4M3)
#define SCALES_OF "F32|F32|F32|U8|U8|F8_E4M3"
#define CODES_SHAPE(dtype) "[" dtype "=mxfp4,nvfp4] ...rows h/2|...rows h"
#define SCALES_SHAPE(dtype) \
    "[" dtype "=nvfp4 scale_layout=swizzled] rows^128 h/16^4" \
    "|[" dtype "=nvfp4] rows h/16" \
    "|[" dtype "=mxfp8,mxfp4 scale_layout=swizzled] rows^128 h/32^4" \
    "|[" dtype "=mxfp8,mxfp4] rows h/32" \
    "|[granularity=tensor] 1" \
    "|[granularity=row] rows" \
    "|[granularity=block] rows^128/128 h^128/128" \
    "|[scale_layout=columns] h/group_size rows" \
    "|rows h/group_size"
#define QUANTIZE_PARAMS(name) \
    {name, ROPED_PARAM_CHOICE, AT(dtype), .choices = DTYPES, .doc = "format"}, \
    {"granularity", ROPED_PARAM_CHOICE, AT(granularity), .choices = "tensor|row|group|block", .doc = "what has a scale"}, \
    {"group_size", ROPED_PARAM_INT, AT(group_size), 0, 128, 1, 128, .doc = "columns of a group"}, \
    {"scale_layout", ROPED_PARAM_CHOICE, AT(scale_layout), .choices = "rows|columns|swizzled", .doc = "order of scales"}

static const struct roped_op quantize = {
    .name = "quantize", .since = "1", .summary = "codes and scales of rows",
    .type = {{"T", ROPED_FLOATS}, {"Q", CODES, .by = "output_dtype", .of = CODES_OF}, {"S", SCALES, .by = "output_dtype", .of = SCALES_OF}},
    .in = {{"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows"}},
    .out = {
        {"y", "Q", CODES_SHAPE("output_dtype"), ROPED_STRIDED, .doc = "codes"},
        {"scales", "S", SCALES_SHAPE("output_dtype"), .doc = "scales"},
    },
    .params_bytes = sizeof(struct quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {QUANTIZE_PARAMS("output_dtype")},
    .rows = "rows", .tokens = "rows", .widths = "h", .plan = no_plan,
};

struct dequantize_params {
    struct quantize_params quantize;
    int32_t output_dtype;
};

static const struct roped_op dequantize = {
    .name = "dequantize", .since = "1", .summary = "rows of codes and scales",
    .type = {
        {"T", ROPED_FLOATS},
        {"C", CODES, .by = "input_dtype", .of = CODES_OF},
        {"Q", CODES, .beside = "C", .also = ROPED_SET(ROPED_U8)},
        {"D", SCALES, .by = "input_dtype", .of = SCALES_OF},
        {"S", SCALES, .beside = "D", .also = ROPED_SET(ROPED_U8)},
    },
    .in = {
        {"x", "Q", CODES_SHAPE("input_dtype"), ROPED_STRIDED, .doc = "codes"},
        {"scales", "S", SCALES_SHAPE("input_dtype"), .doc = "scales"},
    },
    .out = {{"y", "T", "...rows h", ROPED_STRIDED, .doc = "rows"}},
    .params_bytes = sizeof(struct dequantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        QUANTIZE_PARAMS("input_dtype"),
        {"output_dtype", ROPED_PARAM_DTYPE, offsetof(struct dequantize_params, output_dtype), .choices = "f32|f16|bf16", .type = "T", .doc = "type of y"},
    },
    .rows = "rows", .tokens = "rows", .widths = "h", .plan = no_plan,
};
/* clang-format on */

static void start(const struct roped_op *op)
{
    CHECK_OK(roped_op_check(op, &err), &err);
    roped_call_init(&call, op);
}

static void set(const char *name, const char *value)
{
    CHECK_OK(roped_call_set_text(&call, name, value, &err), &err);
}

static void bind(const char *name, enum roped_dtype dtype, int rank, int64_t a,
                 int64_t b, int64_t c)
{
    struct roped_tensor tensor = {dtype, rank, {a, b, c}, NULL};
    CHECK_OK(roped_call_bind(&call, name, &tensor, &err), &err);
}

/* "F32 [2, 3]" of an output. */
static const char *made(int output)
{
    static char text[96];
    char shape[64];
    const struct roped_tensor *tensor = &call.out[output];
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    snprintf(text, sizeof text, "%s %s", roped_dtype_name(tensor->dtype),
             roped_shape_text(tensor->dims, tensor->rank, shape, sizeof shape));
    return text;
}

static void refused(const char *text)
{
    CHECK(roped_call_resolve(&call, &err) != ROPED_OK);
    CHECK_TEXT(err.text, text);
}

TEST(act_and_mul_has_halves_or_two_tensors_or_one)
{
    start(&act_and_mul);
    bind("x", ROPED_BF16, 3, 2, 5, 28672);
    CHECK_TEXT(made(0), "BF16 [2, 5, 14336]");
    start(&act_and_mul);
    bind("x", ROPED_BF16, 2, 5, 7, 0);
    refused("tensor 'x': dim 1 is 7, expected a multiple of 2: it is 2h");
    set("gated", "false");
    CHECK_TEXT(made(0), "BF16 [5, 7]");
    start(&act_and_mul);
    bind("gate", ROPED_F32, 2, 5, 7, 0);
    refused("missing tensor 'up' or 'x'");
    bind("up", ROPED_F32, 2, 5, 7, 0);
    CHECK_TEXT(made(0), "F32 [5, 7]");
    bind("x", ROPED_F32, 2, 5, 14, 0);
    refused("tensors 'x' and 'gate' are both given, expected one");
    start(&act_and_mul);
    bind("x", ROPED_F32, 2, 5, 0, 0);
    refused("tensor 'x': dim 1 is 0, expected h above 0");
}

/* Types and shapes of y and scales in every format. */
TEST(a_choice_gives_quantize_its_types_and_shapes)
{
    static const struct {
        const char *dtype, *granularity, *layout, *y, *scales;
    } cases[] = {
        {"e4m3", "tensor", "rows", "F8_E4M3 [2, 300, 576]", "F32 [1]"},
        {"e5m2", "row", "rows", "F8_E5M2 [2, 300, 576]", "F32 [600]"},
        {"int8", "group", "rows", "I8 [2, 300, 576]", "F32 [600, 9]"},
        {"int8", "group", "columns", "I8 [2, 300, 576]", "F32 [9, 600]"},
        {"e4m3", "block", "rows", "F8_E4M3 [2, 300, 576]", "F32 [5, 5]"},
        {"mxfp8", "group", "rows", "F8_E4M3 [2, 300, 576]", "U8 [600, 18]"},
        {"mxfp4", "group", "swizzled", "U8 [2, 300, 288]", "U8 [640, 20]"},
        {"nvfp4", "group", "rows", "U8 [2, 300, 288]", "F8_E4M3 [600, 36]"},
        {"nvfp4", "group", "swizzled", "U8 [2, 300, 288]",
         "F8_E4M3 [640, 36]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(&quantize);
        set("output_dtype", cases[i].dtype);
        set("granularity", cases[i].granularity);
        set("scale_layout", cases[i].layout);
        set("group_size", "64");
        bind("x", ROPED_BF16, 3, 2, 300, 576);
        CHECK_TEXT(made(0), cases[i].y);
        CHECK_TEXT(made(1), cases[i].scales);
    }
    start(&quantize);
    set("output_dtype", "nvfp4");
    bind("x", ROPED_F32, 2, 3, 100, 0);
    refused("tensor 'x': dim 1 is 100, expected a multiple of 16: 'scales' has "
            "h/16");
}

TEST(dequantize_takes_what_quantize_makes)
{
    start(&dequantize);
    set("input_dtype", "nvfp4");
    set("scale_layout", "swizzled");
    set("output_dtype", "bf16");
    bind("x", ROPED_U8, 3, 2, 300, 288);
    bind("scales", ROPED_F8_E4M3, 2, 640, 36, 0);
    CHECK_TEXT(made(0), "BF16 [2, 300, 576]");
    CHECK_INT(roped_call_dim(&call, "h"), 576);
    call.in[1].dtype = ROPED_U8; /* its codes, for v2 */
    CHECK_TEXT(made(0), "BF16 [2, 300, 576]");
    call.in[1].dims[0] = 600;
    refused("tensor 'scales': dim 0 is 600, expected rows^128 = 640 (set by "
            "'x')");
    start(&dequantize);
    bind("x", ROPED_I8, 2, 3, 128, 0);
    bind("scales", ROPED_F32, 1, 1, 0, 0);
    refused("tensor 'x': I8, expected F8_E4M3 or U8 beside 'input_dtype' of "
            "F8_E4M3");
    set("input_dtype", "int8");
    CHECK_TEXT(made(0), "F32 [3, 128]");
}

/* A copy to be spoilt. */
static void expect_defect(const struct roped_op *op, const char *part)
{
    struct roped_error error = {.text = ""};
    CHECK_INT(roped_op_check(op, &error), ROPED_INTERNAL);
    CHECK_CONTAINS(error.text, part);
}

TEST(the_check_finds_defects_of_conditions_and_choices)
{
    struct roped_op op = quantize;
    op.out[0].shape = "[output_dtype=mxfp5] ...rows h/2|...rows h";
    expect_defect(&op, "an unknown condition in the shape of 'y'");
    op.out[0].shape = "[nobody] ...rows h/2|...rows h";
    expect_defect(&op, "an unknown condition");
    op.out[0].shape = "[output_dtype=nvfp4] ...rows h/2";
    expect_defect(&op, "no last alternative without conditions in 'y'");
    op.out[0].shape = "...rows h|[x] ...rows h/2";
    expect_defect(&op, "a condition too late");
    op = quantize;
    op.type[1].of = "F8_E4M3|F8_E5M2|I8|F8_E4M3|U8";
    expect_defect(&op, "not of its set: a choice of type 'Q'");
    op.type[1].of = CODES_OF "|U8";
    expect_defect(&op, "more types than choices");
    op.type[1].by = "group_size";
    expect_defect(&op, "no parameter chooses type 'Q'");
    op = dequantize;
    op.type[2].beside = "Z";
    expect_defect(&op, "no other type beside type 'Q'");
}

TEST(the_rule_is_said_for_people)
{
    char text[ROPED_RULE_BYTES];
    CHECK_TEXT(roped_op_rule_text(&act_and_mul, text, sizeof text),
               "at most one of x and gate; x, or gate and up; up needs gate; "
               "gated=false: no gate");
    CHECK_TEXT(roped_op_rule_text(&quantize, text, sizeof text), "");
    CHECK_CONTAINS(roped_op_rule_text(&dequantize, text, sizeof text),
                   "x of the type of input_dtype, or U8");
}
