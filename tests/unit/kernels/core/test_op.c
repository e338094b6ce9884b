/*
 * test_op.c - the operator table, and what its self-check finds.
 */
#include "check.h"

#include "ops/rmsnorm.h"

#include <roped/op.h>

TEST(the_table_passes_its_own_check)
{
    struct roped_error err;
    CHECK_OK(roped_op_check_table(&err), &err);
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        CHECK(roped_op_find(op->name) == op);
        CHECK_INT(roped_op_index(op), i);
    }
    CHECK(roped_op_find("nobody") == NULL);
}

/* A copy of rmsnorm's descriptor to be spoilt. */
static struct roped_op copy(void)
{
    return *roped_op_find("rmsnorm");
}

static void expect_defect(const struct roped_op *op, const char *part)
{
    struct roped_error err = {.text = ""};
    CHECK_INT(roped_op_check(op, &err), ROPED_INTERNAL);
    CHECK_CONTAINS(err.text, part);
}

TEST(the_check_finds_each_kind_of_defect)
{
    struct roped_op op = copy();
    op.out[0].shape = "...rows q";
    expect_defect(&op, "dim of output");
    op = copy();
    op.out[0].type = "Z";
    expect_defect(&op, "type");
    op = copy();
    op.type[1].name = op.type[0].name;
    expect_defect(&op, "two types 'T'");
    op = copy();
    op.in[1].name = "x";
    expect_defect(&op, "two inputs");
    op = copy();
    op.in[0].shape = "...rows H!";
    expect_defect(&op, "bad dim");
    op = copy();
    op.param[0].init = -1;
    op.param[0].min = 0;
    op.param[0].max = 1;
    expect_defect(&op, "default outside");
    op = copy();
    op.tokens = NULL;
    expect_defect(&op, "a stride without tokens in 'x'");
    op = copy();
    op.tokens = "rows h"; /* a row of nothing */
    expect_defect(&op, "a stride without tokens in 'x'");
    op = copy();
    op.in[1].flags |= ROPED_STRIDED; /* the weight */
    expect_defect(&op, "a stride without tokens in 'weight'");
    op = copy();
    op.param[0].offset = op.params_bytes;
    expect_defect(&op, "outside its struct");
    op = copy();
    op.param[1].name = "eps";
    expect_defect(&op, "two parameters");
    op = *roped_op_find("rope");
    op.rule_doc = "";
    expect_defect(&op, "rule");
    op = copy();
    op.in[0].doc = "";
    expect_defect(&op, "no doc");
    op = copy();
    op.param[0].shape = "rows";
    expect_defect(&op, "no integers");
    op = *roped_op_find("binary_backward");
    op.param[1].shape = "c";
    expect_defect(&op, "no input has the shape");
}

/* rmsnorm, with its x taken for a cache that comes back as itself. */
static struct roped_op updating(void)
{
    struct roped_op op = copy();
    op.in[0].flags = ROPED_UPDATED;
    op.out[0].name = "x";
    return op;
}

TEST(an_updated_input_has_its_output)
{
    struct roped_error err;
    struct roped_op op = updating();
    CHECK_OK(roped_op_check(&op, &err), &err);
    CHECK_INT(roped_op_updates(&op, 0), 0);
    CHECK_INT(roped_op_updates(&op, 1), -1);
    op.out[0].name = "y";
    expect_defect(&op, "no output for updated input 'x'");
    op = updating();
    op.out[0].in_place = NULL;
    expect_defect(&op, "not the same tensor");
    op = updating();
    op.out[0].shape = "...rows 1";
    expect_defect(&op, "not the same tensor");
    op = updating();
    op.in[0].flags |= ROPED_INDEX;
    expect_defect(&op, "both index and updated");
    op = updating();
    op.in[0].flags |= ROPED_OPTIONAL;
    expect_defect(&op, "not the same tensor");
    op.out[0].requires_ = "x";
    CHECK_OK(roped_op_check(&op, &err), &err);
}

/* Outputs that depend on parameters. */
TEST(the_check_finds_defects_of_outputs)
{
    const struct roped_op *sound = roped_op_find("rmsnorm_quantize");
    struct roped_error err;
    struct roped_op op = *sound;
    CHECK_OK(roped_op_check(&op, &err), &err);
    op.out[1].requires_ = "nobody";
    expect_defect(&op, "required by output");
    op.out[1].requires_ = "group_size"; /* no bool */
    expect_defect(&op, "required by output");
    op.out[1].requires_ = "weight";
    CHECK_OK(roped_op_check(&op, &err), &err);
    op.out[1].shape = "rows h/dynamic"; /* no int */
    expect_defect(&op, "divisor");
    op.out[1].shape = "rows h/nobody";
    expect_defect(&op, "divisor");
    op.out[1].shape = "rows h/";
    expect_defect(&op, "bad dim");
    op = *sound;
    op.in[0].shape = "...rows h^4"; /* h might be 5 to 8 of 8 */
    expect_defect(&op, "no way back from a dim of input 'x'");
    op.in[0].shape = "...rows h*nobody";
    expect_defect(&op, "nothing binds a step of a dim of 'x'");
    op = *sound;
    op.type[3] = (struct roped_type){"S", ROPED_FLOATS}; /* nobody chooses */
    expect_defect(&op, "type of output");
}

TEST(patterns_are_parsed_per_form)
{
    struct roped_shape_pattern pattern;
    struct roped_error err;
    struct roped_port port = {"x", "T", "n hq d|...p 3 n|", 0};
    CHECK_OK(roped_port_pattern(&port, 0, &pattern, &err), &err);
    CHECK_INT(pattern.count, 3);
    CHECK_TEXT(pattern.dim[1].name, "hq");
    CHECK_OK(roped_port_pattern(&port, 1, &pattern, &err), &err);
    CHECK(pattern.dim[0].is_pack);
    CHECK_INT(pattern.dim[1].size, 3);
    CHECK_OK(roped_port_pattern(&port, 2, &pattern, &err), &err);
    CHECK_INT(pattern.count, 0);
    CHECK_INT(roped_port_pattern(&port, 3, &pattern, &err), ROPED_INTERNAL);
}
