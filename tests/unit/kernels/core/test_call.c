/*
 * test_call.c - binding, resolving and planning calls.
 */
#include "check.h"

#include "core/call_internal.h"
#include "ops/binary_backward.h"
#include "ops/heads_plan.h"
#include "ops/rmsnorm_quantize.h"
#include "ops/rope_quantize.h"

#include <roped/op.h>

static struct roped_call call;
static struct roped_error err;

static enum roped_status bind(const char *name, enum roped_dtype dtype,
                              int rank, int64_t a, int64_t b, int64_t c)
{
    struct roped_tensor tensor = {
        .dtype = dtype, .rank = rank, .dims = {a, b, c}};
    return roped_call_bind(&call, name, &tensor, &err);
}

static void start(const char *op)
{
    roped_call_init(&call, roped_op_find(op));
}

TEST(outputs_are_inferred)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_BF16, 3, 7, 32, 128), &err);
    CHECK_OK(bind("k", ROPED_BF16, 3, 7, 8, 128), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[ROPE_K_OUT].dims[1], 8);
    CHECK_INT(call.out[ROPE_K_OUT].dtype, ROPED_BF16);
    CHECK_INT(roped_call_dim(&call, "hq"), 32);
    CHECK_INT(roped_call_bytes(&call), 2 * 2 * 7 * 40 * 128);
}

TEST(outputs_without_their_input_are_not_made)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 7, 2, 16), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK(roped_tensor_given(&call.out[ROPE_Q_OUT]));
    CHECK(!roped_tensor_given(&call.out[ROPE_K_OUT]));
}

TEST(a_dim_that_disagrees_names_who_set_it)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 7, 2, 16), &err);
    CHECK_OK(bind("k", ROPED_F32, 3, 8, 2, 16), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'k': dim 0 is 8, expected n = 7 (set by 'q')");
}

TEST(forms_are_chosen_by_rank_and_not_mixed)
{
    start("rope_quantize");
    CHECK_OK(bind("q_rope", ROPED_BF16, 3, 5, 8, 64), &err);
    CHECK_OK(bind("k_rope", ROPED_BF16, 2, 5, 64, 0), &err);
    CHECK_OK(bind("q_nope", ROPED_BF16, 3, 5, 8, 32), &err);
    CHECK_OK(bind("k_nope", ROPED_BF16, 3, 5, 8, 32), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "k_nope");
    CHECK_CONTAINS(err.text, "mla");
}

TEST(types_are_bound_by_variables)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 7, 2, 16), &err);
    CHECK_OK(bind("k", ROPED_F16, 3, 7, 2, 16), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_TYPE);
    CHECK_TEXT(err.text, "tensor 'k': F16, expected F32, the type of 'q'");
    start("rope");
    CHECK_INT(bind("q", ROPED_U8, 3, 1, 1, 2), ROPED_BAD_TYPE);
    CHECK_CONTAINS(err.text, "U8, expected F32, BF16 or F16");
}

TEST(tensors_that_are_read_together_have_one_type)
{
    int32_t dtype;
    start("rope");
    CHECK_OK(bind("q", ROPED_BF16, 3, 4, 2, 2), &err);
    CHECK_OK(bind("indptr", ROPED_I64, 1, 3, 0, 0), &err);
    CHECK_OK(bind("offsets", ROPED_I32, 1, 2, 0, 0), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_TYPE);
    CHECK_TEXT(err.text,
               "tensor 'offsets': I32, expected I64, the type of 'indptr'");
    /* and where a descriptor let them differ, no plan would come of it */
    CHECK_INT(call_type_of(&call, ROPE_INDPTR, ROPE_OFFSETS, &dtype, &err),
              ROPED_INTERNAL);
    CHECK_TEXT(err.text, "tensors 'indptr' and 'offsets' of rope are read as "
                         "one type, but are I64 and I32");
    CHECK_OK(call_type_of(&call, ROPE_Q, ROPE_INDPTR - 1, &dtype, &err), &err);
    CHECK_INT(dtype, ROPED_BF16);
    CHECK_OK(call_type_of(&call, ROPE_COS, ROPE_SIN, &dtype, &err), &err);
    CHECK_INT(dtype, ROPED_NO_DTYPE);
}

TEST(an_output_type_can_come_from_a_parameter)
{
    start("rope_quantize");
    CHECK_OK(bind("q_rope", ROPED_F16, 3, 5, 8, 64), &err);
    CHECK_OK(bind("k_rope", ROPED_F16, 3, 5, 2, 64), &err);
    CHECK_OK(roped_call_set_text(&call, "output_dtype", "e5m2", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[ROPE_QUANTIZE_Q_ROPE_OUT].dtype, ROPED_F8_E5M2);
}

TEST(an_output_can_depend_on_parameters)
{
    const struct roped_tensor *scales = &call.out[RMSNORM_QUANTIZE_SCALES];
    start("rmsnorm_quantize");
    CHECK_OK(bind("x", ROPED_BF16, 3, 5, 7, 256), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK(!roped_tensor_given(scales));
    CHECK_OK(roped_call_set_text(&call, "dynamic", "true", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(scales->dtype, ROPED_F32);
    CHECK_INT(scales->rank, 1);
    CHECK_INT(scales->dims[0], 35);
    CHECK_OK(roped_call_set_text(&call, "group_size", "64", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(scales->rank, 2);
    CHECK_INT(scales->dims[0], 35);
    CHECK_INT(scales->dims[1], 4);
}

/* Scales of n rows in every layout: per row, and by groups. */
TEST(a_layout_gives_an_output_its_dims)
{
    static const struct {
        const char *layout, *group_size;
        int rank;
        int64_t dims[2];
    } cases[] = {
        {"rows", "0", 1, {35, 0}},      {"rows", "32", 2, {35, 8}},
        {"rows_2d", "0", 2, {35, 1}},   {"rows_2d", "32", 2, {35, 8}},
        {"columns", "0", 2, {1, 35}},   {"columns", "32", 2, {8, 35}},
        {"columns_4", "0", 2, {1, 36}}, {"columns_4", "32", 2, {8, 36}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct roped_tensor *scales = &call.out[RMSNORM_QUANTIZE_SCALES];
        start("rmsnorm_quantize");
        CHECK_OK(bind("x", ROPED_BF16, 3, 5, 7, 256), &err);
        CHECK_OK(roped_call_set_text(&call, "dynamic", "true", &err), &err);
        CHECK_OK(
            roped_call_set_text(&call, "scale_layout", cases[i].layout, &err),
            &err);
        CHECK_OK(
            roped_call_set_text(&call, "group_size", cases[i].group_size, &err),
            &err);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_INT(scales->rank, cases[i].rank);
        for (int d = 0; d < cases[i].rank; d++)
            CHECK_INT(scales->dims[d], cases[i].dims[d]);
    }
}

/* The same of scales of groups whose size the format says. */
TEST(a_format_gives_scales_their_dims)
{
    static const struct {
        const char *format, *layout;
        enum roped_dtype dtype;
        int64_t dims[2], last; /* of y */
    } cases[] = {{"mxfp8", "rows", ROPED_U8, {35, 8}, 256},
                 {"mxfp4", "columns", ROPED_U8, {8, 35}, 128},
                 {"nvfp4", "columns_4", ROPED_F8_E4M3, {16, 36}, 128},
                 {"nvfp4", "rows_2d", ROPED_F8_E4M3, {35, 16}, 128},
                 {"mxfp4", "swizzled", ROPED_U8, {128, 8}, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct roped_tensor *out = call.out;
        start("rmsnorm_quantize");
        CHECK_OK(bind("x", ROPED_BF16, 3, 5, 7, 256), &err);
        CHECK_OK(roped_call_set_text(&call, "dynamic", "true", &err), &err);
        CHECK_OK(
            roped_call_set_text(&call, "output_dtype", cases[i].format, &err),
            &err);
        CHECK_OK(
            roped_call_set_text(&call, "scale_layout", cases[i].layout, &err),
            &err);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_INT(out[RMSNORM_QUANTIZE_SCALES].dtype, cases[i].dtype);
        CHECK_INT(out[RMSNORM_QUANTIZE_SCALES].rank, 2);
        for (int d = 0; d < 2; d++)
            CHECK_INT(out[RMSNORM_QUANTIZE_SCALES].dims[d], cases[i].dims[d]);
        CHECK_INT(out[RMSNORM_QUANTIZE_Y].dims[2], cases[i].last);
    }
}

/* Rows of no columns may be as many as 64 bits count: nothing overflows on
 * the way to the refusal. */
TEST(a_dim_is_rounded_up_without_overflow)
{
    start("rmsnorm_quantize");
    CHECK_OK(bind("x", ROPED_F32, 2, INT64_MAX, 0, 0), &err);
    CHECK_OK(roped_call_set_text(&call, "dynamic", "true", &err), &err);
    CHECK_OK(roped_call_set_text(&call, "scale_layout", "columns_4", &err),
             &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
}

TEST(a_dim_that_a_parameter_does_not_divide_is_refused)
{
    start("rmsnorm_quantize");
    CHECK_OK(bind("x", ROPED_F32, 2, 5, 100, 0), &err);
    CHECK_OK(roped_call_set_text(&call, "dynamic", "true", &err), &err);
    CHECK_OK(roped_call_set_text(&call, "group_size", "64", &err), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_PARAMETER);
    CHECK_TEXT(err.text, "parameter 'group_size': 64, expected a divisor of h "
                         "= 100 (set by 'x')");
}

/* Rows of no columns have no bytes: their number is checked all the same. */
TEST(leading_dims_that_overflow_are_refused)
{
    start("rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 3, INT64_C(1) << 40, INT64_C(1) << 40, 0),
             &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "'x'");
    start("rmsnorm");
    struct roped_tensor none = {
        ROPED_F32, 4, {INT64_C(1) << 40, INT64_C(1) << 40, 0, 8}, NULL};
    CHECK_OK(roped_call_bind(&call, "x", &none, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(roped_call_dim(&call, "rows"), 0);
}

TEST(a_plan_holds_positions_frequencies_and_the_wish_for_a_table)
{
    static float frequency[64];
    int32_t positions[3] = {4, 900, 7};
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 3, 2, 16), &err);
    struct roped_tensor tensor = {ROPED_I32, 1, {3}, positions};
    CHECK_OK(roped_call_bind(&call, "positions", &tensor, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(roped_call_aux_bytes(&call), 8 * sizeof(float));
    call.aux = frequency;
    CHECK_OK(roped_call_plan(&call, &err), &err);
    const struct heads_plan *plan = (const void *)call.plan;
    CHECK(!plan->rotary.is_wide && !plan->rotary.has_padding);
    CHECK_INT(plan->rotary.positions, ROPE_POSITIONS_I32);
    CHECK(call.table.wanted && !call.table.required);
    CHECK_INT(call.table.rows, 901);
    CHECK_DOUBLE((double)frequency[0], 1, 0);
}

TEST(no_tokens_make_an_empty_plan)
{
    static float frequency[64];
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 0, 2, 16), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    call.aux = frequency;
    CHECK_OK(roped_call_plan(&call, &err), &err);
    CHECK(!call.table.wanted);
}

TEST(a_parameter_can_state_the_shape_of_an_absent_input)
{
    start("binary_backward");
    CHECK_OK(bind("grad_output", ROPED_F16, 3, 4, 6, 8), &err);
    CHECK_OK(roped_call_set_text(&call, "a_shape", "4,1,8", &err), &err);
    CHECK_OK(roped_call_set_text(&call, "b_shape", "6,1", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[BINARY_GRAD_A].rank, 3);
    CHECK_INT(call.out[BINARY_GRAD_A].dims[1], 1);
    CHECK_INT(call.out[BINARY_GRAD_B].rank, 2);
    CHECK_INT(roped_call_dim(&call, "a"), 32);
    CHECK_INT(call.out[BINARY_GRAD_B].dtype, ROPED_F16);
}

TEST(a_shape_that_nothing_states_is_named)
{
    start("binary_backward");
    CHECK_OK(bind("grad_output", ROPED_F32, 1, 4, 0, 0), &err);
    CHECK_OK(bind("a", ROPED_F32, 1, 4, 0, 0), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "missing tensor 'b' or parameter 'b_shape'");
    CHECK_OK(roped_call_set_text(&call, "b_shape", "", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[BINARY_GRAD_B].rank, 0);
}

TEST(a_stated_shape_agrees_with_its_tensor)
{
    start("binary_backward");
    CHECK_OK(bind("grad_output", ROPED_F32, 2, 3, 4, 0), &err);
    CHECK_OK(bind("a", ROPED_F32, 2, 3, 4, 0), &err);
    CHECK_OK(roped_call_set_text(&call, "a_shape", "3,1", &err), &err);
    CHECK_OK(roped_call_set_text(&call, "b_shape", "4", &err), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "parameter 'a_shape': shape [3, 1], expected [3, 4] "
                         "(set by 'a')");
}

TEST(sizes_of_empty_shapes_do_not_overflow)
{
    start("binary_backward");
    int64_t huge = (int64_t)1 << 40;
    CHECK_OK(bind("grad_output", ROPED_F32, 3, huge, huge, 0), &err);
    CHECK_OK(bind("a", ROPED_F32, 3, huge, huge, 0), &err);
    CHECK_OK(bind("b", ROPED_F32, 1, 1, 0, 0), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(roped_call_dim(&call, "o"), 0);
}

TEST(bytes_of_a_call_are_at_most_2_to_the_63)
{
    start("rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 1, INT64_MAX / 8, 0, 0), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(roped_call_bytes(&call), INT64_MAX - 7);
    start("add_rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 1, INT64_MAX / 8, 0, 0), &err);
    CHECK_OK(bind("residual", ROPED_F32, 1, INT64_MAX / 8, 0, 0), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(roped_call_bytes(&call), INT64_MAX);
}

/* The same with a stride, of an input that is bound. */
static enum roped_status resolve_with_step(int input, int64_t step)
{
    call.in[input].stride = step;
    return roped_call_resolve(&call, &err);
}

TEST(steps_are_between_tokens)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_BF16, 3, 7, 32, 128), &err);
    CHECK_OK(resolve_with_step(ROPE_Q, 6144), &err);
    CHECK_INT(roped_tensor_tokens(&call.in[ROPE_Q]), 7);
    CHECK_INT(roped_tensor_token(&call.in[ROPE_Q]), 4096);
    CHECK_INT(roped_tensor_span(&call.in[ROPE_Q]), 2 * (6 * 6144 + 4096));
    CHECK_INT(roped_tensor_span(&call.out[ROPE_Q_OUT]), 2 * 7 * 4096);
    CHECK_INT(roped_call_bytes(&call), 2 * 2 * 7 * 4096);
    CHECK_OK(roped_call_set_stride(&call, ROPE_Q_OUT, 5000, &err), &err);
    CHECK_INT(roped_tensor_span(&call.out[ROPE_Q_OUT]), 2 * (6 * 5000 + 4096));
    start("rope"); /* batches of sequences: their dims together */
    CHECK_OK(bind("q", ROPED_F32, 3, 3, 5, 64), &err);
    CHECK_OK(roped_call_set_text(&call, "layout", "bsd", &err), &err);
    CHECK_OK(resolve_with_step(ROPE_Q, 100), &err);
    CHECK_INT(roped_tensor_span(&call.in[ROPE_Q]), 4 * (14 * 100 + 64));
    start("rmsnorm"); /* any leading dims; none: one row */
    CHECK_OK(bind("x", ROPED_F32, 3, 2, 3, 8), &err);
    CHECK_OK(resolve_with_step(0, 8), &err);
    CHECK_INT(roped_tensor_span(&call.in[0]), 4 * 2 * 3 * 8);
    start("rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 1, 8, 0, 0), &err);
    CHECK_OK(resolve_with_step(0, 1000), &err);
    CHECK_INT(roped_tensor_span(&call.in[0]), 4 * 8);
    start("rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 2, 0, 8, 0), &err);
    CHECK_OK(resolve_with_step(0, 1000), &err);
    CHECK_INT(roped_tensor_span(&call.in[0]), 0);
}

TEST(steps_that_cannot_be_name_what_is_expected)
{
    start("rope");
    CHECK_OK(bind("q", ROPED_BF16, 3, 7, 32, 128), &err);
    CHECK_INT(resolve_with_step(ROPE_Q, 4095), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'q': stride 4095, expected at least 4096, the "
                         "elements of a token");
    CHECK_INT(resolve_with_step(ROPE_Q, -4096), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "stride -4096, expected at least 4096");
    CHECK_INT(resolve_with_step(ROPE_Q, INT64_MAX / 8), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'q': stride 1152921504606846975 takes its 7 "
                         "tokens beyond 2^63 - 1 bytes");
    CHECK_OK(resolve_with_step(ROPE_Q, INT64_MAX / 16), &err);
    CHECK_INT(roped_call_set_stride(&call, ROPE_Q_OUT, 1, &err),
              ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "tensor 'q': stride 1, expected at least 4096");
    start("rmsnorm");
    CHECK_OK(bind("x", ROPED_F32, 2, 3, 8, 0), &err);
    CHECK_OK(bind("weight", ROPED_F32, 1, 8, 0, 0), &err);
    CHECK_INT(resolve_with_step(1, 8), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text,
               "tensor 'weight': stride 8, expected none: it is packed");
}

/* sizes and 'in' of a plan's dims, "3:ab 8:a" */
static const char *plan_text(const char *a, const char *b, int rank,
                             const int64_t *dims)
{
    static char text[128];
    size_t at = 0;
    struct roped_tensor tensor = {ROPED_F32, rank, {0}, NULL};
    memcpy(tensor.dims, dims, (size_t)rank * sizeof *dims);
    start("binary_backward");
    CHECK_OK(roped_call_bind(&call, "grad_output", &tensor, &err), &err);
    CHECK_OK(roped_call_set_text(&call, "a_shape", a, &err), &err);
    CHECK_OK(roped_call_set_text(&call, "b_shape", b, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(roped_call_plan(&call, &err), &err);
    const struct binary_plan *plan = (const void *)call.plan;
    text[0] = '\0';
    for (int i = 0; i < plan->rank; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld:%s%s",
                               i ? " " : "", (long long)plan->dim[i].size,
                               plan->dim[i].in & BINARY_IN_A ? "a" : "",
                               plan->dim[i].in & BINARY_IN_B ? "b" : "");
    return text;
}

TEST(broadcast_shapes_collapse)
{
    CHECK_TEXT(plan_text("2,3,4", "2,3,4", 3, (int64_t[]){2, 3, 4}), "24:ab");
    CHECK_TEXT(plan_text("2,3,4", "1,1,4", 3, (int64_t[]){2, 3, 4}),
               "6:a 4:ab");
    CHECK_TEXT(plan_text("2,3,4", "3,1", 3, (int64_t[]){2, 3, 4}),
               "2:a 3:ab 4:a");
    CHECK_TEXT(
        plan_text("2,1,3,1,4", "2,1,1,1,4", 5, (int64_t[]){2, 1, 3, 1, 4}),
        "2:ab 3:a 4:ab");
    CHECK_TEXT(plan_text("4,1,8", "1,6,8", 3, (int64_t[]){4, 6, 8}),
               "4:a 6:b 8:ab");
    CHECK_TEXT(plan_text("", "5", 1, (int64_t[]){5}), "5:b");
    CHECK_TEXT(plan_text("1,1", "", 2, (int64_t[]){1, 1}), "");
    CHECK_TEXT(plan_text("3,1", "0", 2, (int64_t[]){3, 0}), "");
}

/* Rope on heads of this width with a table of heads of 128, 64 rotated. */
static enum roped_status with_table(int64_t width, const char *name,
                                    const char *value, int32_t scaling)
{
    struct roped_angle_set set = {
        .name = "t", .head_dim = 128, .rotary_dim = 64};
    roped_angle_params_init(&set.params);
    set.params.scaling = scaling;
    start("rope");
    CHECK_OK(bind("q", ROPED_F32, 3, 3, 2, width), &err);
    CHECK_OK(roped_call_use_angles(&call, &set, &err), &err);
    if (name)
        CHECK_OK(roped_call_set_text(&call, name, value, &err), &err);
    return roped_call_resolve(&call, &err);
}

TEST(a_table_knows_the_width_of_its_heads)
{
    const int32_t plain = ROPED_SCALING_NONE,
                  by_head = ROPED_SCALING_PROPORTIONAL;
    CHECK_OK(with_table(128, NULL, NULL, plain), &err);
    CHECK_OK(with_table(64, NULL, NULL, plain), &err); /* that part alone */
    CHECK_OK(with_table(192, "rotary_offset", "128", plain), &err);
    CHECK_OK(with_table(512, "rotary_dim", "64", plain), &err);
    CHECK_INT(with_table(512, NULL, NULL, plain), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'q': head width 512, expected 128, that of "
                         "table 't' (rotary width 64)");
    CHECK_INT(with_table(192, "rotary_offset", "32", plain), ROPED_BAD_SHAPE);
    CHECK_OK(with_table(128, NULL, NULL, by_head), &err);
    CHECK_INT(with_table(64, NULL, NULL, by_head), ROPED_BAD_SHAPE);
    CHECK_INT(with_table(512, "rotary_dim", "64", by_head), ROPED_BAD_SHAPE);
}

/* The pairing in force in a call with a table of this style. */
static int32_t planned_style(const char *op, const char *given)
{
    static float values[3 * 2 * 8];
    static _Alignas(16) unsigned char aux[256];
    const bool has_parts = strcmp(op, "rope_quantize") == 0;
    struct roped_angle_set set = {.name = "t", .style = ROPE_GPTJ};
    roped_angle_params_init(&set.params);
    start(op);
    CHECK_OK(bind(has_parts ? "q_rope" : "q", ROPED_F32, 3, 3, 2, 8), &err);
    if (has_parts)
        CHECK_OK(bind("k_rope", ROPED_F32, 3, 3, 2, 8), &err);
    call.in[0].data = call.in[1].data = values;
    CHECK_OK(roped_call_use_angles(&call, &set, &err), &err);
    if (given)
        CHECK_OK(roped_call_set_text(&call, "style", given, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK(roped_call_aux_bytes(&call) <= sizeof aux);
    call.aux = aux;
    CHECK_OK(roped_call_plan(&call, &err), &err);
    return ((struct heads_plan *)call.plan)->rotary.style;
}

TEST(a_table_knows_which_elements_pair)
{
    static const char *const ops[] = {"rope", "rope_quantize"};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(planned_style(ops[i], NULL), ROPE_GPTJ);
        CHECK_INT(planned_style(ops[i], "gptj"), ROPE_GPTJ);
        CHECK_INT(planned_style(ops[i], "neox"), ROPE_NEOX);
    }
}

/* Slots of k beside pages of v, with as many cells, would be written beyond. */
TEST(caches_of_a_call_are_of_one_kind)
{
    struct roped_tensor pages = {ROPED_BF16, 4, {3, 7, 2, 8}, NULL};
    struct roped_tensor slots = {ROPED_BF16, 3, {21, 2, 8}, NULL};
    start("rope_append");
    CHECK_OK(bind("q", ROPED_BF16, 3, 5, 4, 8), &err);
    CHECK_OK(bind("k", ROPED_BF16, 3, 5, 2, 8), &err);
    CHECK_OK(bind("v", ROPED_BF16, 3, 5, 2, 8), &err);
    CHECK_OK(bind("slots", ROPED_I32, 1, 5, 0, 0), &err);
    CHECK_OK(roped_call_bind(&call, "k_cache", &pages, &err), &err);
    CHECK_OK(roped_call_bind(&call, "v_cache", &slots, &err), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'v_cache': shape [21, 2, 8], expected rank of "
                         "[pages, pagesize, hk, d] (form heads)");
    call.in[4] = pages;
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[3].rank, 4);
    call.in[3] = call.in[4] = slots;
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[2].rank, 3);
}

/* A table that is given is as wide as what rotates, which may be a part of the
 * rotary part. */
TEST(a_cache_has_the_rotary_width)
{
    start("rope_quantize");
    CHECK_OK(bind("q_rope", ROPED_F32, 3, 5, 3, 8), &err);
    CHECK_OK(bind("k_rope", ROPED_F32, 3, 5, 2, 8), &err);
    CHECK_OK(bind("positions", ROPED_I64, 1, 5, 0, 0), &err);
    CHECK_OK(bind("cos_sin_cache", ROPED_F32, 2, 16, 4, 0), &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'cos_sin_cache': dim 1 is 4, expected w = 8 "
                         "(set by 'q_rope')");
    CHECK_OK(roped_call_set_text(&call, "rotary_dim", "4", &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    call.in[roped_op_input(call.op, "cos_sin_cache")].dims[1] = 8;
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_TEXT(err.text, "tensor 'cos_sin_cache': dim 1 is 8, expected w = 4 "
                         "(set by 'rotary_dim')");
}
