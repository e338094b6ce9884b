/*
 * rope_parts.h - rotary and non-rotary parts of q and k as rope_quantize takes
 * them: the rows of the descriptor, the rule and the plan that it shares with
 * the operator that also puts them into a cache. Parameter structs begin with
 * struct rope_quantize_params, ports with its first six.
 */
#ifndef ROPED_OPS_ROPE_PARTS_H
#define ROPED_OPS_ROPE_PARTS_H

#include "ops/angle_params.h"
#include "ops/rope_quantize.h"
#include "ops/rotary.h"
#include "ops/scale.h"

/* clang-format off */
#define ROPE_PARTS_AT(member) offsetof(struct rope_quantize_params, member)
#define ROPE_PARTS_ANGLE_INPUTS \
    ROPED_ANGLE_INPUTS(ROPED_AXES("n"), ROPED_PER_TOKEN("n"))
#define ROPE_PARTS_GIVEN(positions) \
    {.together = ROPED_INPUT(ROPE_QUANTIZE_Q_NOPE) | ROPED_INPUT(ROPE_QUANTIZE_K_NOPE)}, \
    ROPED_ANGLE_GIVEN(positions)
#define ROPE_PARTS_PARAMS \
    {"output_dtype", ROPED_PARAM_DTYPE, ROPE_PARTS_AT(output_dtype), .choices = "e4m3|e5m2", .type = "Q", .doc = "FP8 format of the outputs"}, \
    SCALE_PARAM("scale_q", ROPE_PARTS_AT(scale_q), "q"), \
    SCALE_PARAM("scale_k", ROPE_PARTS_AT(scale_k), "k"), \
    ROPED_STYLE_PARAM(ROPE_PARTS_AT(style)), \
    {"head_dim", ROPED_PARAM_INT, ROPE_PARTS_AT(head_dim), 0, 0, 0, 65536, .shape = "r", .doc = "width of q_rope and k_rope; 0: from the shape"}, \
    {"rotary_dim", ROPED_PARAM_INT, ROPE_PARTS_AT(rotary_dim), 0, 0, 0, 65536, .shape = "w", .otherwise = "r", .doc = "rotated width w, even; 0: the width of q_rope"}, \
    {"rotary_offset", ROPED_PARAM_INT, ROPE_PARTS_AT(rotary_offset), 0, 0, 0, 65536, .doc = "first rotated element of q_rope and k_rope"}, \
    {"offset", ROPED_PARAM_INT, ROPE_PARTS_AT(offset), 0, 0, 0, (1 << 24) - 1, .doc = "implicit positions: that of the first token"}, \
    {"inverse", ROPED_PARAM_BOOL, ROPE_PARTS_AT(inverse), .doc = "rotate backwards"}, \
    ROPED_ANGLE_PARAMS(rope_quantize_params)
/* clang-format on */

/* Geometry of the call's q_rope; positions_port is the operator's. */
struct rotary_shape rope_parts_shape(const struct roped_call *call,
                                     int positions_port);

/* Checks the values, fills *out, call->aux and call->table. */
ROPED_MUST_CHECK enum roped_status
rope_parts_plan(struct roped_call *call, const struct rotary_shape *shape,
                struct rope_quantize_plan *out, struct roped_error *err);

#endif
