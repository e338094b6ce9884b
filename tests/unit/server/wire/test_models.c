/*
 * test_models.c - the list of models, and what the demos compute.
 */
#include "wire/models.h"

#include "check.h"

/* The operator behind a name, or NULL. */
static const struct roped_op *op_of(const struct models *models,
                                    const char *name)
{
    struct model model;
    return models_find(models, name, &model) ? model.signature.op : NULL;
}

TEST(demos_are_there_where_wanted)
{
    struct models with, without;
    models_init(&with, true);
    models_init(&without, false);
    CHECK_INT(without.n, ROPED_OP_COUNT);
    CHECK_INT(with.n, MODELS_MAX);
    CHECK(op_of(&with, "simple") == demo_at(0));
    CHECK(op_of(&with, "identity_fp32") == demo_at(1));
    CHECK(op_of(&without, "simple") == NULL);
    CHECK(op_of(&without, "rope") == roped_op_find("rope"));
    CHECK(op_of(&with, "") == NULL);
    for (int i = 0; i < with.n; i++) {
        CHECK_INT(models_index(&with, with.op[i]), i);
        CHECK_INT(demo_is(with.op[i]), i >= ROPED_OP_COUNT);
        CHECK_INT(demo_max_batch(with.op[i]), with.op[i] == demo_at(0) ? 8 : 0);
    }
}

TEST(a_model_has_all_tensors_or_those_it_names)
{
    struct models models;
    struct model model;
    const struct roped_op *rope = roped_op_find("rope");
    models_init(&models, false);
    CHECK(models_find(&models, "rope", &model));
    for (int i = 0; i < roped_op_inputs(rope); i++)
        CHECK(model_has_input(&model, i));
    CHECK(model_has_output(&model, roped_op_output(rope, "k")));
    CHECK(models_find(&models, "rope:positions,q", &model));
    CHECK_TEXT(model.name, "rope:positions,q");
    CHECK(model.signature.op == rope);
    CHECK(model_has_input(&model, roped_op_input(rope, "q")));
    CHECK(model_has_input(&model, roped_op_input(rope, "positions")));
    CHECK(!model_has_input(&model, roped_op_input(rope, "k")));
    CHECK(model_has_output(&model, roped_op_output(rope, "q")));
    CHECK(!model_has_output(&model, roped_op_output(rope, "k")));
}

TEST(required_stands_for_what_must_be_there)
{
    struct models models;
    struct model model;
    const struct roped_op *op = roped_op_find("rope_quantize");
    models_init(&models, false);
    CHECK(models_find(&models, "rope_quantize:positions,required", &model));
    CHECK(model_has_input(&model, roped_op_input(op, "q_rope")));
    CHECK(model_has_input(&model, roped_op_input(op, "k_rope")));
    CHECK(model_has_input(&model, roped_op_input(op, "positions")));
    CHECK(!model_has_input(&model, roped_op_input(op, "q_nope")));
    CHECK(!models_find(&models, "rope_quantize:required,q_rope", &model));
    CHECK(!models_find(&models, "rope_quantize:required,required", &model));
}

TEST(a_part_has_no_outputs_of_parameters_that_are_off)
{
    struct models models;
    struct model model;
    const struct roped_op *op = roped_op_find("rmsnorm_quantize");
    models_init(&models, false);
    CHECK(models_find(&models, "rmsnorm_quantize", &model));
    CHECK(model_has_output(&model, roped_op_output(op, "scales")));
    CHECK(models_find(&models, "rmsnorm_quantize:x", &model));
    CHECK(!model_has_output(&model, roped_op_output(op, "scales")));
}

TEST(parts_that_cannot_be)
{
    static const char *const names[] = {
        "rope:",    "rope:k",  "rope:q,",  "rope:,q", "rope:q,q",
        "rope:q k", "rope:q:", "rope:Q",   ":q",      "rope:q,none",
        "rop:q",    "ropes:q", "simple:q", "rope :q", "rope_quantize:q_rope"};
    struct models models;
    models_init(&models, false);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (op_of(&models, names[i]))
            CHECK_FAIL("'%s' is a model", names[i]);
}

TEST(demos_are_described_like_operators)
{
    struct roped_error err;
    for (int i = 0; i < DEMO_COUNT; i++) {
        CHECK_OK(roped_op_check(demo_at(i), &err), &err);
        CHECK(roped_op_find(demo_at(i)->name) == NULL);
    }
}

static void bind(struct roped_call *call, const char *name,
                 enum roped_dtype dtype, int64_t n, int64_t width, void *data)
{
    struct roped_error err;
    struct roped_tensor tensor = {.dtype = dtype,
                                  .rank = width ? 2 : 1,
                                  .dims = {n, width},
                                  .data = data};
    CHECK_OK(roped_call_bind(call, name, &tensor, &err), &err);
}

TEST(simple_adds_and_subtracts_at_any_address)
{
    unsigned char memory[4 * (2 * 16 * 4) + 4];
    int32_t values[2][32], results[2][32];
    struct roped_error err;
    struct roped_call call;
    for (int i = 0; i < 32; i++) {
        values[0][i] = i == 31 ? INT32_MAX : i;
        values[1][i] = i == 31 ? 1 : -2 * i;
    }
    memcpy(memory + 1, values, sizeof values);
    roped_call_init(&call, demo_at(0));
    bind(&call, "INPUT0", ROPED_I32, 2, 16, memory + 1);
    bind(&call, "INPUT1", ROPED_I32, 2, 16, memory + 1 + 128);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    call.out[0].data = memory + 3 + 256;
    call.out[1].data = memory + 3 + 256 + 128;
    demo_run(&call);
    memcpy(results, memory + 3 + 256, sizeof results);
    for (int i = 0; i < 31; i++) {
        CHECK_INT(results[0][i], -i);
        CHECK_INT(results[1][i], 3 * i);
    }
    CHECK_INT(results[0][31], INT32_MIN);
    CHECK_INT(results[1][31], INT32_MAX - 1);
}

TEST(simple_has_a_largest_batch)
{
    int32_t values[9 * 16] = {0};
    struct roped_error err;
    struct roped_call call;
    roped_call_init(&call, demo_at(0));
    bind(&call, "INPUT0", ROPED_I32, 9, 16, values);
    bind(&call, "INPUT1", ROPED_I32, 9, 16, values);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "batch-size must be <= 8 for 'simple', got 9");
}

TEST(identity_gives_back)
{
    float values[3] = {1.5F, -2, 0}, result[3] = {0};
    struct roped_error err;
    struct roped_call call;
    for (int64_t n = 0; n <= 3; n += 3) {
        roped_call_init(&call, demo_at(1));
        bind(&call, "INPUT0", ROPED_F32, n, 0, n ? values : NULL);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        call.out[0].data = n ? result : NULL;
        demo_run(&call);
    }
    CHECK(memcmp(values, result, sizeof values) == 0);
}
