/*
 * gated_rmsnorm.c - the descriptor of gated_rmsnorm.
 */
#include "ops/gated_rmsnorm.h"

#include "ops/norm.h"

static const struct gated_rmsnorm_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

static int64_t width_of(const struct roped_call *call)
{
    const struct roped_tensor *x = &call->in[GATED_RMSNORM_X];
    return x->dims[x->rank - 1];
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    int64_t size = params_of(call)->group_size, width = width_of(call);
    if (size == 0 || width % size == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'group_size': %lld, expected a divisor of h = "
                      "%lld (set by 'x'), or 0 for whole rows",
                      (long long)size, (long long)width);
}

/* A group is a row of its own. Classes of transformers multiply the weight by
 * what they have rounded, in the type of both: with weights of F32 beside a
 * narrower x that product is F32. */
static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct gated_rmsnorm_params *params = params_of(call);
    const struct roped_tensor *x = &call->in[GATED_RMSNORM_X];
    struct norm_pair_plan *plan = (void *)call->plan;
    int64_t width = width_of(call);
    (void)err;
    *plan = (struct norm_pair_plan){
        .norm = norm_plan(&params->norm, x, &call->in[GATED_RMSNORM_WEIGHT]),
        .n_groups = params->group_size ? width / params->group_size : 1,
        .pair = params->gate_first ? GATE_THEN_NORM : NORM_THEN_GATE,
        .activation = params->gate_activation ? ACT_SIGMOID : ACT_SILU,
    };
    plan->norm.n_rows *= plan->n_groups;
    plan->norm.hidden /= plan->n_groups;
    plan->rounds_norm = !params->gate_first && x->dtype != ROPED_F32 &&
                        plan->norm.rounding == RMSNORM_ROUND_HF &&
                        plan->norm.weight_dtype != ROPED_F32;
    return ROPED_OK;
}

/* clang-format off */
#define AT(member) offsetof(struct gated_rmsnorm_params, member)
const struct roped_op roped_op_gated_rmsnorm = {
    .name = "gated_rmsnorm",
    .since = "0.1",
    .summary = "y = rmsnorm(x) * act(gate), or rmsnorm(x * act(gate)), of whole rows or of groups of their columns",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [GATED_RMSNORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [GATED_RMSNORM_GATE] = {"gate", "T", "...rows h", ROPED_STRIDED, .doc = "what goes through the activation"},
        [GATED_RMSNORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [GATED_RMSNORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the rows, normalised and gated"},
    },
    .params_bytes = sizeof(struct gated_rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"gate_activation", ROPED_PARAM_CHOICE, AT(gate_activation), .choices = "silu|sigmoid", .doc = "silu: Mamba 2, Bamba, Nemotron H, Zamba 2, Falcon H1, Qwen 3-Next; sigmoid: Kimi Linear, Bailing"},
        {"gate_first", ROPED_PARAM_BOOL, AT(gate_first), .doc = "the norm is that of x * act(gate), in float32: Mamba 2, Bamba, Nemotron H, Zamba 2, and Falcon H1 unless its mamba_norm_before_gate is true; false: the norm of x is multiplied"},
        {"group_size", ROPED_PARAM_INT, AT(group_size), 0, 0, 0, 1 << 30, .doc = "the mean is that of so many columns; 0: of the row"},
        NORM_PARAMS_ROUNDED(0, "once|hf", "once: at the end, as Falcon H1, Kimi Linear, Bailing, and the kernels of vLLM and Mamba; hf: also before the weight product, and with gate_first=false after it (unless the weight alone is F32), as Mamba 2, Bamba, Nemotron H, Zamba 2 and Qwen 3-Next of Hugging Face"),
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = rule,
    .rule_doc = "group_size divides h",
    .plan = plan,
    .plan_bytes = sizeof(struct norm_pair_plan),
};
/* clang-format on */
