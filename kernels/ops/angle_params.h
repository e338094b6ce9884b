/*
 * angle_params.h - the descriptor rows that every rotary operator shares: the
 * parameters and tensors that say where angles come from.
 */
#ifndef ROPED_OPS_ANGLE_PARAMS_H
#define ROPED_OPS_ANGLE_PARAMS_H

#include <roped/op.h>

#include <float.h>

/* clang-format off */
#define ANGLE_AT(S, member) offsetof(struct S, angles.member)
#define POSITIVE ROPED_NO_DEFAULT | ROPED_ABOVE_MIN

/* Where a call names a table and gives no style, rotary_plan takes the table's. */
#define ROPED_STYLE_PARAM(at) \
    {"style", ROPED_PARAM_CHOICE, at, .choices = "neox|gptj", .doc = "which elements pair: neox i with i + r/2, gptj 2i with 2i + 1; not given: as the call's table has them, else neox"}

/* Parameters, for a struct S with a member 'angles'. */
#define ROPED_ANGLE_PARAMS(S) \
    {"theta", ROPED_PARAM_FLOAT, ANGLE_AT(S, theta), ROPED_ABOVE_MIN, 10000, 0, DBL_MAX, .doc = "base of the inverse frequencies"}, \
    {"scaling", ROPED_PARAM_CHOICE, ANGLE_AT(S, scaling), .choices = roped_scaling_choices + 1, .doc = "how the frequencies are stretched beyond the trained length; axial: they begin anew in each section, for images; axial_dealt: sections share them in turns"}, \
    {"factor", ROPED_PARAM_FLOAT, ANGLE_AT(S, factor), POSITIVE, 0, 0, DBL_MAX, .doc = "scaling factor, of every scaling but none and the axial ones"}, \
    {"low_freq_factor", ROPED_PARAM_FLOAT, ANGLE_AT(S, low_freq_factor), POSITIVE, 0, 0, DBL_MAX, .doc = "llama3: wavelengths above original/this are divided by factor"}, \
    {"high_freq_factor", ROPED_PARAM_FLOAT, ANGLE_AT(S, high_freq_factor), POSITIVE, 0, 0, DBL_MAX, .doc = "llama3: wavelengths below original/this are kept"}, \
    {"beta_fast", ROPED_PARAM_FLOAT, ANGLE_AT(S, beta_fast), ROPED_ABOVE_MIN, 32, 0, DBL_MAX, .doc = "yarn, deepseek_yarn: rotations above which a frequency is kept"}, \
    {"beta_slow", ROPED_PARAM_FLOAT, ANGLE_AT(S, beta_slow), ROPED_ABOVE_MIN, 1, 0, DBL_MAX, .doc = "yarn, deepseek_yarn: rotations below which a frequency is divided by factor"}, \
    {"mscale", ROPED_PARAM_FLOAT, ANGLE_AT(S, mscale), ROPED_NO_DEFAULT, 0, 0, DBL_MAX, .doc = "yarn: numerator of the attention factor, with mscale_all_dim; deepseek_yarn: alone too"}, \
    {"mscale_all_dim", ROPED_PARAM_FLOAT, ANGLE_AT(S, mscale_all_dim), ROPED_NO_DEFAULT, 0, 0, DBL_MAX, .doc = "yarn: denominator of the attention factor, with mscale; deepseek_yarn: alone too"}, \
    {"attention_factor", ROPED_PARAM_FLOAT, ANGLE_AT(S, attention_factor), POSITIVE, 0, 0, DBL_MAX, .doc = "yarn, deepseek_yarn, longrope: multiplies cos and sin, instead of the derived one"}, \
    {"truncate", ROPED_PARAM_BOOL, ANGLE_AT(S, truncate), .init = 1, .doc = "yarn, deepseek_yarn: round the ramp's ends to whole pairs"}, \
    {"max_position", ROPED_PARAM_INT, ANGLE_AT(S, max_position), ROPED_NO_DEFAULT, 0, 1, 1 << 30, .doc = "the model's longest sequence, tokens"}, \
    {"original_max_position", ROPED_PARAM_INT, ANGLE_AT(S, original_max_position), ROPED_NO_DEFAULT, 0, 1, 1 << 30, .doc = "longest sequence before scaling, tokens; default max_position"}, \
    {"longrope", ROPED_PARAM_CHOICE, ANGLE_AT(S, longrope), .choices = "auto|short|long", .doc = "longrope: which factor list; auto by the call's largest position"}, \
    {"alpha", ROPED_PARAM_FLOAT, ANGLE_AT(S, alpha), POSITIVE, 0, 0, DBL_MAX, .doc = "dynamic: fixed stretch of theta instead of factor and length"}, \
    {"mixed_b", ROPED_PARAM_FLOAT, ANGLE_AT(S, mixed_b), POSITIVE, 0, 0, DBL_MAX, .doc = "ntk: exponent of the mixed form"}, \
    {"mrope_section", ROPED_PARAM_INTS, ANGLE_AT(S, mrope_section), ROPED_NO_DEFAULT, 0, 0, 1 << 20, .doc = "M-RoPE: pairs of each section, 2 to 4 of them; section s follows row s of positions, such as time, height, width"}, \
    {"mrope_axes", ROPED_PARAM_INTS, ANGLE_AT(S, mrope_axes), ROPED_NO_DEFAULT, 0, 0, ROPED_MAX_AXES - 1, .doc = "M-RoPE: row of positions that each section follows, where it is not the section's own number"}, \
    {"mrope_interleaved", ROPED_PARAM_BOOL, ANGLE_AT(S, mrope_interleaved), .doc = "M-RoPE: sections take turns pair by pair instead of in blocks"}, \
    {"mrope_turns", ROPED_PARAM_INT, ANGLE_AT(S, mrope_turns), 0, 0, 0, ROPED_MAX_AXES, .doc = "M-RoPE: this many sections, the first ones, of equal counts, take turns pair by pair, and the others follow in blocks; 0: as mrope_interleaved says"}, \
    {"angle_precision", ROPED_PARAM_CHOICE, ANGLE_AT(S, angle_precision), .choices = "f32|f64", .doc = "f32: frequency and angle rounded to float32, as models are trained; f64: exact angle"}, \
    {"angles", ROPED_PARAM_CHOICE, ANGLE_AT(S, mode), .choices = "auto|table|compute", .doc = "where cos and sin come from: a resident table, or computed in the kernel"}

/* Inputs, in the order of enum ROPE_POSITIONS .. ROPE_LONG_FACTOR. The rotary
 * width is w; positions and cos are a form's: ROPED_AXES, ROPED_PER_TOKEN. */
#define ROPED_AXES(n) "...axes " n
#define ROPED_PER_TOKEN(n) n " w/2"
#define ROPED_ANGLE_INPUTS(positions, per_token) \
    {"positions", "P", positions, ROPED_OPTIONAL | ROPED_INDEX, .holds = "position < rows|16777216 or -1", .doc = "position of each token; -1: the token is left as it is; with mrope_section [2, n] to [4, n], a row for each section"}, \
    {"indptr", "I", "b+1", ROPED_OPTIONAL | ROPED_INDEX, .holds = "starts to n|bs*s", .doc = "ragged: first token of each sequence, and n at the end"}, \
    {"offsets", "I", "b", ROPED_OPTIONAL | ROPED_INDEX, .holds = "position", .doc = "ragged: position of each sequence's first token"}, \
    {"cos_sin_cache", "C", "rows w", ROPED_OPTIONAL, .doc = "row per position: w/2 cosines, then w/2 sines; w is the rotary width"}, \
    {"cos", "A", per_token, ROPED_OPTIONAL, .doc = "row per token: cosine of each pair"}, \
    {"sin", "A", per_token, ROPED_OPTIONAL, .doc = "row per token: sine of each pair"}, \
    {"short_factor", "F", "w/2", ROPED_OPTIONAL | ROPED_INDEX, .doc = "longrope: frequency divisors up to the original length"}, \
    {"long_factor", "F", "w/2", ROPED_OPTIONAL | ROPED_INDEX, .doc = "longrope: frequency divisors beyond the original length"}

/* Which of those inputs go together, where 'positions' is port p. */
#define ROPED_ANGLE_INPUT(p, port) ROPED_INPUT((p) + ROPE_##port - ROPE_POSITIONS)
#define ROPED_ANGLE_GIVEN(p) \
    {.together = ROPED_ANGLE_INPUT(p, INDPTR) | ROPED_ANGLE_INPUT(p, OFFSETS)}, \
    {.together = ROPED_ANGLE_INPUT(p, COS) | ROPED_ANGLE_INPUT(p, SIN)}, \
    {.together = ROPED_ANGLE_INPUT(p, SHORT_FACTOR) | ROPED_ANGLE_INPUT(p, LONG_FACTOR)}, \
    {.one_of = ROPED_ANGLE_INPUT(p, POSITIONS) | ROPED_ANGLE_INPUT(p, INDPTR) | ROPED_ANGLE_INPUT(p, COS)}, \
    {.one_of = ROPED_ANGLE_INPUT(p, COS_SIN_CACHE) | ROPED_ANGLE_INPUT(p, COS) | ROPED_ANGLE_INPUT(p, SHORT_FACTOR)}, \
    {.with_param = "offset", .none = ROPED_ANGLE_INPUT(p, POSITIONS) | ROPED_ANGLE_INPUT(p, INDPTR) | ROPED_ANGLE_INPUT(p, COS)}

#define ROPED_ANGLE_TYPES \
    {"P", ROPED_INDEXES}, {"I", ROPED_INDEXES}, \
    {"C", ROPED_FLOATS}, {"A", ROPED_FLOATS, .beside = "T", .also = ROPED_SET(ROPED_F32)}, {"F", ROPED_SET(ROPED_F32)}
/* clang-format on */

#endif
