/*
 * rope_heads.h - q and k as rope and rope_quantize take them: the rows of the
 * descriptor, the rule and the parts of the plan that those share with the
 * operators that do more in the same pass. Their parameter structs begin with
 * struct rope_params, or struct rope_quantize_params, and their ports with q
 * and k of rope, or the first six of rope_quantize.
 */
#ifndef ROPED_OPS_ROPE_HEADS_H
#define ROPED_OPS_ROPE_HEADS_H

#include "ops/angle_params.h"
#include "ops/heads_plan.h"
#include "ops/rope_quantize.h"
#include "ops/rotary.h"
#include "ops/scale.h"

/* clang-format off */
#define ROPE_HEADS_FORMS \
    {"heads", "layout", ROPE_LAYOUT_NHD, "a token is heads of head_dim elements"}, \
    {"packed", "layout", ROPE_LAYOUT_NHD, "a token is one row of heads * head_dim elements"}, \
    {"bsd", "layout", ROPE_LAYOUT_BSD, "batches of sequences of one head each"}

#define ROPE_HEADS_Q_SHAPE "n hq d|n hq*d|bs s d"
#define ROPE_HEADS_K_SHAPE "n hk d|n hk*d|bs s d"
#define ROPE_HEADS_TOKENS "n bs s"
#define ROPE_HEADS_N "n|n|bs*s"
#define ROPE_HEADS_ANGLE_INPUTS \
    ROPED_ANGLE_INPUTS(ROPED_AXES("n") "|" ROPED_AXES("n") "|" ROPED_AXES("bs*s"), \
                       ROPED_PER_TOKEN("n") "|" ROPED_PER_TOKEN("n") "|" ROPED_PER_TOKEN("bs*s"))

#define ROPE_HEADS_AT(member) offsetof(struct rope_params, member)
#define ROPE_HEADS_PARAMS \
    ROPED_STYLE_PARAM(ROPE_HEADS_AT(style)), \
    {"layout", ROPED_PARAM_CHOICE, ROPE_HEADS_AT(layout), .choices = "nhd|bsd", .doc = "nhd: [n, heads, d] or [n, heads * d]; bsd: [b, s, d]"}, \
    {"head_dim", ROPED_PARAM_INT, ROPE_HEADS_AT(head_dim), 0, 0, 0, 65536, .shape = "d", .doc = "head width d; needed for [n, heads * d]"}, \
    {"rotary_dim", ROPED_PARAM_INT, ROPE_HEADS_AT(rotary_dim), 0, 0, 0, 65536, .shape = "w", .otherwise = "d", .doc = "rotated width w, even; 0: the whole head"}, \
    {"rotary_offset", ROPED_PARAM_INT, ROPE_HEADS_AT(rotary_offset), 0, 0, 0, 65536, .doc = "first rotated element of the head"}, \
    {"offset", ROPED_PARAM_INT, ROPE_HEADS_AT(offset), 0, 0, 0, (1 << 24) - 1, .doc = "implicit positions: that of each sequence's first token"}, \
    {"inverse", ROPED_PARAM_BOOL, ROPE_HEADS_AT(inverse), .doc = "rotate backwards: the gradient of rope"}, \
    ROPED_ANGLE_PARAMS(rope_params)

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
    ROPED_STYLE_PARAM(ROPE_HEADS_AT(style)), \
    {"head_dim", ROPED_PARAM_INT, ROPE_HEADS_AT(head_dim), 0, 0, 0, 65536, .shape = "r", .doc = "width of q_rope and k_rope; 0: from the shape"}, \
    {"rotary_dim", ROPED_PARAM_INT, ROPE_HEADS_AT(rotary_dim), 0, 0, 0, 65536, .shape = "w", .otherwise = "r", .doc = "rotated width w, even; 0: the width of q_rope"}, \
    {"rotary_offset", ROPED_PARAM_INT, ROPE_HEADS_AT(rotary_offset), 0, 0, 0, 65536, .doc = "first rotated element of q_rope and k_rope"}, \
    {"offset", ROPED_PARAM_INT, ROPE_HEADS_AT(offset), 0, 0, 0, (1 << 24) - 1, .doc = "implicit positions: that of the first token"}, \
    {"inverse", ROPED_PARAM_BOOL, ROPE_HEADS_AT(inverse), .doc = "rotate backwards"}, \
    ROPED_ANGLE_PARAMS(rope_params)
/* clang-format on */

/* Geometry of the call's first input: q, or its rotary part. */
struct rotary_shape rope_heads_shape(const struct roped_call *call);

/* aux_bytes of operators without a cache. */
size_t rope_heads_aux_bytes(const struct roped_call *call);

/* Heads of a tensor shaped like q; 0 where it is absent. */
int64_t rope_heads_of(const struct roped_call *call, int port,
                      const struct rotary_shape *shape);

/* The call's plan, with q and, where it is given, k, which rotate on their way
 * to the outputs of their own name. */
struct heads_plan *rope_heads_plan(struct roped_call *call,
                                   const struct rotary_shape *shape);

/* The call's plan, with the rotary and non-rotary parts of q and k, which
 * become FP8; the caller says where they go. Checks the values of scales. */
ROPED_MUST_CHECK enum roped_status
rope_parts_plan(struct roped_call *call, const struct rotary_shape *shape,
                struct heads_plan **out, struct roped_error *err);

/* Adds heads of width elements each that stay as they are or become FP8. */
struct heads_part *heads_plan_add(struct heads_plan *plan, int from,
                                  int64_t heads, int64_t width);

#endif
