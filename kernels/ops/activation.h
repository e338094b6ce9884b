/*
 * activation.h - what the descriptors of act_and_mul, of its gradients and of
 * act_and_mul_quantize share: parameter rows, what goes together, and the plan
 * of the rows.
 */
#ifndef ROPED_OPS_ACTIVATION_H
#define ROPED_OPS_ACTIVATION_H

#include "ops/act_and_mul.h"

#include <float.h>

/* clang-format off */
/* base: where a struct act_and_mul_params is. */
#define ACT_AT(base, member) ((base) + offsetof(struct act_and_mul_params, member))
/* Of all operators; act_and_mul and its gradients have more. */
#define ACT_CHOICES "silu|gelu|gelu_tanh|relu|relu2|quick_gelu|sigmoid|swiglu_oai"
#define ACT_PARAMS(base, activations, more_doc, roundings, rounding_doc) \
    {"activation", ROPED_PARAM_CHOICE, ACT_AT(base, activation), .choices = activations, .doc = "gelu: by erf, exact in its tail; gelu_tanh: Hugging Face's gelu_pytorch_tanh, and with rounding=steps gelu_new; swiglu_oai: gate * sigmoid(alpha * gate) * (up + beta), as gpt-oss" more_doc}, \
    {"gated", ROPED_PARAM_BOOL, ACT_AT(base, gated), 0, 1, .doc = "false: y = act(x), without a product"}, \
    {"interleaved", ROPED_PARAM_BOOL, ACT_AT(base, interleaved), .doc = "x has pairs, the gate is the even element, as gpt-oss"}, \
    {"gate_second", ROPED_PARAM_BOOL, ACT_AT(base, gate_second), .doc = "the gate is the second half of x"}, \
    {"limit", ROPED_PARAM_FLOAT, ACT_AT(base, limit), ROPED_NO_DEFAULT, 0, FLT_TRUE_MIN, FLT_MAX, .doc = "gate is at most limit, up at most limit in magnitude; unset: 7 for swiglu_oai, else no limit"}, \
    {"alpha", ROPED_PARAM_FLOAT, ACT_AT(base, alpha), 0, 1.702, 1e-20, 1e20, .doc = "swiglu_oai: what the gate is multiplied by inside the sigmoid"}, \
    {"beta", ROPED_PARAM_FLOAT, ACT_AT(base, beta), 0, 1, -FLT_MAX, FLT_MAX, .doc = "swiglu_oai: what is added to up"}, \
    {"rounding", ROPED_PARAM_CHOICE, ACT_AT(base, rounding), .choices = roundings, .doc = rounding_doc}

#define ACT_FAST_DOC "; gelu_fast: gelu_tanh, but for the steps of rounding=steps, as Bloom"

/* The inputs, and which of them go together: x, or gate and up. */
#define ACT_PORTS(x, gate, up) \
    [x] = {"x", "T", "[gated=true] ...rows 2h|...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "rows of gate and up; of the gate alone where gated is false"}, \
    [gate] = {"gate", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what goes through the activation, where x is not given"}, \
    [up] = {"up", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what it is multiplied by"}
/* Sets of one input each. */
#define ACT_GIVEN(x, gate, up) \
    {.without = (x), .all = (gate) | (up)}, \
    {.with = (x), .none = (gate) | (up)}, \
    {.when = "gated=false", .all = (x)}, \
    {.with_param = "interleaved", .all = (x)}, \
    {.with_param = "gate_second", .all = (x)}, \
    {.when = "interleaved=true", .with_param = "interleaved", .needs = "gated=true"}, \
    {.when = "interleaved=true", .with_param = "interleaved", .needs = "gate_second=false"}, \
    {.when = "gate_second=true", .with_param = "gate_second", .needs = "gated=true"}, \
    {.when = "activation=swiglu_oai", .with_param = "activation", .needs = "gated=true"}, \
    {.with_param = "alpha", .needs = "activation=swiglu_oai"}, \
    {.with_param = "beta", .needs = "activation=swiglu_oai"}
/* clang-format on */

/* Of rows of y, which have this type and so many values each. */
struct act_and_mul_plan act_plan_of(const struct act_and_mul_params *params,
                                    enum roped_dtype dtype, int64_t n_rows,
                                    int64_t width);

#endif
