/*
 * norm.h - what the descriptors of the norm operators share: forms, parameter
 * rows, the rules about weights and scales, and the plan of the rows.
 */
#ifndef ROPED_OPS_NORM_H
#define ROPED_OPS_NORM_H

#include "ops/rmsnorm_quantize.h"

#include <float.h>

/* clang-format off */
/* Of weights beside rows of type T: that type, or F32; beside F32, any. */
#define NORM_WEIGHT_TYPE \
    {"W", ROPED_FLOATS, .beside = "T", .also = ROPED_SET(ROPED_F32), .any_beside = ROPED_SET(ROPED_F32)}

#define NORM_AT(base, member) ((base) + offsetof(struct rmsnorm_params, member))

/* Of all norms but those into codes: weights of [heads, d] are those of a row of heads
 * times d columns. */
#define NORM_HEADS_PARAM \
    {"heads", ROPED_PARAM_INT, offsetof(struct heads_norm_params, heads), 0, 1, 1, 1 << 30, .doc = "a row is so many heads, each of which is normalised by itself, with its part of the weights"}

/* Of a residual beside rows of type T, and of the sum that is returned. */
#define NORM_RESIDUAL_TYPE \
    {"R", ROPED_FLOATS, .beside = "T", .also = ROPED_SET(ROPED_F32)}

/* Parameters, for a struct that has a struct rmsnorm_params at offset base. */
#define NORM_PARAMS(base) \
    NORM_PARAMS_ROUNDED(base, "once|hf", "once: at the end, as FlashInfer, SGLang and Gemma; hf: also before the weight product, as Llama and most models of Hugging Face, and vLLM")
#define NORM_PARAMS_ROUNDED(base, roundings, rounding_doc) \
    {"eps", ROPED_PARAM_FLOAT, NORM_AT(base, eps), 0, 1e-6, 0, FLT_MAX, .doc = "added to the mean square"}, \
    {"weight_bias", ROPED_PARAM_FLOAT, NORM_AT(base, weight_bias), 0, 0, -FLT_MAX, FLT_MAX, .doc = "added to the weight, where there is one; 1 is the Gemma form"}, \
    {"rounding", ROPED_PARAM_CHOICE, NORM_AT(base, rounding), .choices = roundings, .doc = rounding_doc}
#define NORM_SUM_PARAM(base) \
    {"sum_rounding", ROPED_PARAM_CHOICE, NORM_AT(base, sum_rounding), .choices = "once|type", .doc = "once: y is the norm of the float32 sum, as FlashInfer and SGLang; type: of the sum rounded to the type of x, as Hugging Face and vLLM; so is every step before it, but for those with a residual of F32"}, \
    {"x_scale", ROPED_PARAM_FLOAT, NORM_AT(base, x_scale), 0, 1, -FLT_MAX, FLT_MAX, .doc = "x is multiplied by it before it is added, as Granite's residual_multiplier"}, \
    {"residual_scale", ROPED_PARAM_FLOAT, NORM_AT(base, residual_scale), 0, 1, -FLT_MAX, FLT_MAX, .doc = "residual is multiplied by it first, as in MiniMax"}, \
    {"addend_scale", ROPED_PARAM_FLOAT, NORM_AT(base, addend_scale), 0, 1, -FLT_MAX, FLT_MAX, .doc = "addend is multiplied by it first, as in Falcon H1"}, \
    {"sum_scale", ROPED_PARAM_FLOAT, NORM_AT(base, sum_scale), 0, 1, -FLT_MAX, FLT_MAX, .doc = "the sum is multiplied by it before it is returned and normalised, as Gemma 4's layer_scalar"}, \
    {"sum_order", ROPED_PARAM_CHOICE, NORM_AT(base, sum_order), .choices = "addends_first|residual_first", .doc = "beside addend: addends_first: (x + addend) + residual, as GPT-J, GPT-NeoX, Phi and Falcon; residual_first: (residual + x) + addend, as Cohere"}
/* The second thing that is added to the residual, an input of these too. */
#define NORM_ADDEND {"addend", "T", "...rows h", ROPED_STRIDED | ROPED_OPTIONAL, .doc = "what else the block adds, where attention and MLP are parallel"}
#define NORM_ADDEND_GIVEN(addend) \
    {.with_param = "sum_order", .all = ROPED_INPUT(addend)}, \
    {.with_param = "addend_scale", .all = ROPED_INPUT(addend)}
/* The same for layer norms. rounding: RMSNORM_ROUND_HF is type. */
#define LAYER_NORM_PARAMS \
    LAYER_NORM_PARAMS_ROUNDED("once: at the end, as torch.nn.functional.layer_norm; type: also before the weight product and after it, as DeBERTa and Chameleon")
#define LAYER_NORM_PARAMS_ROUNDED(rounding_doc) \
    {"eps", ROPED_PARAM_FLOAT, NORM_AT(0, eps), 0, 1e-5, 0, FLT_MAX, .doc = "added to the variance"}, \
    {"weight_bias", ROPED_PARAM_FLOAT, NORM_AT(0, weight_bias), 0, 0, -FLT_MAX, FLT_MAX, .doc = "added to the weight, where there is one; 1 is the Nemotron form"}, \
    {"rounding", ROPED_PARAM_CHOICE, NORM_AT(0, rounding), .choices = "once|type", .doc = rounding_doc}

/* The same for norms into codes, whose parameters begin with a struct
 * quantize_params. */
#define NORM_QUANTIZE_AT(member) offsetof(struct rmsnorm_quantize_params, member)
/* Either a scale is given, or everything about a dynamic one may be.
 * global_scale: its port. */
#define NORM_QUANTIZE_GIVEN(global_scale) \
    {.with_param = "dequant_scale", .needs = "dynamic=false"}, \
    {.with_param = "scale_ub", .needs = "dynamic=true"}, \
    {.with_param = "group_size", .needs = "dynamic=true"}, \
    {.with_param = "scale_rounding", .needs = "dynamic=true"}, \
    {.when = CODES_MICRO("output_dtype"), .with_param = "output_dtype", .needs = "dynamic=true"}, \
    QUANTIZE_FORMAT_GIVEN, \
    {.when = CODES_MX("output_dtype"), .with_param = "group_size", .needs = "group_size=0,32"}, \
    {.when = CODES_NV("output_dtype"), .with_param = "group_size", .needs = "group_size=0,16"}, \
    CODES_MICRO_GIVEN("output_dtype", global_scale)
#define NORM_QUANTIZE_SCALES \
    SCALES_OF_MICRO("output_dtype") \
    "|[scale_layout=rows] rows h/group_size" \
    "|[scale_layout=rows_2d] rows h//group_size" \
    "|[scale_layout=columns] h//group_size rows" \
    "|h//group_size rows^4"
#define NORM_QUANTIZE_PARAMS \
    QUANTIZE_OUTPUT_PARAM, \
    QUANTIZE_GIVEN_SCALE_PARAM, \
    {"dynamic", ROPED_PARAM_BOOL, QUANTIZE_AT(dynamic), .doc = "a scale from the largest value of each row, or group of it, instead of dequant_scale; of mxfp8, mxfp4 and nvfp4 always"}, \
    QUANTIZE_BOUND_PARAM("; 0 or below: the smallest scale"), \
    {"group_size", ROPED_PARAM_INT, CODES_AT(quantize_params, group_size), 0, 0, 0, 128, .doc = "dynamic: a scale per group of 16, 32, 64 or 128 columns; 0: per row; of mxfp8 and mxfp4 always 32, of nvfp4 16"}, \
    CODES_LAYOUT_PARAM(quantize_params, "dynamic: "), \
    QUANTIZE_ROUNDING_PARAM, \
    CODES_GLOBAL_PARAM(quantize_params), \
    QUANTIZE_INFINITY_PARAM, \
    NORM_PARAMS_ROUNDED(NORM_QUANTIZE_AT(norm), "once|hf|type", "once: into codes, as FlashInfer; hf: also before the weight product, as Llama and most models of Hugging Face; type: also after it, to the type of x, as vLLM")
/* clang-format on */

/* What is added to the weight. A norm without one has gain 1, as Gemma's own
 * norms without a weight do. */
float norm_weight_bias(const struct rmsnorm_params *params,
                       const struct roped_tensor *weight);

struct rmsnorm_plan norm_plan(const struct rmsnorm_params *params,
                              const struct roped_tensor *x,
                              const struct roped_tensor *weight);

/* Does heads divide the width of x? Parameters of the call are struct
 * heads_norm_params, and x is its first input. */
ROPED_MUST_CHECK enum roped_status norm_heads_rule(struct roped_call *call,
                                                   struct roped_error *err);

extern const char norm_heads_rule_doc[];

/* The plan, a struct heads_norm_plan, of such parameters; x and weight are
 * ports. */
void norm_heads_plan(struct roped_call *call, int x, int weight);

/* Norms into codes: parameters and plan of the call are those of
 * rmsnorm_quantize; x, weight and global_scale are ports. */
ROPED_MUST_CHECK enum roped_status norm_quantize_rule(struct roped_call *call,
                                                      struct roped_error *err);

extern const char norm_quantize_rule_doc[];

ROPED_MUST_CHECK enum roped_status norm_quantize_plan(struct roped_call *call,
                                                      int x, int weight,
                                                      int global_scale,
                                                      struct roped_error *err);

#endif
