/*
 * activation_rows.c - activations of a block; built once per
 * instruction set, as rows.c is.
 */
#include "cpu/activation_rows.h"
#include "cpu/activations.h"

#include <math.h>

/* ------------------------------------------------------------------ blocks */

/* What the values with a slope are at most: those at the limit have none any
 * more, as in PyTorch. */
INLINE float below_limit(const struct act_and_mul_plan *plan)
{
    return plan->limit < INFINITY ? nextafterf(plan->limit, -INFINITY)
                                  : INFINITY;
}

/* A loop for each activation. */
#define FOR_ACTIVATION(kind, loop, ...)                                        \
    switch ((enum activation)(kind)) {                                         \
    case ACT_SILU:                                                             \
        loop(ACT_SILU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_GELU:                                                             \
        loop(ACT_GELU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_GELU_TANH:                                                        \
        loop(ACT_GELU_TANH, __VA_ARGS__);                                      \
        break;                                                                 \
    case ACT_RELU:                                                             \
        loop(ACT_RELU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_RELU2:                                                            \
        loop(ACT_RELU2, __VA_ARGS__);                                          \
        break;                                                                 \
    case ACT_SIGMOID:                                                          \
        loop(ACT_SIGMOID, __VA_ARGS__);                                        \
        break;                                                                 \
    case ACT_QUICK_GELU:                                                       \
    case ACT_SWIGLU_OAI:                                                       \
        loop(ACT_QUICK_GELU, __VA_ARGS__);                                     \
        break;                                                                 \
    case ACT_GELU_FAST: /* of act_values.c */                                  \
    case ACT_XIELU:                                                            \
        break;                                                                 \
    }

/* Elements [i, i + n), at most a block, of any type. */
INLINE block load_any(enum roped_dtype dtype, const void *from, int64_t i,
                      int64_t n)
{
    if (dtype == ROPED_F16)
        return load(ROPED_F16, HALVES, at(ROPED_F16, from, i), n);
    if (dtype == ROPED_BF16)
        return load(ROPED_BF16, HALVES, at(ROPED_BF16, from, i), n);
    return load(ROPED_F32, HALVES, at(ROPED_F32, from, i), n);
}

INLINE void store_any(enum roped_dtype dtype, void *to, int64_t i, block x,
                      int64_t n, bool is_streamed)
{
    if (dtype == ROPED_F16)
        store(ROPED_F16, HALVES, place(ROPED_F16, to, i), x, 1, n, is_streamed);
    else if (dtype == ROPED_BF16)
        store(ROPED_BF16, HALVES, place(ROPED_BF16, to, i), x, 1, n,
              is_streamed);
    else
        store(ROPED_F32, HALVES, place(ROPED_F32, to, i), x, 1, n, is_streamed);
}

INLINE void prefetch_any(enum roped_dtype dtype, const void *x, int64_t i,
                         int64_t ahead)
{
    const int64_t size = dtype == ROPED_F32 ? 4 : 2;
    prefetch_elements(ROPED_U8, at(ROPED_U8, x, ahead + i * size),
                      BLOCK * size);
}

INLINE block round_any(enum roped_dtype dtype, block x)
{
    if (dtype == ROPED_F16)
        return round_to(ROPED_F16, x);
    return dtype == ROPED_BF16 ? round_to(ROPED_BF16, x) : x;
}

/* A beta of 0 is not added: it would make a -0 a +0. */
INLINE vfloat up_of(const struct act_and_mul_plan *plan, vfloat up)
{
    const vfloat most = splat(plan->limit), least = splat(-plan->limit);
    const vfloat u = at_most(most, up);
    const vfloat v = pick_lanes(is_less(u, least), least, u);
    if (plan->beta == 0)
        return v;
    return v + splat(plan->beta);
}

/* Elements [i, i + n), at most a block. */
INLINE void gate_block(enum activation activation,
                       const struct act_and_mul_plan *plan,
                       const struct cpu_gated *of, int64_t i, int64_t n)
{
    const vfloat limit = splat(plan->limit), alpha = splat(plan->alpha);
    const block gate = load_any(of->dtype, of->gate, i, n);
    block x = act(activation, alpha,
                  (block){at_most(limit, gate.lo), at_most(limit, gate.hi)});
    x = round_any(of->rounds, x);
    if (of->up) {
        const block up = load_any(of->up_dtype, of->up, i, n);
        x = product(x, (block){up_of(plan, up.lo), up_of(plan, up.hi)});
    }
    store_any(of->to_dtype, of->to, i, x, n, of->is_streamed);
}

/* Of operands of one type, into that or into float32: the same, of a type that
 * the loop is made for, and nothing is clamped or added. */
INLINE void gate_typed(enum activation activation, enum roped_dtype from,
                       enum roped_dtype to, const struct act_and_mul_plan *plan,
                       const struct cpu_gated *of, int64_t i, int64_t n)
{
    const enum order order = order_of(from);
    const vfloat alpha = splat(plan->alpha);
    block x = load(from, order, at(from, of->gate, i), n);
    x = act(activation, alpha, x);
    if (of->rounds == from)
        x = round_to(from, x);
    if (of->up)
        x = product(x, load(from, order, at(from, of->up, i), n));
    store(to, order, place(to, of->to, i), x, 1, n, of->is_streamed);
}

/* Either; of any types where from is none. */
INLINE void gate_part(enum activation activation, enum roped_dtype from,
                      enum roped_dtype to, const struct act_and_mul_plan *plan,
                      const struct cpu_gated *of, int64_t i, int64_t n)
{
    if (from == ROPED_NO_DTYPE)
        gate_block(activation, plan, of, i, n);
    else
        gate_typed(activation, from, to, plan, of, i, n);
}

INLINE void gate_row(enum activation activation, enum roped_dtype from,
                     enum roped_dtype to,
                     const struct act_and_mul_plan *given_plan,
                     const struct cpu_gated *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    const bool is_any = from == ROPED_NO_DTYPE;
    struct cpu_gated of = *given;
    of.is_streamed = given->is_streamed && is_aligned(ROPED_U8, of.to, 0);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_any(is_any ? of.dtype : from, of.gate, i, of.ahead);
        if (of.up)
            prefetch_any(is_any ? of.up_dtype : from, of.up, i, of.ahead);
        gate_part(activation, from, to, &plan, &of, i, BLOCK);
    }
    if (i < n)
        gate_part(activation, from, to, &plan, &of, i, n - i);
}

INLINE void gate_all(enum activation activation,
                     const struct act_and_mul_plan *plan,
                     const struct cpu_gated *of, int64_t n)
{
    const bool is_plain = plan->limit == INFINITY && plan->beta == 0;
    const bool is_one = (!of->up || of->up_dtype == of->dtype) &&
                        (of->rounds == ROPED_F32 || of->rounds == of->dtype);
    const int types =
        is_plain && is_one ? TYPE_PAIR(of->dtype, of->to_dtype) : 0;
    if (types == TYPE_PAIR(ROPED_BF16, ROPED_BF16))
        gate_row(activation, ROPED_BF16, ROPED_BF16, plan, of, n);
    else if (types == TYPE_PAIR(ROPED_F16, ROPED_F16))
        gate_row(activation, ROPED_F16, ROPED_F16, plan, of, n);
    else if (types == TYPE_PAIR(ROPED_F32, ROPED_F32))
        gate_row(activation, ROPED_F32, ROPED_F32, plan, of, n);
    else if (types == TYPE_PAIR(ROPED_BF16, ROPED_F32))
        gate_row(activation, ROPED_BF16, ROPED_F32, plan, of, n);
    else if (types == TYPE_PAIR(ROPED_F16, ROPED_F32))
        gate_row(activation, ROPED_F16, ROPED_F32, plan, of, n);
    else
        gate_row(activation, ROPED_NO_DTYPE, ROPED_NO_DTYPE, plan, of, n);
}

static void gate(const struct act_and_mul_plan *plan,
                 const struct cpu_gated *of, int64_t n){
    FOR_ACTIVATION(plan->activation, gate_all, plan, of, n)}

/* --------------------------------------------------------------- gradients */

/* x, but 0 where that is 0. */
INLINE vfloat unless_zero(vfloat that, vfloat x)
{
    return (vfloat)((vint)x & ~(vint)(that == splat(0)));
}

/* x, but 0 where that is beyond what the plan lets through. */
INLINE vfloat unless_beyond(vfloat most, vfloat that, vfloat x)
{
    return pick_lanes(is_less(most, that), splat(0),
                      pick_lanes(is_less(that, -most), splat(0), x));
}

INLINE void descend_block(enum activation activation,
                          const struct act_and_mul_plan *plan, vfloat most,
                          const struct cpu_gated_gradient *of, int64_t i,
                          int64_t n)
{
    const vfloat limit = splat(plan->limit), alpha = splat(plan->alpha);
    const block g = load_any(of->dtype, of->grad_y, i, n);
    const block x = load_any(of->dtype, of->gate, i, n);
    const block near = {at_most(limit, x.lo), at_most(limit, x.hi)};
    const block slope = {pick_lanes(is_less(most, x.lo), splat(0),
                                    slope_of(activation, alpha, near.lo)),
                         pick_lanes(is_less(most, x.hi), splat(0),
                                    slope_of(activation, alpha, near.hi))};
    block to_act = g;
    if (of->up) {
        const block up = load_any(of->dtype, of->up, i, n);
        block value = {act_anywhere(activation, alpha, near.lo),
                       act_anywhere(activation, alpha, near.hi)};
        to_act = product(g, (block){up_of(plan, up.lo), up_of(plan, up.hi)});
        value = product(round_any(of->rounds, value), g);
        value = (block){unless_beyond(most, up.lo, value.lo),
                        unless_beyond(most, up.hi, value.hi)};
        store_any(of->dtype, of->grad_up, i, value, n, of->is_streamed);
    }
    to_act = product(round_any(of->rounds, to_act), slope);
    to_act = (block){unless_zero(slope.lo, to_act.lo),
                     unless_zero(slope.hi, to_act.hi)};
    store_any(of->dtype, of->grad_gate, i, to_act, n, of->is_streamed);
}

INLINE void descend_all(enum activation activation,
                        const struct act_and_mul_plan *given_plan,
                        const struct cpu_gated_gradient *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    const vfloat most = splat(below_limit(&plan));
    struct cpu_gated_gradient of = *given;
    int64_t i = 0;
    of.is_streamed = given->is_streamed &&
                     is_aligned(ROPED_U8, of.grad_gate, 0) &&
                     (!of.up || is_aligned(ROPED_U8, of.grad_up, 0));
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_any(of.dtype, of.grad_y, i, AHEAD);
        prefetch_any(of.dtype, of.gate, i, of.ahead);
        if (of.up)
            prefetch_any(of.dtype, of.up, i, of.ahead);
        descend_block(activation, &plan, most, &of, i, BLOCK);
    }
    if (i < n)
        descend_block(activation, &plan, most, &of, i, n - i);
}

static void descend(const struct act_and_mul_plan *plan,
                    const struct cpu_gated_gradient *of, int64_t n)
{
    FOR_ACTIVATION(plan->activation, descend_all, plan, of, n)
}

/* ------------------------------------------------------------------ others */

static void tanh_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_lanes(x + i, tanh_of(load_lanes(x + i)));
}

static void expm1_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_lanes(x + i, expm1_of(load_lanes(x + i)));
}

static void weave(float *restrict to, const float *restrict even,
                  const float *restrict odd, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = even[i];
        to[2 * i + 1] = odd[i];
    }
}

static void pick(float *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[2 * i];
}

extern const struct cpu_activation_rows ISA(cpu_activation_rows);
const struct cpu_activation_rows ISA(cpu_activation_rows) = {
    .gate = gate,
    .descend = descend,
    .tanh = tanh_all,
    .expm1 = expm1_all,
    .pick = pick,
    .weave = weave,
};
