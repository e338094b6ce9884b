/*
 * norm.h - what the descriptors of the norm operators share: parameter rows,
 * the rule about weights, and the plan of the rows.
 */
#ifndef ROPED_OPS_NORM_H
#define ROPED_OPS_NORM_H

#include "ops/rmsnorm.h"

#include <float.h>

/* clang-format off */
#define NORM_AT(base, member) ((base) + offsetof(struct rmsnorm_params, member))

/* Parameters, for a struct that has a struct rmsnorm_params at offset base. */
#define NORM_PARAMS(base) \
    {"eps", ROPED_PARAM_FLOAT, NORM_AT(base, eps), 0, 1e-6, 0, FLT_MAX, .doc = "added to the mean square"}, \
    {"weight_bias", ROPED_PARAM_FLOAT, NORM_AT(base, weight_bias), 0, 0, -FLT_MAX, FLT_MAX, .doc = "added to the weight, where there is one; 1 is the Gemma form"}, \
    {"rounding", ROPED_PARAM_CHOICE, NORM_AT(base, rounding), .choices = "once|hf", .doc = "once: at the end; hf: also before the weight product, as Hugging Face Llama"}
/* clang-format on */

/* A hidden size above 0, and a weight whose type goes with that of x. */
ROPED_MUST_CHECK enum roped_status norm_rule(const struct roped_tensor *x,
                                             const struct roped_tensor *weight,
                                             struct roped_error *err);

extern const char norm_rule_doc[];

/* What is added to the weight. A norm without one has gain 1, as Gemma's own
 * norms without a weight do. */
float norm_weight_bias(const struct rmsnorm_params *params,
                       const struct roped_tensor *weight);

struct rmsnorm_plan norm_plan(const struct rmsnorm_params *params,
                              const struct roped_tensor *x,
                              const struct roped_tensor *weight);

#endif
