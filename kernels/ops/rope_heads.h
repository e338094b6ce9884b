/*
 * rope_heads.h - q and k as rope takes them: the rows of the descriptor, the
 * rule and the plan that rope shares with the operators that do more in the
 * same pass. Their parameter structs begin with struct rope_params, their
 * ports with ROPE_Q and ROPE_K.
 */
#ifndef ROPED_OPS_ROPE_HEADS_H
#define ROPED_OPS_ROPE_HEADS_H

#include "ops/angle_params.h"
#include "ops/rotary.h"

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
/* clang-format on */

/* Geometry of the call's q; positions_port is the operator's. */
struct rotary_shape rope_heads_shape(const struct roped_call *call,
                                     int positions_port);

/* Heads of a tensor shaped like q; 0 where it is absent. */
int64_t rope_heads_of(const struct roped_call *call, int port,
                      const struct rotary_shape *shape);

/* Checks the values, fills *out, call->aux and call->table. */
ROPED_MUST_CHECK enum roped_status
rope_heads_plan(struct roped_call *call, const struct rotary_shape *shape,
                struct rope_plan *out, struct roped_error *err);

#endif
