/*
 * compare.c - the descriptor of compare.
 */
#include "ops/compare.h"

#include <float.h>

/* The type with the fewest digits. */
static enum roped_dtype coarser_of(enum roped_dtype a, enum roped_dtype b)
{
    if (a == ROPED_BF16 || b == ROPED_BF16)
        return ROPED_BF16;
    return a == ROPED_F16 || b == ROPED_F16 ? ROPED_F16 : ROPED_F32;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct compare_params *params = (const void *)call->params;
    const struct roped_tensor *a = &call->in[COMPARE_A];
    struct compare_plan *plan = (void *)call->plan;
    (void)err;
    *plan = (struct compare_plan){
        .n = roped_tensor_elements(a),
        .width = a->dims[a->rank - 1],
        .atol = (float)params->atol,
        .rtol = (float)params->rtol,
        .coarser = coarser_of(a->dtype, call->in[COMPARE_B].dtype),
    };
    return ROPED_OK;
}

#define AT(member) offsetof(struct compare_params, member)

/* clang-format off */
const struct roped_op roped_op_compare = {
    .name = "compare",
    .since = "0.1",
    .summary = "how far a is from b: the worst element, how many are beyond a tolerance, largest differences, cosine",
    .type = {{"A", ROPED_FLOATS}, {"B", ROPED_FLOATS}, {"I", ROPED_SET(ROPED_I64)}, {"S", ROPED_SET(ROPED_F32)}},
    .in = {
        [COMPARE_A] = {"a", "A", "...rows h", ROPED_STRIDED, .doc = "what is judged"},
        [COMPARE_B] = {"b", "B", "...rows h", ROPED_STRIDED, .doc = "what it should be, of the same shape; its type may be another one"},
    },
    .out = {
        [COMPARE_INDEX] = {"index", "I", "1", .doc = "flat index of the worst element: the first that is NaN in one alone, or else the first with the largest |a - b|; -1: no element differs"},
        [COMPARE_COUNTS] = {"counts", "I", "2", .doc = "how many elements are beyond atol + rtol * |b|, and how many are NaN in one alone; NaN in both and the same Inf in both are equal"},
        [COMPARE_STATS] = {"stats", "S", "4", .doc = "largest |a - b|, largest |a - b| / |b|, largest distance in units of the last place of the coarser type, and cosine; without NaN, and the cosine without Inf"},
    },
    .params_bytes = sizeof(struct compare_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"atol", ROPED_PARAM_FLOAT, AT(atol), 0, 1e-8, 0, FLT_MAX, .doc = "absolute tolerance; numpy.isclose and torch.isclose have the same defaults"},
        {"rtol", ROPED_PARAM_FLOAT, AT(rtol), 0, 1e-5, 0, FLT_MAX, .doc = "tolerance relative to |b|"},
    },
    .tokens = "rows",
    .plan = plan,
    .plan_bytes = sizeof(struct compare_plan),
};
/* clang-format on */
