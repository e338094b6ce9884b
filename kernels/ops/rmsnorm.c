/*
 * rmsnorm.c - the descriptor of rmsnorm.
 */
#include "ops/norm.h"
#include "ops/norm_pair.h"

/* A head is a row of its own. */
static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct heads_norm_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    struct norm_pair_plan *plan = (void *)call->plan;
    const bool is_narrow = x->dtype != ROPED_F32;
    (void)err;
    *plan = (struct norm_pair_plan){
        .norm = norm_plan(&params->norm, x, &call->in[RMSNORM_WEIGHT]),
        .n_groups = params->heads,
        .pair = NORM_ALONE,
        .rounds_scale =
            is_narrow && params->norm.rounding == RMSNORM_ROUND_SCALE,
    };
    if (params->norm.rounding == RMSNORM_ROUND_SCALE)
        plan->norm.rounding = RMSNORM_ROUND_HF;
    plan->norm.n_rows *= plan->n_groups;
    plan->norm.hidden /= plan->n_groups;
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm = {
    .name = "rmsnorm",
    .since = "0.1",
    .summary = "y = x / sqrt(mean(x^2) + eps) * (weight_bias + weight), row by row, or head by head",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [RMSNORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [RMSNORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the rows, normalised"},
    },
    .params_bytes = sizeof(struct heads_norm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        NORM_PARAMS_ROUNDED(0, "once|hf|scale", "once: at the end, as FlashInfer, SGLang and Gemma; hf: also before the weight product, as Llama and most models of Hugging Face, and vLLM; scale: and 1 / rms before its product with x, as DeepSeek V4"),
        NORM_HEADS_PARAM,
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_heads_rule,
    .rule_doc = norm_heads_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct norm_pair_plan),
};
/* clang-format on */
