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
INLINE block load_any(enum roped_dtype dtype, enum order order,
                      const void *from, int64_t i, int64_t n)
{
    if (dtype == ROPED_F16)
        return load(ROPED_F16, order, at(ROPED_F16, from, i), n);
    if (dtype == ROPED_BF16)
        return load(ROPED_BF16, order, at(ROPED_BF16, from, i), n);
    return load(ROPED_F32, order, at(ROPED_F32, from, i), n);
}

INLINE void store_any(enum roped_dtype dtype, enum order order, void *to,
                      int64_t i, block x, int64_t n, bool is_streamed)
{
    if (dtype == ROPED_F16)
        store(ROPED_F16, order, place(ROPED_F16, to, i), x, 1, n, is_streamed);
    else if (dtype == ROPED_BF16)
        store(ROPED_BF16, order, place(ROPED_BF16, to, i), x, 1, n,
              is_streamed);
    else
        store(ROPED_F32, order, place(ROPED_F32, to, i), x, 1, n, is_streamed);
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

/* What a loop of gates, or of gradients, is made for. */
struct kind {
    enum activation activation;
    enum roped_dtype from; /* of all operands, or none: of any types */
    enum roped_dtype to;
    enum digits digits;
    bool is_clamped; /* by the plan's limit, and beta is added to up */
    bool is_pairs; /* gates and ups in turns; without types they may be, too */
};

INLINE enum order order_in(struct kind kind)
{
    if (kind.from == ROPED_NO_DTYPE || kind.is_pairs)
        return HALVES;
    return order_of(kind.from);
}

INLINE block load_operand(struct kind kind, enum order order,
                          enum roped_dtype dtype, const void *from, int64_t i,
                          int64_t n)
{
    if (kind.from == ROPED_NO_DTYPE)
        return load_any(dtype, order, from, i, n);
    return load(kind.from, order, at(kind.from, from, i), n);
}

INLINE void store_operand(struct kind kind, enum order order,
                          enum roped_dtype dtype, void *to, int64_t i, block x,
                          int64_t n, bool is_streamed)
{
    if (kind.from == ROPED_NO_DTYPE)
        store_any(dtype, order, to, i, x, n, is_streamed);
    else
        store(kind.to, order, place(kind.to, to, i), x, 1, n, is_streamed);
}

INLINE block round_operand(struct kind kind, enum roped_dtype rounds, block x)
{
    if (kind.from == ROPED_NO_DTYPE)
        return round_any(rounds, x);
    if (kind.digits == SHORT || rounds != kind.from)
        return x;
    return round_to(kind.from, x);
}

/* A block of gates, and of ups or of what grad_up has. */
struct gate_and_up {
    block gate, up;
};

INLINE bool has_pairs(struct kind kind, bool are_pairs)
{
    return kind.from == ROPED_NO_DTYPE ? are_pairs : kind.is_pairs;
}

/* Of n elements those in a first vector. */
INLINE int64_t first_lanes(int64_t n)
{
    return n < LANES ? n : LANES;
}

/* Pairs [i, i + n). Two vectors of one type are a block of either. */
INLINE struct gate_and_up load_pairs(struct kind kind, enum roped_dtype dtype,
                                     const void *from, int64_t i, int64_t n)
{
    const int64_t first = first_lanes(n), last = n - first;
    const block a = load_operand(kind, PAIRS, dtype, from, 2 * i, 2 * first);
    block b = a;
    if (last > 0)
        b = load_operand(kind, PAIRS, dtype, from, 2 * i + BLOCK, 2 * last);
    return (struct gate_and_up){{a.lo, b.lo}, {a.hi, b.hi}};
}

INLINE void store_pairs(struct kind kind, enum roped_dtype dtype, void *to,
                        int64_t i, struct gate_and_up x, int64_t n,
                        bool is_streamed)
{
    const int64_t first = first_lanes(n), last = n - first;
    store_operand(kind, PAIRS, dtype, to, 2 * i, (block){x.gate.lo, x.up.lo},
                  2 * first, is_streamed);
    if (last > 0)
        store_operand(kind, PAIRS, dtype, to, 2 * i + BLOCK,
                      (block){x.gate.hi, x.up.hi}, 2 * last, is_streamed);
}

INLINE block clamped_gate(struct kind kind, const struct act_and_mul_plan *plan,
                          block x)
{
    const vfloat limit = splat(plan->limit);
    if (!kind.is_clamped)
        return x;
    return (block){at_most(limit, x.lo), at_most(limit, x.hi)};
}

INLINE block clamped_up(struct kind kind, const struct act_and_mul_plan *plan,
                        block x)
{
    if (!kind.is_clamped)
        return x;
    return (block){up_of(plan, x.lo), up_of(plan, x.hi)};
}

/* Elements [i, i + n), at most a block. */
INLINE void gate_block(struct kind kind, const struct act_and_mul_plan *plan,
                       const struct cpu_gated *of, int64_t i, int64_t n)
{
    const enum order order = order_in(kind);
    struct gate_and_up in = {0};
    if (has_pairs(kind, of->is_pairs))
        in = load_pairs(kind, of->dtype, of->gate, i, n);
    else
        in.gate = load_operand(kind, order, of->dtype, of->gate, i, n);
    block x = act(kind.activation, kind.digits, splat(plan->alpha),
                  clamped_gate(kind, plan, in.gate));
    x = round_operand(kind, of->rounds, x);
    if (!has_pairs(kind, of->is_pairs) && of->up)
        in.up = load_operand(kind, order, of->up_dtype, of->up, i, n);
    if (of->up)
        x = product(x, clamped_up(kind, plan, in.up));
    store_operand(kind, order, of->to_dtype, of->to, i, x, n, of->is_streamed);
}

/* What is read of gates and ups a little later. */
INLINE void prefetch_gates(struct kind kind, enum roped_dtype dtype,
                           enum roped_dtype up_dtype, const void *gate,
                           const void *up, bool are_pairs, int64_t i,
                           int64_t ahead)
{
    const bool is_any = kind.from == ROPED_NO_DTYPE;
    if (has_pairs(kind, are_pairs)) {
        prefetch_any(is_any ? dtype : kind.from, gate, 2 * i, ahead);
        prefetch_any(is_any ? dtype : kind.from, gate, 2 * i + BLOCK, ahead);
        return;
    }
    prefetch_any(is_any ? dtype : kind.from, gate, i, ahead);
    if (up)
        prefetch_any(is_any ? up_dtype : kind.from, up, i, ahead);
}

INLINE void gate_row(struct kind kind,
                     const struct act_and_mul_plan *given_plan,
                     const struct cpu_gated *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    struct cpu_gated of = *given;
    of.is_streamed = given->is_streamed && is_aligned(ROPED_U8, of.to, 0);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_gates(kind, of.dtype, of.up_dtype, of.gate, of.up, of.is_pairs,
                       i, of.ahead);
        gate_block(kind, &plan, &of, i, BLOCK);
    }
    if (i < n)
        gate_block(kind, &plan, &of, i, n - i);
}

INLINE bool is_clamped(const struct act_and_mul_plan *plan)
{
    return plan->limit < INFINITY || plan->beta != 0;
}

/* Are there loops of clamped values and of pairs, of this activation? Others
 * have those of any types. */
INLINE bool has_clamped(enum activation activation)
{
    return activation == ACT_QUICK_GELU; /* and swiglu_oai, which it is for */
}

/* Words rounded once, or twice where the other loop costs no more. */
INLINE void gate_words(enum activation activation, enum roped_dtype dtype,
                       const struct act_and_mul_plan *plan,
                       const struct cpu_gated *of, int64_t n)
{
    const struct kind twice = {activation, dtype, dtype, OF_WORDS};
    const struct kind once = {activation, dtype, dtype, SHORT};
    const struct kind clamped = {activation, dtype, dtype, OF_WORDS, true};
    const struct kind pairs = {activation, dtype, dtype, OF_WORDS, true, true};
    if (has_clamped(activation) && of->is_pairs)
        gate_row(pairs, plan, of, n);
    else if (has_clamped(activation) && is_clamped(plan))
        gate_row(clamped, plan, of, n);
    else if (has_short(activation) && of->rounds == ROPED_F32)
        gate_row(once, plan, of, n);
    else
        gate_row(twice, plan, of, n);
}

INLINE void gate_floats(enum activation activation, enum roped_dtype dtype,
                        const struct act_and_mul_plan *plan,
                        const struct cpu_gated *of, int64_t n)
{
    const enum digits digits = dtype == ROPED_F32 ? OF_FLOATS : OF_WORDS;
    gate_row((struct kind){activation, dtype, ROPED_F32, digits}, plan, of, n);
}

INLINE void gate_all(enum activation activation,
                     const struct act_and_mul_plan *plan,
                     const struct cpu_gated *of, int64_t n)
{
    const bool is_one = (!of->up || of->up_dtype == of->dtype) &&
                        (of->rounds == ROPED_F32 || of->rounds == of->dtype);
    const bool is_plain = !of->is_pairs && !is_clamped(plan);
    const bool is_to_floats = is_one && is_plain && of->to_dtype == ROPED_F32;
    const bool is_to_words = is_one && of->to_dtype == of->dtype &&
                             (is_plain || has_clamped(activation));
    if (is_to_words && of->dtype == ROPED_BF16)
        gate_words(activation, ROPED_BF16, plan, of, n);
    else if (is_to_words && of->dtype == ROPED_F16)
        gate_words(activation, ROPED_F16, plan, of, n);
    else if (is_to_floats && of->dtype == ROPED_F32)
        gate_floats(activation, ROPED_F32, plan, of, n);
    else if (is_to_floats && of->dtype == ROPED_BF16)
        gate_floats(activation, ROPED_BF16, plan, of, n);
    else if (is_to_floats && of->dtype == ROPED_F16)
        gate_floats(activation, ROPED_F16, plan, of, n);
    else
        gate_row((struct kind){.activation = activation,
                               .from = ROPED_NO_DTYPE,
                               .digits = OF_FLOATS,
                               .is_clamped = true},
                 plan, of, n);
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

INLINE void descend_block(struct kind kind, const struct act_and_mul_plan *plan,
                          vfloat most, const struct cpu_gated_gradient *of,
                          int64_t i, int64_t n)
{
    const enum order order = order_in(kind);
    const block g = load_operand(kind, order, of->dtype, of->grad_y, i, n);
    struct gate_and_up in = {0}, out = {.gate = g};
    block slope;
    if (has_pairs(kind, of->is_pairs))
        in = load_pairs(kind, of->dtype, of->gate, i, n);
    else
        in.gate = load_operand(kind, order, of->dtype, of->gate, i, n);
    act_with_slope(kind.activation, kind.digits, splat(plan->alpha),
                   clamped_gate(kind, plan, in.gate), &out.up, &slope);
    if (kind.is_clamped)
        slope =
            (block){pick_lanes(is_less(most, in.gate.lo), splat(0), slope.lo),
                    pick_lanes(is_less(most, in.gate.hi), splat(0), slope.hi)};
    if (!has_pairs(kind, of->is_pairs) && of->up)
        in.up = load_operand(kind, order, of->dtype, of->up, i, n);
    if (of->up) {
        out.gate = product(g, clamped_up(kind, plan, in.up));
        out.up = product(round_operand(kind, of->rounds, out.up), g);
        if (kind.is_clamped)
            out.up = (block){unless_beyond(most, in.up.lo, out.up.lo),
                             unless_beyond(most, in.up.hi, out.up.hi)};
    }
    if (!has_pairs(kind, of->is_pairs) && of->up)
        store_operand(kind, order, of->dtype, of->grad_up, i, out.up, n,
                      of->is_streamed);
    out.gate = product(round_operand(kind, of->rounds, out.gate), slope);
    out.gate = (block){unless_zero(slope.lo, out.gate.lo),
                       unless_zero(slope.hi, out.gate.hi)};
    if (has_pairs(kind, of->is_pairs))
        store_pairs(kind, of->dtype, of->grad_gate, i, out, n, of->is_streamed);
    else
        store_operand(kind, order, of->dtype, of->grad_gate, i, out.gate, n,
                      of->is_streamed);
}

INLINE void descend_row(struct kind kind,
                        const struct act_and_mul_plan *given_plan,
                        const struct cpu_gated_gradient *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    const vfloat most = splat(below_limit(&plan));
    const bool is_any = kind.from == ROPED_NO_DTYPE;
    struct cpu_gated_gradient of = *given;
    int64_t i = 0;
    of.is_streamed =
        given->is_streamed && is_aligned(ROPED_U8, of.grad_gate, 0) &&
        (!of.up || of.is_pairs || is_aligned(ROPED_U8, of.grad_up, 0));
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_any(is_any ? of.dtype : kind.from, of.grad_y, i, AHEAD);
        prefetch_gates(kind, of.dtype, of.dtype, of.gate, of.up, of.is_pairs, i,
                       of.ahead);
        descend_block(kind, &plan, most, &of, i, BLOCK);
    }
    if (i < n)
        descend_block(kind, &plan, most, &of, i, n - i);
}

INLINE void descend_words(enum activation activation, enum roped_dtype dtype,
                          const struct act_and_mul_plan *plan,
                          const struct cpu_gated_gradient *of, int64_t n)
{
    const struct kind twice = {activation, dtype, dtype, OF_WORDS};
    const struct kind once = {activation, dtype, dtype, SHORT};
    const struct kind clamped = {activation, dtype, dtype, OF_WORDS, true};
    const struct kind pairs = {activation, dtype, dtype, OF_WORDS, true, true};
    if (has_clamped(activation) && of->is_pairs)
        descend_row(pairs, plan, of, n);
    else if (has_clamped(activation) && is_clamped(plan))
        descend_row(clamped, plan, of, n);
    else if (has_short(activation) && of->rounds == ROPED_F32)
        descend_row(once, plan, of, n);
    else
        descend_row(twice, plan, of, n);
}

INLINE void descend_all(enum activation activation,
                        const struct act_and_mul_plan *plan,
                        const struct cpu_gated_gradient *of, int64_t n)
{
    const bool is_plain = !of->is_pairs && !is_clamped(plan);
    const bool is_known = is_plain || has_clamped(activation);
    if (is_known && of->dtype == ROPED_BF16)
        descend_words(activation, ROPED_BF16, plan, of, n);
    else if (is_known && of->dtype == ROPED_F16)
        descend_words(activation, ROPED_F16, plan, of, n);
    else
        descend_row((struct kind){.activation = activation,
                                  .from = ROPED_NO_DTYPE,
                                  .digits = OF_FLOATS,
                                  .is_clamped = true},
                    plan, of, n);
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
};
