/*
 * rope.h - the ports and parameters of rope, and the angles of every rotary
 * operator as its plan has them: what all position modes and sources of angles
 * have become.
 */
#ifndef ROPED_OPS_ROPE_H
#define ROPED_OPS_ROPE_H

#include <roped/op.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROPE_Q,
    ROPE_K,
    ROPE_POSITIONS, /* from here on the last ports of every rotary operator */
    ROPE_INDPTR,
    ROPE_OFFSETS,
    ROPE_COS_SIN_CACHE,
    ROPE_COS,
    ROPE_SIN,
    ROPE_SHORT_FACTOR,
    ROPE_LONG_FACTOR,
    ROPE_ANGLE_PORTS = ROPE_LONG_FACTOR + 1 - ROPE_POSITIONS
};
enum { ROPE_Q_OUT, ROPE_K_OUT };

enum rope_style { ROPE_NEOX, ROPE_GPTJ, ROPE_N_STYLES };
enum rope_layout { ROPE_LAYOUT_NHD, ROPE_LAYOUT_BSD };

/* The parameters of every rotary operator begin with these. */
struct rope_params {
    struct roped_angle_params angles;
    int64_t head_dim;      /* 0: from the shape */
    int64_t rotary_dim;    /* 0: head_dim */
    int64_t rotary_offset; /* first rotated element of the head */
    int64_t offset;        /* implicit positions only */
    int32_t style;         /* enum rope_style */
    int32_t layout;        /* enum rope_layout */
    int32_t inverse;       /* bool */
    int32_t reserved;
};

/* Where the position of token t comes from. */
enum rope_positions {
    ROPE_POSITIONS_NONE,     /* angles are per token */
    ROPE_POSITIONS_IMPLICIT, /* offset + t % tokens_per_sequence */
    ROPE_POSITIONS_I32,      /* positions[t], or positions[row * n + t] */
    ROPE_POSITIONS_I64,
    ROPE_POSITIONS_RAGGED_I32, /* offsets[j] + t - indptr[j] */
    ROPE_POSITIONS_RAGGED_I64
};

/* Where cos and sin of a token and pair come from. */
enum rope_angle_source {
    ROPE_ANGLES_PAIR,   /* cos[t][i], sin[t][i]: tensors of angle_dtype */
    ROPE_ANGLES_CACHE,  /* [rows, 2 * n_pairs] tensor of angle_dtype */
    ROPE_ANGLES_DERIVED /* call->table.data (F32) if set, else call->aux */
};

/*
 * How a plan finds the angle of (token, pair). Its pointers are not set by plan
 * (it runs on host memory): a launch fills a copy by rope_rotary_bind.
 */
struct rope_rotary {
    int64_t n_tokens;
    int64_t n_pairs;             /* 2 * n_pairs elements rotate */
    int64_t tokens_per_sequence; /* implicit */
    int64_t offset;              /* implicit */
    int64_t n_sequences;         /* ragged */
    int32_t style;
    int32_t positions;      /* enum rope_positions */
    int32_t angle_source;   /* enum rope_angle_source */
    int32_t angle_dtype;    /* enum roped_dtype, PAIR and CACHE */
    int32_t precision;      /* DERIVED: enum roped_angle_precision of aux */
    float attention_factor; /* DERIVED; PAIR and CACHE have it inside */
    float sin_sign;         /* -1 for inverse, else 1 */
    int32_t n_axes;         /* rows of positions; M-RoPE: 2 or more */
    int32_t has_padding;    /* tokens of position -1, which stay as they are */
    int32_t is_wide;        /* positions may be above UINT32_MAX */
    const void *index[2];   /* device: positions, or indptr and offsets */
    const void *angle[2];   /* device: cache, or cos and sin */
    const uint8_t *axis_of; /* device: M-RoPE: row of positions of each pair */
};

/* Port of 'positions'; the angles' other tensors follow it. */
static inline int rope_angle_port(const struct roped_call *call)
{
    return call->n_in - ROPE_ANGLE_PORTS;
}

/* The planned angles with the pointers of this call's tensors, as they are now.
 */
struct rope_rotary rope_rotary_bind(const struct roped_call *call,
                                    const struct rope_rotary *planned);

#ifdef __cplusplus
}
#endif

#endif
